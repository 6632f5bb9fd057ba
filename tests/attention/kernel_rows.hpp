#pragma once

#include "support/oracle.hpp"
#include "support/random.hpp"

#include <kvilt/attention/host/kernels.hpp>

#include <cmath>
#include <vector>

namespace support {

using kvilt::code_kind;
using kvilt::instruction_set;
using kvilt::detail::host_kernels;
using kvilt::detail::host_tile;
using kvilt::detail::score_task;
using kvilt::detail::value_task;

inline constexpr int tile_tokens = host_tile::tokens;
inline constexpr code_kind every_kind[] = {code_kind::fp32, code_kind::fp16, code_kind::bf16, code_kind::e4m3,
                                           code_kind::e5m2, code_kind::u8,   code_kind::u4};
inline constexpr code_kind integer_kinds[] = {code_kind::u8, code_kind::u4};

constexpr bool is_integer(code_kind kind) {
  return kind == code_kind::u8 || kind == code_kind::u4;
}
constexpr int largest_code(code_kind kind) {
  return kind == code_kind::u4 ? 15 : 255;
}

// The rows of a tile as a cache might hold them: bytes that are NaN, or the largest codes, lie between two rows, and
// nothing after the last.
class code_rows {
 public:
  code_rows(code_kind kind, int dim)
      : kind_(kind), dim_(dim), stride_(row_bytes() + 68), bytes_(std::size_t(tile_tokens * stride_ - 68), 0xff) {}
  code_rows(code_kind kind, int dim, std::uint64_t seed) : code_rows(kind, dim) {
    normal_numbers numbers(mixed({seed}));
    dice codes(seed);
    for (int t = 0; t < tile_tokens; ++t)
      for (int d = 0; d < dim; ++d)
        if (is_integer(kind))
          set_code(t, d, unsigned(codes.below(largest_code(kind) + 1)));
        else
          set(t, d, numbers.next());
  }

  const unsigned char* row(int t) const { return bytes_.data() + t * stride_; }
  // Rows of tokens [first, last); elsewhere one of NaNs, or of the largest codes.
  std::vector<const unsigned char*> part(int first, int last) const {
    std::vector<const unsigned char*> rows(std::size_t(tile_tokens), nothing_.data());
    for (int t = first; t < last; ++t) rows[std::size_t(t)] = row(t);
    return rows;
  }

  void set(int t, int d, float x) {
    switch (kind_) {
      case code_kind::fp32:
        return put(t, 4 * d, kvilt::bits_of(x), 4);
      case code_kind::fp16:
        return set_code(t, d, kvilt::to_fp16(x));
      case code_kind::bf16:
        return set_code(t, d, kvilt::to_bf16(x));
      case code_kind::e4m3:
        return set_code(t, d, kvilt::to_e4m3(x));
      default:
        return set_code(t, d, kvilt::to_e5m2(x));
    }
  }
  void set_code(int t, int d, unsigned code) {
    if (kind_ == code_kind::u4) {
      unsigned char& pair = bytes_[std::size_t(t * stride_ + d / 2)];
      pair = static_cast<unsigned char>(d % 2 ? (pair & 15u) | code << 4 : (pair & 0xf0u) | code);
    } else {
      put(t, d * kvilt::detail::bits_of(kind_) / 8, code, kvilt::detail::bits_of(kind_) / 8);
    }
  }
  double at(int t, int d) const {
    const unsigned char* const r = row(t);
    switch (kind_) {
      case code_kind::fp32:
        return double(kvilt::detail::read<float>(r + 4 * d));
      case code_kind::fp16:
        return double(kvilt::from_fp16(kvilt::detail::read<std::uint16_t>(r + 2 * d)));
      case code_kind::bf16:
        return double(kvilt::from_bf16(kvilt::detail::read<std::uint16_t>(r + 2 * d)));
      case code_kind::e4m3:
        return double(kvilt::from_e4m3(r[d]));
      case code_kind::e5m2:
        return double(kvilt::from_e5m2(r[d]));
      case code_kind::u8:
        return double(r[d]);
      default:
        return double(r[d / 2] >> 4 * (d % 2) & 15);
    }
  }

 private:
  int row_bytes() const { return dim_ * kvilt::detail::bits_of(kind_) / 8; }
  void put(int t, int byte, std::uint32_t code, int size) {
    for (int i = 0; i < size; ++i)
      bytes_[std::size_t(t * stride_ + byte + i)] = static_cast<unsigned char>(code >> 8 * i);
  }

