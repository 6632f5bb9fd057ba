#include "support/device_array.cuh"
#include "support/gpu.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.cuh>

// Attention that begins while `append` before it is at work.

namespace {

using namespace kvilt;
using support::device_array;

constexpr int sequences = 3, kv_heads = 2, q_heads = 8, dim = 64, layers = 60;

template <class Policy>
class decoding {
 public:
  decoding()
      : workspace_(cache_.workspace_bytes(gpu(), sequences, q_heads, longest)),
        q_(support::random_tensor(1, sequences, q_heads, dim).data),
        k_(support::random_tensor(2, layers * sequences, kv_heads, dim).data),
        v_(support::random_tensor(3, layers * sequences, kv_heads, dim).data) {
    const int prompts[sequences] = {37, 16, longest};
    int tokens = 0;
    for (const int prompt : prompts) {
      open_.push_back(cache_.open());
      cache_.reserve(open_.back(), prompt + 1);
      tokens += prompt;
    }
    const device_array<float> k(support::random_tensor(4, tokens, kv_heads, dim).data);
    const device_array<float> v(support::random_tensor(5, tokens, kv_heads, dim).data);
    const device_step prompted = cache_.begin(gpu(), open_, prompts, q_heads, workspace_.span());
    append(gpu(), cache_.view(0), prompted, packed_rows(k.data(), kv_heads, dim), packed_rows(v.data(), kv_heads, dim));
    cache_.commit(prompted);
    const int one[sequences] = {1, 1, 1};
    step_ = cache_.begin(gpu(), open_, one, q_heads, workspace_.span());
    support::must(cudaDeviceSynchronize(), "the prompts");
  }

  // Each layer writes other rows where the one before did, and reads them at once.
  std::vector<float> run(const gpu& exec, bool waits) const {
    const device_array<float> out(std::size_t(layers) * sequences * q_heads * dim);
    for (int layer = 0; layer < layers; ++layer) {
      const idx rows = idx(layer) * sequences * kv_heads * dim;
      append(exec, cache_.view(0), step_, packed_rows(k_.data() + rows, kv_heads, dim),
             packed_rows(v_.data() + rows, kv_heads, dim));
      attention{causal{}}(exec, cache_.view(0), step_, packed_rows(q_.data(), q_heads, dim),
                          packed_rows(out.data() + idx(layer) * sequences * q_heads * dim, q_heads, dim));
      if (waits) support::must(cudaDeviceSynchronize(), "a layer");
    }
    support::must(cudaDeviceSynchronize(), "the layers");
    return out.get();
  }

 private:
  static constexpr int longest = 200;

  cache<Policy, memory_space::device> cache_{cache_shape{1, kv_heads, sequences, 600, 0, longest}, device_memory()};
  device_array<unsigned char> workspace_;
  device_array<float> q_, k_, v_;
  std::vector<sequence> open_;
  device_step step_;
};

}  // namespace

TEMPLATE_TEST_CASE("attend: what begins early waits for what append writes", "[attention][gpu]",
                   (policy<paged<16>, q8<64>>), (policy<paged<16>, bf16<64>, bf16<64>, keep_all, 4, 16>),
                   (policy<paged<1>, q8<64, 32>>)) {
  support::require_gpu();
  const decoding<TestType> one;
  const std::vector<float> want = one.run(gpu(), true);
  CHECK(support::same_bits(one.run(gpu(), false), want));
  for (int round = 0; round < 5; ++round) CHECK(support::same_bits(one.run(gpu().with_early_reads(), false), want));
}
