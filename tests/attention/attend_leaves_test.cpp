#include "support/catch.hpp"
#include "support/subject.hpp"
#include "support/tensors.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <algorithm>
#include <atomic>
#include <deque>

namespace {

using namespace kvilt;
using namespace support;
using kvilt::detail::host_tile;

constexpr int heads = 2, group = 3, q_heads = heads * group, tokens = 5000, most_new = 500;
constexpr cache_shape shape = {
    .layers = 1, .kv_heads = heads, .tokens = 5200, .max_length = tokens + 9, .max_step = most_new};

// A pool that remembers the longest list of items that it was given.
class watched_pool final : public executor {
 public:
  explicit watched_pool(int threads) : pool_(threads) {}
  int workers() const override { return pool_.workers(); }
  void run(idx items, task body, void* context) override {
    most = std::max(most, items);
    pool_.run(items, body, context);
  }
  idx most = 0;

 private:
  thread_pool pool_;
};

// A text of several leaves in a cache, whose last step of `count` tokens is there to be attended.
class long_text {
 public:
  // Where `nan` is set the last token's key and value are NaN.
  long_text(subject& owner, int count, bool nan = false)
      : owner_(owner),
        count_(count),
        pool_(7),
        k_(random_tensor(1, tokens + 9, heads, owner.k_dim)),
        v_(random_tensor(2, tokens + 9, heads, owner.v_dim)),
        q_(random_tensor(3, tokens + 9, q_heads, owner.k_dim)),
        workspace_(owner.workspace_bytes(host(pool_), 1)) {
    name_ = owner.open();
    owner.reserve(name_, tokens + 9);
    if (nan) std::fill(k_.data.end() - heads * owner.k_dim, k_.data.end(), NAN);
    if (nan) std::fill(v_.data.end() - heads * owner.v_dim, v_.data.end(), NAN);
    const int before = tokens + 9 - count;
    for (int first = 0; first < before; first += most_new) {
      begin(first, std::min(most_new, before - first));
      owner.commit(step_, std::vector<int>{step_.items[0].new_tokens});
    }
    begin(before, count);
  }
  ~long_text() {
    owner_.cancel();
    owner_.close(name_);
  }

  // Makes one query of the step NaN.
  void poison_query(int i) { std::fill_n(&q_.data[query_at(i)], q_heads * owner_.k_dim, NAN); }

  // Outputs, then log-sum-exps; `states` of partial results have room beside what workers need, -1: as planned.
  std::vector<float> attend(const host& exec, int states = -1) {
    const idx least = idx(exec.workers()) * idx(host_tile::worker_bytes(owner_.k_dim, owner_.v_dim));
    const int block = std::min(count_ * group, int(host_tile::rows));
    step s = step_;  // it may be made by hand
    if (states >= 0) s.scratch_bytes = std::size_t(least + states * host_tile::state_bytes(block, owner_.v_dim));
    REQUIRE(s.scratch_bytes <= step_.scratch_bytes);
    std::fill_n(s.scratch, step_.scratch_bytes, static_cast<unsigned char>(0xff));
    std::vector<float> out(std::size_t(count_ * q_heads * (owner_.v_dim + 1)), NAN);
    float* const lse = out.data() + count_ * q_heads * owner_.v_dim;
    owner_.attend(exec, 0, s, packed_rows<const float>(&q_.data[query_at(0)], q_heads, owner_.k_dim),
                  packed_rows(out.data(), q_heads, owner_.v_dim), {lse, q_heads});
    CHECK(std::all_of(s.scratch + s.scratch_bytes, step_.scratch + step_.scratch_bytes,
                      [](unsigned char b) { return b == 0xff; }));
    return out;
  }
  // Of one query.
  std::vector<float> answer_of(const std::vector<float>& all, int i) const {
    const int row = q_heads * owner_.v_dim;
    std::vector<float> one(all.begin() + i * row, all.begin() + (i + 1) * row);
    const auto lse = all.begin() + count_ * row + i * q_heads;
    one.insert(one.end(), lse, lse + q_heads);
    return one;
  }
  int tasks() const { return heads * ((count_ * group + host_tile::rows - 1) / host_tile::rows); }

