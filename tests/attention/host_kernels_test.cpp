#include "attention/kernel_rows.hpp"
#include "support/catch.hpp"

namespace {

using namespace kvilt;
using namespace support;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_number = std::numeric_limits<float>::quiet_NaN();
constexpr double unit = 0x1p-24;  // of fp32: what one rounding may cost, relative

constexpr int dims[] = {8, 24, 40, 64, 72, 128, 192, 200, 256, 576};
constexpr int most_rows = 9;

// Each set of instructions, by name.
template <class Body>
void in_every_set(Body body) {
  for (const instruction_set set : instruction_sets()) {
    INFO(name_of(set));
    body(detail::kernels_for(set));
  }
}
// Those that multiply integers as such.
template <class Body>
void where_integers_are(Body body) {
  in_every_set([&](const host_kernels& kernels) {
    for (const code_kind kind : integer_kinds) {
      REQUIRE((kernels.multiply_integer_keys[int(kind)] != nullptr) ==
              (kernels.add_integer_values[int(kind)] != nullptr));
      if (kernels.multiply_integer_keys[int(kind)]) body(kernels, kind);
    }
  });
}

struct part {
  int first, last;
};
// Parts of a tile: all of it, its ends, one token, and any other.
part any_part(dice& d) {
  switch (d.below(5)) {
    case 0:
      return {0, tile_tokens};
    case 1:
      return {0, 1 + d.below(tile_tokens)};
    case 2:
      return {d.below(tile_tokens), tile_tokens};
    default:
      const int first = d.below(tile_tokens);
      return {first, first + 1 + d.below(std::min(tile_tokens - first, 20))};
  }
}

// Steps of fp32 between `got` and e^x.
double steps_off(float x, float got) {
  const double want = std::exp(double(x));
  const float nearest = float(want);
  return std::abs(double(got) - want) / double(std::nextafter(nearest, 2.0f) - nearest);
}

// A row's softmax, and what a tile's scores have made of it.
struct softmax_row {
  float maximum = -infinity, sum = 0, factor = -1;
  float scores[tile_tokens] = {};
  bool any = false;

  softmax_row() = default;
  softmax_row(float m, float s) : maximum(m), sum(s) {}
  void take(const host_kernels& kernels) { any = kernels.weigh(scores, maximum, sum, factor); }
};

// Weights as the kernel makes them of x <= 0, which are not many more than a tile.
void exponentials(const host_kernels& kernels, const std::vector<float>& x, std::vector<float>& e) {
  e.clear();
  for (std::size_t i = 0; i < x.size(); i += tile_tokens) {
    softmax_row row(0.0f, 0.0f);
    for (int t = 0; t < tile_tokens; ++t) row.scores[t] = i + std::size_t(t) < x.size() ? x[i + std::size_t(t)] : 0.0f;
    row.take(kernels);
    for (int t = 0; t < tile_tokens && i + std::size_t(t) < x.size(); ++t) e.push_back(row.scores[t]);
  }
}

// Weights of a part: a third of them 0.
float_rows random_weights(int count, part p, dice& d) {
  float_rows weights(count, tile_tokens, tile_tokens);
  for (int r = 0; r < count; ++r)
    for (int t = p.first; t < p.last; ++t) weights.at(r, t) = d.below(3) ? float(1 + d.below(1000)) / 1000.0f : 0.0f;
  return weights;
}

struct sums_so_far {
  float_rows from;
  std::vector<float> factor, constant;

