#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <map>
#include <vector>

namespace {

using namespace kvilt;
using support::containing;
using support::dice;
using support::test_memory;

constexpr int k_dim = 16, v_dim = 8, layers = 5, kv_heads = 3, ratio = 2, q_heads = kv_heads * ratio, max_step = 6;

// Global layers with a tail, local ones in a ring and over pages, and one 16-bit head beside them.
using global = policy<paged<3>, q8<>, q8<>, keep_all, 2, 5>;
using local = ring<fp16<>, fp16<>, dynamic, 2>;
using paged_local = policy<paged<2>, q8<>, fp32<>, window<>, 0, 4>;
using outlier = policy<contiguous, fp16<>>;
using kinds = cache_set<global, local, paged_local, outlier>;

memory<memory_space::host> from(test_memory& m) {
  return memory<memory_space::host>::from(m);
}

constexpr set_shape shape{.sequences = 3, .tokens = 90, .max_length = 40, .max_step = max_step};

layer_group<global> globals() {
  return {.layers = {1, 4}, .kv_heads = kv_heads, .policy = global(q8<>(k_dim), q8<>(v_dim))};
}
layer_group<local> locals() {
  return {.layers = {2, 0}, .kv_heads = kv_heads, .policy = local(fp16<>(k_dim), fp16<>(v_dim), window<dynamic, 2>(7))};
}
layer_group<paged_local> paged_locals() {
  return {.layers = {{3, 0}, {3, 2}},
          .kv_heads = 1,
          .policy = paged_local(q8<>(k_dim), fp32<>(v_dim), window<>(6)),
          .tokens = 50};
}
layer_group<outlier> outliers() {
  return {.layers = {{3, 1}}, .kv_heads = 1, .policy = outlier(fp16<>(k_dim), fp16<>(v_dim)), .tokens = 120};
}
kinds make_set(test_memory& m) {
  return kinds(shape, from(m), globals(), locals(), paged_locals(), outliers());
}

// Numbers of a token in one layer, for all its heads: [heads][dim].
std::vector<float> numbers(int what, std::uint64_t salt, int layer, idx count) {
  support::normal_numbers source(support::mixed({std::uint64_t(what), salt, std::uint64_t(layer)}));
  std::vector<float> all;
  for (idx i = 0; i < count; ++i) all.push_back(source.next());
  return all;
}

// A step's tensors in one layer.
struct tensors {
  std::vector<float> q, k, v, out, lse;
  tensors(std::uint64_t salt, int layer, idx tokens)
      : q(numbers(0, salt, layer, tokens * q_heads * k_dim)),
        k(numbers(1, salt, layer, tokens * kv_heads * k_dim)),
        v(numbers(2, salt, layer, tokens * kv_heads * v_dim)),
        out(std::size_t(tokens * q_heads * v_dim), NAN),
        lse(std::size_t(tokens * q_heads), NAN) {}
  rows<float> q_rows() { return packed_rows(q.data(), q_heads, k_dim); }
  rows<float> k_rows() { return packed_rows(k.data(), kv_heads, k_dim); }
  rows<float> v_rows() { return packed_rows(v.data(), kv_heads, v_dim); }
  rows<float> out_rows() { return packed_rows(out.data(), q_heads, v_dim); }
};

void forward(const kinds& set, const kinds::step_type& s, int layer, tensors& t) {
  set.visit(layer, s, [&](const auto& view, const step& part, const head_range& heads) {
    append(host(), view, part, heads.kv(t.k_rows()), heads.kv(t.v_rows()));
    attention{causal{}}(host(), view, part, heads.queries(t.q_rows()), heads.queries(t.out_rows()),
                        heads.queries(natural_lse{t.lse.data(), q_heads}, q_heads));
  });
}

// Some heads of a layer, copied out of its tensors by hand.
std::vector<float> cut(const std::vector<float>& all, int heads, int dim, int first, int count) {
  std::vector<float> some;
  for (std::size_t token = 0; token < all.size() / std::size_t(heads * dim); ++token)
    for (int i = first * dim; i < (first + count) * dim; ++i)
      some.push_back(all[token * std::size_t(heads * dim) + std::size_t(i)]);
  return some;
}

// A group's cache on its own, beside the set.
template <class Policy>
class lone {
 public:
  lone(const layer_group<Policy>& g, const cache_shape& s) : group_(g), owner_(s, from(memory_), g.policy) {}

