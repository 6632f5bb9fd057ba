#include "support/foreign.hpp"

#include "support/catch.hpp"

#include <kvilt/kvilt.hpp>

#include <functional>
#include <limits>

namespace {

using namespace kvilt;
using namespace support;

constexpr int heads = 2, group = 3, sequences = 3, page_rows = 5, pages = 12, k_dim = 16, v_dim = 24;
constexpr idx width = 4;
constexpr std::uint16_t poison = 0x7e01;  // a NaN that no encoder makes

// Row-major, as every tensor of an engine is.
idx flat(std::initializer_list<idx> at, std::initializer_list<idx> shape) {
  idx n = 0;
  for (auto i = at.begin(), s = shape.begin(); i != at.end(); ++i, ++s) n = n * *s + *i;
  return n;
}

// Where a number of K (which = 0) or V (1) should lie, in the words of the engine's documentation.
struct spot {
  int which, sequence, token, head, dim;
};
struct engine_memory {
  std::vector<std::uint16_t> first, second;  // one pool for both, or one each
  std::function<std::uint16_t&(const spot&)> at;
};

std::vector<std::uint16_t> poisoned(idx numbers) {
  return std::vector<std::uint16_t>(std::size_t(numbers), poison);
}

// The step's part of a tensor of every token of every sequence.
tensor<float> rows_of(const tensor<float>& all, const step& s, bool queries) {
  tensor<float> some(queries ? s.q_rows : s.kv_rows, all.heads, all.dim);
  const std::size_t row = std::size_t(all.heads) * std::size_t(all.dim);
  float* to = some.data.data();
  for (int i = 0; i < s.size; ++i)
    for (idx t = s.items[i].n.before; t < s.items[i].n.after; ++t, to += row) {
      const float* from = all.data.data() + std::size_t(32 * s.items[i].sequence + t) * row;
      std::copy(from, from + row, to);
    }
  return some;
}

// The tokens of a batch: 32 of each sequence, of which some are there.
struct talk {
  int v;
  tensor<float> k = random_tensor(1, 32 * sequences, heads, k_dim), values, q;
  std::vector<idx> length = {0, 0, 0};

  explicit talk(int dim)
      : v(dim),
        values(random_tensor(2, 32 * sequences, heads, dim)),
        q(random_tensor(3, 32 * sequences, heads * group, k_dim)) {}

