# `cmake --install` and find_package(Trireme).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(targets trireme_core)
if(TRIREME_TORCH)
  list(APPEND targets trireme)
  install(TARGETS trireme_command trireme_worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS ${targets} EXPORT TriremeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Headers that say "Not installed" see gRPC, or are for one file of their folder.
file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/trireme/*.h)
foreach(header ${headers})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} private REGEX "^//.*Not installed" LIMIT_COUNT 1)
  get_filename_component(folder ${header} DIRECTORY)
  if(NOT private)
    install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  endif()
endforeach()
install(EXPORT TriremeTargets NAMESPACE Trireme:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TriremeConfig.cmake.in ${CMAKE_BINARY_DIR}/TriremeConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TriremeConfig.cmake ${CMAKE_BINARY_DIR}/TriremeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
