#pragma once

#include <kvilt/core/floats.hpp>
#include <kvilt/core/name.hpp>
#include <kvilt/core/types.hpp>

#include <concepts>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Where one record lies: its codes, its params (scales and zeros), and which of the record's rows is meant.
/// All that a format ever sees of the cache.
struct row_ref {
  unsigned char* codes = nullptr;
  unsigned char* params = nullptr;
  int row = 0;
};

/// What the codes of a row are, one after the other.
enum class code_kind : unsigned char {
  fp32,
  fp16,
  bf16,
  e4m3,
  e5m2,
  u8,
  u4  // two to a byte, the even number's in the low half
};

namespace detail {

/// Bits of one code.
KVILT_HD constexpr int bits_of(code_kind kind) {
  switch (kind) {
    case code_kind::fp32:
      return 32;
    case code_kind::fp16:
    case code_kind::bf16:
      return 16;
    case code_kind::u4:
      return 4;
    default:
      return 8;
  }
}

}  // namespace detail

/// What the params of a row are.
enum class param_kind : unsigned char {
  none,        // scale 1
  scale16,     // an fp16 scale
  scale_zero,  // an fp16 scale, and an fp16 zero: what code 0 stands for
  scale32      // an fp32 scale
};

/// How a row lies, for kernels that read codes without `decode`:
///     number i = scale * (code i - offset), or scale * code i + zero
struct plain_codes {
  code_kind codes = code_kind::fp32;
  param_kind params = param_kind::none;
  int offset = 0;

  friend constexpr bool operator==(const plain_codes&, const plain_codes&) = default;
};

/// Numbers that share a scale: the whole row.
inline constexpr int whole_row = 0;

/// The rotation of a format that has none.
struct no_rotation {
  KVILT_HD static void forward(float*, int) {}
  KVILT_HD static void inverse(float*, int) {}
};

/// A format writes a record of `rows` rows of `dim()` numbers as codes and params, and reads it back.
///
/// Always:
///   `int dim() const`              numbers in a row, a multiple of 8; static constexpr where it is fixed
///   `static constexpr int rows`    rows of a record: 1 (token format), or the tokens of a tile
///   `int code_bytes() const`, `int param_bytes() const`    of one record
///   `void encode(const float* x, row_ref) const`           x: [rows][dim] -> one record; may be static
///   `template <int N> void decode(row_ref, int first, float (&out)[N]) const`
///                                  numbers [first, first + N) of the row; N is 8, 16 or 32 and divides `first`
/// Optional:
///   `using rotation`               an orthogonal map with `forward(float*, int dim)` and `inverse`, applied to rows
///                                  before `encode`; attention applies it to Q once and undoes it in the output once
///   `static constexpr plain_codes plain`
///                                  that a row is nothing but numbers of one kind under one scale: read by the fast
///                                  path of every kernel; `decode` says the same
///   `static constexpr const char* name()`    in lower case, as a policy's name says it: "q4g32"
///   `static constexpr bool static_params = true`
///                                  `param_bytes()` is 0 and `encode` writes codes alone: row_ref's params are one
///                                  float, a scale that the caller hands in, of a tensor or of a KV head
///   `static constexpr int phases`, `int parts(int phase) const`,
///   `void encode_part(const float* x, row_ref, int phase, int part) const`
///                                  that `encode` is nothing but all parts of all phases in turn; parts of one phase may
///                                  be written in any order and at once, which a GPU does
///   `bool writes_like(const F&) const`
///                                  whether two values of the type write the same records; said of formats whose bytes
///                                  do not tell
/// All of it marked KVILT_HD if kernels are to use it.
template <class F>
concept kv_format = std::is_trivially_copyable_v<F> && requires(const F f, row_ref r, const float* x, float (&o)[8]) {
  { f.dim() } -> std::convertible_to<int>;
  { F::rows } -> std::convertible_to<int>;
  { f.code_bytes() } -> std::convertible_to<int>;
  { f.param_bytes() } -> std::convertible_to<int>;
  f.encode(x, r);
  f.template decode<8>(r, 0, o);
};

