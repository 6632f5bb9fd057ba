#include "pages/hashes.hpp"
#include "pages/parents_first.hpp"
#include "pages/simulated_engine.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <kvilt/pages/concurrent_page_manager.hpp>
#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/priority.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace kvilt;
using simulated::content;
using simulated::hold;
using support::containing;
using tokens = std::vector<token_id>;
using moves = std::vector<page_move>;

tokens count_from(token_id first, int n) {
  tokens t;
  for (int i = 0; i < n; ++i) t.push_back(first + i);
  return t;
}

// The memory of one group, which threads read and write with no lock of their own: what the manager lets two of them touch
// at a time TSan sees, and without it the names of who writes, and rows that are not what they should be.
class shared_memory {
 public:
  shared_memory(const page_group& g, int page_tokens, const std::atomic<completion>& done)
      : done_(done),
        page_tokens_(page_tokens),
        rows_(std::size_t(g.pages * page_tokens), simulated::poison),
        taken_(std::size_t(g.pages), 0),
        writers_(std::size_t(g.pages)),
        read_by_(std::size_t(g.pages)) {}

  static void hear(void* self, page_id p, page_event e) { static_cast<shared_memory*>(self)->hear(std::size_t(p), e); }
  content read(page_id p, idx row) const { return rows_[std::size_t(p * page_tokens_ + row)]; }
  void write(page_id p, idx row, content c, int thread) {
    hold(writers_[std::size_t(p)].exchange(thread) == 0, "two threads write a page");
    rows_[std::size_t(p * page_tokens_ + row)] = c;
    hold(writers_[std::size_t(p)].exchange(0) == thread, "two threads write a page");
  }
  // Work up to here reads the page.
  void reads(page_id p, completion work) {
    std::atomic<completion>& last = read_by_[std::size_t(p)];
    for (completion before = last; before < work && !last.compare_exchange_weak(before, work);) {
    }
  }
  bool failed() const { return failed_; }

 private:
  // NOTE: does not throw, for the manager is in the middle of a verb.
  void hear(std::size_t p, page_event e) {
    const auto rows = std::span(rows_).subspan(p * std::size_t(page_tokens_), std::size_t(page_tokens_));
    const bool takes = e == page_event::taken;
    if (!takes) std::ranges::fill(rows, simulated::poison);
    if (taken_[p] == takes) failed_ = true;
    if (takes && read_by_[p] > done_) failed_ = true;
    if (std::ranges::count(rows, simulated::poison) != page_tokens_) failed_ = true;
    taken_[p] = takes;
  }

  const std::atomic<completion>& done_;
  int page_tokens_;
  std::vector<content> rows_;
  std::vector<char> taken_;
  std::vector<std::atomic<int>> writers_;
  std::vector<std::atomic<completion>> read_by_;
  std::atomic<bool> failed_{false};
};

// What threads share.
template <class Manager>
struct engine {
  explicit engine(manager_shape shape) : page_tokens(shape.page_tokens), manager((listen(shape), shape)) {}
  void listen(manager_shape& shape) {
    for (page_group& g : shape.groups) {
      groups.push_back(g);
      memories.push_back(std::make_unique<shared_memory>(g, shape.page_tokens, done));
      g.hook = {memories.back().get(), shared_memory::hear};
    }
  }

  int page_tokens;
  std::vector<page_group> groups;
  std::atomic<completion> done{0};
  std::vector<std::unique_ptr<shared_memory>> memories;
  Manager manager;
  std::mutex launching;
  completion work = 0;
};