  sums_so_far(int count, int dim, std::uint64_t seed)
      : from(count, dim, whole_vectors(dim), seed), factor(std::size_t(count)), constant(std::size_t(count)) {
    dice d(seed);
    for (float& f : factor) f = float(d.below(3)) / 2;
    for (float& c : constant) c = float(d.below(7) - 3);
  }
  // Nothing yet.
  sums_so_far(int count, int dim)
      : from(count, dim, whole_vectors(dim)), factor(std::size_t(count), 1.0f), constant(std::size_t(count), 0.0f) {}
};

// The largest of how far results are from `want(r, i)`, as parts of what `bound(r, i)` allows; infinity for NaN.
template <class Want, class Bound>
double worst_of(const float_rows& got, int rows, int first, int last, Want want, Bound bound) {
  double worst = 0;
  for (int r = 0; r < rows; ++r)
    for (int i = first; i < last; ++i) {
      const double off = std::abs(double(got.at(r, i)) - want(r, i));
      worst = std::isnan(off) ? double(infinity) : std::max(worst, off == 0 ? 0 : off / bound(r, i));
    }
  return worst;
}

double product(const float_rows& q, int r, const code_rows& keys, int t, int offset, bool magnitudes = false) {
  double sum = 0;
  for (int d = 0; d < q.dim(); ++d) {
    const double one = double(q.at(r, d)) * (keys.at(t, d) - offset);
    sum += magnitudes ? std::abs(one) : one;
  }
  return sum;
}
double weighted(const float_rows& weights, int r, const code_rows& values, int d, part p, int offset,
                bool magnitudes = false) {
  double sum = 0;
  for (int t = p.first; t < p.last; ++t) {
    if (weights.at(r, t) == 0) continue;
    const double one = double(weights.at(r, t)) * (values.at(t, d) - offset);
    sum += magnitudes ? std::abs(one) : one;
  }
  return sum;
}

float largest(const float_rows& rows, int r) {
  float most = 0;
  for (int i = 0; i < rows.dim(); ++i) most = std::max(most, std::abs(rows.at(r, i)));
  return most;
}

// What 14 bits cost. A number x is made n = round(x / s) of the step s = largest / 16,256, so |x - n s| <= s / 2, and a
// little more since x / s is itself rounded: 16,256 by three roundings is 0.003. Sums of n (code - offset) are exact, so
// a result is off by at most 0.503 s sum |code - offset|, and by the roundings of the sum to fp32 and of what follows.
constexpr double half_step = 0.503 / 16256;

double cost_of_query(const float_rows& q, int r, const code_rows& keys, int t, int offset) {
  double codes = 0;
  for (int d = 0; d < q.dim(); ++d) codes += std::abs(keys.at(t, d) - offset);
  return half_step * double(largest(q, r)) * codes + 4 * unit * std::abs(product(q, r, keys, t, offset));
}
double cost_of_weights(const float_rows& weights, int r, const code_rows& values, int d, part p, int offset) {
  double codes = 0;
  for (int t = p.first; t < p.last; ++t) codes += std::abs(values.at(t, d) - offset);
  // What rounding leaves of a weight goes on to the next: half a step more.
  return 2 * half_step * double(largest(weights, r)) * codes +
         4 * unit * std::abs(weighted(weights, r, values, d, p, offset));
}

bool same_row(const float_rows& a, const float_rows& b, int r) {
  return same_bits(a.row(r), b.row(r));
}

}  // namespace

TEST_CASE("host_kernels: a weight is the exponential of its score to two units in the last place", "[attention]") {
  std::vector<float> x{0.0f, -0.0f};
  for (int i = 0; i <= 500'000; ++i) x.push_back(-87.0f * float(i) / 5e5f);
  // Around each change of the power of two, and close to 0.
  for (int n = 0; n < 126; ++n)
    for (int i = -200; i <= 200; ++i) x.push_back(std::min(0.0f, -(float(n) + 0.5f) * 0.693147181f + float(i) * 4e-6f));
  for (float close = -1e-30f; close > -1.0f; close *= 1.01f) x.push_back(close);
  in_every_set([&](const host_kernels& kernels) {
    std::vector<float> e;
    exponentials(kernels, x, e);
    double worst = 0;
    float at = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (const double off = steps_off(x[i], e[i]); x[i] >= -87 && !(off <= worst)) worst = off, at = x[i];
    INFO("e^" << at);
    CHECK(worst <= 2);
    CHECK((e[0] == 1 && e[1] == 1));
  });
}

TEST_CASE("host_kernels: weights vanish below -87, and at minus infinity", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    std::vector<float> e;
    exponentials(kernels, {-87.0f, std::nextafter(-87.0f, -88.0f), -88.0f, -104.0f, -1e4f, -3e38f, -infinity}, e);
    CHECK(e[0] > 0);
    for (std::size_t i = 1; i < e.size(); ++i) CHECK(e[i] == 0);
  });
}

