#include "pages/hashes.hpp"
#include "support/tiered_engine.hpp"

#include <sys/resource.h>

#include <csignal>

namespace {

using namespace kvilt;
using support::tiered_engine;
using support::unsure_transfer;

std::vector<token_id> text_of(std::uint64_t seed, idx tokens) {
  std::vector<token_id> t;
  for (idx i = 0; i < tokens; ++i) t.push_back(token_id(support::mixed({seed, std::uint64_t(i)}) % 1000));
  return t;
}

// An engine with one prompt of 6 pages that was computed and closed, and others that took its place in a pool of 12.
template <class Hash = token_hash>
struct forgetful {
  explicit forgetful(idx pages = 12) : engine(pages) {}

  void run() {
    keep(prompt);
    for (std::uint64_t other = 2; other < 4; ++other) keep(text_of(other, 24));
  }
  // Computed, closed, and cached as long as there is room.
  idx keep(const std::vector<token_id>& text) {
    std::vector<typename tiered_engine<Hash>::text> open;
    const idx found = engine.open(open, text, {});
    REQUIRE(found >= 0);
    engine.manager().close(open[0].name);
    return found;
  }
  // What a prompt finds after all of it that tiers have is there.
  idx find(const std::vector<token_id>& text) {
    prefetch p = engine.tiers.begin(engine.manager(), text);
    while (!engine.tiers.done(p)) engine.tiers.poll(engine.manager());
    const idx found = keep(text);
    engine.tiers.release(engine.manager(), p);
    CHECK(engine.manager().counters().groups[0].pages.used == 0);
    return found;
  }

  tiered_engine<Hash> engine;
  std::vector<token_id> prompt = text_of(1, 25);
};

}  // namespace

TEST_CASE("page_tiers: what left the pool comes back from memory", "[tiers]") {
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 20, host_memory());
  f.engine.tiers.add(memory);
  f.run();
  const auto known = f.engine.tiers.find(f.prompt);
  CHECK(known.tokens == 24);
  CHECK(known.in_pool == 0);
  CHECK(f.engine.tiers.counters(0).stored == 6);
  CHECK(f.find(f.prompt) == 24);
  CHECK(f.engine.tiers.find(f.prompt).in_pool == 24);
  CHECK(f.engine.tiers.counters(0).loaded == 6);
  CHECK(f.engine.tiers.prefetches() == prefetch_counters{.asked = 1, .pages = 6, .arrived = 6});
  CHECK(f.engine.manager().counters().prefixes.asked == 25 + 24 + 24 + 25);
  CHECK(f.engine.manager().counters().prefixes.hit == 24);
}

TEST_CASE("page_tiers: a tier is gone on to from wherever the pool ends", "[tiers]") {
  for (const idx lost : {2, 1, 0}) {
    INFO(lost << " pages of the prompt have left the pool");
    forgetful<> f(9 - lost);
    memory_transfer<> memory(f.engine.memory(), 40, host_memory());
    f.engine.tiers.add(memory);
    f.keep(f.prompt);
    f.keep(text_of(2, 12));  // takes the place of the page that is not full, and of the last ones before it
    const auto known = f.engine.tiers.find(f.prompt);
    CHECK(known.tokens == 24);
    CHECK(known.in_pool == 24 - 4 * lost);
    CHECK(f.find(f.prompt) == 24);
    // Who asks is counted, and not who fetches for it.
    CHECK(f.engine.manager().counters().prefixes.asked == 25 + 12 + 25);
    CHECK(f.engine.manager().counters().prefixes.hit == 24);
    // Another text that goes on from its middle.
    std::vector<token_id> other = f.prompt;
    other[13] ^= 1;
    CHECK(f.find(other) == 12 + 1);
  }
}

