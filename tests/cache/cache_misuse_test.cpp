#include "support/catch.hpp"
#include "support/owner_checks.hpp"

namespace {

using namespace kvilt;
using namespace support;

template <class Body, class Policy>
void over(Body body, const cache_shape& shape, const Policy& policy) {
  const auto owner = make_subject(policy, shape, 0xff);
  INFO(owner->name);
  body(*owner);
}

// Runs `body(owner)` over an empty cache of each kind.
template <class Body>
void each_owner(Body body, const cache_shape& shape = small_shape) {
  over(body, shape, policy<contiguous, fp32<>>(8));
  over(body, shape, policy<paged<3>, fp16<>>(8));
  over(body, shape, ring<q8<>, q8<>, dynamic, 2>(16, window<dynamic, 2>(7)));
  over(body, shape, policy<paged<2>, q8<>, q8<>, window<dynamic, 3>, 3, 6>(16, window<dynamic, 3>(8)));
}

}  // namespace

TEST_CASE("cache: a closed sequence is named by every verb", "[cache]") {
  each_owner([](subject& owner) {
    const sequence old = owner.open();
    owner.close(old);
    refuses(owner, {}, "sequence " + std::to_string(old.slot) + " (opened as its 1th) is closed",
            [&] { owner.close(old); });
    const sequence now = owner.open();
    REQUIRE(now.slot == old.slot);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const int one[] = {1};
    const std::string text = "sequence " + std::to_string(old.slot) + " (opened as its 1th) is closed";
    refuses(owner, {now}, text, [&] { owner.close(old); });
    refuses(owner, {now}, text, [&] { owner.reserve(old, 1); });
    refuses(owner, {now}, text, [&] { (void)owner.try_reserve(old, 1); });
    refuses(owner, {now}, text, [&] { owner.truncate(old, 0); });
    refuses(owner, {now}, text, [&] { (void)owner.length(old); });
    refuses(owner, {now}, text, [&] { owner.begin(host(), {&old, 1}, one, workspace); });
    refuses(owner, {now}, "sequence 3; the cache has 0 to 2", [&] { owner.close({3, 1}); });
    refuses(owner, {now}, "sequence -1", [&] { owner.close({}); });
  });
}

TEST_CASE("cache: no more sequences open than there is room for", "[cache]") {
  each_owner([](subject& owner) {
    std::vector<sequence> open;
    for (int i = 0; i < 3; ++i) open.push_back(owner.open());
    refuses<out_of_pages>(owner, open, "all 3 sequences are open", [&] { owner.open(); });
  });
}

TEST_CASE("cache: room that is not there is refused", "[cache]") {
  cache_shape tight = small_shape;
  tight.tokens = 60;
  each_owner(
      [](subject& owner) {
        const sequence s = owner.open(), other = owner.open();
        refuses(owner, {s}, "reserves -1 tokens", [&] { owner.reserve(s, -1); });
        if (owner.paged || owner.width == 0) {
          const std::string text = "has 0 tokens and reserves 61 more; the longest may have 60";
          refuses(owner, {s}, text, [&] { owner.reserve(s, 61); });
          refuses(owner, {s}, text, [&] { (void)owner.try_reserve(s, 61); });
          refuses(owner, {s}, "reserves 9223372036854775807 more",
                  [&] { owner.reserve(s, std::numeric_limits<idx>::max()); });
        }
        if (owner.paged) {
          owner.reserve(s, 60);
          owner.reserve(s, 60);
          refuses<out_of_pages>(owner, {s, other}, std::to_string(owner.free_pages()) + " of ",
                                [&] { owner.reserve(other, 60); });
          const owner_state before = state_of(owner, std::vector{s, other});
          CHECK(!owner.try_reserve(other, 60));
          CHECK(state_of(owner, std::vector{s, other}) == before);
        }
      },
      tight);
}

