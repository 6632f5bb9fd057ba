#include "support/catch.hpp"
#include "support/owner_checks.hpp"
#include "support/owners.hpp"
#include "support/tensors.hpp"

#include <kvilt/core/thread_pool.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr int sequences = 4;
constexpr cache_shape shape{
    .layers = 2, .kv_heads = 2, .sequences = sequences, .tokens = 240, .max_length = 60, .max_step = 6};

// `body(owner)` for an empty cache of each policy over poisoned memory.
template <class Body>
void each_owner(Body body) {
  for (int which = 0; which < owner_count; ++which) {
    const auto owner = make_owner(which, shape, 0xff);
    INFO(owner->name);
    body(*owner);
  }
}

// The same for policies with pages from a pool that is too small for all that is asked.
template <class Body>
void each_scarce_owner(Body body) {
  for (const int which : {1, 2, 4, 5, 7, 8}) {
    cache_shape scarce = shape;
    scarce.tokens = 60;
    const auto owner = make_owner(which, scarce, 0xff);
    INFO(owner->name);
    body(*owner);
  }
}

// Reserves until fewer than `pages` are free.
void take_until(subject& owner, sequence s, idx pages) {
  for (int n = 1; owner.free_pages() >= pages; ++n) REQUIRE(owner.try_reserve(s, n));
}

// Pages that a fork takes.
idx forked_pages(subject& owner, sequence s) {
  const idx before = owner.free_pages();
  const sequence child = owner.fork(host(), s);
  const idx taken = before - owner.free_pages();
  owner.close(child);
  REQUIRE(owner.free_pages() == before);
  return taken;
}

// As many sequences as there can be, of these lengths.
void fill(session& s, const std::vector<idx>& lengths) {
  for (int tag = 0; tag < int(lengths.size()); ++tag) {
    s.open(tag);
    support::fill(s, tag, lengths[std::size_t(tag)]);
  }
}

std::vector<std::vector<unsigned char>> live(subject& owner, const session& s, int count = sequences) {
  std::vector<std::vector<unsigned char>> all;
  for (int tag = 0; tag < count; ++tag) all.push_back(owner.live_bytes(s.at(tag)));
  return all;
}

}  // namespace

TEST_CASE("fork: is its parent at every length, and neither sees the other's later tokens", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 2);
    s.open(0);
    for (int length = 0; length <= 45; ++length) {
      s.fork(host(), 0, 1);
      REQUIRE(owner.length(s.at(1)) == length);
      const auto before = live(owner, s, 2);
      REQUIRE(before[0] == before[1]);
      s.grow_by(host(), {{1, 3}});
      REQUIRE(owner.live_bytes(s.at(0)) == before[0]);
      s.grow_by(host(), {{0, 1}, {1, 2}});  // against the oracle
      s.close(1);
    }
  });
}

TEST_CASE("fork: has as much room as its parent", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 1);
    s.open(0);
    support::fill(s, 0, 17);
    owner.reserve(s.at(0), 20);
    s.fork(host(), 0, 1);
    for (int i = 0; i < 20; ++i) s.step(host(), {{1, 1}, {0, 1}});
  });
}

TEST_CASE("fork: takes the page that it goes on in and those that are reserved, where others are full", "[cache]") {
  // Policies with pages, and which rows of the body are there after `fill` to 25 tokens.
  for (const auto& [which, rows] : {std::pair{1, 25}, {2, 6}, {4, 17}, {5, 25}, {7, 25}, {8, 20}}) {
    const auto owner = make_owner(which, shape, 0xff);
    INFO(owner->name);
    session s(*owner, 1);
    s.open(0);
    support::fill(s, 0, 25);
    const idx page = owner->page_rows(), entries = (rows + page - 1) / page;
    const auto reserved = [&] {
      const idx free = owner->free_pages();
      owner->reserve(s.at(0), 17);
      return free - owner->free_pages();
    }();
    // What a fill leaves reserved behind those rows is in a tail still.
    CHECK(forked_pages(*owner, s.at(0)) >= reserved + entries - rows / page);
    CHECK(forked_pages(*owner, s.at(0)) <= reserved + entries - rows / page + owner->tail);
  }
}

