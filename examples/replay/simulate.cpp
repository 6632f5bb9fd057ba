#include "engine.hpp"
#include "eviction_names.hpp"

#include <kvilt/pages/page_manager.hpp>
#include <kvilt/tiers/page_tiers.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace example {
namespace {

using kvilt::idx;
using kvilt::sequence;
using kvilt::token_id;

template <class Eviction>
class engine {
 public:
  engine(const trace& t, const engine_options& o)
      : trace_(t), options_(o), now_(t.front().arrival), tiers_(shape_of(o)), manager_(make_manager()) {
    for (const tier_spec& tier : o.tiers) {
      transfers_.push_back(std::make_unique<simulated_transfer>(tier, o.page_bytes, now_));
      tiers_.template add<Eviction>(*transfers_.back());
    }
  }

  outcome run() {
    while (result_.requests < std::int64_t(trace_.size())) {
      arrive();
      running_.empty() && waiting_.empty() ? pass(trace_[arrived_].arrival - now_) : step();
    }
    result_.counters = manager_.counters();
    result_.preemptions = result_.counters.preempted;
    result_.page_moves = result_.counters.moves;
    result_.seconds = now_ - trace_.front().arrival;
    result_.utilisation = result_.seconds > 0 ? used_ / (double(options_.pages) * result_.seconds) : 0;
    result_.fragmentation = held_rows_ > 0 ? empty_rows_ / held_rows_ : 0;
    result_.first_token /= double(trace_.size());
    result_.prefetches = tiers_.prefetches();
    for (int i = 0; i < tiers_.tiers(); ++i) {
      const kvilt::tier_counters c = tiers_.counters(i);
      const std::int64_t tokens = c.loaded * options_.page_tokens;
      result_.tiers.push_back({options_.tiers[std::size_t(i)].name, c, tokens, double(tokens) * options_.time.prefill});
    }
    return result_;
  }

 private:
  struct job {
    const request* what;
    idx said = 0;  // tokens of the answer
    bool seen = false;
    sequence name = {};
    std::vector<token_id> text = {};  // what is to be computed before the next token is said
    kvilt::prefetch fetched = {};     // what the tiers have of it
    bool asked_tiers = false;
    bool prefilled() const { return text.empty(); }
    bool finished() const { return prefilled() && said >= what->output; }
  };

  void arrive() {
    while (arrived_ < trace_.size() && trace_[arrived_].arrival <= now_) waiting_.push_back({&trace_[arrived_++]});
  }

  static constexpr std::size_t looked_ahead = 4;  // of the line

  static kvilt::manager_shape shape_of(const engine_options& o) {
    return {o.page_tokens, o.sequences + (o.tiers.empty() ? 0 : int(looked_ahead)), {{o.pages}}};
  }
  kvilt::page_manager<Eviction> make_manager() {
    kvilt::manager_shape shape = shape_of(options_);
    if (options_.tiers.empty()) return kvilt::page_manager<Eviction>(shape);
    shape.groups[0].hook = tiers_.on_page();
    return {shape, Eviction(options_.pages), kvilt::token_hash(), tiers_.on_prefix()};
  }

  void step() {
    const std::size_t decoding = reserve_for_decoding();
    prefetch();
    admit();
    decode(decoding);
    const idx prefilled = prefill();
    pass(options_.time.of(prefilled, idx(said_by_.size())));
    ++result_.steps;
    result_.first_token += double(first_said_) * now_ - their_arrivals_;
    finish();
    moves_.clear();  // there is no memory whose rows are to be copied
  }

  // A row for each sequence that has its prompt. Returns how many these are: they come first in `running_`.
  std::size_t reserve_for_decoding() {
    std::stable_partition(running_.begin(), running_.end(), [](const job& j) { return j.prefilled(); });
    std::size_t i = 0;
    while (i < running_.size() && running_[i].prefilled())
      if (manager_.try_reserve(running_[i].name, 1, moves_))
        ++i;
      else if (!give_back_fetched())  // NOTE: who runs goes before what was brought for those who wait
        i -= preempt() < i;
    return i;
  }
  // Returns where in `running_` the preempted sequence was.
  std::size_t preempt() {
    const sequence last = manager_.last_opened();
    const auto at = std::ranges::find(running_, last, &job::name);
    manager_.preempt(last, [](int, std::span<const kvilt::page_id>) {});  // nothing is saved: it is computed again
    const std::size_t place = std::size_t(at - running_.begin());
    waiting_.push_front(std::move(*at));
    waiting_.front().text.clear();
    running_.erase(at);
    return place;
  }

