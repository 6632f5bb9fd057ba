#pragma once

#include "shape.hpp"

#include <vector>

namespace example {

/// Who sits in the batch, and which pages are whose. Knows nothing of CUDA, and of kvilt only what a page id is.
class scheduler {
 public:
  explicit scheduler(const engine_shape& shape);

  /// The next step: who has ended leaves its pages, the next in line sits down where there are pages for all of its
  /// text, and everyone is some tokens further.
  void next(const batch_lists& to);

  idx tokens() const { return tokens_; }  // of all steps
  int ended() const { return ended_; }    // sequences

 private:
  struct text {
    int number = -1;  // nobody's
    int prompt = 0, all = 0;
    int length = 0;
    std::vector<page_id> pages;
  };

  /// The line never ends.
  static text waiting(int number) {
    const int prompt = 20 + number * 37 % 160, answer = 10 + number * 53 % 120;
    return {number, prompt, prompt + answer, 0, {}};
  }
  int pages_of(int tokens) const { return int(kvilt::ceil_div(tokens, shape_.page_rows)); }
  void leave(text& seat);
  void sit_down(text& seat);
  void advance(const text& seat, int number, const batch_lists& to) const;

  engine_shape shape_;
  std::vector<page_id> free_;
  std::vector<text> seats_;
  int promised_ = 0;  // pages, to those who sit
  int next_ = 0;      // text in line
  idx tokens_ = 0;
  int ended_ = 0;
};

}  // namespace example
