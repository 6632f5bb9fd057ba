// What several threads get out of one page manager: `concurrent_page_manager` beside one lock around a `page_manager`, and
// beside a `page_manager` for each of them, which share nothing and wait for nobody.
//   bench_pages_threads [--threads=1,2] [--seconds=0.3] [--rounds=7] [--row=NAME]
// Each row is measured in rounds, both managers in turn in each; the middle one is shown, and the best, which is what is
// left where others work on the machine.
#include "workloads.hpp"

#include <kvilt/pages/concurrent_page_manager.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace bench;

// Every verb under one lock.
class one_lock {
 public:
  explicit one_lock(const manager_shape& shape) : manager_(shape) {}

  opened_sequence open(std::span<const token_id> prompt, std::vector<page_move>& moves) {
    const std::lock_guard lock(mutex_);
    return manager_.open(prompt, moves);
  }
  void reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    const std::lock_guard lock(mutex_);
    manager_.reserve(s, tokens, moves);
  }
  idx try_reserve(std::span<const sequence> each, idx tokens, std::vector<page_move>& moves) {
    const std::lock_guard lock(mutex_);
    return manager_.try_reserve(each, tokens, moves);
  }
  void append(sequence s, std::span<const token_id> tokens) {
    const std::lock_guard lock(mutex_);
    manager_.append(s, tokens);
  }
  void append(std::span<const sequence> each, std::span<const token_id> tokens) {
    const std::lock_guard lock(mutex_);
    manager_.append(each, tokens);
  }
  idx store(sequence s) {
    const std::lock_guard lock(mutex_);
    return manager_.store(s);
  }
  void close(sequence s) {
    const std::lock_guard lock(mutex_);
    manager_.close(s);
  }
  void discard(sequence s) {
    const std::lock_guard lock(mutex_);
    manager_.discard(s);
  }

 private:
  page_manager<> manager_;
  std::mutex mutex_;
};

