#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/task.cuh>
#include <kvilt/cache/device_block.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// What the compiler knows of a segment's tiles.
template <class Segment, int DimStep>
struct prefill_tile {
  using k = code_traits<typename Segment::k_format, DimStep>;
  using v = code_traits<typename Segment::v_format, DimStep>;
  using wide = wide_tile<Segment>;
  static constexpr param_kind k_params = k::params(), v_params = v::params();
  /// Is more to be done to scores than to bring them to their unit?
  static constexpr bool changes_scores = k_params != param_kind::none || v_params != param_kind::none;
  static constexpr bool prepared =
      wide::widens_k || wide::widens_v || k_params != param_kind::none || v_params != param_kind::none;
  /// What a code that is a zero's distance away is counted from: its middle, since the tensor cores' sums are cut off, and
  /// those of many numbers of one sign drift.
  template <class Codes>
  static constexpr int centre = Codes::params() == param_kind::scale_zero ? 1 << (bits_of(Codes::kind()) - 1)
                                                                          : Codes::offset();
  static constexpr int k_pitch = wide::k_pitch(DimStep), v_pitch = wide::v_pitch(DimStep);
  /// Products of 16 numbers that a score is the sum of, and blocks of 16 numbers of a result.
  static constexpr int k_steps = (k::dim + 15) / 16, v_steps = (v::dim + 15) / 16;
};

/// What a warp of a block works on: rows [first, first + count) of an item, at most.
struct warp_share {
  item_rows item;
  int head = 0, first = 0, count = 0;
};

/// What is said of a token in numbers.
struct token_numbers {
  static constexpr int k_scale = 0, k_zero = 1, v_log = 2, v_inverse = 3, v_zero = 4, kinds = 5;
};

/// Bytes from a plane's first record of a head to that of a place.
__device__ inline std::uint64_t distance(const plane& p, const place& at) {
  return std::uint64_t(ptx::u32(at.page)) * ptx::u32(p.page_stride) +
         std::uint64_t(ptx::u32(at.row)) * ptx::u32(p.record_stride);
}

/// A record's params as they lie: in four bytes, or in the upper or lower half of them.
struct params_word {
  ptx::u32 word = 0;
  bool upper = false;
};
/// Asks for four bytes with a record's params in them. Which lanes' are in the upper half?
__device__ inline ptx::u32 ask_params(ptx::u32* to, const unsigned char* from, bool there) {
  const auto at = reinterpret_cast<std::uintptr_t>(from);
  ptx::copy_word_async(ptx::shared_address(to), reinterpret_cast<const void*>(at & ~std::uintptr_t(3)), there);
  return __ballot_sync(0xffffffffu, (ptx::u32(at) & 2) != 0);
}
/// Scale, and the zero of the code that is counted from.
template <class Codes>
__device__ float2 params_of(const plane& p, int head, const params_word& params) {
  if constexpr (Codes::params() == param_kind::scale32) {
    return {read<float>(p.at({}, head, 0)), 0};
  } else if constexpr (Codes::params() == param_kind::scale16) {
    return {ptx::from_half(params.upper ? params.word >> 16 : params.word), 0};
  } else {
    const float scale = ptx::from_half(params.word);
    return {scale, ptx::from_half(params.word >> 16) + float(1 << (bits_of(Codes::kind()) - 1)) * scale};
  }
}
/// `set(kind, number)` for what is said of a token. Of tokens that are not there, or whose scale of V no number comes of,
/// these change no sum: rows that see them have a NaN for a score.
template <int DimStep, class Segment, class Set>
__device__ void prepare_numbers(const Segment& seg, int head, const params_word& k_word, const params_word& v_word,
                                Set&& set) {
  using tile = prefill_tile<Segment, DimStep>;
  const auto finite = [](float x) { return fabsf(x) < __builtin_huge_valf(); };
  if constexpr (tile::k_params != param_kind::none) {
    const float2 k = params_of<typename tile::k>(seg.planes.k_params, head, k_word);
    set(token_numbers::k_scale, k.x), set(token_numbers::k_zero, k.y);
  }
  if constexpr (tile::v_params != param_kind::none) {
    const float2 v = params_of<typename tile::v>(seg.planes.v_params, head, v_word);
    float log = ptx::log2(v.x), inverse = ptx::inverse(v.x), zero = v.y * ptx::inverse(v.x);
    if (!finite(inverse))
      inverse = zero = 0;
    else if (!finite(zero))
      log = __int_as_float(0x7fc00000), zero = 0;
    set(token_numbers::v_log, log), set(token_numbers::v_inverse, inverse), set(token_numbers::v_zero, zero);
  }
}

/// Which rows of a segment hold tokens that query rows may see, the first of which are at `position`, of positions `seen`.
template <class Segment>
__device__ int_range rows_to_read(const Segment& seg, const lengths& n, int sequence, int head, idx position,
                                  int_range seen) {
  const int count = int(seg.retention.count(n, sequence, head));
  if constexpr (goes_by_ones<typename Segment::retention_type>()) {
    if (count > 0) {
      const int oldest = int(seg.retention.at(n, sequence, head, 0).position);
      int from = seen.first;
      if constexpr (Segment::retention_type::slides)
        from = max(from, int(larger(seg.retention.sees_from(position), 0)));
      return {max(from - oldest, 0), min(seen.last - oldest, count)};
    }
  }
  return {0, count};
}

/// Do keys of any segment have zeros, which queries' sums are multiplied by?
template <int DimStep, memory_space Space, class... Segments>
consteval bool some_keys_have_zeros(const view<Space, Segments...>*) {
  return ((prefill_tile<Segments, DimStep>::k_params == param_kind::scale_zero) || ...);
}

}  // namespace kvilt::inline KVILT_ABI::detail
