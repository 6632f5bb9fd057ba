#pragma once

#include <kvilt/attention/host/tasks.hpp>
#include <kvilt/cache/segment.hpp>

#include <algorithm>

namespace kvilt::inline KVILT_ABI::detail {

/// How rows of a format reach the kernels: as they lie, or decoded to fp32 first.
template <class F>
consteval plain_codes plain_or_decoded() {
  if constexpr (plain_format<F>)
    return F::plain;
  else
    return {};
}

/// What kernels take off integer codes, so that they have no mean to speak of: the error of an integer weight would
/// multiply it, in every number alike, and a rotation gather that into one.
constexpr int centre_of(plain_codes p) {
  return p.params != param_kind::scale_zero ? p.offset : p.codes == code_kind::u4 ? 8 : 128;
}

/// Where the keys of a tile lie, or its values, and their params.
struct tile_side {
  static constexpr int tokens = host_tile::tokens;

  const unsigned char* rows[tokens] = {};
  const unsigned char* ahead[tokens] = {};  // a tile later
  std::uint16_t scale_bits[tokens] = {}, zero_bits[tokens] = {};
  float scale[tokens] = {};                               // of fp32 scales
  float wide_scale[tokens] = {}, wide_zero[tokens] = {};  // of the part that is at work

  /// Rows of `run` tokens from place `p` on, for the tile's tokens from `at` on. decoded: [tokens][dim], for formats
  /// that are not plain.
  template <class F>
  void take(const F& format, const plane& codes, const plane& params, place p, int head, int at, int run,
            float* decoded) {
    if constexpr (plain_format<F>) {
      const unsigned char* code = codes.at(p, head, p.row);
      for (int t = 0; t < run; ++t) rows[at + t] = code + t * codes.record_stride;
      if constexpr (F::plain.params != param_kind::none)
        take_params(F::plain.params, params.at(p, head, p.row), params.record_stride, at, run);
    } else {
      for (int t = 0; t < run; ++t) {
        float* row = decoded + idx(at + t) * format.dim();
        const int in_page = p.row + t;
        decode_row(format,
                   {codes.at(p, head, in_page / F::rows), params.at(p, head, in_page / F::rows), in_page % F::rows},
                   row);
        rows[at + t] = reinterpret_cast<const unsigned char*>(row);
      }
    }
  }

  /// Where rows will be read a tile later: those of `run` tokens from place `p` on.
  template <class F>
  void foresee(const F&, const plane& codes, place p, int head, int at, int run) {
    if constexpr (plain_format<F>) {
      const unsigned char* code = codes.at(p, head, p.row);
      for (int t = 0; t < run; ++t) ahead[at + t] = code + t * codes.record_stride;
    }
  }

  /// Scales as floats, and what the centre of the codes stands for.
  row_params widened(const host_kernels& kernels, plain_codes codes) {
    const param_kind kind = codes.params;
    static constexpr auto filled = [](float x) {
      struct {
        float value[tokens];
      } all{};
      for (float& one : all.value) one = x;
      return all;
    };
    static constexpr auto ones = filled(1), zeros = filled(0);
    if (kind == param_kind::none) return {ones.value, zeros.value};
    if (kind == param_kind::scale32) return {scale, zeros.value};
    kernels.widen_halves(scale_bits, wide_scale);
    if (kind == param_kind::scale16) return {wide_scale, zeros.value};
    kernels.widen_halves(zero_bits, wide_zero);
    for (int t = 0; t < tokens; ++t) wide_zero[t] += float(centre_of(codes)) * wide_scale[t];
    return {wide_scale, wide_zero};
  }

 private:
  void take_params(param_kind kind, const unsigned char* from, idx stride, int at, int run) {
    if (kind == param_kind::scale16 && stride == 2) {
      std::copy_n(from, 2 * run, reinterpret_cast<unsigned char*>(scale_bits + at));
      return;
    }
    for (int t = 0; t < run; ++t, from += stride) {
      if (kind == param_kind::scale32) {
        scale[at + t] = read<float>(from);
      } else if (kind == param_kind::scale16) {
        scale_bits[at + t] = read<std::uint16_t>(from);
      } else {
        const std::uint32_t pair = read<std::uint32_t>(from);
        scale_bits[at + t] = std::uint16_t(pair), zero_bits[at + t] = std::uint16_t(pair >> 16);
      }
    }
  }
};

/// Tokens of a tile whose values lie alike.
struct value_part {
  int first = 0, last = 0;
  plain_codes codes;
  bool plain = false;  // or decoded
};

}  // namespace kvilt::inline KVILT_ABI::detail
