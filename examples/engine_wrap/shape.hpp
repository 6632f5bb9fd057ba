#pragma once

// What every file of the engine agrees on, those that nvcc compiles and those that it never sees: its model, its pool,
// and how a step's batch lies in memory. The last function is all that it says to kvilt about its memory.
#include <kvilt/kvilt.hpp>

namespace example {

using kvilt::bfloat16, kvilt::idx, kvilt::page_id;

/// The attention of Llama 3 8B, of some layers.
struct model {
  static constexpr int layers = 4, q_heads = 32, kv_heads = 8, dim = 128;
  static constexpr int heads = q_heads + 2 * kv_heads;  // of a token's row: queries, keys, values

  static kvilt::rope_table rope() { return kvilt::rope_table(dim, 5e5, kvilt::rope_pairs::half_split); }
};

struct engine_shape {
  int seats = 16;   // sequences of a step, at most
  int pages = 160;  // of the pool; all seats together would like more
  int page_rows = 16;
  int width = 20;  // pages of a sequence, at most
  int chunk = 4;   // tokens of a prompt that a step reads

  idx rows() const { return idx(seats) * chunk; }  // tokens of a step, at most
  idx layer_numbers() const { return idx(2) * pages * page_rows * model::kv_heads * model::dim; }
};

/// A step's batch, list after list in one block: the scheduler fills one in page-locked memory, kernels read a copy.
/// Seat s has row s of the page table.
struct batch_lists {
  int* numbers = nullptr;
  int seats = 0, width = 0;

  static idx count(const engine_shape& s) { return idx(s.seats) * (4 + s.width); }

  KVILT_HD int* sequences() const { return numbers; }              // [seats]: the seat, or -1 where nobody sits
  KVILT_HD int* length_before() const { return numbers + seats; }  // [seats]
  KVILT_HD int* new_tokens() const { return numbers + 2 * seats; }
  KVILT_HD int* texts() const { return numbers + 3 * seats; }      // [seats]: which text it is
  KVILT_HD page_id* table() const { return numbers + 4 * seats; }  // [seats][width]
};

/// Number `i` of a token's row (queries, keys, values), where a model would norm, multiply and add: any number at all,
/// the same on both sides (mixed as in G. Steele et al., "Fast splittable pseudorandom number generators", 2014).
KVILT_HD constexpr float number_of(int text, int layer, idx position, int i) {
  const std::uint64_t at = (std::uint64_t(text) * model::layers + std::uint64_t(layer)) << 32 | std::uint64_t(position);
  std::uint64_t z = (at * (model::heads * model::dim) + std::uint64_t(i) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  const float even = float(z >> 40) * 0x1p-23f - 1;          // in [-1, 1)
  return i < model::q_heads * model::dim ? 6 * even : even;  // queries that tell keys apart
}

/// A layer of the pool, [layers][2][pages][page_rows][kv_heads][dim], as a view: no copy, no owner.
template <kvilt::memory_space Space>
auto view_of(bfloat16* pool, const engine_shape& s, int layer, const page_id* table) {
  return kvilt::wrap_vllm_stacked<Space>(pool + layer * s.layer_numbers(), kvilt::bf16<model::dim>(),
                                         {s.pages, s.page_rows, model::kv_heads}, {table, s.width});
}

}  // namespace example
