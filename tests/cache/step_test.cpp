#include "support/catch.hpp"

#include <kvilt/cache/step.hpp>

#include <limits>
#include <utility>
#include <vector>

namespace {

using namespace kvilt;

struct plan_of {
  std::vector<int> sequences, new_tokens, queries;
  std::vector<idx> before, positions;
  std::vector<unsigned char> workspace = std::vector<unsigned char>(workspace_bytes(host(), 8, 64, 64));

  step operator()() { return plan(host(), {sequences, before, new_tokens, queries, positions}, workspace); }
};

plan_of two() {
  plan_of p;
  p.sequences = {4, 2}, p.before = {10, 0}, p.new_tokens = {3, 0};
  return p;
}

}  // namespace

TEST_CASE("step: a plan says where each sequence's rows and tokens are", "[cache]") {
  plan_of p = two();
  p.sequences.push_back(7), p.before.push_back(5), p.new_tokens.push_back(2);
  const step s = p();
  REQUIRE(s.size == 3);
  CHECK((s.q_rows == 5 && s.kv_rows == 5 && s.rope_positions == nullptr));
  CHECK((s.items[0].sequence == 4 && s.items[0].kv_row == 0 && s.items[0].n.before == 10 && s.items[0].n.after == 13));
  CHECK((s.items[1].sequence == 2 && s.items[1].kv_row == 3 && s.items[1].n.after == 0));
  CHECK((s.items[2].sequence == 7 && s.items[2].q_row == 3 && s.items[2].query_position(0) == 5));
  for (int i = 0; i < 3; ++i)
    CHECK((s.items[i].n.body_before == s.items[i].n.before && s.items[i].n.body_after == s.items[i].n.after));
  CHECK(reinterpret_cast<std::uintptr_t>(s.scratch) % 256 == 0);
}

TEST_CASE("step: queries may be more or fewer than new tokens, and are the newest", "[cache]") {
  plan_of p = two();
  p.queries = {5, 0};
  const step s = p();
  CHECK((s.q_rows == 5 && s.kv_rows == 3));
  CHECK((s.items[0].query_position(0) == 8 && s.items[0].query_position(4) == 12));
}

TEST_CASE("step: a plan of no sequences", "[cache]") {
  plan_of p;
  const step s = p();
  CHECK((s.size == 0 && s.q_rows == 0 && s.kv_rows == 0));
}

TEST_CASE("step: a batch that cannot be is refused by name", "[cache]") {
  const auto refuses = [](auto change, const std::string& text) {
    plan_of p = two();
    change(p);
    CHECK_THROWS_AS(p(), invalid_argument);
    CHECK_THROWS_WITH(p(), support::containing(text));
  };
  refuses([](plan_of& p) { p.before.pop_back(); }, "a batch of 2 sequences has 1 lengths and 2 token counts");
  refuses([](plan_of& p) { p.new_tokens.push_back(1); }, "a batch of 2 sequences has 2 lengths and 3 token counts");
  refuses([](plan_of& p) { p.queries = {1}; }, "a batch of 2 sequences has 1 query counts");
  refuses([](plan_of& p) { p.sequences[0] = -2; }, "sequence -2 is negative and has tokens or queries");
  refuses([](plan_of& p) { p.before[0] = -1; }, "sequence 4 has length -1 and 3 new tokens");
  refuses([](plan_of& p) { p.new_tokens[0] = -3; }, "sequence 4 has length 10 and -3 new tokens");
  refuses([](plan_of& p) { p.queries = {1, -1}; }, "sequence 2 has -1 queries");
  refuses(
      [](plan_of& p) {
        p.positions = {1, 2};
      },
      "a step of 3 new tokens has 2 positions; one of each or none is needed");
  refuses(
      [](plan_of& p) {
        p.queries = {1, 0}, p.positions = {1};
      },
      "sequence 4 has positions for RoPE, 3 new tokens and 1 queries");
  const idx longest = (idx(1) << 31) - 1;
  refuses([&](plan_of& p) { p.before[0] = longest - 2; },
          "sequence 4 has length 2147483645 and 3 new tokens; fewer than");
  refuses([&](plan_of& p) { p.before[0] = idx(1) << 62; }, "sequence 4 has length 4611686018427387904");
  plan_of fits = two();
  fits.before[0] = longest - 3;
  CHECK(fits().items[0].n.after == longest);
  refuses([](plan_of& p) { p.workspace.resize(100); }, "a workspace of 100 bytes; a step of 2 sequences needs more");
}

TEST_CASE("step: a sequence to which two items append is refused", "[cache]") {
  const auto of = [](std::vector<int> sequences, std::vector<int> new_tokens) {
    plan_of p;
    p.before.assign(sequences.size(), 9), p.queries.assign(sequences.size(), 1);
    p.sequences = std::move(sequences), p.new_tokens = std::move(new_tokens);
    p.workspace.resize(workspace_bytes(host(), int(p.sequences.size()), 64, 64));
    return p;
  };
  // Numbers near and far, in every order: beyond one range of marks too.
  for (const int far : {1, 63, 64, 32767, 32768, 40000, 1 << 20, std::numeric_limits<int>::max()}) {
    const std::string text = "sequence " + std::to_string(far) + " is in the step twice with new tokens";
    CHECK_THROWS_WITH(of({far, 0, far}, {1, 1, 2})(), support::containing(text));
    CHECK_THROWS_WITH(of({0, far, far}, {1, 3, 1})(), support::containing(text));
    CHECK_NOTHROW(of({0, far, far - 1}, {1, 3, far == 1 ? 0 : 1})());
    CHECK_NOTHROW(of({far, 0, far}, {0, 1, 2})());  // one reads what the other appends to
    CHECK_NOTHROW(of({far, far, far}, {0, 0, 0})());
  }
  CHECK_THROWS_WITH(of({0, 0}, {1, 1})(), support::containing("sequence 0 is in the step twice"));
  // Each of many once, and one of them twice, wherever.
  std::vector<int> many;
  for (int i = 0; i < 500; ++i) many.push_back(i * 7919 % 100003);
  CHECK_NOTHROW(of(many, std::vector<int>(many.size(), 1))());
  for (const std::size_t at : {1u, 250u, 499u}) {
    std::vector<int> twice = many;
    twice[at] = many[at - 1];
    CHECK_THROWS_WITH(of(twice, std::vector<int>(many.size(), 1))(),
                      support::containing("sequence " + std::to_string(many[at - 1]) + " is in"));
  }
}

TEST_CASE("step: a workspace of what cannot be is refused by name", "[cache]") {
  using support::containing;
  CHECK_THROWS_WITH(workspace_bytes(host(), -1, 64, 64), containing("a workspace for steps of -1 sequences"));
  CHECK_THROWS_WITH(workspace_bytes(host(), 1, -8, 64), containing("rows of -8 and 64 numbers"));
  CHECK_THROWS_WITH(workspace_bytes(host(), 1, 64, 1 << 30), containing("rows of 64 and 1073741824 numbers"));
  struct nobody : executor {
    int workers() const override { return 0; }
    void run(idx, task, void*) override {}
  } none;
  CHECK_THROWS_WITH(workspace_bytes(host(none), 1, 64, 64), containing("an executor of 0 workers"));
  const std::span<unsigned char> nowhere(static_cast<unsigned char*>(nullptr), 1 << 20);
  CHECK_THROWS_WITH(plan(host(), {}, nowhere), containing("a workspace of 1048576 bytes is null"));
}