TEST_CASE("host_kernels: a tile's sum and factor follow the maximum", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    softmax_row row;
    double high = minus_infinity, sum = 0;
    dice d(5);
    for (const float base : {-3.0f, 1.0f, 0.5f, -40.0f, 60.0f, -200.0f, 61.0f}) {
      const double before = high;
      for (float& s : row.scores) {
        s = base + float(d.below(1000)) / 250;
        high = std::max(high, double(s));
      }
      sum *= std::exp(before - high);
      for (const float s : row.scores) sum += std::exp(double(s) - high);
      const bool seen = base > -100;  // far below, no weight is left
      row.take(kernels);
      CHECK(row.any == seen);
      CHECK(double(row.maximum) == high);
      CHECK(double(row.sum) == Approx(sum).epsilon(1e-6));
      CHECK(double(row.factor) == Approx(std::exp(double(float(before) - float(high)))).epsilon(1e-6));
    }
  });
}

TEST_CASE("host_kernels: hidden scores have no weight, NaN reaches the sum", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    for (const softmax_row& before : {softmax_row(), softmax_row(1.5f, 7.0f)}) {
      softmax_row hidden = before;
      std::fill_n(hidden.scores, tile_tokens, -infinity);
      hidden.take(kernels);
      CHECK((!hidden.any && hidden.factor == 1 && hidden.maximum == before.maximum && hidden.sum == before.sum));
      for (const float s : hidden.scores) CHECK(s == 0);
      for (const float others : {-infinity, 0.25f})
        for (int at = 0; at < tile_tokens; at += 7) {
          softmax_row row = before;
          std::fill_n(row.scores, tile_tokens, others);
          row.scores[at] = nan_number;
          row.take(kernels);
          CHECK((row.any && std::isnan(row.sum) && std::isnan(row.scores[at])));
          CHECK(row.maximum == std::max(before.maximum, others));
        }
    }
  });
}

