# Each folder here is a user's project that gets kvilt in its own way.
set(consumers find_package add_subdirectory fetch_content)
if(CMAKE_CUDA_COMPILER)
  list(APPEND consumers cuda)
endif()
foreach(consumer IN LISTS consumers)
  add_test(NAME package.${consumer}
           COMMAND ${CMAKE_COMMAND} -DCONSUMER=${consumer} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                   -DBUILD_DIR=${PROJECT_BINARY_DIR} -DWORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/package/${consumer}
                   -DGENERATOR=${CMAKE_GENERATOR} -DCXX_COMPILER=${CMAKE_CXX_COMPILER}
                   -DCUDA_COMPILER=${CMAKE_CUDA_COMPILER} -P ${CMAKE_CURRENT_SOURCE_DIR}/package/check.cmake)
endforeach()
