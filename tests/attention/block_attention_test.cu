#include "support/attend_gpu.cuh"

#include <kvilt/attention/sink_logit.hpp>

// Attention inside a kernel of the user's own, one block for each sequence and KV head.

namespace {

using namespace kvilt;
using support::containing, support::prompt, support::tried;

// Rows of all queries, eight at a time, by shared memory that was full of NaN.
template <class Block>
__global__ void __launch_bounds__(Block::threads)
    blocks_kernel(const __grid_constant__ typename Block::arguments arguments, const step_item* items, int group,
                  rows<float> out, natural_lse lse) {
  extern __shared__ __align__(128) unsigned char memory[];
  for (int i = int(threadIdx.x); i < int(sizeof(typename Block::shared_storage)); i += Block::threads) memory[i] = 0xff;
  Block block(arguments, *reinterpret_cast<typename Block::shared_storage*>(memory));
  const int item = int(blockIdx.x), kv_head = int(blockIdx.y);
  for (int first = 0;; first += 8) {
    const auto got = block.attend(item, kv_head, first);
    if (got.rows == 0) break;
    const auto query = [&](int row) { return items[item].q_row + (first + row) / group; };
    const auto head = [&](int row) { return kv_head * group + (first + row) % group; };
    for (int i = int(threadIdx.x); i < got.rows * out.dim; i += Block::threads)
      out.at(query(i / out.dim), head(i / out.dim))[i % out.dim] = got.row(i / out.dim)[i % out.dim];
    const int row = int(threadIdx.x);
    if (row < got.rows) lse.at(query(row), head(row)) = got.lse(row);
  }
}

// Lengths around a step's edges; sequences without tokens, queries without keys, and padding.
std::vector<prompt> ragged(bool own_queries) {
  std::vector<prompt> batch = {{}, {0, 1}, {14, 1}, {15, 1}, support::padded, {16, 1}, {999, 1}};
  if (!own_queries) batch.push_back({0, 0, 1}), batch.push_back({9, 0, 1});
  return batch;
}
std::vector<prompt> with_queries(bool own_queries) {
  std::vector<prompt> batch = {{0, 3}, {13, 4}, {990, 5}, {200, 0}, {300, 2}};
  if (!own_queries) batch.push_back({0, 2, 4}), batch.push_back({0, 0, 3});
  return batch;
}

template <class Q, int Warps, class Policy, class Variant>
std::string wrong_blocks(const Policy& policy, const support::attend_shape& shape, const tried<Variant>& t) {
  using text_type = support::filled_cache<Policy>;
  const text_type text(policy, shape);
  support::trial<Q, float, text_type, Variant> one(text, text_type::kept(policy), shape, t);
  using block = block_attention<std::remove_cvref_t<decltype(one.view())>, Variant, Q, Warps>;
  const typename block::arguments arguments =
      block::arguments::of(one.attention(), one.view(), one.step(), one.q().read());
  const auto run = [&] {
    one.poison();
    detail::launch(gpu(), blocks_kernel<block>, dim3(unsigned(one.step().size), unsigned(shape.kv_heads)),
                   dim3(block::threads), sizeof(typename block::shared_storage), false, arguments, one.step().items,
                   shape.group, one.out().rows(), one.lse());
    return one.collect(one.asked().q_rows());
  };
  const support::answers got = run();
  const std::string wrong = one.wrong(got);
  if (!wrong.empty()) return wrong;
  return run().same_as(got) ? "" : one.asked().name + ": other bits when it is done again";
}

template <class Q, int Warps = 8, class Policy, class Tried = tried<>>
void check_blocks(const Policy& policy, const Tried& t = {}) {
  const bool own_queries = policy.retention.width() > 0;
  for (const int group : {1, 4, 7, 8})
    for (const bool several : {false, true}) {
      support::attend_shape shape{several ? "queries" : "decode", group == 7 ? 3 : 2, group, {}};
      shape.batch = several ? with_queries(own_queries) : ragged(own_queries);
      shape.head_gap = group == 4 ? 8 : 0, shape.token_gap = group == 8 ? 24 : 0;
      CHECK(wrong_blocks<Q, Warps>(policy, shape, t) == "");
    }
}

}  // namespace

TEST_CASE("block attention: codes that are multiplied as they lie", "[attention][gpu]") {
  support::require_gpu();
  check_blocks<bfloat16>(policy<paged<16>, bf16<128>>());
  check_blocks<bfloat16, 4>(policy<paged<16>, rotated<q8<128>>>());
}

TEST_CASE("block attention: sinks, a tail and a window", "[attention][gpu]") {
  support::require_gpu();
  check_blocks<float>(policy<contiguous, q4<64>, q4<64>, keep_all, 4, 32>());
  check_blocks<bfloat16>(policy<paged<16>, e4m3<96>, e4m3<96>, window<50>>());
}

TEST_CASE("block attention: codes in groups, which are decoded, and a learned sink", "[attention][gpu]") {
  support::require_gpu();
  std::vector<float> logits;
  for (int head = 0; head < 21; ++head) logits.push_back(float(head % 7) - 2);
  auto both = compose(causal{}, sink_logit{logits.data()});
  tried<decltype(both)> t{both};
  t.arrays = {support::block_of(logits)};
  t.means.sink = [&](int head) { return double(logits[std::size_t(head)]); };
  check_blocks<float16>(policy<paged<16>, q8<64, 32>>(), t);
}

TEST_CASE("block attention: what it is given is looked at", "[attention][gpu]") {
  support::require_gpu();
  using kv = policy<paged<16>, bf16<128>>;
  const support::attend_shape shape{"wrong", 2, 4, {{20, 1}}};
  const support::filled_cache<kv> text(kv(), shape);
  const support::trial<bfloat16, float, support::filled_cache<kv>, causal> one(text, text.kept(kv()), shape);
  using block = block_attention<std::remove_cvref_t<decltype(one.view())>, causal, bfloat16>;
  rows<const bfloat16> q = one.q().read();
  q.heads = 4;
  CHECK_THROWS_WITH(block::arguments::of(one.attention(), one.view(), one.step(), q),
                    containing("Q has 4 heads; the step is planned for 8"));
  const attention<causal> endless(causal(), INFINITY);
  CHECK_THROWS_WITH(block::arguments::of(endless, one.view(), one.step(), one.q().read()),
                    containing("a finite number is needed"));
}
