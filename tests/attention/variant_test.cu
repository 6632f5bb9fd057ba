#include "support/gpu.hpp"
#include "support/managed.hpp"

#include <kvilt/kvilt.hpp>

#include <cmath>

namespace {

using namespace kvilt;
using support::managed;

// What hooks say about one pair, and about its key alone as a range.
struct said {
  bool keep, whole;
  idx first, last;
  float score, sink;
};

template <class Variant>
KVILT_HD said ask(const Variant& variant, where w, float s) {
  where unset = w;
  unset.k_position = 0;
  const position_range tiles = detail::tiles_of(variant, unset);
  said all = {detail::keeps(variant, w),
              detail::keeps_whole(variant, unset, {w.k_position, w.k_position + 1}),
              tiles.first,
              tiles.last,
              detail::scored(variant, w, s),
              0};
  if constexpr (detail::has_sink<Variant>) all.sink = variant.sink(w.q_head);
  return all;
}

constexpr int heads = 4, queries = 9, keys = 60, pairs = heads * queries * keys;

KVILT_HD where pair(int i) {
  const int q_index = i / heads % queries;
  return {0, i % heads, i % heads / 2, q_index, 40 + q_index, i / heads / queries};
}
KVILT_HD float logit(int i) {
  return float(i % 101 - 50) * 0.13f;
}

template <class Variant>
__global__ void ask_all(Variant variant, said* out) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < pairs) out[i] = ask(variant, pair(i), logit(i));
}

template <class Variant>
void check_same(const Variant& variant) {
  managed<said> device(pairs);
  ask_all<<<(pairs + 127) / 128, 128>>>(variant, device.data());
  support::finish_kernels();
  bool same = true;
  double furthest = 0;
  for (int i = 0; i < pairs; ++i) {
    const said host = ask(variant, pair(i), logit(i)), there = device[std::size_t(i)];
    same &= host.keep == there.keep && host.whole == there.whole && host.sink == there.sink;
    same &= host.first == there.first && host.last == there.last;
    furthest = std::fmax(furthest, std::fabs(double(host.score) - double(there.score)));
  }
  CHECK(same);
  CHECK(furthest <= 1e-5);
}

template <class T>
const T* shared(managed<T>& to, std::span<const T> from) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i];
  return to.data();
}

}  // namespace

TEST_CASE("variant: kernels get the host's answers from every hook", "[attention][gpu]") {
  support::require_gpu();
  alibi_table table(heads);
  table.truncate(0.1, 0.1);
  const int parents[queries] = {-1, 0, 0, 1, -1, 4, 2, 6, 6};
  const tree_table trees(queries, parents);
  managed<float> slopes(heads), logits(heads);
  managed<idx> widths(heads);
  managed<std::uint64_t> ancestors(queries);
  const alibi sloped = {shared(slopes, table.slopes()), shared(widths, table.widths())};
  const tree_mask tree = {shared(ancestors, trees.ancestors())};
  const sink_logit sink = {logits.data()};
  for (int i = 0; i < heads; ++i) logits[std::size_t(i)] = float(i) - 1.5f;
  check_same(full{});
  check_same(causal{});
  check_same(causal_window{7});
  check_same(soft_cap{1.5f});
  check_same(sloped);
  check_same(sink);
  check_same(tree);
  check_same(compose(causal{}, soft_cap{2}, sloped, sink));
  check_same(compose(tree, causal_window{30}, sink));
}
