# One engine, four ways to hear of errors: by exceptions or without them, with or without a function of its own.
function(add_errors_test name)
  add_executable(test_errors_${name} errors/main.cpp)
  target_link_libraries(test_errors_${name} PRIVATE kvilt_development)
  target_compile_options(test_errors_${name} PRIVATE ${ARGN})
  add_test(NAME errors.${name} COMMAND test_errors_${name})
endfunction()

add_errors_test(thrown)
add_errors_test(heard_and_thrown -DKVILT_RAISE=engine_error)
add_errors_test(trapped -fno-exceptions -fno-rtti)
add_errors_test(heard_and_trapped -fno-exceptions -fno-rtti -DKVILT_RAISE=engine_error)
