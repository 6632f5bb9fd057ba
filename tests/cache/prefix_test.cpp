#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/sanitized.hpp"
#include "support/tensors.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace {

using namespace kvilt;
using namespace support;

constexpr int layers = 2, heads = 2, k_dim = 32, v_dim = 16;

// A token's rows depend on all of the text up to it, as a model's do.
std::uint64_t state_after(std::span<const token_id> text) {
  std::uint64_t state = 7;
  for (const token_id t : text) state = mixed({state, std::uint64_t(t)});
  return state;
}
std::vector<float> row_of(std::uint64_t state, int layer, int head, int which, int dim) {
  normal_numbers numbers(mixed({state, std::uint64_t(layer), std::uint64_t(head), std::uint64_t(which)}));
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (float& x : row) x = numbers.next();
  return row;
}

// A record as a policy's words say that it is kept: `rows` are those of its tokens.
template <class Rotation, class Exact, class Body>
std::vector<unsigned char> record(const Exact* exact, const Body& body, std::vector<std::vector<float>> rows) {
  std::vector<float> all;
  for (std::vector<float>& row : rows) {
    Rotation::forward(row.data(), body.dim());
    if (exact) {
      std::vector<unsigned char> codes(std::size_t(exact->code_bytes())), params(std::size_t(exact->param_bytes()) + 1);
      const row_ref r{codes.data(), params.data(), 0};
      exact->encode(row.data(), r);
      decode_row(*exact, r, row.data());
    }
    all.insert(all.end(), row.begin(), row.end());
  }
  std::vector<unsigned char> bytes(std::size_t(body.code_bytes() + body.param_bytes()) + 1);
  body.encode(all.data(), row_ref{bytes.data(), bytes.data() + body.code_bytes(), 0});
  bytes.pop_back();
  return bytes;
}

// A cache that keeps prefixes and, where answers do not depend on what is in 16 bit, one in which nothing is shared: what
// the first has of others the second computes.
template <class Policy>
class pair_of_caches {
 public:
  static constexpr bool has_twin = Policy::tail == 0;
  static constexpr int longest = Policy::tile > 1 ? 150 : 60, max_step = longest / 10;

  pair_of_caches(const Policy& policy, idx tokens, int sequences)
      : policy_(policy),
        shared_({.layers = layers,
                 .kv_heads = heads,
                 .sequences = sequences,
                 .tokens = tokens,
                 .max_length = longest,
                 .max_step = max_step,
                 .prefixes = true},
                kvilt::memory<memory_space::host>::from(memory_), policy),
        alone_({.layers = layers,
                .kv_heads = heads,
                .sequences = sequences,
                .tokens = 100 * sequences,
                .max_length = longest,
                .max_step = longest},
               host_memory(), policy) {}

  struct line {
    sequence name, twin;
    std::vector<token_id> text;
    idx named = 0;
    std::vector<std::uint64_t> keys;
  };
  cache<Policy>& shared() { return shared_; }
  std::vector<line>& lines() { return lines_; }
  line& back() { return lines_.back(); }
  int page_rows() const { return detail::arrangement<Policy>(policy_, shared_.shape()).page_rows; }

