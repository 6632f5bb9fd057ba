#pragma once

/// \file
/// Everything that needs C++20 and nothing else. Threads are opt-in: `kvilt/core/thread_pool.hpp`.

#include <kvilt/attention/alibi.hpp>
#include <kvilt/attention/attend.hpp>
#include <kvilt/attention/logit_bound.hpp>
#include <kvilt/attention/positions.hpp>
#include <kvilt/attention/sink_logit.hpp>
#include <kvilt/attention/soft_cap.hpp>
#include <kvilt/attention/state.hpp>
#include <kvilt/attention/tree_mask.hpp>
#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/append.hpp>
#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/cache.hpp>
#include <kvilt/cache/cache_set.hpp>
#include <kvilt/cache/keep_path.hpp>
#include <kvilt/cache/dispatch.hpp>
#include <kvilt/cache/foreign.hpp>
#include <kvilt/cache/policy.hpp>
#include <kvilt/cache/scales.hpp>
#include <kvilt/core/version.hpp>
#include <kvilt/format/centred.hpp>
#include <kvilt/format/channel.hpp>
#include <kvilt/format/concat.hpp>
#include <kvilt/format/floating.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/narrow.hpp>
#include <kvilt/format/rotate.hpp>
#include <kvilt/format/static_scale.hpp>
#include <kvilt/layout/contiguous.hpp>
#include <kvilt/layout/paged.hpp>
#include <kvilt/layout/paged_list.hpp>
#include <kvilt/position/rope.hpp>
#include <kvilt/position/scaling.hpp>
