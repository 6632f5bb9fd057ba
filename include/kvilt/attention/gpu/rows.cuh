#pragma once

#include <kvilt/attention/gpu/task.cuh>
#include <kvilt/core/floats.hpp>
#include <kvilt/format/rotate.hpp>

/// \file
/// Eight rows of floats in a warp's shared memory: queries on their way to the tensor cores, results on their way out.

namespace kvilt::inline KVILT_ABI::detail {

/// [8][stride], and beside each row, as a result: its maximum, and its sum or by what it is multiplied.
struct warp_rows {
  float* data = nullptr;
  int stride = 0;
  float* notes = nullptr;  // [8][device_row_notes]

  /// In shared memory from `bytes` on, with their notes after them.
  __device__ static warp_rows in(unsigned char* bytes, int stride) {
    float* const data = reinterpret_cast<float*>(bytes);
    return {data, stride, data + 8 * stride};
  }
  __device__ float* row(int r) const { return data + r * stride; }
  __device__ float& maximum(int r) const { return notes[r * device_row_notes]; }
  __device__ float& sum(int r) const { return notes[r * device_row_notes + 1]; }
};

/// What a warp works on: rows [first, first + count) of a sequence, and one KV head. As the tensor cores deal their
/// numbers out, a lane has row or column g of one factor, and numbers 2t and 2t + 1 of the other.
template <class Task>
struct warp_unit {
  using number = typename Task::query_type;

  const Task& task;
  warp_rows rows;  // for all that need them in turn
  item_rows item;
  int number_of_item = 0;
  int head = 0, first = 0, count = 0;
  bool opens = false, closes = false;  // are its first steps and its last here?
  const number* queries = nullptr;     // [count][query_pitch], in shared memory, or null
  int query_pitch = 0;                 // numbers

  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  /// What hooks are told of row `row`, or of the first where there are not so many.
  __device__ where at(int row) const { return where_of(task, item, head, first + (row < count ? row : 0)); }
  /// The query of row `row`, and whether eight of its numbers can be read at once.
  __device__ const number* query(int row) const {
    return queries ? queries + row * query_pitch : query_of(task, item, head, first + row);
  }
  __device__ bool reads_eights() const { return queries || in_eights(task.q); }
};

/// Tokens of a tile as bits, of which any lane says so: `said` of tokens g and g + 8 of every sixteen.
template <int Steps>
__device__ ptx::u32 tokens_of(const bool (&said)[Steps][2]) {
  ptx::u32 tokens = 0;
#pragma unroll
  for (int h = 0; h < 2 * Steps; ++h) {
    ptx::u32 lanes = __ballot_sync(0xffffffffu, said[h / 2][h % 2]);
    lanes |= lanes >> 1, lanes |= lanes >> 2;
    for (int g = 0; g < 8; ++g) tokens |= (lanes >> (4 * g) & 1) << (g + 8 * h);
  }
  return tokens;
}

/// The rotation of the `count` rows' numbers [0, dim), by the warp.
template <class Rotation, bool Inverse>
__device__ void rotate_rows(const warp_rows& x, int count, int dim) {
  const int lane = int(threadIdx.x) % 32;
  if constexpr (std::is_same_v<Rotation, hadamard>) {
    const int block = power_of_two_divisor(dim), half_dim = dim / 2;
    for (int half = 1; half < block; half *= 2) {
      for (int i = lane; i < count * half_dim; i += 32) {
        const int r = i / half_dim, pair = i - r * half_dim, low = (pair & ~(half - 1)) * 2 + (pair & (half - 1));
        float* const row = x.row(r) + low;
        const float a = row[0], b = row[half];
        row[0] = a + b;
        row[half] = a - b;
      }
      __syncwarp();
    }
    const float norm = rsqrtf(float(block));
    for (int i = lane; i < count * dim; i += 32) x.row(i / dim)[i % dim] *= norm;
  } else if constexpr (!std::is_same_v<Rotation, no_rotation>) {
    if (lane < count) {
      if constexpr (Inverse)
        Rotation::inverse(x.row(lane), dim);
      else
        Rotation::forward(x.row(lane), dim);
    }
  }
  __syncwarp();
}

/// `N` numbers from where as many lie side by side on a boundary of as many bytes, up to 16.
template <class T, int N>
__device__ void load_aligned(const T* from, T (&numbers)[N]) {
  constexpr int bytes = sizeof(numbers);
  using unit = std::conditional_t<bytes % 16 == 0, uint4, std::conditional_t<bytes % 8 == 0, uint2, ptx::u32>>;
  static_assert(bytes % 4 == 0);
  unit units[bytes / sizeof(unit)];
#pragma unroll
  for (int i = 0; i < int(bytes / sizeof(unit)); ++i) units[i] = reinterpret_cast<const unit*>(from)[i];
  __builtin_memcpy(numbers, units, bytes);
}
template <class T>
__device__ void copy_eight(const T* from, bool at_once, T (&x)[8]) {
  if (at_once) {
    load_aligned(from, x);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = from[i];
  }
}
template <class T>
__device__ void load_eight(const T* from, bool at_once, float (&x)[8]) {
  T numbers[8];
  copy_eight(from, at_once, numbers);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load(numbers[i]);
}
template <class T>
__device__ void store_eight(T* to, bool at_once, const float (&x)[8]) {
  alignas(16) T numbers[8];
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    constexpr auto packed = std::is_same_v<T, float16> ? ptx::numbers::fp16 : ptx::numbers::bf16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const ptx::u32 pair = ptx::pack<packed>(x[2 * i], x[2 * i + 1]);
      __builtin_memcpy(&numbers[2 * i], &pair, sizeof(pair));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) store(numbers[i], x[i]);
  }
  if (at_once) {
#pragma unroll
    for (int i = 0; i < int(sizeof(numbers) / 16); ++i)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(numbers)[i];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = numbers[i];
  }
}

