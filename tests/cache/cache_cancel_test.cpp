#include "support/catch.hpp"
#include "support/owner_checks.hpp"
#include "support/owners.hpp"

namespace {

using namespace kvilt;
using namespace support;

constexpr int longest = 45;

// Runs `body(owner, reference)` over two empty caches of each policy, in steps of up to 1 and up to 6 tokens.
template <class Body>
void each_pair(Body body) {
  for (const int max_step : {1, 6}) {
    cache_shape shape = small_shape;
    shape.max_step = max_step;
    for (int which = 0; which < owner_count; ++which) {
      const auto owner = make_owner(which, shape, 0xff), reference = make_owner(which, shape, 0xff);
      INFO(owner->name << ", steps of " << max_step);
      body(*owner, *reference);
    }
  }
}

// One sequence in both, in steps of 1 and of the most; before each, `disturb(session, portion)` in the first alone.
template <class Disturb>
void leaves_no_trace(subject& owner, subject& reference, Disturb disturb) {
  session disturbed(owner, 2), plain(reference, 2);
  disturbed.open(0), plain.open(0);
  for (int i = 0; plain.length(0) < longest; ++i) {
    const int most = std::min(owner.shape().max_step, longest - int(plain.length(0)));
    const portion next{0, i % 2 ? most : 1};
    owner.reserve(disturbed.at(0), next.new_tokens), reference.reserve(plain.at(0), next.new_tokens);
    disturb(disturbed, next);
    disturbed.step(host(), {next}), plain.step(host(), {next});
    if (!(state_of(owner, std::vector{disturbed.at(0)}) == state_of(reference, std::vector{plain.at(0)})))
      FAIL("other bytes at " << plain.length(0) << " tokens");
    if (!same_bits(disturbed.answers(0), plain.answers(0))) FAIL("other bits at " << plain.length(0) << " tokens");
  }
}

}  // namespace

TEST_CASE("cache: a cancelled step is as if it had not been, whatever it appended", "[cache]") {
  for (const int layers : {0, 1, 2})
    each_pair([&](subject& owner, subject& reference) {
      INFO(layers << " layers have appended");
      leaves_no_trace(owner, reference, [&](session& s, const portion& next) {
        s.fail(host(), {next}, layers, [&](const step&) { owner.cancel(); });
      });
    });
}

TEST_CASE("cache: what a cancelled step wrote of other tokens is overwritten or never seen", "[cache]") {
  // The failed step is another text, and the longest there is.
  each_pair([](subject& owner, subject&) {
    for (const int layers : {1, 2}) {
      session s(owner, 2);
      s.open(0);
      for (int i = 0; s.length(0) < longest; ++i) {
        const int most = owner.shape().max_step;
        owner.reserve(s.at(0), std::min(most, 60 - int(s.length(0))));
        s.resalt();
        s.fail(host(), {{0, std::min(most, 60 - int(s.length(0)))}}, layers, [&](const step&) { owner.cancel(); });
        s.resalt();
        s.step(host(), {{0, 1}});
      }
      s.close(0);
    }
  });
}

TEST_CASE("cache: cancel without a step, twice, and after a commit", "[cache]") {
  each_pair([](subject& owner, subject&) {
    owner.cancel();
    session s(owner, 1);
    s.open(0);
    fill(s, 0, 3);
    owner.cancel();
    owner.cancel();
    CHECK(owner.length(s.at(0)) == 3);
    fill(s, 0, 9);
  });
}

TEST_CASE("cache: a cancelled step is not committed", "[cache]") {
  each_pair([](subject& owner, subject&) {
    const sequence s = owner.open();
    owner.reserve(s, 1);
    const int one[] = {1};
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const step cancelled = owner.begin(host(), {&s, 1}, one, workspace);
    owner.cancel();
    refuses(owner, {s}, "step 1 is committed; the one begun last is 1, already ended",
            [&] { owner.commit(cancelled, {}); });
    const step next = owner.begin(host(), {&s, 1}, one, workspace);
    refuses(owner, {s}, "step 1 is committed; the one begun last is 2", [&] { owner.commit(cancelled, {}); });
    owner.commit(next, {});
    CHECK(owner.length(s) == 1);
  });
}

