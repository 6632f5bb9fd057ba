#include "support/attend_gpu.cuh"

#include <kvilt/attention/alibi.hpp>
#include <kvilt/attention/sink_logit.hpp>
#include <kvilt/attention/soft_cap.hpp>
#include <kvilt/attention/tree_mask.hpp>
#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <limits>

// Sums of the columns of attention's matrix on the device, against double precision over what the cache's bytes say.

namespace {

using namespace kvilt;
using support::attend_shape, support::containing, support::kept_by, support::prompt, support::tried, support::trial;

constexpr float untouched = 0.125f;  // what is there before anything is added
constexpr int counted[] = {all_queries, 1, 3};
constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// What each query gives to the rows that are kept: log-sum-exps, and sums over the last so many queries of each item.
class oracle_columns {
 public:
  oracle_columns(const support::attention_case& c, idx sequences, int room)
      : c_(c),
        room_(room),
        lse_(std::size_t(c.q_rows() * c.shape.q_heads()), -std::numeric_limits<float>::infinity()),
        kept_(std::size_t(sequences * c.shape.kv_heads * room), false) {
    for (std::vector<double>& sums : sums_) sums.assign(kept_.size(), 0.0);
    for (const step_item& item : c.items)
      for (int head = 0; head < c.shape.kv_heads && item.queries > 0; ++head) add(item, head);
  }

  const std::vector<float>& lse() const { return lse_; }  // [q_rows][q heads]

  // Where `got` [sequences][kv heads][room] is not what was there and the sums over `counted[which]` queries, in words.
  std::string wrong(const std::vector<float>& got, int which) const {
    const double relative = c_.kept.within > 1e-3 ? 1e-2 : 2e-3;  // of queries that are rounded to 16-bit floats
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double want = sums_[which][i], number = double(got[i]) - double(untouched);
      const bool same = !kept_[i]          ? got[i] == untouched
                        : std::isnan(want) ? std::isnan(number)
                                           : std::abs(number - want) <= 1e-5 + relative * want;
      if (!same)
        return c_.name + ": the last " + std::to_string(counted[which]) + " queries, sequence " +
               std::to_string(i / std::size_t(c_.shape.kv_heads * room_)) + ", head " +
               std::to_string(i / std::size_t(room_) % std::size_t(c_.shape.kv_heads)) + ", key " +
               std::to_string(i % std::size_t(room_)) + ": " + std::to_string(number) + ", not " +
               (kept_[i] ? std::to_string(want) : "anybody's");
    }
    return {};
  }

 private:
  void add(const step_item& item, int kv_head) {
    const support::kept_rows rows = c_.rows(item, kv_head);
    const std::size_t first = std::size_t(idx(item.sequence) * c_.shape.kv_heads + kv_head) * std::size_t(room_);
    const int keys = std::min(int(rows.positions.size()), room_), group = c_.shape.group;
    for (int k = 0; k < keys; ++k) kept_[first + std::size_t(k)] = true;
    for (int query = 0; query < item.queries; ++query)
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const where w{item.sequence, head, kv_head, query, item.query_position(query), 0};
        const std::vector<double> weights = weights_of(rows, w, std::size_t(item.q_row + query));
        for (int which = 0; which < 3; ++which)
          for (int k = 0; k < keys && query >= item.queries - std::min(item.queries, counted[which]); ++k)
            sums_[which][first + std::size_t(k)] += weights[std::size_t(k)];
      }
  }
  // Of the rows to one query, row `q_row` of the step's.
  std::vector<double> weights_of(const support::kept_rows& rows, where w, std::size_t q_row) {
    const std::size_t dim = std::size_t(c_.kept.k_dim),
                      row = q_row * std::size_t(c_.shape.q_heads()) + std::size_t(w.q_head);
    const double scale = c_.shape.scale != 0 ? double(c_.shape.scale) : 1 / std::sqrt(double(dim));
    const double sink = c_.means.sink ? c_.means.sink(w.q_head) : minus_infinity;
    std::vector<double> weights(rows.positions.size());
    std::vector<bool> hidden(weights.size());
    double high = sink;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      w.k_position = rows.positions[k];
      const bool left =
          c_.kept.width > 0 && w.k_position >= c_.kept.sinks && w.q_position - w.k_position >= c_.kept.width;
      hidden[k] = left || !c_.means.keep(w);
      if (hidden[k]) continue;
      std::vector<double> key(rows.k.begin() + std::ptrdiff_t(k * dim), rows.k.begin() + std::ptrdiff_t((k + 1) * dim));
      // NOTE: turning a query by an angle is turning the key by the angle back.
      const idx in_cache = std::min<idx>(w.q_position, c_.kept.sinks + c_.kept.width - 1);
      if (c_.means.rope_base > 0 && w.k_position < c_.kept.sinks && in_cache < w.q_position)
        support::turn(key, w.q_position - in_cache, int(dim), c_.means.rope_base, false);
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) dot += double(c_.q[row * dim + d]) * key[d];
      weights[k] = c_.means.score(w, scale * dot);
      high = std::max(high, weights[k]);
    }
    double sum = sink == minus_infinity ? 0 : std::exp(sink - high);
    bool any = sum > 0;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      if (hidden[k]) continue;
      weights[k] = std::exp(weights[k] - high);
      sum += weights[k];
      any = true;
    }
    if (any) lse_[row] = float(high + std::log(sum));
    for (std::size_t k = 0; k < weights.size(); ++k) weights[k] = hidden[k] ? 0 : weights[k] / sum;
    return weights;
  }

  const support::attention_case& c_;
  int room_;
  std::vector<float> lse_;
  std::vector<bool> kept_;       // [sequences][kv heads][room]: is there such a key of a sequence that asks?
  std::vector<double> sums_[3];  // the same, of the last `counted` queries
};

