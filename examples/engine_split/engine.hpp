#pragma once

// What every file of an engine sees: which policies it has, and that their code is compiled once, in engine.cpp. A file
// that includes this compiles no attention and no append, however many policies there are.
#include <kvilt/kvilt.hpp>

namespace example {

using exact = kvilt::policy<kvilt::contiguous, kvilt::fp16<>>;
using chat = kvilt::policy<kvilt::paged<>, kvilt::rotated<kvilt::q8<>>, kvilt::q4<>, kvilt::keep_all, 4, 64>;
using local = kvilt::ring<kvilt::q8<>>;
using policies = kvilt::policy_list<exact, chat, local>;

template <class Policy>
using host_view_of = kvilt::view_of<kvilt::memory_space::host, Policy>;
using causal_attention = kvilt::attention<kvilt::causal>;

}  // namespace example

// The verbs of one policy in the types that this engine calls them with; TEMPLATE is `extern template` to declare them.
#define EXAMPLE_VERBS(TEMPLATE, POLICY)                                                                              \
  TEMPLATE class kvilt::cache<POLICY>;                                                                               \
  TEMPLATE void kvilt::append(const kvilt::host&, const example::host_view_of<POLICY>&, const kvilt::step&,          \
                              kvilt::rows<float> q, kvilt::rows<float> k, kvilt::rows<float> v, const kvilt::rope&); \
  TEMPLATE void kvilt::run_attention(const kvilt::host&, const example::causal_attention&,                           \
                                     const example::host_view_of<POLICY>&, const kvilt::step&, kvilt::rows<float> q, \
                                     kvilt::rows<float> out, kvilt::natural_lse);
#define EXAMPLE_ALL_VERBS(TEMPLATE)       \
  EXAMPLE_VERBS(TEMPLATE, example::exact) \
  EXAMPLE_VERBS(TEMPLATE, example::chat)  \
  EXAMPLE_VERBS(TEMPLATE, example::local)

#if !defined(EXAMPLE_DEFINES_VERBS)
EXAMPLE_ALL_VERBS(extern template)
#endif
