#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/ranked_lists.hpp>

#include <array>
#include <cstdint>

namespace kvilt::inline KVILT_ABI {

/// The lowest priority goes first, of pages of one priority the least recently used one; before them all goes what has
/// not been used for as long as its priority is kept. A page has the highest priority of all who used it since it was stored:
/// others' prefixes go on from it. 12 bytes a page.
class priority {
  using queue_type = detail::ranked_lists<std::uint32_t>;

 public:
  static constexpr int levels = queue_type::ranks;
  /// For how long each level is kept, in the engine's unit; at most 2^28 of them.
  using lifetimes = std::array<std::uint32_t, levels>;
  static constexpr std::uint32_t for_ever = 0xffffffffu;

  explicit priority(idx pages)
      : priority(pages, {for_ever, for_ever, for_ever, for_ever, for_ever, for_ever, for_ever, for_ever}) {}
  /// Throws `invalid_argument` where a level is kept for less long than one below it.
  priority(idx pages, const lifetimes& kept) : queues_(pages), kept_(kept) {
    for (int l = 1; l < levels; ++l)
      detail::expects(at(l - 1) <= at(l), "priority ", l, " is kept for ", at(l), ", less than ", l - 1, " for ",
                      at(l - 1));
    for (int l = 0; l < levels; ++l)
      detail::expects(at(l) <= 1u << 28 || at(l) == for_ever, "priority ", l, " is kept for ", at(l), "; at most 2^28");
  }

  /// The time from now on; it does not go back, and an idle page is not idle for 2^28.
  void time(std::uint32_t now) { now_ = now; }

  idx pages() const { return queues_.ids(); }
  void stored(page_id p, bool) { queues_.set_rank(p, 0); }
  void hit(page_id) {}
  /// Throws `invalid_argument` for a priority that there is not.
  void given(page_id p, page_id child, const page_use& use) {
    detail::expects(use.priority >= 0 && use.priority < levels, "page ", p, " has priority ", use.priority,
                    "; there are 0 to ", levels - 1);
    const idx highest = larger(use.priority, child >= 0 ? queues_.rank(child) : 0);
    if (highest > queues_.rank(p)) queues_.set_rank(p, int(highest));
  }
  void idle(page_id p) { queues_.push_back(p, now_); }
  void busy(page_id p) { queues_.remove(p); }
  page_id pop() {
    page_id lowest = -1, expired = -1;
    for (int l = levels - 1; l >= 0; --l) {
      const page_id p = queues_.first(l);
      if (p < 0) continue;
      lowest = p;
      if (at(l) != for_ever && queues_.since(now_, queues_.time(p)) > std::int32_t(at(l))) expired = p;
    }
    const page_id p = expired >= 0 ? expired : lowest;
    if (p >= 0) queues_.remove(p);
    return p;
  }

 private:
  std::uint32_t at(int level) const { return kept_[std::size_t(level)]; }

  queue_type queues_;
  lifetimes kept_;
  std::uint32_t now_ = 0;
};
static_assert(eviction_policy<priority>);

}  // namespace kvilt::inline KVILT_ABI