TEST_CASE("page_tiers: what the first tier has no room for goes to the next, or is lost", "[tiers]") {
  const bool passes_on = GENERATE(true, false);
  const support::test_folder folder;
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 4, host_memory());
  file_transfer<> disk(f.engine.memory(), 30, folder / "tier");
  CHECK(std::filesystem::is_empty(folder.path()));
  f.engine.tiers.add(memory, {.passes_on = passes_on});
  f.engine.tiers.add(disk);
  f.run();
  f.keep(text_of(4, 24));
  CHECK(f.engine.tiers.counters(0).used == 4);
  CHECK(f.engine.tiers.counters(0).stored == 12);
  if (passes_on) {
    CHECK(f.engine.tiers.counters(0).passed_on == 8);
    CHECK(f.engine.tiers.counters(1).stored == 8);
    CHECK(f.find(f.prompt) == 24);
    CHECK(f.engine.tiers.counters(1).loaded == 6);
  } else {
    CHECK(f.engine.tiers.counters(0).dropped == 8);
    CHECK(f.engine.tiers.counters(1).stored == 0);
    CHECK(f.find(f.prompt) == 0);
  }
}

TEST_CASE("page_tiers: a page that was loaded stays, or moves", "[tiers]") {
  const bool keeps = GENERATE(true, false);
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 20, host_memory());
  f.engine.tiers.add(memory, {.keeps_loaded = keeps});
  f.run();
  const idx before = f.engine.tiers.counters(0).used;
  CHECK(f.find(f.prompt) == 24);
  // 6 pages left the pool for those that came back, and one for the prompt's last token.
  CHECK(f.engine.tiers.counters(0).used == before + 7 - (keeps ? 0 : 6));
  const idx stored = f.engine.tiers.counters(0).stored;
  f.keep(text_of(8, 24)), f.keep(text_of(9, 24));
  CHECK(f.engine.tiers.counters(0).stored == stored + (keeps ? 5 : 11));  // the prompt's are there already
  CHECK(f.find(f.prompt) == 24);
}

TEST_CASE("page_tiers: a flipped bit is seen, and what follows on its page goes with it", "[tiers]") {
  const bool in_file = GENERATE(false, true);
  const support::test_folder folder;
  forgetful<> f;
  support::test_memory blocks;
  memory_transfer<> memory(f.engine.memory(), 20, kvilt::memory<memory_space::host>::from(blocks));
  file_transfer<> disk(f.engine.memory(), 20, folder / "tier");
  f.engine.tiers.add(in_file ? static_cast<transfer&>(disk) : memory);
  f.run();
  // NOTE: the prompt's last page left first, and is in slot 0; its third in slot 3.
  const idx place = 3 * (in_file ? memory.page_bytes() : round_up(memory.page_bytes(), 64)) + 70;
  if (in_file) {
    unsigned char byte = 0;
    REQUIRE(pread(disk.descriptor(), &byte, 1, place) == 1);
    byte ^= 16;
    REQUIRE(pwrite(disk.descriptor(), &byte, 1, place) == 1);
  } else {
    blocks.blocks()[0].first[place] ^= 16;
  }
  CHECK(f.engine.tiers.prefixes() == 18);
  CHECK(f.find(f.prompt) == 8);
  CHECK(f.engine.tiers.counters(0).damaged == 1);
  CHECK(f.engine.tiers.counters(0).loaded == 5);
  CHECK(f.engine.tiers.prefetches().arrived == 2);
  // Computed again, it is found again.
  f.keep(text_of(8, 24)), f.keep(text_of(9, 24));
  CHECK(f.find(f.prompt) == 24);
  CHECK(f.engine.tiers.counters(0).damaged == 1);
}

TEST_CASE("page_tiers: a disk that is full, or that was cut short, costs a page and no more", "[tiers]") {
  const support::test_folder folder;
  forgetful<> f;
  file_transfer<> disk(f.engine.memory(), 20, folder / "tier");
  f.engine.tiers.add(disk);
  rlimit was{};
  getrlimit(RLIMIT_FSIZE, &was);
  const rlimit now{rlim_t(3 * disk.page_bytes() + 10), was.rlim_max};
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &now);
  f.keep(f.prompt);
  f.keep(text_of(2, 24));
  f.keep(text_of(3, 24));
  setrlimit(RLIMIT_FSIZE, &was);
  std::signal(SIGXFSZ, ignored);
  // The last three pages of the prompt went first and fitted; without those before them nobody finds them.
  CHECK(f.engine.tiers.counters(0).stored == 3);
  CHECK(f.engine.tiers.counters(0).failed_stores == 3);
  CHECK(f.engine.tiers.counters(0).used == 0);
  CHECK(f.find(f.prompt) == 0);
  for (std::uint64_t other = 10; other < 14; ++other) f.keep(text_of(other, 24));
  CHECK(f.engine.tiers.find(f.prompt).tokens == 24);
  REQUIRE(ftruncate(disk.descriptor(), 2 * disk.page_bytes()) == 0);
  CHECK(f.find(f.prompt) < 24);
  // NOTE: where something was written behind the cut since, zeros are read.
  CHECK(f.engine.tiers.counters(0).failed_loads + f.engine.tiers.counters(0).damaged > 0);
}

