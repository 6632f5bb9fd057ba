// The host's kernels over vectors of floats, compiled once for each set of instructions: `simd_*.hpp` includes this file
// in its own namespace after its vectors, with KVILT_TARGET set to the attribute of its functions. The vocabulary:
//   f32, lanes; zero, splat, load, store, add, subtract, multiply, multiply_add, larger, any_nan, where_not_zero,
//   nearest_whole, scale_by_power, swap_lanes, first_lane, sum_each; read_<kind>(row, i, count)
// NOTE: no lambdas: they would not inherit the attribute. No product is added to something but by multiply_add: compilers
// may contract the two, in one instance of a function and not in another.

template <int Distance = lanes / 2>
KVILT_TARGET float sum_lanes(f32 x) {
  if constexpr (Distance == 0)
    return first_lane(x);
  else
    return sum_lanes<Distance / 2>(add(x, swap_lanes<Distance>(x)));
}
/// Of lanes that are not NaN.
template <int Distance = lanes / 2>
KVILT_TARGET float largest_lane(f32 x) {
  if constexpr (Distance == 0)
    return first_lane(x);
  else
    return largest_lane<Distance / 2>(larger(x, swap_lanes<Distance>(x)));
}

template <code_kind Kind>
KVILT_TARGET inline f32 read_numbers(const unsigned char* row, int i, int count) {
  if constexpr (Kind == code_kind::fp32) return read_fp32(row, i, count);
  if constexpr (Kind == code_kind::fp16) return read_fp16(row, i, count);
  if constexpr (Kind == code_kind::bf16) return read_bf16(row, i, count);
  if constexpr (Kind == code_kind::e4m3) return read_e4m3(row, i, count);
  if constexpr (Kind == code_kind::e5m2) return read_e5m2(row, i, count);
  if constexpr (Kind == code_kind::u8) return read_u8(row, i, count);
  if constexpr (Kind == code_kind::u4) return read_u4(row, i, count);
}

/// A value of an integer code without its offset, or a number as it is.
template <code_kind Kind>
KVILT_TARGET inline f32 read_values(const unsigned char* row, int i, int count, f32 offset) {
  const f32 x = read_numbers<Kind>(row, i, count);
  if constexpr (Kind == code_kind::u8 || Kind == code_kind::u4) return subtract(x, offset);
  return x;
}

/// Row r of the `Rows` from `row` on: kernels of several rows take the last one again where there are no more, and write
/// the same twice.
inline int row_of(int row, int r, int count) {
  return row + r < count ? row + r : count - 1;
}

/// Products of `Rows` query rows and `Keys` keys, over `count` numbers from `d` on.
template <code_kind Kind, int Rows, int Keys>
KVILT_TARGET KVILT_ALWAYS_INLINE void add_products(const score_task& task, int row, int t, int d, int count,
                                                   f32 (&sum)[Keys][Rows]) {
  const f32 offset = splat(float(task.offset));
  f32 key[Keys];
  KVILT_UNROLL
  for (int j = 0; j < Keys; ++j) {
    if (row == 0) fetch_ahead(task.ahead, t + j, d * bits_of(Kind) / 8);
    key[j] = read_values<Kind>(task.rows[t + j], d, count, offset);  // lanes beyond the row's end meet zeros of q
  }
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const f32 q = load(task.q + row_of(row, r, task.count) * task.q_stride + d);
    KVILT_UNROLL
    for (int j = 0; j < Keys; ++j) sum[j][r] = multiply_add(q, key[j], sum[j][r]);
  }
}

/// Products of `Rows` query rows with the keys of a tile: out[r][t] for t in [first, last) and some around.
template <code_kind Kind, int Rows>
KVILT_TARGET void multiply_keys(const score_task& task, int row) {
  constexpr int tokens = lanes / Rows;                               // keys of a vector of results
  constexpr int together = Rows == 1 ? 2 : tokens < 4 ? tokens : 4;  // that share loads of q
  for (int t = task.first / tokens * tokens; t < task.last; t += tokens) {
    f32 part[lanes];  // of query row i / tokens and key t + i % tokens
    KVILT_UNROLL
    for (int i = 0; i < tokens; i += together) {
      f32 sum[together][Rows];
      KVILT_UNROLL
      for (int j = 0; j < together * Rows; ++j) sum[j / Rows][j % Rows] = zero();
      int d = 0;
      for (; d + lanes <= task.dim; d += lanes)
        add_products<Kind, Rows, together>(task, row, t + i, d, lanes, sum);
      if (d < task.dim) add_products<Kind, Rows, together>(task, row, t + i, d, task.dim - d, sum);
      KVILT_UNROLL
      for (int j = 0; j < together * Rows; ++j) part[j % Rows * tokens + i + j / Rows] = sum[j / Rows][j % Rows];
    }
    float sums[lanes];
    store(sums, sum_each(part));
    for (int r = 0; r < Rows; ++r)
      __builtin_memcpy(task.out + row_of(row, r, task.count) * host_tile::tokens + t, sums + r * tokens, sizeof(float) * tokens);
  }
}