  float number(const spot& s) const {
    const tensor<float>& t = s.which ? values : k;
    return t.row(32 * s.sequence + s.token, s.head)[std::size_t(s.dim)];
  }
  template <class Body>
  void each_spot(int sequence, idx from, idx to, Body body) const {
    for (int token = int(from); token < to; ++token)
      for (int which = 0; which < 2; ++which)
        for (int head = 0; head < heads; ++head)
          for (int d = 0; d < (which ? v : k_dim); ++d) body(spot{which, sequence, token, head, d});
  }
};

// What attention should say of the last tokens of a step, from the numbers as fp16 keeps them.
void check_answers(const talk& t, const step& s, const answer<>& got) {
  for (int i = 0; i < s.size; ++i)
    for (int n = 0; n < s.items[i].queries; ++n)
      for (int head = 0; head < heads * group; ++head) {
        const idx position = s.items[i].query_position(n);
        std::vector<std::vector<double>> kept;
        std::vector<oracle_key> keys;
        kept.reserve(2 * std::size_t(s.items[i].n.after));
        for (int token = 0; token < s.items[i].n.after; ++token)
          for (int which = 0; which < 2; ++which) {
            kept.emplace_back();
            for (int d = 0; d < (which ? t.v : k_dim); ++d) {
              const float x = t.number({which, s.items[i].sequence, token, head / group, d});
              kept.back().push_back(double(from_fp16(to_fp16(x))));
            }
          }
        for (std::size_t j = 0; j < kept.size(); j += 2) keys.push_back({kept[j], kept[j + 1], idx(j / 2)});
        const oracle_state want = oracle(widened(t.q.row(32 * s.items[i].sequence + position, head)), keys, 0.25,
                                         std::size_t(t.v), band(position, 1 << 20));
        REQUIRE(difference(got.out.row(s.items[i].q_row + n, head), want.out) == "");
        const float lse = got.lse_of(s.items[i].q_row + n, head);
        REQUIRE(difference(std::span(&lse, 1), std::vector<double>{want.lse}) == "");
      }
}

// Steps over an engine's memory: what is appended lies where the engine looks for it, what the engine has put there is
// read, and nothing else is touched.
template <class View>
void holds(engine_memory& memory, const View& view, int v = k_dim) {
  talk t(v);
  // Half of the first step's tokens come from the engine's own kernels.
  for (int s = 0; s < sequences; ++s) {
    t.length[std::size_t(s)] = 3 * s;
    t.each_spot(s, 0, 3 * s, [&](const spot& at) { memory.at(at) = to_fp16(t.number(at)); });
  }
  for (const std::vector<int>& tokens : {std::vector{7, 0, 9}, std::vector{1, 4, 2}, std::vector{0, 1, 0}}) {
    const planned_step s(host(), t.length, tokens, {}, k_dim, v);
    append(host(), view, s, rows_of(t.k, s, false).rows(), rows_of(t.values, s, false).rows());
    answer<> got(s->q_rows, heads * group, v);
    const tensor<float> q = rows_of(t.q, s, true);
    attention{causal{}}(host(), view, s, q.rows(), got.out.rows(), got.lse_rows());
    for (std::size_t i = 0; i < sequences; ++i) t.length[i] += tokens[i];
    check_answers(t, s, got);
  }
  idx expected = 0, written = 0;
  bool all = true;
  for (int s = 0; s < sequences; ++s)
    t.each_spot(s, 0, t.length[std::size_t(s)], [&](const spot& at) {
      all = all && memory.at(at) == to_fp16(t.number(at));
      ++expected;
    });
  CHECK(all);
  for (const auto* pool : {&memory.first, &memory.second})
    written += std::count_if(pool->begin(), pool->end(), [](std::uint16_t x) { return x != poison; });
  CHECK(written == expected);
}

const std::vector<page_id>& table() {
  static const std::vector<page_id> ids = foreign_table(sequences, width, {2, 2, 4}, page_order::shuffled);
  return ids;
}
idx page_of(const spot& s) {
  return table()[std::size_t(s.sequence * width + s.token / page_rows)];
}
int row_of(const spot& s) {
  return s.token % page_rows;
}

constexpr pool_shape shape{pages, page_rows, heads};

// As large as any that is made of it here; none reads it.
std::uint16_t* some_pool() {
  static std::vector<std::uint16_t> memory(std::size_t(1) << 15);
  return memory.data();
}

}  // namespace

TEST_CASE("foreign: vLLM, K and V stacked", "[cache]") {
  const page_table of{table().data(), width};
  engine_memory m{poisoned(2 * pages * page_rows * heads * k_dim), {}, {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m
        .first[std::size_t(flat({s.which, page_of(s), row_of(s), s.head, s.dim}, {2, pages, page_rows, heads, k_dim}))];
  };
  holds(m, wrap_vllm_stacked(m.first.data(), fp16<>(k_dim), shape, of));
  m.first = poisoned(idx(m.first.size()));
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m
        .first[std::size_t(flat({s.which, page_of(s), s.head, row_of(s), s.dim}, {2, pages, heads, page_rows, k_dim}))];
  };
  holds(m, wrap_vllm_stacked(m.first.data(), fp16<>(k_dim), shape, of, page_axes::hnd));
}

TEST_CASE("foreign: vLLM, K and V in each page", "[cache]") {
  const page_table of{table().data(), width};
  engine_memory m{poisoned(2 * pages * page_rows * heads * k_dim), {}, {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m
        .first[std::size_t(flat({page_of(s), s.which, row_of(s), s.head, s.dim}, {pages, 2, page_rows, heads, k_dim}))];
  };
  holds(m, wrap_vllm_paired(m.first.data(), fp16<>(k_dim), shape, of));
  m.first = poisoned(idx(m.first.size()));
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m
        .first[std::size_t(flat({page_of(s), s.which, s.head, row_of(s), s.dim}, {pages, 2, heads, page_rows, k_dim}))];
  };
  holds(m, wrap_vllm_paired(m.first.data(), fp16<>(k_dim), shape, of, page_axes::hnd));

  // Layers inside pages: [pages][layers][2][page_rows][heads][dim]; this is the second of three.
  m.first = poisoned(3 * 2 * pages * page_rows * heads * k_dim);
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m.first[std::size_t(
        flat({page_of(s), 1, s.which, row_of(s), s.head, s.dim}, {pages, 3, 2, page_rows, heads, k_dim}))];
  };
  constexpr idx layer = 2 * page_rows * heads * k_dim;
  holds(m, wrap_vllm_paired(m.first.data() + layer, fp16<>(k_dim), shape, of, page_axes::nhd, 3 * 2 * layer));
}