template <class T>
__device__ void store_pair(T* to, bool at_once, float a, float b) {
  alignas(8) T numbers[2];
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    const ptx::u32 pair = ptx::pack < std::is_same_v<T, float16> ? ptx::numbers::fp16 : ptx::numbers::bf16 > (a, b);
    __builtin_memcpy(numbers, &pair, sizeof(pair));
  } else {
    store(numbers[0], a), store(numbers[1], b);
  }
  using unit = std::conditional_t<sizeof(numbers) == 4, ptx::u32, uint2>;
  static_assert(sizeof(numbers) == sizeof(unit));
  if (at_once)
    *reinterpret_cast<unit*>(to) = *reinterpret_cast<const unit*>(numbers);
  else
    to[0] = numbers[0], to[1] = numbers[1];
}

/// Do queries go to the tensor cores as they were given?
template <class Task>
consteval bool queries_as_given() {
  return std::is_same_v<typename Task::view_type::k_rotation, no_rotation> &&
         !std::is_same_v<typename Task::positions_type, cache_positions>;
}

/// The power of two that a row's largest number is less than twice as large as, within 2^-100 and 2^100; four lanes side by
/// side have a row, and each gives the largest of its own.
__device__ inline float power_of_two_in_row(float largest) {
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const int exponent = int(__float_as_uint(largest) >> 23) - 127;
  return __uint_as_float(ptx::u32(127 + (exponent < -100 ? -100 : exponent > 100 ? 100 : exponent)) << 23);
}

/// Rows [first, first + count) of the unit's queries, at most eight, in the view's rotation; those of eight that there are
/// not, and numbers beyond `dim` up to `padded`, are 0.
template <class Task, class Segment>
__device__ void load_queries(const warp_unit<Task>& unit, const Segment& seg, int first, int count, int padded) {
  const Task& task = unit.task;
  const warp_rows& to = unit.rows;
  const int lane = unit.lane(), dim = task.view.k_dim(), eights = padded / 8;
  const bool at_once = unit.reads_eights();
  __syncwarp();
  constexpr int most = 4;  // on their way at once
#pragma unroll 1
  for (int from = lane; from < 8 * eights; from += 32 * most) {
    float x[most][8];
#pragma unroll
    for (int k = 0; k < most; ++k) {
      const int i = from + 32 * k, r = i / eights, d = 8 * (i - r * eights);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[k][j] = 0;
      if (r < count && d < dim) load_eight(unit.query(first + r) + d, at_once, x[k]);
    }
#pragma unroll
    for (int k = 0; k < most; ++k) {
      const int i = from + 32 * k, r = i / eights, d = 8 * (i - r * eights);
      if (r >= 8) break;
      *reinterpret_cast<float4*>(to.row(r) + d) = {x[k][0], x[k][1], x[k][2], x[k][3]};
      *reinterpret_cast<float4*>(to.row(r) + d + 4) = {x[k][4], x[k][5], x[k][6], x[k][7]};
    }
  }
  __syncwarp();
  if constexpr (std::is_same_v<typename Task::positions_type, cache_positions> &&
                requires { seg.retention.in_cache(idx()); }) {
    if (lane < count) {
      const idx position = unit.at(first + lane).q_position;
      task.positions.turn.shift(to.row(lane), seg.retention.in_cache(position) - position);
    }
    __syncwarp();
  }
  rotate_rows<typename Task::view_type::k_rotation, false>(to, count, dim);
}