TEST_CASE("page_tiers: prefixes are told apart where all have one name", "[tiers]") {
  forgetful<one_name> f;
  memory_transfer<> memory(f.engine.memory(), 40, host_memory());
  f.engine.tiers.add(memory);
  f.run();
  // The same page of tokens behind another one.
  std::vector<token_id> other = text_of(7, 25);
  std::copy_n(f.prompt.begin() + 4, 8, other.begin() + 4);
  CHECK(f.engine.tiers.find(other).tokens == 0);
  CHECK(f.find(other) == 0);
  std::vector<token_id> behind = text_of(2, 25);
  std::copy_n(f.prompt.begin() + 4, 8, behind.begin() + 4);
  CHECK(f.engine.tiers.find(behind).tokens == 4);
  CHECK(f.find(f.prompt) == 24);
  // And under other keys.
  const std::vector<std::uint64_t> keys = {9};
  CHECK(f.engine.tiers.find(f.prompt, {.keys = keys}).tokens == 0);
}

TEST_CASE("page_tiers: a prefetch takes as many pages as there are", "[tiers]") {
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 40, host_memory());
  f.engine.tiers.add(memory);
  f.run();
  std::vector<tiered_engine<>::text> open;
  REQUIRE(f.engine.open(open, text_of(5, 32), {}) == 0);  // 4 pages are left
  prefetch p = f.engine.tiers.begin(f.engine.manager(), f.prompt);
  CHECK(f.engine.tiers.done(p));
  CHECK(f.engine.tiers.prefetches() == prefetch_counters{.asked = 1, .pages = 4, .arrived = 4, .no_room = 2});
  CHECK(f.engine.tiers.find(f.prompt).in_pool == 16);
  f.engine.tiers.release(f.engine.manager(), p);
  std::vector<page_move> moves;
  while (f.engine.manager().free_sequences() > 0) f.engine.manager().open({}, moves);
  p = f.engine.tiers.begin(f.engine.manager(), f.prompt);
  CHECK(f.engine.tiers.done(p));
  CHECK(f.engine.tiers.prefetches().no_room == 4);
}

TEST_CASE("page_tiers: pages are held until their copies have ended, also of who does not want them", "[tiers]") {
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 40, host_memory());
  const page_memory pool = f.engine.memory();
  unsure_transfer unsure(memory, pool, 1);
  f.engine.tiers.add(unsure);
  f.run();
  unsure.late = 100;
  prefetch kept = f.engine.tiers.begin(f.engine.manager(), f.prompt);
  prefetch unwanted = f.engine.tiers.begin(f.engine.manager(), text_of(2, 24));
  const auto used = [&] { return f.engine.manager().counters().groups[0].pages.used; };
  CHECK(used() == 6 + 5);  // the first one took the pages of the second, which takes those of the third
  f.engine.tiers.release(f.engine.manager(), unwanted);
  CHECK(used() == 6 + 5);
  CHECK_THROWS_WITH(f.engine.tiers.done(prefetch{7, 1}), support::containing("prefetch 7"));
  for (int i = 0; i < 3; ++i) f.engine.tiers.poll(f.engine.manager());
  CHECK(!f.engine.tiers.done(kept));
  unsure.late = 0;
  f.engine.tiers.poll(f.engine.manager());
  CHECK(f.engine.tiers.done(kept));
  CHECK(used() == 6);
  f.engine.tiers.release(f.engine.manager(), kept);
  CHECK(used() == 0);
  CHECK(f.keep(f.prompt) == 24);
}