  code_kind kind_;
  int dim_, stride_;
  std::vector<unsigned char> bytes_;
  std::vector<unsigned char> nothing_ = std::vector<unsigned char>(std::size_t(row_bytes()), 0xff);
};

// [count][stride] numbers, 0 beyond the row's end, and a vector after them that nothing may touch.
class float_rows {
 public:
  static constexpr float untouched = -12345.0f;

  float_rows(int count, int dim, int stride)
      : count_(count), dim_(dim), stride_(stride), data_(std::size_t(count * stride + 16), untouched) {
    std::fill_n(data_.begin(), count * stride, 0.0f);
  }
  float_rows(int count, int dim, int stride, std::uint64_t seed) : float_rows(count, dim, stride) {
    normal_numbers numbers(mixed({seed}));
    for (int r = 0; r < count; ++r)
      for (int d = 0; d < dim; ++d) at(r, d) = numbers.next();
  }

  float& at(int r, int d) { return data_[std::size_t(r * stride_ + d)]; }
  float at(int r, int d) const { return data_[std::size_t(r * stride_ + d)]; }
  float* data() { return data_.data(); }
  const float* data() const { return data_.data(); }
  int count() const { return count_; }
  int dim() const { return dim_; }
  int stride() const { return stride_; }
  bool kept_within() const {
    bool kept = true;
    for (std::size_t i = data_.size() - 16; i < data_.size(); ++i) kept = kept && data_[i] == untouched;
    return kept;
  }
  std::vector<float> row(int r) const { return {data_.begin() + r * stride_, data_.begin() + r * stride_ + dim_}; }

 private:
  int count_, dim_, stride_;
  std::vector<float> data_;
};

inline int whole_vectors(int dim) {
  return (dim + 15) / 16 * 16;
}

// What integer kernels may use, and bytes after it that they may not.
class kernel_scratch {
 public:
  kernel_scratch() : bytes_(std::size_t(tile_tokens * int(host_tile::integer_numbers) + 128), 0xa5) {}
  unsigned char* data() { return bytes_.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64) % 64; }

 private:
  std::vector<unsigned char> bytes_;
};

// Products of queries with a part of a tile's keys, as the kernels make them.
inline float_rows products_of(const host_kernels& kernels, code_kind kind, bool integers, const float_rows& q,
                              const code_rows& keys, int first, int last, int offset, bool ahead = false) {
  const int dim = q.dim(), count = q.count();
  const auto rows = keys.part(first, last);
  float_rows out(count, tile_tokens, tile_tokens);
  std::vector<std::int16_t> codes(std::size_t(count * q.stride() + host_tile::line / 2), 0x5555);
  std::vector<float> scale(std::size_t(count), 0.0f);
  std::vector<int> sum(std::size_t(count), 0);
  score_task task;
  task.q = q.data(), task.q_stride = q.stride(), task.count = count;
  task.rows = rows.data(), task.dim = dim, task.ahead = ahead ? rows.data() : nullptr;
  task.first = first, task.last = last, task.offset = offset;
  task.out = out.data();
  if (integers)
    for (int r = 0; r < count; ++r)
      kernels.quantise_query(kind, q.data() + r * q.stride(), dim, codes.data() + r * q.stride(), scale[std::size_t(r)],
                             sum[std::size_t(r)]);
  task.q_codes = codes.data(), task.q_scale = scale.data(), task.q_sum = sum.data();
  (integers ? kernels.multiply_integer_keys : kernels.multiply_keys)[int(kind)](task);
  return out;
}

// Sums of a part of a tile's values, as the kernels make them: weights [count][tokens of a tile], 0 outside the part.
inline float_rows sums_of(const host_kernels& kernels, code_kind kind, bool integers, const float_rows& weights,
                          const code_rows& values, int dim, int first, int last, int offset, const float_rows& from,
                          const std::vector<float>& factor, const std::vector<float>& constant, bool ahead = false) {
  const auto rows = values.part(first, last);
  float_rows to(weights.count(), dim, from.stride());
  kernel_scratch scratch;
  value_task task;
  task.weights = weights.data(), task.count = weights.count();
  task.rows = rows.data(), task.dim = dim, task.ahead = ahead ? rows.data() : nullptr;
  task.first = first, task.last = last, task.offset = offset;
  task.factor = factor.data(), task.constant = constant.data();
  task.from = from.data(), task.to = to.data(), task.stride = from.stride();
  task.scratch = scratch.data();
  (integers ? kernels.add_integer_values : kernels.add_values)[int(kind)](task);
  return to;
}

}  // namespace support
