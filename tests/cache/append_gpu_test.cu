#include "support/foreign.hpp"
#include "support/gpu.hpp"
#include "support/managed.hpp"
#include "support/mirrored.cuh"
#include "support/tensors.hpp"

#include <kvilt/format/centred.hpp>
#include <kvilt/format/channel.hpp>
#include <kvilt/format/concat.hpp>
#include <kvilt/format/narrow.hpp>

#include <cstring>
#include <limits>

// Built twice, once with -use_fast_math by append_gpu_fast_math_test.cu, and then of fewer policies.
#ifndef APPEND_TEST_MODE
#define APPEND_TEST_MODE ""
#define APPEND_TEST_ALL 1
#else
#define APPEND_TEST_ALL 0
#endif

namespace {

using namespace kvilt;
using support::mirror;
using support::mixed;
using support::normal_numbers;

#if APPEND_TEST_ALL
// A rotation that lanes do not know: the row backwards, every other number negated.
struct reversal {
  KVILT_HD static void forward(float* x, int dim) {
    for (int i = 0; 2 * i < dim; ++i) {
      const float last = x[dim - 1 - i];
      x[dim - 1 - i] = -x[i];
      x[i] = last;
    }
  }
};
// A format that derives from one of ours and has an encode of its own.
struct marked : q4<64> {
  constexpr marked() = default;
  constexpr explicit marked(int) {}
  KVILT_HD void encode(const float* x, row_ref r) const {
    q4<64>::encode(x, r);
    r.codes[0] = static_cast<unsigned char>(r.codes[0] ^ 1);
  }
};
using latent = concat<e4m3<64, 32>, bf16<8>>;
#endif

// A policy, its rows' dims, and what the caller's numbers are.
template <class Policy, int KDim, int VDim, class Number, int Window = 0>
struct subject {
  using policy = Policy;
  using number = Number;
  static Policy make() {
    using rule = typename Policy::retention_type;
    using k = typename Policy::k_format;
    using v = typename Policy::v_format;
    if constexpr (std::is_same_v<typename Policy::layout_type, paged<>>)
      return Policy(k(KDim), v(VDim), rule(), paged<>(7));
    else if constexpr (rule::slides)
      return Policy(k(KDim), v(VDim), rule(Window));
    else if constexpr (std::is_constructible_v<k, int> && std::is_constructible_v<v, int>)
      return Policy(k(KDim), v(VDim));
    else
      return Policy();
  }
};

using everywhere = std::tuple<
    subject<policy<paged<16>, q8<128>>, 128, 128, bfloat16>, subject<policy<paged<16>, e4m3<128>>, 128, 128, bfloat16>,
    subject<policy<paged<16>, q4<128>>, 128, 128, bfloat16>, subject<policy<paged<19>, e5m2<>, bf16<>>, 40, 72, float>,
    subject<policy<paged<1>, rotated<q4<>>, rotated<q8<>>>, 96, 64, float>,
    subject<policy<contiguous, rotated<q4<128>>, q4<128>, keep_all, 3, 5>, 128, 128, float>>;
#if APPEND_TEST_ALL
using elsewhere =
    std::tuple<subject<policy<contiguous, fp32<>, fp16<>>, 72, 8, float16>,
               subject<policy<paged<>, bf16<128>>, 128, 128, bfloat16>,
               subject<policy<paged<16>, q8<128, 32>, q4<128, 64>>, 128, 128, bfloat16>,
               subject<policy<paged<16>, q4<96, 96>, e4m3<64, 32>>, 96, 64, float>,
               subject<policy<paged<3>, q3<>, q2<64, 32>>, 40, 64, float16>,
               subject<policy<paged<16>, e4m3_static<>, q8_static<>>, 64, 80, float>,
               subject<ring<q8<>, q4<>>, 64, 32, float, 9>,
               subject<policy<paged<2>, rotated<q8<>>, q4<>, window<dynamic, 4>>, 72, 40, float, 7>,
               subject<policy<paged<16>, rotated<q8<>, reversal>, bf16<>, window<dynamic, 3>, 0, 6>, 40, 24, float, 8>,
               subject<policy<paged<16>, marked, q8<>, keep_all, 0, 5, bf16>, 64, 48, bfloat16>,
               subject<policy<paged<16>, q4_channel<64, 16>, q4<64>, keep_all, 4, 16>, 64, 64, bfloat16>,
               subject<policy<contiguous, q2_channel<>, q2<64, 32>, keep_all, 0, 7>, 40, 64, float>,
               subject<policy<paged<64>, centred<q4<64>, 16>, q8<>, keep_all, 2, 9>, 64, 80, float16>,
               subject<policy<paged_by_head<16>, q8<>, q4<>>, 64, 80, bfloat16>,
               subject<policy<paged_by_head<3>, rotated<q4<>>, e4m3<>, keep_all, 2, 5>, 64, 40, float>,
               subject<policy<paged<16>, latent, prefix<latent, 64>>, 72, 64, bfloat16>,
               subject<policy<paged<16>, latent, prefix<latent, 64>, keep_all, 2, 3>, 72, 64, float>,
               subject<policy<paged<16>, q8<>, rotated<fp16<>>>, 640, 512, bfloat16>>;
#else
using elsewhere = std::tuple<>;
#endif
template <class... A, class... B>
std::tuple<A..., B...> joined(std::tuple<A...>, std::tuple<B...>);
using all = decltype(joined(everywhere(), elsewhere()));

// The caller's rows, with room between them where `gap` is not 0, which is NaN.
template <class T>
class tensor {
 public:
  tensor(std::uint64_t seed, idx tokens, int heads, int dim, int gap)
      : pitch_(dim + gap), heads_(heads), dim_(dim), data_(std::size_t(tokens * heads * pitch_ + gap + 8)) {
    normal_numbers numbers(mixed({seed}));
    for (T& x : data_) store(x, std::numeric_limits<float>::quiet_NaN());
    for (idx t = 0; t < tokens; ++t)
      for (int h = 0; h < heads; ++h) {
        const float scale = std::ldexp(1.0f, int(mixed({seed, std::uint64_t(t)}) % 12) - 6);
        for (int d = 0; d < dim; ++d) store(rows().at(t, h)[d], scale * numbers.next() + (h % 2 ? 3 * scale : 0.0f));
      }
    spice(tokens);
  }
  kvilt::rows<T> rows() { return {data_.data() + offset(), heads_ * pitch_, pitch_, heads_, dim_}; }
  const std::vector<T>& data() const { return data_; }

