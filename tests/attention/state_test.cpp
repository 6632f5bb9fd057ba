#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/state.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr float minus_inf = -std::numeric_limits<float>::infinity();

template <class T>
void merge_into(const tensor<T>& a, std::vector<float> lse_a, const tensor<T>& b, std::vector<float> lse_b,
                tensor<T>& out, std::vector<float>& lse) {
  const int heads = a.heads;
  merge(a.tokens(), a.rows(), {lse_a.data(), heads}, b.rows(), {lse_b.data(), heads}, out.rows(), {lse.data(), heads});
}

}  // namespace

TEST_CASE("state: keys split over two caches merge to one cache's answer", "[attention]") {
  for (const int split : {0, 1, 30, 64, 99, 100}) {
    text all(100, 2, 16, 24), part_a(std::max(split, 1), 2, 16, 24), part_b(std::max(100 - split, 1), 2, 16, 24);
    const auto fill = [&](text& part, int first, int count) {
      if (count == 0) return;
      const planned_step s(host(), {0}, {count}, {}, 16, 24);
      append(host(), part.view(), s, rows<const float>{all.k.rows().at(first, 0), 32, 16, 2, 16},
             rows<const float>{all.v.rows().at(first, 0), 48, 24, 2, 24});
    };
    fill(part_a, 0, split), fill(part_b, split, 100 - split);
    const tensor<float> q = random_tensor(9, 5, 4, 16);
    const auto attend = [&](const text& t, idx keys) {
      return t.attend(attention{full{}}, planned_step(host(), {keys}, {0}, {5}, 16, 24), q);
    };
    const answer<> whole = attend(all, 100), a = attend(part_a, split), b = attend(part_b, 100 - split);
    answer<> merged(5, 4, 24);
    merge_into(a.out, a.lse, b.out, b.lse, merged.out, merged.lse);
    INFO("split at " << split);
    CHECK(difference(merged.out.data, std::vector<double>(whole.out.data.begin(), whole.out.data.end())) == "");
    CHECK(difference(merged.lse, std::vector<double>(whole.lse.begin(), whole.lse.end())) == "");
  }
}

TEST_CASE("state: the log-sum-exp is a natural logarithm", "[attention]") {
  text one(2, 1, 8, 8);
  for (float& x : one.k.data) x = 0;
  append(host(), one.view(), planned_step(host(), {0}, {2}, {}, 8, 8), one.k.rows(), one.v.rows());
  const answer<> a =
      one.attend(attention{full{}}, planned_step(host(), {2}, {0}, {1}, 8, 8), random_tensor(9, 1, 1, 8));
  CHECK(a.lse[0] == Approx(0.6931472f));
  CHECK(merge_weights::of(0, 0).lse == Approx(0.6931472f));
}

TEST_CASE("state: an empty part is the identity, whatever its rows hold", "[attention]") {
  const tensor<float> a = random_tensor(1, 3, 2, 8);
  tensor<float> empty(3, 2, 8), out(3, 2, 8);
  for (float& x : empty.data) x = NAN;
  const std::vector<float> lse_a = {1, -200, 0, 88, -0.5f, minus_inf}, none(6, minus_inf);
  std::vector<float> lse(6);
  tensor<float> some = a;
  for (int d = 0; d < 8; ++d) some.rows().at(2, 1)[d] = 0;  // an empty row of its own
  merge_into(some, lse_a, empty, none, out, lse);
  CHECK((out.data == some.data && lse == lse_a));
  merge_into(empty, none, some, lse_a, out, lse);
  CHECK((out.data == some.data && lse == lse_a));
  merge_into(empty, none, empty, none, out, lse);
  CHECK(out.data == tensor<float>(3, 2, 8).data);
  CHECK(lse == none);
}

TEST_CASE("state: NaN is not lost in a merge", "[attention]") {
  for (const float other : {minus_inf, 0.0f}) {
    CHECK(std::isnan(merge_weights::of(NAN, other).lse));
    CHECK(std::isnan(merge_weights::of(other, NAN).lse));
    CHECK(std::isnan(merge_weights::of(NAN, other).a));
  }
}