  // Where the answer to query i is not the oracle's.
  std::string wrong(const std::vector<float>& all, int i, const host& exec) const {
    const idx before = tokens + 9 - count_, position = before + i;
    const std::size_t k_dim = std::size_t(owner_.k_dim), v_dim = std::size_t(owner_.v_dim);
    const std::vector<float> one = answer_of(all, i);
    std::deque<std::vector<double>> kept;
    std::vector<oracle_key> keys;  // of a group of query heads
    for (int head = 0; head < q_heads; ++head) {
      if (head % group == 0) kept.clear(), keys.clear();
      for (idx t = idx(keys.size()); t < tokens + 9; ++t) {
        const bool in_tail = owner_.tail > 0 && t >= before + 1 - owner_.tail;
        const kept_as how = t < owner_.exact_sinks || in_tail ? kept_as::exact
                            : owner_.tail > 0                 ? kept_as::body_of_exact
                                                              : kept_as::body;
        const auto& k = kept.emplace_back(owner_.kept_k(k_.row(t, head / group).data(), how));
        const auto& v = kept.emplace_back(owner_.kept_v(v_.row(t, head / group).data(), how));
        keys.push_back({k, v, t});
      }
      const oracle_state want = oracle(widened(q_.row(position, head)), keys, 1 / std::sqrt(double(k_dim)), v_dim,
                                       band(position, owner_.width ? owner_.width : 1 << 30, owner_.sinks));
      const tolerance close = within(exec, owner_.integers);
      std::string is = difference(std::span(one).subspan(std::size_t(head) * v_dim, v_dim), want.out, close);
      if (is.empty())
        is = difference(std::span(one).subspan(q_heads * v_dim + std::size_t(head), 1), std::vector<double>{want.lse},
                        close);
      if (!is.empty()) return "head " + std::to_string(head) + ": " + is;
    }
    return {};
  }

 private:
  std::size_t query_at(int i) const { return std::size_t((tokens + 9 - count_ + i) * q_heads * owner_.k_dim); }
  void begin(int first, int count) {
    step_ = owner_.begin(host(pool_), {&name_, 1}, {&count, 1}, workspace_);
    owner_.append(host(), 0, step_,
                  packed_rows<const float>(&k_.data[std::size_t(first * heads * owner_.k_dim)], heads, owner_.k_dim),
                  packed_rows<const float>(&v_.data[std::size_t(first * heads * owner_.v_dim)], heads, owner_.v_dim));
  }

  subject& owner_;
  int count_;
  watched_pool pool_;
  tensor<float> k_, v_, q_;
  std::vector<unsigned char> workspace_;
  sequence name_;
  step step_;
};

// How work was shared out, and how much room there was, shows in no bit; and the answers are right.
template <class Policy>
void sharing_does_not_show(const Policy& kv) {
  const auto owner = make_subject(kv, shape, 0xff);
  for (const int count : {1, 9}) {
    long_text text(*owner, count);
    for (const instruction_set set : instruction_sets()) {
      INFO(owner->name << ", " << name_of(set) << ", " << count << " queries");
      const std::vector<float> want = text.attend(host().with(set));
      CHECK(text.wrong(want, count - 1, host().with(set)) == "");
      CHECK(same_bits(text.attend(host().with(set)), want));
      for (const int workers : {1, 2, 3, 7})
        for (const int states : {-1, 0, 2 * text.tasks(), 3 * text.tasks() + 1}) {
          watched_pool pool(workers);
          INFO(workers << " workers, room for " << states << " states");
          CHECK(same_bits(text.attend(host(pool).with(set), states), want));
          // Keys were shared out, where there are workers and room for them.
          if (workers > 1) CHECK((pool.most > text.tasks()) == (states < 0 || states > 2 * text.tasks()));
        }
    }
  }
}

template <class Policy>
std::vector<std::vector<float>> answers_in_every_set(const Policy& kv, int count) {
  const auto owner = make_subject(kv, shape, 0xff);
  long_text text(*owner, count);
  std::vector<std::vector<float>> all;
  for (const instruction_set set : instruction_sets())
    all.push_back(text.answer_of(text.attend(host().with(set)), count - 1));
  return all;
}

}  // namespace