  // Returns how many tokens were there.
  idx open(std::span<const token_id> prompt, std::vector<std::uint64_t> keys = {}, idx computed = 1) {
    const opened_sequence o = shared_.open(prompt, {.keys = keys, .computed = computed});
    lines_.push_back({o.name, alone_.open(), {prompt.begin(), prompt.begin() + o.tokens}, o.tokens, keys});
    REQUIRE(shared_.length(o.name) == o.tokens);
    repeat(back());
    return o.tokens;
  }
  void close(std::size_t which) {
    shared_.close(lines_[which].name), alone_.close(lines_[which].twin);
    lines_.erase(lines_.begin() + std::ptrdiff_t(which));
  }
  void fork(std::size_t which) {
    line child = lines_[which];
    child.name = shared_.fork(host(), child.name), child.twin = alone_.open();
    lines_.push_back(child);
    repeat(back());
  }
  void truncate(std::size_t which, idx length) {
    line& l = lines_[which];
    shared_.truncate(l.name, length);
    if constexpr (has_twin) alone_.truncate(l.twin, length);
    l.text.resize(std::size_t(length)), l.named = std::min(l.named, length);
  }
  void reorder(std::span<const int> parents) {
    std::vector<sequence> names;
    for (const line& l : lines_) names.push_back(l.name);
    shared_.reorder(host(), names, parents);
    const std::vector<line> before = lines_;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const line& parent = before[std::size_t(parents[i])];
      lines_[i].text = parent.text, lines_[i].named = parent.named, lines_[i].keys = parent.keys;
      alone_.truncate(lines_[i].twin, 0);
      repeat(lines_[i]);
    }
  }
  // Appends, and takes back all but `accepted`; room is reserved.
  void append(std::size_t which, std::span<const token_id> tokens, int accepted) {
    line& l = lines_[which];
    const std::vector<float> got = step(shared_, l.name, l.text, tokens, accepted, true);
    if constexpr (has_twin) {
      alone_.reserve(l.twin, idx(tokens.size()));
      if (!same_bits(got, step(alone_, l.twin, l.text, tokens, accepted, true))) FAIL("another answer than alone");
    }
    l.text.insert(l.text.end(), tokens.begin(), tokens.begin() + accepted);
  }
  void append(std::size_t which, std::span<const token_id> tokens) {
    in_chunks(idx(tokens.size()), max_step, [&](idx first, int count) {
      shared_.reserve(lines_[which].name, count);
      append(which, tokens.subspan(std::size_t(first), std::size_t(count)), count);
    });
  }
  void name(std::size_t which, idx count) {
    line& l = lines_[which];
    shared_.name(l.name, std::span(l.text).subspan(std::size_t(l.named), std::size_t(count)));
    l.named += count;
  }
  void fail_step(std::size_t which, std::span<const token_id> tokens) {
    line& l = lines_[which];
    (void)step(shared_, l.name, l.text, tokens, -1, false);
    shared_.cancel();
  }

  // Which page each entry of a sequence's table names; -1: none.
  std::vector<page_id> table(const line& l) const {
    std::vector<page_id> all;
    const auto& layout = body(shared_.view(0)).layout;
    for (idx slot = 0; slot < shared_.bytes().table_width * page_rows(); slot += page_rows())
      all.push_back(layout.locate(shared_.row(l.name), 0, slot).page);
    return all;
  }
  // No page is lost or counted twice, and every row of every sequence is the one that its text says.
  void check() {
    const page_counts n = shared_.pages();
    std::set<page_id> used;
    for (const line& l : lines_)
      for (const page_id p : table(l)) used.insert(p);
    used.erase(-1);
    if (n.free + n.used + n.cached != n.total || n.used != idx(used.size()) ||
        shared_.free_pages() != n.free + n.cached || n.total != shared_.bytes().body_pages)
      FAIL(n.free << " pages are free, " << n.used << " used, " << n.cached << " cached of " << n.total << "; "
                  << used.size() << " are in tables");
    for (const line& l : lines_) check_rows(l);
  }

 private:
  template <class View>
  static auto body(const View& view) {
    typename Policy::body_segment found;
    view.each([&](const auto& seg) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(seg)>, typename Policy::body_segment>) found = seg;
    });
    return found;
  }
  void repeat(line& l) {
    if constexpr (has_twin) {
      alone_.reserve(l.twin, idx(l.text.size()));
      (void)step(alone_, l.twin, {}, l.text, int(l.text.size()), false);
    }
  }
  // The step's answers, in all layers. accepted < 0: it is left open.
  static std::vector<float> step(cache<Policy>& to, sequence s, std::span<const token_id> before,
                                 std::span<const token_id> tokens, int accepted, bool with_answers) {
    const int count = int(tokens.size());
    std::vector<unsigned char> workspace(to.workspace_bytes(host(), 1));
    const kvilt::step begun = to.begin(host(), {&s, 1}, {&count, 1}, workspace);
    std::vector<std::uint64_t> states;
    std::uint64_t state = state_after(before);
    for (const token_id t : tokens) states.push_back(state = mixed({state, std::uint64_t(t)}));
    std::vector<float> answers;
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<float> k, v, q, out(std::size_t(count * heads * v_dim), NAN);
      for (const std::uint64_t st : states)
        for (int head = 0; head < heads; ++head) {
          std::ranges::copy(row_of(st, layer, head, 0, k_dim), std::back_inserter(k));
          std::ranges::copy(row_of(st, layer, head, 1, v_dim), std::back_inserter(v));
          std::ranges::copy(row_of(st, layer, head, 2, k_dim), std::back_inserter(q));
        }
      kvilt::append(host(), to.view(layer), begun, packed_rows<const float>(k.data(), heads, k_dim),
                    packed_rows<const float>(v.data(), heads, v_dim));
      if (!with_answers) continue;
      attention{causal{}}(host(), to.view(layer), begun, packed_rows<const float>(q.data(), heads, k_dim),
                          packed_rows(out.data(), heads, v_dim));
      answers.insert(answers.end(), out.begin(), out.end());
    }
    if (accepted >= 0) to.commit(begun, {&accepted, 1});
    return answers;
  }

  void check_rows(const line& l) {
    const int none = 0;
    std::vector<unsigned char> workspace(shared_.workspace_bytes(host(), 1));
    const kvilt::step empty = shared_.begin(host(), {&l.name, 1}, {&none, 1}, workspace);
    std::vector<std::uint64_t> states;
    std::uint64_t state = state_after({});
    for (const token_id t : l.text) states.push_back(state = mixed({state, std::uint64_t(t)}));
    idx rows = 0;
    for (int layer = 0; layer < layers; ++layer)
      shared_.view(layer).each([&](const auto& seg) {
        using segment_type = std::remove_cvref_t<decltype(seg)>;
        constexpr bool from_tail = std::is_same_v<segment_type, typename Policy::body_segment> && Policy::tail > 0;
        const auto k_exact = policy_.k_exact();
        const auto v_exact = policy_.v_exact();
        const idx count = seg.retention.count(empty.items[0].n, empty.items[0].sequence, 0);
        rows += count;
        for (int head = 0; head < heads; ++head)
          for (idx i = 0; i < count; ++i) {
            const kept_row kept = seg.retention.at(empty.items[0].n, empty.items[0].sequence, head, i);
            const place p = seg.layout.locate(empty.items[0].sequence, head, kept.slot);
            const auto same = [&](const auto& format, const auto& exact, auto rotation, row_ref r, int which) {
              const int tile = std::remove_cvref_t<decltype(format)>::rows;
              if (p.row % tile != 0) return true;
              std::vector<std::vector<float>> wanted;
              for (int t = 0; t < tile; ++t)
                wanted.push_back(row_of(states[std::size_t(kept.position + t)], layer, head, which, format.dim()));
              const std::vector<unsigned char> bytes =
                  record<decltype(rotation)>(from_tail ? &exact : nullptr, format, wanted);
              return std::equal(bytes.begin(), bytes.begin() + format.code_bytes(), r.codes) &&
                     std::equal(bytes.begin() + format.code_bytes(), bytes.end(), r.params);
            };
            using view_type = view_of<memory_space::host, Policy>;
            if (!same(seg.k, k_exact, typename view_type::k_rotation(), seg.k_row(p, head), 0) ||
                !same(seg.v, v_exact, typename view_type::v_rotation(), seg.v_row(p, head), 1))
              FAIL("token " << kept.position << " of " << l.text.size() << ", layer " << layer << ", head " << head
                            << ", page " << p.page << ": other bytes");
          }
      });
    shared_.cancel();
    if (rows != layers * idx(l.text.size())) FAIL(rows << " rows of " << l.text.size() << " tokens");
  }

  Policy policy_;
  test_memory memory_{0xff};
  cache<Policy> shared_, alone_;
  std::vector<line> lines_;
};