 private:
  idx offset() const { return pitch_ == dim_ ? 0 : 1; }
  // What formats find awkward.
  void spice(idx tokens) {
    const float inf = std::numeric_limits<float>::infinity();
    const float odd[] = {inf, -inf, std::nanf(""), -0.0f, 65519.0f, 1e30f, -1e-6f, 448.0f};
    if (tokens < 4) return;
    for (int i = 0; i < 8; ++i) store(rows().at(i % tokens, i % heads_)[(3 * i) % dim_], odd[i]);
    for (int d = 0; d < dim_; ++d) store(rows().at(3, 0)[d], 0.0f);
  }

  idx pitch_;
  int heads_, dim_;
  std::vector<T> data_;
};

// A step with padding among its items, and `behind` them.
class padded_step {
 public:
  padded_step(const step& s, bool behind) : step_(s) {
    step_item none;
    none.sequence = -1;
    for (int i = 0; i < s.size; ++i) {
      none.kv_row = s.items[i].kv_row, none.q_row = s.items[i].q_row;
      if (i == 1) items_.push_back(none);
      items_.push_back(s.items[i]);
    }
    none.kv_row = s.kv_rows, none.q_row = s.q_rows;
    if (behind) items_.push_back(none);
    step_.items = items_.data(), step_.size = int(items_.size());
  }
  operator const step&() const { return step_; }