// Rows of a view's tables that a step may name, and its longest sequence.
idx sequences_of(const support::attention_case& c) {
  idx most = 1;
  for (const step_item& item : c.items) most = std::max<idx>(most, item.sequence + 1);
  return most;
}
int longest_of(const support::attention_case& c) {
  idx most = 0;
  for (const step_item& item : c.items) most = std::max<idx>(most, item.n.after);
  return int(most);
}

// The sums of one trial on the device, with gaps between their rows.
template <class Trial>
class device_columns {
 public:
  device_columns(Trial& one, int room)
      : one_(one),
        sequences_(sequences_of(one.asked())),
        room_(room),
        mass_(sequences_, one.asked().shape.kv_heads, room, 5, 3) {
    poison();
  }

  oracle_columns right() const { return oracle_columns(one_.asked(), sequences_, room_); }
  rows<float> there() const { return mass_.rows(); }
  void put_lse(const std::vector<float>& lse) const {
    const std::size_t width = std::size_t(one_.asked().shape.q_heads()) * sizeof(float);
    if (lse.empty()) return;
    support::must(cudaMemcpy2D(one_.lse().data, std::size_t(one_.lse().row_stride) * sizeof(float), lse.data(), width,
                               width, lse.size() * sizeof(float) / width, cudaMemcpyHostToDevice),
                  "log-sum-exps");
  }
  void poison() const {
    mass_.poison();
    std::vector<float> numbers(std::size_t(sequences_ * one_.asked().shape.kv_heads * room_), untouched);
    mass_.put(numbers);
  }
  void launch(const gpu& exec, int last = all_queries) const {
    column_mass(exec, one_.attention(), one_.view(), one_.step(), one_.q().read(), one_.lse(), there(), last);
  }
  // Packed: [sequences][kv heads][room].
  std::vector<float> collect(std::string& wrong) const {
    support::must(cudaGetLastError(), "a launch");
    support::must(cudaDeviceSynchronize(), "a kernel");
    return mass_.get(wrong, sequences_);
  }
  std::vector<float> run(std::string& wrong, int last, const gpu& exec = {}) const {
    poison();
    launch(exec, last);
    return collect(wrong);
  }

 private:
  Trial& one_;
  idx sequences_;
  int room_;
  support::device_rows<float> mass_;
};

