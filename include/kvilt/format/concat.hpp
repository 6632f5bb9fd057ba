#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/format/format.hpp>

#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// A row of which the first numbers are in format `A` and the rest in `B`: multi-head latent attention's keys, for one,
/// are 512 numbers that bear 8 bits and 64 that RoPE has turned and that do not (DeepSeek-AI, "DeepSeek-V2", 2024):
///
///     using latent = kvilt::concat<kvilt::e4m3<512, 128>, kvilt::bf16<64>>;
///
/// Codes: A's, and B's from the next 16-byte line on. Params: A's, and B's from the next 4 bytes on. `rope::first` says
/// that RoPE turns B's part.
template <kv_format A, kv_format B>
class concat {
  static_assert(A::rows == 1 && B::rows == 1, "kvilt: concat takes token formats");
  static_assert(!has_static_scale<A> && !has_static_scale<B>,
                "kvilt: concat takes formats that write their own params");
  static_assert(std::is_same_v<rotation_of<A>, no_rotation> && std::is_same_v<rotation_of<B>, no_rotation>,
                "kvilt: concat takes formats without rotation; the whole may be rotated");
  static constexpr int a_dim = detail::static_dim<A>(), b_dim = detail::static_dim<B>();

 public:
  static constexpr int rows = 1;
  /// Both formats' names: "e4m3g128_bf16".
  static constexpr const char* name() requires requires { A::name(), B::name(); }
  { return detail::name_of_parts<detail::name_part(A::name()), "_", detail::name_part(B::name())>(); }

  constexpr concat() = default;
  constexpr concat(const A& a, const B& b) : a_(a), b_(b) {}

  KVILT_HD constexpr const A& first() const { return a_; }
  KVILT_HD constexpr const B& second() const { return b_; }
  bool writes_like(const concat& other) const {
    return detail::writes_like(a_, other.a_) && detail::writes_like(b_, other.b_);
  }

  KVILT_HD static constexpr int get() requires(a_dim != dynamic && b_dim != dynamic) { return a_dim + b_dim; }
  KVILT_HD constexpr int dim() const { return a_.dim() + b_.dim(); }
  KVILT_HD constexpr int code_bytes() const { return b_codes() + b_.code_bytes(); }
  KVILT_HD constexpr int param_bytes() const { return b_params() + b_.param_bytes(); }

  KVILT_HD void encode(const float* x, row_ref r) const {
    a_.encode(x, r);
    b_.encode(x + a_.dim(), second_of(r));
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int from, float (&out)[N]) const {
    const int left = a_.dim() - from;
    if (left >= N)
      a_.template decode<N>(r, from, out);
    else if (left <= 0 && left % N == 0)
      b_.template decode<N>(second_of(r), -left, out);
    else
      for (int i = 0; i < N; i += 8) decode_8(r, from + i, *reinterpret_cast<float(*)[8]>(out + i));
  }

 private:
  KVILT_HD constexpr int b_codes() const { return int(round_up(a_.code_bytes(), 16)); }
  KVILT_HD constexpr int b_params() const { return int(round_up(a_.param_bytes(), 4)); }
  KVILT_HD constexpr row_ref second_of(row_ref r) const { return {r.codes + b_codes(), r.params + b_params(), 0}; }
  KVILT_HD void decode_8(row_ref r, int from, float (&out)[8]) const {
    if (from < a_.dim())
      a_.template decode<8>(r, from, out);
    else
      b_.template decode<8>(second_of(r), from - a_.dim(), out);
  }

  A a_;
  B b_;
};

namespace detail {

/// The first numbers of rows lie as the rows do. NOTE: without params alone: under a scale the kernels' way of adding up
/// would give other bits than decoded numbers do.
template <class K>
struct plain_prefix {};
template <plain_format K>
requires(K::plain.params == param_kind::none) struct plain_prefix<K> {
  static constexpr plain_codes plain = K::plain;
};

}  // namespace detail

/// V's format where V is the first `N` numbers of K: stored once, in K's record. `append` writes no V and reads none,
/// and it takes no bytes; V's planes are K's.
///
///     using mla = kvilt::policy<kvilt::paged<64>, latent, kvilt::prefix<latent, 512>>;
template <kv_format K, int N>
class prefix : public detail::plain_prefix<K> {
  static_assert(N >= 8 && N % 8 == 0, "kvilt: a prefix has a positive multiple of 8 numbers");
  static_assert(detail::static_dim<K>() == dynamic || N <= detail::static_dim<K>(),
                "kvilt: a prefix is no longer than K's rows");
  static_assert(std::is_same_v<rotation_of<K>, no_rotation>,
                "kvilt: the first numbers of a rotated row are not those of the row: K under a prefix has no rotation");

 public:
  using keys = K;
  /// The same over keys of another format.
  template <class Other>
  using of_keys = prefix<Other, N>;
  static constexpr int rows = K::rows;
  /// "prefix512"
  static constexpr const char* name() { return detail::name_of_parts<"prefix", N>(); }

  constexpr prefix() = default;
  constexpr explicit prefix(const K& k) : k_(k) {}

  KVILT_HD constexpr const K& k() const { return k_; }

  KVILT_HD static constexpr int get() { return N; }
  KVILT_HD static constexpr int dim() { return N; }
  KVILT_HD static constexpr int code_bytes() { return 0; }
  KVILT_HD static constexpr int param_bytes() { return 0; }
  /// K's record holds it.
  KVILT_HD static void encode(const float*, row_ref) {}
  template <int M>
  KVILT_HD void decode(row_ref r, int first, float (&out)[M]) const {
    k_.template decode<M>(r, first, out);
  }

 private:
  K k_;
};

}  // namespace kvilt::inline KVILT_ABI
