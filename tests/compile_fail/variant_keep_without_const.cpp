// expect: kvilt: a variant's `keep` must be `bool keep\(const kvilt::where&\) const`
#include <kvilt/kvilt.hpp>

// A mask that no kernel could call: beside a `score` that it could, it would be passed over in silence.

#ifdef KVILT_COMPILE_FAIL_CONTROL
#define CONST_IF_RIGHT const
#else
#define CONST_IF_RIGHT
#endif

struct causal_by_hand {
  bool keep(const kvilt::where& w) CONST_IF_RIGHT { return w.k_position <= w.q_position; }
  float score(const kvilt::where&, float s) const { return s; }
};

constexpr kvilt::attention<causal_by_hand> attend;
