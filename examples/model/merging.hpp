#pragma once

#include <cstddef>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

namespace example {

// A stretch of text on its way to becoming a token.
struct symbol {
  std::size_t begin;
  std::size_t size;
  int token;  // -1 where the stretch is no token
};

struct joined {
  double order;  // the least is merged first
  int token;
};

// Merges neighbours, the best pair first and the leftmost of equals, until no pair joins; erases what was merged away.
// join(left, right) says what two neighbouring symbols make, if anything. Takes O(n log n).
template <typename Join>
void merge_symbols(std::vector<symbol>& symbols, const Join& join) {
  constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct candidate {
    double order;
    std::size_t left, right;
    std::size_t size;  // of both when this was found: a different one now means that one of them has merged since
    int token;
  };
  const auto later = [](const candidate& a, const candidate& b) {
    return a.order > b.order || (a.order == b.order && a.left > b.left);
  };
  std::priority_queue<candidate, std::vector<candidate>, decltype(later)> queue(later);

  std::vector<std::size_t> previous(symbols.size()), next(symbols.size());
  const auto propose = [&](std::size_t left, std::size_t right) {
    if (left == none || right == none) return;
    const std::optional<joined> pair = join(symbols[left], symbols[right]);
    if (pair) queue.push({pair->order, left, right, symbols[left].size + symbols[right].size, pair->token});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    previous[i] = i == 0 ? none : i - 1;
    next[i] = i + 1 == symbols.size() ? none : i + 1;
    propose(previous[i], i);
  }

  while (!queue.empty()) {
    const candidate best = queue.top();
    queue.pop();
    symbol& left = symbols[best.left];
    symbol& right = symbols[best.right];
    if (left.size == 0 || right.size == 0 || left.size + right.size != best.size) continue;
    left.size = best.size;
    left.token = best.token;
    right.size = 0;
    next[best.left] = next[best.right];
    if (next[best.left] != none) previous[next[best.left]] = best.left;
    propose(previous[best.left], best.left);
    propose(best.left, next[best.left]);
  }
  std::erase_if(symbols, [](const symbol& s) { return s.size == 0; });
}

}  // namespace example
