// expect: kvilt: a variant's `sink` must be `float sink\(int q_head\) const`
#include <kvilt/kvilt.hpp>

// A sink that is told where, as the other hooks are: beside a mask that is right it would be passed over in silence.

#ifdef KVILT_COMPILE_FAIL_CONTROL
using asked = int;
#else
using asked = const kvilt::where&;
#endif

struct with_sink {
  bool keep(const kvilt::where& w) const { return w.k_position <= w.q_position; }
  float sink(asked) const { return 0; }
};

constexpr kvilt::attention<with_sink> attend;