const auto ones = policy<paged<1>, q8<>, fp16<>>(q8<>(k_dim), fp16<>(v_dim));
const auto threes = policy<paged<3>, rotated<q8<>>, q4<>>(rotated<q8<>>(k_dim), q4<>(v_dim));
const auto run_time = policy<paged<>, fp16<>, q8<>>(fp16<>(k_dim), q8<>(v_dim), {}, paged<>(4));
const auto tailed = policy<paged<3>, rotated<q4<>>, q8<>, keep_all, 0, 5>(rotated<q4<>>(k_dim), q8<>(v_dim));
const auto tiles = policy<paged<32>, q4_channel<>, q4<>, keep_all, 0, 32>(q4_channel<>(k_dim), q4<>(v_dim));

template <class Body>
void each_policy(Body body) {
  body(ones, 40), body(threes, 45), body(run_time, 48), body(tailed, 45), body(tiles, 64);
}

std::vector<token_id> text_of(int count, int which = 0, int alike = 0) {
  std::vector<token_id> text;
  for (int i = 0; i < count; ++i)
    text.push_back(token_id(mixed({std::uint64_t(i < alike ? 0 : which), std::uint64_t(i)}) % 1000));
  return text;
}

// Any operation in any order on few texts that begin alike.
template <class Policy>
class walk {
 public:
  walk(const Policy& policy, idx tokens, std::uint64_t seed) : pair_(policy, tokens, 4), dice_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      const int kind = dice_.below(14);
      INFO("operation " << i << " (" << kind << ")");
      const std::size_t n = pair_.lines().size(), which = n ? std::size_t(dice_.below(int(n))) : 0;
      if (kind < 3)
        open();
      else if (n == 0)
        continue;
      else if (kind < 4)
        pair_.close(which);
      else if (kind < 5)
        attempt([&] { pair_.fork(which); });
      else if (kind < 6)
        reorder();
      else if (kind < 7)
        truncate(which);
      else if (kind < 9)
        pair_.name(which, dice_.below(3) ? unnamed(which) : dice_.below(int(unnamed(which)) + 1));
      else
        append(which);
      pair_.check();
    }
    hits += pair_.shared().prefixes().hit, evicted += pair_.shared().prefixes().evicted_pages;
    while (!pair_.lines().empty()) pair_.close(0);
    pair_.check();
  }

  idx hits = 0, evicted = 0, refused = 0;

 private:
  idx unnamed(std::size_t which) { return idx(pair_.lines()[which].text.size()) - pair_.lines()[which].named; }
  // What lacks pages or sequences changes nothing.
  template <class Operation>
  void attempt(Operation operation) {
    const page_counts before = pair_.shared().pages();
    std::vector<std::vector<page_id>> tables;
    for (const auto& l : pair_.lines()) tables.push_back(pair_.table(l));
    try {
      operation();
    } catch (const out_of_pages&) {
      ++refused;
      std::vector<std::vector<page_id>> after;
      for (const auto& l : pair_.lines()) after.push_back(pair_.table(l));
      if (!(pair_.shared().pages() == before) || after != tables) FAIL("changed by what it refused");
    }
  }
  void open() {
    const std::vector<token_id> prompt =
        text_of(dice_.below(longest - 10), dice_.below(3), longest / (2 + dice_.below(2)));
    std::vector<std::uint64_t> keys;
    if (dice_.below(4) == 0) keys.push_back(1);
    const idx computed = dice_.below(3);
    attempt([&] {
      const idx there = pair_.shared().cached_tokens(prompt, {.keys = keys, .computed = computed});
      if (pair_.open(prompt, keys, computed) != there || there % pair_.page_rows() != 0 ||
          there > std::max<idx>(idx(prompt.size()) - computed, 0))
        FAIL(there << " tokens of a prompt of " << prompt.size() << " are there, others when it is opened");
    });
  }
  void reorder() {
    std::vector<int> parents;
    for (std::size_t i = 0; i < pair_.lines().size(); ++i) parents.push_back(dice_.below(int(pair_.lines().size())));
    attempt([&] { pair_.reorder(parents); });
  }
  // A tile is kept whole.
  void truncate(std::size_t which) {
    const idx length = dice_.below(int(pair_.lines()[which].text.size()) + 1);
    try {
      pair_.truncate(which, length);
    } catch (const invalid_argument&) {
      REQUIRE(Policy::tile > 1);
    }
  }
  void append(std::size_t which) {
    const auto& l = pair_.lines()[which];
    const int count = int(std::min<idx>(dice_.below(pair_.max_step + 1), longest - idx(l.text.size())));
    const auto text = text_of(longest, dice_.below(3), longest / 2);
    const auto tokens = std::span(text).subspan(l.text.size(), std::size_t(count));
    bool room = false;
    attempt([&] {
      pair_.shared().reserve(l.name, count);
      room = true;
    });
    if (!room) return;
    if (dice_.below(4) == 0) pair_.fail_step(which, tokens);
    pair_.append(which, tokens, dice_.below(3) ? count : dice_.below(count + 1));
  }

  static constexpr int longest = pair_of_caches<Policy>::longest;
  pair_of_caches<Policy> pair_;
  dice dice_;
};

}  // namespace

