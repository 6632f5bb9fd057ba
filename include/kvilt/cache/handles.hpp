#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// A sequence as its user names it.
struct handle {
  bool open = false;
  std::uint32_t generation = 0;
  int row = 0;                // of the view's tables; no two handles have the same
  std::uint64_t checked = 0;  // the call that has seen it last
};

/// Who is open. A handle's slot stays; the row that it stands for may change.
class sequence_handles {
 public:
  explicit sequence_handles(int sequences) : handles_(std::size_t(sequences)) {
    for (int s = sequences; s-- > 0;) {
      handles_[std::size_t(s)].row = s;
      closed_.push_back(s);
    }
  }

  bool moved_from() const { return handles_.empty(); }
  int free() const { return int(closed_.size()); }
  void check_free() const {
    expects<out_of_pages>(!closed_.empty(), "all ", idx(handles_.size()), " sequences are open");
  }

  sequence open() {
    check_free();
    const int slot = closed_.back();
    closed_.pop_back();
    handle& h = handles_[std::size_t(slot)];
    h.open = true;
    return {slot, ++h.generation};
  }
  void close(sequence s) {
    find(s).open = false;
    closed_.push_back(s.slot);
  }

  const handle& find(sequence s) const {
    expects(s.slot >= 0 && std::size_t(s.slot) < handles_.size(), "sequence ", s.slot, "; the cache has 0 to ",
            idx(handles_.size()) - 1);
    const handle& h = handles_[std::size_t(s.slot)];
    expects(h.open && h.generation == s.generation, "sequence ", s.slot, " (opened as its ", s.generation,
            "th) is closed");
    return h;
  }
  handle& find(sequence s) { return const_cast<handle&>(std::as_const(*this).find(s)); }

 private:
  std::vector<handle> handles_;  // by slot
  std::vector<int> closed_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
