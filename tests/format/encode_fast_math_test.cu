// Compiled with -use_fast_math: codes must not depend on it.
#define ENCODE_TEST_MODE " under fast math"
#include "format/encode_test.cu"
