#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/core/thread_pool.hpp>

using namespace kvilt;
using namespace support;

TEST_CASE("attend: a step without queries over a long text does nothing, on any number of threads",
          "[attention][threads]") {
  using kv = policy<contiguous, q8<>>;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .sequences = 1, .tokens = 3000, .max_length = 3000, .max_step = 1},
                  host_memory(), kv(16));
  const sequence name = owner.open();
  const tensor<float> k = random_tensor(1, 2500, 1, 16), v = random_tensor(2, 2500, 1, 16);
  for (const int threads : {1, 2, 5}) {
    thread_pool pool(threads);
    const host exec(pool);
    std::vector<unsigned char> workspace(owner.workspace_bytes(exec, 1));
    if (owner.length(name) == 0) {
      const int all = 2500;
      owner.reserve(name, all);
      const step first = owner.begin(exec, {&name, 1}, {&all, 1}, workspace);
      append(exec, owner.view(0), first, k.rows(), v.rows());
      owner.commit(first);
    }
    const int none = 0;
    const step idle = owner.begin(exec, {&name, 1}, {&none, 1}, workspace);
    attention{causal{}}(exec, owner.view(0), idle, rows<const float>{nullptr, 16, 16, 1, 16},
                        rows<float>{nullptr, 16, 16, 1, 16});
    owner.commit(idle);
    CHECK(owner.length(name) == 2500);
  }
}
