// expect: kvilt: an attention variant is trivially copyable and has `float score\(kvilt::where, float\) const`, `bool keep
#include <kvilt/kvilt.hpp>

// A user's variant whose only hook has another name.

struct misspelt {
#ifdef KVILT_COMPILE_FAIL_CONTROL
  bool keep(kvilt::where w) const {
    return w.k_position <= w.q_position;
  }
#else
  bool keeps(kvilt::where w) const {
    return w.k_position <= w.q_position;
  }
#endif
};

constexpr kvilt::attention<misspelt> attend;
