#include "pages/hashes.hpp"
#include "pages/parents_first.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"

#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/page_cache.hpp>
#include <kvilt/pages/priority.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using support::containing;
using tokens = std::vector<token_id>;
using keys = std::vector<std::uint64_t>;

// A prompt's pages from opening to giving back.
struct user {
  keys salt;
  tokens text;
  std::vector<page_id> pages;
  prefix_end end;  // of what is stored
  idx stored = 0;  // pages
};

// What is in a cache, by its texts.
template <class Cache>
class checked_cache {
 public:
  checked_cache(idx pages, int page_tokens) : cache_(pages, page_tokens), page_tokens_(page_tokens) {}
  Cache& real() { return cache_; }
  int page_tokens() const { return page_tokens_; }

  // Opens `salt` and `text`, and sees that it finds what is there. False: there are no pages for the rest.
  bool open(user& u) {
    u.end = cache_.open_root(u.salt);
    const prefix_hit hit = cache_.find(u.end, u.text, u.pages);
    check_found(u, hit);
    const idx missing = kvilt::ceil_div(idx(u.text.size()), page_tokens_) - hit.pages;
    const auto cached = std::count_if(u.pages.begin(), u.pages.end(),
                                      [&](page_id p) { return cache_.pool().state(p) == page_state::cached; });
    if (missing > cache_.available() - cached) {
      cache_.close_root(u.end);
      return false;
    }
    cache_.hold(u.pages, true);
    hold(u.pages);
    u.pages.resize(u.pages.size() + std::size_t(missing));
    const std::span<page_id> fresh(u.pages.data() + hit.pages, std::size_t(missing));
    cache_.take(fresh, [&](page_id p) { lose(p); });
    hold(fresh);
    for (std::size_t i = std::size_t(hit.pages * page_tokens_); i < u.text.size(); ++i)
      cache_.tokens(u.pages[i / std::size_t(page_tokens_)])[i % std::size_t(page_tokens_)] = u.text[i];
    u.end = hit.end;
    u.stored = hit.pages;
    return true;
  }
  void store(user& u) {
    const idx full = idx(u.text.size()) / page_tokens_;
    const std::vector<page_id> own = u.pages;
    std::span<page_id> fresh(u.pages.data() + u.stored, std::size_t(full - u.stored));
    idx expected = 0;
    for (idx i = u.stored; i < full; ++i) expected += named_.count(key_of(u, i + 1));
    REQUIRE(cache_.store(u.end, fresh, 0) == expected);
    for (idx i = u.stored; i < full; ++i) {
      const auto [there, is_new] = named_.emplace(key_of(u, i + 1), u.pages[std::size_t(i)]);
      REQUIRE(there->second == u.pages[std::size_t(i)]);
      REQUIRE(is_new == (own[std::size_t(i)] == u.pages[std::size_t(i)]));
      if (is_new) continue;
      --holders_[own[std::size_t(i)]];
      ++holders_[there->second];
    }
    u.stored = full;
  }
  void close(user& u, bool tail, int priority, completion after) {
    const int rest = int(idx(u.text.size()) % page_tokens_);
    if (tail && rest > 0 && u.stored == idx(u.pages.size()) - 1)
      if (cache_.store_tail(u.end, u.pages.back(), rest)) tails_[u.pages.back()] = key_of(u, -1);
    cache_.give(u.pages, priority, after);
    for (const page_id p : u.pages) --holders_[p];
    cache_.close_root(u.end);
  }
  void pin(const user& u, int more) {
    for (idx i = 0; i < u.stored; ++i) holders_[u.pages[std::size_t(i)]] += more;
    more > 0 ? cache_.pin(u.end) : cache_.unpin(u.end);
  }
  void evict(idx pages) {
    cache_.evict(pages, [&](page_id p) { lose(p); });
  }

  void check() const {
    const page_counts c = cache_.pool().counts();
    REQUIRE(c.free + c.used + c.cached + c.pending == c.total);
    idx used = 0, waiting = 0;
    for (const auto& [p, n] : holders_) {
      REQUIRE(cache_.pool().holders(p) == n);
      used += n > 0;
    }
    const auto waits = [&](page_id p) {
      const auto held = holders_.find(p);
      REQUIRE(cache_.pool().named(p));
      waiting += held == holders_.end() || held->second == 0;
    };
    for (const auto& [k, p] : named_) waits(p);
    for (const auto& [p, k] : tails_) waits(p);
    REQUIRE(c.used == used);
    REQUIRE(c.cached <= waiting);
    REQUIRE(c.cached + c.pending >= waiting);
  }
  // At the end nobody has anything, and all work is done.
  void check_idle() const {
    REQUIRE(cache_.pool().used() == 0);
    REQUIRE(cache_.pool().pending() == 0);
    REQUIRE(cache_.pool().cached() == idx(named_.size() + tails_.size()));
    std::set<keys> salts;
    for (const auto& [k, p] : named_) salts.insert(k.first);
    for (const auto& [p, k] : tails_) salts.insert(k.first);
    REQUIRE(cache_.index().roots() == idx(salts.size()));
  }