TEST_CASE("host_kernels: every code is read as the number that it is", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    for (const code_kind kind : every_kind) {
      const int bits = std::min(detail::bits_of(kind), 16);
      if (kind == code_kind::fp32) continue;
      int wrong = 0;
      for (int base = 0; base < 1 << bits; base += 8) {
        // Eight at a time, so that few share a row with a NaN.
        code_rows codes(kind, 8);
        for (int d = 0; d < 8; ++d) codes.set_code(0, d, unsigned(base + d) & unsigned((1 << bits) - 1));
        float_rows weight(1, tile_tokens, tile_tokens), before(1, 8, 16);
        weight.at(0, 0) = 1;
        for (int d = 0; d < 16; ++d) before.at(0, d) = -0.0f;
        const float_rows got = sums_of(kernels, kind, false, weight, codes, 8, 0, 1, 0, before, {1.0f}, {-0.0f});
        for (int d = 0; d < 8; ++d) {
          const float want = float(codes.at(0, d)), is = got.at(0, d);
          wrong += std::isnan(want) ? !std::isnan(is) : bits_of(want) != bits_of(is);
        }
      }
      INFO("kind " << int(kind));
      CHECK(wrong == 0);
    }
    std::vector<std::uint16_t> half(tile_tokens);
    std::vector<float> wide(tile_tokens);
    int wrong = 0;
    for (int base = 0; base < 1 << 16; base += tile_tokens) {
      for (int t = 0; t < tile_tokens; ++t) half[std::size_t(t)] = std::uint16_t(base + t);
      kernels.widen_halves(half.data(), wide.data());
      for (int t = 0; t < tile_tokens; ++t) {
        const float want = from_fp16(half[std::size_t(t)]), is = wide[std::size_t(t)];
        wrong += std::isnan(want) ? !std::isnan(is) : bits_of(want) != bits_of(is);
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("host_kernels: products of queries and keys", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    dice d(1);
    for (const code_kind kind : every_kind)
      for (const int dim : dims) {
        const code_rows keys(kind, dim, std::uint64_t(dim) + 3);
        for (int count = 1; count <= most_rows; ++count) {
          const part p = any_part(d);
          const int offset = is_integer(kind) ? largest_code(kind) / 2 + 1 : 0;
          const float_rows q(count, dim, whole_vectors(dim), std::uint64_t(count));
          const float_rows got = products_of(kernels, kind, false, q, keys, p.first, p.last, offset);
          // Sums of at least 8 lanes: dim / 8 roundings, three of the lanes' sums, and some.
          const double worst = worst_of(
              got, count, p.first, p.last, [&](int r, int t) { return product(q, r, keys, t, offset); },
              [&](int r, int t) { return (dim / 8.0 + 4) * unit * product(q, r, keys, t, offset, true); });
          INFO("kind " << int(kind) << ", dim " << dim << ", " << count << " rows, [" << p.first << ", " << p.last);
          CHECK(worst <= 1);
          CHECK(got.kept_within());
          // A row's bits do not depend on the rows and the part around, nor on what is asked for ahead.
          const float_rows again = products_of(kernels, kind, false, q, keys, 0, tile_tokens, offset, true);
          const float_rows alone(1, dim, whole_vectors(dim), std::uint64_t(count));
          const float_rows first = products_of(kernels, kind, false, alone, keys, p.first, p.last, offset);
          bool same = true;
          for (int t = p.first; t < p.last; ++t) {
            for (int r = 0; r < count; ++r) same = same && bits_of(got.at(r, t)) == bits_of(again.at(r, t));
            same = same && bits_of(got.at(0, t)) == bits_of(first.at(0, t));
          }
          CHECK(same);
        }
      }
  });
}

TEST_CASE("host_kernels: weighted sums of values", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    dice d(2);
    for (const code_kind kind : every_kind)
      for (const int dim : dims) {
        const code_rows values(kind, dim, std::uint64_t(dim) + 3);
        for (int count = 1; count <= most_rows; ++count) {
          const part p = any_part(d);
          const int offset = is_integer(kind) ? largest_code(kind) / 2 + 1 : 0;
          const float_rows weights = random_weights(count, p, d);
          const sums_so_far s(count, dim, std::uint64_t(count));
          const float_rows got = sums_of(kernels, kind, false, weights, values, dim, p.first, p.last, offset, s.from,
                                         s.factor, s.constant);
          const auto before = [&](int r, int i) { return double(s.factor[std::size_t(r)]) * double(s.from.at(r, i)); };
          const double worst = worst_of(
              got, count, 0, dim,
              [&](int r, int i) {
                return before(r, i) + double(s.constant[std::size_t(r)]) + weighted(weights, r, values, i, p, offset);
              },
              [&](int r, int i) {
                return (p.last - p.first + 2) * unit *
                       (std::abs(before(r, i)) + std::abs(double(s.constant[std::size_t(r)])) +
                        weighted(weights, r, values, i, p, offset, true));
              });
          INFO("kind " << int(kind) << ", dim " << dim << ", " << count << " rows, [" << p.first << ", " << p.last);
          CHECK(worst <= 1);
          CHECK(got.kept_within());
          const float_rows ahead = sums_of(kernels, kind, false, weights, values, dim, p.first, p.last, offset, s.from,
                                           s.factor, s.constant, true);
          for (int r = 0; r < count; ++r) CHECK(same_row(got, ahead, r));
        }
      }
  });
}

TEST_CASE("host_kernels: values of weight 0 may be NaN", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    for (const code_kind kind : {code_kind::fp32, code_kind::fp16, code_kind::bf16, code_kind::e4m3, code_kind::e5m2})
      for (const int dim : {8, 40, 72, 136})
        for (int count = 1; count <= most_rows; ++count) {
          dice d(std::uint64_t(100 * dim + count));
          const part p = any_part(d);
          const code_rows numbers(kind, dim, 3);
          code_rows holes = numbers;
          float_rows weights = random_weights(count, p, d);
          const int hole = p.first + d.below(p.last - p.first), half_hole = p.first + d.below(p.last - p.first);
          for (int i = 0; i < dim; ++i) holes.set(hole, i, i % 3 ? nan_number : numbers.at(hole, i) > 0 ? 1e9f : -1e9f);
          holes.set(half_hole, dim - 1, nan_number);
          for (int r = 0; r < count; ++r)
            weights.at(r, hole) = 0, weights.at(r, half_hole) = r == count - 1 && count > 1;
          if (half_hole == hole) weights.at(count - 1, hole) = 0;
          const sums_so_far s(count, dim, 4);
          const auto sums = [&](const code_rows& values) {
            return sums_of(kernels, kind, false, weights, values, dim, p.first, p.last, 0, s.from, s.factor,
                           s.constant);
          };
          const float_rows got = sums(holes), want = sums(numbers);
          INFO("kind " << int(kind) << ", dim " << dim << ", " << count << " rows, [" << p.first << ", " << p.last);
          for (int r = 0; r < count - (count > 1); ++r) CHECK(same_row(got, want, r));
          if (count > 1) CHECK(std::isnan(got.at(count - 1, dim - 1)) == (half_hole != hole));
        }
  });
}

