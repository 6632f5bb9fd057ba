#include "decode.hpp"

#include <kvilt/kvilt.cuh>

#include <memory>
#include <stdexcept>

namespace engine {
namespace {

using kvilt::bfloat16, kvilt::page_id, kvilt::packed_rows;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

struct give_back {
  void operator()(void* memory) const { cudaFree(memory); }
};
/// Memory that the host and the device see.
template <class T>
std::unique_ptr<T[], give_back> shared(std::size_t count) {
  void* memory = nullptr;
  check(cudaMallocManaged(&memory, count * sizeof(T)));
  return std::unique_ptr<T[], give_back>(static_cast<T*>(memory));
}

}  // namespace

answers decode(float first, float second) {
  constexpr int tokens = 2, page_rows = 16, heads = 4, dim = 64;
  const auto pool = shared<bfloat16>(2 * page_rows * dim);  // [2][pages][page_rows][kv_heads][dim]
  const auto q = shared<bfloat16>(tokens * heads * dim), k = shared<bfloat16>(tokens * dim),
             v = shared<bfloat16>(tokens * dim), out = shared<bfloat16>(tokens * heads * dim);
  const auto table = shared<page_id>(1);
  const auto numbers = shared<int>(3);
  table[0] = 0;
  numbers[0] = 0, numbers[1] = 0, numbers[2] = tokens;  // its row of the table, its length, what it appends
  for (int i = 0; i < tokens * heads * dim; ++i) kvilt::store(q[i], 1);
  for (int i = 0; i < tokens * dim; ++i) kvilt::store(k[i], 1), kvilt::store(v[i], i < dim ? first : second);

  const auto view = kvilt::wrap_vllm_stacked<kvilt::memory_space::device>(pool.get(), kvilt::bf16<dim>(),
                                                                          {1, page_rows, 1}, {table.get(), 1});
  kvilt::device_batch batch{1, &numbers[0], &numbers[1], &numbers[2]};
  batch.most_new_tokens = batch.most_queries = tokens;
  batch.q_heads = heads;
  const kvilt::gpu gpu;
  const std::size_t bytes = kvilt::workspace_bytes(gpu, view, 1, heads, tokens);
  const auto workspace = shared<unsigned char>(bytes);
  const kvilt::device_step step = plan(gpu, view, batch, {workspace.get(), bytes});
  append(gpu, view, step, packed_rows(k.get(), 1, dim), packed_rows(v.get(), 1, dim));
  kvilt::attention{kvilt::causal{}}(gpu, view, step, packed_rows(q.get(), heads, dim),
                                    packed_rows(out.get(), heads, dim));
  check(cudaDeviceSynchronize());
  return {kvilt::load(out[0]), kvilt::load(out[tokens * heads * dim - 1])};
}

}  // namespace engine