 private:
  using key = std::pair<keys, tokens>;
  // Of the first pages of a prompt, or of all of it.
  key key_of(const user& u, idx pages) const {
    return {u.salt, {u.text.begin(), pages < 0 ? u.text.end() : u.text.begin() + pages * page_tokens_}};
  }
  void hold(std::span<const page_id> pages) {
    for (const page_id p : pages) ++holders_[p];
  }
  void check_found(const user& u, const prefix_hit& hit) const {
    idx pages = 0;
    for (; (pages + 1) * page_tokens_ <= idx(u.text.size()); ++pages) {
      const auto there = named_.find(key_of(u, pages + 1));
      if (there == named_.end()) break;
      REQUIRE(pages < hit.pages);
      REQUIRE(u.pages[std::size_t(pages)] == there->second);
    }
    REQUIRE(hit.pages == pages);
    REQUIRE(idx(u.pages.size()) == pages);
    check_tail(u, hit);
  }
  void check_tail(const user& u, const prefix_hit& hit) const {
    const key before = key_of(u, hit.pages);
    idx best = 0;
    int candidates = 0;
    const auto look = [&](const key& k, page_id p) {
      if (k.first != u.salt || k.second.size() <= before.second.size() ||
          idx(k.second.size()) > (hit.pages + 1) * page_tokens_ ||
          !std::equal(before.second.begin(), before.second.end(), k.second.begin()))
        return;
      ++candidates;
      const auto end = std::mismatch(k.second.begin(), k.second.end(), u.text.begin(), u.text.end()).first;
      const idx rows = end - k.second.begin() - idx(before.second.size());
      if (p == hit.tail.page) REQUIRE(hit.tail.rows == rows);
      best = std::max(best, rows);
    };
    for (const auto& [k, p] : named_) look(k, p);
    for (const auto& [p, k] : tails_) look(k, p);
    if (candidates <= 8) REQUIRE(hit.tail.rows == best);
    REQUIRE((hit.tail.page >= 0) == (hit.tail.rows > 0));
  }
  // Only what nobody holds is evicted, and no page before those that go on from it.
  void lose(page_id p) {
    const auto held = holders_.find(p);
    REQUIRE((held == holders_.end() || held->second == 0));
    if (tails_.erase(p)) return;
    const auto at = std::find_if(named_.begin(), named_.end(), [&](const auto& n) { return n.second == p; });
    REQUIRE(at != named_.end());
    const auto begins = [&](const key& k) {
      return k.first == at->first.first && k.second.size() > at->first.second.size() &&
             std::equal(at->first.second.begin(), at->first.second.end(), k.second.begin());
    };
    for (const auto& [k, q] : named_) REQUIRE_FALSE(begins(k));
    for (const auto& [q, k] : tails_) REQUIRE_FALSE(begins(k));
    named_.erase(at);
  }

  Cache cache_;
  int page_tokens_;
  std::map<key, page_id> named_;
  std::map<page_id, key> tails_;
  std::map<page_id, idx> holders_;
};