TEST_CASE("prefix: any operations, every row what its text says and every page accounted for", "[cache]") {
  each_policy([](const auto& policy, idx tokens) {
    idx hits = 0, evicted = 0, refused = 0;
    // NOTE: with the first two seeds no policy of tiles evicts a page.
    for (std::uint64_t seed = support::is_sanitized ? 3 : 1; seed <= 4; ++seed) {
      INFO("page " << policy.layout.page_rows({}) << ", tail " << policy.tail << ", seed " << seed);
      walk run(policy, tokens, seed);
      run.run(policy.tile > 1 ? 1000 : 350);  // tiles leave the tail late
      hits += run.hits, evicted += run.evicted, refused += run.refused;
    }
    INFO(hits << " tokens found, " << evicted << " pages evicted, " << refused << " times refused");
    CHECK((hits > 100 && evicted > 0 && refused > 5));
  });
}

TEST_CASE("prefix: a prompt finds the whole pages of another that begins alike, and no others", "[cache]") {
  pair_of_caches pair(run_time, 200, 8);
  const std::vector<token_id> text = text_of(30);
  CHECK(pair.open(text) == 0);
  pair.append(0, text);
  CHECK(pair.shared().cached_tokens(text) == 0);
  pair.name(0, 10);
  CHECK(pair.shared().cached_tokens(text) == 8);
  pair.name(0, 20);
  CHECK(pair.open(text) == 28);
  CHECK(pair.open(std::span(text).first(28)) == 24);  // one token is computed
  CHECK(pair.open(std::span(text).first(28), {}, 0) == 28);
  CHECK(pair.open(std::span(text).first(28), {}, 9) == 16);
  CHECK(pair.open(text, {1}) == 0);
  CHECK(pair.open(text_of(30, 1, 14)) == 12);
  CHECK(pair.open(std::span(text).subspan(4)) == 0);
  CHECK(pair.shared().pages().used == 8);
  pair.check();
  const prefix_statistics found = pair.shared().prefixes();
  CHECK((found.hit == 28 + 24 + 28 + 16 + 12 && found.stored_pages == 7 && found.copied == 0));
  CHECK(found.missed_granularity == 0 + 3 + 0 + 3 + 2);
}

