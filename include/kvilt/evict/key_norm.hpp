#pragma once

#include <kvilt/evict/score.hpp>

#include <cmath>

namespace kvilt::inline KVILT_ABI {

/// Keys of small Euclidean norm stay: what is attended much has such, in many models (A. Devoto et al., "A simple and
/// effective L2 norm-based strategy for KV cache compression", 2024). Reads K as it decodes from the cache, and asks for
/// no attention.
struct key_norm {
  static constexpr bool running = false;
  int queries() const { return 0; }

  template <host_view View>
  void operator()(const View& view, const asked_rows& asked, rows<float> scores) const {
    for (int head = 0; head < view.kv_heads(); ++head)
      each_row(view, asked.n, asked.sequence, head, [&](const auto& seg, place p, idx, idx i) {
        double square = 0;  // NOTE: of the rotated row as of the row itself
        for (int first = 0; first < seg.k.dim(); first += 8) {
          float x[8];
          seg.k.template decode<8>(seg.k_row(p, head), first, x);
          for (const float number : x) square += double(number) * double(number);
        }
        scores.at(0, head)[i] = -float(std::sqrt(square));
      });
  }
};

}  // namespace kvilt::inline KVILT_ABI
