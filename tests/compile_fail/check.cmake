# cmake -DCOMMAND=<compiler;flags…> -DSOURCE=<file> -P check.cmake
file(STRINGS ${SOURCE} expected LIMIT_COUNT 1)
if(NOT expected MATCHES "^// expect: (.+)$")
  message(FATAL_ERROR "the first line must be \"// expect: <regex>\", not: ${expected}")
endif()
set(expected ${CMAKE_MATCH_1})
set(ENV{LC_ALL} C)  # plain quotes in messages

execute_process(COMMAND ${COMMAND} ${SOURCE} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "compiled, but should fail with: ${expected}")
endif()
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "failed with another message than: ${expected}\n${output}")
endif()

execute_process(COMMAND ${COMMAND} -DKVILT_COMPILE_FAIL_CONTROL ${SOURCE} RESULT_VARIABLE status OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the corrected program does not compile either:\n${output}")
endif()