TEST_CASE("prefix: what a closed sequence had stays until its pages are needed", "[cache]") {
  pair_of_caches pair(threes, 45, 3);
  const std::vector<token_id> text = text_of(30), other = text_of(45, 1);
  pair.open(text);
  pair.append(0, text);
  pair.name(0, 29);
  pair.close(0);
  CHECK((pair.shared().pages() == page_counts{15, 6, 0, 9, 0, 10}));
  CHECK((pair.shared().free_pages() == 15 && pair.shared().free_tokens() == 45));
  pair.open(other);
  pair.append(0, std::span(other).first(24));  // two of the nine are gone, the last ones
  CHECK(pair.shared().cached_tokens(text) == 21);
  CHECK(pair.shared().prefixes().evicted_pages == 2);
  CHECK(pair.open(text) == 21);
  pair.check();
  CHECK_THROWS_AS(pair.shared().reserve(pair.back().name, 1), out_of_pages);
  pair.check();
}

TEST_CASE("prefix: two that compute the same keep it once", "[cache]") {
  pair_of_caches pair(threes, 60, 3);
  const std::vector<token_id> text = text_of(14);
  pair.open(text), pair.open(text);
  pair.append(0, text), pair.append(1, text);
  CHECK(pair.shared().pages().used == 10);
  pair.name(0, 14), pair.name(1, 14);
  CHECK(pair.shared().pages().used == 6);
  pair.check();
  pair.append(0, text_of(3, 1)), pair.append(1, text_of(3, 2));
  pair.check();
}

TEST_CASE("prefix: a page that may be found is not written", "[cache]") {
  pair_of_caches pair(threes, 60, 3);
  const std::vector<token_id> text = text_of(15);
  pair.open(text);
  pair.append(0, text);
  pair.name(0, 15);
  pair.truncate(0, 10);
  CHECK(pair.shared().missing_pages(pair.back().name, 1) == 1);
  pair.append(0, text_of(5, 1));
  CHECK(pair.open(text) == 12);
  CHECK(pair.shared().cached_tokens(text, {.computed = 0}) == 15);
  pair.check();
  // What is appended instead is named in its turn.
  pair.name(0, 5);
  std::vector<token_id> changed(text.begin(), text.begin() + 10);
  for (const token_id t : text_of(5, 1)) changed.push_back(t);
  CHECK(pair.shared().cached_tokens(changed, {.computed = 0}) == 15);
  pair.check();
}