TEST_CASE("host_kernels: a weight of NaN or an infinite value stays in its row", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    constexpr int dim = 40, count = 6;
    const code_rows values(code_kind::fp16, dim, 3);
    dice d(6);
    float_rows weights = random_weights(count, {0, tile_tokens}, d);
    const sums_so_far s(count, dim);
    const auto sums = [&] {
      return sums_of(kernels, code_kind::fp16, false, weights, values, dim, 0, tile_tokens, 0, s.from, s.factor,
                     s.constant);
    };
    const float_rows want = sums();
    weights.at(3, 17) = nan_number;
    const float_rows got = sums();
    for (int r = 0; r < count; ++r)
      if (r != 3) CHECK(same_row(got, want, r));
    for (int i = 0; i < dim; ++i) CHECK(std::isnan(got.at(3, i)));
  });
}

TEST_CASE("host_kernels: integer products cost what 14 bits cost", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    dice d(7);
    const int offset = largest_code(kind) / 2 + 1;
    for (const int dim : dims)
      for (int count = 1; count <= most_rows; ++count) {
        const part p = any_part(d);
        const code_rows keys(kind, dim, std::uint64_t(dim) + 3);
        const float_rows q(count, dim, whole_vectors(dim), std::uint64_t(count));
        const float_rows got = products_of(kernels, kind, true, q, keys, p.first, p.last, offset, count % 2 != 0);
        INFO("kind " << int(kind) << ", dim " << dim << ", " << count << " rows, [" << p.first << ", " << p.last);
        CHECK(worst_of(
                  got, count, p.first, p.last, [&](int r, int t) { return product(q, r, keys, t, offset); },
                  [&](int r, int t) { return cost_of_query(q, r, keys, t, offset); }) <= 1);
        CHECK(got.kept_within());
        // A row's bits are the same alone, multiplied in another way.
        const float_rows alone(1, dim, whole_vectors(dim), std::uint64_t(count));
        const float_rows first = products_of(kernels, kind, true, alone, keys, p.first, p.last, offset);
        bool same = true;
        for (int t = p.first; t < p.last; ++t) same = same && bits_of(got.at(0, t)) == bits_of(first.at(0, t));
        CHECK(same);
      }
  });
}

TEST_CASE("host_kernels: integer sums cost what 14 bits cost", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    dice d(8);
    const int offset = largest_code(kind) / 2 + 1;
    for (const int dim : dims)
      for (int count = 1; count <= most_rows; ++count) {
        const part p = any_part(d);
        const code_rows values(kind, dim, std::uint64_t(dim) + 3);
        float_rows weights = random_weights(count, p, d);
        if (count % 2)  // scales of a user's format may be below 0
          for (int t = p.first; t < p.last; t += 3) weights.at(0, t) *= -5.0f;
        const sums_so_far s(count, dim, std::uint64_t(count));
        const float_rows got = sums_of(kernels, kind, true, weights, values, dim, p.first, p.last, offset, s.from,
                                       s.factor, s.constant, count % 3 != 0);
        const auto before = [&](int r, int i) {
          return double(s.factor[std::size_t(r)]) * double(s.from.at(r, i)) + double(s.constant[std::size_t(r)]);
        };
        INFO("kind " << int(kind) << ", dim " << dim << ", " << count << " rows, [" << p.first << ", " << p.last);
        CHECK(worst_of(
                  got, count, 0, dim,
                  [&](int r, int i) { return before(r, i) + weighted(weights, r, values, i, p, offset); },
                  [&](int r, int i) {
                    return cost_of_weights(weights, r, values, i, p, offset) + 4 * unit * (std::abs(before(r, i)) + 9);
                  }) <= 1);
        CHECK(got.kept_within());
      }
  });
}

