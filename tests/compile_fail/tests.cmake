# Programs that must not compile. The first line of each is "// expect: <regex>", which the compiler's errors must match;
# with KVILT_COMPILE_FAIL_CONTROL defined the program must compile, so that it cannot fail for another reason.
function(add_compile_fail_test source)
  cmake_path(GET source STEM name)
  add_test(NAME compile_fail.${name} COMMAND ${CMAKE_COMMAND} "-DCOMMAND=${ARGN}" -DSOURCE=${source}
                                             -P ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/check.cmake)
endfunction()

file(GLOB compile_fail_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cpp)
foreach(source IN LISTS compile_fail_sources)
  add_compile_fail_test(${source} ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include)
endforeach()

if(CMAKE_CUDA_COMPILER)
  list(GET KVILT_TEST_CUDA_ARCHS 0 arch)
  file(GLOB compile_fail_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cu)
  foreach(source IN LISTS compile_fail_sources)
    add_compile_fail_test(${source} ${CMAKE_CUDA_COMPILER} -std=c++20 -arch=sm_${arch} -Werror=all-warnings
                          -I${PROJECT_SOURCE_DIR}/include --ptx -o /dev/null)
  endforeach()
endif()
