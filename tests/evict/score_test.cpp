#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <cmath>
#include <map>

namespace {

using namespace kvilt;
using namespace support;

constexpr int layers = 2, heads = 2, group = 3, lists = layers * heads, dim = 32;

// One sequence, and beside it in double precision all that its queries have given to each of its tokens. Keys are
// multiples of 1/64, which are themselves in every format here.
template <class Policy>
class history {
 public:
  history()
      : owner_({.layers = layers, .kv_heads = heads, .sequences = 2, .tokens = 400, .max_length = 150, .max_step = 40},
               host_memory()),
        sums_(layers, heads, 2, 150),
        last_(layers, heads, 2, 150),
        window_(layers, heads, 2, 150),
        moments_(layers, heads * group, dim),
        asked_(std::size_t(layers * heads * group)),
        other_(owner_.open()),
        sequence_(owner_.open()),
        positions_(lists),
        all_(lists),
        of_last_(lists),
        of_window_(lists) {}

  cache<Policy>& owner() { return owner_; }
  sequence at() const { return sequence_; }
  column_sums& sums() { return sums_; }
  const column_sums& last() const { return last_; }
  const column_sums& window() const { return window_; }
  const std::vector<idx>& positions(int list) const { return positions_[std::size_t(list)]; }
  idx rows(int list) const { return idx(positions(list).size()); }
  // The most of any head.
  idx rows() const {
    idx most = 0;
    for (int list = 0; list < lists; ++list) most = std::max(most, rows(list));
    return most;
  }
  bool even(int layer) const { return rows(layer * heads) == rows() && rows(layer * heads + 1) == rows(); }
  idx length() const { return length_; }

  void step(int tokens) {
    owner_.reserve(sequence_, tokens);
    std::vector<unsigned char> workspace(owner_.workspace_bytes(host(), 1));
    const kvilt::step s = owner_.begin(host(), {&sequence_, 1}, {&tokens, 1}, workspace);
    for (int i = 0; i < tokens; ++i)
      for (std::vector<idx>& p : positions_) p.push_back(length_ + i);
    for (auto* of : {&of_last_, &of_window_})
      for (auto& list : *of) list.clear();
    for (int layer = 0; layer < layers; ++layer) {
      tensor<float> k = random_tensor(mixed({7, ++salt_}), tokens, heads, dim);
      for (float& x : k.data) x = std::round(64 * x) / 64;
      const tensor<float> v = random_tensor(mixed({8, salt_}), tokens, heads, dim);
      const tensor<float> q = random_tensor(mixed({9, salt_}), tokens, heads * group, dim);
      moments_.add(layer, q.rows(), tokens);
      append(host(), owner_.view(layer), s, k.rows(), v.rows());
      for (int head = 0; head < heads; ++head)
        for (int i = 0; i < tokens; ++i) {
          keys_[{layer * heads + head, length_ + i}] = widened(k.row(i, head));
          values_[{layer * heads + head, length_ + i}] = widened(v.row(i, head));
        }
      answer<> got(tokens, q.heads, dim);
      const attention a{causal{}};
      const auto view = owner_.view(layer);
      a(host(), view, s, q.rows(), got.out.rows(), got.lse_rows());
      sums_.add(host(), a, layer, view, s, q.rows(), got.lse_rows());
      last_.add(host(), a, layer, view, s, q.rows(), got.lse_rows(), tova().queries(), true);
      window_.add(host(), a, layer, view, s, q.rows(), got.lse_rows(), asked_window, true);
      for (int i = 0; i < tokens; ++i)
        for (int head = 0; head < q.heads; ++head) {
          count(q.row(i, head), layer * heads + head / group, i, tokens);
          asked_[std::size_t(layer * heads * group + head)].push_back(widened(q.row(i, head)));
        }
    }
    length_ += tokens;
    owner_.commit(s);
  }
  // Keeps what the lists say, and so do the sums.
  void keep(const std::vector<int>& places, const std::vector<int>& sizes) {
    if constexpr (tabled_by_head<typename Policy::layout_type>)
      owner_.keep(host(), sequence_, places, sizes);
    else
      owner_.keep(host(), sequence_, places);
    for (column_sums* of : {&sums_, &last_, &window_}) of->keep(owner_.row(sequence_), places, sizes);
    auto next = places.begin();
    for (std::size_t list = 0; list < lists; ++list) {
      std::vector<idx> left;
      for (int i = 0; i < sizes[list]; ++i) left.push_back(positions_[list][std::size_t(*next++)]);
      positions_[list] = left;
    }
  }