// One thread: its sequences and pins, and what it did.
template <class Manager>
class worker {
 public:
  worker(engine<Manager>& e, int number) : engine_(e), m_(e.manager), number_(number), dice_(std::uint64_t(number)) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) operate(dice_.below(20));
  }
  void end() {
    while (!open_.empty()) finish(0, 1);
    for (pinned_prefix& p : pins_) m_.unpin(p);
    pins_.clear();
  }

  idx sequences() const { return idx(open_.size()); }
  idx length() const {
    idx n = 0;
    for (const running& r : open_) n += idx(r.rows.size());
    return n;
  }
  idx opened = 0, appended = 0, hit = 0;

 private:
  struct running {
    sequence name;
    std::vector<std::uint64_t> keys;
    tokens text;                // that the sequence has
    std::vector<content> rows;  // of these
    tokens prompt;              // what is left of it
    int priority;
  };
  int page_tokens() const { return engine_.page_tokens; }

  void operate(int what) {
    if (what < 4) return open();
    if (what == 4) return complete();
    if (what == 5) return ask();
    if (what == 6) return pin();
    if (open_.empty()) return open();
    const std::size_t which = std::size_t(dice_.below(int(open_.size())));
    running& r = open_[which];
    if (what == 7) return truncate(r);
    if (what == 8) return fork(r);
    if (what == 9) {
      m_.store(r.name);
      return check(r);
    }
    if (what < 12) return finish(which, dice_.below(3));
    if (what == 12) return launch();
    if (what < 15) return step_all();
    step(r);
  }

  // Few texts, that begin alike.
  void open() {
    running r;
    r.keys.assign(std::size_t(dice_.below(2)), 5);
    r.priority = dice_.below(8);
    const int start = dice_.below(3), pages = dice_.below(12);
    r.prompt = count_from(100 * start, pages * page_tokens());
    for (int i = dice_.below(2 * page_tokens() + 1); i > 0; --i) r.prompt.push_back(dice_.below(2));
    moves out;
    opened_sequence o;
    try {
      o = m_.open(r.prompt, out, {r.keys, r.priority, dice_.below(2)});
    } catch (const out_of_pages&) {
      hold(out.empty(), "a refusal moves pages");
      if (!open_.empty()) finish(std::size_t(dice_.below(int(open_.size()))), 0);
      return;
    }
    ++opened;
    hit += o.tokens;
    r.name = o.name;
    r.text.assign(r.prompt.begin(), r.prompt.begin() + o.tokens);
    r.prompt.erase(r.prompt.begin(), r.prompt.begin() + o.tokens);
    for (const token_id t : r.text) r.rows.push_back(next(r, t));
    copy(out);
    check(r);
    open_.push_back(std::move(r));
  }
  static content next(const running& r, token_id t) {
    content c = 1;
    for (const std::uint64_t k : r.keys) c = simulated::next_content(c, k + 1000);
    return simulated::next_content(r.rows.empty() ? c : r.rows.back(), std::uint64_t(t));
  }
  // NOTE: others may take pages between the verb that asked for this and now.
  void copy(const moves& all) {
    if (dice_.below(4) == 0) std::this_thread::yield();
    for (const page_move& move : all)
      for (int i = 0; i < move.rows; ++i) {
        shared_memory& in = *engine_.memories[std::size_t(move.group)];
        in.write(move.to, i, in.read(move.from, i), number_);
      }
  }
  bool reserve(running& r, idx n) {
    moves out;
    const bool reserved = m_.try_reserve(r.name, n, out);
    copy(out);
    if (!reserved) hold(out.empty(), "what fails moves pages");
    return reserved;
  }
  // What the prompt says next, or a model.
  token_id say(running& r) {
    token_id t = dice_.below(2);
    if (!r.prompt.empty()) {
      t = r.prompt.front();
      r.prompt.erase(r.prompt.begin());
    }
    r.rows.push_back(next(r, t));
    r.text.push_back(t);
    const idx at = idx(r.text.size()) - 1;
    for (std::size_t g = 0; g < engine_.memories.size(); ++g)
      engine_.memories[g]->write(m_.pages(r.name, int(g))[std::size_t(at / page_tokens())], at % page_tokens(),
                                 r.rows.back(), number_);
    return t;
  }
  void step(running& r) {
    const idx n = 1 + (r.prompt.empty() ? dice_.below(3) : dice_.below(int(r.prompt.size())));
    if (!reserve(r, n)) return finish(std::size_t(&r - open_.data()), dice_.below(3));
    tokens said;
    for (idx i = 0; i < n; ++i) said.push_back(say(r));
    m_.append(r.name, said);
    appended += n;
    check(r);
  }
  void step_all() {
    std::vector<sequence> each;
    std::vector<running*> all;
    for (running& r : open_) {
      each.push_back(r.name);
      all.push_back(&r);
    }
    moves out;
    const std::size_t reserved = std::size_t(m_.try_reserve(each, 1, out));
    copy(out);
    each.resize(reserved), all.resize(reserved);
    tokens said;
    for (running* r : all) said.push_back(say(*r));
    m_.append(each, said);
    appended += idx(each.size());
    for (running* r : all) check(*r);
  }
  void truncate(running& r) {
    const idx kept = dice_.below(int(r.text.size()) + 1);
    try {
      m_.truncate(r.name, kept);
    } catch (const invalid_argument&) {
      return hold(engine_.groups.size() > 1, "a sequence without windows is not truncated");
    }
    r.text.resize(std::size_t(kept));
    r.rows.resize(std::size_t(kept));
    check(r);
  }
  void fork(const running& parent) {
    running child = parent;
    try {
      child.name = m_.fork(parent.name);
    } catch (const out_of_pages&) {
      return;
    }
    check(child);
    open_.push_back(std::move(child));
  }
  void finish(std::size_t which, int how) {
    const sequence s = open_[which].name;
    check(open_[which]);
    if (how == 0)
      m_.close(s);
    else if (how == 1)
      m_.discard(s);
    else
      m_.preempt(s, [&](int g, std::span<const page_id> pages) {
        hold(std::ranges::equal(pages, m_.pages(s, g)), "other pages are saved");
      });
    open_.erase(open_.begin() + idx(which));
    try {
      m_.length(s);
    } catch (const invalid_argument&) {
      return;
    }
    throw simulated::fault("a stale handle is not refused");
  }

  // Work that reads all that this thread's sequences have.
  void launch() {
    const std::lock_guard lock(engine_.launching);
    m_.launched(++engine_.work);
    for (const running& r : open_)
      for (std::size_t g = 0; g < engine_.memories.size(); ++g)
        for (const page_id p : m_.pages(r.name, int(g)))
          if (p >= 0) engine_.memories[g]->reads(p, engine_.work);
  }
  void complete() {
    const std::lock_guard lock(engine_.launching);
    engine_.done = engine_.work - std::min(engine_.work - engine_.done, completion(dice_.below(3)));
    m_.complete(engine_.done);
  }
  void ask() {
    const manager_counters c = m_.counters();
    for (const group_counters& g : c.groups) {
      const page_counts& n = g.pages;
      hold(n.free + n.used + n.cached + n.pending == n.total, "pages are lost");
      hold(g.empty_rows >= 0, "more tokens are held than there are rows");
    }
    hold(c.tokens >= length() && c.open_sequences >= sequences(), "tokens are lost");
    hold(m_.free_tokens() >= 0 && m_.free_pages(0) >= 0 && m_.missing_pages(1) <= 1 && m_.free_sequences() >= 0,
         "a question has no answer");
    if (!open_.empty()) hold(m_.last_opened().slot >= 0, "none was opened last");
  }
  void pin() {
    if (pins_.size() == 2) {
      m_.unpin(pins_.front(), dice_.below(8));
      pins_.erase(pins_.begin());
      return;
    }
    pins_.push_back(m_.pin(count_from(100 * dice_.below(3), (1 + dice_.below(6)) * page_tokens())));
  }

  // Every row that a query sees is what the text says.
  void check(const running& r) const {
    hold(m_.length(r.name) == idx(r.text.size()), "another length");
    for (std::size_t g = 0; g < engine_.memories.size(); ++g) {
      const auto pages = m_.pages(r.name, int(g));
      const page_group& group = engine_.groups[g];
      for (idx i = 0; i < idx(r.text.size()); ++i) {
        if (group.window > 0 && i >= group.sinks && i + group.window <= idx(r.text.size())) continue;
        const page_id p = pages[std::size_t(i / page_tokens())];
        hold(p >= 0, "a page that is seen is given back");
        hold(engine_.memories[g]->read(p, i % page_tokens()) == r.rows[std::size_t(i)], "a row holds another token");
      }
    }
  }

  engine<Manager>& engine_;
  Manager& m_;
  int number_;
  support::dice dice_;
  std::vector<running> open_;
  std::vector<pinned_prefix> pins_;
};

