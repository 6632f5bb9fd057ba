#pragma once

#include <kvilt/gpu/lanes.cuh>
#include <kvilt/position/rope.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// Where number `i` lies in shared memory, so that lanes 16 numbers apart meet in no bank.
KVILT_HD constexpr int staged(int i) {
  return i + i / lane_numbers * 4;
}
KVILT_HD constexpr int staged_size(int numbers) {
  return staged((numbers + lane_numbers - 1) / lane_numbers * lane_numbers);
}

/// Sines and cosines of the positions that a block's rows have, made once for all heads.
struct turn_table {
  float* sines = nullptr;    // [rows][staged_size(dims / 2)]
  float* cosines = nullptr;  // alike
  int pitch = 0;

  __device__ turn_table(float* shared, int rows, int dims)
      : sines(shared), cosines(shared + rows * staged_size(dims / 2)), pitch(staged_size(dims / 2)) {}
  KVILT_HD static constexpr int floats(int rows, int dims) { return 2 * rows * staged_size(dims / 2); }

  __device__ void set(int row, int pair, const rope& turn, idx position) const {
    const int at = row * pitch + staged(pair);
    turn.sine_cosine_of(pair, position, sines[at], cosines[at]);
  }
};

/// A row in shared memory that is turned: by one row of a table.
struct staged_turn {
  const float* row = nullptr;  // number i at staged(i)
  const float* sines = nullptr;
  const float* cosines = nullptr;

  /// Turns a lane's `live` numbers from `n0` on, which are the row's; others read the row until the group is synced.
  __device__ void apply(const rope& turn, int n0, int live, float (&x)[lane_numbers]) const {
    const bool lined = turn.first % lane_numbers == 0;
    if (lined && turn.pairs == rope_pairs::interleaved)
      neighbours(turn, n0 - turn.first, x);
    else if (lined && turn.dims % (2 * lane_numbers) == 0)
      halves(turn, n0 - turn.first, x);
    else
      any(turn, n0 - turn.first, live, x);
  }

 private:
  /// Pairs of numbers side by side; the row is not looked at.
  __device__ void neighbours(const rope& turn, int j0, float (&x)[lane_numbers]) const {
    if (j0 < 0) return;
#pragma unroll
    for (int i = 0; i < lane_numbers; i += 2) {
      if (j0 + i >= turn.dims) break;
      const int at = staged((j0 + i) / 2);
      const float a = turn.magnitude * x[i], b = turn.magnitude * x[i + 1];
      x[i] = rope::first_turned(a, b, sines[at], cosines[at]);
      x[i + 1] = rope::second_turned(a, b, sines[at], cosines[at]);
    }
  }
  /// All of the lane's numbers are first ones of pairs, or second ones, and so are those that they turn with.
  __device__ void halves(const rope& turn, int j0, float (&x)[lane_numbers]) const {
    const int half = turn.dims / 2;
    if (j0 < 0 || j0 >= turn.dims) return;
    const bool second = j0 >= half;
    const int pair = second ? j0 - half : j0, at = staged(pair);
    const float* const others = row + staged(turn.first + (second ? pair : pair + half));
#pragma unroll
    for (int i = 0; i < lane_numbers; i += 4) {
      const float4 o = *reinterpret_cast<const float4*>(others + i);
      const float4 s = *reinterpret_cast<const float4*>(sines + at + i);
      const float4 c = *reinterpret_cast<const float4*>(cosines + at + i);
      x[i] = turned(turn, second, x[i], o.x, s.x, c.x);
      x[i + 1] = turned(turn, second, x[i + 1], o.y, s.y, c.y);
      x[i + 2] = turned(turn, second, x[i + 2], o.z, s.z, c.z);
      x[i + 3] = turned(turn, second, x[i + 3], o.w, s.w, c.w);
    }
  }
  __device__ void any(const rope& turn, int j0, int live, float (&x)[lane_numbers]) const {
    const int half = turn.dims / 2;
    const bool split = turn.pairs == rope_pairs::half_split;
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i) {
      const int j = j0 + i;
      if (i >= live || j < 0 || j >= turn.dims) continue;
      const bool second = split ? j >= half : j % 2 == 1;
      const int pair = split ? (second ? j - half : j) : j / 2;
      const int other = split ? (second ? pair : pair + half) : (second ? j - 1 : j + 1);
      x[i] = turned(turn, second, x[i], row[staged(turn.first + other)], sines[staged(pair)], cosines[staged(pair)]);
    }
  }
  __device__ static float turned(const rope& turn, bool second, float own, float other, float sine, float cosine) {
    const float mine = turn.magnitude * own, theirs = turn.magnitude * other;
    return second ? rope::second_turned(theirs, mine, sine, cosine) : rope::first_turned(mine, theirs, sine, cosine);
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
