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
