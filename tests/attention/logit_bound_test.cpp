#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/logit_bound.hpp>

namespace {

using namespace kvilt;
using namespace support;

double longest(const tensor<float>& x) {
  double most = 0;
  for (idx t = 0; t < x.tokens(); ++t)
    for (int head = 0; head < x.heads; ++head) {
      double square = 0;
      for (const float value : x.row(t, head)) square += double(value) * double(value);
      most = std::max(most, std::sqrt(square));
    }
  return most;
}

// One key alone: its log-sum-exp is its logit.
struct only {
  idx key;
  bool keep(const where& w) const { return w.k_position == key; }
};

// Grows a sequence in chunks. Returns the largest share of the bound that a logit of any key has at the end.
template <class Policy>
double largest_share(const Policy& p, const rope& turn, double& norm) {
  constexpr int tokens = 60, dim = 32;
  cache<Policy> owner({.layers = 1, .kv_heads = 2, .tokens = 64, .max_step = 7}, host_memory(), p);
  const sequence s[] = {owner.open()};
  owner.reserve(s[0], tokens);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  const tensor<float> k = random_tensor(1, tokens, 2, dim), v = random_tensor(2, tokens, 2, dim);
  norm = 0;
  for (int first = 0; first < tokens; first += 7) {
    const int count[] = {std::min(7, tokens - first)};
    const step st = owner.begin(host(), s, count, workspace);
    append(host(), owner.view(0), st, rows<const float>{k.rows().at(first, 0), 2 * dim, dim, 2, dim},
           rows<const float>{v.rows().at(first, 0), 2 * dim, dim, 2, dim}, turn);
    norm = std::max(norm, double(largest_key_norm(owner.view(0), st)));
    owner.commit(st);
  }
  const int one[] = {1};
  owner.reserve(s[0], 1);
  const step last = owner.begin(host(), s, one, workspace);
  append(host(), owner.view(0), last, rows<const float>{k.rows().at(0, 0), 2 * dim, dim, 2, dim},
         rows<const float>{v.rows().at(0, 0), 2 * dim, dim, 2, dim}, turn);
  // Along a key's own direction a logit comes closest to the bound.
  double share = 0;
  for (int key = 0; key < tokens; ++key) {
    tensor<float> q(1, 2, dim);
    for (int d = 0; d < 2 * dim; ++d) q.data[std::size_t(d)] = k.data[std::size_t(key * 2 * dim + d)];
    for (int head = 0; head < 2; ++head) turn.apply(q.rows().at(0, head), key);
    const double bound = 0.5 * double(largest_norm(1, q.rows())) * norm;
    answer<> a(1, 2, dim);
    attention<only>({key}, 0.5f)(host(), owner.view(0), last, q.rows(), a.out.rows(), a.lse_rows());
    for (const float logit : a.lse)
      if (std::isfinite(logit)) share = std::max(share, std::abs(double(logit)) / bound);
  }
  owner.commit(last);
  return share;
}

}  // namespace

TEST_CASE("logit_bound: the largest norm is that of the longest row, never less", "[attention]") {
  const tensor<float> x = random_tensor(3, 50, 3, 24);
  CHECK(double(largest_norm(50, x.rows())) >= longest(x));
  CHECK(double(largest_norm(50, x.rows())) <= longest(x) * (1 + 1e-6));
  CHECK(largest_norm(0, x.rows()) == 0);
  for (const std::size_t at : {std::size_t(0), std::size_t(1000), x.data.size() - 1}) {
    tensor<float> with_nan = x;
    with_nan.data[at] = NAN;
    CHECK(std::isnan(largest_norm(50, with_nan.rows())));
  }
}

TEST_CASE("logit_bound: keys are as long as they decode, in any format and part of the cache", "[attention]") {
  constexpr int dim = 32;
  const rope_table table(dim, 100.0, rope_pairs::half_split);
  const double given = longest(random_tensor(1, 60, 2, dim));
  double norm = 0;
  const auto is_bound = [&](const auto& p, double error) {
    const double share = largest_share(p, table, norm);
    INFO("share " << share << ", norm " << norm << " of " << given);
    CHECK(share <= 1);
    CHECK(share > 0.9);
    CHECK(norm >= given * (1 - error));
    CHECK(norm <= given * (1 + error));
  };
  is_bound(policy<contiguous, fp32<>>(dim), 1e-6);
  is_bound(policy<paged<4>, rotated<fp32<>>, fp32<>>(dim), 1e-6);
  is_bound(policy<paged<4>, q8<>>(dim), 0.02);
  is_bound(policy<contiguous, rotated<q4<>>, q4<>>(dim), 0.2);
  is_bound(policy<contiguous, q4<>, q8<>, keep_all, 3, 5>(dim), 0.2);
}
