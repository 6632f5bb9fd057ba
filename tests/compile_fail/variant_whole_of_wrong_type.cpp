// expect: kvilt: a variant's `whole` must be `bool whole\(const kvilt::where&, kvilt::position_range\) const`
#include <kvilt/kvilt.hpp>

// A hint that takes bounds instead of a range: it would never be asked, and attention be slow in silence.

#ifdef KVILT_COMPILE_FAIL_CONTROL
struct causal_by_hand {
  bool keep(const kvilt::where& w) const { return w.k_position <= w.q_position; }
  bool whole(const kvilt::where& w, kvilt::position_range r) const { return r.last <= w.q_position + 1; }
};
#else
struct causal_by_hand {
  bool keep(const kvilt::where& w) const { return w.k_position <= w.q_position; }
  bool whole(const kvilt::where& w, kvilt::idx, kvilt::idx last) const { return last <= w.q_position + 1; }
};
#endif

constexpr kvilt::attention<causal_by_hand> attend;