TEST_CASE("prefix: a fork's pages are named with its parent's, and those that it shared without a name are not",
          "[cache]") {
  pair_of_caches pair(threes, 90, 3);
  const std::vector<token_id> text = text_of(15);
  pair.open(text);
  pair.append(0, text);
  pair.fork(0);
  pair.name(0, 15);
  CHECK(pair.shared().cached_tokens(text, {.computed = 0}) == 0);
  pair.close(1);
  pair.append(0, text_of(3, 1));
  pair.name(0, 3);
  CHECK(pair.shared().cached_tokens(text, {.computed = 0}) == 15);
  pair.fork(0);
  pair.append(1, text_of(4, 2));
  pair.name(1, 4);
  pair.close(0);
  std::vector<token_id> longer = pair.back().text;
  CHECK(pair.shared().cached_tokens(longer, {.computed = 0}) == 21);
  pair.check();
}

TEST_CASE("prefix: a tail holds back what is not in the body", "[cache]") {
  pair_of_caches pair(tailed, 60, 3);
  const std::vector<token_id> text = text_of(18);
  pair.open(text);
  pair.append(0, text);
  pair.name(0, 18);
  // Steps of 6: the last began at 12 tokens, of which 4 were in the tail while its first query ran.
  CHECK(pair.shared().cached_tokens(text) == 6);
  pair.append(0, text_of(1, 1));
  pair.close(0);
  CHECK(pair.open(text) == 12);
  pair.append(0, std::span(text).subspan(12));
  pair.check();
}

TEST_CASE("prefix: who names nothing has nothing cached", "[cache]") {
  pair_of_caches pair(threes, 60, 3);
  const std::vector<token_id> text = text_of(15);
  pair.open(text);
  pair.append(0, text);
  pair.close(0);
  CHECK(pair.shared().pages().cached == 0);
  const sequence s = pair.shared().open();
  CHECK_THROWS_WITH(pair.shared().name(s, {}), containing("is named; it was opened without a prompt"));
  cache<std::remove_const_t<decltype(threes)>> plain({.layers = 1, .kv_heads = 1, .tokens = 30}, host_memory(), threes);
  CHECK_THROWS_WITH(plain.open(text), containing("whose shape does not say `prefixes`"));
  CHECK_THROWS_WITH(plain.prefixes(), containing("whose shape does not say `prefixes`"));
}

TEST_CASE("prefix: what is named and what is asked is counted", "[cache]") {
  cache<std::remove_const_t<decltype(threes)>> kv(
      {.layers = 1, .kv_heads = 1, .sequences = 3, .tokens = 60, .max_step = 20, .prefixes = true}, host_memory(),
      threes);
  const std::vector<token_id> text = text_of(15);
  std::vector<unsigned char> workspace(kv.workspace_bytes(host(), 1));
  const sequence first = kv.open(text).name;
  kv.reserve(first, 15);
  const int tokens = 15;
  kv.commit(kv.begin(host(), {&first, 1}, {&tokens, 1}, workspace));
  CHECK(kv.name(first, std::span(text).first(8)) == 6);  // of pages of 3
  const sequence fork = kv.fork(host(), first);
  CHECK(kv.name(first, std::span(text).subspan(8)) == 6);  // the fork has the rest too
  const idx before = kv.prefixes().asked;
  kv.close(kv.open(text, {.asked = false}).name);
  CHECK((kv.prefixes().asked == before && kv.prefixes().hit == 0));
  kv.close(kv.open(text).name);
  CHECK((kv.prefixes().asked == before + 15 && kv.prefixes().hit == 6));
  kv.close(fork);
  CHECK(kv.name(first, {}) == 15);
}

