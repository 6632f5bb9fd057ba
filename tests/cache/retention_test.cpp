#include "support/catch.hpp"

#include <kvilt/cache/retention.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace kvilt;

/// How one sequence is kept; width 0: everything.
struct setting {
  idx width, sinks, tail;
  int max_step;
  bool exact_sinks, ring;
};

std::string described(const setting& s) {
  return "window " + std::to_string(s.width) + ", sinks " + std::to_string(s.sinks) +
         (s.exact_sinks ? " of their own" : " in the body") + ", tail " + std::to_string(s.tail) + ", steps of " +
         std::to_string(s.max_step) + (s.ring ? ", ring" : "");
}

template <class Rule>
Rule rule_of(const setting& s) {
  if constexpr (Rule::slides)
    return Rule(int(s.width));
  else
    return Rule();
}

/// One sequence in three memories (body, sinks, tail) in which slots hold positions instead of rows. What is read from
/// them is compared with what the rule says, straight from its definition.
template <class Rule>
class simulation {
 public:
  explicit simulation(const setting& s)
      : is_(s),
        sinks_(rule_of<Rule>(s), s.sinks),
        body_(rule_of<Rule>(s), s.sinks, {s.exact_sinks ? 0 : s.sinks, s.ring ? s.width - 1 + s.max_step : 0}),
        tail_(rule_of<Rule>(s), s.sinks, {0, s.tail ? s.tail - 1 + 2 * s.max_step : 0}),
        left_tail_(s.tail ? s.sinks : 0) {}

  idx length() const { return length_; }
  const std::string& fault() const { return fault_; }

  /// Appends `tokens`, looks at the step as its queries do, keeps the first `accepted`.
  void step(idx tokens, idx accepted) {
    const idx before = length_, after = before + tokens;
    lengths n{before, after, before, after};
    if (is_.tail) n = {before, after, left_tail_, std::max({left_tail_, is_.sinks, before + 1 - is_.tail})};
    flush(n);
    for (idx p = before; p < after; ++p) expect(put(n, p) == 1, "a new token has not one place", p);
    look(n);
    length_ = before + accepted;
    if (is_.tail) left_tail_ = n.body_after;
  }

 private:
  void expect(bool held, const char* what, idx position) {
    if (!held && fault_.empty()) fault_ = std::string(what) + ", position " + std::to_string(position);
  }
  bool shown(idx query, idx key) const {
    return key <= query && (!is_.width || key < is_.sinks || key > query - is_.width);
  }
  /// `body(part, its memory)` for each part that there is.
  template <class Body>
  void each(Body&& body) {
    if (is_.sinks) body(sinks_, is_.exact_sinks ? sinks_memory_ : body_memory_);
    body(body_, body_memory_);
    if (is_.tail) body(tail_, tail_memory_);
  }

  void flush(const lengths& n) {
    if (!is_.tail) return;
    const position_range leaving = tail_.leaving(n);
    for (idx p = leaving.first; p < leaving.last; ++p) {
      const auto found = tail_memory_.find(tail_.slot_of(p));
      expect(found != tail_memory_.end() && found->second == p, "the tail lost a token that leaves it", p);
      const bool still_shown = shown(n.before, p);
      expect(put(n, p) == (still_shown ? 1 : 0), "a token that leaves the tail has not one place", p);
    }
  }
  /// How many parts take the token.
  int put(const lengths& n, idx position) {
    int places = 0;
    each([&](const auto& part, std::map<idx, idx>& memory) {
      const idx slot = part.slot(n, 0, 0, position);
      if (slot < 0) return;
      memory[slot] = position;
      ++places;
    });
    return places;
  }

  void look(const lengths& n) {
    each([&](const auto& part, const std::map<idx, idx>& memory) { inspect(part, memory, n); });
    for (idx query = n.before; query < n.after; ++query) {
      std::vector<idx> seen, expected;
      each([&](const auto& part, const std::map<idx, idx>&) {
        for (idx i = 0; i < part.count(n, 0, 0); ++i) {
          const idx key = part.at(n, 0, 0, i).position;
          if (key <= query && part.sees(query, key)) seen.push_back(key);
        }
      });
      for (idx key = 0; key <= query; ++key)
        if (shown(query, key)) expected.push_back(key);
      expect(seen == expected, "a query sees other tokens, or in another order, than the rule says", query);
    }
  }

  /// Live rows hold what they say, in slots of their own; runs and `slot` agree with `at`.
  template <class Part>
  void inspect(const Part& part, const std::map<idx, idx>& memory, const lengths& n) {
    std::map<idx, idx> slots;
    const idx count = part.count(n, 0, 0);
    idx runs = 0, run_end = 0;
    for (idx i = 0; i < count; ++i) {
      const kept_row row = part.at(n, 0, 0, i);
      const auto found = memory.find(row.slot);
      expect(found != memory.end() && found->second == row.position, "a live row was overwritten", row.position);
      expect(slots.emplace(row.slot, row.position).second, "two live rows share a slot", row.position);
      expect(part.slot(n, 0, 0, row.position) == row.slot, "slot and at disagree", row.position);
      expect(part.slot_of(row.position) == row.slot, "slot_of and at disagree", row.position);
      expect(row.run >= 1 && i + row.run <= count, "a run leaves the part", row.position);
      if (i + 1 < count && row.run > 1) {
        const kept_row next = part.at(n, 0, 0, i + 1);
        expect(next.slot == row.slot + 1 && next.position == row.position + 1, "a run breaks", row.position);
        expect(next.run == row.run - 1, "runs overlap", row.position);
      }
      if (i == run_end) ++runs, run_end = i + row.run;
    }
    expect(runs <= 2, "a part in more than two runs", n.after);
    for (const idx outside : {idx(-1), n.after, n.after + 5})
      expect(part.slot(n, 0, 0, outside) == -1, "a slot for what is not in the sequence", outside);
  }