// What is wrong with the sums over one text, in words; empty if nothing. Done again, over other scratch, and beginning
// early they have the same bits.
template <class Q, class Text, class V, class P>
std::string wrong_columns(const Text& text, const kept_by& kept, const attend_shape& shape, const tried<V, P>& t) {
  trial<Q, float, Text, V, P> one(text, kept, shape, t);
  const device_columns columns(one, longest_of(one.asked()) + 3);
  const oracle_columns right = columns.right();
  columns.put_lse(right.lse());
  for (int which = 0; which < 3; ++which) {
    std::string wrong;
    const std::vector<float> got = columns.run(wrong, counted[which]);
    if (wrong.empty()) wrong = right.wrong(got, which);
    if (!wrong.empty()) return wrong;
    support::must(cudaMemset(one.step().scratch, 0x7f, one.step().scratch_bytes), "other scratch");
    if (!support::same_bits(columns.run(wrong, counted[which]), got))
      return one.asked().name + ": other bits when it is done again";
    if (!support::same_bits(columns.run(wrong, counted[which], gpu().with_early_reads()), got))
      return one.asked().name + ": other bits when it reads early";
    if (!wrong.empty()) return wrong;
  }
  return {};
}

// Lengths around a step's edges, sequences without tokens, queries without keys, and padding; rows of one unit and of
// many; tokens without queries, and queries older than the step.
std::vector<attend_shape> shapes_of(int number, bool own_queries) {
  constexpr int groups[] = {4, 1, 8, 7, 16}, heads[] = {2, 3, 1, 8};
  std::vector<attend_shape> all(4);
  all[0].batch = {{}, {0, 1}, {14, 1}, {15, 1}, support::padded, {16, 1}, {63, 1}, {999, 1}, {32, 1}};
  all[1].batch = {{0, 3}, {13, 4}, {990, 5}, {200, 0}, {300, 2}, {44, 1, 0}};
  all[2].batch = {{40, 20}, {7, 1}, {0, 33}, support::padded, {500, 6}, {}};
  all[3].batch = {{}, {}, support::padded};
  if (!own_queries) {
    all[0].batch.insert(all[0].batch.end(), {{0, 0, 1}, {9, 0, 1}});
    all[1].batch.insert(all[1].batch.end(), {{0, 2, 4}, {0, 0, 3}});
  }
  constexpr const char* names[] = {"decode", "queries", "chunks", "nothing"};
  for (int i = 0; i < 4; ++i) {
    attend_shape& s = all[std::size_t(i)];
    s.what = names[i], s.group = groups[(number + i) % 5], s.kv_heads = heads[(number + 2 * i) % 4];
    s.head_gap = i % 2 == 0 ? 8 : 0, s.token_gap = i == 1 ? 24 : 0;
    s.lengths_on_device = (number + i) % 2 == 0;
  }
  return all;
}

template <class Q = float, class Policy, class Tried = tried<>>
void check_columns(int number, const Policy& policy, const Tried& t = {}) {
  const kept_by kept = support::filled_cache<Policy>::kept(policy);
  rope turn{};
  if constexpr (requires { t.positions.turn; }) turn = t.positions.turn;
  for (const attend_shape& shape : shapes_of(number, t.own_queries || kept.width > 0)) {
    const support::filled_cache<Policy> text(policy, shape, turn);
    CHECK(wrong_columns<Q>(text, kept, shape, t) == "");
  }
}

using kv = policy<paged<16>, bf16<64>>;
using cached = support::filled_cache<kv>;

}  // namespace

TEST_CASE("column_mass: 16-bit keys on the device", "[attention][gpu]") {
  support::require_gpu();
  check_columns<bfloat16>(0, policy<contiguous, bf16<128>>());
  check_columns<float16>(1, policy<paged<16>, fp16<64>>());
  check_columns(2, policy<paged<1>, bf16<40>, fp16<72>>());
  check_columns<bfloat16>(3, policy<paged<16>, bf16<256>, e4m3<64>>());
}

TEST_CASE("column_mass: 8-bit keys on the device", "[attention][gpu]") {
  support::require_gpu();
  check_columns<bfloat16>(4, policy<paged<1>, e4m3<128>>());
  check_columns(5, policy<paged<16>, q8<128>>());
  check_columns<bfloat16>(6, policy<contiguous, rotated<q8<80>>, bf16<64>>());
  check_columns(7, policy<paged<64>, e4m3_static<64>>());
}

TEST_CASE("column_mass: 4-bit keys on the device", "[attention][gpu]") {
  support::require_gpu();
  check_columns<bfloat16>(8, policy<paged<16>, q4<128>>());
  check_columns(9, policy<paged<3>, rotated<q4<64>>, q8<96>>());
}