TEST_CASE("page_tiers: a preempted sequence goes on with every row that it had", "[tiers]") {
  const idx length = GENERATE(24, 25, 27, 3);
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 60, host_memory());
  f.engine.tiers.add(memory);
  std::vector<tiered_engine<>::text> open;
  const std::vector<token_id> text = text_of(1, length);
  REQUIRE(f.engine.open(open, text, {}) == 0);
  parked_sequence parked = f.engine.tiers.preempt(f.engine.manager(), open[0].name);
  CHECK(f.engine.manager().counters().preempted == 1);
  for (std::uint64_t other = 2; other < 6; ++other) f.keep(text_of(other, 48));  // all of the pool
  CHECK(f.engine.tiers.find(text).in_pool == 0);
  prefetch p = f.engine.tiers.begin(f.engine.manager(), text, {.computed = 0});
  std::vector<page_move> moves;
  const opened_sequence o = f.engine.tiers.resume(f.engine.manager(), parked, text, moves);
  f.engine.tiers.release(f.engine.manager(), p);
  CHECK(o.tokens == length);
  CHECK(f.engine.manager().length(o.name) == length);
  f.engine.copy(moves);
  open[0].name = o.name;
  f.engine.check(open[0]);
  f.engine.manager().close(o.name);
  CHECK(f.engine.tiers.counters(0).failed_loads == 0);
}

TEST_CASE("page_tiers: a page on its way down takes the place of one before it that is damaged", "[tiers]") {
  const support::test_folder folder;
  forgetful<> f(6);
  memory_transfer<> near(f.engine.memory(), 1, host_memory()), far(f.engine.memory(), 20, host_memory());
  file_transfer<> between(f.engine.memory(), 1, folder / "tier");
  f.engine.tiers.add(near, {.keeps_loaded = false});
  f.engine.tiers.add(between);
  f.engine.tiers.add(far);
  const std::vector<token_id> text = text_of(1, 8), beginning(text.begin(), text.begin() + 4);
  const auto hold = [&](const std::vector<token_id>& t) {
    std::vector<tiered_engine<>::text> open;
    REQUIRE(f.engine.open(open, t, {}) >= 0);
    return open[0].name;
  };
  const sequence other = hold(text_of(9, 8));
  f.keep(beginning);
  f.keep(text_of(2, 16));  // the beginning leaves the pool
  f.keep(text_of(3, 4));   // and the first tier
  prefetch p = f.engine.tiers.begin(f.engine.manager(), text_of(2, 17));
  f.engine.tiers.release(f.engine.manager(), p);
  f.engine.manager().discard(other);
  f.keep(text);  // whose second page leaves next, and is in the first tier then
  std::vector<page_move> moves;
  const sequence held = f.engine.manager().open(text_of(2, 16), moves, {.computed = 0}).name;
  f.keep(text_of(4, 8));
  unsigned char byte = 0;
  REQUIRE(pread(between.descriptor(), &byte, 1, 3) == 1);
  byte ^= 1;
  REQUIRE(pwrite(between.descriptor(), &byte, 1, 3) == 1);
  f.keep(text_of(5, 4));
  CHECK(f.engine.tiers.counters(1).damaged == 1);
  CHECK(f.engine.tiers.find(text, {.computed = 0}).tokens == 0);
  f.engine.manager().close(held);
  for (std::uint64_t next = 20; next < 30; ++next) {
    f.keep(text_of(next, 16));
    f.engine.check_counts();
  }
  idx used = 0;
  for (int t = 0; t < 3; ++t) used += f.engine.tiers.counters(t).used;
  CHECK(f.engine.tiers.prefixes() <= 6 + used);
  CHECK(f.find(text_of(28, 17)) == 16);
}