  cache<Policy>& owner() { return owner_; }
  const test_memory& memory() const { return memory_; }
  void begin(std::span<const sequence> of, std::span<const int> tokens) {
    workspace_.assign(owner_.workspace_bytes(host(), int(of.size())), 0xff);
    step_ = owner_.begin(host(), of, tokens, workspace_);
  }
  void commit(std::span<const int> accepted) { owner_.commit(step_, accepted); }
  // Says whether what the set computed of these heads has the same bits.
  bool agrees(int layer, const tensors& t) const {
    for (int i = 0; i < int(group_.layers.size()); ++i) {
      const layer_part part = group_.layers[std::size_t(i)];
      if (part.layer != layer) continue;
      const int n = group_.kv_heads, qs = n * ratio, first = part.first_head, first_q = first * ratio;
      const std::vector<float> k = cut(t.k, kv_heads, k_dim, first, n), v = cut(t.v, kv_heads, v_dim, first, n),
                               q = cut(t.q, q_heads, k_dim, first_q, qs);
      std::vector<float> out(q.size() / k_dim * v_dim, NAN), lse(q.size() / k_dim, NAN);
      append(host(), owner_.view(i), step_, packed_rows(k.data(), n, k_dim), packed_rows(v.data(), n, v_dim));
      attention{causal{}}(host(), owner_.view(i), step_, packed_rows(q.data(), qs, k_dim),
                          packed_rows(out.data(), qs, v_dim), natural_lse{lse.data(), qs});
      if (!support::same_bits(out, cut(t.out, q_heads, v_dim, first_q, qs))) return false;
      if (!support::same_bits(lse, cut(t.lse, q_heads, 1, first_q, qs))) return false;
    }
    return true;
  }

 private:
  layer_group<Policy> group_;
  test_memory memory_{0xff};
  cache<Policy> owner_;
  std::vector<unsigned char> workspace_;
  step step_;
};

struct lone_caches {
  lone<global> a{globals(), {2, kv_heads, 3, 90, 40, max_step}};
  lone<local> b{locals(), {2, kv_heads, 3, 90, 40, max_step}};
  lone<paged_local> c{paged_locals(), {2, 1, 3, 50, 40, max_step}};
  lone<outlier> d{outliers(), {1, 1, 3, 120, 40, max_step}};