// All at once; the first fault that one of them finds is thrown here.
template <class Body>
void in_threads(int threads, Body body) {
  std::vector<std::exception_ptr> faults(std::size_t(threads), nullptr);
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      try {
        body(t);
      } catch (...) {
        faults[std::size_t(t)] = std::current_exception();
      }
    });
  for (std::thread& t : all) t.join();
  for (const std::exception_ptr& f : faults)
    if (f) std::rethrow_exception(f);
}

template <class Manager>
void run(const manager_shape& shape, int threads, int rounds, int operations) {
  engine<Manager> e(shape);
  std::vector<worker<Manager>> workers;
  for (int t = 0; t < threads; ++t) workers.emplace_back(e, t + 1);
  idx hit = 0;
  for (int round = 0; round < rounds; ++round) {
    in_threads(threads, [&](int t) { workers[std::size_t(t)].run(operations); });
    // Nobody is at work: what is counted is what there is.
    const manager_counters c = e.manager.counters();
    idx sequences = 0, length = 0, opened = 0, appended = 0;
    for (const worker<Manager>& w : workers) {
      sequences += w.sequences(), length += w.length(), opened += w.opened, appended += w.appended;
      hit = larger(hit, w.hit);
    }
    CHECK(c.open_sequences == sequences);
    CHECK(c.tokens == length);
    CHECK(c.opened == opened);
    CHECK(c.appended == appended);
    for (const auto& memory : e.memories) CHECK_FALSE(memory->failed());
  }
  for (worker<Manager>& w : workers) w.end();
  e.done = e.work;
  e.manager.complete(e.work);
  const manager_counters c = e.manager.counters();
  CHECK(c.open_sequences == 0);
  CHECK(c.tokens == 0);
  CHECK(c.opened + c.forked == c.closed + c.discarded + c.preempted);
  CHECK(c.prefixes.evicted_pages > 0);
  CHECK(hit > 0);
  for (const group_counters& g : c.groups) {
    CHECK(g.pages.used == 0);
    CHECK(g.pages.pending == 0);
    CHECK(g.pages.free + g.pages.cached == g.pages.total);
    CHECK(g.held_pages == 0);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("concurrent_page_manager: threads at random, over policies and groups", "[pages][threads]", lru,
                   aged_lfu, priority, cost_aware<>, parents_first) {
  using manager = concurrent_page_manager<TestType>;
  constexpr int operations = KVILT_IS_CHECKED ? 400 : 1000;  // of each thread in a round
  for (const int threads : {2, 4}) {
    run<manager>({4, 24, {{160}}}, threads, 3, operations);
    run<manager>({3, 24, {{150}, {110, 7, 2}}}, threads, 3, operations);
  }
  run<concurrent_page_manager<TestType, one_place>>({16, 24, {{70}}}, 3, 2, operations);
}

namespace {

// Before who looked something up may write, somebody else does what `between` says.
struct interrupted_lock {
  void lock() {
    if (std::exchange(looked_up, false) && between) {
      const auto interruption = std::exchange(between, nullptr);
      interruption();
    }
    mutex.lock();
  }
  void unlock() { mutex.unlock(); }
  void lock_shared() { mutex.lock_shared(); }
  void unlock_shared() {
    looked_up = true;
    mutex.unlock_shared();
  }
  static inline std::function<void()> between;
  static inline bool looked_up = false;
  std::shared_mutex mutex;
};

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

TEST_CASE("concurrent_page_manager: what is evicted while a prompt is looked up is not taken for what was seen",
          "[pages][threads]") {
  using manager = concurrent_page_manager<lru, token_hash, interrupted_lock>;
  const tokens prompt = count_from(1, 40), other = count_from(1, 24);
  tokens begins_alike = other;
  for (int i = 0; i < 40; ++i) begins_alike.push_back(500 + i);
  moves out;
  for (const bool pinned : {false, true}) {
    manager m({4, 3, {{16}}});
    m.close(start(m, prompt, out));
    const std::vector<page_id> was = [&] {
      const sequence s = m.open(prompt, out, {{}, 0, 0}).name;
      const std::vector<page_id> p = pages_of(m, s);
      m.discard(s);
      return p;
    }();
    // All sixteen pages are used for another text, of which six begin as the prompt does.
    interrupted_lock::between = [&] { m.close(start(m, begins_alike, out)); };
    if (pinned) {
      pinned_prefix kept = m.pin(prompt);
      CHECK(kept.tokens() == 24);
      m.unpin(kept);
    } else {
      const opened_sequence o = m.open(prompt, out);
      CHECK(o.tokens == 24);
      const sequence again = m.open(begins_alike, out, {{}, 0, 0}).name;
      CHECK(std::ranges::equal(m.pages(o.name).first(6), m.pages(again).first(6)));
      m.discard(again);
      m.discard(o.name);
    }
    CHECK_FALSE(interrupted_lock::between);
    CHECK(was.size() == 10);
  }
  // The same pages under the same names are another prefix where what is before them is.
  manager m({4, 3, {{10}}});
  m.close(start(m, prompt, out));
  interrupted_lock::between = [&] {
    m.close(start(m, count_from(100, 40), out));
    m.close(start(m, prompt, out));
  };
  CHECK(m.open(prompt, out, {{}, 0, 0}).tokens == 40);
  CHECK(m.counters().prefixes.evicted_pages == 20);
}

TEST_CASE("concurrent_page_manager: what others store while a prompt is looked up is found", "[pages][threads]") {
  using manager = concurrent_page_manager<lru, token_hash, interrupted_lock>;
  manager m({4, 3, {{32}}});
  moves out;
  m.close(start(m, count_from(1, 20), out));
  interrupted_lock::between = [&] { m.close(start(m, count_from(1, 40), out)); };
  CHECK(m.open(count_from(1, 40), out, {{}, 0, 0}).tokens == 40);
}

TEST_CASE("concurrent_page_manager: a page that rows are copied from is not handed out before its sequence goes on",
          "[pages][threads]") {
  concurrent_page_manager<> m({4, 3, {{4}, {4}}});
  moves out;
  m.close(start(m, count_from(1, 6), out));
  const sequence a = m.open(count_from(1, 6), out, {{}, 0, 0}).name;  // copies the second page
  REQUIRE(out.size() == 2);
  CHECK(m.counters().groups[0].pages.used == 3);
  const sequence b = m.open({}, out).name;
  CHECK(m.try_reserve(b, 4, out));
  CHECK_FALSE(m.try_reserve(b, 5, out));
  CHECK(m.try_reserve(a, 2, out));  // in room
  CHECK_FALSE(m.try_reserve(b, 5, out));
  m.append(a, tokens{7, 8});
  CHECK_FALSE(m.try_reserve(a, 8, out));  // gives back the copied page, and finds too few
  CHECK(m.counters().groups[0].pages.used == 3);
  CHECK(m.try_reserve(b, 5, out));
  m.discard(b);
  // A fork's copy is one too, and what is copied goes back after what is before it.
  out.clear();
  const sequence c = m.fork(a);
  m.truncate(c, 7);
  m.reserve(c, 1, out);
  CHECK(out.size() == 2);
  CHECK(m.counters().groups[1].pages.used == 3);
  m.discard(a);
  CHECK(m.counters().groups[1].pages.used == 3);
  m.close(c);
  CHECK(m.counters().groups[1].pages.used == 0);
}

TEST_CASE("concurrent_page_manager: verbs refuse what a page_manager's do", "[pages][threads]") {
  concurrent_page_manager<priority, token_hash, std::shared_mutex> m({4, 2, {{4}}});
  moves out;
  CHECK_THROWS_WITH((concurrent_page_manager<>({4, 1, {}})), containing("the first group keeps all tokens"));
  CHECK_THROWS_WITH((concurrent_page_manager<lru>({4, 1, {{10}}}, lru(9))), containing("a policy for 9 pages, of 10"));
  CHECK_THROWS_WITH(m.last_opened(), containing("no sequence is open"));
  const sequence a = start(m, count_from(1, 5), out), b = m.open({}, out).name;
  CHECK(m.last_opened() == b);
  CHECK_THROWS_WITH(m.open({}, out), containing("all 2 sequences are open"));
  CHECK_THROWS_WITH(m.open({}, out, {{}, 8}), containing("a prompt has priority 8"));
  CHECK_THROWS_WITH(m.reserve(b, 13, out), containing("sequence 1 reserves 13 tokens; there are pages for 8"));
  CHECK_THROWS_WITH(m.append(a, count_from(1, 4)), containing("room is reserved for 3"));
  CHECK_THROWS_WITH(m.append(std::vector{a, a}, tokens{1, 1}), containing("sequence 0 is named twice in a step"));
  CHECK_THROWS_WITH(m.truncate(a, 6), containing("is truncated to 6"));
  CHECK_THROWS_WITH(m.pages(a, 1), containing("group 1; there are 0 to 0"));
  m.discard(b);
  CHECK_THROWS_WITH(m.fork(b), containing("sequence 1 (of generation 1) is not open"));
  CHECK_THROWS_WITH(m.close(b), containing("is not open"));
  CHECK_THROWS_WITH(m.launched(0), containing("work up to 0 is launched"));
  m.with_eviction([](priority& p) { p.time(7); });
  CHECK(m.can_admit(8));
  CHECK_FALSE(m.can_admit(9));
  CHECK(m.counters().appended == 5);
  CHECK(m.counters().tokens == 5);
  CHECK(m.counters().groups[0].empty_rows == 3);
}

TEST_CASE("concurrent_page_manager: it says what is open when it is destroyed", "[pages][threads]") {
  std::vector<idx> said;
  const left_hook hook{&said, [](void* self, idx sequences, idx pages) {
                         *static_cast<std::vector<idx>*>(self) = {sequences, pages};
                       }};
  moves out;
  {
    concurrent_page_manager<> m({4, 2, {{8}}, hook});
    start(m, count_from(1, 6), out);
  }
  CHECK(said == std::vector<idx>{1, 2});
}

TEMPLATE_TEST_CASE("concurrent_page_manager: a step reserves for one after another, until there are too few pages",
                   "[pages][threads]", page_manager<>, concurrent_page_manager<>) {
  TestType m({4, 302, {{302}, {300}}});
  moves out;
  std::vector<sequence> open;
  for (int i = 0; i < 301; ++i) open.push_back(m.open({}, out).name);
  CHECK(m.try_reserve(std::span(open).first(0), 1, out) == 0);
  CHECK(m.try_reserve(std::span(open).first(2), 5, out) == 2);
  CHECK(m.try_reserve(open, 1, out) == 298);  // two have two pages
  CHECK(m.counters().groups[0].pages.used == 300);
  CHECK(m.room(open[297]) == 4);
  CHECK(m.room(open[298]) == 0);
  CHECK(m.try_reserve(open, 1, out) == 298);
  CHECK(m.try_reserve(std::span(open).first(298), 4, out) == 298);
  std::vector<sequence> with_stale = {open[300], open[299]};
  m.discard(open[299]);
  m.discard(open[0]);
  CHECK_THROWS_WITH(m.try_reserve(with_stale, 1, out), containing("sequence 299 (of generation 1) is not open"));
  CHECK(m.room(open[300]) == 0);
  CHECK_THROWS_WITH(m.try_reserve(std::span(open).subspan(300), -1, out), containing("reserves -1"));
  CHECK(m.try_reserve(std::span(open).subspan(300), 8, out) == 1);
  CHECK(out.empty());
}

TEST_CASE("concurrent_page_manager: a step's moves keep their pages until they are said to be copied",
          "[pages][threads]") {
  concurrent_page_manager<> m({4, 4, {{4}}});
  moves out;
  const sequence a = start(m, count_from(1, 6), out), b = m.fork(a);
  const std::vector<sequence> twice = {a, a};
  CHECK(m.try_reserve(twice, 1, out) == 2);
  REQUIRE(out.size() == 1);
  CHECK(m.counters().groups[0].pages.used == 3);
  const sequence c = m.open({}, out).name;
  CHECK(m.try_reserve(c, 4, out));
  CHECK_FALSE(m.try_reserve(std::vector{b}, 1, out));  // the page that both had is still read
  m.copied(a);
  CHECK(m.try_reserve(std::vector{b}, 1, out) == 1);
  CHECK(out.size() == 1);  // it is b's alone
  m.copied(a);
  CHECK_THROWS_WITH(m.copied({3, 9}), containing("is not open"));
}
