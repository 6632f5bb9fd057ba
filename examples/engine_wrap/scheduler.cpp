#include "scheduler.hpp"

#include <algorithm>

namespace example {

scheduler::scheduler(const engine_shape& shape) : shape_(shape), seats_(std::size_t(shape.seats)) {
  for (page_id page = 0; page < shape.pages; ++page) free_.push_back(page);
}

void scheduler::leave(text& seat) {
  free_.insert(free_.end(), seat.pages.begin(), seat.pages.end());
  promised_ -= pages_of(seat.all);
  seat = {};
  ++ended_;
}

void scheduler::sit_down(text& seat) {
  text next = waiting(next_);
  const int pages = pages_of(next.all);
  if (promised_ + pages > shape_.pages) return;
  promised_ += pages;
  ++next_;
  seat = std::move(next);
}

// NOTE: entries of the table that no token uses may be anything; -1 is what shows a mistake.
void scheduler::advance(const text& seat, int number, const batch_lists& to) const {
  const bool empty = seat.number < 0;
  to.sequences()[number] = empty ? -1 : number;
  to.length_before()[number] = seat.length;
  to.new_tokens()[number] = empty ? 0 : std::clamp(seat.prompt - seat.length, 1, shape_.chunk);
  to.texts()[number] = seat.number;
  page_id* const row = to.table() + idx(number) * shape_.width;
  std::fill(std::copy(seat.pages.begin(), seat.pages.end(), row), row + shape_.width, -1);
}

void scheduler::next(const batch_lists& to) {
  for (text& seat : seats_)
    if (seat.number >= 0 && seat.length == seat.all) leave(seat);
  for (text& seat : seats_)
    if (seat.number < 0) sit_down(seat);
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    text& seat = seats_[i];
    const int most = seat.number < 0 ? 0 : std::min(seat.length + shape_.chunk, seat.all);
    while (int(seat.pages.size()) < pages_of(most)) {
      seat.pages.push_back(free_.back());
      free_.pop_back();
    }
    advance(seat, int(i), to);
    seat.length += to.new_tokens()[i];
    tokens_ += to.new_tokens()[i];
  }
}

}  // namespace example
