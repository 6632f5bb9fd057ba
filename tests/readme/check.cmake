# cmake -DTABLES=<python;tables.py> -DWORK_DIR=<folder> -P check.cmake
# Lets bench/tables.py write a README of two tables, and change what is between the markers alone.
cmake_minimum_required(VERSION 3.24)

set(readme ${WORK_DIR}/README.md)
file(REMOVE_RECURSE ${WORK_DIR})

# run(<what is expected: 0 or a message> <options…>)
function(run expected)
  execute_process(COMMAND ${TABLES} --root ${WORK_DIR} ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE said
                  ERROR_VARIABLE said)
  if(expected STREQUAL "0" AND NOT code EQUAL 0)
    message(FATAL_ERROR "fails: ${said}")
  elseif(NOT expected STREQUAL "0" AND (code EQUAL 0 OR NOT said MATCHES "${expected}"))
    message(FATAL_ERROR "exits with ${code}; a failure that says '${expected}' was expected: ${said}")
  endif()
endfunction()

file(WRITE ${WORK_DIR}/bench/results/host_bands_tiny.csv
     "policy,first,last,positions,kld_mean,kld_se,top1,dlnppl,dlnppl_se\n"
     "int8,128,512,384,8.7000e-04,1.0000e-05,98.25,0.002400,0.001200\n"
     "int8,512,2048,1536,0.0000e+00,0.0000e+00,97.00,-0.002400,0.001200\n"
     "int4,128,512,384,1.1000e-01,2.0000e-03,80.60,0.125500,0.014500\n")
set(before "before | a |\n\n")
set(first "<!-- table: host_bands_tiny policy=int8 -->\n")
set(second "<!-- table: host_bands_tiny policy=int8|int4 first=128 -->\n")
set(after "<!-- end -->\nafter\n")
set(heading "| policy | positions | KL divergence | ± its standard error | top-1, % | change of ln perplexity |\n"
            "|---|---|---|---|---|---|\n")
list(JOIN heading "" heading)
set(int8 "| `int8` | 128 to 512 | 8.7e-04 | 1.0e-05 | 98.2 | +0.0024 ± 0.0012 |\n")
set(late "| `int8` | 512 to 2,048 | 0 | 0 | 97.0 | -0.0024 ± 0.0012 |\n")
set(int4 "| `int4` | 128 to 512 | 1.1e-01 | 2.0e-03 | 80.6 | +0.1255 ± 0.0145 |\n")

file(WRITE ${readme} "${before}${first}old\n${after}${second}${after}")
run("other tables" --check)
run(0)
file(READ ${readme} written)
set(expected "${before}${first}${heading}${int8}${late}${after}${second}${heading}${int8}${int4}${after}")
if(NOT written STREQUAL expected)
  message(FATAL_ERROR "written:\n${written}expected:\n${expected}")
endif()
run(0 --check)

# Lines that share what stands on the left become one.
file(WRITE ${WORK_DIR}/bench/results/heads_tiny.csv
     "attention,kv_heads,policy,tokens,bytes\n"
     "multi-head,32,fp16,1024,536870912\n"
     "multi-query,1,fp16,1024,16777216\n"
     "multi-head,32,fp16,8192,4294967296\n"
     "multi-query,1,fp16,8192,134217728\n")
set(first "<!-- table: heads_tiny -->\n")
file(WRITE ${readme} "${before}${first}${after}")
run(0)
file(READ ${readme} written)
set(expected "${before}${first}"
             "| attention | KV heads | policy | 1,024 tokens | 8,192 tokens |\n"
             "|---|---|---|---|---|\n"
             "| multi-head | 32 | `fp16` | 512.0 MiB | 4.0 GiB |\n"
             "| multi-query | 1 | `fp16` | 16.0 MiB | 128.0 MiB |\n"
             "${after}")
list(JOIN expected "" expected)
if(NOT written STREQUAL expected)
  message(FATAL_ERROR "written:\n${written}expected:\n${expected}")
endif()

# Of the GPU's rows, whose shapes are columns, some have no cell: no kernel, or not measured.
file(WRITE ${WORK_DIR}/bench/results/gpu_decode_tiny.csv
     "format,layout,dim,batch,context,q_heads,kv_heads,queries,part,check,us,of_read\n"
     "bf16,paged16,128,16,8192,32,8,1,shapes,ok,124.94,95.60\n"
     "bf16,paged16,128,1,8192,32,8,4,queries,ok,12.00,70.00\n"
     "q8,ring4096+4,128,16,8192,32,8,1,shapes,none,0.00,0.00\n")
set(first "<!-- table: gpu_decode_tiny -->\n")
file(WRITE ${readme} "${before}${first}${after}")
run(0)
file(READ ${readme} written)
set(expected "${before}${first}"
             "| format | layout | 16 x 8192, 32/8 | 1 x 8192, 32/8, 4 queries |\n"
             "|---|---|---|---|\n"
             "| `bf16` | paged16 | 124.9 (96 %) | 12.0 (70 %) |\n"
             "| `q8` | ring4096+4 | no kernel | - |\n"
             "${after}")
list(JOIN expected "" expected)
if(NOT written STREQUAL expected)
  message(FATAL_ERROR "written:\n${written}expected:\n${expected}")
endif()

foreach(wrong IN ITEMS "host_bands_none.csv|<!-- table: host_bands_none -->\n<!-- end -->\n"
                       "begins with none of|<!-- table: tiny -->\n<!-- end -->\n"
                       "no column speed|<!-- table: host_bands_tiny speed=1 -->\n<!-- end -->\n"
                       "no line is left|<!-- table: host_bands_tiny policy=int2 -->\n<!-- end -->\n"
                       "1 tables are begun and 0 ended|<!-- table: host_bands_tiny -->\n")
  string(REPLACE "|" ";" wrong "${wrong}")
  list(GET wrong 0 message)
  list(GET wrong 1 text)
  file(WRITE ${readme} "${text}")
  run("${message}")
endforeach()
