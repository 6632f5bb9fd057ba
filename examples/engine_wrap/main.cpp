// An engine that keeps its pool, its page tables and its scheduler, and lets kvilt do the attention on the GPU: plain
// C++ (engine.cpp, scheduler.cpp) and one file for nvcc (decode.cu). The pool has the shape of vLLM's, in bf16; a step
// is one CUDA graph, captured once: prompts are read some tokens at a time beside sequences that decode. At the end the
// host backend answers the last step's queries over a copy of the pool, and over one that it fills itself.
//   engine_wrap [steps]     where there is no GPU: exits with 77
#include "check.hpp"
#include "cuda.hpp"
#include "engine.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace {

// Answers are about 0.3 in magnitude and the device's are rounded to bf16. Two keys in each other's place make 0.08.
constexpr double most_apart = 0.02;

bool has_gpu() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) std::printf("no GPU: %s\n", cudaGetErrorString(status));
  if (status == cudaSuccess && devices == 0) std::printf("no GPU\n");
  return status == cudaSuccess && devices > 0;
}

int run(int steps) {
  using clock = std::chrono::steady_clock;
  example::engine engine{example::engine_shape()};
  engine.step();  // the first pays for loading the kernels
  const auto start = clock::now();
  for (int i = 1; i < steps; ++i) engine.step();
  const std::chrono::duration<double, std::micro> time = clock::now() - start;
  std::printf("%d steps, %lld tokens, %d sequences ended, %.1f us a step\n", steps,
              static_cast<long long>(engine.schedule().tokens()), engine.schedule().ended(),
              time.count() / (steps > 1 ? steps - 1 : 1));

  example::host_check check(engine.shape(), engine.batch());
  std::vector<kvilt::bfloat16> copy = engine.copy_of_pool(), own = check.filled_pool();
  const std::vector<kvilt::bfloat16> out = engine.copy_of_out();
  const double over_copy = check.difference(copy, out), over_own = check.difference(own, out);
  std::printf(
      "the last step's answers and the host's differ by at most %.4f over a copy of the pool, %.4f over one that "
      "the host has filled\n",
      over_copy, over_own);
  return over_copy <= most_apart && over_own <= most_apart ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (!has_gpu()) return 77;
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  if (steps < 1) {
    std::fprintf(stderr, "engine_wrap takes a number of steps, 1 or more, not '%s'\n", argv[1]);
    return 2;
  }
  try {
    return run(steps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_wrap: %s\n", error.what());
    return 2;
  }
}
