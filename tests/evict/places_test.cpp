#include "support/catch.hpp"
#include "support/random.hpp"

#include <kvilt/evict/places.hpp>

#include <algorithm>
#include <limits>
#include <numeric>

namespace {

using namespace kvilt;

std::vector<int> best(const std::vector<float>& scores, idx count, protected_rows ends) {
  std::vector<int> places(std::size_t(count), -1);
  best_places(scores, ends, places);
  return places;
}

}  // namespace

TEST_CASE("places: those that are protected, then the best, of equal ones the newest", "[evict]") {
  const std::vector<float> scores = {0, 5, 1, 5, 5, 2, 0, 9, 1};
  CHECK(best(scores, 3, {0, 0}) == std::vector<int>{3, 4, 7});
  CHECK(best(scores, 3, {1, 1}) == std::vector<int>{0, 7, 8});
  CHECK(best(scores, 5, {1, 1}) == std::vector<int>{0, 3, 4, 7, 8});
  CHECK(best(scores, 2, {1, 1}) == std::vector<int>{0, 8});
  CHECK(best(scores, 4, {4, 0}) == std::vector<int>{0, 1, 2, 3});
  CHECK(best(scores, 9, {2, 40}).size() == 9);
  CHECK(best({}, 0, {4, 32}).empty());
  // Without a word on any: sinks and window.
  CHECK(best(std::vector<float>(20, 0.5f), 8, {3, 0}) == std::vector<int>{0, 1, 2, 15, 16, 17, 18, 19});
}

TEST_CASE("places: agree with a stable sort, NaN being the least", "[evict]") {
  support::dice die(8);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 400; ++round) {
    const int rows = die.below(50), first = die.below(4), last = die.below(5);
    const int least = std::min(rows, first + last), count = least + die.below(rows - least + 1);
    std::vector<float> scores;
    for (int i = 0; i < rows; ++i) {
      const int kind = die.below(12);
      scores.push_back(kind == 0 ? nan : kind == 1 ? infinity : kind == 2 ? -infinity : float(die.below(6)));
    }
    std::vector<int> order;
    for (int i = rows - 1; i >= 0; --i) order.push_back(i);
    const auto level = [&](int i) {
      return std::isnan(scores[std::size_t(i)]) ? -1e30 : std::max(-1e29, double(scores[std::size_t(i)]));
    };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return level(a) > level(b); });
    std::vector<int> want;
    for (int i = 0; i < rows; ++i)
      if (i < first || i >= rows - last) want.push_back(i);
    for (const int i : order)
      if (int(want.size()) < count && i >= first && i < rows - last) want.push_back(i);
    std::sort(want.begin(), want.end());
    CHECK(best(scores, count, {first, last}) == want);
  }
}

TEST_CASE("places: more than there are, and fewer than are protected, are refused", "[evict]") {
  const std::vector<float> scores(10, 1.0f);
  CHECK_THROWS_WITH(best(scores, 11, {0, 0}), support::containing("11 of 10 rows are to stay"));
  CHECK_THROWS_WITH(best(scores, 5, {2, 4}),
                    support::containing("5 of 10 rows are to stay; of these 2 at the beginning and 4 at the end"));
  CHECK_THROWS_WITH(best(scores, 5, {-1, 0}), support::containing("the first -1"));
}

TEST_CASE("places: a pyramid's counts fall by the same amount and are all there are", "[evict]") {
  // 80 of 100 on average are not the window's: from 156 in the first layer to 4 in the last.
  CHECK(pyramid_counts(3, 100, 1000, 20) == std::vector<idx>{176, 100, 24});
  CHECK(pyramid_counts(1, 100, 1000, 20) == std::vector<idx>{100});
  CHECK(pyramid_counts(2, 100, 110, 20) == std::vector<idx>{110, 90});  // no layer has more than there are
  CHECK(pyramid_counts(4, 64, 64, 64) == std::vector<idx>(4, 64));
  for (const int layers : {2, 7, 30, 32})
    for (const idx count : {33, 100, 1024})
      for (const double beta : {1.0, 2.0, 20.0}) {
        const std::vector<idx> counts = pyramid_counts(layers, count, 4096, 32, beta);
        CHECK(std::accumulate(counts.begin(), counts.end(), idx(0)) == layers * count);
        const double mean = double(count - 32), least = mean / beta, most = 2 * mean - least;
        for (int layer = 0; layer < layers; ++layer)
          CHECK(std::abs(double(counts[std::size_t(layer)]) - 32 - (most - (most - least) * layer / (layers - 1))) <=
                1);
      }
  CHECK_THROWS_AS(pyramid_counts(4, 16, 100, 32), invalid_argument);
  CHECK_THROWS_AS(pyramid_counts(0, 64, 100, 32), invalid_argument);
  CHECK_THROWS_AS(pyramid_counts(4, 101, 100, 32), invalid_argument);
}

