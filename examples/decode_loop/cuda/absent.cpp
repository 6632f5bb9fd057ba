// What a program without CUDA says instead.
#include "cuda_backend.hpp"

#include <stdexcept>

namespace example {

void require_cuda() {
  throw std::runtime_error(
      "--device cuda: this program was built without CUDA; KVILT_DECODE_LOOP_CUDA=ON builds it in");
}

std::unique_ptr<backend> open_cuda_backend(const transformer&, int) {
  require_cuda();
  return nullptr;
}

}  // namespace example