  // Those of each head's rows, one head after another.
  template <class Score>
  std::vector<float> scores(const Score& score, const column_sums& sums, int layer) {
    const int row = owner_.row(sequence_);
    const idx counts[] = {rows(layer * heads), rows(layer * heads + 1)};
    const asked_rows asked{owner_.holds(sequence_), row,   layer, rows(), group, sums.queries(layer, row),
                           sums.of(layer, row),     counts};
    std::vector<float> all(std::size_t(heads * rows()), NAN), own;
    score(owner_.view(layer), asked, packed_rows(all.data(), heads, int(rows())));
    for (int head = 0; head < heads; ++head)
      own.insert(own.end(), all.begin() + head * rows(), all.begin() + head * rows() + counts[head]);
    return own;
  }
  // The same numbers by `body(list, position)`.
  template <class Body>
  std::vector<double> by_token(int layer, Body body) const {
    std::vector<double> all;
    for (int list = layer * heads; list < (layer + 1) * heads; ++list)
      for (const idx position : positions(list)) all.push_back(body(list, position));
    return all;
  }
  double all(int list, idx position) const { return found(all_, list, position); }
  double of_last(int list, idx position) const { return found(of_last_, list, position); }
  double of_window(int list, idx position) const { return found(of_window_, list, position); }
  const std::vector<double>& key(int list, idx position) const { return keys_.at({list, position}); }
  const std::vector<double>& value(int list, idx position) const { return values_.at({list, position}); }
  query_moments& moments() { return moments_; }
  // All queries of a query head so far.
  const std::vector<std::vector<double>>& asked(int layer, int head) const {
    return asked_[std::size_t(layer * heads * group + head)];
  }

  static constexpr int asked_window = 6;

 private:
  using by_position = std::vector<std::map<idx, double>>;
  static double found(const by_position& of, int list, idx position) {
    const auto& numbers = of[std::size_t(list)];
    return numbers.count(position) ? numbers.at(position) : 0;
  }
  void count(std::span<const float> q, int list, int query, int queries) {
    std::vector<double> weights;
    double sum = 0;
    for (const idx position : positions(list)) {
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) dot += double(q[d]) * key(list, position)[d];
      weights.push_back(position <= length_ + query ? std::exp(dot / std::sqrt(double(dim))) : 0);
      sum += weights.back();
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const idx position = positions(list)[i];
      const double share = weights[i] / sum;
      all_[std::size_t(list)][position] += share;
      if (query == queries - 1) of_last_[std::size_t(list)][position] += share;
      if (query >= queries - asked_window) of_window_[std::size_t(list)][position] += share;
    }
  }

  cache<Policy> owner_;
  column_sums sums_, last_, window_;
  query_moments moments_;
  std::vector<std::vector<std::vector<double>>> asked_;  // [layers x query heads][queries][dim]
  sequence other_, sequence_;
  std::vector<std::vector<idx>> positions_;
  std::map<std::pair<int, idx>, std::vector<double>> keys_, values_;
  by_position all_, of_last_, of_window_;
  idx length_ = 0;
  std::uint64_t salt_ = 0;
};