TEST_CASE("attend: long texts are shared out by leaves, and it does not show", "[attention][threads]") {
  sharing_does_not_show(policy<contiguous, fp16<>>(fp16<>(40), fp16<>(24)));
  sharing_does_not_show(policy<paged<16>, q8<>, q4<>>(q8<>(64), q4<>(40)));
  sharing_does_not_show(policy<paged<>, e4m3<>, bf16<>>(e4m3<>(24), bf16<>(40), {}, paged<>(19)));
}

TEST_CASE("attend: leaves of 16-bit sinks, body and tail", "[attention][threads]") {
  sharing_does_not_show(policy<paged<16>, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 64>(64));
  sharing_does_not_show(policy<contiguous, q8<>, q8<>, keep_all, 0, 1200>(q8<>(40), q8<>(72)));
}

TEST_CASE("attend: leaves of windows that begin far from the text's beginning", "[attention][threads]") {
  sharing_does_not_show(ring<q8<>, fp16<>>(q8<>(40), fp16<>(24), window<>(2222)));
  sharing_does_not_show(ring<fp16<>, fp16<>, dynamic, 3>(fp16<>(40), fp16<>(24), window<dynamic, 3>(1030)));
  sharing_does_not_show(policy<paged<16>, q8<>, q4<>, window<dynamic, 4>, 4, 64>(64, window<dynamic, 4>(1500)));
}

TEST_CASE("attend: pages and steps do not show in long texts", "[attention]") {
  const auto want = answers_in_every_set(policy<contiguous, q8<>, q4<>>(q8<>(64), q4<>(40)), 1);
  for (const int count : {1, 9, 30}) {
    const auto here = answers_in_every_set(policy<contiguous, q8<>, q4<>>(q8<>(64), q4<>(40)), count);
    const auto paged_here =
        answers_in_every_set(policy<paged<>, q8<>, q4<>>(q8<>(64), q4<>(40), {}, paged<>(7)), count);
    for (std::size_t i = 0; i < want.size(); ++i) {
      INFO(count << " queries, set " << i);
      CHECK(same_bits(here[i], want[i]));
      CHECK(same_bits(paged_here[i], want[i]));
    }
  }
}

TEMPLATE_TEST_CASE("attend: NaN in one query of a chunk does not show in the others", "[attention]", fp16<>, e4m3<>,
                   q8<>, q4<>) {
  const auto owner = make_subject(policy<paged<16>, TestType>(40), shape, 0xff);
  std::vector<std::vector<float>> want;
  {
    long_text text(*owner, 9);
    for (const instruction_set set : instruction_sets()) want.push_back(text.attend(host().with(set)));
  }
  // A query that is NaN, and a key and a value that the last query alone sees.
  for (const bool key : {false, true}) {
    long_text text(*owner, 9, key);
    const int bad = key ? 8 : 4;
    if (!key) text.poison_query(bad);
    std::size_t at = 0;
    for (const instruction_set set : instruction_sets()) {
      const std::vector<float> got = text.attend(host().with(set));
      INFO(owner->name << ", " << name_of(set) << (key ? ", a key" : ", a query"));
      for (int i = 0; i < 9; ++i)
        if (i != bad) CHECK(same_bits(text.answer_of(got, i), text.answer_of(want[at], i)));
      for (const float x : text.answer_of(got, bad)) CHECK(std::isnan(x));
      ++at;
    }
  }
}

