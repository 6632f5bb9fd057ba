#pragma once

#include "trace.hpp"

#include <kvilt/pages/page_manager.hpp>

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

// What the programs beside this file do to a page manager: one measures time, one instructions, one threads.
namespace bench {

using namespace kvilt;

inline constexpr int page_tokens = 16, prompt_pages = 512;

inline std::vector<page_id> shuffled_pages(idx pages) {
  std::vector<page_id> order(std::size_t(pages), 0);
  std::iota(order.begin(), order.end(), 0);
  dice random(7);
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

// A prompt of 512 pages.
inline std::vector<token_id> prompt(idx number) {
  std::vector<token_id> t(std::size_t(prompt_pages * page_tokens));
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = token_of(std::uint64_t(number) << 20 | i);
  return t;
}

// Room for a token more of each.
inline void reserve_step(page_manager<>& manager, std::span<const sequence> each, std::vector<page_move>& moves) {
  if (manager.try_reserve(each, 1, moves) < idx(each.size())) throw std::runtime_error("there are too few pages");
}

// 1,000 sequences, a token each in a step; prompts of 16 to 2,048 tokens, outputs of 1 to 512, every twentieth a fork.
class churn {
 public:
  churn() : manager_({page_tokens, 1001, {{320'000}}}), text_(2048, 1), open_(1000), left_(1000) {
    for (std::size_t i = 0; i < open_.size(); ++i) start(i);
    before_ = operations();
  }
  void step() {
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (left_[i]-- > 0) continue;
      taken_back_ += idx(manager_.pages(open_[i]).size());
      manager_.discard(open_[i]);
      start(i);
    }
    reserve_step(manager_, open_, moves_);
    manager_.append(open_, std::span(text_).first(open_.size()));
    moves_.clear();
  }
  idx page_operations() const { return operations() - before_; }

 private:
  void start(std::size_t i) {
    left_[i] = 1 + int(random_.below(512));
    const std::size_t other = random_.below(open_.size());
    if (random_.below(20) == 0 && other != i && open_[other].slot >= 0) {
      open_[i] = manager_.fork(open_[other]);
      return;
    }
    const idx tokens = 16 + idx(random_.below(2033));
    open_[i] = manager_.open({}, moves_).name;
    manager_.reserve(open_[i], tokens, moves_);
    manager_.append(open_[i], std::span(text_).first(std::size_t(tokens)));
  }
  // Pages that came into tables and left them.
  idx operations() const { return 2 * taken_back_ + manager_.counters().groups[0].held_pages; }

  page_manager<> manager_;
  std::vector<token_id> text_;
  std::vector<sequence> open_;
  std::vector<int> left_;  // steps
  std::vector<page_move> moves_;
  dice random_{21};
  idx taken_back_ = 0, before_ = 0;
};

// Sequences that only grow, to 256 pages each or until there are none left.
class growth {
 public:
  explicit growth(int sequences)
      : pages_each_(std::min<idx>(256, 4'000'000 / sequences)),
        manager_({page_tokens, sequences, {{std::max<idx>(320'000, sequences * pages_each_)}}}),
        open_(std::size_t(sequences)),
        text_(std::size_t(sequences), 7) {
    begin();
  }
  void step() {
    if (++steps_ % (pages_each_ * page_tokens) == 0) {
      for (const sequence s : open_) manager_.discard(s);
      begin();
    }
    reserve_step(manager_, open_, moves_);
    manager_.append(open_, text_);
  }

 private:
  void begin() {
    for (sequence& s : open_) s = manager_.open({}, moves_).name;
  }

  idx pages_each_, steps_ = 0;
  page_manager<> manager_;
  std::vector<page_move> moves_;
  std::vector<sequence> open_;
  std::vector<token_id> text_;
};

// Prompts of 512 pages that are all cached.
class cached_prompts {
 public:
  explicit cached_prompts(idx prompts)
      : prompts_(prompts), cache_(prompts * prompt_pages, page_tokens), root_(cache_.open_root({})) {
    std::vector<page_id> pages(prompt_pages);
    for (idx n = 0; n < prompts; ++n) {
      const std::vector<token_id> text = prompt(n);
      cache_.take(pages);
      for (std::size_t i = 0; i < pages.size(); ++i)
        std::copy_n(&text[i * page_tokens], page_tokens, cache_.tokens(pages[i]));
      prefix_end end = root_;
      cache_.store(end, pages);
      cache_.give(pages);
    }
  }
  std::vector<token_id> one_of(dice& random) const { return prompt(idx(random.below(std::uint64_t(prompts_)))); }
  // Returns how many pages are found.
  idx find(const std::vector<token_id>& text) {
    found_.clear();
    return cache_.find(root_, text, found_).pages;
  }

 private:
  idx prompts_;
  page_cache<> cache_;
  prefix_end root_;
  std::vector<page_id> found_;
};

// A pool that prompts have filled, each of which nobody asks for again.
template <class Eviction>
class full_manager {
 public:
  full_manager() : manager_({page_tokens, 1, {{320'000}}}) { fill(); }
  page_manager<Eviction>& manager() { return manager_; }
  std::vector<token_id> next_prompt() { return prompt(number_++); }
  void fill() {
    while (manager_.counters().groups[0].pages.free > 0) pass(next_prompt());
  }
  void pass(const std::vector<token_id>& text) {
    const opened_sequence o = manager_.open(text, moves_);
    manager_.reserve(o.name, idx(text.size()) - o.tokens, moves_);
    manager_.append(o.name, std::span(text).subspan(std::size_t(o.tokens)));
    manager_.close(o.name);
  }

 private:
  page_manager<Eviction> manager_;
  std::vector<page_move> moves_;
  idx number_ = 0;
};

}  // namespace bench
