# Tokenizers of sentencepiece, where it is installed: a file of its own that the core loads when it needs it, because
# the library's protobuf must not meet the one of gRPC and libtorch (trireme/data/sentencepiece/plugin.h). Not under
# sanitizers, which do not know RTLD_DEEPBIND.
include(GNUInstallDirs)
set_source_files_properties(trireme/data/tokenizer.cpp PROPERTIES COMPILE_DEFINITIONS
                            TRIREME_PLUGINS="${CMAKE_BINARY_DIR}:${CMAKE_INSTALL_FULL_LIBDIR}/trireme")
find_library(SENTENCEPIECE sentencepiece)
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
if(SENTENCEPIECE AND SENTENCEPIECE_INCLUDE AND NOT TRIREME_SANITIZE)
  add_library(trireme_sentencepiece MODULE trireme/data/sentencepiece/plugin.cpp)
  target_include_directories(trireme_sentencepiece PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(trireme_sentencepiece SYSTEM PRIVATE ${SENTENCEPIECE_INCLUDE})
  target_link_libraries(trireme_sentencepiece PRIVATE ${SENTENCEPIECE} trireme_warnings)
  set_target_properties(trireme_sentencepiece PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  install(TARGETS trireme_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/trireme)
  add_dependencies(trireme_core trireme_sentencepiece)
endif()
