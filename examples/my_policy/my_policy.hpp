#pragma once

// A stranger's policy: a 6-bit format, a token-major layout and an attention variant, each a plain struct. The library
// is not touched, and the same file serves the host backend and kernels.
#include <kvilt/attention/variant.hpp>
#include <kvilt/format/format.hpp>
#include <kvilt/layout/layout.hpp>

namespace mine {

/// Symmetric, 4 codes in 3 bytes, one fp32 scale a row: code = round(x / scale) + 32, scale = max|x| / 31.
struct six_bit {
  static constexpr int rows = 1;
  static constexpr const char* name() { return "six_bit"; }
  int width = 0;

  KVILT_HD int dim() const { return width; }
  KVILT_HD int code_bytes() const { return width * 6 / 8; }
  KVILT_HD int param_bytes() const { return 4; }

  KVILT_HD void encode(const float* x, kvilt::row_ref r) const {
    float largest = 0;
    for (int i = 0; i < width; ++i) largest = __builtin_fabsf(x[i]) > largest ? __builtin_fabsf(x[i]) : largest;
    const float scale = largest > 0 ? largest / 31 : 1.0f;
    __builtin_memcpy(r.params, &scale, 4);
    for (int i = 0; i < width; i += 4) {
      unsigned word = 0;
      for (int j = 0; j < 4; ++j) word |= unsigned(int(__builtin_rintf(x[i + j] / scale)) + 32) << 6 * j;
      for (int b = 0; b < 3; ++b) r.codes[i / 4 * 3 + b] = static_cast<unsigned char>(word >> 8 * b & 255);
    }
  }
  template <int N>
  KVILT_HD void decode(kvilt::row_ref r, int first, float (&out)[N]) const {
    float scale;
    __builtin_memcpy(&scale, r.params, 4);
    for (int i = 0; i < N; i += 4) {
      unsigned word = 0;
      for (int b = 0; b < 3; ++b) word |= unsigned(r.codes[(first + i) / 4 * 3 + b]) << 8 * b;
      for (int j = 0; j < 4; ++j) out[i + j] = scale * float(int(word >> 6 * j & 63) - 32);
    }
  }
};

/// All sequences' token i side by side: a page is one token of one sequence.
struct token_major {
  static constexpr int min_run = 1;
  static constexpr const char* name() { return "token_major"; }
  int sequences = 0;

  KVILT_HD kvilt::place locate(int sequence, int, kvilt::idx slot) const { return {slot * sequences + sequence, 0, 1}; }

  // What an owning cache asks besides: how many pages of how many rows, and the layout for them.
  int page_rows(kvilt::layout_request) const { return 1; }
  kvilt::idx pages(kvilt::layout_request r) const { return r.sequences * r.slots; }
  token_major bind(kvilt::layout_request r) const { return {r.sequences}; }
};

/// Causal, and scores fade with the logarithm of the distance.
struct fading {
  float strength = 0;
  KVILT_HD bool keep(const kvilt::where& w) const { return w.k_position <= w.q_position; }
  KVILT_HD float score(const kvilt::where& w, float s) const {
    return s - strength * __builtin_logf(1.0f + float(w.q_position - w.k_position));
  }
};

static_assert(kvilt::kv_format<six_bit> && kvilt::fixed_layout<token_major> && kvilt::attention_variant<fading>);

}  // namespace mine
