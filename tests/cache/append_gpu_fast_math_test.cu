// Compiled with -use_fast_math: codes must not depend on it.
#define APPEND_TEST_MODE " under fast math"
#include "cache/append_gpu_test.cu"
