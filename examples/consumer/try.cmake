# Installs the build, builds the consumer against it, runs it. cmake -DBUILD=… -DSOURCE=… -P try.cmake
set(prefix ${BUILD}/consumer/prefix)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed (${code}): ${ARGN}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${BUILD}/consumer/build -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
run(${CMAKE_COMMAND} --build ${BUILD}/consumer/build)
run(${prefix}/bin/trireme launch -n 2 -- ${BUILD}/consumer/build/consumer)
