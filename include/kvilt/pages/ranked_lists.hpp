#pragma once

#include <kvilt/pages/id_lists.hpp>

#include <cstdint>

namespace kvilt::inline KVILT_ABI::detail {

/// A queue for each of eight ranks, first in, first out; 8 bytes an id and a `Word`. Each id knows its rank, and the time
/// at which it was put in its queue: a clock of three bits less than a word that comes round, so times to be compared lie
/// within half of that of each other.
template <class Word>
class ranked_lists {
 public:
  static constexpr int ranks = 8;

  explicit ranked_lists(idx ids) : queues_(ids, ranks), words_(std::size_t(ids)) {}

  idx ids() const { return queues_.ids(); }
  int rank(page_id p) const { return int(words_[std::size_t(p)] & (ranks - 1)); }
  /// Of an id that is in no queue.
  void set_rank(page_id p, int rank) { words_[std::size_t(p)] = Word(rank); }

  void push_back(page_id p, std::uint32_t now) {
    const int r = rank(p);
    if (queues_.empty(r)) oldest_ = -1;
    words_[std::size_t(p)] = Word(now << 3 | std::uint32_t(r));
    queues_.push_back(r, p);
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
  page_id longest_ago(const Credit& credit) {
    // NOTE: one queue stays the oldest for a while: the others' firsts do not become older, only an empty queue gets one.
    if (oldest_ >= 0)
      if (const page_id p = first(oldest_); p >= 0 && since(time(p) + credit(oldest_), until_) < 0) return p;
    oldest_ = -1;
    std::uint32_t time_of_oldest = 0;
    for (int r = 0; r < ranks; ++r) {
      if (queues_.empty(r)) continue;
      const std::uint32_t t = time(first(r)) + credit(r);
      if (oldest_ < 0) {
        until_ = t + half_of_the_clock / 2;
      } else if (since(t, time_of_oldest) >= 0) {
        until_ = since(t, until_) < 0 ? t : until_;
        continue;
      } else {
        until_ = time_of_oldest;
      }
      oldest_ = r;
      time_of_oldest = t;
    }
    return oldest_ >= 0 ? first(oldest_) : -1;
  }

 private:
  static constexpr std::uint32_t half_of_the_clock = std::uint32_t(1) << (8 * sizeof(Word) - 4);

  id_lists queues_;
  int oldest_ = -1;          // the queue that was found last, -1: none is known
  std::uint32_t until_ = 0;  // it is, up to this time
  page_array<Word> words_;   // [ids]: time << 3 | rank
};

}  // namespace kvilt::inline KVILT_ABI::detail
