// expect: kvilt: a tile format needs a 16-bit tail
#include <kvilt/kvilt.hpp>

// Tiles of 32 tokens, and nowhere for the next tile to gather.

struct tiles {
  static constexpr int rows = 32;
  static constexpr int dim() { return 64; }
  static constexpr int code_bytes() { return 64 * 32; }
  static constexpr int param_bytes() { return 0; }
  void encode(const float*, kvilt::row_ref) const {}
  template <int N>
  void decode(kvilt::row_ref, int, float (&)[N]) const {}
};

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr int tail = 64;
#else
constexpr int tail = 0;
#endif

int run() {
  return kvilt::policy<kvilt::contiguous, tiles, kvilt::fp16<64>, kvilt::keep_all, 0, tail>::tile;
}