TEST_CASE("page_tiers: a tier's page that others follow on goes once the pool has it too", "[tiers]") {
  forgetful<> f(24);
  memory_transfer<> memory(f.engine.memory(), 8, host_memory());
  const page_memory pool = f.engine.memory();
  unsure_transfer unsure(memory, pool, 1);
  f.engine.tiers.add(unsure);
  const auto hold = [&](const std::vector<token_id>& t) {
    std::vector<tiered_engine<>::text> open;
    REQUIRE(f.engine.open(open, t, {}) == 0);
    return open[0].name;
  };
  const std::vector<token_id> text = text_of(1, 32);
  const sequence first = hold(text_of(9, 32));
  f.keep(text);
  f.keep(text_of(2, 64));  // the text is in the tier alone
  REQUIRE(f.engine.tiers.find(text, {.computed = 0}).tokens == 32);
  unsure.late = 100;
  prefetch p = f.engine.tiers.begin(f.engine.manager(), text, {.computed = 0});
  f.engine.tiers.release(f.engine.manager(), p);
  unsure.late = 0;
  f.engine.tiers.poll(f.engine.manager());
  const sequence second = hold(text_of(8, 32));
  f.keep(text_of(7, 4));  // the last page of the text makes room; those before it wait for each other
  f.engine.manager().discard(first), f.engine.manager().discard(second);
  const sequence again = hold(text);
  f.engine.manager().store(again);
  for (std::uint64_t other = 30; other < 40; ++other) f.keep(text_of(other, 32));
  // All 8 slots have pages that are not in the pool.
  idx away = 0;
  for (std::uint64_t other = 30; other < 40; ++other) {
    const auto known = f.engine.tiers.find(text_of(other, 32), {.computed = 0});
    away += known.tokens - known.in_pool;
  }
  CHECK(away == 32);
  f.engine.manager().close(again);
}

TEST_CASE("page_tiers: a queue that lags is not asked for all that is in it with each page more", "[tiers]") {
  constexpr int texts = 64;
  tiered_engine<> engine(2 * texts, texts);
  memory_transfer<> memory(engine.memory(), texts, host_memory());
  const page_memory pool = engine.memory();
  unsure_transfer slow(memory, pool, 1);
  engine.tiers.add(slow);
  std::vector<tiered_engine<>::text> open;
  for (std::uint64_t i = 0; i < 2 * texts; ++i) {
    REQUIRE(engine.open(open, text_of(i, 4), {}) == 0);
    engine.manager().close(open.back().name);
  }
  slow.late_stores = 100;
  for (std::uint64_t i = 0; i < texts; ++i) REQUIRE(engine.open(open, text_of(1000 + i, 4), {}) == 0);
  CHECK(slow.under_way() == texts);
  CHECK(slow.asked() == texts);
  slow.late_stores = 0;
  engine.tiers.poll(engine.manager());
  CHECK(engine.tiers.counters(0).stored == texts);
}

TEST_CASE("page_tiers: rows that were kept are served to the text and the keys that they are of", "[tiers]") {
  const std::vector<std::uint64_t> tenant = {77};
  forgetful<> f, g;
  memory_transfer<> memory(f.engine.memory(), 60, host_memory()), other(g.engine.memory(), 60, host_memory());
  f.engine.tiers.add(memory);
  g.engine.tiers.add(other);
  const auto park = [&](forgetful<>& at, const std::vector<token_id>& text, const std::vector<std::uint64_t>& keys) {
    std::vector<tiered_engine<>::text> open;
    REQUIRE(at.engine.open(open, text, keys) >= 0);
    return at.engine.tiers.preempt(at.engine.manager(), open[0].name);
  };
  const std::vector<token_id> text = text_of(1, 7);
  parked_sequence parked = park(f, text, tenant);
  CHECK(std::ranges::equal(parked.text(), text));
  CHECK(std::ranges::equal(parked.keys(), tenant));
  CHECK(parked.keeps_rows());
  const idx open = f.engine.manager().counters().opened;
  std::vector<page_move> moves;
  const auto resume = [&](const std::vector<token_id>& t, const std::vector<std::uint64_t>& keys) {
    return f.engine.tiers.resume(f.engine.manager(), parked, t, moves, {.keys = keys});
  };
  std::vector<token_id> differs = text;
  differs[5] ^= 1;
  CHECK_THROWS_WITH(
      resume(differs, tenant),
      support::containing("a sequence of 7 tokens is resumed with a text of 7, which goes on otherwise behind 5"));
  CHECK_THROWS_WITH(resume(text_of(1, 6), tenant),
                    support::containing("a text of 6, which goes on otherwise behind 6"));
  CHECK_THROWS_WITH(resume(text, {}), support::containing("under 1 extra keys is resumed under 0"));
  CHECK_THROWS_WITH(resume(text, {78}), support::containing("resumed under 1, of which the first 0 are the same"));
  CHECK_THROWS_WITH(g.engine.tiers.forget(parked),
                    support::containing("has no rows of a sequence that was parked there"));
  CHECK(f.engine.manager().counters().opened == open);
  CHECK(f.engine.tiers.counters(0).used == 1);

  // Without its full page the rows wait.
  for (std::uint64_t next = 2; next < 6; ++next) f.keep(text_of(next, 48));
  opened_sequence o = resume(text, tenant);
  CHECK(o.tokens == 0);
  CHECK(parked.keeps_rows());
  f.engine.manager().discard(o.name);
  // Rows that the pool has are the first of them.
  std::vector<token_id> common = text;
  common[5] ^= 1;
  std::vector<tiered_engine<>::text> computed;
  REQUIRE(f.engine.open(computed, common, tenant) >= 0);
  f.engine.manager().close(computed[0].name);
  o = resume(text, tenant);
  CHECK(moves.size() == 1);
  f.engine.copy(moves);
  CHECK(o.tokens == 7);
  f.engine.check({o.name, tenant, text});
  CHECK(!parked.keeps_rows());
  f.engine.manager().close(o.name);

  // A slot is given back once.
  static_assert(!std::is_copy_constructible_v<parked_sequence> && !std::is_copy_assignable_v<parked_sequence>);
  parked = park(f, text_of(8, 3), {});
  parked_sequence moved = std::move(parked);
  const idx used = f.engine.tiers.counters(0).used;
  f.engine.tiers.forget(parked);
  CHECK(f.engine.tiers.counters(0).used == used);
  f.engine.tiers.forget(moved);
  f.engine.tiers.forget(moved);
  CHECK(f.engine.tiers.counters(0).used == used - 1);
}