  template <class Body>
  void each(Body body) {
    body(a), body(b), body(c), body(d);
  }
};

// A set, and its groups as caches on their own that are told the same.
class pair_of_owners {
 public:
  explicit pair_of_owners(std::uint64_t seed) : dice_(seed), set_(make_set(memory_)) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      switch (dice_.below(15)) {
        case 0:
          open();
          break;
        case 1:
          if (dice_.below(3) == 0) close();
          break;
        case 2:
          truncate();
          break;
        case 4:
          fork();
          break;
        case 5:
          reorder();
          break;
        case 3:
        case 6:
          reserve(any(), dice_.below(40));
          break;
        default:
          step();
      }
      compare();
    }
  }

  idx refused = 0;  // reservations
  idx refused_forks = 0;

 private:
  int any() { return open_.empty() ? -1 : dice_.below(int(open_.size())); }
  void open() {
    if (set_.free_sequences() == 0) {
      CHECK_THROWS_AS(set_.open(), out_of_pages);
      return;
    }
    open_.push_back(set_.open());
    lone_.each([&](auto& l) { REQUIRE(l.owner().open() == open_.back()); });
  }
  void close() {
    const int i = any();
    if (i < 0) return;
    set_.close(open_[std::size_t(i)]);
    lone_.each([&](auto& l) { l.owner().close(open_[std::size_t(i)]); });
    open_.erase(open_.begin() + i);
  }
  void truncate() {
    const int i = any();
    if (i < 0) return;
    const sequence s = open_[std::size_t(i)];
    const idx length = dice_.below(int(set_.length(s)) + 1);
    try {
      set_.truncate(s, length);
    } catch (const invalid_argument&) {
      return;
    }
    lone_.each([&](auto& l) { l.owner().truncate(s, length); });
  }
  void fork() {
    const int i = any();
    if (i < 0) return;
    const sequence s = open_[std::size_t(i)];
    const std::vector<unsigned char> before = memory_.contents();
    try {
      open_.push_back(set_.fork(host(), s));
    } catch (const out_of_pages&) {
      if (memory_.contents() != before) FAIL("changed by a fork that failed");
      ++refused_forks;
      return;
    }
    lone_.each([&](auto& l) { REQUIRE(l.owner().fork(host(), s) == open_.back()); });
  }
  void reorder() {
    std::vector<int> parents;
    for (std::size_t i = 0; i < open_.size(); ++i) parents.push_back(any());
    const std::vector<unsigned char> before = memory_.contents();
    try {
      set_.reorder(host(), open_, parents);
    } catch (const out_of_pages&) {
      if (memory_.contents() != before) FAIL("changed by a reorder that failed");
      ++refused_forks;
      return;
    }
    lone_.each([&](auto& l) { l.owner().reorder(host(), open_, parents); });
  }
  bool reserve(int i, idx tokens) {
    if (i < 0) return false;
    const sequence s = open_[std::size_t(i)];
    if (set_.length(s) + tokens > 40) {
      CHECK_THROWS_AS(set_.reserve(s, tokens), invalid_argument);
      return false;
    }
    bool fits = true;
    lone_.each([&](auto& l) { fits = fits && l.owner().missing_pages(s, tokens) <= l.owner().free_pages(); });
    if (dice_.below(2))
      REQUIRE(set_.try_reserve(s, tokens) == fits);
    else if (fits)
      set_.reserve(s, tokens);
    else
      CHECK_THROWS_AS(set_.reserve(s, tokens), out_of_pages);
    if (fits) lone_.each([&](auto& l) { l.owner().reserve(s, tokens); });
    refused += !fits;
    return fits;
  }
  void step() {
    std::vector<sequence> of;
    std::vector<int> tokens, accepted;
    idx rows = 0;
    for (int i = 0; i < int(open_.size()); ++i) {
      const int n = dice_.below(3) ? 1 : dice_.below(max_step + 1);
      if (dice_.below(4) == 0 || !reserve(i, n)) continue;
      of.push_back(open_[std::size_t(i)]), tokens.push_back(n), rows += n;
      accepted.push_back(dice_.below(3) ? n : dice_.below(n + 1));
    }
    std::vector<unsigned char> workspace(set_.workspace_bytes(host(), int(of.size())), 0xff);
    const kinds::step_type s = set_.begin(host(), of, tokens, workspace);
    lone_.each([&](auto& l) { l.begin(of, tokens); });
    ++salt_;
    for (int layer = 0; layer < layers; ++layer) {
      tensors t(salt_, layer, rows);
      forward(set_, s, layer, t);
      lone_.each([&](auto& l) {
        if (!l.agrees(layer, t)) FAIL("other bits in layer " << layer);
      });
    }
    if (dice_.below(5) == 0) {
      set_.cancel();
      lone_.each([](auto& l) { l.owner().cancel(); });
    } else {
      set_.commit(s, accepted);
      lone_.each([&](auto& l) { l.commit(accepted); });
    }
  }
  void compare() {
    std::vector<unsigned char> bytes;
    idx tokens = idx(1) << 62;
    lone_.each([&](auto& l) {
      const std::vector<unsigned char> of = l.memory().contents();
      bytes.insert(bytes.end(), of.begin(), of.end());
      tokens = std::min(tokens, l.owner().free_tokens());
      for (const sequence s : open_)
        if (l.owner().length(s) != set_.length(s)) FAIL("other lengths");
    });
    if (bytes != memory_.contents()) FAIL("other bytes");
    if (set_.free_tokens() != tokens) FAIL(set_.free_tokens() << " tokens are free, not " << tokens);
    if (set_.free_sequences() != 3 - int(open_.size())) FAIL("other free sequences");
  }

  dice dice_;
  test_memory memory_{0xff};
  kinds set_;
  lone_caches lone_;
  std::vector<sequence> open_;
  std::uint64_t salt_ = 0;
};

std::vector<idx> free_pages(const kinds& set) {
  return {set.group<0>().free_pages(), set.group<1>().free_pages(), set.group<2>().free_pages(),
          set.group<3>().free_pages()};
}

}  // namespace

TEST_CASE("cache_set: does to each group what a cache on its own would do, or to none", "[cache]") {
  idx refused = 0, refused_forks = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    INFO("seed " << seed);
    pair_of_owners both(seed);
    both.run(300);
    refused += both.refused;
    refused_forks += both.refused_forks;
  }
  INFO(refused << " reservations and " << refused_forks << " forks are refused");
  CHECK((refused > 3 && refused_forks > 10));
}