TEST_CASE("fork: of full pages takes none, and is there when none is free", "[cache]") {
  for (const int length : {1, 4, 8, 11, 12}) {
    const auto owner =
        make_subject(policy<paged<4>, fp16<>, q8<>>(fp16<>(8), q8<>(16)),
                     {.layers = 2, .kv_heads = 2, .sequences = 4, .tokens = 16, .max_length = 16, .max_step = 6}, 0xff);
    session s(*owner, 1);
    s.open(0);
    support::fill(s, 0, length);
    CHECK(forked_pages(*owner, s.at(0)) == (length % 4 != 0));
    for (int child = 1; child < 4; ++child) {
      if (length % 4 != 0 && owner->free_pages() == 0)
        refuses<out_of_pages>(*owner, {s.at(0)},
                              "sequence " + std::to_string(s.at(0).slot) + " has 1 pages to be forked; 0 of 4",
                              [&] { owner->fork(host(), s.at(0)); });
      else
        s.fork(host(), 0, child);
    }
  }
}

TEST_CASE("truncate: into a page that others have too, which stays as it is", "[cache]") {
  each_owner([](subject& owner) {
    for (const int cut : {1, 2, 3, 5, 8}) {
      session s(owner, 1);
      s.open(0);
      support::fill(s, 0, 24);
      s.fork(host(), 0, 1);
      for (const int tag : {0, 1}) {
        try {
          s.truncate(tag, s.length(tag) - cut);
        } catch (const invalid_argument&) {
          continue;  // a window that would show what is gone
        }
        const auto before = owner.live_bytes(s.at(1 - tag));
        s.resalt();
        s.grow_by(host(), {{tag, cut}});
        s.grow_by(host(), {{tag, 3}});
        REQUIRE(owner.live_bytes(s.at(1 - tag)) == before);
      }
      s.grow_by(host(), {{0, 2}, {1, 2}});
      s.close(0), s.close(1);
      REQUIRE(owner.free_pages() == owner.bytes().body_pages);
    }
  });
}

TEST_CASE("truncate: room in a page that others have too is reserved first, and may be missing", "[cache]") {
  const auto owner =
      make_subject(policy<paged<4>, fp16<>, q8<>>(fp16<>(8), q8<>(16)),
                   {.layers = 2, .kv_heads = 2, .sequences = 3, .tokens = 12, .max_length = 12, .max_step = 6}, 0xff);
  session s(*owner, 1);
  s.open(0);
  support::fill(s, 0, 8);
  s.fork(host(), 0, 1);
  s.truncate(1, 6);
  const sequence cut = s.at(1);
  const int one[] = {1};
  std::vector<unsigned char> workspace(owner->workspace_bytes(host(), 1));
  refuses(*owner, {s.at(0), cut}, "appends 1; that many are not reserved", [&] {
    owner->begin(host(), {&cut, 1}, one, workspace);
  });
  const sequence greedy = owner->open();
  owner->reserve(greedy, 1);
  refuses<out_of_pages>(*owner, {s.at(0), cut}, "needs 1 more pages for 2 tokens; 0 of 3",
                        [&] { owner->reserve(cut, 2); });
  CHECK_FALSE(owner->try_reserve(cut, 1));
  owner->reserve(cut, 0);
  owner->close(greedy);
  REQUIRE(owner->try_reserve(cut, 2));
  CHECK(owner->free_pages() == 0);
  REQUIRE(owner->try_reserve(cut, 2));  // it has its own page now
  const auto before = owner->live_bytes(s.at(0));
  s.resalt();
  s.step(host(), {{1, 2}});
  CHECK(owner->live_bytes(s.at(0)) == before);
  // The last of several to have a page writes into that.
  s.truncate(0, 5);
  s.close(1);
  s.grow_by(host(), {{0, 3}});
  CHECK(owner->free_pages() == 1);
}

