# README's code is that of examples, and its tables are made from bench/results.
add_test(NAME readme.examples COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                                      -P ${CMAKE_CURRENT_SOURCE_DIR}/readme/examples.cmake)