  // NOTE: a page more for each that runs, or who is admitted is preempted in the next step. The prompt counts in full,
  // though others may hold its first pages: who waits for these alone waits longer than needed.
  void admit() {
    while (!waiting_.empty() && idx(running_.size()) < options_.sequences) {
      job& next = waiting_.front();
      const idx tokens = next.what->input + next.said;
      if (!tiers_.done(next.fetched)) return;
      // NOTE: what has arrived is cached from here on, and is found at once or may go again.
      tiers_.release(manager_, next.fetched);
      if (!manager_.can_admit(tokens + options_.page_tokens * idx(running_.size()))) return fetch_nothing();
      next.asked_tiers = false;
      write_text(*next.what, next.said, next.text);
      const kvilt::opened_sequence o = manager_.open(next.text, moves_, {{}, next.what->priority});
      manager_.reserve(o.name, tokens - o.tokens, moves_);
      next.name = o.name;
      if (!next.seen) count_hits(*next.what, o.tokens);
      next.seen = true;
      running_.push_back(std::move(next));
      waiting_.pop_front();
    }
  }
  // Those who wait next.
  void prefetch() {
    tiers_.poll(manager_);
    for (std::size_t i = 0; i < std::min(looked_ahead, waiting_.size()) && tiers_.tiers() > 0; ++i) {
      job& j = waiting_[i];
      const idx tokens = j.what->input + j.said;
      if (j.asked_tiers || !manager_.can_admit(tokens + options_.page_tokens * idx(running_.size()))) continue;
      j.asked_tiers = true;
      std::vector<token_id> text;
      write_text(*j.what, j.said, text);
      j.fetched = tiers_.begin(manager_, text, {{}, j.what->priority});
    }
  }
  // Where nobody runs, whoever waits first has all pages.
  void fetch_nothing() {
    if (running_.empty()) give_back_fetched();
  }
  // Nothing is brought again for them: they would take in turn what each other needs. Returns whether anything was.
  bool give_back_fetched() {
    bool any = false;
    for (job& j : waiting_) {
      any = any || j.fetched.slot >= 0;
      tiers_.release(manager_, j.fetched);
    }
    return any;
  }
  void count_hits(const request& r, idx found) {
    result_.tokens_asked += r.input;
    result_.tokens_hit += found;
    result_.blocks_asked += r.input / options_.page_tokens;
    result_.blocks_hit += found / options_.page_tokens;
  }

  void decode(std::size_t count) {
    said_by_.clear();
    said_.clear();
    for (job& j : std::span(running_).first(count)) {
      said_by_.push_back(j.name);
      said_.push_back(token_of(j.what->answer, j.said - 1));
      ++j.said;
    }
    manager_.append(said_by_, said_);
  }
  // Returns how many tokens were computed. The last of a prompt says the first of the answer, in the same step.
  idx prefill() {
    first_said_ = 0;
    their_arrivals_ = 0;
    idx left = options_.step_tokens;
    for (job& j : running_) {
      if (j.prefilled()) continue;
      const idx done = manager_.length(j.name), n = std::min(left, idx(j.text.size()) - done);
      manager_.append(j.name, std::span(j.text).subspan(std::size_t(done), std::size_t(n)));
      left -= n;
      if (done + n < idx(j.text.size())) break;
      j.text = {};
      manager_.store(j.name);  // prompts find it from now on, not only when it has been answered
      if (j.said == 0) {
        ++first_said_;
        their_arrivals_ += j.what->arrival;
      }
      j.said += j.what->output > 0;
    }
    return options_.step_tokens - left;
  }

  void pass(double seconds) {
    const kvilt::group_counters g = manager_.counters().groups[0];
    used_ += seconds * double(g.pages.used);
    held_rows_ += seconds * double(g.held_pages * options_.page_tokens);
    empty_rows_ += seconds * double(g.empty_rows);
    now_ += seconds;
  }
  void finish() {
    std::erase_if(running_, [&](const job& j) {
      if (!j.finished()) return false;
      manager_.close(j.name);
      ++result_.requests;
      return true;
    });
  }

  const trace& trace_;
  const engine_options& options_;
  double now_;
  std::vector<std::unique_ptr<simulated_transfer>> transfers_;
  kvilt::page_tiers<> tiers_;
  kvilt::page_manager<Eviction> manager_;
  std::vector<job> running_;
  std::deque<job> waiting_;
  std::size_t arrived_ = 0;
  double used_ = 0, held_rows_ = 0, empty_rows_ = 0;  // times seconds
  idx first_said_ = 0;                                // in this step, a first token each
  double their_arrivals_ = 0;                         // the sum
  std::vector<kvilt::page_move> moves_;
  std::vector<sequence> said_by_;
  std::vector<token_id> said_;
  outcome result_;
};

}  // namespace

void check_policy(const std::string& name) {
  with_eviction(name, [](auto) {});
}

void check_budget(const trace& t, const engine_options& o) {
  for (const request& r : t) {
    const idx needed = kvilt::ceil_div(r.rows(), o.page_tokens);
    if (needed > o.pages)
      throw std::invalid_argument("a request of " + std::to_string(r.input) + " tokens and " +
                                  std::to_string(r.output) + " more needs " + std::to_string(needed) + " pages of " +
                                  std::to_string(o.page_tokens) + "; the budget is " + std::to_string(o.pages));
  }
}

outcome simulate(const trace& t, const engine_options& o) {
  return with_eviction(o.policy,
                       [&]<class Eviction>(std::type_identity<Eviction>) { return engine<Eviction>(t, o).run(); });
}

}  // namespace example