  setting is_;
  interval<part::sinks, Rule> sinks_;
  interval<part::body, Rule> body_;
  interval<part::tail, Rule> tail_;
  std::map<idx, idx> body_memory_, sinks_memory_, tail_memory_;
  idx length_ = 0;
  idx left_tail_;
  std::string fault_;
};

/// Steps of random sizes, some of whose tokens are rejected.
template <class Rule>
void run(const setting& s) {
  INFO(described(s));
  std::mt19937 random(41);
  simulation<Rule> sequence(s);
  for (int i = 0; i < 25 && sequence.fault().empty(); ++i) {
    const idx tokens = idx(random() % unsigned(s.max_step + 1));
    const bool all = random() % 3 != 0;
    sequence.step(tokens, all ? tokens : idx(random() % unsigned(tokens + 1)));
  }
  REQUIRE(sequence.fault() == "");
  REQUIRE(sequence.length() > 0);
}

template <class Body>
void each_setting(idx width, bool ring, Body&& body) {
  for (const idx sinks : {0, 1, 4})
    for (const idx tail : {0, 1, 4, 9})
      for (const int max_step : {1, 3, 7})
        for (const bool exact_sinks : {false, true})
          if (sinks || !exact_sinks) body(setting{width, sinks, tail, max_step, exact_sinks, ring});
}

}  // namespace

TEST_CASE("retention: everything stays, in slots of its own", "[cache]") {
  each_setting(0, false, [](const setting& s) { run<keep_all>(s); });
}

TEST_CASE("retention: a window shows the last W tokens and the sinks", "[cache]") {
  for (const idx width : {1, 2, 5, 16}) each_setting(width, false, [](const setting& s) { run<window<>>(s); });
}

TEST_CASE("retention: a ring never overwrites what a query of the step still sees", "[cache]") {
  for (const idx width : {1, 2, 5, 16}) each_setting(width, true, [](const setting& s) { run<window<>>(s); });
}

TEST_CASE("retention: a ring one slot smaller would lose a token", "[cache]") {
  const interval<part::body, window<>> small(window<>(5), 0, {0, 5 - 1 + 3 - 1});
  const lengths n{20, 23, 20, 23};
  CHECK(small.slot(n, 0, 0, 22) == small.at(n, 0, 0, 0).slot);
  const interval<part::body, window<>> enough(window<>(5), 0, {0, 5 - 1 + 3});
  CHECK(enough.slot(n, 0, 0, 22) != enough.at(n, 0, 0, 0).slot);
}

TEST_CASE("retention: windows at the edges of their width", "[cache]") {
  const interval<part::body, window<>> body(window<>(4));
  for (const idx length : {0, 1, 3, 4, 5, 100}) {
    const lengths n{length, length + 1, length, length + 1};
    CHECK(body.count(n, 0, 0) == std::min<idx>(length + 1, 4));
    CHECK(body.sees(length, length));
    CHECK(body.sees(length, length - 3));
    CHECK_FALSE(body.sees(length, length - 4));
  }
}

TEST_CASE("retention: an empty sequence has no rows", "[cache]") {
  const lengths n{};
  CHECK(interval<part::sinks, keep_all>(keep_all(), 4).count(n, 0, 0) == 0);
  CHECK(interval<part::body, keep_all>(keep_all(), 4).count(n, 0, 0) == 0);
  CHECK(interval<part::tail, window<>>(window<>(8), 4, {0, 8}).count(n, 0, 0) == 0);
  CHECK(interval<part::body, window<>>(window<>(8), 0, {0, 8}).count(n, 0, 0) == 0);
}

TEST_CASE("retention: positions in the cache close the gap between sinks and window", "[cache]") {
  for (const idx width : {1, 5, 16})
    for (const idx sinks : {1, 4}) {
      const interval<part::sinks, window<>> keep(window<>(int(width)), sinks);
      for (idx query = 0; query < 50; ++query) {
        idx kept = 0;  // of the keys that the query sees
        for (idx key = 0; key <= query; ++key) kept += key < sinks || key > query - width;
        CHECK(keep.in_cache(query) == kept - 1);
      }
    }
}

TEST_CASE("retention: other libraries' window_left", "[cache]") {
  CHECK(window_from_left(0).width() == 1);
  CHECK(window_from_left(4095).width() == 4096);
  STATIC_REQUIRE(window<128>().width() == 128);
  STATIC_REQUIRE(window<128, 4>::sinks() == 4);
  STATIC_REQUIRE(std::is_same_v<decltype(window_from_left(7)), window<>>);
}

TEST_CASE("retention: positions beyond 2^31", "[cache]") {
  const idx far = (idx(1) << 33) + 5;
  const interval<part::body, window<>> ring(window<>(100), 4, {4, 106});
  const lengths n{far, far + 7, far, far + 7};
  CHECK(ring.count(n, 0, 0) == 106);
  CHECK(ring.at(n, 0, 0, 105).position == far + 6);
  CHECK(ring.slot(n, 0, 0, far) == 4 + (far - 4) % 106);
}