TEST_CASE("host_kernels: integers of few bits are multiplied exactly", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    const int offset = largest_code(kind) / 2 + 1;
    dice d(9);
    for (const int dim : dims) {
      const code_rows rows(kind, dim, std::uint64_t(dim));
      // 127 is the largest, so that the step is 1/128.
      float_rows q(3, dim, whole_vectors(dim)), weights(3, tile_tokens, tile_tokens);
      for (int r = 0; r < 3; ++r) {
        for (int i = 0; i < dim; ++i) q.at(r, i) = float(i == r ? 127 : d.below(255) - 127);
        for (int t = 0; t < tile_tokens; ++t) weights.at(r, t) = float(t == 9 * r ? 127 : d.below(128));
      }
      const float_rows scores = products_of(kernels, kind, true, q, rows, 0, tile_tokens, offset);
      const sums_so_far s(3, dim);
      const float_rows sums =
          sums_of(kernels, kind, true, weights, rows, dim, 0, tile_tokens, offset, s.from, s.factor, s.constant);
      bool exact = true;
      for (int r = 0; r < 3; ++r) {
        for (int t = 0; t < tile_tokens; ++t) exact &= double(scores.at(r, t)) == product(q, r, rows, t, offset);
        for (int i = 0; i < dim; ++i)
          exact &= double(sums.at(r, i)) == weighted(weights, r, rows, i, {0, tile_tokens}, offset);
      }
      INFO("kind " << int(kind) << ", dim " << dim);
      CHECK(exact);
    }
  });
}

TEST_CASE("host_kernels: integer sums do not wrap", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    const int offset = largest_code(kind) / 2 + 1;
    constexpr int dim = 1024;  // beyond, keys are multiplied as floats
    for (const int code : {0, largest_code(kind)})
      for (const float sign : {1.0f, -1.0f}) {
        code_rows rows(kind, dim);
        float_rows q(2, dim, dim), weights(2, tile_tokens, tile_tokens);
        for (int i = 0; i < dim; ++i) {
          for (int t = 0; t < tile_tokens; ++t) rows.set_code(t, i, unsigned(code));
          q.at(0, i) = sign * 3.0f, q.at(1, i) = i % 2 ? 3.0f : -3.0f;
        }
        for (int t = 0; t < tile_tokens; ++t) weights.at(0, t) = weights.at(1, t) = 3.0f;
        const float_rows scores = products_of(kernels, kind, true, q, rows, 0, tile_tokens, offset);
        const sums_so_far s(2, dim);
        const float_rows sums =
            sums_of(kernels, kind, true, weights, rows, dim, 0, tile_tokens, offset, s.from, s.factor, s.constant);
        const double one = 3.0 * (code - offset);
        for (int t = 0; t < tile_tokens; ++t) {
          CHECK(double(scores.at(0, t)) == Approx(double(sign) * dim * one).epsilon(1e-6));
          CHECK(scores.at(1, t) == 0);
        }
        for (int i = 0; i < dim; ++i) CHECK(double(sums.at(0, i)) == Approx(tile_tokens * one).epsilon(1e-6));
      }
  });
}

TEST_CASE("host_kernels: queries that are not finite have scores that are NaN", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    constexpr int dim = 40;
    const code_rows keys(kind, dim, 3);
    const float_rows good(5, dim, whole_vectors(dim), 4);
    const float_rows want = products_of(kernels, kind, true, good, keys, 0, tile_tokens, 8);
    for (const float x : {nan_number, infinity, -infinity})
      for (const int i : {0, 17, dim - 1}) {
        float_rows q = good;
        q.at(2, i) = x;
        const float_rows got = products_of(kernels, kind, true, q, keys, 0, tile_tokens, 8);
        for (int t = 0; t < tile_tokens; ++t) CHECK(std::isnan(got.at(2, t)));
        for (const int r : {0, 1, 3, 4}) CHECK(same_row(got, want, r));
      }
  });
}

