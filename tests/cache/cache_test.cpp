#include "support/catch.hpp"
#include "support/owner_checks.hpp"
#include "support/owners.hpp"

namespace {

using namespace kvilt;
using namespace support;

// Runs `body(owner)` over an empty cache of each policy.
template <class Body>
void each_owner(Body body, const cache_shape& shape = small_shape) {
  for (int which = 0; which < owner_count; ++which) {
    const auto owner = make_owner(which, shape, 0xff);
    INFO(owner->name);
    body(*owner);
  }
}

std::vector<float> last(const std::vector<float>& all, std::size_t count) {
  return {all.end() - std::ptrdiff_t(std::min(count, all.size())), all.end()};
}

}  // namespace

TEST_CASE("cache: after a truncation at any offset all answers are right", "[cache]") {
  each_owner([](subject& owner) {
    int refusals = 0;
    for (idx cut = 0; cut <= 41; ++cut) {
      session s(owner, 2);
      s.open(0);
      fill(s, 0, 41);
      const owner_state before = state_of(owner, std::vector{s.at(0)});
      try {
        s.truncate(0, cut);
        s.resalt();
        fill(s, 0, 47);
      } catch (const invalid_argument& refusal) {
        ++refusals;
        CHECK(state_of(owner, std::vector{s.at(0)}) == before);
        CHECK_THAT(refusal.what(), containing("its window would show token"));
        // What the last step appended can be taken back, unless a window has given its pages back.
        CHECK((owner.paged || cut < 39));
      }
      s.close(0);
    }
    CHECK((refusals == 0) == (owner.width == 0));
  });
}

TEST_CASE("cache: a sequence cut to nothing is as good as new", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 1);
    s.open(0);
    fill(s, 0, 40);
    s.truncate(0, 0);
    // Without a table the open sequence keeps its page.
    CHECK(owner.free_pages() == owner.bytes().body_pages - (owner.paged ? 0 : 1));
    s.resalt();
    fill(s, 0, 12);
    if (!owner.paged || owner.width == 0) s.truncate(0, 11);
    fill(s, 0, 30);
  });
}

TEST_CASE("cache: a ring is cut as far as it holds the window, and no further", "[cache]") {
  const auto owner = make_owner(3, small_shape);  // window 7, steps of 6 and so 12 slots, 2 sinks
  session s(*owner, 1);
  s.open(0);
  fill(s, 0, 40);  // tokens 28 ... 39 are there: 34 sees from 28 on
  refuses(*owner, {s.at(0)}, "is truncated to 33; its window would show token 27, and those before 28 are gone",
          [&] { owner->truncate(s.at(0), 33); });
  s.truncate(0, 34);
  fill(s, 0, 40);
}

TEST_CASE("cache: rejected tokens leave no trace", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    const auto speculating = make_owner(which, small_shape, 0xff), plain = make_owner(which, small_shape, 0xff);
    INFO(speculating->name);
    session a(*speculating, 2), b(*plain, 2);
    a.open(0), b.open(0);
    for (int i = 0; i < 16; ++i) {
      const int accepted = i % 4;
      const std::size_t seen = b.answers(0).size();
      // The first `accepted` tokens of the two are the same, the rest of a's is rejected.
      a.grow_by(host(), {{0, accepted + 2, accepted}});
      b.grow_by(host(), {{0, accepted}});
      a.grow_by(host(), {{0, 1}}), b.grow_by(host(), {{0, 1}});
      const std::size_t both_layers = (b.answers(0).size() - seen) / std::size_t(accepted + 1);
      if (!same_bits(last(a.answers(0), both_layers), last(b.answers(0), both_layers)))
        FAIL("other bits after step " << i);
    }
  }
}

TEST_CASE("cache: a ring has no end, any other cache the longest that was asked for", "[cache]") {
  each_owner([](subject& owner) {
    const bool ring = !owner.paged && owner.width > 0;
    CHECK(owner.max_length() == (ring ? idx(1) << 62 : small_shape.max_length));
    session s(owner, 1, 1, 2);
    s.open(0);
    if (ring) fill(s, 0, 3 * small_shape.max_length);
  });
}

TEST_CASE("cache: pages are free or held, and come back", "[cache]") {
  each_owner([](subject& owner) {
    if (!owner.paged) return;
    const idx total = owner.bytes().body_pages;
    CHECK(owner.free_pages() == total);
    session s(owner, 1);
    s.open(0), s.open(1);
    fill(s, 0, 30), fill(s, 1, 17);
    CHECK(owner.free_pages() < total);
    s.close(1), s.close(0);
    CHECK(owner.free_pages() == total);
  });
}

TEST_CASE("cache: a window gives a page back when no later query sees it, none earlier", "[cache]") {
  const auto owner = make_owner(5, small_shape);  // pages of 2, window 5
  session s(*owner, 1);
  s.open(0);
  const idx total = owner->bytes().body_pages;
  for (idx length = 1; length <= 40; ++length) {
    fill(s, 0, length);
    // The next query stands at `length` and sees from length - 4 on.
    const idx first_page = std::max<idx>(length - 4, 0) / 2, pages = (length + 1) / 2;
    CHECK(total - owner->free_pages() == pages - first_page);
  }
}

TEST_CASE("cache: all that is ever held is allocated at once and given back", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    const auto owner = make_owner(which, small_shape);
    INFO(owner->name);
    CHECK(idx(owner->memory().bytes()) == owner->bytes().bytes());
    session s(*owner, 1);
    s.open(0);
    fill(s, 0, 30);
    CHECK(idx(owner->memory().bytes()) == owner->bytes().bytes());
  }
  test_memory memory;
  {
    cache<policy<paged<4>, fp16<>>> from(small_shape, kvilt::memory<memory_space::host>::from(memory),
                                         policy<paged<4>, fp16<>>(8));
    const sequence s = from.open();
    from.reserve(s, 10);
    auto to = std::move(from);
    CHECK(to.length(s) == 0);
    to.close(s);
  }
  CHECK(memory.bytes() == 0);
  CHECK(memory.balanced());
}