TEST_CASE("truncate: what is reserved can be read at once, through views without a step", "[cache]") {
  using kv = policy<paged<4>, fp32<>>;
  const cache_shape few{.layers = 2, .kv_heads = 2, .sequences = 2, .tokens = 24, .max_length = 12, .max_step = 6};
  cache<kv> from(few, host_memory(), kv(8)), to(few, host_memory(), kv(8));
  const sequence s = from.open();
  std::vector<unsigned char> workspace(from.workspace_bytes(host(), 1));
  const int count[] = {7};
  from.reserve(s, 7);
  const step begun = from.begin(host(), {&s, 1}, count, workspace);
  const tensor<float> k = random_tensor(1, 7, 2, 8), v = random_tensor(2, 7, 2, 8);
  for (int layer = 0; layer < 2; ++layer) append(host(), from.view(layer), begun, k.rows(), v.rows());
  from.commit(begun);
  const sequence child = from.fork(host(), s), copied = to.open();
  from.truncate(s, 3);
  from.truncate(child, 3);
  from.reserve(child, 1);
  to.reserve(copied, 3);
  const row_copy copy{from.row(child), from.holds(child), to.row(copied), to.holds(copied, 3), {0, 3}};
  for (int layer = 0; layer < 2; ++layer) copy_rows(host(), from.view(layer), to.view(layer), {&copy, 1}, workspace);
  to.adopt(copied, to.holds(copied, 3));
  for (int layer = 0; layer < 2; ++layer)
    to.view(layer).each([&](const auto& seg) {
      for (int token = 0; token < 3; ++token)
        for (int head = 0; head < 2; ++head)
          for (int d = 0; d < 8; ++d) {
            const place p = seg.layout.locate(to.row(copied), head, token);
            REQUIRE(reinterpret_cast<const float*>(seg.k_row(p, head).codes)[d] == k.row(token, head)[std::size_t(d)]);
          }
    });
  CHECK(from.free_pages() == 4);
}

TEST_CASE("fork: may be cut as far as its parent", "[cache]") {
  each_owner([](subject& owner) {
    for (const int cut : {1, 2, 3, 7, 11}) {
      session s(owner, 1);
      s.open(0);
      for (int round = 0; round < 6; ++round) {
        support::fill(s, 0, std::min<idx>(s.length(0) + 9, 50));
        s.fork(host(), 0, 1);
        bool went = true;
        for (idx to = s.length(0) - cut; went && to >= 0; to -= cut) {
          const auto truncated = [&](int tag) {
            try {
              s.truncate(tag, to);
              return true;
            } catch (const invalid_argument&) {
              return false;
            }
          };
          went = truncated(0);
          REQUIRE(truncated(1) == went);
          const auto bytes = live(owner, s, 2);
          REQUIRE(bytes[0] == bytes[1]);
        }
        s.grow_by(host(), {{1, 2}, {0, 1}});
        s.close(1);
      }
      s.close(0);
    }
  });
}

TEST_CASE("fork: what has no room is not forked", "[cache]") {
  each_scarce_owner([](subject& owner) {
    session s(owner, 1);
    s.open(0);
    support::fill(s, 0, 25);
    owner.reserve(s.at(0), 12);
    const sequence greedy = owner.open();
    const idx pages = forked_pages(owner, s.at(0));
    REQUIRE(pages > 0);
    take_until(owner, greedy, pages);
    refuses<out_of_pages>(owner, {s.at(0), greedy}, "pages to be forked; " + std::to_string(owner.free_pages()) + " of",
                          [&] { owner.fork(host(), s.at(0)); });
    owner.truncate(greedy, 0);
    s.fork(host(), 0, 1);
    s.grow_by(host(), {{1, 1}});
    s.close(1);
  });
  each_owner([](subject& owner) {
    session s(owner, 1);
    fill(s, {3, 0, 0, 0});
    refuses<out_of_pages>(owner, {s.at(0)}, "all 4 sequences are open", [&] { owner.fork(host(), s.at(0)); });
  });
}

TEST_CASE("reorder: any parents, against the oracle", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 2);
    fill(s, {7, 20, 13, 1});
    const std::vector<std::vector<int>> beams = {{0, 1, 2, 3}, {1, 0, 2, 3}, {1, 2, 3, 0}, {1, 1, 1, 1},
                                                 {3, 0, 0, 2}, {0, 0, 3, 3}, {2, 3, 2, 3}};
    for (const std::vector<int>& parents : beams) {
      const auto before = live(owner, s);
      s.reorder(host(), {0, 1, 2, 3}, parents);
      const auto after = live(owner, s);
      for (std::size_t i = 0; i < sequences; ++i) {
        if (after[i] != before[std::size_t(parents[i])]) FAIL(owner.name << ": other bytes of sequence " << i);
        REQUIRE(owner.length(s.at(int(i))) == s.length(int(i)));
      }
      s.grow_by(host(), {{2, 1}, {0, 3}, {3, 2}, {1, 1}});
    }
  });
}