 private:
  std::vector<step_item> items_;
  step step_;
};

constexpr int sequences = 3;
constexpr int chunks[][sequences] = {{5, 0, 1}, {1, 3, 1},   {1, 1, 1},  {16, 7, 0}, {0, 0, 0}, {17, 2, 24},
                                     {1, 1, 1}, {0, 30, 12}, {90, 1, 1}, {1, 1, 1},  {3, 1, 19}};

// The same steps on the host, and on the device over a copy of the host's bytes.
template <class Subject>
void append_alike(int heads, int gap) {
  using number = typename Subject::number;
  const typename Subject::policy policy = Subject::make();
  support::test_memory pool(0xff);
  cache<typename Subject::policy> c({.layers = 1, .kv_heads = heads, .sequences = 5, .tokens = 1000, .max_step = 90},
                                    memory<memory_space::host>::from(pool), policy);
  const std::vector<float> scales(std::size_t(heads), 0.037f);
  if constexpr (decltype(c)::has_static_scales) c.set_scales(0, scales, scales);
  const sequence unused = c.open();
  const sequence s[sequences] = {c.open(), c.open(), c.open()};
  c.close(unused);
  std::vector<unsigned char> workspace(c.workspace_bytes(host(), sequences));
  std::uint64_t seed = 1;
  for (const auto& tokens : chunks) {
    INFO("step " << seed << ", " << heads << " heads, gap " << gap);
    for (int i = 0; i < sequences; ++i) c.reserve(s[i], tokens[i]);
    const step begun = c.begin(host(), s, tokens, workspace);
    const padded_step st(begun, seed % 2 == 0);
    tensor<number> k(2 * seed, begun.kv_rows, heads, policy.k.dim(), gap);
    tensor<number> v(2 * seed + 1, begun.kv_rows, heads, policy.v.dim(), gap);
    mirror m;
    m.add(pool), m.add(scales), m.add(k.data()), m.add(v.data());
    device_step on_device = m(st);
    on_device.kv_rows += seed % 3 ? 5 : 5000;  // an upper bound, by which work is shared out
    append(gpu(), m(c.view(0)), on_device, m(k.rows()), m(v.rows()));
    if (seed % 2) append(gpu(), m(c.view(0)), on_device, m(k.rows()), m(v.rows()));
    support::finish_kernels();
    append(host(), c.view(0), st, k.rows(), v.rows());
    const std::string wrong = m.difference();
    if (!wrong.empty()) FAIL(wrong);
    c.commit(begun);
    ++seed;
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("append: a GPU writes the bytes of the host" APPEND_TEST_MODE, "[cache]", all) {
  support::require_gpu();
  append_alike<TestType>(2, 0);
  append_alike<TestType>(3, 5);
  append_alike<TestType>(1, 8);
}

TEST_CASE("append: a GPU writes an engine's own memory, and not where there is no page" APPEND_TEST_MODE, "[cache]") {
  support::require_gpu();
  using support::arrangement;
  for (const arrangement a : {arrangement::four_pools, arrangement::interleaved}) {
    const int heads = 3, rows = 5, width = 6;
    const q8<> k(40);
    const q4<> v(24);
    support::foreign_pool<q8<>, q4<>> pool(k, v, heads, rows, 3 * width, a);
    std::vector<page_id> table = support::foreign_table(3, width, {3, 2, 4}, support::page_order::shuffled);
    table[width] = -1;  // of sequence 1's first tokens
    using body = segment<paged<>, interval<part::body, keep_all>, q8<>, q4<>>;
    const auto view = make_view<memory_space::host>(
        heads, body{paged<>(rows, table.data(), width), interval<part::body, keep_all>(), k, v, pool.planes(1)});
    const support::planned_step s(host(), {2, 3, 11}, {9, 4, 1}, {}, 40, 24);
    tensor<float> keys(1, 14, heads, 40, 3), values(2, 14, heads, 24, 1);
    mirror m;
    m.add(pool.bytes()), m.add(table), m.add(keys.data()), m.add(values.data());
    append(gpu(), m(view), m(s), m(keys.rows()), m(values.rows()));
    support::finish_kernels();
    append(host(), view, s, keys.rows(), values.rows());
    CHECK(m.difference() == "");
  }
}

#if APPEND_TEST_ALL

namespace {

// Bytes of a block as numbers: the same bits, or close.
template <class T>
std::string far_apart(const support::device_block& block, const std::vector<T>& want, double tolerance) {
  const std::vector<unsigned char> bytes = block.contents();
  for (std::size_t i = 0; i < want.size(); ++i) {
    T got;
    std::memcpy(&got, bytes.data() + i * sizeof(T), sizeof(T));
    if (std::memcmp(&got, &want[i], sizeof(T)) == 0) continue;
    const double a = load(got), b = load(want[i]);
    if (!(std::fabs(a - b) <= tolerance * std::fmax(1.0, std::fabs(b))))
      return "number " + std::to_string(i) + " is " + std::to_string(a) + ", not " + std::to_string(b);
  }
  return {};
}

struct turn_case {
  int k_dim, dims, first;
};

// K in fp32 and Q turned on both sides.
template <class T>
void turn_alike(const turn_case& c, rope_pairs pairs, bool given, bool q_alone, double tolerance) {
  const int heads = 2, q_heads = 6, v_dim = 24;
  const rope_table table(c.dims, 500.0, pairs);
  rope turn = table;
  turn.first = c.first, turn.magnitude = 1.25f;
  using kv = policy<paged<3>, fp32<>>;
  support::test_memory pool(0xff);
  cache<kv> owner({.layers = 1, .kv_heads = heads, .sequences = 2, .tokens = 60, .max_step = 16},
                  memory<memory_space::host>::from(pool), kv(fp32<>(c.k_dim), fp32<>(v_dim)));
  const sequence s[] = {owner.open(), owner.open()};
  owner.reserve(s[0], 9), owner.reserve(s[1], 4);
  const int tokens[] = {9, 4};
  const std::vector<idx> positions = {9, 8, 7, 20, 3, 100000, 0, 5, 5, 1, 2, 3, idx(1) << 40};
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 2));
  const step st = owner.begin(host(), s, tokens, workspace, given ? positions : std::vector<idx>());
  support::tensor<float> numbers = support::random_tensor(3, 13, heads, c.k_dim);
  support::tensor<float> values = support::random_tensor(4, 13, heads, v_dim);
  const support::tensor<float> asked = support::random_tensor(5, 17, q_heads, c.k_dim);
  const int gap = given ? 3 : 0;  // between rows of Q, of which then none is on a line
  const idx pitch = c.k_dim + gap;
  std::vector<T> q(std::size_t(17 * q_heads * pitch + gap));
  for (T& x : q) store(x, std::numeric_limits<float>::quiet_NaN());
  const rows<T> q_rows{q.data() + gap, q_heads * pitch, pitch, q_heads, c.k_dim};
  for (idx t = 0; t < 17; ++t)
    for (int h = 0; h < q_heads; ++h)
      for (int d = 0; d < c.k_dim; ++d) store(q_rows.at(t, h)[d], asked.row(t, h)[std::size_t(d)]);
  mirror m;
  m.add(numbers.data), m.add(values.data);
  const support::device_block& device_q = m.add(q.data(), q.size() * sizeof(T));
  std::vector<const support::device_block*> blocks;
  for (const auto& [host_bytes, size] : pool.blocks()) blocks.push_back(&m.add(host_bytes, size));
  device_step on_device = m(st);
  on_device.kv_rows += 4, on_device.q_rows += 4;  // upper bounds: rows behind the items' are not looked at
  if (q_alone) {
    append(gpu(), m(owner.view(0)), on_device, m(numbers.rows()), m(values.rows()), m(turn));
    rotate_queries(gpu(), on_device, m(q_rows), c.k_dim, m(turn));
  } else {
    append(gpu(), m(owner.view(0)), on_device, m(q_rows), m(numbers.rows()), m(values.rows()), m(turn));
  }
  support::finish_kernels();
  append(host(), owner.view(0), st, q_rows, numbers.rows(), values.rows(), turn);
  CHECK(far_apart(device_q, q, tolerance) == "");
  for (const support::device_block* b : blocks) {
    std::vector<float> want(b->bytes() / sizeof(float));
    std::memcpy(want.data(), b->host(), want.size() * sizeof(float));
    CHECK(far_apart(*b, want, 4e-6) == "");
  }
  owner.cancel();
}

}  // namespace

TEST_CASE("append: a GPU turns keys and queries as the host does", "[cache]") {
  support::require_gpu();
  const turn_case cases[] = {{128, 128, 0}, {64, 64, 0},  {24, 16, 8},    {40, 6, 3},    {96, 32, 64},
                             {80, 80, 0},   {128, 64, 0}, {576, 64, 512}, {256, 64, 16}, {600, 600, 0}};
  for (const turn_case& c : cases)
    for (const rope_pairs pairs : {rope_pairs::half_split, rope_pairs::interleaved})
      for (const bool given : {false, true}) {
        INFO(c.dims << " of " << c.k_dim << " numbers from " << c.first << ", pairs " << int(pairs) << ", positions "
                    << given);
        turn_alike<float>(c, pairs, given, false, 4e-6);
        turn_alike<bfloat16>(c, pairs, given, false, 1e-2);
        turn_alike<float16>(c, pairs, given, true, 2e-3);
      }
}

TEST_CASE("append: what a GPU is not to be given is refused before a launch", "[cache]") {
  float memory[8] = {};
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(memory);
  using body = segment<contiguous, interval<part::body, keep_all>, fp32<>>;
  const auto of = [&](const geometry& g) {
    return make_view<memory_space::device>(2, body{{64}, interval<part::body, keep_all>(), fp32<>(16), fp32<>(8), g});
  };
  const auto view = of({{bytes, 8192, 4096, 64}, {}, {bytes, 4096, 2048, 32}, {}, 4});
  const step_item item{0, 3, 3, 0, 0, {0, 3, 0, 3}};
  device_step s;
  s.items = &item, s.size = 1, s.q_rows = 3, s.kv_rows = 3;
  const rows<float> k = packed_rows(memory, 2, 16), v = packed_rows(memory, 2, 8), q = packed_rows(memory, 4, 16);
  const auto run = [&](const rows<float>& keys, const rows<float>& values, const device_step& step) {
    append(gpu(), view, step, keys, values);
  };
  using support::containing;
  rows<float> wrong = k;
  wrong.heads = 3;
  CHECK_THROWS_WITH(run(wrong, v, s), containing("K has 3 and V 2 heads; the cache has 2"));
  wrong = v, wrong.dim = 16;
  CHECK_THROWS_WITH(run(k, wrong, s), containing("rows of K have 16 and of V 16 numbers; the cache's have 16 and 8"));
  wrong = k, wrong.data = nullptr;
  CHECK_THROWS_WITH(run(wrong, v, s), containing("K or V of 3 rows is null"));
  device_step bad = s;
  bad.items = nullptr;
  CHECK_THROWS_WITH(run(k, v, bad), containing("the list of a step's 1 sequences is null"));
  bad = s, bad.kv_rows = -1;
  CHECK_THROWS_WITH(run(k, v, bad), containing("at most 3 rows of Q and -1 of K and V"));
  bad = s, bad.kv_rows = idx(1) << 31;
  CHECK_THROWS_WITH(run(k, v, bad), containing("fewer than 2^31 are supported"));
  CHECK_THROWS_WITH(append(gpu(), of({{bytes, 8192, 4096, 60}, {}, {bytes, 4096, 2048, 32}, {}, 4}), s, k, v),
                    containing("K's records of 64 bytes lie on each other"));
  CHECK_THROWS_WITH(append(gpu(), of({{nullptr, 8192, 4096, 64}, {}, {bytes, 4096, 2048, 32}, {}, 4}), s, k, v),
                    containing("a view's memory of K is null"));
  rope turn;
  turn.dims = 16;
  CHECK_THROWS_WITH(append(gpu(), view, s, k, v, turn), containing("RoPE over 16 numbers has no frequencies"));
  const std::uint64_t turns[8] = {};
  turn.turns = turns;
  wrong = q, wrong.token_stride = 8;
  CHECK_THROWS_WITH(append(gpu(), view, s, wrong, k, v, turn), containing("rows of Q of 16 numbers lie on each other"));
  wrong = q, wrong.dim = 8;
  CHECK_THROWS_WITH(rotate_queries(gpu(), s, wrong, 16, turn), containing("rows of Q have 8 numbers"));
  const idx positions[3] = {};
  bad = s, bad.rope_positions = positions, bad.q_rows = 2;
  CHECK_THROWS_WITH(append(gpu(), view, bad, q, k, v, turn), containing("as many queries as tokens are needed"));
}

#endif