TEST_CASE("page_tiers: a prefetch's own sequence is nobody's to preempt, and who ends it is told once", "[tiers]") {
  forgetful<> f;
  memory_transfer<> memory(f.engine.memory(), 40, host_memory());
  const page_memory pool = f.engine.memory();
  unsure_transfer unsure(memory, pool, 1);
  f.engine.tiers.add(unsure);
  f.run();
  std::vector<tiered_engine<>::text> open;
  REQUIRE(f.engine.open(open, text_of(4, 4), {}) == 0);
  unsure.late = 100;
  prefetch p = f.engine.tiers.begin(f.engine.manager(), f.prompt);
  CHECK(f.engine.manager().counters().open_sequences == 2);
  CHECK(f.engine.manager().last_opened() == open[0].name);
  f.engine.manager().close(open[0].name);
  CHECK_THROWS_WITH(f.engine.manager().last_opened(),
                    support::containing("no sequence is open but ahead of its prompt"));
  // NOTE: the handle that nobody has been given.
  const sequence hidden{open[0].name.slot + 1, 1};
  REQUIRE(f.engine.manager().length(hidden) == 0);
  f.engine.manager().discard(hidden);
  unsure.late = 0;
  CHECK_THROWS_WITH(f.engine.tiers.poll(f.engine.manager()), support::containing("is not open"));
  CHECK_NOTHROW(f.engine.tiers.poll(f.engine.manager()));
  CHECK_THROWS_WITH(f.engine.tiers.release(f.engine.manager(), p), support::containing("is not open"));
  CHECK_NOTHROW(f.engine.tiers.poll(f.engine.manager()));
  // The tier has its pages, and lets them go when others need their slots.
  CHECK(f.find(f.prompt) == 24);
  for (std::uint64_t other = 20; other < 34; ++other) f.keep(text_of(other, 24));
  CHECK(f.engine.tiers.find(f.prompt).tokens == 0);
}