TEST_CASE("cache_set: bytes are the sum over the groups and exact", "[cache]") {
  test_memory m;
  const kinds set = make_set(m);
  const auto planned = plan_bytes(shape, globals(), locals(), paged_locals(), outliers());
  CHECK(planned.bytes() == idx(m.bytes()));
  CHECK(set.bytes().bytes() == idx(m.bytes()));
  CHECK(planned.bytes() == planned.kv_bytes() + planned.table_bytes());
  const budget a = plan_bytes(globals().policy, {2, kv_heads, 3, 90, 40, max_step}),
               b = plan_bytes(locals().policy, {2, kv_heads, 3, 90, 40, max_step}),
               c = plan_bytes(paged_locals().policy, {2, 1, 3, 50, 40, max_step}),
               d = plan_bytes(outliers().policy, {1, 1, 3, 120, 40, max_step});
  CHECK(planned.bytes() == a.bytes() + b.bytes() + c.bytes() + d.bytes());
  CHECK(planned.bytes_per_sequence() ==
        a.bytes_per_sequence + b.bytes_per_sequence + c.bytes_per_sequence + d.bytes_per_sequence);
  CHECK(planned.bytes_per_token() == a.bytes_per_token + b.bytes_per_token + c.bytes_per_token + d.bytes_per_token);
  CHECK(planned.groups[2].body_pages == 25);
}

TEST_CASE("cache_set: what one group has no room for is reserved in none", "[cache]") {
  test_memory m;
  kinds set = make_set(m);
  const sequence s = set.open(), t = set.open();
  set.reserve(s, 40);
  const std::vector<idx> before = free_pages(set);
  // The paged window has 25 pages of 2 and a tail of 4: 19 are taken, 6 hold 12 + 3 tokens.
  CHECK_THROWS_AS(set.reserve(t, 16), out_of_pages);
  CHECK_THROWS_WITH(set.reserve(t, 16),
                    "kvilt: group 2: sequence 1 needs 7 more pages for 16 tokens; 6 of 25 are free");
  CHECK_FALSE(set.try_reserve(t, 16));
  CHECK(free_pages(set) == before);
  CHECK_THROWS_WITH(set.reserve(t, 41), containing("group 0: sequence 1 has 0 tokens and reserves 41 more"));
  CHECK(free_pages(set) == before);
  CHECK(set.try_reserve(t, 15));
  CHECK(free_pages(set)[2] == 0);
  CHECK(set.free_tokens() == 0);
}

TEST_CASE("cache_set: what one group has no pages for is forked in none", "[cache]") {
  test_memory m;
  kinds set = make_set(m);
  const sequence s = set.open(), t = set.open();
  set.reserve(s, 30), set.reserve(t, 12);
  const std::vector<idx> before = free_pages(set);
  // Of the paged window's 25 pages 14 and 5 are taken.
  CHECK_THROWS_WITH(set.fork(host(), s), "kvilt: group 2: sequence 0 has 14 pages to be forked; 6 of 25 are free");
  CHECK((set.free_sequences() == 1 && free_pages(set) == before));
  const sequence both[] = {t, s};
  CHECK_THROWS_WITH(set.reorder(host(), both, std::vector{1, 1}),
                    "kvilt: group 2: a reorder of 2 sequences needs 9 more pages; 6 of 25 are free");
  CHECK(free_pages(set) == before);
  const sequence child = set.fork(host(), t);
  CHECK((child.slot == 2 && set.group<3>().length(child) == 0 && free_pages(set)[2] == 1));
}

TEST_CASE("cache_set: what one group cannot show again is truncated in none", "[cache]") {
  test_memory m;
  kinds set = make_set(m);
  const sequence s = set.open();
  const int n[] = {5};
  for (int i = 0; i < 6; ++i) {
    set.reserve(s, 5);
    std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
    set.commit(set.begin(host(), {&s, 1}, n, workspace));
  }
  const std::vector<idx> before = free_pages(set);
  // The global layers could be cut to 10 tokens; a ring of 7 cannot.
  CHECK_THROWS_WITH(set.truncate(s, 10), containing("group 1: sequence 0 is truncated to 10; its window"));
  CHECK((set.length(s) == 30 && set.group<0>().length(s) == 30 && free_pages(set) == before));
  set.truncate(s, 0);
  CHECK(set.group<3>().length(s) == 0);
}

TEST_CASE("cache_set: windows over pages give pages back while others keep theirs", "[cache]") {
  using whole = policy<paged<4>, fp16<>>;
  using near = policy<paged<4>, fp16<>, fp16<>, window<>>;
  test_memory m;
  cache_set<whole, near> set({.sequences = 2, .tokens = 400, .max_length = 200}, from(m),
                             {.layers = {0}, .kv_heads = 1, .policy = whole(8)},
                             {.layers = {1, 2}, .kv_heads = 1, .policy = near(8, window<>(9)), .tokens = 32});
  const sequence s = set.open();
  const int n[] = {1};
  for (int length = 1; length <= 200; ++length) {
    set.reserve(s, 1);
    std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
    set.commit(set.begin(host(), {&s, 1}, n, workspace));
    CHECK(set.group<0>().free_pages() == 100 - (length + 3) / 4);
    CHECK(set.group<1>().free_pages() >= 8 - 4);
    CHECK(set.free_tokens() == 4 * std::min(set.group<0>().free_pages(), set.group<1>().free_pages()));
  }
  CHECK(set.group<1>().free_pages() == 8 - 2);  // the next query sees tokens 192 to 200
}

