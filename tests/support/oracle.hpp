#pragma once

#include <kvilt/core/executor.hpp>
#include <kvilt/format/format.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace support {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// A key and its value as attention should see them.
struct oracle_key {
  std::span<const double> k, v;
  kvilt::idx position = 0;
};

struct oracle_state {
  std::vector<double> out;
  double lse = minus_infinity;
};

// What a variant means, said again in plain double precision.
struct all_keys {
  bool keep(const oracle_key&) const { return true; }
  double score(const oracle_key&, double s) const { return s; }
};
struct band : all_keys {
  kvilt::idx query = 0;
  kvilt::idx width = std::numeric_limits<int>::max();
  kvilt::idx sinks = 0;

  band(kvilt::idx q, kvilt::idx w, kvilt::idx s = 0) : query(q), width(w), sinks(s) {}
  bool keep(const oracle_key& key) const {
    return key.position <= query && (query - key.position < width || key.position < sinks);
  }
};

// softmax(scale q K^T) V in double precision, one number after another. Shares no line with the library. By pointers, along
// which unoptimised builds go several times as fast.
template <class Variant>
oracle_state oracle(std::span<const double> q, const std::vector<oracle_key>& keys, double scale, std::size_t v_dim,
                    const Variant& variant) {
  std::vector<double> scores;
  std::vector<const oracle_key*> seen;
  double high = minus_infinity;
  for (const oracle_key& key : keys) {
    if (!variant.keep(key)) continue;
    const double *const row = q.data(), *const k = key.k.data();
    double dot = 0;
    for (std::size_t d = 0, dim = q.size(); d < dim; ++d) dot += row[d] * k[d];
    scores.push_back(variant.score(key, scale * dot));
    seen.push_back(&key);
    if (scores.back() > high) high = scores.back();
  }
  oracle_state state{std::vector<double>(v_dim, 0.0), minus_infinity};
  bool any = false;
  double sum = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (scores[i] == minus_infinity) continue;
    any = true;
    const double weight = std::exp(scores[i] - high);
    sum += weight;
    const double* const v = seen[i]->v.data();
    double* const out = state.out.data();
    for (std::size_t d = 0; d < v_dim; ++d) out[d] += weight * v[d];
  }
  if (!any) return state;
  for (double& x : state.out) x /= sum;
  state.lse = high + std::log(sum);
  return state;
}

// The orthonormal Walsh-Hadamard transform by its recursion, on blocks of the largest power of two that divides the
// row; its own inverse.
inline void walsh(std::span<double> x) {
  if (x.size() % 2 != 0) return;
  std::size_t block = 1;
  while (x.size() % (2 * block) == 0) block *= 2;
  if (block < x.size()) {
    for (std::size_t first = 0; first < x.size(); first += block) walsh(x.subspan(first, block));
    return;
  }
  const std::size_t half = block / 2;
  double *const low = x.data(), *const high = low + half;
  for (std::size_t i = 0; i < half; ++i) {
    const double a = low[i], b = high[i];
    low[i] = (a + b) * std::sqrt(0.5);
    high[i] = (a - b) * std::sqrt(0.5);
  }
  walsh(x.first(half));
  walsh(x.last(half));
}

// RoPE by its definition.
inline void turn(std::span<double> x, kvilt::idx position, int dims, double base, bool interleaved) {
  for (int i = 0; i < dims / 2; ++i) {
    const double angle = double(position) * std::pow(base, -2.0 * i / dims);
    double& a = x[std::size_t(interleaved ? 2 * i : i)];
    double& b = x[std::size_t(interleaved ? 2 * i + 1 : i + dims / 2)];
    const double a0 = a, b0 = b;
    a = a0 * std::cos(angle) - b0 * std::sin(angle);
    b = a0 * std::sin(angle) + b0 * std::cos(angle);
  }
}

struct tolerance {
  double absolute = 2e-5;
  double relative = 2e-5;
  double cosine = 1e-8;
};

template <class F>
constexpr bool integer_codes() {
  if constexpr (kvilt::plain_format<F>)
    return F::plain.codes == kvilt::code_kind::u8 || F::plain.codes == kvilt::code_kind::u4;
  else
    return false;
}

// Queries and weights of 14 bits where the host multiplies codes as integers.
inline tolerance within(const kvilt::host& exec, bool integers) {
  if (integers && exec.instructions() == kvilt::instruction_set::avx512) return {1.5e-3, 1.5e-3, 2e-6};
  return {};
}
// Of a view's rows.
template <class View>
tolerance within(const kvilt::host& exec, const View& view) {
  bool integers = false;
  view.each([&](const auto& seg) {
    using segment = std::remove_cvref_t<decltype(seg)>;
    integers |= integer_codes<typename segment::k_format>() || integer_codes<typename segment::v_format>();
  });
  return within(exec, integers);
}

// Every set of instructions that this machine can run.
inline std::vector<kvilt::instruction_set> instruction_sets() {
  std::vector<kvilt::instruction_set> all;
  for (const auto s : {kvilt::instruction_set::portable, kvilt::instruction_set::neon, kvilt::instruction_set::avx2,
                       kvilt::instruction_set::avx512})
    if (kvilt::supports(s)) all.push_back(s);
  return all;
}

// Where `got` is not `want`, in words; empty if nowhere. NaN and infinity must be where they are expected.
template <class Wanted>
std::string difference(std::span<const float> got, const std::vector<Wanted>& want, tolerance within = {}) {
  if (got.size() != want.size()) return "sizes differ";
  double product = 0, norm_got = 0, norm_want = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = double(got[i]), w = double(want[i]);
    const bool close = std::abs(g - w) <= within.absolute + within.relative * std::abs(w);
    const bool same = std::isnan(g) ? std::isnan(w) : std::isinf(g) ? g == w : close;
    if (!same) return "at " + std::to_string(i) + ": " + std::to_string(g) + ", not " + std::to_string(w);
    if (!std::isfinite(g)) continue;
    product += g * w, norm_got += g * g, norm_want += w * w;
  }
  if (want.size() > 1 && norm_want > 0 && product < (1 - within.cosine) * std::sqrt(norm_got * norm_want))
    return "cosine " + std::to_string(product / std::sqrt(norm_got * norm_want));
  return {};
}

// Bit for bit: NaN equals itself.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace support