TEST_CASE("cache: a step that cannot be is refused", "[cache]") {
  each_owner([](subject& owner) {
    const sequence s = owner.open(), other = owner.open();
    owner.reserve(s, 5);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 2));
    const auto begin = [&](std::vector<sequence> of, std::vector<int> tokens, std::size_t bytes) {
      return owner.begin(host(), of, tokens, std::span(workspace).first(bytes));
    };
    const std::size_t all = workspace.size();
    refuses(owner, {s}, "a step of 1 sequences has 2 token counts", [&] { begin({s}, {1, 1}, all); });
    refuses(owner, {s}, "sequence " + std::to_string(s.slot) + " is in the step twice", [&] {
      begin({s, s}, {1, 1}, all);
    });
    refuses(owner, {s}, "appends -2 tokens", [&] { begin({s}, {-2}, all); });
    refuses(owner, {s}, "a workspace of 8 bytes", [&] { begin({s}, {1}, 8); });
    refuses(owner, {s}, "the step's workspace leaves", [&] { begin({s}, {1}, 600); });
    if (owner.width > 0 || owner.tail > 0)
      refuses(owner, {s}, "appends 7 tokens in one step; max_step is 6: see in_chunks", [&] { begin({s}, {7}, all); });
    // A tail and 16-bit sinks take no page, so that the first tokens of some need none.
    if (owner.paged && owner.tail == 0)
      refuses(owner, {s}, "has 0 tokens and appends 4; that many are not reserved", [&] { begin({other}, {4}, all); });
    if (!owner.paged && owner.width == 0)
      refuses(owner, {s}, "has 0 tokens and appends 61; that many are not reserved", [&] { begin({s}, {61}, all); });
  });
}

TEST_CASE("cache: one step at a time, committed once", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 1);
    s.open(0);
    fill(s, 0, 4);
    const sequence of[] = {s.at(0)};
    const int tokens[] = {3};
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    owner.reserve(of[0], 6);
    const step first = owner.begin(host(), of, tokens, workspace);
    refuses(owner, {of[0]}, "begin: step 3 is begun and not committed",
            [&] { owner.begin(host(), of, tokens, workspace); });
    refuses(owner, {of[0]}, "close: step", [&] { owner.close(of[0]); });
    refuses(owner, {of[0]}, "truncate: step", [&] { owner.truncate(of[0], 1); });
    refuses(owner, {of[0]}, "accepts 4 of 3 tokens", [&] { owner.commit(first, std::vector{4}); });
    refuses(owner, {of[0]}, "accepts -1 of 3", [&] { owner.commit(first, std::vector{-1}); });
    refuses(owner, {of[0]}, "has 2 accepted counts", [&] { owner.commit(first, std::vector{1, 1}); });
    step stale = first;
    stale.serial = 1;
    refuses(owner, {of[0]}, "step 1 is committed; the one begun last is 3", [&] { owner.commit(stale, {}); });
    owner.commit(first, std::vector{0});
    refuses(owner, {of[0]}, "step 3 is committed; the one begun last is 3, already ended",
            [&] { owner.commit(first, {}); });
    CHECK(owner.length(of[0]) == 4);
  });
}

TEST_CASE("cache: a truncation that cannot be is refused", "[cache]") {
  each_owner([](subject& owner) {
    session s(owner, 1);
    s.open(0);
    fill(s, 0, 20);
    refuses(owner, {s.at(0)}, "is truncated to 21; it has 20 tokens", [&] { owner.truncate(s.at(0), 21); });
    refuses(owner, {s.at(0)}, "is truncated to -1", [&] { owner.truncate(s.at(0), -1); });
  });
}

TEST_CASE("cache: what does not exist is not viewed", "[cache]") {
  const cache<policy<contiguous, fp32<>>> owner(small_shape, host_memory(), policy<contiguous, fp32<>>(8));
  CHECK_THROWS_WITH(owner.view(2), containing("layer 2; the cache has layers 0 to 1"));
  CHECK_THROWS_WITH(owner.view(-1), containing("layer -1"));
}

TEST_CASE("cache: memory that is not there is refused", "[cache]") {
  // Gives `left` blocks and then no more.
  struct exhausted {
    int left;
    test_memory from;
    void* allocate(std::size_t bytes, std::size_t align) { return left-- > 0 ? from.allocate(bytes, align) : nullptr; }
    void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept { from.deallocate(p, bytes, align); }
  };
  using kv = policy<paged<3>, fp16<>>;
  for (const int left : {0, 1}) {
    exhausted resource{left, test_memory()};
    const auto make = [&] { cache<kv>(small_shape, memory<memory_space::host>::from(resource), kv(8)); };
    const idx missing =
        left == 0 ? plan_bytes(kv(8), small_shape).table_bytes : plan_bytes(kv(8), small_shape).kv_bytes;
    CHECK_THROWS_WITH(make(), containing("the memory resource has no " + std::to_string(missing) + " bytes"));
    CHECK_THROWS_AS(make(), out_of_pages);
    CHECK((resource.from.bytes() == 0 && resource.from.balanced()));
  }
}