TEST_CASE("cache_set: heads of one layer in several groups are one attention", "[cache]") {
  // Exact formats: against the oracle over all heads of the layer, in another order of groups than of heads.
  using paged_rows = policy<paged<3>, fp32<>>;
  using plain_rows = policy<contiguous, fp32<>>;
  test_memory m(0xff);
  cache_set<paged_rows, plain_rows> set(
      {.sequences = 1, .tokens = 30}, from(m),
      {.layers = {{0, 2}, {0, 0}, 1}, .kv_heads = 1, .policy = paged_rows(fp32<>(k_dim), fp32<>(v_dim))},
      {.layers = {{0, 1}, {1, 1}}, .kv_heads = 1, .policy = plain_rows(fp32<>(k_dim), fp32<>(v_dim))});
  REQUIRE(set.layers() == 2);
  CHECK((set.shares(0).size() == 3 && set.shares(0)[0].heads.total == 3 && set.shares(1)[0].heads.total == 2));
  const sequence s = set.open();
  set.reserve(s, 20);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1), 0xff);
  const int n[] = {20};
  const auto step_of = set.begin(host(), {&s, 1}, n, workspace);
  tensors t(1, 0, 20);
  set.visit(0, step_of, [&](const auto& view, const step& part, const head_range& heads) {
    append(host(), view, part, heads.kv(t.k_rows()), heads.kv(t.v_rows()));
    attention{causal{}}(host(), view, part, heads.queries(t.q_rows()), heads.queries(t.out_rows()),
                        heads.queries(natural_lse{t.lse.data(), q_heads}, q_heads));
  });
  const std::vector<double> q(t.q.begin(), t.q.end()), k(t.k.begin(), t.k.end()), v(t.v.begin(), t.v.end());
  const auto row = [](const std::vector<double>& of, int token, int head, int heads, int dim) {
    return std::span(of).subspan(std::size_t((token * heads + head) * dim), std::size_t(dim));
  };
  for (int token = 0; token < 20; ++token)
    for (int head = 0; head < q_heads; ++head) {
      std::vector<support::oracle_key> keys;
      for (int i = 0; i < 20; ++i)
        keys.push_back({row(k, i, head / ratio, kv_heads, k_dim), row(v, i, head / ratio, kv_heads, v_dim), i});
      const auto want =
          support::oracle(row(q, token, head, q_heads, k_dim), keys, 0.25, v_dim, support::band(token, 99));
      const std::size_t at = std::size_t(token * q_heads + head);
      CHECK(support::difference(std::span<const float>(t.out).subspan(at * v_dim, v_dim), want.out) == "");
      CHECK(std::abs(double(t.lse[at]) - want.lse) < 1e-4);
    }
}

TEST_CASE("cache_set: the groups' steps share a workspace", "[cache]") {
  test_memory m;
  kinds set = make_set(m);
  const sequence s[] = {set.open(), set.open(), set.open()};
  const int n[] = {3, 0, 2};
  for (const sequence each : s) set.reserve(each, 10);
  const std::size_t bytes = set.workspace_bytes(host(), 3);
  CHECK(bytes < set.group<0>().workspace_bytes(host(), 3) + 3 * 1024);
  std::vector<unsigned char> memory(bytes + 256);
  unsigned char* const line = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
  CHECK_THROWS_WITH(set.begin(host(), s, n, std::span(line, bytes - 257)),
                    containing("group 0: the step's workspace leaves"));
  CHECK_THROWS_WITH(set.begin(host(), s, n, std::span(line, 600)), containing("a step of 3 sequences needs more"));
  const kinds::step_type begun = set.begin(host(), s, n, std::span(line, bytes - 256));
  for (const step& of : begun) {
    CHECK((of.scratch == begun[0].scratch && of.scratch_bytes == begun[0].scratch_bytes));
    CHECK((of.size == 3 && of.kv_rows == 5 && of.items[2].kv_row == 3 && of.items[2].new_tokens == 2));
    CHECK(reinterpret_cast<const unsigned char*>(of.items + 3) <= begun[0].scratch);
    CHECK(begun[0].scratch + of.scratch_bytes == line + bytes - 256);
  }
  CHECK_THROWS_WITH(set.begin(host(), s, n, memory), containing("group 0: begin: step 1 is begun"));
  CHECK_THROWS_WITH(set.commit(begun, std::vector{3, 0, 3}), containing("group 0: sequence 2 accepts 3 of 2"));
  kinds::step_type stale = begun;
  stale[3].serial = 7;
  CHECK_THROWS_WITH(set.commit(stale), containing("group 3: step 7 is committed"));
  CHECK(set.group<0>().length(s[0]) == 0);
  set.commit(begun, std::vector{2, 0, 1});
  CHECK((set.length(s[0]) == 2 && set.group<3>().length(s[2]) == 1));
}