/// Adds to the first of `Pieces` results of row `row` the others in their order, by the warp: `piece(i)` are the rows of
/// one, of which the first `width` numbers count.
template <int Pieces, class Piece>
__device__ void add_pieces(const Piece& piece, int row, int width) {
  const int lane = int(threadIdx.x) % 32;
  float high = -1e30f, sum = 0, shares[Pieces];
#pragma unroll
  for (int i = 0; i < Pieces; ++i) high = fmaxf(high, piece(i).maximum(row));
#pragma unroll
  for (int i = 0; i < Pieces; ++i) {
    shares[i] = ptx::exp2(piece(i).maximum(row) - high);
    sum += piece(i).sum(row) * shares[i];
  }
  for (int d = lane; d < width; d += 32) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < Pieces; ++i) total += piece(i).row(row)[d] * shares[i];
    piece(0).row(row)[d] = total;
  }
  __syncwarp();
  if (lane == 0) piece(0).maximum(row) = high, piece(0).sum(row) = sum;
  __syncwarp();
}

/// Of weights whose sum is relative to a maximum in log2 units.
__device__ inline float natural_log_sum(float maximum, float sum) {
  constexpr float ln_2 = 0.6931471805599453f;
  return sum == 0 ? -__builtin_huge_valf() : (maximum + log2f(sum)) * ln_2;
}

/// Counts the sink of a row's head, if there is one: its maximum in log2 units and the sum of its weights become those with
/// it. By what the weighted values' sums are to be multiplied.
template <class Task>
__device__ float end_row(const Task& task, int q_head, float& maximum, float& sum) {
  float share = 1;
  if constexpr (has_sink<typename Task::variant_type>) {
    constexpr float log2_e = 1.4426950408889634f;
    const float sink = task.variant.sink(q_head) * log2_e, high = sink > maximum ? sink : maximum;
    share = ptx::exp2(maximum - high);
    sum = sum * share + ptx::exp2(sink - high);
    maximum = high;
  }
  return sum == 0 ? 0.0f : share / sum;
}

/// Ends the results of rows [first, first + count) of a sequence, at most eight: sums of weighted values, beside them
/// the maximum in log2 units and the sum of weights. V's rotation is undone and sinks are counted; a row then has, where
/// its sum was, by what it is to be multiplied. `body(where, maximum, sum)` for each row, by one lane.
template <class Task, class Body>
__device__ void end_results(const Task& task, const item_rows& item, int head, int first, int count, const warp_rows& x,
                            Body&& body) {
  const int lane = int(threadIdx.x) % 32;
  __syncwarp();
  rotate_rows<typename Task::view_type::v_rotation, true>(x, count, task.view.v_dim());
  if (lane < count) {
    const where w = where_of(task, item, head, first + lane);
    float maximum = x.maximum(lane), sum = x.sum(lane);
    x.sum(lane) = end_row(task, w.q_head, maximum, sum);
    body(w, maximum, sum);
  }
  __syncwarp();
}

/// Writes the results of rows [first, first + count) of a sequence, as `end_results` takes them.
template <class Task>
__device__ void write_results(const Task& task, const item_rows& item, int head, int first, int count,
                              const warp_rows& x) {
  const int lane = int(threadIdx.x) % 32, eights = task.view.v_dim() / 8;
  const bool at_once = in_eights(task.out);
  const idx q_row = item.q_row;
  end_results(task, item, head, first, count, x, [&](const where& w, float maximum, float sum) {
    if (task.lse) task.lse.at(q_row + w.q_index, w.q_head) = natural_log_sum(maximum, sum);
  });
#pragma unroll 2
  for (int i = lane; i < count * eights; i += 32) {
    const int r = i / eights, d = 8 * (i % eights);
    const where w = where_of(task, item, head, first + r);
    const float4 a = *reinterpret_cast<const float4*>(x.row(r) + d),
                 b = *reinterpret_cast<const float4*>(x.row(r) + d + 4);
    const float f = x.sum(r);
    store_eight(task.out.at(q_row + w.q_index, w.q_head) + d, at_once,
                {a.x * f, a.y * f, a.z * f, a.w * f, b.x * f, b.y * f, b.z * f, b.w * f});
  }
  __syncwarp();
}

}  // namespace kvilt::inline KVILT_ABI::detail