TEST_CASE("host_kernels: integer queries of any size", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    constexpr int dim = 72;
    const code_rows keys(kind, dim, 3);
    for (const float size : {0.0f, 1e-36f, 1e-30f, 1e-20f, 1e10f, 1e30f}) {
      float_rows q(3, dim, whole_vectors(dim), 4);
      for (int r = 0; r < 3; ++r)
        for (int i = 0; i < dim; ++i) q.at(r, i) *= size;
      const float_rows got = products_of(kernels, kind, true, q, keys, 5, 60, 8);
      INFO(size);
      CHECK(worst_of(
                got, 3, 5, 60, [&](int r, int t) { return product(q, r, keys, t, 8); },
                // Beyond 2e-34 a step is no normal number: such queries count as 0.
                [&](int r, int t) { return cost_of_query(q, r, keys, t, 8) + 2e-34 * 255 * dim; }) <= 1);
    }
  });
}

TEST_CASE("host_kernels: scales of any size, and NaN where it does not matter", "[attention]") {
  where_integers_are([](const host_kernels& kernels, code_kind kind) {
    constexpr int dim = 136, count = 3;
    const part p{3, 61};
    const code_rows values(kind, dim, 3);
    dice d(10);
    const auto sums = [&](const float_rows& weights, const std::vector<float>& scales, float_rows& scaled) {
      const std::vector<float> zeros(tile_tokens, 0.0f);
      for (int r = 0; r < count; ++r)
        kernels.scale_weights(weights.data() + r * tile_tokens, {scales.data(), zeros.data()},
                              scaled.data() + r * tile_tokens);
      const sums_so_far s(count, dim);
      return sums_of(kernels, kind, true, scaled, values, dim, p.first, p.last, 8, s.from, s.factor, s.constant);
    };
    const float_rows weights = random_weights(count, p, d);
    for (const float size : {1e-30f, 6e-8f, 1.0f, 60000.0f, 1e30f, 0.0f}) {  // 0: all of these
      std::vector<float> scales;
      for (int t = 0; t < tile_tokens; ++t) scales.push_back(size > 0 ? size : t % 2 ? 60000.0f : 1e-30f);
      float_rows scaled(count, tile_tokens, tile_tokens);
      const float_rows got = sums(weights, scales, scaled);
      INFO("kind " << int(kind) << ", scales " << size);
      CHECK(worst_of(
                got, count, 0, dim, [&](int r, int i) { return weighted(scaled, r, values, i, p, 8); },
                [&](int r, int i) { return cost_of_weights(scaled, r, values, i, p, 8); }) <= 1);
    }
    // Token 20 weighs nothing in row 1 only.
    float_rows some = weights, scaled(count, tile_tokens, tile_tokens);
    some.at(0, 20) = 0.5f, some.at(1, 20) = 0, some.at(2, 20) = 1e-20f;
    std::vector<float> scales(tile_tokens, 0.25f);
    const float_rows want = sums(some, scales, scaled);
    for (const float x : {nan_number, infinity}) {
      scales[20] = x;
      const float_rows got = sums(some, scales, scaled);
      CHECK(same_row(got, want, 1));
      for (int i = 0; i < dim; ++i) CHECK((std::isnan(got.at(0, i)) && std::isnan(got.at(2, i))));
    }
  });
}

TEST_CASE("host_kernels: products are scaled", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    const float_rows in(4, tile_tokens, tile_tokens, 5);
    const float *products = in.data(), *scale = products + tile_tokens, *zero = scale + tile_tokens;
    for (const auto [first, last] :
         {part{0, 64}, part{0, 1}, part{63, 64}, part{5, 37}, part{16, 48}, part{1, 64}, part{20, 22}}) {
      float_rows scores(1, tile_tokens, tile_tokens);
      std::fill_n(scores.data(), tile_tokens, float_rows::untouched);
      kernels.scale_products(products, {scale, zero}, 1.75f, 0.125f, first, last, scores.data());
      for (int t = 0; t < tile_tokens; ++t) {
        const double one = double(products[t]) * double(scale[t]), other = 1.75 * double(zero[t]);
        const bool inside = t >= first && t < last;
        const double off = std::abs(double(scores.at(0, t)) - (one + other) / 8);
        if (inside) CHECK(off <= 3 * unit * (std::abs(one) + std::abs(other)) / 8);
      }
      CHECK(scores.kept_within());
    }
  });
}