TEST_CASE("attend: long rows of extreme codes are not summed beyond 32 bits", "[attention]") {
  constexpr int dim = 2048;
  for (const float one : {1.0f, -1.0f}) {
    const auto owner = make_subject(policy<contiguous, q8<>, fp32<>>(q8<>(dim), fp32<>(8)),
                                    {.layers = 1, .kv_heads = 1, .tokens = 2, .max_step = 2});
    const sequence name = owner->open();
    const int count = 2;
    owner->reserve(name, count);
    std::vector<unsigned char> workspace(owner->workspace_bytes(host(), 1));
    const step s = owner->begin(host(), {&name, 1}, {&count, 1}, workspace);
    const std::vector<float> k(2 * dim, one), v(16, 1.0f), q(2 * dim, 1.0f);
    owner->append(host(), 0, s, packed_rows<const float>(k.data(), 1, dim), packed_rows<const float>(v.data(), 1, 8));
    for (const instruction_set set : instruction_sets()) {
      std::vector<float> out(16), lse(2);
      owner->attend(host().with(set), 0, s, packed_rows<const float>(q.data(), 1, dim), packed_rows(out.data(), 1, 8),
                    {lse.data(), 1});
      INFO(name_of(set));
      CHECK(double(lse[0]) == Approx(double(one) * std::sqrt(double(dim))).epsilon(1e-3));
    }
  }
}

TEST_CASE("attend: what weights cost as integers does not gather in a rotation", "[attention]") {
  constexpr int dim = 256, count = 64;
  const auto owner = make_subject(policy<contiguous, fp32<>, rotated<q4<>>>(fp32<>(8), rotated<q4<>>(dim)),
                                  {.layers = 1, .kv_heads = 1, .tokens = count, .max_step = count});
  const sequence name = owner->open();
  owner->reserve(name, count);
  std::vector<unsigned char> workspace(owner->workspace_bytes(host(), 1));
  const step s = owner->begin(host(), {&name, 1}, {&count, 1}, workspace);
  const tensor<float> k = random_tensor(1, count, 1, 8), v = random_tensor(2, count, 1, dim),
                      q = random_tensor(3, count, 1, 8);
  owner->append(host(), 0, s, k.rows(), v.rows());
  const auto attend = [&](instruction_set set) {
    answer<> a(count, 1, dim);
    owner->attend(host().with(set), 0, s, q.rows(), a.out.rows(), a.lse_rows());
    return a.out;
  };
  const tensor<float> want = attend(instruction_set::portable);
  for (const instruction_set set : instruction_sets()) {
    const tensor<float> got = attend(set);
    double first = 0, all = 0;
    for (int i = 0; i < count; ++i)
      for (int d = 0; d < dim; ++d) {
        const double off = double(got.row(i, 0)[std::size_t(d)]) - double(want.row(i, 0)[std::size_t(d)]);
        (d == 0 ? first : all) += off * off;
      }
    INFO(name_of(set));
    // The first number is the sum of all: an error that they share would show there.
    CHECK(std::sqrt(first / count) <= 15 * std::sqrt(all / (count * (dim - 1))));
  }
}

namespace {

// A rotation that changes nothing and counts the rows that are turned.
struct counting {
  static inline std::atomic<int> rows = 0;
  static void forward(float*, int) { ++rows; }
  static void inverse(float*, int) {}
};

}  // namespace

TEST_CASE("attend: queries are read once for every leaf, and not to say whose the sums are", "[attention][threads]") {
  using kv = policy<contiguous, rotated<fp32<16>, counting>>;
  constexpr int long_text = 2 * host_tile::leaf + 100, queries = 5;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = long_text}, host_memory());
  thread_pool pool(3);
  const host exec(pool);
  const planned_step s(exec, {0}, {long_text}, {queries}, 16, 16);
  const tensor<float> k = random_tensor(1, long_text, 1, 16), q = random_tensor(2, queries, 2, 16);
  append(exec, owner.view(0), s, k.rows(), k.rows());
  answer<> shared(queries, 2, 16), alone(queries, 2, 16);
  counting::rows = 0;
  attention{causal{}}(exec, owner.view(0), s, q.rows(), shared.out.rows());
  CHECK(counting::rows == 3 * 2 * queries);
  counting::rows = 0;
  attention{causal{}}(host(), owner.view(0), s, q.rows(), alone.out.rows());
  CHECK(counting::rows == 2 * queries);
  CHECK(same_bits(shared.out.data, alone.out.data));
}
