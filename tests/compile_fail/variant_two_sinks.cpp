// expect: kvilt: at most one of the variants that are composed has a `sink`
#include <kvilt/kvilt.hpp>

// Two learned sinks in one softmax: which of them was meant?

#ifdef KVILT_COMPILE_FAIL_CONTROL
using second = kvilt::soft_cap;
#else
using second = kvilt::sink_logit;
#endif

constexpr kvilt::attention attend{kvilt::compose(kvilt::sink_logit{}, kvilt::causal{}, second{})};
