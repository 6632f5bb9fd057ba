// expect: kvilt: a variant's `score` must be `float score\(const kvilt::where&, float\) const`
#include <kvilt/kvilt.hpp>

// A score in double precision, beside a mask that is right.

#ifdef KVILT_COMPILE_FAIL_CONTROL
using number = float;
#else
using number = double;
#endif

struct halved {
  bool keep(const kvilt::where& w) const { return w.k_position <= w.q_position; }
  number score(const kvilt::where&, float s) const { return number(s / 2); }
};

constexpr kvilt::attention<halved> attend;