TEST_CASE("cache_set: what one group refuses to begin is begun in none", "[cache]") {
  using whole = policy<paged<4>, fp32<>>;
  test_memory m;
  cache_set<whole, ring<fp32<>>> set({.sequences = 2, .tokens = 60, .max_step = 3}, from(m),
                                     {.layers = {0}, .kv_heads = 1, .policy = whole(8)},
                                     {.layers = {1}, .kv_heads = 1, .policy = ring<fp32<>>(8, window<>(5))});
  const sequence s = set.open();
  set.reserve(s, 10);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
  const int too_long[] = {4}, right[] = {3};
  CHECK_THROWS_WITH(set.begin(host(), {&s, 1}, too_long, workspace),
                    containing("group 1: sequence 0 appends 4 tokens in one step; max_step is 3"));
  set.commit(set.begin(host(), {&s, 1}, right, workspace));
  CHECK(set.length(s) == 3);
}

TEST_CASE("cache_set: every head of every layer is kept once", "[cache]") {
  using kv = policy<contiguous, fp16<>>;
  test_memory m;
  const auto make = [&](std::vector<layer_part> a, std::vector<layer_part> b, int heads = 1, int dim = 8) {
    cache_set<kv, kv> set({.tokens = 8}, from(m), {.layers = std::move(a), .kv_heads = heads, .policy = kv(8)},
                          {.layers = std::move(b), .kv_heads = 1, .policy = kv(dim)});
    return set.layers();
  };
  CHECK(make({1, 3}, {2, 0}) == 4);
  CHECK(make({1, 0}, {{0, 2}}, 2) == 2);
  CHECK_THROWS_WITH(make({}, {0}), "kvilt: group 0 has no layers; at least 1 is needed");
  CHECK_THROWS_WITH(make({0}, {2}), "kvilt: layer 1 is in no group, but layer 2 is in group 1");
  CHECK_THROWS_WITH(make({3}, {1}), containing("layer 0 is in no group"));
  CHECK_THROWS_WITH(make({0, 1}, {1}), "kvilt: layer 1: KV head 0 is in group 0 and in group 1");
  CHECK_THROWS_WITH(make({0, 1}, {{1, 1}}, 2), "kvilt: layer 1: KV head 1 is in group 0 and in group 1");
  CHECK_THROWS_WITH(make({0, 1}, {{1, 3}}, 2), "kvilt: layer 1: KV head 2 is in no group");
  CHECK_THROWS_WITH(make({0, 1}, {{1, -1}}), containing("neither may be negative"));
  CHECK_THROWS_WITH(make({-1}, {0}), containing("neither may be negative"));
  CHECK_THROWS_WITH(make({0}, {1}, 0), "kvilt: group 0 has 0 KV heads; at least 1 is needed");
  CHECK_THROWS_WITH(make({0}, {{0, 1}}, 1, 16), containing("layer 0: rows have 16 and 16 numbers in group 1"));
  CHECK(make({0}, {1}, 1, 16) == 2);
  CHECK_THROWS_WITH(make({0}, {1}, 1, 12), containing("group 1: K rows have 12 numbers"));
  CHECK(m.bytes() == 0);
}