using policies =
    std::tuple<policy<paged<4>, fp32<dim>, fp32<dim>, listed>, policy<contiguous, fp16<dim>, q8<dim>, listed>,
               policy<paged<16>, fp32<dim>, q4<dim>, listed, 2, 5>,
               policy<paged_by_head<3>, fp32<dim>, q8<dim>, listed>,
               policy<paged_by_head<8>, fp32<dim>, q4<dim>, listed, 2, 5>>;

// Every score of what there is now.
template <class Policy>
void check_scores(history<Policy>& text, idx step) {
  for (int layer = 0; layer < layers; ++layer) {
    CHECK(difference(text.scores(h2o{}, text.sums(), layer),
                     text.by_token(layer, [&](int list, idx t) { return text.all(list, t); })) == "");
    CHECK(difference(text.scores(h2o{.mean = true}, text.sums(), layer), text.by_token(layer, [&](int list, idx t) {
            return text.all(list, t) / double(group * (text.length() - t));
          })) == "");
    // Heads may have kept different tokens: what is averaged are rows of the same number.
    std::vector<double> mean(std::size_t(text.rows()), 0.0), tova_scores;
    if (text.even(layer)) {
      for (int list = layer * heads; list < (layer + 1) * heads; ++list)
        for (std::size_t i = 0; i < mean.size(); ++i)
          mean[i] += text.of_last(list, text.positions(list)[i]) / (heads * group);
      for (int head = 0; head < heads; ++head) tova_scores.insert(tova_scores.end(), mean.begin(), mean.end());
      CHECK(difference(text.scores(tova{}, text.last(), layer), tova_scores) == "");
    } else {
      CHECK_THROWS_WITH(text.scores(tova{}, text.last(), layer), containing("its heads keep the same tokens"));
    }
    CHECK(difference(text.scores(key_norm{}, text.sums(), layer), text.by_token(layer, [&](int list, idx t) {
            double square = 0;
            for (const double x : text.key(list, t)) square += x * x;
            return -std::sqrt(square);
          })) == "");
    const int window = text.asked_window;
    if (step < window) continue;
    for (const int kernel : {1, 3, 7})
      for (const bool average : {true, false}) {
        std::vector<double> want;
        for (int list = layer * heads; list < (layer + 1) * heads; ++list) {
          // Zeros around for the average; weights are positive, so that they change no maximum.
          std::vector<double> padded(std::size_t(kernel / 2), 0.0);
          const std::size_t before = std::size_t(std::max<idx>(text.rows(list) - window, 0));
          for (std::size_t i = 0; i < before; ++i)
            padded.push_back(text.of_window(list, text.positions(list)[i]) / (window * group));
          padded.resize(padded.size() + std::size_t(kernel / 2), 0.0);
          for (std::size_t i = 0; i < before; ++i) {
            double sum = 0, most = 0;
            for (int j = 0; j < kernel; ++j)
              sum += padded[i + std::size_t(j)], most = std::max(most, padded[i + std::size_t(j)]);
            want.push_back(average ? sum / kernel : most);
          }
          want.resize(want.size() + std::size_t(text.rows(list)) - before, std::numeric_limits<double>::infinity());
        }
        const snap_kv score{window, kernel, average ? snap_kv::pooling::average : snap_kv::pooling::maximum};
        CHECK(difference(text.scores(score, text.window(), layer), want) == "");
      }
  }
}

using matrix = std::vector<std::vector<double>>;