TEST_CASE("foreign: vLLM, K and V of a token side by side", "[cache]") {
  const page_table of{table().data(), width};
  engine_memory m{poisoned(pages * page_rows * heads * (k_dim + v_dim)), {}, {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m.first[std::size_t(
        flat({page_of(s), row_of(s), s.head, s.which * k_dim + s.dim}, {pages, page_rows, heads, k_dim + v_dim}))];
  };
  holds(m, wrap_vllm_joined(m.first.data(), fp16<>(k_dim), fp16<>(v_dim), shape, of), v_dim);
  m.first = poisoned(idx(m.first.size()));
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m.first[std::size_t(
        flat({page_of(s), s.head, row_of(s), s.which * k_dim + s.dim}, {pages, heads, page_rows, k_dim + v_dim}))];
  };
  holds(m, wrap_vllm_joined(m.first.data(), fp16<>(k_dim), fp16<>(v_dim), shape, of, page_axes::hnd), v_dim);
}

TEST_CASE("foreign: FlashInfer's lists of pages", "[cache]") {
  const std::vector<int> indptr = {0, 2, 4, 8};
  const std::vector<page_id> indices = {7, 2, 11, 0, 5, 9, 1, 3};
  const auto page = [&](const spot& s) {
    return indices[std::size_t(indptr[std::size_t(s.sequence)] + s.token / page_rows)];
  };
  engine_memory m{poisoned(2 * pages * page_rows * heads * k_dim), {}, {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    return m
        .first[std::size_t(flat({page(s), s.which, s.head, row_of(s), s.dim}, {pages, 2, heads, page_rows, k_dim}))];
  };
  holds(m, wrap_flashinfer(m.first.data(), fp16<>(k_dim), shape, indices.data(), indptr.data(), page_axes::hnd));

  m = {poisoned(pages * page_rows * heads * k_dim), poisoned(pages * page_rows * heads * v_dim), {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    const idx at = flat({page(s), row_of(s), s.head, s.dim}, {pages, page_rows, heads, s.which ? v_dim : k_dim});
    return (s.which ? m.second : m.first)[std::size_t(at)];
  };
  const auto view = wrap_flashinfer(m.first.data(), m.second.data(), fp16<>(k_dim), fp16<>(v_dim), shape,
                                    indices.data(), indptr.data());
  holds(m, view, v_dim);

  // A sequence has the pages of its list, and not those of the next.
  const tensor<float> k(1, heads, k_dim), v(1, heads, v_dim);
  const planned_step full(host(), {10}, {1}, {}, k_dim, v_dim);
  CHECK_THROWS_WITH(append(host(), view, full, k.rows(), v.rows()),
                    containing("sequence 0 of 11 tokens needs slots 0 to 10; its layout has 10"));
}

TEST_CASE("foreign: FlashAttention with and without a table", "[cache]") {
  engine_memory m{poisoned(pages * page_rows * heads * k_dim), poisoned(pages * page_rows * heads * v_dim), {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    const idx at = flat({page_of(s), row_of(s), s.head, s.dim}, {pages, page_rows, heads, s.which ? v_dim : k_dim});
    return (s.which ? m.second : m.first)[std::size_t(at)];
  };
  holds(m,
        wrap_flash_attention(m.first.data(), m.second.data(), fp16<>(k_dim), fp16<>(v_dim), shape,
                             {table().data(), width}),
        v_dim);

  constexpr int capacity = 18;
  m = {poisoned(4 * capacity * heads * k_dim), poisoned(4 * capacity * heads * v_dim), {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    const idx at = flat({s.sequence, s.token, s.head, s.dim}, {4, capacity, heads, s.which ? v_dim : k_dim});
    return (s.which ? m.second : m.first)[std::size_t(at)];
  };
  const auto view =
      wrap_flash_attention(m.first.data(), m.second.data(), fp16<>(k_dim), fp16<>(v_dim), {4, capacity, heads});
  holds(m, view, v_dim);
  const tensor<float> k(1, heads, k_dim), v(1, heads, v_dim);
  const planned_step full(host(), {capacity}, {1}, {}, k_dim, v_dim);
  CHECK_THROWS_WITH(append(host(), view, full, k.rows(), v.rows()), containing("its layout has 18"));
}

TEST_CASE("foreign: TensorRT-LLM's interleaved layers", "[cache]") {
  constexpr int layers = 3;
  for (int layer = 0; layer < layers; ++layer) {
    engine_memory m{poisoned(pages * layers * 2 * heads * page_rows * k_dim), {}, {}};
    m.at = [&](const spot& s) -> std::uint16_t& {
      return m.first[std::size_t(
          flat({page_of(s), layer, s.which, s.head, row_of(s), s.dim}, {pages, layers, 2, heads, page_rows, k_dim}))];
    };
    holds(m, wrap_tensorrt_llm(m.first.data(), fp16<>(k_dim), shape, {table().data(), width}, layers, layer));
  }
  std::uint16_t* const pool = some_pool();
  for (const int layer : {-1, 3})
    CHECK_THROWS_WITH(wrap_tensorrt_llm(pool, fp16<>(k_dim), shape, {table().data(), width}, 3, layer),
                      containing("layer " + std::to_string(layer) + "; the pool has layers 0 to 2"));
}

TEST_CASE("foreign: llama.cpp's cells, of one sequence and of all", "[cache]") {
  constexpr int cells = 20;
  engine_memory m{poisoned(sequences * cells * heads * k_dim), poisoned(sequences * cells * heads * v_dim), {}};
  m.at = [&](const spot& s) -> std::uint16_t& {
    const int dim = s.which ? v_dim : k_dim;
    const idx at = flat({s.sequence, s.token, s.head * dim + s.dim}, {sequences, cells, heads * dim});
    return (s.which ? m.second : m.first)[std::size_t(at)];
  };
  holds(m, wrap_llama_cpp(m.first.data(), m.second.data(), fp16<>(k_dim), fp16<>(v_dim), {sequences, cells, heads}),
        v_dim);

  // One stream: token i of sequence s is the (3 i + s)th that came.
  std::vector<page_id> cell_of;
  for (int s = 0; s < sequences; ++s)
    for (int token = 0; token < cells; ++token) cell_of.push_back(3 * token + s);
  std::fill(m.first.begin(), m.first.end(), poison), std::fill(m.second.begin(), m.second.end(), poison);
  m.at = [&](const spot& s) -> std::uint16_t& {
    const int dim = s.which ? v_dim : k_dim;
    const idx at = flat({3 * s.token + s.sequence, s.head * dim + s.dim}, {sequences * cells, heads * dim});
    return (s.which ? m.second : m.first)[std::size_t(at)];
  };
  holds(m,
        wrap_llama_cpp(m.first.data(), m.second.data(), fp16<>(k_dim), fp16<>(v_dim), {sequences * cells, 1, heads},
                       {cell_of.data(), cells}),
        v_dim);
  CHECK_THROWS_WITH(wrap_llama_cpp(m.first.data(), m.second.data(), fp16<>(k_dim), fp16<>(v_dim), {30, 2, heads},
                                   {cell_of.data(), cells}),
                    containing("a cell of 2 rows"));
}

TEST_CASE("foreign: what an engine's memory cannot hold is refused", "[cache]") {
  std::uint16_t* const pool = some_pool();
  const page_table of{table().data(), width};
  CHECK_THROWS_WITH(wrap_vllm_stacked(pool, q8<>(k_dim), shape, of),
                    containing("K and V rows of q8 have 2 bytes of params; an engine's pool has no place for them"));
  for (const pool_shape wrong : {pool_shape{0, 1, 1}, pool_shape{1, 0, 1}, pool_shape{1, 1, 0}, pool_shape{1, -4, 1}})
    CHECK_THROWS_WITH(wrap_vllm_joined(pool, fp16<>(k_dim), fp16<>(k_dim), wrong, of),
                      containing("at least 1 of each"));
  CHECK_THROWS_WITH(wrap_vllm_stacked(nullptr, fp16<>(k_dim), shape, of), containing("a pool of 12 pages is null"));
  CHECK_THROWS_WITH(wrap_vllm_joined(nullptr, fp16<>(k_dim), fp16<>(k_dim), shape, of), containing("is null"));
  CHECK_THROWS_WITH(wrap_flashinfer(nullptr, fp16<>(k_dim), shape, nullptr, nullptr), containing("is null"));
  CHECK_THROWS_WITH(wrap_flash_attention(pool, nullptr, fp16<>(k_dim), fp16<>(k_dim), shape, of),
                    containing("is null"));
  CHECK_THROWS_WITH(wrap_vllm_paired(pool, fp16<>(k_dim), shape, of, page_axes::nhd, 639),
                    containing("pages of 640 bytes are 639 bytes apart"));
}

TEST_CASE("foreign: tables that are not there are refused, whichever engine's", "[cache]") {
  std::uint16_t* const pool = some_pool();
  const fp16<> f(k_dim);
  const int begins[] = {0, 0, 0, 0};
  const auto refuse = [&](page_table of, pool_shape s, const std::string& text) {
    CHECK_THROWS_WITH(wrap_vllm_stacked(pool, f, s, of), containing(text));
    CHECK_THROWS_WITH(wrap_vllm_paired(pool, f, s, of), containing(text));
    CHECK_THROWS_WITH(wrap_vllm_joined(pool, f, f, s, of), containing(text));
    CHECK_THROWS_WITH(wrap_flash_attention(pool, pool, f, f, s, of), containing(text));
    CHECK_THROWS_WITH(wrap_tensorrt_llm(pool, f, s, of, 2, 1), containing(text));
    s.page_rows = 1;
    CHECK_THROWS_WITH(wrap_llama_cpp(pool, pool, f, f, s, of), containing(text));
  };
  refuse({nullptr, width}, shape, "a page table of 4 pages a sequence is null");
  refuse({table().data(), -1}, shape, "a page table is -1 pages wide");
  refuse({table().data(), idx(1) << 40}, shape, "a page table is 1099511627776 pages wide");
  // A batch of no tokens has no pages to name.
  const auto idle = wrap_flashinfer(pool, f, shape, nullptr, begins);
  answer<> a(2, heads, k_dim);
  const tensor<float> rows = random_tensor(1, 2, heads, k_dim);
  CHECK_NOTHROW(attention{causal{}}(host(), idle, planned_step(host(), {0, 0}, {0, 0}, {1, 1}, k_dim, k_dim),
                                    rows.rows(), a.out.rows()));
  const int one_page[] = {0, 1};
  const planned_step s(host(), {0}, {2}, {}, k_dim, k_dim);
  const auto lost = wrap_flashinfer(pool, f, shape, nullptr, one_page);
  CHECK_THROWS_WITH(append(host(), lost, s, rows.rows(), rows.rows()), containing("page table of a view is null"));
  CHECK_THROWS_WITH(attention{causal{}}(host(), lost, s, rows.rows(), a.out.rows()), containing("is null"));
  const auto nowhere = wrap_flashinfer(pool, f, shape, table().data(), nullptr);
  CHECK_THROWS_WITH(append(host(), nowhere, s, rows.rows(), rows.rows()), containing("page table of a view is null"));
  const planned_step padding(host(), {0}, {0}, {}, k_dim, k_dim);
  CHECK_NOTHROW(append(host(), nowhere, padding, rows.rows(), rows.rows()));
}

TEST_CASE("foreign: numbers that no memory has are refused before they are multiplied", "[cache]") {
  std::uint16_t* const pool = some_pool();
  constexpr int most = std::numeric_limits<int>::max();
  const page_table of{table().data(), width};
  const pool_shape vast{most, most, most};
  const fp16<> f(k_dim);
  const std::string beyond = "a pool of 2147483647 pages of 2147483647 rows of 2147483647 heads is beyond 2^56 bytes";
  CHECK_THROWS_WITH(wrap_vllm_stacked(pool, f, vast, of), containing(beyond));
  CHECK_THROWS_WITH(wrap_vllm_paired(pool, f, vast, of), containing(beyond));
  CHECK_THROWS_WITH(wrap_vllm_joined(pool, f, f, vast, of), containing(beyond));
  CHECK_THROWS_WITH(wrap_flash_attention(pool, pool, f, f, vast), containing(beyond));
  CHECK_THROWS_WITH(wrap_llama_cpp(pool, pool, f, f, vast), containing(beyond));
  CHECK_THROWS_WITH(wrap_flashinfer(pool, f, vast, table().data(), &most), containing(beyond));
  CHECK_THROWS_WITH(wrap_tensorrt_llm(pool, f, {1 << 20, 1 << 10, 1 << 10}, of, most, most - 1),
                    containing("bytes apart"));
  CHECK_THROWS_WITH(wrap_vllm_paired(pool, f, shape, of, page_axes::nhd, idx(1) << 61), containing("bytes apart"));
  for (const int dim : {-16, 0, 20, most - 7, 1 << 30}) {
    const std::string rows = " rows have " + std::to_string(dim) + " numbers";
    CHECK_THROWS_WITH(wrap_vllm_stacked(pool, fp16<>(dim), shape, of), containing("K and V" + rows));
    CHECK_THROWS_WITH(wrap_vllm_joined(pool, f, fp32<>(dim), shape, of), containing("V" + rows));
    CHECK_THROWS_WITH(wrap_flash_attention(pool, pool, fp32<>(dim), f, shape), containing("K" + rows));
  }
}

TEST_CASE("foreign: a sequence beyond a pool without a table is refused by every verb", "[cache]") {
  std::vector<std::uint16_t> k = poisoned(3 * 5 * heads * k_dim), v = k, kept = k;
  const auto view = wrap_flash_attention(k.data(), v.data(), fp16<>(k_dim), fp16<>(k_dim), {2, 5, heads});
  const tensor<float> rows = random_tensor(1, 2, heads, k_dim);
  answer<> a(2, heads, k_dim);
  const planned_step s(host(), {0, 0, 0}, {0, 0, 2}, {}, k_dim, k_dim),
      inside(host(), {0, 0}, {0, 2}, {}, k_dim, k_dim);
  const std::string text = "sequence 2 of 2 tokens is on page 2; the pool has pages 0 to 1";
  CHECK_THROWS_WITH(append(host(), view, s, rows.rows(), rows.rows()), containing(text));
  CHECK_THROWS_WITH(attention{causal{}}(host(), view, s, rows.rows(), a.out.rows()), containing(text));
  CHECK_THROWS_WITH(largest_key_norm(view, s), containing(text));
  const std::vector<int> nodes = {0}, accepted = {0, 0, 1};
  CHECK_THROWS_WITH(keep_path(host(), view, s, nodes, accepted), containing(text));
  std::vector<unsigned char> workspace(workspace_bytes(host(), 0, k_dim, k_dim));
  const row_copy copy{2, {2, 2, 2, 2}, 0, {2, 2, 2, 2}, {0, 2}};
  CHECK_THROWS_WITH(copy_rows(host(), view, view, {&copy, 1}, workspace), containing(text));
  CHECK((k == kept && v == kept));
  CHECK_NOTHROW(append(host(), view, inside, rows.rows(), rows.rows()));
}

TEST_CASE("foreign: a view of device memory is a device view", "[cache]") {
  std::uint16_t* const pool = some_pool();
  const auto view = wrap_vllm_stacked<memory_space::device>(pool, bf16<>(k_dim), shape, {table().data(), width});
  STATIC_REQUIRE(decltype(view)::space == memory_space::device);
  STATIC_REQUIRE(!host_view<std::remove_const_t<decltype(view)>>);
}

TEST_CASE("foreign: the windows of other engines", "[cache]") {
  constexpr int queries = 40;
  const auto seen = [](const window<>& w, int query, int key) {
    return interval<part::body, window<>>(w).sees(query, key);
  };
  for (const int n : {1, 2, 7, 39, 40, 100})
    for (int query = 0; query < queries; ++query)
      for (int key = 0; key <= query; ++key) {
        // FlashAttention and FlashInfer, window_left: keys from i - left to i.
        CHECK(seen(window_from_left(n - 1), query, key) == (key >= query - (n - 1) && key <= query));
        // Hugging Face, sliding_window: key > query - sliding_window.
        CHECK(seen(window<>(n), query, key) == (key > query - n));
        // llama.cpp, n_swa: hidden where the distance is n_swa or more.
        CHECK(seen(window<>(n), query, key) == !(query - key >= n));
        // TensorRT-LLM, max_attention_window: the last tokens, the query's own among them.
        CHECK(seen(window<>(n), query, key) == (query - key + 1 <= n));
      }
}
