#pragma once

#include "format/record.hpp"

/// What the tests of tile formats share.
namespace formats {

/// One tile between guards, and its rows as they come back.
template <class F>
class tile {
 public:
  tile(const F& f, const std::vector<float>& x) : format_(f), record_(f) { f.encode(x.data(), record_.ref()); }

  record<F>& bytes() { return record_; }
  /// Decoded `N` at a time, and what is left 8 at a time: [rows][dim]
  template <int N = 8>
  std::vector<float> decoded() {
    std::vector<float> x;
    float part[N], eighth[8];
    for (int row = 0; row < F::rows; ++row) {
      const kvilt::row_ref at{record_.ref().codes, record_.ref().params, row};
      int first = 0;
      for (; first + N <= format_.dim(); first += N) {
        format_.template decode<N>(at, first, part);
        x.insert(x.end(), part, part + N);
      }
      for (; first < format_.dim(); first += 8) {
        format_.template decode<8>(at, first, eighth);
        x.insert(x.end(), eighth, eighth + 8);
      }
    }
    return x;
  }

 private:
  F format_;
  record<F> record_;
};

/// Tiles [rows][dim]: each awkward row in turn beside Gaussian ones, the awkward ones alone, and channels that are
/// large in every token.
inline std::vector<awkward::row> tiles_of(const std::vector<awkward::row>& awkward_rows, int rows, int dim) {
  std::vector<awkward::row> tiles;
  std::mt19937 random(17);
  const auto add = [&](const std::string& name, auto row_of) {
    std::vector<float> x;
    for (int t = 0; t < rows; ++t)
      for (const float number : row_of(t)) x.push_back(number);
    tiles.push_back({name, x});
  };
  for (std::size_t n = 0; n < awkward_rows.size(); ++n)
    add(awkward_rows[n].name,
        [&](int t) { return t == int(n) % rows ? awkward_rows[n].x : awkward::gaussian(dim, random); });
  add("all kinds", [&](int t) { return awkward_rows[std::size_t(t) % awkward_rows.size()].x; });
  for (const awkward::row& row : awkward_rows) add(row.name + " in every token", [&](int) { return row.x; });
  return tiles;
}

/// A tile of keys: Gaussian, and a few channels of an offset of `size` besides.
inline std::vector<float> keys_with_offsets(int rows, int dim, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x;
  for (int t = 0; t < rows; ++t) {
    std::vector<float> row = awkward::gaussian(dim, random);
    row[3] += size, row[std::size_t(dim / 2)] -= size, row[std::size_t(dim - 5)] += size / 2;
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

/// Root mean square of what `y` is off.
inline double rms_error(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += std::pow(double(x[i]) - y[i], 2);
  return std::sqrt(sum / double(x.size()));
}

/// A token format's, row by row.
template <class F>
double rms_error_by_token(const F& f, const std::vector<float>& x) {
  std::vector<float> y;
  for (std::size_t first = 0; first < x.size(); first += std::size_t(f.dim()))
    for (const float number :
         record<F>(f, {x.begin() + std::ptrdiff_t(first), x.begin() + std::ptrdiff_t(first) + f.dim()})
             .template decoded<8>())
      y.push_back(number);
  return rms_error(x, y);
}

}  // namespace formats
