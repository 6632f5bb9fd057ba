// The one file that nvcc compiles: a step of all layers, captured in a CUDA graph that is replayed as it is while
// sequences grow, end and join, since kvilt reads their lengths and page tables on the device.
#include "cuda.hpp"
#include "decode.hpp"

#include <kvilt/kvilt.cuh>

namespace example {
namespace {

/// Queries, keys and values of a step's tokens in one layer. A block a row.
__global__ void make_rows_kernel(batch_lists batch, int layer, bfloat16* qkv) {
  constexpr int numbers = model::heads * model::dim;
  int seat = 0, token = int(blockIdx.x);
  while (seat < batch.seats && token >= batch.new_tokens()[seat]) token -= batch.new_tokens()[seat++];
  if (seat == batch.seats) return;  // the step has fewer tokens than the graph has blocks
  const idx position = batch.length_before()[seat] + token;
  bfloat16* const row = qkv + idx(blockIdx.x) * numbers;
  for (int i = int(threadIdx.x); i < numbers; i += int(blockDim.x))
    kvilt::store(row[i], number_of(batch.texts()[seat], layer, position, i));
}

using device_buffer = kvilt::buffer<kvilt::memory_space::device>;

auto layer_view(const engine_shape& s, const decode_memory& m, int layer) {
  return view_of<kvilt::memory_space::device>(m.pool, s, layer, m.batch.table());
}

/// RoPE's frequencies in device memory.
class device_rope {
 public:
  device_rope() : table_(model::rope()), turns_(kvilt::device_memory(), sizeof(std::uint64_t) * model::dim / 2) {
    const kvilt::rope host = table_;
    check(cudaMemcpy(turns_.data(), host.turns, turns_.bytes(), cudaMemcpyHostToDevice), "RoPE's frequencies");
    check(cudaDeviceSynchronize(), "RoPE's frequencies");  // no stream of ours waits for a copy
  }
  operator kvilt::rope() const {
    kvilt::rope turn = table_;
    turn.turns = reinterpret_cast<const std::uint64_t*>(turns_.data());
    return turn;
  }

 private:
  kvilt::rope_table table_;
  device_buffer turns_;  // [dim / 2]
};

}  // namespace

class device_decoder::recorded {
 public:
  recorded(const engine_shape& shape, const decode_memory& memory, const batch_lists& staged)
      : shape_(shape),
        memory_(memory),
        workspace_(kvilt::device_memory(), kvilt::workspace_bytes(kvilt::gpu(), layer_view(shape, memory, 0),
                                                                  shape.seats, model::q_heads, shape.chunk)),
        graph_(stream_, [&] { launch(staged); }) {}

  void replay() const {
    graph_.launch();
    stream_.wait();
  }

 private:
  /// Rows of some of the heads of every token.
  kvilt::rows<bfloat16> heads(int first, int count) const {
    return {memory_.qkv + first * model::dim, model::heads * model::dim, model::dim, count, model::dim};
  }

  void launch(const batch_lists& staged) const {
    const batch_lists& batch = memory_.batch;
    const std::size_t bytes = sizeof(int) * std::size_t(batch_lists::count(shape_));
    check(cudaMemcpyAsync(batch.numbers, staged.numbers, bytes, cudaMemcpyHostToDevice, stream_), "a step's batch");

    kvilt::device_batch asked{batch.seats, batch.sequences(), batch.length_before(), batch.new_tokens()};
    asked.most_new_tokens = asked.most_queries = shape_.chunk;
    asked.q_heads = model::q_heads;
    const kvilt::gpu gpu(stream_);
    const kvilt::device_step step =
        plan(gpu, layer_view(shape_, memory_, 0), asked, {workspace_.data(), workspace_.bytes()});

    const auto q = heads(0, model::q_heads), k = heads(model::q_heads, model::kv_heads),
               v = heads(model::q_heads + model::kv_heads, model::kv_heads);
    for (int layer = 0; layer < model::layers; ++layer) {
      const auto view = layer_view(shape_, memory_, layer);
      bfloat16* const out = memory_.out + layer * shape_.rows() * model::q_heads * model::dim;
      make_rows_kernel<<<unsigned(shape_.rows()), 256, 0, stream_>>>(batch, layer, memory_.qkv);
      check(cudaGetLastError(), "the launch of a kernel");
      append(gpu, view, step, q, k, v, rope_);
      attend_(gpu.with_early_reads(), view, step, q, kvilt::packed_rows(out, model::q_heads, model::dim));
    }
  }

  engine_shape shape_;
  decode_memory memory_;
  device_rope rope_;
  device_buffer workspace_;
  kvilt::attention<kvilt::causal> attend_{kvilt::causal{}};
  stream stream_;
  graph graph_;  // the last: what it launches is in the members before it
};

device_decoder::device_decoder(const engine_shape& shape, const decode_memory& memory, const batch_lists& staged)
    : step_(std::make_unique<recorded>(shape, memory, staged)) {}
device_decoder::~device_decoder() = default;

void device_decoder::step() const {
  step_->replay();
}

}  // namespace example
