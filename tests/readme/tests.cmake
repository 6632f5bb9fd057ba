# README's tables are made from bench/results.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  message(STATUS "README's tables are not checked: Python was not found.")
  return()
endif()
set(tables ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/bench/tables.py)
add_test(NAME readme.tables COMMAND ${tables} --check)
add_test(NAME readme.tables_are_written
         COMMAND ${CMAKE_COMMAND} "-DTABLES=${tables}" -DWORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/readme
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/readme/check.cmake)
