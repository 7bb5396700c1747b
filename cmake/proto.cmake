# The messages of the coordinator: C++ from trireme/cluster/coordination/coordinator.proto, in the build folder.
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
set(proto ${PROJECT_SOURCE_DIR}/trireme/cluster/coordination/coordinator.proto)
set(proto_out ${CMAKE_BINARY_DIR}/proto)
set(proto_sources ${proto_out}/coordinator.pb.cc ${proto_out}/coordinator.grpc.pb.cc)
file(MAKE_DIRECTORY ${proto_out})
add_custom_command(
  OUTPUT ${proto_sources} ${proto_out}/coordinator.pb.h ${proto_out}/coordinator.grpc.pb.h
  COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR}/trireme/cluster/coordination --cpp_out=${proto_out}
          --grpc_out=${proto_out} --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} ${proto}
  DEPENDS ${proto} VERBATIM)
target_sources(trireme_core PRIVATE ${proto_sources})
target_include_directories(trireme_core SYSTEM PRIVATE ${proto_out})
target_link_libraries(trireme_core PRIVATE gRPC::grpc++ protobuf::libprotobuf OpenSSL::SSL)
set_source_files_properties(${proto_sources} PROPERTIES COMPILE_OPTIONS -w)
target_compile_definitions(trireme_core PRIVATE TRIREME_VERSION="${PROJECT_VERSION}")