TEST_CASE("host_kernels: scales and zeros of weight 0 do not matter", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    const float_rows in(3, tile_tokens, tile_tokens, 6);
    float_rows scale = in, zero(1, tile_tokens, tile_tokens, 7), out(1, tile_tokens, tile_tokens);
    float_rows weights(1, tile_tokens, tile_tokens);
    double want = 0, magnitude = 0;
    for (int t = 0; t < tile_tokens; ++t) {
      weights.at(0, t) = t % 3 ? float(t) / 64 : 0.0f;
      if (t % 3 == 0) scale.at(0, t) = t % 2 ? nan_number : infinity, zero.at(0, t) = nan_number;
      if (t % 3 == 0) continue;
      want += double(weights.at(0, t)) * double(zero.at(0, t));
      magnitude += std::abs(double(weights.at(0, t)) * double(zero.at(0, t)));
    }
    const float sum = kernels.scale_weights(weights.data(), {scale.data(), zero.data()}, out.data());
    CHECK(std::abs(double(sum) - want) <= 12 * unit * magnitude);
    for (int t = 0; t < tile_tokens; ++t) CHECK(out.at(0, t) == (t % 3 ? weights.at(0, t) * scale.at(0, t) : 0.0f));
    CHECK(out.kept_within());
    weights.at(0, 63) = 1e-30f;
    CHECK(std::isnan(kernels.scale_weights(weights.data(), {scale.data(), zero.data()}, out.data())));
    weights.at(0, 63) = nan_number, scale.at(0, 63) = 1;
    kernels.scale_weights(weights.data(), {scale.data(), zero.data()}, out.data());
    CHECK(std::isnan(out.at(0, 63)));
  });
}

TEST_CASE("host_kernels: partial results are blended", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    for (const int count : {16, 48, 144}) {
      float_rows to(1, count, count, 3);
      const float_rows before = to, from(1, count, count, 4);
      float sum = 3.25f;
      kernels.blend(to.data(), sum, -0.25f, from.data(), 1.5f, -2.5f, count);
      const double keep = std::exp(-0.25), take = std::exp(-2.5);
      CHECK(std::abs(double(sum) - 3.25 * keep - 1.5 * take) <= 5 * unit * double(sum));
      for (int i = 0; i < count; ++i) {
        const double one = keep * double(before.at(0, i)), other = take * double(from.at(0, i));
        CHECK(std::abs(double(to.at(0, i)) - one - other) <= 5 * unit * (std::abs(one) + std::abs(other)));
      }
      sum = 2;
      kernels.blend(to.data(), sum, 0.0f, from.data(), 1.5f, -std::numeric_limits<float>::infinity(), count);
      CHECK(sum == 2);
      CHECK(to.kept_within());
    }
  });
}

TEST_CASE("host_kernels: many small weights beside a large one are not lost in integers", "[attention]") {
  in_every_set([](const host_kernels& kernels) {
    const auto add = kernels.add_integer_values[int(code_kind::u8)];
    if (!add) return;
    // One weight of 1 and 63 that are each less than half a step: together they are 47 steps.
    constexpr int dim = 16;
    std::vector<float> weights(tile_tokens, 0.75f / 32512), from(dim), to(dim);
    weights[0] = 1;
    std::vector<unsigned char> row(64, 138), scratch(1 << 14);
    std::vector<const unsigned char*> rows(tile_tokens, row.data());
    const float factor = 1, constant = 0;
    value_task task;
    task.weights = weights.data(), task.count = 1, task.rows = rows.data(), task.dim = dim;
    task.last = tile_tokens, task.offset = 128;
    task.factor = &factor, task.constant = &constant;
    task.from = from.data(), task.to = to.data(), task.stride = dim, task.scratch = scratch.data();
    add(task);
    const double all = 1 + 63 * 0.75 / 32512;
    for (const float x : to) CHECK(std::abs(double(x) - 10 * all) <= 10 * 8.5 / 16256);  // half a step of each lane
    CHECK(std::abs(double(to[0]) - 10 * all) < 0.5 * 10 * (all - 1));
  });
}