template <code_kind Kind>
KVILT_TARGET void multiply_keys(const score_task& task) {
  int row = 0;
  for (; row + 1 < task.count; row += 4) multiply_keys<Kind, 4>(task, row);
  if (row < task.count) multiply_keys<Kind, 1>(task, row);
}

/// to[r][d] = factor[r] from[r][d] + constant[r] + sum over t of weight[r][t] v[t][d] for `Rows` rows and `Width` vectors from
/// number d on, all of them `Whole` or the row's end. Returns whether a NaN came of it.
template <code_kind Kind, int Rows, int Width, bool Whole>
KVILT_TARGET bool add_values(const value_task& task, int row, int d) {
  f32 sum[Rows][Width];
  const f32 offset = splat(float(task.offset));
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const int at = row_of(row, r, task.count);
    const f32 factor = splat(task.factor[at]), constant = splat(task.constant[at]);
    KVILT_UNROLL
    for (int j = 0; j < Width; ++j)
      sum[r][j] = multiply_add(factor, load(task.from + at * task.stride + d + lanes * j), constant);
  }
  for (int t = task.first; t < task.last; ++t) {
    f32 v[Width];
    KVILT_UNROLL
    for (int j = 0; j < Width; ++j) {
      if (row == 0) fetch_ahead(task.ahead, t, (d + lanes * j) * bits_of(Kind) / 8);
      v[j] = read_values<Kind>(task.rows[t], d + lanes * j, Whole ? lanes : task.dim - d, offset);
    }
    KVILT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const f32 weight = splat(task.weights[row_of(row, r, task.count) * host_tile::tokens + t]);
      KVILT_UNROLL
      for (int j = 0; j < Width; ++j) sum[r][j] = multiply_add(weight, v[j], sum[r][j]);
    }
  }
  bool nan = false;
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    KVILT_UNROLL
    for (int j = 0; j < Width; ++j) {
      nan |= any_nan(sum[r][j]);
      store(task.to + row_of(row, r, task.count) * task.stride + d + lanes * j, sum[r][j]);
    }
  }
  return nan;
}

template <code_kind Kind, int Rows>
KVILT_TARGET bool add_values(const value_task& task, int row) {
  bool nan = false;
  int d = 0;
  for (; d + 4 * lanes <= task.dim; d += 4 * lanes) nan |= add_values<Kind, Rows, 4, true>(task, row, d);
  for (; d < task.dim; d += lanes) nan |= add_values<Kind, Rows, 1, false>(task, row, d);
  return nan;
}

/// The same for one row, leaving out tokens of weight 0: their values may be NaN.
template <code_kind Kind>
KVILT_TARGET void add_some_values(const value_task& task, int row) {
  const f32 offset = splat(float(task.offset)), factor = splat(task.factor[row]), constant = splat(task.constant[row]);
  for (int d = 0; d < task.dim; d += lanes) {
    f32 sum = multiply_add(factor, load(task.from + row * task.stride + d), constant);
    for (int t = task.first; t < task.last; ++t) {
      const float weight = task.weights[row * host_tile::tokens + t];
      if (weight == 0) continue;
      sum = multiply_add(splat(weight), read_values<Kind>(task.rows[t], d, task.dim - d, offset), sum);
    }
    store(task.to + row * task.stride + d, sum);
  }
}

template <code_kind Kind>
KVILT_TARGET void add_values(const value_task& task) {
  bool nan = false;
  int row = 0;
  for (; row + 1 < task.count; row += 4) nan |= add_values<Kind, 4>(task, row);
  if (row < task.count) nan |= add_values<Kind, 1>(task, row);
  if (!nan) return;
  for (row = 0; row < task.count; ++row) add_some_values<Kind>(task, row);
}

/// e^x for x <= 0 to about one unit in the last place; 0 below -87.
KVILT_TARGET inline f32 exp_nonpositive(f32 x) {
  const f32 n = nearest_whole(multiply(x, splat(1.44269504088896341f)));
  f32 r = multiply_add(n, splat(-0.693145751953125f), x);
  r = multiply_add(n, splat(-1.42860682030941723212e-6f), r);
  f32 p = splat(1.9875691500e-4f);  // minimax polynomial of (e^r - 1 - r) / r^2 (S. Moshier, Cephes expf)
  p = multiply_add(p, r, splat(1.3981999507e-3f));
  p = multiply_add(p, r, splat(8.3334519073e-3f));
  p = multiply_add(p, r, splat(4.1665795894e-2f));
  p = multiply_add(p, r, splat(1.6666665459e-1f));
  p = multiply_add(p, r, splat(5.0000001201e-1f));
  const f32 e = add(multiply_add(multiply(p, r), r, r), splat(1.0f));
  return scale_by_power(e, n, x);
}