TEST_CASE("column_mass: keys or values that are decoded on the device", "[attention][gpu]") {
  support::require_gpu();
  check_columns(10, policy<contiguous, fp32<64>>());
  check_columns<bfloat16>(11, policy<paged<16>, q8<128, 32>>());
  check_columns<bfloat16>(12, policy<paged<16>, q8<64>, q2<64, 32>>());
}

TEST_CASE("column_mass: sinks, windows and tails on the device", "[attention][gpu]") {
  support::require_gpu();
  using ringed = policy<contiguous, q8<64>, q8<64>, window<>, 3, 6>;
  check_columns(13, ringed(64, window<>(30)));
  check_columns<bfloat16>(14, ring<bf16<64>, bf16<64>, dynamic, 4>(64, window<dynamic, 4>(48)));
  check_columns<bfloat16>(15, policy<paged<16>, q4<128>, q4<128>, keep_all, 4, 64>());
  check_columns(16, policy<paged<64>, q4_channel<64>, q4<64>, keep_all, 4, 32>());
}

TEST_CASE("column_mass: sinks and window as one text on the device", "[attention][gpu]") {
  support::require_gpu();
  const rope_table table(64, 100.0, rope_pairs::half_split);
  tried<causal, cache_positions> t;
  t.positions = {rope(table)};
  t.means.rope_base = 100;
  t.arrays = {{reinterpret_cast<const unsigned char*>(t.positions.turn.turns), sizeof(t.positions.turn.turns[0]) * 32}};
  check_columns(19, ring<bf16<64>, bf16<64>, dynamic, 4>(64, window<dynamic, 4>(12)), t);
}

TEST_CASE("column_mass: keys of any dim in pages of any size on the device", "[attention][gpu]") {
  support::require_gpu();
  using open = policy<paged<>, q8<>>;
  check_columns<bfloat16>(17, open(q8<>(72), q8<>(40), keep_all(), paged<>(19)));
  check_columns<bfloat16>(18, open(q8<>(128), q8<>(192), keep_all(), paged<>(8)));
}

TEST_CASE("column_mass: what the variant makes of the scores on the device", "[attention][gpu]") {
  support::require_gpu();
  SECTION("capped scores") {
    auto both = compose(causal{}, soft_cap{1.5f});
    tried<decltype(both)> t{both};
    t.means.score = [](const where&, double s) { return 1.5 * std::tanh(s / 1.5); };
    check_columns(0, kv(), t);
  }
  SECTION("ALiBi") {
    const alibi_table table(128);
    const std::vector<float> slopes(table.slopes().begin(), table.slopes().end());
    auto both = compose(causal{}, alibi{slopes.data()});
    tried<decltype(both)> t{both};
    t.arrays = {support::block_of(slopes)};
    t.means.score = [&](const where& w, double s) {
      return s - double(slopes[std::size_t(w.q_head)]) * double(w.q_position - w.k_position);
    };
    check_columns(1, kv(), t);
  }
  SECTION("a sink, whose share is nobody's") {
    std::vector<float> logits;
    for (int head = 0; head < 128; ++head) logits.push_back(float(head % 7) - 2);
    auto both = compose(causal{}, sink_logit{logits.data()});
    tried<decltype(both)> t{both};
    t.arrays = {support::block_of(logits)};
    t.means.sink = [&](int head) { return double(logits[std::size_t(head)]); };
    check_columns(2, kv(), t);
  }
  SECTION("every key") {
    check_columns(3, kv(), tried<full>{{}, support::meaning()});
  }
  SECTION("a tree, which asks for a query's number in the step") {
    std::vector<int> parents = {-1};
    while (parents.size() < 33) parents.push_back((int(parents.size()) - 1) / 2);
    const tree_table table(int(parents.size()), parents);
    const tree_mask tree = table;
    tried<tree_mask> t{tree};
    t.arrays = {support::block_of(table.ancestors())};
    t.own_queries = true;
    t.means.keep = [&](const where& w) {
      const idx token = w.k_position - (w.q_position - w.q_index);
      int above = w.q_index;
      while (above > token && above >= 0) above = parents[std::size_t(above)];
      return token < 0 || above == token;
    };
    check_columns(4, kv(), t);
  }
}

TEST_CASE("column_mass: a NaN on the device stays in its sequence", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"a NaN in sequence 1", 2, 4, {{40, 5}, {40, 5}, {45, 1}}};
  for (const idx token : {20, 44}) {
    const cached text(kv(), shape, {}, {1, token});
    CHECK(wrong_columns<float>(text, cached::kept(kv()), shape, tried<>()) == "");
  }
}