TEST_CASE("reorder: what every parent keeps is not copied", "[cache]") {
  // Also where there is no room for a copy.
  each_owner([](subject& owner) {
    session s(owner, 2);
    fill(s, {5, 9, 2, 12});
    const std::vector<unsigned char> bytes = owner.memory().contents();
    const idx pages = owner.free_pages();
    for (const std::vector<int>& parents : {std::vector{1, 0, 3, 2}, {3, 0, 1, 2}, {0, 1, 2, 3}})
      s.reorder(host(), {0, 1, 2, 3}, parents);
    s.reorder(host(), {3, 1}, {1, 0});
    CHECK((owner.memory().contents() == bytes && owner.free_pages() == pages));
    s.grow_by(host(), {{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  });
}

TEST_CASE("reorder: has room for all or changes nothing", "[cache]") {
  each_scarce_owner([](subject& owner) {
    session s(owner, 1);
    fill(s, {25, 0, 0, 0});
    owner.reserve(s.at(0), 12);
    const idx pages = (owner.close(s.at(3)), forked_pages(owner, s.at(0)));
    s.open(3);
    take_until(owner, s.at(3), 2 * pages);
    REQUIRE(owner.free_pages() >= pages);
    const std::vector<sequence> three = {s.at(0), s.at(1), s.at(2)};
    refuses<out_of_pages>(owner, three,
                          "a reorder of 3 sequences needs " + std::to_string(2 * pages) + " more pages; " +
                              std::to_string(owner.free_pages()) + " of",
                          [&] {
                            owner.reorder(host(), three, std::vector{0, 0, 0});
                          });
    s.reorder(host(), {0, 1, 2}, {0, 0, 2});
    REQUIRE(owner.free_pages() < pages);
    s.reorder(host(), {0, 1, 2}, {0, 2, 0});  // pages of what has no child are there for others
    CHECK((owner.length(s.at(0)) == 25 && owner.length(s.at(1)) == 0 && owner.length(s.at(2)) == 25));
    s.reorder(host(), {0, 1, 2}, {1, 1, 2});
    CHECK((owner.length(s.at(0)) == 0 && owner.length(s.at(1)) == 0 && owner.length(s.at(2)) == 25));
    CHECK(owner.free_pages() >= pages);
    s.step(host(), {{2, 0}});
  });
}

TEST_CASE("reorder: a page that its parent had with those that are replaced is copied for each of them", "[cache]") {
  const auto owner =
      make_subject(policy<paged<4>, fp16<>, q8<>>(fp16<>(8), q8<>(16)),
                   {.layers = 2, .kv_heads = 2, .sequences = 3, .tokens = 12, .max_length = 12, .max_step = 6}, 0xff);
  session s(*owner, 1);
  s.open(0);
  support::fill(s, 0, 8);
  s.fork(host(), 0, 1);
  s.truncate(0, 6);
  const sequence greedy = owner->open();
  owner->reserve(greedy, 1);
  const std::vector<sequence> both = {s.at(0), s.at(1)};
  refuses<out_of_pages>(*owner, both, "a reorder of 2 sequences needs 1 more pages; 0 of 3", [&] {
    owner->reorder(host(), both, std::vector{0, 0});
  });
  owner->close(greedy);
  s.reorder(host(), {0, 1}, {0, 0});
  CHECK(owner->free_pages() == 0);
  s.step(host(), {{0, 2}, {1, 1}});
}

TEST_CASE("reorder: names what is wrong, and changes nothing", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 1);
    fill(s, {3, 8, 4, 1});
    const std::vector<sequence> open = {s.at(0), s.at(1), s.at(2), s.at(3)};
    const auto refused = [&](std::vector<sequence> of, std::vector<int> parents, const std::string& text) {
      refuses(owner, open, text, [&] { owner.reorder(host(), of, parents); });
    };
    refused(open, {0, 1, 2}, "4 sequences are reordered by 3 parents");
    refused({open[0], open[1]}, {0, 2}, "has parent 2; there are 0 to 1");
    refused({open[0], open[1]}, {-1, 0}, "has parent -1; there are 0 to 1");
    refused({open[0], open[0]}, {0, 1}, "is reordered twice");
    refused({open[0], sequence{}}, {0, 0}, "sequence -1; the cache has 0 to 3");
    const int one[] = {1};
    owner.reserve(open[1], 1);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    owner.begin(host(), {&open[1], 1}, one, workspace);
    refused(open, {0, 1, 2, 3}, "reorder: step");
    refuses(owner, open, "fork: step", [&] { owner.fork(host(), open[1]); });
    owner.cancel();
    s.close(2);
    refuses(owner, {open[0], open[1], open[3]}, "is closed", [&] { owner.fork(host(), open[2]); });
    s.reorder(host(), {}, {});
    s.reorder(host(), {1}, {0});
  });
}

