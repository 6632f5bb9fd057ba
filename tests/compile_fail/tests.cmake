# Programs that must not compile. The first line of each is "// expect: <regex>", which the compiler's errors must match;
# with KVILT_COMPILE_FAIL_CONTROL defined the program must compile, so that it cannot fail for another reason.
function(add_compile_fail_test source)
  cmake_path(GET source STEM name)
  add_test(NAME compile_fail.${name} COMMAND ${CMAKE_COMMAND} "-DCOMMAND=${ARGN}" -DSOURCE=${source}
                                             -P ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/check.cmake)
endfunction()

# What all of them include is compiled once: both compilers look for <file>.gch first, and take <file> where there is
# none that fits.
set(compile_fail_command ${CMAKE_CXX_COMPILER} -std=c++20 -I${PROJECT_SOURCE_DIR}/include)
set(precompiled)
if(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
  set(whole ${CMAKE_CURRENT_BINARY_DIR}/compile_fail/whole.hpp)
  file(CONFIGURE OUTPUT ${whole} CONTENT "#include <kvilt/kvilt.hpp>\n" @ONLY)
  add_custom_command(OUTPUT ${whole}.gch DEPENDS ${whole} DEPFILE ${whole}.d
                     COMMAND ${compile_fail_command} -x c++-header ${whole} -o ${whole}.gch -MD -MT ${whole}.gch
                             -MF ${whole}.d
                     COMMENT "Precompiling what the programs of compile_fail include" VERBATIM)
  add_custom_target(compile_fail_header ALL DEPENDS ${whole}.gch)
  set(precompiled -include ${whole})
endif()
file(GLOB compile_fail_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cpp)
foreach(source IN LISTS compile_fail_sources)
  add_compile_fail_test(${source} ${compile_fail_command} -fsyntax-only ${precompiled})
endforeach()

if(CMAKE_CUDA_COMPILER)
  list(GET KVILT_TEST_CUDA_ARCHS 0 arch)
  file(GLOB compile_fail_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cu)
  foreach(source IN LISTS compile_fail_sources)
    add_compile_fail_test(${source} ${CMAKE_CUDA_COMPILER} -std=c++20 -arch=sm_${arch} -Werror=all-warnings
                          -I${PROJECT_SOURCE_DIR}/include --ptx -o /dev/null)
  endforeach()
endif()