TEST_CASE("cache: a step of which nothing is accepted need not have appended", "[cache]") {
  for (const int layers : {0, 1, 2})
    each_pair([&](subject& owner, subject& reference) {
      INFO(layers << " layers have appended");
      leaves_no_trace(owner, reference, [&](session& s, const portion& next) {
        const std::vector none = {0};
        s.fail(host(), {next}, layers, [&](const step& failed) { owner.commit(failed, none); });
      });
    });
}

TEST_CASE("cache: a step of no tokens need not append", "[cache]") {
  each_pair([](subject& owner, subject& reference) {
    leaves_no_trace(owner, reference, [&](session& s, const portion&) {
      for (int i = 0; i < 2; ++i) s.fail(host(), {{0, 0}}, 0, [&](const step& empty) { owner.commit(empty, {}); });
    });
  });
}

TEST_CASE("cache: in a step of no tokens the last query may be asked again", "[cache]") {
  const auto owner = make_owner(2, small_shape, 0xff);  // pages of 5, a tail of 16
  session s(*owner, 1);
  s.open(0);
  for (int length = 1; length < longest; ++length) {
    s.grow_by(host(), {{0, 1}});
    const sequence name = s.at(0);
    const int none[] = {0};
    std::vector<unsigned char> workspace(owner->workspace_bytes(host(), 1));
    step again = owner->begin(host(), {&name, 1}, none, workspace);
    step_item item = again.items[0];
    item.queries = 1;
    again.items = &item, again.q_rows = 1;
    const std::vector<float> q(std::size_t(2 * owner->k_dim), 0.0f);  // all keys alike: the mean of V
    std::vector<float> out(std::size_t(2 * owner->v_dim)), lse(2);
    owner->attend(host(), 0, again, packed_rows(q.data(), 2, owner->k_dim), packed_rows(out.data(), 2, owner->v_dim),
                  {lse.data(), 2});
    owner->cancel();
    // Every row is there: over poisoned memory one that is not would be NaN.
    INFO(length << " tokens");
    for (float x : out) CHECK(std::isfinite(x));
    CHECK(std::abs(lse[0] - std::log(float(length))) < 1e-5f);
  }
}

TEST_CASE("cache: appended twice in a step gives the same bytes", "[cache]") {
  each_pair([](subject& owner, subject& reference) {
    leaves_no_trace(owner, reference, [](session& s, const portion&) { s.repeat_appends(2); });
  });
}

TEST_CASE("cache: a step's workspace may have been written over when it is committed", "[cache]") {
  each_pair([](subject& first, subject& second) {
    const sequence a = first.open(), b = second.open(), c = second.open();
    first.reserve(a, 1), second.reserve(b, 1), second.reserve(c, 1);
    std::vector<unsigned char> workspace(std::max(first.workspace_bytes(host(), 2), second.workspace_bytes(host(), 2)));
    const int one[] = {1}, of_two[] = {0, 1};
    const sequence two[] = {c, b};
    const step mine = first.begin(host(), {&a, 1}, one, workspace);
    const step other = second.begin(host(), two, of_two, workspace);
    refuses(first, {a}, "has 2 accepted counts", [&] { first.commit(mine, std::vector{1, 1}); });
    first.commit(mine, {});
    CHECK(first.length(a) == 1);
    std::fill(workspace.begin(), workspace.end(), static_cast<unsigned char>(0x7f));
    second.commit(other, std::vector{0, 1});
    CHECK((second.length(b) == 1 && second.length(c) == 0));
  });
}

TEST_CASE("cache: another cache's step is not committed", "[cache]") {
  each_pair([](subject& first, subject& second) {
    const sequence a = first.open(), b = second.open();
    first.reserve(a, 1), second.reserve(b, 1);
    std::vector<unsigned char> workspace(first.workspace_bytes(host(), 1)), another = workspace;
    const int one[] = {1};
    const step mine = first.begin(host(), {&a, 1}, one, workspace);
    const step other = second.begin(host(), {&b, 1}, one, another);
    REQUIRE(mine.serial == other.serial);
    refuses(first, {a}, "step 1 is committed; the one begun last is 1", [&] { first.commit(other, {}); });
    refuses(second, {b}, "step 1 is committed; the one begun last is 1", [&] { second.commit(mine, {}); });
    first.commit(mine, {}), second.commit(other, {});
    CHECK((first.length(a) == 1 && second.length(b) == 1));
  });
}