TEST_CASE("state: parts far apart neither overflow nor vanish", "[attention]") {
  const merge_weights w = merge_weights::of(1000, 1001);
  CHECK(w.lse == Approx(1001.3132617));
  CHECK(w.a == Approx(0.2689414));
  CHECK(w.b == Approx(0.7310586));
  CHECK(merge_weights::of(-1e30f, 5).b == 1.0f);
}

TEST_CASE("state: a merge may end in its first part, in any element type", "[attention]") {
  tensor<float> a = random_tensor(1, 2, 2, 8);
  const tensor<float> b = random_tensor(2, 2, 2, 8);
  tensor<float> out(2, 2, 8);
  std::vector<float> lse_a = {0, 1, 2, 3}, lse_b = {1, 1, -1, 4}, lse(4);
  merge_into(a, lse_a, b, lse_b, out, lse);
  const auto with_types = [&](auto element, auto narrow) {
    using T = decltype(element);
    tensor<T> a_t(2, 2, 8), b_t(2, 2, 8);
    for (std::size_t i = 0; i < a.data.size(); ++i)
      a_t.data[i].bits = narrow(a.data[i]), b_t.data[i].bits = narrow(b.data[i]);
    std::vector<float> got(4);
    merge_into(a_t, lse_a, b_t, lse_b, a_t, got);
    CHECK(got == lse);
    for (std::size_t i = 0; i < a.data.size(); ++i) CHECK(load(a_t.data[i]) == Approx(out.data[i]).margin(0.02));
  };
  with_types(float16(), to_fp16);
  with_types(bfloat16(), to_bf16);
  merge_into(a, lse_a, b, lse_b, a, lse_a);
  CHECK((a.data == out.data));
}

TEST_CASE("state: what is not there is not merged", "[attention]") {
  std::vector<float> numbers(2 * 2 * 8, 1.0f), sums(4, 0.5f);
  const rows<float> x = packed_rows(numbers.data(), 2, 8), nowhere = packed_rows(static_cast<float*>(nullptr), 2, 8);
  rows<float> flat = x;
  flat.token_stride = 8;
  const natural_lse lse{sums.data(), 2}, none, narrow{sums.data(), 1};
  using support::containing;
  CHECK_THROWS_WITH(merge(2, nowhere, lse, x, lse, x, lse), containing("a result of 2 rows to be merged is null"));
  CHECK_THROWS_WITH(merge(2, x, lse, nowhere, lse, x, lse), containing("a result of 2 rows to be merged is null"));
  CHECK_THROWS_WITH(merge(2, x, lse, x, lse, nowhere, lse), containing("a result of 2 rows to be merged is null"));
  CHECK_THROWS_WITH(merge(2, x, none, x, lse, x, lse), containing("a list of log-sum-exps to be merged is null"));
  CHECK_THROWS_WITH(merge(2, x, lse, x, none, x, lse), containing("a list of log-sum-exps to be merged is null"));
  CHECK_THROWS_WITH(merge(2, x, lse, x, lse, flat, lse), containing("rows of a merged result of 8 numbers lie on"));
  CHECK_THROWS_WITH(merge(2, x, lse, x, lse, x, narrow), containing("rows of log-sum-exps are 1 apart"));
  const std::vector<float> sinks = {1, 2};
  CHECK_THROWS_WITH(merge_sink(2, nowhere, lse, sinks.data()), containing("a result of 2 rows, or its sinks is null"));
  CHECK_THROWS_WITH(merge_sink(2, x, lse, nullptr), containing("a result of 2 rows, or its sinks is null"));
  CHECK_THROWS_WITH(merge_sink(2, flat, lse, sinks.data()), containing("lie on each other"));
  CHECK_THROWS_WITH(merge_sink(2, x, narrow, sinks.data()), containing("rows of log-sum-exps are 1 apart"));
  for (const float number : numbers) REQUIRE(number == 1.0f);
  CHECK_NOTHROW(merge(0, nowhere, none, nowhere, none, nowhere, none));
  CHECK_NOTHROW(merge(2, x, lse, x, lse, x, none));
}