TEST_CASE("cache: every verb refuses a cache that has been moved from", "[cache]") {
  const auto check = [](const auto& kv) {
    using owner_of = cache<std::remove_cvref_t<decltype(kv)>>;
    owner_of from(small_shape, host_memory(), kv);
    const sequence s = from.open();
    from.reserve(s, 2);
    std::vector<unsigned char> workspace(from.workspace_bytes(host(), 1));
    const int one[] = {1};
    const step begun = from.begin(host(), {&s, 1}, one, workspace);
    owner_of to = std::move(from);
    const std::string text = "sequence " + std::to_string(s.slot) + "; the cache has 0 to -1";
    // NOLINTBEGIN(bugprone-use-after-move)
    CHECK_THROWS_WITH(from.open(), containing("sequences are open"));
    CHECK_THROWS_WITH(from.length(s), containing(text));
    CHECK_THROWS_WITH(from.reserve(s, 1), containing(text));
    CHECK_THROWS_WITH((void)from.try_reserve(s, 1), containing(text));
    CHECK_THROWS_WITH(from.truncate(s, 0), containing(text));
    CHECK_THROWS_WITH(from.close(s), containing(text));
    CHECK_THROWS_AS(from.begin(host(), {&s, 1}, one, workspace), invalid_argument);
    CHECK_THROWS_WITH(from.view(1), containing("layer 1 of a cache that has been moved from"));
    CHECK_THROWS_AS(from.commit(begun), invalid_argument);
    CHECK_THROWS_AS(from.commit(step{}), invalid_argument);
    CHECK((from.free_sequences() == 0 && from.free_pages() == 0 && from.free_tokens() == 0));
    from.cancel();
    // NOLINTEND(bugprone-use-after-move)
    owner_of last(small_shape, host_memory(), kv);
    last = std::move(to);
    last.commit(begun);
    CHECK(last.length(s) == 1);
  };
  check(policy<contiguous, fp32<>>(8));
  check(ring<fp16<>>(8, window<>(7)));
  check(policy<paged<3>, fp16<>>(8));
  check(policy<paged<2>, q8<>, q8<>, window<dynamic, 3>, 3, 6>(16, window<dynamic, 3>(8)));
}

TEST_CASE("cache: positions for RoPE are one of each token", "[cache]") {
  cache<policy<contiguous, fp32<>>> owner(small_shape, host_memory(), policy<contiguous, fp32<>>(8));
  const sequence s[] = {owner.open()};
  owner.reserve(s[0], 3);
  const int tokens[] = {3};
  const idx positions[] = {1, 2};
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  CHECK_THROWS_WITH(owner.begin(host(), s, tokens, workspace, positions),
                    containing("a step of 3 tokens has 2 positions"));
  CHECK(owner.length(s[0]) == 0);
  owner.commit(owner.begin(host(), s, tokens, workspace));
}

TEST_CASE("cache: chunks follow each other without gap or overlap", "[cache]") {
  for (idx tokens : {0, 1, 6, 7, 8, 14, 20}) {
    idx next = 0;
    in_chunks(tokens, 7, [&](idx first, int count) {
      CHECK(first == next);
      CHECK((count >= 1 && count <= 7));
      next += count;
    });
    CHECK(next == tokens);
  }
  CHECK_THROWS_WITH(in_chunks(5, 0, [](idx, int) {}), containing("steps of 0 tokens"));
}

TEST_CASE("cache: more tokens than are counted are neither held nor adopted", "[cache]") {
  using kv = ring<fp16<>>;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = 8}, host_memory(), kv(16, window<>(4)));
  const sequence s = owner.open();
  for (const idx more : {idx(-1), idx(1) << 62, std::numeric_limits<idx>::max()})
    CHECK_THROWS_WITH(owner.holds(s, more), containing("of 0 tokens is to hold " + std::to_string(more) + " more"));
  const idx far = std::numeric_limits<idx>::max();
  CHECK_THROWS_WITH(owner.adopt(s, {far, far, far, far}), containing("is to hold " + std::to_string(far) + " by copy"));
  CHECK(owner.length(s) == 0);
}