TEST_CASE("column_mass: it is e^(score - log-sum-exp) on the device, of any log-sum-exp", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"shifted", 2, 4, {{40, 2}, {7, 1}}};
  const cached text(kv(), shape);
  trial<float, float, cached, causal> one(text, cached::kept(kv()), shape);
  const device_columns columns(one, longest_of(one.asked()) + 3);
  std::string wrong;
  const std::vector<float> lse = columns.right().lse();
  columns.put_lse(lse);
  const std::vector<float> plain = columns.run(wrong, all_queries);
  const auto run_with = [&](const auto& change) {
    std::vector<float> other = lse;
    for (float& x : other) x = change(x);
    columns.put_lse(other);
    return columns.run(wrong, all_queries);
  };
  for (const float by : {1.5f, -6.0f}) {
    const std::vector<float> got = run_with([by](float x) { return x + by; });
    for (std::size_t k = 0; k < got.size(); ++k)
      CHECK_THAT(got[k] - untouched, Catch::Matchers::WithinRel((plain[k] - untouched) * std::exp(-by), 1e-3f) ||
                                         Catch::Matchers::WithinAbs(0, 1e-6));
  }
  const std::vector<float> high = run_with([](float x) { return x - 120; });
  for (std::size_t k = 0; k < high.size(); ++k) CHECK((high[k] == untouched) == (plain[k] == untouched));
  const std::vector<float> none = run_with([](float) { return -std::numeric_limits<float>::infinity(); });
  CHECK(none == std::vector<float>(plain.size(), untouched));
  CHECK(wrong == "");
}

TEST_CASE("column_mass: of keys for which there is no room nothing is written on the device", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"little room", 2, 4, {{40, 3}, {7, 1}}};
  const cached text(kv(), shape);
  trial<float, float, cached, causal> one(text, cached::kept(kv()), shape);
  const device_columns columns(one, 37);
  const oracle_columns right = columns.right();
  columns.put_lse(right.lse());
  std::string wrong;
  const std::vector<float> got = columns.run(wrong, all_queries);
  CHECK(wrong == "");
  CHECK(right.wrong(got, 0) == "");
}

TEST_CASE("column_mass: attention and sums follow each other on the device without waiting", "[attention][gpu]") {
  support::require_gpu();
  // Rows of one unit, and of several, whose plan lies where attention's results do.
  for (const int queries : {1, 20}) {
    const attend_shape shape{"layers", 2, 4, {{2000, queries}, {33, 4}, {}, {900, 2}, {5, 1}}};
    const cached text(kv(), shape);
    trial<float, float, cached, causal> one(text, cached::kept(kv()), shape);
    const device_columns columns(one, longest_of(one.asked()) + 3);
    const auto layers = [&](const gpu& exec, bool waits) {
      one.poison(), columns.poison();
      support::must(cudaDeviceSynchronize(), "poison");
      for (int layer = 0; layer < 12; ++layer) {
        one.launch(exec);
        columns.launch(exec);
        if (waits) support::must(cudaDeviceSynchronize(), "a layer");
      }
      std::string wrong;
      std::vector<float> sums = columns.collect(wrong);
      CHECK(wrong == "");
      CHECK(one.wrong(one.collect(one.asked().q_rows())) == "");
      return sums;
    };
    const std::vector<float> want = layers(gpu(), true);
    CHECK(support::same_bits(layers(gpu(), false), want));
    CHECK(support::same_bits(layers(gpu().with_early_reads(), false), want));
  }
}