namespace detail {

/// One readable line for each member that is missing; a class head that only named the concept would say less.
template <class F>
consteval bool check_format() {
  static_assert(std::is_trivially_copyable_v<F>, "kvilt: a format must be trivially copyable: kernels get it by value");
  static_assert(
      requires(const F f) {
        { f.dim() } -> std::convertible_to<int>;
      },
      "kvilt: a format needs `int dim() const` (static constexpr where it is fixed)");
  static_assert(
      requires {
        { F::rows } -> std::convertible_to<int>;
      },
      "kvilt: a format needs `static constexpr int rows`, the tokens of one record (1 for a token format)");
  static_assert(
      requires(const F f) {
        { f.code_bytes() } -> std::convertible_to<int>;
        { f.param_bytes() } -> std::convertible_to<int>;
      },
      "kvilt: a format needs `int code_bytes() const` and `int param_bytes() const`, of one record");
  static_assert(
      requires(const F f, const float* x, row_ref r) { f.encode(x, r); },
      "kvilt: a format needs `void encode(const float* rows, row_ref) const`");
  static_assert(
      requires(const F f, row_ref r, float(&o)[8]) { f.template decode<8>(r, 0, o); },
      "kvilt: a format needs `template <int N> void decode(row_ref, int first, float (&out)[N]) const`");
  return true;
}

/// The dim that is fixed in a format's type, or `dynamic`.
template <class F>
consteval int static_dim() {
  if constexpr (requires { std::integral_constant<int, F::get()>(); })
    return F::get();
  else
    return dynamic;
}

template <class F>
struct rotation_trait {
  using type = no_rotation;
};
template <class F>
requires requires {
  typename F::rotation;
}
struct rotation_trait<F> {
  using type = typename F::rotation;
};

}  // namespace detail

/// The rotation in which a format keeps its rows.
template <class F>
using rotation_of = typename detail::rotation_trait<F>::type;

/// Formats whose rows kernels may read without `decode`.
template <class F>
concept plain_format = F::rows == 1 && requires {
  { F::plain } -> std::convertible_to<plain_codes>;
};

/// Is it V's format where V lies in K's record and has none of its own (`prefix`)?
template <class F>
inline constexpr bool shares_keys = requires {
  typename F::keys;
};

/// Does the format read a scale that the caller hands in, where others write their own?
template <class F>
inline constexpr bool has_static_scale = requires {
  requires F::static_params;
};

template <class F>
constexpr const char* name_of(const F&) {
  if constexpr (requires { F::name(); })
    return F::name();
  else
    return "user";
}

/// One whole row as floats: out [dim].
template <kv_format F>
KVILT_HD void decode_row(const F& f, row_ref r, float* out) {
  const int dim = f.dim();
  if (dim % 32 == 0) {
    for (int i = 0; i < dim; i += 32) f.template decode<32>(r, i, *reinterpret_cast<float(*)[32]>(out + i));
  } else {
    for (int i = 0; i < dim; i += 8) f.template decode<8>(r, i, *reinterpret_cast<float(*)[8]>(out + i));
  }
}