TEST_CASE("page_tiers: a manager that does not tell them of its pages is refused", "[tiers]") {
  for (const bool pages : {false, true}) {
    manager_shape shape{.page_tokens = 4, .sequences = 4, .groups = {{.pages = 4}}};
    page_tiers<> tiers(shape), others(shape);
    std::vector<unsigned char> bytes(64);
    memory_transfer<> memory({{{bytes.data(), 16, 16}}, 4}, 8, host_memory());
    tiers.add(memory);
    others.add(memory);
    if (pages) shape.groups[0].hook = tiers.on_page();
    page_manager<lru> manager(shape, lru(4), token_hash(), pages ? others.on_prefix() : tiers.on_prefix());
    std::vector<page_move> moves;
    for (std::uint64_t i = 0; i < 2; ++i) {
      const sequence s = manager.open({}, moves).name;
      manager.reserve(s, 16, moves);
      manager.append(s, text_of(i, 16));
      manager.close(s);
    }
    if (pages) {
      CHECK_NOTHROW(tiers.poll(manager));
      CHECK_THROWS_WITH(others.poll(manager), support::containing("the tiers heard of 0"));
    } else {
      CHECK_THROWS_WITH(tiers.poll(manager), support::containing("free are 4; the tiers heard of 0: `on_page()`"));
      CHECK_THROWS_WITH(tiers.begin(manager, text_of(0, 16)), support::containing("`on_page()` is to be"));
    }
    CHECK(tiers.counters(0).loaded == 0);
  }
}

