#include "pages/hashes.hpp"
#include "pages/parents_first.hpp"
#include "pages/simulated_engine.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"

#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/page_manager.hpp>
#include <kvilt/pages/priority.hpp>

#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvilt;
using support::containing;

std::vector<manager_shape> some_shapes() {
  std::vector<manager_shape> all;
  for (const int page_tokens : {1, 3, 4, 16})
    for (const idx pages : {5, 24, 70}) {
      all.push_back({page_tokens, 6, {{pages}}});
      all.push_back({page_tokens, 6, {{pages}, {pages / 2 + 2, 2 * page_tokens}}});
      all.push_back({page_tokens, 6, {{pages}, {pages}, {pages / 2 + 3, 5, 3}}});
    }
  all.push_back({1, 6, {{300}}});
  all.push_back({2, 6, {{200}, {120, 9, 2}}});
  return all;
}
// Two million and more over all policies, hashes and shapes; each is checked after it.
constexpr int operations = support::is_sanitized ? 500 : KVILT_IS_CHECKED ? 1300 : 4000;

template <class Eviction, class Hash>
std::vector<idx> run(const manager_shape& shape, int seed) {
  using manager = page_manager<Eviction, Hash>;
  support::dice dice{std::uint64_t(seed)};
  simulated::engine<manager, support::dice> engine(shape, dice);
  engine.run(operations);
  return engine.trace();
}

using tokens = std::vector<token_id>;
using moves = std::vector<page_move>;

tokens count_from(token_id first, int n) {
  tokens t;
  for (int i = 0; i < n; ++i) t.push_back(first + i);
  return t;
}
// Opens a prompt and computes what is missing of it.
template <class Manager>
sequence start(Manager& m, const tokens& prompt, moves& out, const prompt_options& options = {}) {
  const opened_sequence o = m.open(prompt, out, options);
  m.reserve(o.name, idx(prompt.size()) - o.tokens, out);
  m.append(o.name, std::span(prompt).subspan(std::size_t(o.tokens)));
  return o.name;
}
template <class Manager>
std::vector<page_id> pages_of(const Manager& m, sequence s, int group = 0) {
  const auto p = m.pages(s, group);
  return {p.begin(), p.end()};
}

}  // namespace

TEMPLATE_TEST_CASE("page_manager: an engine at random, over policies, groups and hashes", "[pages]", lru, aged_lfu,
                   priority, cost_aware<>, parents_first) {
  int seed = 0;
  for (const manager_shape& shape : some_shapes()) {
    ++seed;
    INFO(seed << ": pages of " << shape.page_tokens << ", " << shape.groups.size() << " groups of "
              << shape.groups[0].pages);
    const std::vector<idx> plain = run<TestType, token_hash>(shape, seed);
    CHECK((run<TestType, one_place>(shape, seed) == plain));
    if (!std::is_same_v<TestType, aged_lfu>) CHECK((run<TestType, one_name>(shape, seed) == plain));
  }
}