/// Takes a tile's scores into a row's softmax: scores become weights e^(score - maximum), and the row's earlier sums
/// are to be multiplied by `factor`. Returns whether some weight is not 0.
KVILT_TARGET inline bool weigh(float* scores, float& maximum, float& sum, float& factor) {
  constexpr int vectors = host_tile::tokens / lanes;
  f32 most = splat(maximum);
  bool nan = false;
  for (int j = 0; j < vectors; ++j) {
    const f32 x = load(scores + lanes * j);
    nan |= any_nan(x);
    most = larger(x, most);
  }
  const float high = largest_lane(most);
  // NOTE: a NaN score is no maximum, and still has to reach the sum.
  if (high == -__builtin_huge_valf() && !nan) {
    __builtin_memset(scores, 0, sizeof(float) * host_tile::tokens);
    factor = 1;
    return false;
  }
  f32 total = zero();
  for (int j = 0; j < vectors; ++j) {
    const f32 weight = exp_nonpositive(subtract(load(scores + lanes * j), splat(high)));
    store(scores + lanes * j, weight);
    total = add(total, weight);
  }
  const float tile_sum = sum_lanes(total);
  factor = first_lane(exp_nonpositive(splat(maximum == high ? 0.0f : maximum - high)));
  maximum = high;
  sum = first_lane(multiply_add(splat(sum), splat(factor), splat(tile_sum)));
  return !(tile_sum == 0);
}

/// scores[t] = (products[t] scale[t] + query_sum zeros[t]) factor for t in [first, last), and some around.
KVILT_TARGET inline void scale_products(const float* products, const row_params& params, float query_sum, float factor,
                                        int first, int last, float* scores) {
  for (int t = first / lanes * lanes; t < last; t += lanes) {
    const f32 s = multiply(load(products + t), load(params.scale + t));
    store(scores + t, multiply(multiply_add(load(params.zero + t), splat(query_sum), s), splat(factor)));
  }
}

/// What weights are worth on codes: out = weights scale, 0 where the weight is 0 whatever the scale is. Returns the part
/// of the zeros, the sum of weights zero. All rows of a tile: those outside a part have weight 0.
KVILT_TARGET inline float scale_weights(const float* weights, const row_params& params, float* out) {
  f32 total = zero();
  for (int t = 0; t < host_tile::tokens; t += lanes) {
    const f32 w = load(weights + t);
    store(out + t, where_not_zero(w, multiply(w, load(params.scale + t))));
    total = add(total, where_not_zero(w, multiply(w, load(params.zero + t))));
  }
  return sum_lanes(total);
}

/// to = e^a to + e^b from, [count] each, a whole number of vectors; and the sums that belong to them. a, b <= 0.
KVILT_TARGET inline void blend(float* to, float& to_sum, float a, const float* from, float from_sum, float b,
                               idx count) {
  const f32 keep = exp_nonpositive(splat(a)), take = exp_nonpositive(splat(b));
  for (idx i = 0; i < count; i += lanes)
    store(to + i, multiply_add(keep, load(to + i), multiply(take, load(from + i))));
  to_sum = first_lane(multiply_add(keep, splat(to_sum), multiply(take, splat(from_sum))));
}

KVILT_TARGET inline void widen_halves(const std::uint16_t* from, float* to) {
  for (int t = 0; t < host_tile::tokens; t += lanes)
    store(to + t, read_fp16(reinterpret_cast<const unsigned char*>(from), t, lanes));
}

inline constexpr host_kernels float_kernels = {
    .multiply_keys = {multiply_keys<code_kind::fp32>, multiply_keys<code_kind::fp16>, multiply_keys<code_kind::bf16>,
                      multiply_keys<code_kind::e4m3>, multiply_keys<code_kind::e5m2>, multiply_keys<code_kind::u8>,
                      multiply_keys<code_kind::u4>},
    .add_values = {add_values<code_kind::fp32>, add_values<code_kind::fp16>, add_values<code_kind::bf16>,
                   add_values<code_kind::e4m3>, add_values<code_kind::e5m2>, add_values<code_kind::u8>,
                   add_values<code_kind::u4>},
    .multiply_integer_keys = {},
    .add_integer_values = {},
    .weigh = weigh,
    .scale_products = scale_products,
    .scale_weights = scale_weights,
    .blend = blend,
    .widen_halves = widen_halves};
