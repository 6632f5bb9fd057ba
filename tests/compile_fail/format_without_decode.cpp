// expect: kvilt: a format needs `template <int N> void decode\(row_ref, int first, float \(&out\)\[N\]\) const`
#include <kvilt/kvilt.hpp>

// A user's format that cannot read a row.

struct write_only {
  static constexpr int rows = 1;
  static constexpr int dim() { return 64; }
  static constexpr int code_bytes() { return 64; }
  static constexpr int param_bytes() { return 0; }
  void encode(const float*, kvilt::row_ref) const {}
#ifdef KVILT_COMPILE_FAIL_CONTROL
  template <int N>
  void decode(kvilt::row_ref, int, float (&)[N]) const {}
#endif
};

using kv = kvilt::policy<kvilt::contiguous, write_only>;
kvilt::budget run() {
  return kvilt::plan_bytes(kv(), {.layers = 1, .kv_heads = 1});
}
