# A fuzz test is <name>_fuzz.cpp and a folder of seeds. Ordinary builds run it over the seeds; with KVILT_FUZZ=ON it is
# a libFuzzer program instead, which looks for more during KVILT_FUZZ_SECONDS and fails at what it finds.
function(add_fuzz_test name longest)
  set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name})
  set(target fuzz_${name})
  add_executable(${target} fuzz/${name}_fuzz.cpp ${ARGN})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/examples/model)
  target_link_libraries(${target} PRIVATE kvilt_programs Catch2::Catch2)
  if(KVILT_FUZZ)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/${target}_corpus)
    file(MAKE_DIRECTORY ${found})
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined)
    # What one call may take: 10 seconds, and 16 MiB at once, far more than any input is worth.
    add_test(NAME ${target} COMMAND ${target} -max_total_time=${KVILT_FUZZ_SECONDS} -max_len=${longest} -timeout=10
                                    -malloc_limit_mb=16 -print_final_stats=1
                                    -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/${target}_ ${found} ${seeds})
  else()
    target_sources(${target} PRIVATE fuzz/replay.cpp)
    target_compile_definitions(${target} PRIVATE SEEDS="${seeds}")
    add_test(NAME ${target} COMMAND ${target})
  endif()
endfunction()

add_fuzz_test(dispatch 160)
add_fuzz_test(cache_operations 256)
add_fuzz_test(page_manager 400)
add_fuzz_test(sequence_file 1200)
set(model_dir ${PROJECT_SOURCE_DIR}/examples/model)
add_fuzz_test(gguf 1024 ${model_dir}/gguf.cpp ${model_dir}/tensor_types.cpp)
