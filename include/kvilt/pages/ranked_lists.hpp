#pragma once

#include <kvilt/pages/id_lists.hpp>

#include <cstdint>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// A queue for each of eight ranks, first in, first out; 8 bytes an id and a `Word`. Each id knows its rank, and the time
/// at which it was put in its queue: a clock of three bits less than a word that comes round, so times to be compared lie
/// within half of that of each other.
template <class Word>
class ranked_lists {
 public:
  static constexpr int ranks = 8;

  explicit ranked_lists(idx ids) : queues_(ids, ranks), words_(std::size_t(ids)) {}

  int rank(page_id p) const { return int(words_[std::size_t(p)] & (ranks - 1)); }
  /// Of an id that is in no queue.
  void set_rank(page_id p, int rank) { words_[std::size_t(p)] = Word(rank); }

  void push_back(page_id p, std::uint32_t now) {
    words_[std::size_t(p)] = Word(now << 3 | std::uint32_t(rank(p)));
    queues_.push_back(rank(p), p);
  }
  void remove(page_id p) { queues_.remove(p); }
  /// The first of a rank's queue, or -1, and when it was put there.
  page_id first(int rank) const { return queues_.first(rank); }
  std::uint32_t time(page_id p) const { return words_[std::size_t(p)] >> 3; }

  /// From time b to time a.
  static int since(std::uint32_t a, std::uint32_t b) {
    constexpr int beyond = 32 - 8 * int(sizeof(Word)) + 3;
    return int((a - b) << beyond) >> beyond;
  }

  /// Of the queues' firsts the one that was put there longest ago, each as if it had been `credit(rank)` later; of two
  /// the lower rank. -1: all queues are empty.
  template <class Credit>
  page_id longest_ago(const Credit& credit) const {
    page_id oldest = -1;
    std::uint32_t oldest_time = 0;
    for (int r = 0; r < ranks; ++r) {
      const page_id p = first(r);
      if (p < 0) continue;
      const std::uint32_t t = time(p) + credit(r);
      if (oldest < 0 || since(t, oldest_time) < 0) oldest = p, oldest_time = t;
    }
    return oldest;
  }

 private:
  id_lists queues_;
  std::vector<Word> words_;  // [ids]: time << 3 | rank
};

}  // namespace kvilt::inline KVILT_ABI::detail
