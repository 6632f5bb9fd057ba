// Attention as a part of a kernel of one's own: sigmoid(gate) x attention in bf16, a block for each sequence and KV
// head, so that attention's output never goes through memory. It is held against the host's, as is kvilt's own attention
// with a kernel for the gate behind it. It pays for small batches of short contexts, where launches are what takes time,
// and in engines with kernels of their own; long sequences are better split over all blocks, as kvilt's own kernels do.
//   fused_gate [sequences [tokens]]     where there is no GPU: exits with 77
#include "../engine_wrap/cuda.hpp"

#include <kvilt/kvilt.cuh>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

namespace {

using kvilt::bfloat16, kvilt::idx;
constexpr int q_heads = 32, kv_heads = 8, group = q_heads / kv_heads, dim = 128;
using kv = kvilt::policy<kvilt::paged<16>, kvilt::q8<dim>>;
using block_attention =
    kvilt::block_attention<kvilt::view_of<kvilt::memory_space::device, kv>, kvilt::causal, bfloat16>;

__device__ float gated(bfloat16 gate, float x) {
  return x / (1 + __expf(-kvilt::load(gate)));
}

/// gate and out: [sequences][q heads][dim]; one query a sequence, so that a row is a head of the group.
__global__ void __launch_bounds__(block_attention::threads)
    fused_kernel(const __grid_constant__ block_attention::arguments arguments, const bfloat16* gate, bfloat16* out) {
  extern __shared__ __align__(128) unsigned char memory[];
  block_attention attention(arguments, *reinterpret_cast<block_attention::shared_storage*>(memory));
  const block_attention::result got = attention.attend(int(blockIdx.x), int(blockIdx.y));
  const idx first = (idx(blockIdx.x) * q_heads + blockIdx.y * group) * dim;
  for (int i = int(threadIdx.x); i < got.rows * dim; i += block_attention::threads)
    kvilt::store(out[first + i], gated(gate[first + i], got.row(i / dim)[i % dim]));
}

__global__ void gate_kernel(const bfloat16* gate, bfloat16* out, idx count) {
  const idx i = idx(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) kvilt::store(out[i], gated(gate[i], kvilt::load(out[i])));
}

using shared_numbers = std::shared_ptr<bfloat16[]>;
/// [count][heads][dim] random numbers that host and device may read and write.
shared_numbers random_rows(idx count, int heads, float size) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  bfloat16* made = nullptr;
  example::check(cudaMallocManaged(&made, std::size_t(count * heads * dim) * sizeof(bfloat16)), "shared memory");
  for (idx i = 0; i < count * heads * dim; ++i) kvilt::store(made[i], size * normal(random));
  return shared_numbers(made, cudaFree);
}
kvilt::rows<bfloat16> rows(const shared_numbers& from, int heads, idx first = 0) {
  return kvilt::packed_rows(from.get() + first * heads * dim, heads, dim);
}

/// Fills a cache of the host or the device with prompts of so many tokens, and then a token each: that step.
template <class Exec, class Cache>
auto decode_step(const Exec& exec, Cache& cache, const std::vector<int>& prompts, const shared_numbers& k,
                 const shared_numbers& v, std::span<unsigned char> workspace, auto... q_heads_there) {
  std::vector<kvilt::sequence> sequences;
  for (std::size_t i = 0; i < prompts.size(); ++i) sequences.push_back(cache.open());
  const auto append = [&](const std::vector<int>& tokens, idx first) {
    for (std::size_t i = 0; i < tokens.size(); ++i) cache.reserve(sequences[i], tokens[i]);
    const auto step = cache.begin(exec, sequences, tokens, q_heads_there..., workspace);
    kvilt::append(exec, cache.view(0), step, rows(k, kv_heads, first), rows(v, kv_heads, first));
    cache.commit(step);
    return step;
  };
  return append(std::vector<int>(prompts.size(), 1), append(prompts, 0).kv_rows);
}