TEST_CASE("prefix: names what is wrong, and changes nothing", "[cache]") {
  pair_of_caches pair(threes, 60, 1);
  const std::vector<token_id> text = text_of(15);
  auto& kv = pair.shared();
  CHECK_THROWS_WITH(kv.open(text, {.priority = 8}), containing("priority 8"));
  CHECK_THROWS_WITH(kv.open(text, {.priority = 1}), containing("a prompt has priority 1; pages of a cache"));
  CHECK_THROWS_WITH(kv.open(text, {.computed = -1}), containing("the last -1 tokens"));
  CHECK(kv.free_sequences() == 1);
  pair.open(text);
  CHECK_THROWS_AS(kv.open(text), out_of_pages);
  pair.append(0, std::span(text).first(10));
  CHECK_THROWS_WITH(kv.name(pair.back().name, text), containing("is named by 15 more tokens; it has 10, of which 0"));
  pair.name(0, 7);
  CHECK_THROWS_WITH(kv.name(pair.back().name, std::span(text).first(4)), containing("it has 10, of which 7 are named"));
  const int one = 1;
  std::vector<unsigned char> workspace(kv.workspace_bytes(host(), 1));
  kv.reserve(pair.back().name, 1);
  (void)kv.begin(host(), {&pair.back().name, 1}, {&one, 1}, workspace);
  CHECK_THROWS_WITH(kv.name(pair.back().name, std::span(text).first(1)), containing("name: step"));
  kv.cancel();
  pair.name(0, 3);
  pair.check();
  using windowed = policy<paged<2>, fp16<>, fp16<>, window<>>;
  CHECK_THROWS_WITH(plan_bytes(windowed(8, window<>(4)), {.layers = 1, .kv_heads = 1, .tokens = 8, .prefixes = true}),
                    containing("without a window, eviction or 16-bit sinks"));
  STATIC_REQUIRE((!keeps_prefixes<windowed> && !keeps_prefixes<policy<contiguous, fp16<>>> &&
                  !keeps_prefixes<policy<paged<2>, fp16<>, fp16<>, listed>> &&
                  !keeps_prefixes<policy<paged<2>, fp16<>, fp16<>, keep_all, 4>> &&
                  keeps_prefixes<policy<paged<2>, fp16<>, fp16<>, keep_all, 0, 4>>));
}

// Two groups in either order: the pages of one hold 4 tokens, and those of the other, which are scarce, 6.
template <class First, class Second>
void check_set(const layer_group<First>& a, const layer_group<Second>& b) {
  test_memory m;
  cache_set<First, Second> set({.sequences = 3, .tokens = 60, .max_length = 60, .prefixes = true},
                               kvilt::memory<memory_space::host>::from(m), a, b);
  const std::vector<token_id> text = text_of(35);
  const auto fill = [&](sequence s, int count) {
    set.reserve(s, count);
    std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
    set.commit(set.begin(host(), {&s, 1}, {&count, 1}, workspace));
  };
  const opened_sequence first = set.open(text);
  CHECK(first.tokens == 0);
  fill(first.name, 33);
  set.name(first.name, std::span(text).first(33));
  CHECK_THROWS_WITH(set.name(first.name, text), containing("group 0: sequence 0 is named by 35 more"));
  set.close(first.name);
  CHECK(set.template group<0>().pages().cached + set.template group<1>().pages().cached == 8 + 5);
  // 32 tokens in pages of 4, 30 in pages of 6: 24 in whole pages of both.
  CHECK(set.cached_tokens(text) == 24);
  const opened_sequence again = set.open(text);
  CHECK((again.tokens == 24 && set.length(again.name) == 24 && set.template group<1>().length(again.name) == 24));
  fill(again.name, 9);
  set.close(again.name);
  // Only the group that has 6 pages evicts.
  const opened_sequence other = set.open(text_of(30, 1));
  fill(other.name, 20);
  CHECK(set.cached_tokens(text) == 12);
  CHECK(set.open(text).tokens == 12);
  CHECK(set.try_reserve(other.name, 0));
  CHECK_FALSE(set.try_reserve(other.name, 20));
}

TEST_CASE("prefix: groups of a set have the same tokens of a prompt, or none", "[cache]") {
  using fours = policy<paged<4>, fp16<>>;
  using sixes = policy<paged<6>, q8<>>;
  check_set(layer_group<fours>{{0}, 1, fours(8)}, layer_group<sixes>{{1}, 1, sixes(8), 36});
  check_set(layer_group<sixes>{{0}, 1, sixes(8), 36}, layer_group<fours>{{1}, 1, fours(8)});
}
