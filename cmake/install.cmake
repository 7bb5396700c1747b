# `cmake --install` and find_package(Trireme).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(targets trireme_core)
if(TRIREME_TORCH)
  list(APPEND targets trireme)
  install(TARGETS trireme_command trireme_worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS ${targets} EXPORT TriremeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/trireme DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
        PATTERN "cluster/coordination/wire.h" EXCLUDE PATTERN "cluster/coordination/grpc.h" EXCLUDE PATTERN "cluster/coordination/stream.h" EXCLUDE PATTERN "cluster/environment/variables.h" EXCLUDE PATTERN "cluster/launching/interruption.h" EXCLUDE
        PATTERN "ps/chunk_state.h" EXCLUDE PATTERN "ps/network/buffers.h" EXCLUDE PATTERN "ps/network/stream.h" EXCLUDE PATTERN "ps/network/visitor.h" EXCLUDE
        PATTERN "ps/network/poller.h" EXCLUDE PATTERN "ps/network/assembly.h" EXCLUDE PATTERN "ps/network/arrival.h" EXCLUDE PATTERN "parallel/impl.h" EXCLUDE)
install(EXPORT TriremeTargets NAMESPACE Trireme:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TriremeConfig.cmake.in ${CMAKE_BINARY_DIR}/TriremeConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TriremeConfig.cmake ${CMAKE_BINARY_DIR}/TriremeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