template <class Cache>
class walk {
 public:
  walk(idx pages, int page_tokens, int seed) : cache_(pages, page_tokens), dice_(std::uint64_t(seed)) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate(dice_.below(8));
      cache_.check();
      // What was found is part of the result: a hash may not change it.
      trace_.push_back(cache_.real().pool().cached());
    }
    while (!users_.empty()) close(users_.size() - 1);
    while (!pinned_.empty()) unpin(pinned_.size() - 1);
    cache_.real().complete(work_);
    cache_.check_idle();
  }
  const std::vector<idx>& trace() const { return trace_; }

 private:
  void operate(int what) {
    const std::size_t which = users_.empty() ? 0 : std::size_t(dice_.below(int(users_.size())));
    if (what < 3) return open();
    if (what == 3) return cache_.evict(dice_.below(4));
    if (what == 4) return cache_.real().complete(work_ > 2 ? work_ - completion(dice_.below(3)) : 0);
    if (users_.empty()) return;
    if (what == 5) return cache_.store(users_[which]);
    if (what == 6 && dice_.below(6) == 0) {
      if (pinned_.size() < 3 && users_[which].stored > 0) {
        cache_.pin(users_[which], 1);
        pinned_.push_back(users_[which]);
      } else if (!pinned_.empty()) {
        unpin(pinned_.size() - 1);
      }
      return;
    }
    close(which);
  }
  void open() {
    user u;
    u.salt.assign(std::size_t(dice_.below(3)), 7);
    if (!users_.empty() && dice_.below(2)) {  // another's text goes on
      const user& other = users_[std::size_t(dice_.below(int(users_.size())))];
      u.text.assign(other.text.begin(), other.text.begin() + dice_.below(int(other.text.size()) + 1));
      u.salt = other.salt;
    }
    for (int i = dice_.below(4 * cache_.page_tokens() + 2); i > 0; --i) u.text.push_back(dice_.below(2));
    u.text.resize(std::min(u.text.size(), std::size_t(8 * cache_.page_tokens())));
    if (cache_.open(u)) users_.push_back(u);
  }
  void close(std::size_t which) {
    user& u = users_[which];
    if (dice_.below(3)) cache_.store(u);
    cache_.close(u, dice_.below(2), dice_.below(8), dice_.below(2) ? ++work_ : 0);
    users_.erase(users_.begin() + idx(which));
  }
  void unpin(std::size_t which) {
    cache_.pin(pinned_[which], -1);
    pinned_.erase(pinned_.begin() + idx(which));
  }

  checked_cache<Cache> cache_;
  support::dice dice_;
  std::vector<user> users_, pinned_;
  completion work_ = 0;
  std::vector<idx> trace_;
};

template <class Cache>
std::vector<idx> walked(idx pages, int page_tokens) {
  walk<Cache> w(pages, page_tokens, int(pages) + page_tokens);
  w.run(support::is_sanitized ? 1000 : 2500);
  return w.trace();
}

}  // namespace

TEMPLATE_TEST_CASE("page_cache: random verbs against a model, with every hash", "[pages]", lru, aged_lfu, priority,
                   cost_aware<>, parents_first) {
  for (const int page_tokens : {1, 2, 3, 16})
    for (const idx pages : {1, 7, 40}) {
      const std::vector<idx> plain = walked<page_cache<TestType>>(pages, page_tokens);
      CHECK((walked<page_cache<TestType, one_place>>(pages, page_tokens) == plain));
      CHECK((walked<page_cache<TestType, few_places>>(pages, page_tokens) == plain));
      // What was evicted lately is remembered by its name, and counts with one policy.
      if (!std::is_same_v<TestType, aged_lfu>)
        CHECK((walked<page_cache<TestType, one_name>>(pages, page_tokens) == plain));
      else
        walked<page_cache<TestType, one_name>>(pages, page_tokens);
    }
}

namespace {

// Opens, stores and gives back a prompt.
template <class Cache>
std::vector<page_id> pass(Cache& cache, const tokens& text, const keys& salt = {}) {
  prefix_end end = cache.open_root(salt);
  std::vector<page_id> pages;
  const prefix_hit hit = cache.find(end, text, pages);
  cache.count(hit, idx(text.size()), hit.tail.rows / 2);
  cache.hold(pages, true);
  const std::size_t full = text.size() / std::size_t(cache.page_tokens());
  pages.resize(full);
  const auto fresh = std::span(pages).subspan(std::size_t(hit.pages));
  cache.take(fresh);
  end = hit.end;
  for (std::size_t i = 0; i < fresh.size(); ++i)
    std::copy_n(text.begin() + (hit.pages + idx(i)) * cache.page_tokens(), cache.page_tokens(), cache.tokens(fresh[i]));
  cache.store(end, fresh);
  cache.give(pages);
  cache.close_root(end);
  return pages;
}

struct heard {
  prefix_event::kind what;
  page_id page;
  std::uint64_t name, before;
  tokens text;
  keys salt;
  bool operator==(const heard&) const = default;
};

}  // namespace