TEST_CASE("cache_set: a group's layers get their static scales", "[cache]") {
  using handed = policy<contiguous, fp16<>, e4m3_static<>>;
  using set_type = cache_set<outlier, handed>;
  const layer_group<outlier> plain{.layers = {0}, .kv_heads = 1, .policy = outlier(fp16<>(k_dim), fp16<>(v_dim))};
  const layer_group<handed> scaled{
      .layers = {2, 1}, .kv_heads = 1, .policy = handed(fp16<>(k_dim), e4m3_static<>(v_dim))};
  set_type set({.sequences = 1, .tokens = 4}, host_memory(), plain, scaled);
  const float scales[] = {0.5f, 0.25f}, wrong = -1;
  for (int layer = 0; layer < 2; ++layer) set.set_scales<1>(layer, {}, {scales + layer, 1});
  CHECK_THROWS_WITH(set.set_scales<1>(0, {}, {&wrong, 1}), containing("group 1: V's static scale of head 0 is -1"));
  const sequence s[] = {set.open()};
  const int one[] = {1};
  set.reserve(s[0], 1);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
  const auto step = set.begin(host(), s, one, workspace);
  std::vector<float> k(k_dim, 1.0f), v(v_dim, 2.0f), q(k_dim, 1.0f);
  for (int layer = 0; layer < set.layers(); ++layer)
    set.visit(layer, step, [&](const auto& view, const auto& part, const head_range& heads) {
      append(host(), view, part, heads.kv(packed_rows(k.data(), 1, k_dim)), heads.kv(packed_rows(v.data(), 1, v_dim)));
    });
  // 2 at a scale of 0.5 is 4, at 0.25 is 8.
  CHECK(from_e4m3(set.view<1>(0).first().v_row({0, 0, 1}, 0).codes[0]) == 4);
  CHECK(from_e4m3(set.view<1>(1).first().v_row({0, 0, 1}, 0).codes[0]) == 8);
}

TEST_CASE("cache_set: a text that is copied from set to set is adopted by all groups or by none", "[cache]") {
  test_memory source_memory(0xff), target_memory(0xff);
  kinds source = make_set(source_memory), target = make_set(target_memory);
  const sequence s[] = {source.open()}, t[] = {target.open()};
  constexpr int count[] = {5};
  std::vector<unsigned char> workspace(source.workspace_bytes(host(), 1));
  const auto outputs = [&](kinds& set, const sequence(&name)[1]) {
    set.reserve(name[0], count[0]);
    const auto step = set.begin(host(), name, count, workspace);
    std::vector<float> all;
    for (int layer = 0; layer < layers; ++layer) {
      tensors x(std::uint64_t(set.length(name[0])), layer, count[0]);
      forward(set, step, layer, x);
      all.insert(all.end(), x.out.begin(), x.out.end());
    }
    set.commit(step);
    return all;
  };
  for (int i = 0; i < 3; ++i) outputs(source, s);
  const auto n = source.holds(s[0]);
  target.reserve(t[0], 15);
  const auto copy = [&](const auto& from, const auto& to, const lengths& held) {
    const row_copy rows{from.row(s[0]), held, to.row(t[0]), held, {0, 15}};
    for (int layer = 0; layer < from.shape().layers; ++layer)
      copy_rows(host(), from.view(layer), to.view(layer), {&rows, 1}, workspace);
  };
  copy(source.group<0>(), target.group<0>(), n[0]);
  copy(source.group<1>(), target.group<1>(), n[1]);
  copy(source.group<2>(), target.group<2>(), n[2]);
  copy(source.group<3>(), target.group<3>(), n[3]);
  auto wrong = n;
  wrong[3] = {41, 41, 41, 41};
  CHECK_THROWS_WITH(target.adopt(t[0], wrong), containing("group 3: sequence"));
  CHECK(target.length(t[0]) == 0);
  target.adopt(t[0], n);
  CHECK(target.length(t[0]) == 15);
  for (int i = 0; i < 2; ++i) CHECK(support::same_bits(outputs(target, t), outputs(source, s)));
}

TEST_CASE("cache_set: errors inside visit name the layer and the group", "[cache]") {
  test_memory m;
  kinds set = make_set(m);
  const sequence s = set.open();
  set.reserve(s, 1);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
  const int n[] = {1};
  const auto begun = set.begin(host(), {&s, 1}, n, workspace);
  tensors t(1, 3, 1);
  const auto wrong_heads = [&](const auto&, const step&, const head_range& heads) {
    heads.kv(packed_rows(t.k.data(), 2, k_dim));
  };
  CHECK_THROWS_WITH(set.visit(4, begun, wrong_heads), "kvilt: layer 4, group 0: K or V has 2 heads; the layer has 3");
  const auto wrong_rows = [&](const auto& view, const step& part, const head_range& heads) {
    append(host(), view, part, heads.kv(t.v_rows()), heads.kv(t.v_rows()));
  };
  CHECK_THROWS_WITH(set.visit(3, begun, wrong_rows), containing("kvilt: layer 3, group 2: rows of K have 8"));
  const auto wrong_queries = [&](const auto&, const step&, const head_range& heads) {
    heads.queries(packed_rows(t.q.data(), 4, k_dim));
  };
  CHECK_THROWS_WITH(set.visit(3, begun, wrong_queries), containing("4 query heads over 3 KV heads"));
  const auto null_rows = [&](const auto& view, const step& part, const head_range& heads) {
    append(host(), view, part, heads.kv(rows<float>{nullptr, 3 * k_dim, k_dim, 3, k_dim}), heads.kv(t.v_rows()));
  };
  CHECK_THROWS_WITH(set.visit(3, begun, null_rows), containing("K or V of 1 rows is null"));
  CHECK_THROWS_WITH(set.visit(5, begun, wrong_heads), containing("layer 5; the set has layers 0 to 4"));
  CHECK_THROWS_WITH(set.visit(-1, begun, wrong_heads), containing("layer -1; the set has layers 0 to 4"));
  CHECK_THROWS_WITH(set.view<1>(2), containing("group 1: layer 2; the cache has layers 0 to 1"));
  CHECK(head_range{1, 1, 3}.queries(natural_lse{}, 6).data == nullptr);
  CHECK(head_range{1, 1, 3}.kv(rows<float>{nullptr, 3 * k_dim, k_dim, 3, k_dim}).data == nullptr);
}

