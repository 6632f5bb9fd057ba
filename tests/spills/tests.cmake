# What ptxas says of the kernels of five policies: none of them uses local memory but those in the lists, which are to
# become shorter. No GPU is needed.
set(spills_dir ${CMAKE_CURRENT_BINARY_DIR}/spills)
set(spills_arch 90a)

# add_spills_test(<name> <source> <options of nvcc> [<kernel>=<stack>/<stores>/<loads>…]): bytes as ptxas counts them.
function(add_spills_test name source options)
  set(command ${CMAKE_CUDA_COMPILER} -std=c++20 -gencode=arch=compute_${spills_arch},code=sm_${spills_arch}
              -I${PROJECT_SOURCE_DIR}/include ${options})
  add_test(NAME spills.${name} COMMAND ${CMAKE_COMMAND} "-DCOMMAND=${command}" -DSOURCE=${source}
                                       -DCUBIN=${spills_dir}/${name}.cubin "-DKNOWN=${ARGN}"
                                       -P ${CMAKE_CURRENT_SOURCE_DIR}/spills/check.cmake)
endfunction()

# The check itself: it tells of two kernels with local memory, and of a list that allows more than there is.
set(spilling ${CMAKE_CURRENT_SOURCE_DIR}/spills/spilling.cu)
add_spills_test(are_noticed ${spilling} -maxrregcount=32)
set_tests_properties(spills.are_noticed PROPERTIES PASS_REGULAR_EXPRESSION
                     "crowded has [1-9][0-9/]+, 0/0/0 .*indexed has [1-9][0-9]+/0/0, 0/0/0 ")
add_spills_test(become_fewer ${spilling} -maxrregcount=32 crowded=999/999/999 indexed=256/0/0)
set_tests_properties(spills.become_fewer PROPERTIES PASS_REGULAR_EXPRESSION "crowded has become better: write [0-9/]+ ")
add_spills_test(of_no_kernel ${spilling} -maxrregcount=32 crowded=999/999/999 indexed=256/0/0 gone=8/8/8)
set_tests_properties(spills.of_no_kernel PROPERTIES PASS_REGULAR_EXPRESSION "gone may have 8/8/8, but there is none")

# What another ptxas makes of the same kernels is its own affair.
if(NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.0\\.")
  message(STATUS "Kernels' spills are not looked at: the lists are those of nvcc 13.0.")
  return()
endif()

# add_policy_spills(<name> <template arguments of policy> [<kernel>=<stack>/<stores>/<loads>…])
function(add_policy_spills name policy)
  set(source ${spills_dir}/${name}.cu)
  configure_file(spills/kernels.cu.in ${source} @ONLY)
  add_spills_test(${name} ${source} "" ${ARGN})
  set_tests_properties(spills.${name} PROPERTIES RESOURCE_LOCK spills) # one at a time: each keeps a processor busy
endfunction()

add_policy_spills(bf16 "paged<16>, bf16<128>" attend_32_rows=88/106/216 prefill=16/12/12)
add_policy_spills(q8 "paged<16>, q8<128>" attend_32_rows=120/170/228 prefill=104/104/160)
add_policy_spills(e4m3 "paged<16>, e4m3<128>" attend_32_rows=112/122/216 prefill=104/104/160)
add_policy_spills(bf16_of_256 "paged<16>, bf16<256>" attend_8_rows=88/98/276 attend_16_rows=336/438/956
                  prefill=264/296/408)
add_policy_spills(q8rot_in_segments "paged<16>, rotated<q8<128>>, rotated<q8<128>>, keep_all, 4, 64"
                  attend_16_rows=96/124/260 prefill=136/204/624)