TEST_CASE("reorder: handles keep their names, and errors use them", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 1);
    fill(s, {3, 8, 4, 1});
    s.reorder(host(), {0, 1}, {1, 0});
    const sequence was_first = s.at(0);
    CHECK((owner.length(s.at(0)) == 8 && owner.length(s.at(1)) == 3));
    const int two[] = {2};
    owner.reserve(was_first, 2);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const step begun = owner.begin(host(), {&was_first, 1}, two, workspace);
    refuses(owner, {was_first}, "sequence " + std::to_string(was_first.slot) + " accepts 3 of 2",
            [&] { owner.commit(begun, std::vector{3}); });
    owner.cancel();
    s.close(0);
    s.open(0);  // where the other's tokens were
    s.grow_by(host(), {{0, 4}, {1, 1}});
  });
}

TEST_CASE("reorder: a row is where a sequence's tokens are", "[cache]") {
  using kv = policy<contiguous, fp32<>>;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .sequences = 2, .tokens = 8}, host_memory(), kv(8));
  const sequence s[] = {owner.open(), owner.open()};
  const int one[] = {1, 1}, swapped[] = {1, 0};
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 2));
  for (int round = 0; round < 2; ++round) {
    for (const sequence each : s) owner.reserve(each, 1);
    const step begun = owner.begin(host(), s, one, workspace);
    for (int i = 0; i < 2; ++i) {
      CHECK(owner.row(s[i]) == begun.items[i].sequence);
      CHECK(owner.row(s[i]) == (round ? s[1 - i].slot : s[i].slot));
    }
    owner.commit(begun);
    owner.reorder(host(), s, swapped);
  }
  owner.close(s[0]);
  CHECK_THROWS_AS(owner.row(s[0]), invalid_argument);
}

TEST_CASE("fork: pages that depend on each other are not copied at the same time", "[cache]") {
  using kvilt::detail::at_once, kvilt::detail::copied_page;
  const auto alone = [](std::vector<copied_page> copies) { return at_once(copies); };
  CHECK(alone({}) == 0);
  CHECK(alone({{0, 1}}) == 1);
  CHECK(alone({{0, 1}, {0, 2}, {3, 4}}) == 3);
  CHECK(alone({{0, 1}, {0, 2}, {3, 0}, {5, 6}}) == 2);  // 0 is read before it is written
  CHECK(alone({{0, 1}, {3, 4}, {4, 5}}) == 2);          // 4 is written before it is read
  CHECK(alone({{0, 1}, {3, 1}}) == 1);                  // 1 is written twice
}

TEST_CASE("fork: threads change no bits", "[cache][threads]") {
  thread_pool pool(3);
  for (const int which : {1, 2, 4, 6}) {
    const auto owner = make_owner(which, shape, 0xff);
    session s(*owner, 1);
    fill(s, {30, 5});
    s.fork(host(pool), 0, 2);
    s.fork(host(pool), 1, 3);
    s.reorder(host(pool), {0, 1, 2, 3}, {0, 0, 0, 3});
    const auto bytes = live(*owner, s);
    CHECK((bytes[0] == bytes[1] && bytes[0] == bytes[2] && bytes[0] != bytes[3]));
  }
}

TEST_CASE("reorder: every parent keeps its place for one child, and nothing is copied over what is read", "[cache]") {
  for (int n = 0; n <= 5; ++n) {
    int cases = 1;
    for (int i = 0; i < n; ++i) cases *= n;
    for (int which = 0; which < cases; ++which) {
      std::vector<int> parents;
      for (int i = 0, left = which; i < n; ++i, left /= n) parents.push_back(left % n);
      const std::vector<int> places = kvilt::detail::heirs(parents);
      std::vector<int> sorted = places;
      std::sort(sorted.begin(), sorted.end());
      std::vector<bool> read(std::size_t(n), false);
      for (const int parent : parents) read[std::size_t(parent)] = true;
      bool right = int(places.size()) == n;
      for (int i = 0; right && i < n; ++i) {
        const int parent = parents[std::size_t(i)], place = places[std::size_t(i)];
        right = sorted[std::size_t(i)] == i && (place == parent || !read[std::size_t(place)]) &&
                (parent != i || place == i);
      }
      if (!right) FAIL("parents " << which << " of " << n);
    }
  }
}