/// Microseconds of what `work` launches, many times over.
template <class Work>
double time_of(const example::stream& stream, Work&& work) {
  constexpr int in_graph = 50, graphs = 20;
  const example::graph graph(stream, [&] {
    for (int i = 0; i < in_graph; ++i) work(), example::check(cudaGetLastError(), "the launch of a kernel");
  });
  const example::event begin, end;
  graph.launch();  // the first loads kernels
  begin.record(stream);
  for (int i = 0; i < graphs; ++i) graph.launch();
  end.record(stream);
  stream.wait();
  return end.since(begin) / (in_graph * graphs);
}

int run(int count, int tokens) {
  std::vector<int> prompts;
  for (int i = 0; i < count; ++i) prompts.push_back(std::max(1, tokens - 3 * i));
  const idx room = idx(count) * (tokens + 17), outputs = idx(count) * q_heads * dim;
  const shared_numbers k = random_rows(room, kv_heads, 1), v = random_rows(room, kv_heads, 1),
                       q = random_rows(count, q_heads, 2), gate = random_rows(count, q_heads, 1),
                       fused = random_rows(count, q_heads, 0), apart = random_rows(count, q_heads, 0);
  const kvilt::cache_shape shape{.layers = 1, .kv_heads = kv_heads, .sequences = count, .tokens = room};
  const kvilt::attention attend{kvilt::causal{}};
  const example::stream stream;
  const kvilt::gpu gpu(stream);
  kvilt::cache<kv, kvilt::memory_space::device> cache(shape, kvilt::device_memory());
  const kvilt::buffer<kvilt::memory_space::device> memory(kvilt::device_memory(),
                                                          cache.workspace_bytes(gpu, count, q_heads, tokens));
  const kvilt::device_step step = decode_step(gpu, cache, prompts, k, v, {memory.data(), memory.bytes()}, q_heads);
  const auto arguments = block_attention::arguments::of(attend, cache.view(0), step, rows(q, q_heads));
  constexpr int bytes = sizeof(block_attention::shared_storage);
  example::check(cudaFuncSetAttribute(fused_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "memory");
  const double fused_time = time_of(stream, [&] {
    fused_kernel<<<dim3(unsigned(count), kv_heads), block_attention::threads, bytes, stream>>>(arguments, gate.get(),
                                                                                               fused.get());
  });
  const double apart_time = time_of(stream, [&] {
    attend(gpu, cache.view(0), step, rows(q, q_heads), rows(apart, q_heads));
    gate_kernel<<<unsigned(kvilt::ceil_div(outputs, 256)), 256, 0, stream>>>(gate.get(), apart.get(), outputs);
  });
  const kvilt::host host;
  kvilt::cache<kv> twin(shape, kvilt::host_memory());
  std::vector<unsigned char> workspace(twin.workspace_bytes(host, count));
  const kvilt::step host_step = decode_step(host, twin, prompts, k, v, workspace);
  std::vector<float> right(std::size_t(outputs), 0.0f);
  attend(host, twin.view(0), host_step, rows(q, q_heads), kvilt::packed_rows(right.data(), q_heads, dim));
  double largest = 0, of_fused = 0, of_apart = 0;
  const auto raise = [](double& most, double to) { most = to <= most ? most : to; };  // to NaN too
  for (idx i = 0; i < outputs; ++i) {
    const double x = double(right[std::size_t(i)]) / (1 + std::exp(-double(kvilt::load(gate[i]))));
    raise(largest, std::abs(x));
    raise(of_fused, std::abs(double(kvilt::load(fused[i])) - x));
    raise(of_apart, std::abs(double(kvilt::load(apart[i])) - x));
  }
  std::printf("%d sequences of %d tokens: %.2f us in one kernel, %.2f us apart; off by %.5f and %.5f of %.3f\n", count,
              tokens, fused_time, apart_time, of_fused, of_apart, largest);
  // A number is rounded to bf16 by up to 2^-8 of it, once or twice; the device's arithmetic is good to 2^-9.
  return of_fused <= (0x1p-8 + 0x1p-9) * largest && of_apart <= (0x1p-7 + 0x1p-9) * largest ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU"), 77;
  try {
    return run(std::max(1, argc > 1 ? std::atoi(argv[1]) : 4), std::max(1, argc > 2 ? std::atoi(argv[2]) : 500));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fused_gate: %s\n", error.what());
    return 2;
  }
}
