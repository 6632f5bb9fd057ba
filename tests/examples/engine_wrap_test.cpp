// The parts of the example that need no GPU, with the host backend where its decoder stands.
#include "../../examples/engine_wrap/check.cpp"
#include "../../examples/engine_wrap/scheduler.cpp"
#include "support/catch.hpp"

#include <set>

namespace {

using namespace example;

constexpr int steps = 70;

engine_shape small() {
  engine_shape s;
  s.seats = 5, s.pages = 40;
  return s;
}

// The batch's own memory.
struct staged_batch {
  std::vector<int> numbers;
  batch_lists lists;

  explicit staged_batch(const engine_shape& s)
      : numbers(std::size_t(batch_lists::count(s)), 1 << 30), lists{numbers.data(), s.seats, s.width} {}
};

// What decode.cu does in a step.
struct host_decoder {
  engine_shape shape;
  std::vector<bfloat16> pool, out;
  kvilt::rope_table rope = model::rope();

  explicit host_decoder(const engine_shape& s)
      : shape(s),
        pool(std::size_t(model::layers * s.layer_numbers()), bfloat16{0xffff}),
        out(std::size_t(model::layers * s.rows() * model::q_heads * model::dim), bfloat16{0xffff}) {}

  void step(const batch_lists& batch) {
    const std::vector<int> sequences(batch.sequences(), batch.sequences() + batch.seats);
    const std::vector<int> tokens(batch.new_tokens(), batch.new_tokens() + batch.seats);
    const std::vector<idx> before(batch.length_before(), batch.length_before() + batch.seats);
    const kvilt::host host;
    std::vector<unsigned char> workspace(kvilt::workspace_bytes(host, batch.seats, model::dim, model::dim));
    const kvilt::step step =
        plan(host, {.sequences = sequences, .length_before = before, .new_tokens = tokens}, workspace);
    std::vector<bfloat16> qkv(std::size_t(step.kv_rows) * model::heads * model::dim);
    const auto q = heads(qkv, 0, model::q_heads);
    for (int layer = 0; layer < model::layers; ++layer) {
      std::size_t at = 0;
      for (int seat = 0; seat < batch.seats; ++seat)
        for (int t = 0; t < tokens[std::size_t(seat)]; ++t)
          for (int i = 0; i < model::heads * model::dim; ++i)
            kvilt::store(qkv[at++], number_of(batch.texts()[seat], layer, before[std::size_t(seat)] + t, i));
      const auto view = view_of<kvilt::memory_space::host>(pool.data(), shape, layer, batch.table());
      append(host, view, step, q, heads(qkv, model::q_heads, model::kv_heads),
             heads(qkv, model::q_heads + model::kv_heads, model::kv_heads), rope);
      kvilt::attention{kvilt::causal{}}(
          host, view, step, q,
          kvilt::packed_rows(out.data() + layer * shape.rows() * model::q_heads * model::dim, model::q_heads,
                             model::dim));
    }
  }
};

}  // namespace

TEST_CASE("engine_wrap: the scheduler gives every page to one sequence, which grows, ends and makes room",
          "[examples]") {
  const engine_shape s = small();
  staged_batch batch(s);
  scheduler all(s);
  std::vector<int> text(std::size_t(s.seats), -1), length(text.size(), 0);
  std::set<int> joined;
  idx tokens = 0;
  bool waited = false, read = false;
  for (int i = 0; i < 400; ++i) {
    all.next(batch.lists);
    std::set<page_id> taken;
    for (int seat = 0; seat < s.seats; ++seat) {
      const batch_lists& b = batch.lists;
      const int n = b.new_tokens()[seat], after = b.length_before()[seat] + n;
      const page_id* const row = b.table() + seat * s.width;
      const int pages = (after + s.page_rows - 1) / s.page_rows;
      const bool empty = b.sequences()[seat] < 0;
      REQUIRE(b.sequences()[seat] == (empty ? -1 : seat));
      REQUIRE((empty ? after == 0 : n >= 1 && n <= s.chunk));
      for (int p = 0; p < s.width; ++p) {
        if (p < pages) {
          REQUIRE((row[p] >= 0 && row[p] < s.pages));
          REQUIRE(taken.insert(row[p]).second);
        } else {
          // A page may be there one step early: for as much as a chunk.
          REQUIRE((row[p] == -1 || (p == pages && taken.insert(row[p]).second)));
        }
      }
      auto& was = text[std::size_t(seat)];
      if (b.texts()[seat] != was) length[std::size_t(seat)] = 0;
      REQUIRE(b.length_before()[seat] == length[std::size_t(seat)]);
      was = b.texts()[seat], length[std::size_t(seat)] = after;
      if (!empty) joined.insert(was);
      waited |= empty, read |= n == s.chunk, tokens += n;
    }
  }
  CHECK(all.tokens() == tokens);
  CHECK(joined.size() > 10);
  CHECK(all.ended() >= int(joined.size()) - s.seats);
  CHECK(waited);
  CHECK(read);
}

TEST_CASE("engine_wrap: the check agrees with a decoder that is right, and with no other", "[examples]") {
  const engine_shape s = small();
  staged_batch batch(s);
  scheduler all(s);
  host_decoder decoder(s);
  for (int i = 0; i < steps; ++i) {
    all.next(batch.lists);
    decoder.step(batch.lists);
  }
  REQUIRE(all.ended() > 0);
  host_check check(s, batch.lists);
  std::vector<bfloat16> own = check.filled_pool(), copy = decoder.pool;
  CHECK(check.difference(copy, decoder.out) < 0.004);
  CHECK(check.difference(own, decoder.out) < 0.004);

  // One row of K of one sequence's first page, in one layer.
  int seat = 0;
  while (batch.lists.sequences()[seat] < 0) ++seat;
  const idx row = model::kv_heads * model::dim;
  bfloat16* const page = own.data() + s.layer_numbers() + batch.lists.table()[seat * s.width] * s.page_rows * row;
  std::swap_ranges(page, page + row, page + row);
  CHECK(check.difference(own, decoder.out) > 0.02);
  page[3] = bfloat16{0xffff};
  CHECK(std::isinf(check.difference(own, decoder.out)));
}
