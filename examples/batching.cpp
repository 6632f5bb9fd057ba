// Continuous batching over a page manager: the loop of an engine, with a memory that is far too small for its requests.
// What stands for a model says what follows from all rows that a sequence's pages hold, so a wrong page shows.
#include <kvilt/pages/page_manager.hpp>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <numeric>
#include <span>
#include <vector>

namespace {

using kvilt::idx;
using kvilt::token_id;

constexpr int page_tokens = 16, pages = 40, answer = 50;

struct job {
  std::vector<token_id> text;  // the prompt, then what was said
  std::size_t end = 0;         // of the text, when all is said
  kvilt::sequence name = {};
};

// A row holds its token, in the place of K and V.
class model {
 public:
  void copy_rows(std::vector<kvilt::page_move>& moves) {
    for (const kvilt::page_move& m : moves)
      for (int row = 0; row < m.rows; ++row) at(m.to, row) = at(m.from, row);
    moves.clear();
  }
  // Computes the rows of `text` from `first` on.
  token_id next(std::span<const kvilt::page_id> table, std::span<const token_id> text, idx first) {
    std::uint32_t sum = 17;
    for (idx i = 0; i < idx(text.size()); ++i) {
      token_id& row = at(table[std::size_t(i / page_tokens)], int(i % page_tokens));
      if (i >= first) row = text[std::size_t(i)];
      sum = sum * 31 + std::uint32_t(row);
    }
    return token_id(sum % 1000);
  }

 private:
  token_id& at(kvilt::page_id p, int row) { return rows_[std::size_t(p) * page_tokens + std::size_t(row)]; }
  std::vector<token_id> rows_ = std::vector<token_id>(std::size_t(pages) * page_tokens, -1);
};

kvilt::manager_counters serve(std::deque<job> waiting, std::vector<job>& done) {
  kvilt::page_manager<> manager({.page_tokens = page_tokens, .sequences = 8, .groups = {{.pages = pages}}});
  model m;
  std::vector<job> running;
  std::vector<kvilt::page_move> moves;
  // README: from here
  while (!running.empty() || !waiting.empty()) {
    for (std::size_t i = 0; i < running.size();) {  // a token more for each, or who came last waits again
      if (manager.try_reserve(running[i].name, 1, moves)) {
        ++i;
        continue;
      }
      manager.preempt(running.back().name, [](int, std::span<const kvilt::page_id>) {});  // or save its pages
      waiting.push_front(std::move(running.back()));
      running.pop_back();
    }
    while (!waiting.empty()) {
      job& j = waiting.front();
      if (!manager.can_admit(idx(j.text.size()) + page_tokens * idx(running.size()))) break;
      const kvilt::opened_sequence o = manager.open(j.text, moves);  // has what is cached of it
      j.name = o.name;
      manager.reserve(o.name, idx(j.text.size()) - o.tokens, moves);
      running.push_back(std::move(j));
      waiting.pop_front();
    }
    m.copy_rows(moves);  // {group, from, to, rows}: who writes has a page of its own
    for (job& j : running) {
      const idx computed = manager.length(j.name);  // the rest of a prompt is left, or what was said last
      const token_id said = m.next(manager.pages(j.name), j.text, computed);  // your model, over your memory
      manager.append(j.name, std::span(j.text).subspan(std::size_t(computed)));
      manager.store(j.name);  // others find it from now on
      j.text.push_back(said);
    }
    std::erase_if(running, [&](job& j) {
      if (j.text.size() < j.end) return false;
      manager.close(j.name);  // which keeps it for others
      done.push_back(std::move(j));
      return true;
    });
  }
  // README: to here
  return manager.counters();
}

// Each answer is that of the text alone.
bool right(const std::vector<job>& done, std::size_t requests) {
  std::size_t wrong = 0;
  for (const job& j : done) {
    const auto follow = [](std::uint32_t sum, token_id t) { return sum * 31 + std::uint32_t(t); };
    for (std::size_t i = j.end - answer; i < j.end; ++i)
      wrong += std::accumulate(j.text.begin(), j.text.begin() + idx(i), 17u, follow) % 1000 != unsigned(j.text[i]);
  }
  return wrong == 0 && done.size() == requests;
}

}  // namespace

int main() {
  std::deque<job> waiting;
  for (int r = 0; r < 24; ++r) {  // three system prompts of 60 tokens, and a question
    job j;
    for (int i = 0; i < 60; ++i) j.text.push_back(1000 * (r % 3) + i);
    for (int i = 0; i < 5 + 3 * r; ++i) j.text.push_back(7 * r + i);
    j.end = j.text.size() + answer;
    waiting.push_back(j);
  }
  const std::size_t requests = waiting.size();
  std::vector<job> done;
  const kvilt::manager_counters c = serve(std::move(waiting), done);
  std::printf("%zu requests: %lld of %lld prompt tokens were there, %lld preempted, %lld pages copied\n", done.size(),
              static_cast<long long>(c.prefixes.hit + c.prefixes.copied), static_cast<long long>(c.prefixes.asked),
              static_cast<long long>(c.preempted), static_cast<long long>(c.moves));
  return right(done, requests) ? 0 : 1;
}