TEMPLATE_TEST_CASE("page_manager: what is available can be taken, after prefixes were cut", "[pages]", lru, aged_lfu,
                   priority, cost_aware<>, parents_first) {
  moves out;
  page_manager<TestType> m({16, 2, {{2500}}});
  const sequence a = start(m, count_from(0, 40'000), out);
  m.store(a);
  m.truncate(a, 16'000);
  m.close(a);
  CHECK(m.can_admit(40'000));
  const sequence b = m.open({}, out).name;
  CHECK(m.try_reserve(b, 40'000, out));
  m.discard(b);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    support::dice dice(seed);
    page_manager<TestType> n({1, 2, {{256}}});
    for (int i = 0; i < 200; ++i) {
      const sequence s = start(n, count_from(1000 * dice.below(6), 1 + dice.below(256)), out);
      n.store(s);
      while (n.length(s) > 0 && dice.below(3)) n.truncate(s, dice.below(int(n.length(s))));
      n.close(s);
    }
  }
}

TEST_CASE("page_manager: a prompt has what an earlier one left, but for its last token", "[pages]") {
  page_manager<> m({4, 2, {{16}}});
  moves out;
  const tokens prompt = count_from(1, 12);
  const sequence first = start(m, prompt, out);
  const std::vector<page_id> pages = pages_of(m, first);
  m.close(first);
  CHECK(out.empty());

  opened_sequence o = m.open(count_from(1, 13), out);
  CHECK(o.tokens == 12);
  CHECK(pages_of(m, o.name) == pages);
  CHECK(m.room(o.name) == 0);
  m.close(o.name);

  o = m.open(prompt, out);  // its last page but for one token, by copy
  CHECK(o.tokens == 11);
  REQUIRE(out.size() == 1);
  CHECK(out[0] == page_move{0, pages[2], m.pages(o.name)[2], 3});
  CHECK(out[0].to != pages[2]);
  m.close(o.name);

  CHECK(m.open(prompt, out, {{}, 0, 0}).tokens == 12);
  CHECK(m.open({}, out).tokens == 0);
}

TEST_CASE("page_manager: a page that is not full is shared by copy", "[pages]") {
  page_manager<> m({4, 2, {{16}}});
  moves out;
  const sequence first = start(m, count_from(1, 6), out);
  const page_id last = m.pages(first)[1];
  m.close(first);
  const opened_sequence o = m.open(tokens{1, 2, 3, 4, 5, 6, 70, 80, 90}, out);
  CHECK(o.tokens == 6);
  CHECK(out == moves{{0, last, m.pages(o.name)[1], 2}});
  CHECK(m.counters().prefixes.copied == 2);
  m.close(o.name);
  // The same text again leaves no second copy.
  const idx cached = m.cache().pool().cached();
  m.close(start(m, count_from(1, 6), out));
  CHECK(m.cache().pool().cached() == cached);
}

TEST_CASE("page_manager: no tail is copied where no page is left for it", "[pages]") {
  page_manager<> m({4, 3, {{3}}});
  moves out;
  m.close(start(m, count_from(1, 6), out));
  const sequence other = start(m, count_from(50, 4), out);
  const opened_sequence o = m.open(count_from(1, 6), out);
  CHECK(o.tokens == 4);
  CHECK(out.empty());
  CHECK(m.counters().prefixes.missed_granularity == 1);
  CHECK(m.free_tokens() == 4);  // the tail, which is evicted when it is needed
  m.reserve(o.name, 4, out);
  CHECK(out.empty());
  m.close(o.name);
  m.close(other);
}

TEST_CASE("page_manager: of a fork's last page one copy is made, for who writes first", "[pages]") {
  page_manager<> m({4, 3, {{16}}});
  moves out;
  const sequence a = start(m, count_from(1, 6), out);
  const sequence b = m.fork(a);
  CHECK(pages_of(m, a) == pages_of(m, b));
  CHECK_THROWS_WITH(m.append(a, 7), containing("room is reserved for 0"));
  const page_id shared = m.pages(a)[1];
  m.reserve(a, 1, out);
  CHECK(out == moves{{0, shared, m.pages(a)[1], 2}});
  CHECK(m.pages(b)[1] == shared);
  m.reserve(b, 1, out);
  CHECK(out.size() == 1);
  CHECK(m.pages(b)[1] == shared);
  CHECK(m.pages(a)[0] == m.pages(b)[0]);
  m.append(a, 70);
  m.append(b, 71);
  m.discard(a);
  m.close(b);
  CHECK(m.open(tokens{1, 2, 3, 4, 5, 6, 71, 8}, out).tokens == 7);
}

TEST_CASE("page_manager: a named page is not written after a truncation", "[pages]") {
  page_manager<> m({4, 2, {{16}}});
  moves out;
  const sequence a = start(m, count_from(1, 8), out);
  m.store(a);
  const page_id named = m.pages(a)[1];
  m.truncate(a, 6);
  m.reserve(a, 2, out);
  CHECK(out == moves{{0, named, m.pages(a)[1], 2}});
  m.append(a, tokens{70, 80});
  m.close(a);
  CHECK(m.open(count_from(1, 9), out).tokens == 8);
}

TEST_CASE("page_manager: what another has stored already takes no pages twice", "[pages]") {
  page_manager<> m({4, 2, {{16}}});
  moves out;
  const tokens prompt = count_from(1, 9);
  const sequence a = start(m, prompt, out), b = start(m, prompt, out);
  CHECK(m.store(a) == 0);
  CHECK(m.cache().pool().used() == 6);
  CHECK(m.store(b) == 2);
  CHECK(m.cache().pool().used() == 4);
  CHECK(m.pages(a)[0] == m.pages(b)[0]);
  CHECK(m.pages(a)[1] == m.pages(b)[1]);
  CHECK(m.pages(a)[2] != m.pages(b)[2]);
  CHECK(m.counters().replaced == 2);
}

TEST_CASE("page_manager: a window gives back what no query sees, and a prompt needs no more of it", "[pages]") {
  page_manager<> m({4, 3, {{32}, {8, 6, 2}}});
  moves out;
  const sequence a = start(m, count_from(1, 9), out);
  CHECK(m.pages(a, 1)[1] >= 0);  // the query at 9 sees tokens from 4 on
  m.reserve(a, 2, out);
  m.append(a, tokens{10, 11});
  CHECK(m.pages(a, 1)[1] >= 0);
  m.reserve(a, 1, out);
  m.append(a, 12);
  CHECK(pages_of(m, a, 1)[0] >= 0);  // with the sinks
  CHECK(pages_of(m, a, 1)[1] >= 0);
  m.reserve(a, 1, out);
  m.append(a, 13);  // the query at 13 sees tokens from 8 on
  CHECK(pages_of(m, a, 1)[1] == -1);
  CHECK(m.counters().groups[1].pages.used == 3);
  CHECK_THROWS_WITH(m.truncate(a, 12), containing("a window would show what it has left behind"));
  CHECK(m.length(a) == 13);
  m.close(a);
  // Of 12 tokens a query sees page 1, which the window has left behind with a name.
  CHECK(m.open(count_from(1, 13), out, {{}, 0, 0}).tokens == 13);
}

TEST_CASE("page_manager: what a window gives back stays for others when it was stored", "[pages]") {
  page_manager<> m({4, 2, {{32}, {8, 6, 2}}});
  moves out;
  const sequence a = start(m, count_from(1, 12), out);
  m.store(a);
  const std::vector<page_id> all = pages_of(m, a), window = pages_of(m, a, 1);
  m.reserve(a, 1, out);
  m.append(a, 13);
  CHECK(m.pages(a, 1)[1] == -1);
  CHECK(m.counters().groups[1].pages.cached == 1);
  m.close(a);
  const opened_sequence o = m.open(count_from(1, 13), out, {{}, 0, 0});
  CHECK(o.tokens == 13);
  CHECK(out.size() == 2);  // the last page, of one row, in each group
  CHECK(std::ranges::equal(m.pages(o.name).first(3), all));
  CHECK(pages_of(m, o.name, 1)[0] == window[0]);
  CHECK(pages_of(m, o.name, 1)[1] == -1);  // the row that was copied has moved the window on
  CHECK(pages_of(m, o.name, 1)[2] == window[2]);
}

TEST_CASE("page_manager: a prefix is there as far as every group has it", "[pages]") {
  page_manager<lru> m({2, 2, {{16}, {4}}});
  moves out;
  m.close(start(m, count_from(1, 8), out));
  const sequence b = start(m, count_from(50, 4), out);  // takes two of the second group's four
  CHECK(m.counters().groups[0].pages.cached == 4);
  CHECK(m.counters().groups[1].pages.cached == 2);
  CHECK(m.open(count_from(1, 9), out).tokens == 4);
  CHECK(m.counters().prefixes.missed_capacity == 4);
  m.close(b);
}

TEST_CASE("page_manager: a step appends a token to each sequence", "[pages]") {
  page_manager<> m({3, 40, {{400}, {400, 4}}});
  moves out;
  std::vector<sequence> open;
  tokens step;
  for (int i = 0; i < 40; ++i) {
    open.push_back(start(m, count_from(1000 * i, i), out));
    step.push_back(1000 * i + i);
  }
  CHECK_THROWS_WITH(m.append(open, std::span(step).first(39)), containing("40 sequences append 39 tokens"));
  for (const sequence s : open) m.reserve(s, 1, out);
  m.append(open, step);
  for (int i = 0; i < 40; ++i) CHECK(m.length(open[std::size_t(i)]) == i + 1);
  CHECK(m.pages(open[39], 1)[11] == -1);
  CHECK_THROWS_WITH(m.append(std::span(open).subspan(2, 1), std::span(step).first(1)),
                    containing("room is reserved for 0"));
  for (const sequence s : open) m.close(s);
  for (int i = 2; i < 40; ++i) {  // what is shorter than a page is looked for among the newest few
    const opened_sequence o = m.open(count_from(1000 * i, i + 1), out, {{}, 0, 0});
    CHECK(o.tokens == i + 1);
    m.discard(o.name);
  }
}

TEST_CASE("page_manager: a scheduler is told what can be admitted, and whom to preempt", "[pages]") {
  page_manager<lru> m({4, 3, {{10}, {4, 5}}});
  moves out;
  CHECK(m.free_tokens() == 16);
  CHECK(m.missing_pages(16) == 0);
  CHECK(m.missing_pages(17) == 1);  // reserved at once, a window needs them all
  CHECK(m.can_admit(16));
  CHECK_FALSE(m.can_admit(17));
  CHECK_THROWS_WITH(m.last_opened(), containing("no sequence is open"));
  const sequence high = start(m, count_from(1, 4), out, {{}, 5});
  const sequence low = start(m, count_from(11, 4), out, {{}, 1});
  const sequence last = start(m, count_from(21, 4), out, {{}, 1});
  CHECK(m.last_opened() == last);
  CHECK_FALSE(m.can_admit(1));
  CHECK_THROWS_WITH(m.open({}, out), containing("all 3 sequences are open"));
  int saved = 0;
  m.preempt(last, [&](int g, std::span<const page_id> pages) { saved += (g + 1) * int(pages.size()); });
  CHECK(saved == 3);
  CHECK(m.last_opened() == low);
  const sequence ahead = m.open({}, out, {{}, 0, 1, false}).name;  // of a prompt that has not asked yet
  CHECK(m.last_opened() == low);
  m.discard(ahead);
  m.discard(low);
  CHECK(m.last_opened() == high);
  CHECK(m.open(count_from(21, 5), out).tokens == 4);  // resumed
  const manager_counters c = m.counters();
  CHECK(c.opened == 5);
  CHECK(c.preempted == 1);
  CHECK(c.discarded == 2);
  CHECK(c.open_sequences == 2);
}

TEST_CASE("page_manager: pages come all or none, in every group", "[pages]") {
  page_manager<> m({4, 2, {{8}, {3}}});
  moves out;
  const sequence a = start(m, count_from(1, 6), out);
  const sequence b = m.fork(a);
  CHECK_FALSE(m.try_reserve(a, 3, out));  // one to copy, one to go on: the second group has one
  CHECK(out.empty());
  CHECK(m.counters().groups[0].pages.used == 2);
  CHECK_THROWS_WITH(m.reserve(a, 3, out), containing("sequence 0 reserves 3 tokens; there are pages for 4"));
  CHECK(m.try_reserve(a, 2, out));
  CHECK(out.size() == 2);
  m.discard(b);
}

TEST_CASE("page_manager: pages are reused after the work that was launched before they came back", "[pages]") {
  page_manager<> m({4, 2, {{2}, {2}}});
  moves out;
  const sequence a = start(m, count_from(1, 8), out);
  m.launched(3);
  m.discard(a);
  CHECK(m.free_tokens() == 0);
  CHECK(m.counters().groups[0].pages.pending == 2);
  CHECK(m.counters().groups[1].pages.pending == 2);
  m.complete(2);
  CHECK(m.free_tokens() == 0);
  m.complete(3);
  CHECK(m.free_tokens() == 8);
  CHECK_THROWS_WITH(m.launched(3), containing("work up to 3 is launched; up to 3 it is complete"));
  m.launched(5);
  CHECK_THROWS_WITH(m.launched(4), containing("work up to 4 is launched; before it was up to 5"));
}

TEST_CASE("page_manager: priorities of prompts decide what is evicted", "[pages]") {
  page_manager<priority> m({2, 2, {{4}}});
  moves out;
  m.close(start(m, count_from(1, 2), out, {{}, 6}));
  m.close(start(m, count_from(11, 4), out, {{}, 2}));
  m.close(start(m, count_from(21, 6), out, {{}, 2}));
  CHECK(m.open(count_from(1, 3), out).tokens == 2);
  CHECK(m.open(count_from(11, 3), out).tokens == 0);
}

TEST_CASE("page_manager: fragmentation is what brute force says, over a chat trace", "[pages]") {
  support::dice dice(11);
  for (const int page_tokens : {1, 16, 64, 256}) {
    page_manager<> m({page_tokens, 64, {{64 * ceil_div(2048, page_tokens)}}});
    moves out;
    std::vector<sequence> open;
    idx rows = 0, tokens_held = 0;
    for (int i = 0; i < 300; ++i) {
      if (open.size() == 64) {
        const std::size_t gone = std::size_t(dice.below(64));
        m.close(open[gone]);
        open.erase(open.begin() + idx(gone));
      }
      tokens text;
      for (int n = 1 + dice.below(300) + dice.below(300); n > 0; --n) text.push_back(dice.below(30'000));
      open.push_back(start(m, text, out));
    }
    for (const sequence s : open) rows += idx(m.pages(s).size()) * page_tokens, tokens_held += m.length(s);
    const manager_counters c = m.counters();
    CHECK(c.groups[0].fragmentation(page_tokens) == Approx(1 - double(tokens_held) / double(rows)));
    CHECK((c.groups[0].fragmentation(page_tokens) < 0.04) == (page_tokens <= 16));
    CHECK(c.groups[0].utilisation() == Approx(double(m.cache().pool().used()) / double(m.cache().pool().total())));
  }
}

TEST_CASE("page_manager: what no manager can be is refused, and a handle is stale when its sequence is closed",
          "[pages]") {
  CHECK_THROWS_WITH(page_manager<>({4, 1, {}}), containing("the first group keeps all tokens"));
  CHECK_THROWS_WITH(page_manager<>({4, 1, {{4, 8}}}), containing("the first group keeps all tokens"));
  CHECK_THROWS_WITH(page_manager<>({0, 1, {{4}}}), containing("pages of 0 tokens"));
  CHECK_THROWS_WITH(page_manager<>({4, -1, {{4}}}), containing("-1 sequences"));
  CHECK_THROWS_WITH(page_manager<>({4, 1, {{4}, {4, 0, 2}}}), containing("a group without window has no sinks"));
  page_manager<> m({4, 1, {{4}}});
  moves out;
  const sequence a = m.open({}, out).name;
  m.close(a);
  const sequence b = m.open({}, out).name;
  CHECK(a.slot == b.slot);
  CHECK_THROWS_WITH(m.length(a), containing("sequence 0 (of generation 1) is not open"));
  CHECK_THROWS_WITH(m.close(a), containing("is not open"));
  CHECK_THROWS_WITH(m.pages(b, 1), containing("group 1; there are 0 to 0"));
  CHECK_THROWS_WITH(m.open({}, out), containing("all 1 sequences are open"));
}

TEST_CASE("page_manager: a step names a sequence once, or writes nothing", "[pages]") {
  page_manager<> m({4, 2, {{3}}});
  moves out;
  const sequence x = m.open({}, out).name, y = m.open({}, out).name;
  m.reserve(x, 4, out);
  m.reserve(y, 4, out);
  m.append(y, tokens{10, 11, 12, 13});
  m.append(x, tokens{1, 2, 3});
  CHECK_THROWS_WITH(m.append(std::vector{x, x}, tokens{7, 8}), containing("sequence 0 is named twice in a step"));
  CHECK(m.length(x) == 3);
  m.append(std::vector{x}, tokens{4});
  m.close(x);
  m.close(y);
  CHECK(m.open(tokens{10, 11, 12, 13, 14}, out).tokens == 4);
  CHECK(m.open(count_from(1, 5), out).tokens == 4);
}

TEST_CASE("page_manager: beside windows a prefix is found that a window has left behind", "[pages]") {
  const tokens prompt = count_from(0, 2000);
  tokens other = count_from(0, 480);
  for (const token_id t : count_from(5000, 500)) other.push_back(t);
  for (const int chunk : {2000, 512, 128, 1})
    for (const bool stored : {false, true}) {
      INFO("in pieces of " << chunk << (stored ? ", stored" : ""));
      page_manager<> m({16, 4, {{1000}, {1000, 128}, {1000, 40, 4}}});
      moves out;
      const sequence s = m.open(prompt, out).name;
      for (int i = 0; i < 2000; i += chunk) {
        const auto piece = std::span(prompt).subspan(std::size_t(i)).first(std::size_t(smaller(chunk, 2000 - i)));
        m.reserve(s, idx(piece.size()), out);
        if (chunk > 1)
          m.append(s, piece);
        else
          m.append({&s, 1}, piece);
        if (stored) m.store(s);
      }
      for (int i = 0; i < 200; ++i) {
        m.reserve(s, 1, out);
        m.append(s, 9000 + i);
      }
      m.close(s);
      const opened_sequence shared = m.open(other, out);
      CHECK(shared.tokens == 480);
      m.discard(shared.name);
      CHECK(m.open(prompt, out).tokens == 1999);
    }
}

TEST_CASE("page_manager: what a window leaves behind is another's page where that was there first", "[pages]") {
  page_manager<> m({4, 2, {{32}, {32, 4}}});
  moves out;
  const sequence a = m.open({}, out).name, b = m.open({}, out).name;
  for (const sequence x : {a, b}) {
    m.reserve(x, 12, out);
    m.append(x, count_from(1, 12));
  }
  CHECK(m.pages(a)[1] == m.pages(b)[1]);
  CHECK(m.pages(a)[2] != m.pages(b)[2]);  // the window shows tokens of it
  CHECK(m.counters().replaced == 4);      // two in each group
}

TEST_CASE("page_manager: a fork's parent keeps the pages that it has reserved", "[pages]") {
  page_manager<> m({4, 2, {{8}, {8, 12}}});
  moves out;
  const sequence a = m.open({}, out).name;
  m.reserve(a, 16, out);
  m.append(a, tokens{1});
  m.fork(a);
  CHECK(m.room(a) == 0);
  CHECK(m.free_pages(0) == 4);
  m.reserve(a, 15, out);
  CHECK(out.size() == 2);
  CHECK(m.free_pages(0) == 3);
  CHECK(m.free_pages(1) == 3);
}

TEST_CASE("page_manager: a pinned prefix stays without a sequence", "[pages]") {
  page_manager<lru> m({2, 1, {{6}, {6, 3}}});
  moves out;
  const tokens system = count_from(1, 6);
  CHECK(m.pin(system).tokens() == 0);
  m.close(start(m, system, out));
  pinned_prefix kept = m.pin(system);
  CHECK(kept.tokens() == 6);
  const auto find = [&] {
    const opened_sequence o = m.open(count_from(1, 7), out);
    m.discard(o.name);
    return o.tokens;
  };
  for (int i = 0; i < 5; ++i) m.close(start(m, count_from(100 * i + 50, 6), out));
  CHECK(find() == 6);
  CHECK(m.counters().groups[0].pages.used == 3);
  CHECK(m.counters().groups[1].pages.used == 1);  // of six tokens the query sees two
  CHECK(m.pin(system, std::vector<std::uint64_t>{1}).tokens() == 0);
  CHECK_THROWS_WITH(m.unpin(kept, 8), containing("a prompt has priority 8"));
  pinned_prefix moved = std::move(kept);
  m.unpin(kept);
  CHECK(m.counters().groups[0].pages.used == 3);
  m.unpin(moved);
  m.unpin(moved);
  CHECK(m.counters().groups[0].pages.used == 0);
  CHECK(m.counters().groups[1].pages.used == 0);
  m.close(start(m, count_from(500, 12), out));
  CHECK(find() == 0);
}

TEST_CASE("page_manager: it says what is open when it is destroyed", "[pages]") {
  std::vector<idx> said;
  const left_hook hook{&said, [](void* self, idx sequences, idx pages) {
                         *static_cast<std::vector<idx>*>(self) = {sequences, pages};
                       }};
  moves out;
  {
    page_manager<> m({4, 2, {{8}}, hook});
    m.close(start(m, count_from(1, 6), out));
  }
  CHECK(said.empty());
  {
    page_manager<> m({4, 2, {{8}}, hook});
    start(m, count_from(1, 6), out);
    m.open({}, out);
    page_manager<> n = std::move(m);
    page_manager<>(std::move(m));
    CHECK(said.empty());
  }
  CHECK(said == std::vector<idx>{2, 2});
}

TEST_CASE("page_manager: what was moved from refuses every verb", "[pages]") {
  page_manager<> m({4, 2, {{8}, {8, 4}}});
  moves out;
  const sequence a = start(m, count_from(1, 6), out);
  m.store(a);
  page_manager<> n = std::move(m);
  CHECK(n.length(a) == 6);
  n.append(n.fork(a), tokens{});
  CHECK_THROWS_WITH(m.open(count_from(1, 6), out), containing("all 0 sequences are open"));
  CHECK_THROWS_WITH(m.reserve(a, 1, out), containing("is not open"));
  CHECK_THROWS_WITH(m.append(a, 7), containing("is not open"));
  CHECK_THROWS_WITH(m.append(std::vector{a}, tokens{7}), containing("is not open"));
  CHECK_THROWS_WITH(m.close(a), containing("is not open"));
  CHECK_THROWS_WITH(m.last_opened(), containing("no sequence is open"));
  CHECK_THROWS_WITH(m.free_pages(1), containing("group 1; there are 0 to 0"));
  CHECK(m.pin(count_from(1, 6)).tokens() == 0);
  CHECK_FALSE(m.can_admit(0));
  CHECK(m.free_tokens() == 0);
  CHECK(m.cache().pool().counts() == page_counts{});
  m.complete(1);
}

TEMPLATE_TEST_CASE("page_manager: a policy is made for no fewer pages than there are", "[pages]", lru, aged_lfu,
                   priority, cost_aware<>) {
  CHECK(TestType(9).pages() == 9);
  page_manager<TestType>({4, 1, {{9}}}, TestType(9));
  CHECK_THROWS_WITH(page_manager<TestType>({4, 1, {{10}}}, TestType(9)), containing("a policy for 9 pages, of 10"));
  CHECK_THROWS_AS(TestType(-1), invalid_argument);
  CHECK_THROWS_AS(TestType(idx(1) << 40), invalid_argument);
  for (const idx pages : {idx(-1), idx(-9), idx(1) << 40}) {
    CHECK_THROWS_WITH(page_manager<TestType>({4, 1, {{pages}}}), containing("a pool of " + std::to_string(pages)));
    CHECK_THROWS_WITH(page_manager<TestType>({4, 1, {{4}, {pages}}}), containing("a pool of " + std::to_string(pages)));
    CHECK_THROWS_AS(page_cache<TestType>(pages, 4), invalid_argument);
  }
}