TEST_CASE("column_mass: a captured graph is right while sequences grow, shrink and end on the device",
          "[attention][gpu]") {
  support::require_gpu();
  for (const int most : {4, 12}) {  // rows of one unit, and of several
    const attend_shape shape{"replays", 2, 4, {{1000 - most, most}, {296, 4}, {46, 4}, {96, 4}, {1, 4}}};
    const cached text(kv(), shape);
    trial<float, float, cached, causal> one(text, cached::kept(kv()), shape);
    const device_columns columns(one, 1003);
    cudaStream_t on = nullptr;
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t replays = nullptr;
    support::must(cudaStreamCreate(&on), "a stream");
    support::must(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal), "a capture");
    one.plan(gpu(on));
    columns.launch(gpu(on));
    support::must(cudaStreamEndCapture(on, &captured), "a capture's end");
    support::must(cudaGraphInstantiate(&replays, captured, 0), "a graph");
    const std::vector<std::vector<prompt>> steps = {{{3, 1}, {0, 1}, {9, 2}, {16, 1}, {0, 0}},
                                                    {{15, 1}, {}, support::padded, {60, 4}, {0, 1}},
                                                    {{}, {}, {}, {}, {}},
                                                    {{1000 - most, most}, {296, 4}, {46, 4}, {96, 4}, {1, 4}},
                                                    {{500, 1, 0}, {16, 1}, {31, 2, 1}, {0, 4}, support::padded}};
    for (const std::vector<prompt>& batch : steps) {
      idx kv_row = 0, q_row = 0;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        one.asked().items[i] = support::item_of(batch[i], text.items()[i].sequence, kv_row, q_row);
        kv_row += batch[i].fresh, q_row += batch[i].asked();
      }
      one.batch().put(one.asked().items);
      const oracle_columns right = columns.right();
      columns.put_lse(right.lse());
      columns.poison();
      support::must(cudaDeviceSynchronize(), "poison");
      support::must(cudaGraphLaunch(replays, on), "a graph's launch");
      std::string wrong;
      const std::vector<float> got = columns.collect(wrong);
      CHECK(wrong == "");
      CHECK(right.wrong(got, 0) == "");
    }
    support::must(cudaGraphExecDestroy(replays), "a graph's end");
    support::must(cudaGraphDestroy(captured), "a graph's end");
    support::must(cudaStreamDestroy(on), "a stream's end");
  }
}

TEST_CASE("column_mass: what no kernel takes is refused on the device before anything is written", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"refused", 2, 4, {{30, 30}, {5, 1}}};
  const cached text(kv(), shape);
  trial<float, float, cached, causal> one(text, cached::kept(kv()), shape);
  const device_columns columns(one, longest_of(one.asked()) + 3);
  const rows<float> fine = columns.there();
  const auto call = [&](const device_step& s, rows<const float> q, natural_lse lse, rows<float> mass, int last = 1) {
    column_mass(gpu(), one.attention(), one.view(), s, q, lse, mass, last);
  };
  const auto with = [](auto x, const auto& change) { return change(x), x; };
  const rows<const float> q = one.q().read();
  const device_step& s = one.step();
  CHECK_THROWS_WITH(call(s, q, one.lse(), fine, -1), containing("the last -1 queries"));
  CHECK_THROWS_WITH(call(s, with(q, [](auto& x) { x.heads = 4; }), one.lse(), fine), containing("Q has 4 heads"));
  CHECK_THROWS_WITH(call(s, q, {}, fine), containing("log-sum-exps of 31 rows is null"));
  CHECK_THROWS_WITH(call(s, q, {one.lse().data, 7}, fine), containing("rows of log-sum-exps are 7 apart"));
  CHECK_THROWS_WITH(call(s, q, one.lse(), with(fine, [](auto& x) { x.heads = 4; })),
                    containing("column sums are of 4 heads; the cache has 2"));
  CHECK_THROWS_WITH(call(s, q, one.lse(), with(fine, [](auto& x) { x.data = nullptr; })),
                    containing("the column sums of 2 sequences is null"));
  CHECK_THROWS_WITH(call(s, q, one.lse(), with(fine, [](auto& x) { x.head_stride = 3; })),
                    containing("lie on each other"));
  CHECK_THROWS_WITH(call(s, q, one.lse(), with(fine, [](auto& x) { x.dim = -1; })), containing("-1 column sums"));
  CHECK_THROWS_WITH(call(with(s, [](auto& x) { x.scratch_bytes = 100; }), q, one.lse(), fine),
                    containing("the step's workspace leaves 100 bytes for the work of column sums"));
  CHECK_THROWS_WITH((column_mass(gpu(), attention<causal>({}, NAN), one.view(), s, q, one.lse(), fine)),
                    containing("scores are scaled by nan"));
  CHECK_NOTHROW(call(s, q, one.lse(), fine, 0));
  std::string wrong;
  const std::vector<float> got = columns.collect(wrong);
  CHECK(wrong == "");
  CHECK(got == std::vector<float>(got.size(), untouched));
}