namespace detail {

/// Declares how rows lie where they lie so.
template <bool Holds, code_kind Codes, param_kind Params, int Offset = 0>
struct plain_if {};
template <code_kind Codes, param_kind Params, int Offset>
struct plain_if<true, Codes, Params, Offset> {
  static constexpr plain_codes plain{Codes, Params, Offset};
};

/// What token formats share whose numbers have a scale in common: all of a row, or each `Group` of them.
template <int D, int Group>
struct row_groups : extent<D> {
  using extent<D>::extent;
  static_assert(Group == whole_row || (Group > 0 && Group % 32 == 0), "kvilt: groups are a multiple of 32 numbers");
  static_assert(D == dynamic || Group == whole_row || D % (Group ? Group : 1) == 0, "kvilt: groups divide the row");
  static constexpr int rows = 1;

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD constexpr int group() const { return Group == whole_row ? dim() : Group; }
  KVILT_HD constexpr int groups() const { return dim() / group(); }
  /// The group of a row's number `i`.
  KVILT_HD constexpr int group_of(int i) const { return Group == whole_row ? 0 : i / group(); }
};

/// The largest magnitude of `n` numbers; NaN where one of them is.
KVILT_HD constexpr float largest_magnitude(const float* x, int n) {
  std::uint32_t largest = 0;  // as bits, of which NaN's are larger than every number's
  for (int i = 0; i < n; ++i) largest = magnitude_bits(x[i]) > largest ? magnitude_bits(x[i]) : largest;
  return float_of(largest);
}

/// "q4" of whole rows, "q4g32" of groups of 32.
template <name_part Name, int Group>
constexpr const char* grouped_name() {
  if constexpr (Group == whole_row)
    return name_of_parts<Name>();
  else
    return name_of_parts<Name, "g", Group>();
}
/// "q4_channel" of tiles of the usual size, "q4_channel16" of 16 rows.
template <name_part Name, int Rows, int Usual>
constexpr const char* tile_name() {
  if constexpr (Rows == Usual)
    return name_of_parts<Name>();
  else
    return name_of_parts<Name, Rows>();
}

template <class T>
KVILT_HD T read(const unsigned char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
KVILT_HD void write(unsigned char* to, T value) {
  __builtin_memcpy(to, &value, sizeof(T));
}

/// Division that stays exact under -use_fast_math.
KVILT_HD inline float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// Conversions that `stored_scale` makes; kernels have the same in hardware.
struct portable_halves {
  KVILT_HD static constexpr std::uint16_t narrow(float x) { return to_fp16(x); }
  KVILT_HD static constexpr float widen(std::uint16_t h) { return from_fp16(h); }
};

/// The scale of a row as stored: fp16, never 0, never infinite, and large enough that `range / scale` exceeds the last
/// code by less than half a code. NaN stays NaN. NOTE: multiplied, not divided, by a constant: the same bits
/// everywhere.
template <class Halves = portable_halves>
KVILT_HD constexpr std::uint16_t stored_scale(float range, float last_code) {
  const float scale = range * (1.0f / last_code);
  if (is_nan(range)) return 0x7fff;
  if (magnitude_bits(scale) >= 0x477fe000u) return 0x7bff;
  std::uint16_t h = Halves::narrow(scale);
  if ((h & 0x7fffu) == 0) h = 1;
  if (Halves::widen(h) * (last_code + 0.5f) < range && h < 0x7bff) ++h;
  return h;
}

/// Do two values of one format write the same records of the same rows?
template <class F>
bool writes_like(const F& a, const F& b) {
  if constexpr (requires { a.writes_like(b); })
    return a.writes_like(b);
  else if constexpr (std::is_empty_v<F>)
    return true;
  else if constexpr (std::has_unique_object_representations_v<F>)
    return __builtin_memcmp(&a, &b, sizeof(F)) == 0;
  else
    return false;
}

/// Nearest code, half to even, clamped to [low, high], of magnitudes up to 2^22; NaN gives low.
KVILT_HD inline int nearest_code(float x, int low, int high) {
#if defined(__CUDA_ARCH__)
  // NOTE: floats from 1.5 x 2^23 on are integers, so the sum is rounded to one, which its low bits then are.
  const float r = __fadd_rn(fminf(fmaxf(x, float(low)), float(high)), 12582912.0f);
  return __float_as_int(r) - 0x4b400000;
#else
  const float r = __builtin_rintf(x);
  return r >= float(low) ? (r <= float(high) ? int(r) : high) : low;
#endif
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