TEST_CASE("page_tiers: what no tiers are is refused", "[tiers]") {
  manager_shape two{.groups = {{.pages = 4}, {.pages = 4, .window = 16}}};
  CHECK_THROWS_WITH(page_tiers<>(two), support::containing("a manager of 2 groups; 1 is supported"));
  forgetful<> f, g;
  memory_transfer<> memory(f.engine.memory(), 4, host_memory());
  for (int i = 0; i < 4; ++i) f.engine.tiers.add(memory);
  CHECK_THROWS_WITH(f.engine.tiers.add(memory), support::containing("there are 4 tiers already"));
  unsigned char byte[64] = {};
  memory_transfer<> other({{{byte, 1, 1}}, 64}, 4, host_memory());
  g.engine.tiers.add(memory);
  CHECK_THROWS_WITH(g.engine.tiers.add(other), support::containing("a tier of pages of 1 bytes"));
  CHECK_THROWS_WITH(g.engine.tiers.add(memory, {}, lru(3)), support::containing("a policy for 3 slots, of 4"));
  CHECK_THROWS_WITH(g.engine.tiers.counters(1), support::containing("tier 1; there are 1"));
  CHECK_THROWS_WITH(page_memory({{byte, 2, 3}}, 1), support::containing("a piece of 3 bytes of each page, 2 apart"));
  CHECK_THROWS_AS(file_transfer<>(f.engine.memory(), 4, "/nonexistent/tier"), file_error);
  const support::test_folder folder;
  CHECK_THROWS_WITH(file_transfer<>(f.engine.memory(), -1, folder / "tier"), support::containing("a tier of -1 slots"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("page_tiers: whatever fails, in whatever order, no wrong byte is served", "[tiers]") {
  const int seed = GENERATE(range(0, 24));
  const support::test_folder folder;
  support::dice random(std::uint64_t(seed) + 100);
  tiered_engine<> engine(14, 6);
  support::test_memory blocks;
  const page_memory pool = engine.memory();
  memory_transfer<> memory(pool, 5 + random.below(10), kvilt::memory<memory_space::host>::from(blocks));
  // NOTE: as few slots in the middle as let an ancestor go there for what follows on it.
  const int middle = 1 + seed % 5;
  file_transfer<> disk(pool, middle, folder / "tier");
  memory_transfer<> last(pool, 30, host_memory());
  unsure_transfer near(memory, pool, std::uint64_t(seed)), between(disk, pool, std::uint64_t(seed) + 1),
      far(last, pool, std::uint64_t(seed) + 2);
  engine.tiers.add<aged_lfu>(near, {.passes_on = seed % 3 != 0, .keeps_loaded = seed % 2 == 0});
  engine.tiers.add<lru>(between, {.keeps_loaded = seed % 4 < 2});
  engine.tiers.add<cost_aware<>>(far, {.keeps_loaded = seed % 5 < 2});
  std::vector<tiered_engine<>::text> open, parked_texts;
  std::vector<parked_sequence> parked;
  std::vector<prefetch> fetched;

  // Texts that share beginnings.
  const auto some_text = [&] {
    std::vector<token_id> t = text_of(std::uint64_t(random.below(3)), 8 + random.below(3) * 4);
    const std::vector<token_id> more = text_of(std::uint64_t(10 + random.below(4)), random.below(18));
    t.insert(t.end(), more.begin(), more.end());
    return t;
  };
  const auto some_keys = [&] {
    return random.below(3) ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{std::uint64_t(random.below(2))};
  };
  const auto take = [&](auto& from) {
    const std::size_t which = std::size_t(random.below(int(from.size())));
    auto taken = std::move(from[which]);
    from.erase(from.begin() + std::ptrdiff_t(which));
    return taken;
  };
  const auto operation = [&](int kind) {
    if (kind < 4) {
      engine.open(open, some_text(), some_keys());
    } else if (kind < 6 && !open.empty()) {
      engine.manager().close(take(open).name);
    } else if (kind == 6 && !open.empty()) {
      engine.manager().discard(take(open).name);
    } else if (kind < 9) {
      const auto keys = some_keys();
      fetched.push_back(engine.tiers.begin(engine.manager(), some_text(), engine.options(keys)));
    } else if (kind == 9 && !fetched.empty()) {
      prefetch p = take(fetched);
      engine.tiers.release(engine.manager(), p);
    } else if (kind == 10) {
      engine.tiers.poll(engine.manager());
    } else if (kind == 11 && !open.empty() && random.below(2)) {
      parked_texts.push_back(take(open));
      parked.push_back(engine.tiers.preempt(engine.manager(), parked_texts.back().name));
    } else if (kind == 12 && !parked.empty() && engine.manager().free_sequences() > 0) {
      auto t = parked_texts.back();
      std::vector<page_move> moves;
      t.name = engine.tiers.resume(engine.manager(), parked.back(), t.tokens, moves, engine.options(t.keys)).name;
      engine.copy(moves);
      engine.tiers.forget(parked.back());
      parked.pop_back(), parked_texts.pop_back();
      open.push_back(t);
      if (!engine.compute(t)) engine.manager().discard(t.name), open.pop_back();
    } else if (kind == 13 && !open.empty()) {  // goes on
      auto& t = open[std::size_t(random.below(int(open.size())))];
      const std::size_t before = t.tokens.size();
      for (int i = random.below(7); i > 0; --i) t.tokens.push_back(random.below(3));
      if (!engine.compute(t)) t.tokens.resize(before);
    } else if (kind == 14) {
      for (unsure_transfer* t : {&near, &between, &far}) {
        t->late = 40 * random.below(3), t->late_stores = 40 * random.below(3);
        t->bad_stores = 20 * random.below(2), t->bad_loads = 20 * random.below(2);
      }
    } else if (kind == 15) {
      const auto [block, bytes] = blocks.blocks()[0];
      block[std::size_t(random.below(int(bytes)))] ^= static_cast<unsigned char>(1 << random.below(8));
    } else if (kind == 16) {
      const off_t place = random.below(int(middle * disk.page_bytes()));
      unsigned char byte = 0;
      if (pread(disk.descriptor(), &byte, 1, place) == 1) {
        byte ^= static_cast<unsigned char>(1 << random.below(8));
        REQUIRE(pwrite(disk.descriptor(), &byte, 1, place) == 1);
      }
    } else if (kind == 17 && random.below(6) == 0) {
      REQUIRE(ftruncate(disk.descriptor(), random.below(int(middle * disk.page_bytes()))) == 0);
    }
  };
  for (int i = 0; i < 500; ++i) {
    operation(random.below(18));
    engine.check_counts();
    for (const auto& t : open) engine.check(t);
  }
  near.waits = between.waits = far.waits = false;
  for (prefetch& p : fetched) engine.tiers.release(engine.manager(), p);
  for (parked_sequence& p : parked) engine.tiers.forget(p);
  for (const auto& t : open) engine.manager().close(t.name);
  for (int i = 0; i < 3; ++i) engine.tiers.poll(engine.manager());
  CHECK(near.under_way() + between.under_way() + far.under_way() == 0);
  CHECK(engine.manager().counters().groups[0].pages.used == 0);
  CHECK(engine.manager().counters().open_sequences == 0);
  idx loaded = 0, used = 0;
  for (int t = 0; t < 3; ++t) loaded += engine.tiers.counters(t).loaded, used += engine.tiers.counters(t).used;
  CHECK(engine.tiers.counters(0).stored > 20);
  CHECK(loaded > 0);
  // Every page that a tier has is some prefix's.
  CHECK(engine.tiers.prefixes() <= 14 + used);
}