TEST_CASE("page_cache: statistics say what was asked, hit, copied and missed", "[pages]") {
  page_cache<lru> cache(64, 4);
  pass(cache, {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(cache.statistics() == prefix_statistics{8, 0, 0, 0, 0, 2, 0});
  pass(cache, {1, 2, 3, 4, 5, 6, 7, 9, 10});  // 4 in a page, 3 in a part of one: here one is copied
  CHECK(cache.statistics() == prefix_statistics{17, 4, 1, 2, 0, 3, 0});
  cache.evict(3);
  pass(cache, {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9});  // the first two pages were there
  CHECK(cache.statistics() == prefix_statistics{29, 4, 1, 2, 8, 6, 3});
  cache.evict(3);
  pass(cache, {2, 2, 3, 4, 5, 6, 7, 8});  // what is the same after another beginning is another page
  CHECK(cache.statistics().missed_capacity == 8);
}

TEST_CASE("page_cache: the salt is part of the key", "[pages]") {
  page_cache<> cache(8, 2);
  const tokens text{1, 2, 3, 4};
  const std::vector<page_id> first = pass(cache, text, {1}), second = pass(cache, text, {2});
  CHECK(cache.statistics().hit == 0);
  CHECK(pass(cache, text, {1}) == first);
  CHECK(pass(cache, text, {2}) == second);
  pass(cache, text, {});
  pass(cache, text, {1, 0});
  CHECK(cache.statistics().hit == 8);
  CHECK(cache.index().roots() == 4);
  cache.evict(8);
  CHECK(cache.index().roots() == 0);
  CHECK(cache.pool().free() == 8);
}

TEST_CASE("page_cache: events tell routers what is there, with salt", "[pages]") {
  std::vector<heard> events;
  const auto hear = [](void* self, const prefix_event& e) {
    static_cast<std::vector<heard>*>(self)->push_back(
        {e.what, e.page, e.name, e.before, {e.tokens.begin(), e.tokens.end()}, {e.keys.begin(), e.keys.end()}});
  };
  const token_hash hash(42);
  page_cache<lru> cache(2, 2, lru(2), hash, {}, {&events, hear});
  const keys salt{11, 12};
  pass(cache, {1, 2, 3, 4}, salt);
  pass(cache, {5, 6}, {});
  const tokens text{1, 2, 3, 4, 5, 6};
  const std::uint64_t root = hash.root(salt), one = hash.page(root, &text[0], 2), two = hash.page(one, &text[2], 2),
                      other = hash.page(hash.root({}), &text[4], 2);
  using kind = prefix_event::kind;
  CHECK(events == std::vector<heard>{{kind::stored, 0, one, root, {1, 2}, salt},
                                     {kind::stored, 1, two, one, {3, 4}, salt},
                                     {kind::removed, 1, two, one, {3, 4}, salt},
                                     {kind::stored, 1, other, hash.root({}), {5, 6}, {}}});
  events.clear();
  cache.evict(2);
  REQUIRE(events.size() == 2);
  CHECK(events[0] == heard{kind::removed, 0, one, root, {1, 2}, salt});
}

TEST_CASE("page_cache: a page that others hold a prefix through is not evicted", "[pages]") {
  page_cache<lru> cache(3, 1);
  prefix_end end = cache.open_root({});
  std::vector<page_id> pages(2);
  cache.take(pages);
  *cache.tokens(pages[0]) = 1, *cache.tokens(pages[1]) = 2;
  cache.store(end, pages);
  cache.give({pages.data(), 1});  // against the rules: its prefix goes on
  std::vector<page_id> all(2);
  CHECK_THROWS_AS(cache.take(all), out_of_pages);
  CHECK(cache.pool().state(pages[0]) == page_state::cached);
  cache.give({&pages[1], 1});
  cache.close_root(end);
  cache.evict(2);
  CHECK(cache.pool().free() == 3);
}

TEST_CASE("page_cache: a pinned prefix stays, and goes when it is not", "[pages]") {
  page_cache<lru> cache(3, 1);
  prefix_end end = cache.open_root({});
  std::vector<page_id> pages(2), all(2);
  cache.take(pages);
  *cache.tokens(pages[0]) = 1, *cache.tokens(pages[1]) = 2;
  cache.store(end, pages);
  cache.pin(end);
  cache.give(pages);
  CHECK(cache.available() == 1);
  CHECK_THROWS_WITH(cache.take(all), containing("2 pages are asked for; 1 are free and 0 cached of 3"));
  cache.unpin(end);
  cache.take(all);
  CHECK(cache.index().leaf(pages[0]));
  cache.close_root(end);
}

TEST_CASE("page_cache: a prefix that nobody holds is pinned", "[pages]") {
  page_cache<lru> cache(4, 1);
  const std::vector<page_id> pages = pass(cache, {1, 2});
  const prefix_end root = cache.open_root({});
  std::vector<page_id> found, all(4), some(2);
  const prefix_hit hit = cache.find(root, tokens{1, 2}, found);
  CHECK(found == pages);
  cache.pin(hit.end);
  CHECK(cache.pool().cached() == 0);
  CHECK(cache.available() == 2);
  pass(cache, {3, 4});
  cache.evict(4);
  CHECK(cache.find(root, tokens{1, 2}, found).pages == 2);
  cache.take(some);
  cache.give(some);
  cache.unpin(hit.end);
  cache.take(all);
  cache.close_root(root);
}

TEST_CASE("page_cache: no pages of no tokens", "[pages]") {
  CHECK_THROWS_WITH(page_cache<>(4, 0), containing("pages of 0 tokens"));
}