TEST_CASE("cache_set: a hundred layers of two kinds are two groups", "[cache]") {
  using near = ring<fp16<>>;
  using far = policy<paged<16>, fp16<>>;
  layer_group<near> near_layers{.layers = {}, .kv_heads = 1, .policy = near(8, window<>(4))};
  layer_group<far> far_layers{.layers = {}, .kv_heads = 1, .policy = far(8)};
  for (int layer = 0; layer < 100; ++layer) (layer % 6 == 5 ? far_layers.layers : near_layers.layers).push_back(layer);
  test_memory m;
  cache_set<near, far> set({.tokens = 32}, from(m), near_layers, far_layers);
  const sequence s = set.open();
  set.reserve(s, 1);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
  const int n[] = {1};
  const auto begun = set.begin(host(), {&s, 1}, n, workspace);
  std::map<const unsigned char*, int> seen;
  for (int layer = 0; layer < 100; ++layer)
    set.visit(layer, begun, [&](const auto& view, const step& part, const head_range& heads) {
      const bool is_far = !std::remove_cvref_t<decltype(view.first())>::retention_type::slides;
      CHECK((is_far == (layer % 6 == 5) && part.size == 1 && heads.count == 1 && heads.total == 1));
      ++seen[view.first().planes.k_codes.base];
    });
  CHECK(seen.size() == 100);
  set.commit(begun);
  CHECK((set.layers() == 100 && set.length(s) == 1));
}

TEST_CASE("cache_set: every verb refuses a set that has been moved from", "[cache]") {
  test_memory m;
  kinds set = make_set(m);
  const sequence s = set.open();
  set.reserve(s, 2);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
  const int n[] = {1};
  const auto begun = set.begin(host(), {&s, 1}, n, workspace);
  kinds to = std::move(set);
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_AS(set.open(), out_of_pages);
  CHECK_THROWS_AS(set.reserve(s, 1), invalid_argument);
  CHECK_THROWS_AS(set.commit(begun), invalid_argument);
  CHECK_THROWS_AS(set.visit(0, begun, [](const auto&...) {}), invalid_argument);
  CHECK_THROWS_AS(set.view<0>(0), invalid_argument);
  CHECK((set.layers() == 0 && set.free_sequences() == 0 && set.free_tokens() == 0));
  // NOLINTEND(bugprone-use-after-move)
  to.commit(begun);
  CHECK(to.length(s) == 1);
}

TEST_CASE("cache_set: KV heads of a layer are counted in 31 bits", "[cache]") {
  constexpr int most = std::numeric_limits<int>::max();
  using kv = policy<contiguous, fp16<>>;
  const layer_group<kv> many{{0}, most, kv(16)}, more{{layer_part(0, most)}, 1, kv(16)};
  CHECK_THROWS_WITH(plan_bytes({.tokens = 16}, many, more), containing("layer 0 has 2147483648 KV heads"));
}

TEST_CASE("cache_set: a range of heads that a layer does not have is refused", "[cache]") {
  const rows<float> x{nullptr, 16, 8, 2, 8};
  for (const head_range wrong : {head_range{}, head_range{0, 0, 2}, head_range{-1, 1, 2}, head_range{1, 2, 2},
                                 head_range{2, 1, 2}, head_range{0, 1, -2}, head_range{0, 3, 2}}) {
    const std::string text = " KV heads from head " + std::to_string(wrong.first) + " on of ";
    CHECK_THROWS_WITH(wrong.kv(x), containing(text));
    CHECK_THROWS_WITH(wrong.queries(x), containing(text));
    float lse = 0;
    CHECK_THROWS_WITH(wrong.queries(natural_lse{&lse, 2}, 2), containing(text));
  }
  CHECK(head_range{1, 1, 2}.kv(x).heads == 1);
}
