#pragma once

#include <kvilt/pages/page_manager.hpp>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

// An engine that does at random what engines do, and knows of every row what must be in it. What it finds it throws.
namespace simulated {

using namespace kvilt;

struct fault : std::logic_error {
  using std::logic_error::logic_error;
};
inline void hold(bool true_, const char* what) {
  if (!true_) throw fault(what);
}

// A row's content: what names the whole text up to its token.
using content = std::uint64_t;
inline constexpr content poison = 0xdeaddeaddeaddeadu;
inline content next_content(content before, std::uint64_t token) {
  std::uint64_t h = (before ^ (token + 1)) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

struct text {
  std::vector<std::uint64_t> keys;
  std::vector<token_id> prompt;
  idx length = 0;  // that the sequence has
  idx room = 0;
  int priority = 0;

  void cut(idx tokens) {
    prompt.resize(std::size_t(tokens));
    if (rows_.size() > prompt.size()) rows_.resize(prompt.size());
  }
  // What is in the rows of all its tokens. NOTE: kept, for it is looked at after every operation.
  const std::vector<content>& rows() const {
    content c = 1;
    for (const std::uint64_t k : keys) c = next_content(c, k + 1000);
    if (!rows_.empty()) c = rows_.back();
    for (std::size_t i = rows_.size(); i < prompt.size(); ++i)
      rows_.push_back(c = next_content(c, std::uint64_t(prompt[i])));
    return rows_;
  }

 private:
  mutable std::vector<content> rows_;
};

// A number for each page of a pool, and which pages have one.
class page_numbers {
 public:
  explicit page_numbers(idx pages) : numbers_(std::size_t(pages), -1) {}
  idx& operator[](page_id p) {
    if (numbers_[std::size_t(p)] < 0) {
      numbers_[std::size_t(p)] = 0;
      pages_.push_back(p);
    }
    return numbers_[std::size_t(p)];
  }
  void forget(page_id p) { numbers_[std::size_t(p)] = -1; }
  idx count() const { return idx(pages_.size()); }
  // Calls visit(page, number) for each, and forgets all.
  template <class Visit>
  void empty(Visit visit) {
    for (const page_id p : pages_)
      if (const idx n = std::exchange(numbers_[std::size_t(p)], -1); n >= 0) visit(p, n);
    pages_.clear();
  }

 private:
  std::vector<idx> numbers_;
  std::vector<page_id> pages_;
};

// The memory of one group.
class memory {
 public:
  memory(const page_group& g, int page_tokens)
      : group(g), page_tokens_(page_tokens), rows_(std::size_t(g.pages * page_tokens), poison) {}

  static void hear(void* self, page_id p, page_event e) {
    memory& m = *static_cast<memory*>(self);
    if (e == page_event::freed) std::fill_n(&m.at(p, 0), m.page_tokens_, poison);
    for (int i = 0; i < m.page_tokens_; ++i) hold(m.at(p, i) == poison, "a page that is free was written");
  }
  content& at(page_id p, idx row) { return rows_[std::size_t(p * page_tokens_ + row)]; }
  // NOTE: work that the engine launched reads rows of a page that it has given back since.
  void reads(page_id p, idx rows, completion work) { read_.push_back({p, rows, work}); }
  void complete(completion done) {
    read_.erase(std::remove_if(read_.begin(), read_.end(), [&](const reader& r) { return r.work <= done; }),
                read_.end());
  }
  void write(page_id p, idx row, content c) {
    for (const reader& r : read_) hold(r.page != p || row >= r.rows, "a page is written while work reads it");
    at(p, row) = c;
  }

  page_group group;

 private:
  struct reader {
    page_id page;
    idx rows;
    completion work;
  };
  int page_tokens_;
  std::vector<content> rows_;
  std::vector<reader> read_;
};

// `Choose` has below(n), and may be empty at some time.
template <class Manager, class Choose>
class engine {
 public:
  engine(manager_shape shape, Choose& choose) : choose_(choose), memories_(make(shape)), manager_(with_hooks(shape)) {
    for (const page_group& g : shape.groups) numbers_.emplace_back(g.pages);
  }

  void run(int operations) {
    for (int i = 0; i < operations && !used_up(choose_); ++i) {
      operate(choose_.below(16));
      check();
    }
    while (!open_.empty()) finish(0, 1);
    manager_.complete(work_);
    check();
    for (const group_counters& g : manager_.counters().groups)
      hold(g.pages.used == 0 && g.pages.pending == 0, "pages are used at the end");
  }
  // What the engine was given, to be compared.
  const std::vector<idx>& trace() const { return trace_; }
  const Manager& manager() const { return manager_; }

 private:
  struct running {
    sequence name;
    text t;
  };
  static bool used_up(const Choose& c) {
    if constexpr (requires { c.empty(); }) return c.empty();
    return false;
  }
  static std::vector<memory> make(const manager_shape& s) {
    std::vector<memory> m;
    for (const page_group& g : s.groups) m.emplace_back(g, s.page_tokens);
    return m;
  }
  manager_shape with_hooks(manager_shape s) {
    for (std::size_t g = 0; g < s.groups.size(); ++g) s.groups[g].hook = {&memories_[g], memory::hear};
    return s;
  }
  int page_tokens() const { return manager_.page_tokens(); }

  void operate(int what) {
    const std::size_t which = open_.empty() ? 0 : std::size_t(choose_.below(int(open_.size())));
    if (what < 3) return open();
    if (what == 3) return complete();
    if (open_.empty()) return misuse();
    running& r = open_[which];
    if (what == 4) return cut(r);
    if (what == 5) return fork(r);
    if (what == 6) return given_back([&] { trace_.push_back(manager_.store(r.name)); });
    if (what == 7) return choose_.below(2) ? finish(which, choose_.below(3)) : preempt_last();
    if (what == 8) return misuse();
    step(r);
  }

  void open() {
    text t;
    t.priority = choose_.below(8);
    if (!past_.empty() && choose_.below(4)) {  // goes on from an earlier text
      const text& other = past_[std::size_t(choose_.below(int(past_.size())))];
      t.keys = other.keys;
      t.prompt.assign(other.prompt.begin(), other.prompt.begin() + choose_.below(int(other.prompt.size()) + 1));
    } else {
      t.keys.assign(std::size_t(choose_.below(2)), 5);
    }
    const int usual = 3 * page_tokens(), some = choose_.below(4) ? usual : larger(usual, int(longest() / 2));
    for (int i = choose_.below(some + 2); i > 0; --i) t.prompt.push_back(choose_.below(2));
    if (t.prompt.size() > longest()) t.prompt.resize(longest());
    const prompt_options options{t.keys, t.priority, choose_.below(3)};
    const manager_counters before = manager_.counters();
    if (before.open_sequences == most_sequences) {
      refused<out_of_pages>([&] { manager_.open(t.prompt, moves_, options); });
      return;
    }
    const opened_sequence o = manager_.open(t.prompt, moves_, options);
    t.length = o.tokens;
    t.room = manager_.length(o.name) + manager_.room(o.name);
    hold(o.tokens <= larger(idx(t.prompt.size()) - options.computed, 0), "more was found than was asked for");
    trace_.push_back(o.tokens);
    move_rows();
    open_.push_back({o.name, t});
    past_.push_back(t);
    if (past_.size() > 12) past_.erase(past_.begin());
  }
  std::size_t longest() const { return std::size_t(larger(10, memories_[0].group.pages / 4) * page_tokens()); }

  // Some tokens of the prompt, or what a model might say.
  void step(running& r) {
    const idx some = 1 + choose_.below(2) * choose_.below(2 * page_tokens());
    const idx tokens = smaller(some, larger(idx(longest()) - r.t.length, 0));
    if (!manager_.try_reserve(r.name, tokens, moves_)) {
      hold(moves_.empty(), "what fails moves pages");
      refused<out_of_pages>([&] { manager_.reserve(r.name, tokens, moves_); });
      return;
    }
    move_rows();
    r.t.room = larger(r.t.room, r.t.length + tokens);
    const idx accepted = choose_.below(4) ? tokens : choose_.below(int(tokens) + 1);
    while (idx(r.t.prompt.size()) < r.t.length + accepted) r.t.prompt.push_back(choose_.below(2));
    const std::vector<content>& rows = r.t.rows();
    for (std::size_t g = 0; g < memories_.size(); ++g)
      for (idx i = r.t.length; i < r.t.length + accepted; ++i)
        memories_[g].write(manager_.pages(r.name, int(g))[std::size_t(i / page_tokens())], i % page_tokens(),
                           rows[std::size_t(i)]);
    launch();
    given_back([&] {
      const auto said = std::span(r.t.prompt).subspan(std::size_t(r.t.length), std::size_t(accepted));
      if (accepted == 1 && choose_.below(2))
        manager_.append({&r.name, 1}, said);
      else
        manager_.append(r.name, said);
      r.t.length += accepted;
    });
    if (r.t.length == idx(r.t.prompt.size())) past_.back() = r.t;
  }
  // Once, or what has names in several steps, so that its end is given back before its beginning.
  void cut(running& r) {
    if (choose_.below(2)) given_back([&] { trace_.push_back(manager_.store(r.name)); });
    for (int n = 1 + choose_.below(4); n > 0; --n) truncate(r);
  }
  void truncate(running& r) {
    const idx length = choose_.below(int(r.t.length) + 1);
    given_back([&] {
      try {
        manager_.truncate(r.name, length);
        r.t.length = length;
        r.t.cut(length);
      } catch (const invalid_argument&) {
        hold(memories_.size() > 1, "a sequence without windows is not truncated");
      }
    });
  }
  void fork(const running& r) {
    if (int(open_.size()) == most_sequences) return refused<out_of_pages>([&] { manager_.fork(r.name); });
    running child{{}, r.t};
    given_back([&] { child.name = manager_.fork(r.name); });
    open_.push_back(child);
  }
  void finish(std::size_t which, int how) {
    const sequence s = gone_ = open_[which].name;
    launch();
    given_back([&] {
      if (how == 0)
        manager_.close(s);
      else if (how == 1)
        manager_.discard(s);
      else
        manager_.preempt(s, [&](int g, std::span<const page_id> pages) {
          hold(std::ranges::equal(pages, manager_.pages(s, g)), "other pages are saved");
        });
      open_.erase(open_.begin() + idx(which));
    });
  }
  void preempt_last() {
    const sequence s = manager_.last_opened();
    for (std::size_t i = 0; i < open_.size(); ++i)
      if (open_[i].name == s) return finish(i, 2);
    throw fault("the sequence opened last is not open");
  }

  // Work that reads all that its sequences have.
  void launch() {
    if (choose_.below(3)) return;
    manager_.launched(++work_);
  }
  void complete() {
    const completion done = work_ - std::min(work_, completion(choose_.below(3)));
    done_ = std::max(done_, done);
    for (memory& m : memories_) m.complete(done_);
    manager_.complete(done);
  }
  // Pages that are in tables before and not after are still read by what was launched.
  template <class Verb>
  void given_back(Verb verb) {
    const bool read = work_ > done_;
    for (const running& r : open_)
      for (std::size_t g = 0; read && g < memories_.size(); ++g) {
        const auto pages = manager_.pages(r.name, int(g));
        for (idx i = 0; i < idx(pages.size()); ++i)
          if (pages[std::size_t(i)] >= 0) {
            idx& rows = numbers_[g][pages[std::size_t(i)]];
            rows = larger(rows, smaller(larger(r.t.length - i * page_tokens(), 0), page_tokens()));
          }
      }
    verb();
    for (std::size_t g = 0; read && g < memories_.size(); ++g) {
      for (const running& r : open_)
        for (const page_id p : manager_.pages(r.name, int(g)))
          if (p >= 0) numbers_[g].forget(p);
      numbers_[g].empty([&](page_id p, idx rows) { memories_[g].reads(p, rows, work_); });
    }
  }

  void move_rows() {
    for (const page_move& m : moves_) {
      memory& in = memories_[std::size_t(m.group)];
      hold(m.from >= 0 && m.to >= 0 && m.from != m.to && m.rows > 0 && m.rows < page_tokens() + 1, "a wrong move");
      for (int i = 0; i < m.rows; ++i) in.write(m.to, i, in.at(m.from, i));
    }
    moves_.clear();
  }
  template <class Error, class Verb>
  void refused(Verb verb) {
    const manager_counters before = manager_.counters();
    try {
      verb();
    } catch (const Error&) {
      const manager_counters after = manager_.counters();
      hold(before.groups == after.groups && before.tokens == after.tokens && moves_.empty(), "a refusal changes pages");
      return;
    }
    throw fault("a wrong call is not refused");
  }
  // Every verb refuses a sequence that was open before, though its slot may be another's now.
  void refuse_what_is_gone() {
    if (gone_.generation == 0) return;
    refused<invalid_argument>([&] { manager_.close(gone_); });
    refused<invalid_argument>([&] { manager_.discard(gone_); });
    refused<invalid_argument>([&] { manager_.preempt(gone_, [](int, std::span<const page_id>) {}); });
    refused<invalid_argument>([&] { manager_.fork(gone_); });
    refused<invalid_argument>([&] { manager_.store(gone_); });
    refused<invalid_argument>([&] { manager_.truncate(gone_, 0); });
    refused<invalid_argument>([&] { manager_.reserve(gone_, 1, moves_); });
    refused<invalid_argument>([&] { manager_.append(gone_, 1); });
    refused<invalid_argument>([&] { manager_.append(std::array{gone_}, std::array<token_id, 1>{1}); });
    refused<invalid_argument>([&] { (void)manager_.length(gone_); });
    refused<invalid_argument>([&] { (void)manager_.pages(gone_); });
  }
  void misuse() {
    refused<invalid_argument>([&] { manager_.close({choose_.below(8) - 1, 1u << 30}); });
    refuse_what_is_gone();
    if (open_.empty()) return refused<invalid_argument>([&] { manager_.last_opened(); });
    const running& r = open_[std::size_t(choose_.below(int(open_.size())))];
    refused<invalid_argument>([&] { manager_.reserve(r.name, -1, moves_); });
    refused<invalid_argument>([&] { manager_.truncate(r.name, r.t.length + 1); });
    const std::vector<token_id> more(std::size_t(manager_.room(r.name) + 1), 0);
    refused<invalid_argument>([&] { manager_.append(r.name, more); });
    const std::array<sequence, 2> twice{r.name, r.name};
    refused<invalid_argument>([&] { manager_.append(twice, std::array<token_id, 2>{1, 1}); });
    if (int(open_.size()) < most_sequences) refused<invalid_argument>([&] { manager_.open({}, moves_, {{}, 8}); });
  }

  void check() {
    const manager_counters c = manager_.counters();
    idx tokens = 0, empty = 0;
    for (const running& r : open_) {
      hold(manager_.length(r.name) == r.t.length, "another length");
      tokens += r.t.length;
      empty += idx(manager_.pages(r.name).size()) * page_tokens() - r.t.length;
      const std::vector<content>& rows = r.t.rows();
      for (std::size_t g = 0; g < memories_.size(); ++g) check_rows(r, int(g), rows);
    }
    hold(c.tokens == tokens && c.open_sequences == idx(open_.size()), "tokens are lost");
    for (std::size_t g = 0; g < memories_.size(); ++g) check_group(c.groups[g], int(g), empty);
  }
  // Every row that a query sees is what its text says.
  void check_rows(const running& r, int g, const std::vector<content>& rows) {
    memory& m = memories_[std::size_t(g)];
    const auto pages = manager_.pages(r.name, g);
    const idx window = m.group.window;
    for (idx place = 0, i = 0; i < r.t.length; ++place) {
      const page_id p = pages[std::size_t(place)];
      for (const idx end = smaller(i + page_tokens(), r.t.length), first = i; i < end; ++i) {
        if (window > 0 && i >= m.group.sinks && i + window <= r.t.length) continue;
        hold(p >= 0, "a page that is seen is given back");
        hold(m.at(p, i - first) == rows[std::size_t(i)], "a row holds another token");
      }
    }
    // And no page is kept that none will see.
    const idx sink_pages = ceil_div(m.group.sinks, page_tokens());
    for (idx i = sink_pages; window > 0 && (i + 1) * page_tokens() <= r.t.length + 1 - window; ++i)
      hold(pages[std::size_t(i)] == -1, "a page is kept that no window shows");
  }
  void check_group(const group_counters& c, int g, idx empty) {
    page_numbers& holders = numbers_[std::size_t(g)];
    idx held = 0;
    for (const running& r : open_)
      for (const page_id p : manager_.pages(r.name, g))
        if (p >= 0) ++holders[p], ++held;
    const idx used = holders.count();
    holders.empty([](page_id, idx) {});
    const page_counts& n = c.pages;
    hold(n.free + n.used + n.cached + n.pending == n.total, "pages are lost");
    hold(n.used == used && c.held_pages == held && c.empty_rows == empty, "pages are counted wrongly");
    hold(manager_.free_pages(g) == n.free + n.cached, "other pages can be taken than are free or cached");
    trace_.push_back(n.cached);
  }

 public:
  static constexpr int most_sequences = 6;

 private:
  Choose& choose_;
  std::vector<memory> memories_;
  std::vector<page_numbers> numbers_;  // of each group's pages, for who needs some for a moment
  Manager manager_;
  std::vector<running> open_;
  sequence gone_;  // that was ended last
  std::vector<text> past_;
  std::vector<page_move> moves_;
  completion work_ = 0, done_ = 0;
  std::vector<idx> trace_;
};

}  // namespace simulated
