#pragma once

#include <kvilt/gpu/lanes.cuh>
#include <kvilt/position/rope.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// Where number `i` lies in shared memory, so that lanes 16 numbers apart meet in no bank.
KVILT_HD constexpr int staged(int i) {
  return i + i / lane_numbers * 4;
}
/// The same for rows that lie side by side.
KVILT_HD constexpr int as_they_lie(int i) {
  return i;
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

/// RoPE on a row of floats in shared memory, number i at At(i), by a group: one row of a table.
template <int (*At)(int)>
__device__ void turn_row(const rope& turn, const float* sines, const float* cosines, const lane_group& g, float* row) {
  const bool split = turn.pairs == rope_pairs::half_split;
  for (int i = g.lane; i < turn.dims / 2; i += g.size) {
    float& first = row[At(turn.first + (split ? i : 2 * i))];
    float& second = row[At(turn.first + (split ? i + turn.dims / 2 : 2 * i + 1))];
    const float a = turn.magnitude * first, b = turn.magnitude * second;
    first = rope::first_turned(a, b, sines[staged(i)], cosines[staged(i)]);
    second = rope::second_turned(a, b, sines[staged(i)], cosines[staged(i)]);
  }
  g.sync();
}

/// RoPE on the row that a group holds. row: room for it, number i at staged(i)
struct lane_turn {
  float* row = nullptr;
  const float* sines = nullptr;
  const float* cosines = nullptr;

  __device__ void apply(const rope& turn, const lane_group& g, float (&x)[lane_numbers]) const {
    const int j0 = g.lane * lane_numbers - turn.first;
    const bool mine = j0 >= 0 && j0 < turn.dims, lined = turn.first % lane_numbers == 0;
    if (lined && turn.pairs == rope_pairs::interleaved && turn.dims % lane_numbers == 0) {
      if (mine) neighbours(turn, j0, x);
      return;
    }
    float4* const own = reinterpret_cast<float4*>(row + staged(g.lane * lane_numbers));
    const bool held = g.lane * lane_numbers < longest(turn);
#pragma unroll
    for (int i = 0; i < lane_numbers / 4; ++i)
      if (held) own[i] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    g.sync();
    if (lined && turn.pairs == rope_pairs::half_split && turn.dims % (2 * lane_numbers) == 0) {
      if (mine) halves(turn, j0, x);
      return;
    }
    turn_row<staged>(turn, sines, cosines, g, row);
#pragma unroll
    for (int i = 0; i < lane_numbers / 4; ++i)
      if (held) {
        const float4 four = own[i];
        x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
      }
  }

 private:
  /// Numbers up to the last that turns: what is behind them need not be staged.
  __device__ static int longest(const rope& turn) {
    return turn.first + turn.dims;
  }

  /// Pairs of numbers side by side.
  __device__ void neighbours(const rope& turn, int j0, float (&x)[lane_numbers]) const {
    const float* const s = sines + staged(j0 / 2);
    const float* const c = cosines + staged(j0 / 2);
#pragma unroll
    for (int i = 0; i < lane_numbers / 2; ++i) {
      const float a = turn.magnitude * x[2 * i], b = turn.magnitude * x[2 * i + 1];
      x[2 * i] = rope::first_turned(a, b, s[i], c[i]);
      x[2 * i + 1] = rope::second_turned(a, b, s[i], c[i]);
    }
  }
  /// All of the lane's numbers are first ones of pairs, or second ones, and so are those that they turn with.
  __device__ void halves(const rope& turn, int j0, float (&x)[lane_numbers]) const {
    const int half = turn.dims / 2;
    const bool second = j0 >= half;
    const float own = turn.magnitude,
                other = second ? turn.magnitude : -turn.magnitude;  // b' = b c + a s, a' = a c - b s
    const int pair = second ? j0 - half : j0, at = staged(pair);
    const float* const others = row + staged(turn.first + (second ? pair : pair + half));
#pragma unroll
    for (int i = 0; i < lane_numbers; i += 4) {
      const float4 o = *reinterpret_cast<const float4*>(others + i);
      const float4 s = *reinterpret_cast<const float4*>(sines + at + i);
      const float4 c = *reinterpret_cast<const float4*>(cosines + at + i);
      x[i] = rope::second_turned(other * o.x, own * x[i], s.x, c.x);
      x[i + 1] = rope::second_turned(other * o.y, own * x[i + 1], s.y, c.y);
      x[i + 2] = rope::second_turned(other * o.z, own * x[i + 2], s.z, c.z);
      x[i + 3] = rope::second_turned(other * o.w, own * x[i + 3], s.w, c.w);
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