// A thread's share of a workload: made beside others' shares before time is taken, then `round` over and over.
template <class Manager>
class decode {
 public:
  static constexpr const char *name = "decode", *unit = "M sequence-steps/s";
  static manager_shape shape() { return {page_tokens, 4096, {{320'000}}}; }
  decode(Manager& m, int, int threads) : manager_(m), open_(std::size_t(1000 / threads)), text_(open_.size(), 7) {
    for (sequence& s : open_) s = manager_.open({}, moves_).name;
  }
  static void prepare(Manager&) {}
  double round() {
    if (++steps_ % (256 * page_tokens) == 0)
      for (sequence& s : open_) {
        manager_.discard(s);
        s = manager_.open({}, moves_).name;
      }
    if (manager_.try_reserve(open_, 1, moves_) < idx(open_.size())) throw std::runtime_error("there are too few pages");
    manager_.append(open_, text_);
    return double(open_.size());
  }

 private:
  Manager& manager_;
  std::vector<page_move> moves_;
  std::vector<sequence> open_;
  std::vector<token_id> text_;
  idx steps_ = 0;
};

template <class Manager>
void compute(Manager& m, const opened_sequence& o, std::span<const token_id> text, std::vector<page_move>& moves) {
  moves.clear();
  m.reserve(o.name, idx(text.size()) - o.tokens, moves);
  m.append(o.name, text.subspan(std::size_t(o.tokens)));
}

// Cached prompts of 512 pages, each opened and given up.
template <class Manager>
class lookup {
 public:
  static constexpr const char *name = "lookup", *unit = "M blocks/s";
  static constexpr idx prompts = 600;
  static manager_shape shape() { return {page_tokens, 64, {{prompts * prompt_pages + 2000}}}; }
  lookup(Manager& m, int number, int) : manager_(m), random_(std::uint64_t(number) << 32) {
    for (int i = 0; i < 64; ++i) texts_.push_back(prompt(idx(random_.below(prompts))));
  }
  static void prepare(Manager& m) {
    std::vector<page_move> moves;
    for (idx n = 0; n < prompts; ++n) {
      std::vector<token_id> text = prompt(n);
      text.push_back(1);
      const opened_sequence o = m.open(text, moves);
      compute(m, o, text, moves);
      m.close(o.name);
    }
  }
  double round() {
    const std::vector<token_id>& text = texts_[at_++ % texts_.size()];
    const opened_sequence o = manager_.open(text, moves_);
    moves_.clear();
    manager_.discard(o.name);
    return double(o.tokens) / page_tokens;
  }

 private:
  Manager& manager_;
  dice random_;
  std::vector<std::vector<token_id>> texts_;
  std::vector<page_move> moves_;
  std::size_t at_ = 0;
};

// Conversations: one of ten system prompts of 512 tokens, some questions of 16 to 271 tokens and answers of 1 to 256, each
// turn with all that was said; 32 at a time in a thread, a token each in a step. The pool is too small for all that is said.
template <class Manager>
class chat {
 public:
  static constexpr const char *name = "chat", *unit = "M sequence-steps/s";
  static manager_shape shape() { return {page_tokens, 4096, {{40'000}}}; }
  chat(Manager& m, int number, int) : manager_(m), random_(std::uint64_t(number) << 32), talks_(32) {
    for (talk& t : talks_) ask(t);
  }
  static void prepare(Manager&) {}
  double round() {
    for (talk& t : talks_) {
      if (t.left-- > 0) continue;
      manager_.close(t.name);
      if (random_.below(5) == 0) t.text.clear();
      ask(t);
    }
    step_.clear();
    said_.clear();
    for (talk& t : talks_) {
      step_.push_back(t.name);
      said_.push_back(token_of(random_.below(1u << 30)));
      t.text.push_back(said_.back());
    }
    if (manager_.try_reserve(step_, 1, moves_) < idx(step_.size())) throw std::runtime_error("there are too few pages");
    moves_.clear();
    manager_.append(step_, said_);
    return double(step_.size());
  }

 private:
  struct talk {
    std::vector<token_id> text;
    sequence name;
    idx left = 0;
  };
  void ask(talk& t) {
    if (t.text.empty()) {
      const std::uint64_t system = random_.below(10);
      for (std::uint64_t i = 0; i < 512; ++i) t.text.push_back(token_of(system << 20 | i));
    }
    for (std::uint64_t i = 16 + random_.below(256); i > 0; --i) t.text.push_back(token_of(random_.below(1u << 30)));
    const opened_sequence o = manager_.open(t.text, moves_);
    compute(manager_, o, t.text, moves_);
    manager_.store(o.name);
    t.name = o.name;
    t.left = 1 + idx(random_.below(256));
  }

  Manager& manager_;
  dice random_;
  std::vector<talk> talks_;
  std::vector<page_move> moves_;
  std::vector<sequence> step_;
  std::vector<token_id> said_;
};

struct options {
  std::vector<int> threads = {1, 2};
  double seconds = 0.3;
  int rounds = 7;
  std::string row;
};

// Operations a second of all threads together, with so many managers.
template <template <class> class Workload, class Manager>
double measure(int threads, double seconds, int managers = 1) {
  std::vector<std::unique_ptr<Manager>> made;
  for (int i = 0; i < managers; ++i) {
    made.push_back(std::make_unique<Manager>(Workload<Manager>::shape()));
    Workload<Manager>::prepare(*made.back());
  }
  std::vector<std::unique_ptr<Workload<Manager>>> shares;
  for (int i = 0; i < threads; ++i)
    shares.push_back(std::make_unique<Workload<Manager>>(*made[std::size_t(i % managers)], i, threads));
  std::vector<double> done(std::size_t(threads), 0);
  std::atomic<int> ready{0};
  std::atomic<bool> begin{false}, end{false};
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < done.size(); ++i)
    all.emplace_back([&, i] {
      for (int r = 0; r < 100; ++r) shares[i]->round();
      ++ready;
      while (!begin.load()) std::this_thread::yield();
      double n = 0;
      while (!end.load(std::memory_order_relaxed)) n += shares[i]->round();
      done[i] = n;
    });
  while (ready.load() < threads) std::this_thread::yield();
  const auto started = std::chrono::steady_clock::now();
  begin = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  end = true;
  for (std::thread& t : all) t.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  double sum = 0;
  for (const double n : done) sum += n;
  return sum / took.count();
}

double middle(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

template <template <class> class Workload>
void row(const options& o) {
  using mine = concurrent_page_manager<>;
  if (!o.row.empty() && o.row != Workload<mine>::name) return;
  for (const int threads : o.threads) {
    std::vector<double> lock, concurrent, each;
    for (int r = 0; r < o.rounds; ++r) {
      lock.push_back(measure<Workload, one_lock>(threads, o.seconds));
      concurrent.push_back(measure<Workload, mine>(threads, o.seconds));
      each.push_back(measure<Workload, page_manager<>>(threads, o.seconds, threads));
    }
    const auto best = [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); };
    std::printf("%-8s %2d  %8.2f %8.2f   %8.2f %8.2f   %8.2f %8.2f  %s\n", Workload<mine>::name, threads,
                1e-6 * middle(lock), 1e-6 * best(lock), 1e-6 * middle(concurrent), 1e-6 * best(concurrent),
                1e-6 * middle(each), 1e-6 * best(each), Workload<mine>::unit);
    std::fflush(stdout);
  }
}

// The number or numbers after `--name=`, each at least `least`.
template <class Number, class Parse>
std::vector<Number> numbers(const std::string& text, Number least, Parse parse) {
  std::vector<Number> all;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::size_t read = 0;
    const std::string one = text.substr(at, end - at);
    try {
      all.push_back(Number(parse(one, &read)));
    } catch (const std::exception&) {
      read = std::string::npos;
    }
    if (read != one.size() || all.back() < least) throw std::runtime_error("'" + one + "' is no number of these");
    at = end + 1;
  }
  return all;
}

options parse(int argc, char** argv) {
  options o;
  const auto whole = [](const std::string& s, std::size_t* read) { return std::stoi(s, read); };
  const auto real = [](const std::string& s, std::size_t* read) { return std::stod(s, read); };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i], name = a.substr(0, a.find('=') + 1), value = a.substr(name.size());
    if (name == "--threads=")
      o.threads = numbers<int>(value, 1, whole);
    else if (name == "--seconds=")
      o.seconds = numbers<double>(value, 1e-3, real)[0];
    else if (name == "--rounds=")
      o.rounds = numbers<int>(value, 1, whole)[0];
    else if (name == "--row=" && (value == "decode" || value == "lookup" || value == "chat"))
      o.row = value;
    else
      throw std::runtime_error(
          "usage: bench_pages_threads [--threads=1,2] [--seconds=0.3] [--rounds=7] "
          "[--row=decode|lookup|chat], not: " +
          a);
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const options o = parse(argc, argv);
    std::printf("%-8s %2s  %17s   %17s   %17s\n%-8s %2s  %8s %8s   %8s %8s   %8s %8s\n", "", "", "one lock",
                "concurrent", "a manager each", "", "n", "middle", "best", "middle", "best", "middle", "best");
    row<decode>(o);
    row<lookup>(o);
    row<chat>(o);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
