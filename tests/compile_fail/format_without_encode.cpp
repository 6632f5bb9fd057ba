// expect: kvilt: a format needs `void encode\(const float\* rows, row_ref\) const`
#include <kvilt/kvilt.hpp>

// A user's format that cannot write a row.

struct read_only {
  static constexpr int rows = 1;
  static constexpr int dim() { return 64; }
  static constexpr int code_bytes() { return 64; }
  static constexpr int param_bytes() { return 0; }
#ifdef KVILT_COMPILE_FAIL_CONTROL
  void encode(const float*, kvilt::row_ref) const {}
#endif
  template <int N>
  void decode(kvilt::row_ref, int, float (&)[N]) const {}
};

using kv = kvilt::policy<kvilt::contiguous, kvilt::fp16<64>, read_only>;
kvilt::budget run() {
  return kvilt::plan_bytes(kv(), {.layers = 1, .kv_heads = 1});
}