namespace {

std::vector<idx> shared_out(const std::vector<std::vector<float>>& scores, idx count, double floor,
                            protected_rows ends = {0, 0}) {
  const std::vector<std::span<const float>> spans(scores.begin(), scores.end());
  return ada_counts(spans, ends, count, {floor});
}

}  // namespace

TEST_CASE("places: a layer's budget goes to the heads of the best scores, and a floor to each", "[evict]") {
  const std::vector<std::vector<float>> scores = {{9, 8, 7, 6, 5, 4}, {3, 0, 0, 0, 0, 2}, {1, 1, 10, 1, 1, 1}};
  CHECK(shared_out(scores, 3, 0) == std::vector<idx>{6, 2, 1});
  CHECK(shared_out(scores, 2, 0) == std::vector<idx>{5, 0, 1});
  CHECK(shared_out(scores, 2, 0.5) == std::vector<idx>{4, 1, 1});
  CHECK(shared_out(scores, 2, 1) == std::vector<idx>{2, 2, 2});
  CHECK(shared_out(scores, 0, 0.2) == std::vector<idx>{0, 0, 0});
  CHECK(shared_out(scores, 6, 0.2) == std::vector<idx>{6, 6, 6});
  CHECK(shared_out(scores, 60, 0.2) == std::vector<idx>{6, 6, 6});
  // The first and the last stay whatever their scores are, and are of the budget.
  CHECK(shared_out(scores, 2, 0, {1, 1}) == std::vector<idx>{2, 2, 2});
  CHECK(shared_out(scores, 3, 0, {1, 1}) == std::vector<idx>{4, 2, 3});
  CHECK(shared_out({{1, 1, 1}, {1, 1}}, 1, 0) == std::vector<idx>{1, 1});  // of equal ones the newest
  CHECK(shared_out({{}, {5, 6, 7}}, 1, 0.5) == std::vector<idx>{0, 2});
  CHECK(shared_out({}, 3, 0.5).empty());
}

TEST_CASE("places: shares agree with one stable sort of all heads", "[evict]") {
  support::dice die(9);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int round = 0; round < 400; ++round) {
    const protected_rows ends{die.below(3), die.below(4)};
    const std::size_t heads = std::size_t(1 + die.below(5));
    const idx count = ends.first + ends.last + die.below(20);
    const double floor = die.below(5) / 4.0;
    std::vector<std::vector<float>> scores(heads);
    idx there = 0;
    for (std::vector<float>& of : scores) {
      of.resize(std::size_t(die.below(40)));
      for (float& x : of) x = die.below(9) == 0 ? nan : float(die.below(7));
      there += idx(of.size());
    }
    struct item {
      double level;
      idx age;
      std::size_t head;
    };
    std::vector<idx> want(heads, 0);
    std::vector<item> all;
    for (std::size_t head = 0; head < heads; ++head) {
      const idx rows = idx(scores[head].size());
      std::vector<item> own;
      for (idx i = 0; i < rows; ++i) {
        const float x = scores[head][std::size_t(i)];
        if (i < ends.first || i >= rows - ends.last)
          ++want[head];
        else
          own.push_back({std::isnan(x) ? -1 : double(x), rows - i, head});
      }
      std::stable_sort(own.begin(), own.end(), [](const item& a, const item& b) {
        return a.level != b.level ? a.level > b.level : a.age < b.age;
      });
      std::size_t sure = 0;
      while (want[head] < idx(std::floor(floor * double(count))) && sure < own.size()) ++want[head], ++sure;
      all.insert(all.end(), own.begin() + std::ptrdiff_t(sure), own.end());
    }
    std::stable_sort(all.begin(), all.end(), [](const item& a, const item& b) {
      return a.level != b.level ? a.level > b.level : a.age < b.age;
    });
    idx left = count * idx(heads) - std::accumulate(want.begin(), want.end(), idx(0));
    for (const item& i : all)
      if (left-- > 0) ++want[i.head];
    const std::vector<idx> got = shared_out(scores, count, floor, ends);
    CHECK(got == want);
    CHECK(std::accumulate(got.begin(), got.end(), idx(0)) == std::min(there, count * idx(heads)));
  }
}

TEST_CASE("places: shares that cannot be given out are refused by name", "[evict]") {
  const std::vector<std::vector<float>> scores = {{1, 2, 3}, {1, 2, 3, 4, 5}};
  const auto refuses = [&](idx count, double floor, protected_rows ends, const std::string& text) {
    CHECK_THROWS_AS(shared_out(scores, count, floor, ends), invalid_argument);
    CHECK_THROWS_WITH(shared_out(scores, count, floor, ends), support::containing(text));
  };
  refuses(3, 0, {2, 2}, "head 1 keeps 3 rows on average; 4 of its 5 are protected");
  refuses(-1, 0, {}, "heads keep -1 rows on average");
  refuses(3, -0.5, {}, "each is sure of -0.5");
  refuses(3, 1.5, {}, "each is sure of 1.5");
  refuses(3, std::numeric_limits<double>::quiet_NaN(), {}, "each is sure of");
  refuses(3, 0, {-1, 0}, "the first -1 and the last 0 rows are protected");
}
