#pragma once

#include <kvilt/position/rope.hpp>

namespace kvilt::inline KVILT_ABI {

/// Queries and keys count positions in the text.
struct text_positions {};

/// Sinks and window count as one text: a query that no longer sees the tokens between is turned for the sinks to the
/// distance it has in the cache (StreamingLLM). Exact, and keys stay as they were written: Q is rotated once more for
/// the segment. `turn` is the RoPE that `append` used.
struct cache_positions {
  rope turn;
};

/// Keys were appended without RoPE, and each is turned at its position in the text when it is read; the caller turns Q
/// by the same RoPE. For frequencies that change as the text grows (dynamic NTK, LongRoPE): keys turned at append would
/// be stale. Costs one rotation per key read, so prefer `append`'s RoPE where frequencies stay.
struct rope_on_read {
  rope turn;
};

}  // namespace kvilt::inline KVILT_ABI