matrix product(const matrix& a, const matrix& b) {
  matrix c(a.size(), std::vector<double>(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < b[0].size(); ++j)
      for (std::size_t l = 0; l < b.size(); ++l) c[i][j] += a[i][l] * b[l][j];
  return c;
}
matrix transposed(const matrix& a) {
  matrix t(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

// The mean of RoPE's matrices at some positions: 24 of 32 numbers turn, and twofold.
matrix mean_turn(rope_pairs pairs, idx first, idx count) {
  constexpr std::size_t turning = 24;
  matrix m(dim, std::vector<double>(dim));
  for (std::size_t i = turning; i < dim; ++i) m[i][i] = 1;
  for (std::size_t i = 0; i < turning / 2; ++i) {
    const bool split = pairs == rope_pairs::half_split;
    const std::size_t a = split ? i : 2 * i, b = split ? i + turning / 2 : 2 * i + 1;
    for (idx t = first; t < first + count; ++t) {
      const double angle = double(t) * std::pow(100.0, -2.0 * double(i) / turning);
      m[a][a] += 2 * std::cos(angle) / double(count), m[a][b] -= 2 * std::sin(angle) / double(count);
      m[b][a] += 2 * std::sin(angle) / double(count), m[b][b] += 2 * std::cos(angle) / double(count);
    }
  }
  return m;
}

// Expected attention of a layer, by its definition.
template <class Policy>
std::vector<double> expected_scores(const history<Policy>& text, int layer, const matrix& turn, double scale) {
  std::vector<double> all;
  for (int head = 0; head < heads; ++head) {
    const int list = layer * heads + head;
    std::vector<double> scores(std::size_t(text.rows(list)));
    for (int q_head = head * group; q_head < (head + 1) * group; ++q_head) {
      const auto& queries = text.asked(layer, q_head);
      matrix mean(1, std::vector<double>(dim)), covariance(dim, std::vector<double>(dim));
      for (const auto& q : queries)
        for (std::size_t i = 0; i < dim; ++i) mean[0][i] += q[i] / double(queries.size());
      for (const auto& q : queries)
        for (std::size_t i = 0; i < dim; ++i)
          for (std::size_t j = 0; j < dim; ++j)
            covariance[i][j] += (q[i] - mean[0][i]) * (q[j] - mean[0][j]) / double(queries.size());
      mean = product(turn, transposed(mean));
      covariance = product(turn, product(covariance, transposed(turn)));
      std::vector<double> weights;
      double sum = 0;
      for (const idx t : text.positions(list)) {
        const matrix k{text.key(list, t)};
        const double linear = product(k, mean)[0][0], square = product(k, product(covariance, transposed(k)))[0][0];
        weights.push_back(std::exp(scale * linear + scale * scale * square / 2));
        sum += weights.back();
      }
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += weights[i] / sum / group;
    }
    for (std::size_t i = 0; i < scores.size(); ++i) {
      double square = 0;
      for (const double x : text.value(list, text.positions(list)[i])) square += x * x;
      all.push_back(scores[i] * std::sqrt(square));
    }
  }
  return all;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("score: each is its formula, also of a text from which tokens were evicted", "[evict]",
                        policies) {
  history<TestType> text;
  dice die(4);
  for (const int tokens : {31, 1, 2, 1, 9, 1, 40, 3, 1}) {
    text.step(tokens);
    check_scores(text, tokens);
    if (die.below(3) == 0) continue;
    std::vector<int> places, sizes;
    for (int list = 0; list < lists; ++list) {
      const position_range may_go = text.owner().evictable(text.at(), list / heads, list % heads);
      std::vector<int> one;
      for (int i = 0; i < int(text.rows(list)); ++i) one.push_back(i);
      const int gone = tabled_by_head<typename TestType::layout_type> ? 1 + die.below(9) : 7;
      for (int n = 0; n < gone; ++n)
        one.erase(one.begin() + may_go.first + die.below(int(may_go.last - may_go.first) - n));
      places.insert(places.end(), one.begin(), one.end()), sizes.push_back(int(one.size()));
    }
    text.keep(places, sizes);
    check_scores(text, 0);
  }
}

TEST_CASE("score: those that are given are taken, layer by layer", "[evict]") {
  history<policy<paged<4>, fp32<dim>, fp32<dim>, listed>> text;
  text.step(9);
  const tensor<float> given = random_tensor(3, layers, heads, 12);
  const given_scores score{given.rows()};
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < heads; ++head) {
      const std::vector<float> got = text.scores(score, text.sums(), layer);
      CHECK(std::equal(got.begin() + head * 9, got.begin() + (head + 1) * 9, given.row(layer, head).begin()));
    }
  const tensor<float> few = random_tensor(3, layers, heads, 8);
  CHECK_THROWS_WITH(text.scores(given_scores{few.rows()}, text.sums(), 0),
                    containing("scores of 8 rows in 2 heads are given; the sequence has 9 in 2"));
}

TEST_CASE("score: SnapKV's neighbours are an odd number", "[evict]") {
  history<policy<paged<4>, fp32<dim>, fp32<dim>, listed>> text;
  text.step(9);
  CHECK_THROWS_WITH(text.scores(snap_kv{4, 2}, text.sums(), 0), containing("SnapKV over 4 queries and 2 neighbours"));
  CHECK_THROWS_AS(text.scores(snap_kv{0, 3}, text.sums(), 0), invalid_argument);
}

using exact_policies =
    std::tuple<policy<paged<4>, fp32<dim>, fp32<dim>, listed>, policy<paged_by_head<4>, fp32<dim>, fp32<dim>, listed>,
               policy<contiguous, rotated<fp32<dim>>, rotated<fp32<dim>>, listed>>;

TEMPLATE_LIST_TEST_CASE("score: expected attention is that of Gaussian queries at the positions to come", "[evict]",
                        exact_policies) {
  const rope_pairs pairs = GENERATE(rope_pairs::half_split, rope_pairs::interleaved);
  const rope_table table(24, 100, pairs);
  rope turn = table;
  turn.magnitude = 2;
  history<TestType> text;
  for (const int tokens : {17, 1, 20}) {
    text.step(tokens);
    const matrix mean = mean_turn(pairs, text.length(), 50);
    for (int layer = 0; layer < layers; ++layer) {
      text.moments().expect(layer, turn, text.length(), 50);
      const expected_attention score{&text.moments(), 0.3f};
      CHECK(difference(text.scores(score, text.sums(), layer), expected_scores(text, layer, mean, 0.3)) == "");
    }
    std::vector<int> places, sizes;  // all but two of the oldest, by head up to six
    for (int list = 0; list < lists; ++list) {
      const int last = tabled_by_head<typename TestType::layout_type> ? 5 + list : 5;
      const std::size_t before = places.size();
      for (int i = 0; i < int(text.rows(list)); ++i)
        if (i != list && (i < 5 || i > last)) places.push_back(i);
      sizes.push_back(int(places.size() - before));
    }
    text.keep(places, sizes);
  }
}

TEST_CASE("score: expected attention wants moments of the layer's query heads", "[evict]") {
  history<policy<paged<4>, fp32<dim>, fp32<dim>, listed>> text;
  const rope_table table(dim, 100, rope_pairs::half_split);
  CHECK_THROWS_WITH(text.moments().expect(0, table, 0, 9), containing("layer 0 has had 0 queries, and 9 are to come"));
  text.step(9);
  CHECK_THROWS_WITH(text.moments().expect(0, table, 9, 0), containing("layer 0 has had 9 queries, and 0 are to come"));
  CHECK_THROWS_WITH(text.moments().expect(layers, table, 9, 9), containing("layer 2; there are moments of 2"));
  query_moments other(layers, heads, dim);
  CHECK_THROWS_WITH(text.scores(expected_attention{&other, 1}, text.sums(), 0),
                    containing("layer 0 with 6 query heads is asked for by moments of 2 layers of 2"));
  CHECK_THROWS_WITH(text.scores(expected_attention{}, text.sums(), 0), containing("moments of 0 layers of 0"));
  const tensor<float> q = random_tensor(3, 2, heads, dim);
  CHECK_THROWS_WITH(text.moments().add(0, q.rows(), 2), containing("queries of 2 heads of 32 numbers"));
  CHECK_THROWS_AS(query_moments(0, 1, 1), invalid_argument);
  text.moments().clear();
  CHECK(text.moments().queries(0) == 0);
}
