#pragma once

// A stranger's masks, each a plain struct. `keep` is all that is needed; `tiles` and `whole` make it fast: keys outside
// are not read, and inside a whole range nobody asks about each key. The same file serves the host and kernels.
#include <kvilt/attention/variant.hpp>

namespace mine {

/// Documents packed into one sequence: a token sees its own document, up to itself.
struct documents {
  const kvilt::idx* start = nullptr;  // [positions]: where the token's document begins

  KVILT_HD bool keep(const kvilt::where& w) const {
    return w.k_position >= start[w.q_position] && w.k_position <= w.q_position;
  }
  KVILT_HD kvilt::position_range tiles(const kvilt::where& w) const { return {start[w.q_position], w.q_position + 1}; }
  KVILT_HD bool whole(const kvilt::where& w, kvilt::position_range r) const {
    return r.first >= start[w.q_position] && r.last <= w.q_position + 1;
  }
};

/// Block-sparse attention: blocks of `size` queries see some blocks of keys. To be composed with `causal`.
struct block_sparse {
  const unsigned char* seen = nullptr;  // [blocks of queries][blocks of keys], 0 or 1
  int blocks = 0;
  int size = 64;

  KVILT_HD bool sees(kvilt::idx query, kvilt::idx key_block) const {
    return seen[query / size * blocks + key_block] != 0;
  }
  KVILT_HD bool keep(const kvilt::where& w) const { return sees(w.q_position, w.k_position / size); }
  KVILT_HD bool whole(const kvilt::where& w, kvilt::position_range r) const {
    for (kvilt::idx block = r.first / size; block * size < r.last; ++block)
      if (!sees(w.q_position, block)) return false;
    return true;
  }
};

static_assert(kvilt::attention_variant<documents> && kvilt::attention_variant<block_sparse>);

}  // namespace mine
