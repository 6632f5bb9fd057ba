#pragma once

#include <kvilt/evict/query_moments.hpp>
#include <kvilt/evict/score.hpp>
#include <kvilt/format/format.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

namespace detail {

/// Of `group` lists of logits, the mean of their softmaxes times the norms: logits [group][rows], out [rows].
inline void weigh_norms(std::span<double> logits, std::span<const double> norms, int group, float* out) {
  std::fill_n(out, norms.size(), 0.0f);
  for (std::size_t first = 0; first < logits.size(); first += norms.size()) {
    const std::span<double> list = logits.subspan(first, norms.size());
    const double high = *std::max_element(list.begin(), list.end());
    double sum = 0;
    for (double& l : list) sum += l = std::exp(l - high);
    for (std::size_t i = 0; i < list.size(); ++i) out[i] += float(list[i] / sum * norms[i] / group);
  }
}

}  // namespace detail

/// The share of attention that queries to come are expected to give a token, times the norm of its value (A. Devoto et
/// al., "Expected attention: KV cache compression by estimating attention from future queries distribution", 2025). They
/// are taken for Gaussian, in query head h of mean m_h and covariance C_h. Over the query heads of a KV head and its rows
/// t, with attention's scale s:
///
///     z_ht = exp(s m_h k_t + s^2 k_t C_h k_t / 2)        |v_t| x mean over h of z_ht / (sum over rows u of z_hu)
///
/// K is read as it decodes from the cache, turned by RoPE as it is there.
struct expected_attention {
  const query_moments* moments = nullptr;  // of the cache's layers, `expect` called of each
  float scale = 1;

  static constexpr bool running = false;
  int queries() const { return 0; }

  template <host_view View>
  void operator()(const View& view, const asked_rows& asked, rows<float> scores) const {
    const int heads = asked.group * view.kv_heads();
    detail::expects(moments && asked.layer < moments->layers() && moments->heads() == heads,
                    "expected attention of layer ", asked.layer, " with ", heads,
                    " query heads is asked for by moments", " of ", moments ? moments->layers() : 0, " layers of ",
                    moments ? moments->heads() : 0);
    std::vector<float> k(std::size_t(moments->dim())), v;
    std::vector<double> logits, norms;
    for (int head = 0; head < view.kv_heads(); ++head) {
      const idx count = asked.rows_of(head);
      if (count == 0) continue;
      norms.resize(std::size_t(count));
      logits.resize(norms.size() * std::size_t(asked.group));
      each_row(view, asked.n, asked.sequence, head, [&](const auto& seg, place p, idx, idx i) {
        detail::expects(seg.k.dim() == moments->dim(), "keys of ", seg.k.dim(), " numbers; moments are of ",
                        moments->dim());
        v.resize(std::size_t(seg.v.dim()));
        decode_row(seg.k, seg.k_row(p, head), k.data());
        decode_row(seg.v, seg.v_row(p, head), v.data());  // NOTE: the norm of the rotated row is that of the row itself
        View::k_rotation::inverse(k.data(), moments->dim());
        norms[std::size_t(i)] = std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
        for (int q = 0; q < asked.group; ++q)
          logits[std::size_t(q * count + i)] =
              moments->log_expected_exp(asked.layer, head * asked.group + q, k.data(), scale);
      });
      detail::weigh_norms(logits, norms, asked.group, scores.at(0, head));
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI
