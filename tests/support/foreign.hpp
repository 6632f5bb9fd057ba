#pragma once

#include "support/random.hpp"
#include "support/tensors.hpp"

#include <algorithm>

namespace support {

// How an engine may lay its pages out.
enum class arrangement {
  four_pools,  // K and V, codes and params, each with a pool of its own; a head's rows side by side; pages padded
  interleaved  // one pool: a page holds all layers, a token all heads, a row K's codes and params and then V's
};
enum class page_order { up, down, shuffled };

// An engine's own memory: pages of any stride, poisoned, and a table in which what is not used is garbage.
template <class K, class V>
class foreign_pool {
 public:
  static constexpr int layers = 2;

  foreign_pool(const K& k, const V& v, int heads, int page_rows, idx pages, arrangement a)
      : k_(k), v_(v), heads_(heads), rows_(page_rows), pages_(pages), arranged_(a) {
    kc_ = k.code_bytes(), kp_ = k.param_bytes(), vc_ = v.code_bytes(), vp_ = v.param_bytes();
    record_ = kc_ + kp_ + vc_ + vp_ + 20;
    bytes_.assign(std::size_t(pages * (layers * idx(page_rows) * heads * record_ + layers * 4 * padding)), 0xff);
  }

  kvilt::geometry planes(int layer) {
    unsigned char* base = bytes_.data();
    if (arranged_ == arrangement::interleaved) {
      const idx head = record_, token = heads_ * head, page = layers * rows_ * token + layers * 4 * padding;
      base += layer * rows_ * token;
      const auto plane = [&](idx offset) { return kvilt::plane{base + offset, page, head, token}; };
      return {plane(0), plane(kc_), plane(kc_ + kp_), plane(kc_ + kp_ + vc_), pages_};
    }
    const auto pool = [&](idx bytes) {
      const idx head = rows_ * bytes, page = heads_ * head + padding;
      unsigned char* first = base + layer * pages_ * page;
      base += layers * pages_ * page;
      return kvilt::plane{first, page, head, bytes};
    };
    kvilt::geometry g;
    g.k_codes = pool(kc_), g.k_params = pool(kp_), g.v_codes = pool(vc_), g.v_params = pool(vp_);
    g.pages = pages_;
    return g;
  }

  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  static constexpr idx padding = 36;

  K k_;
  V v_;
  int heads_, rows_;
  idx pages_, kc_, kp_, vc_, vp_, record_;
  arrangement arranged_;
  std::vector<unsigned char> bytes_;
};

// A table of [sequences][width] entries: each sequence's first pages in turn, the rest garbage.
inline std::vector<kvilt::page_id> foreign_table(int sequences, idx width, const std::vector<idx>& used,
                                                 page_order order) {
  std::vector<kvilt::page_id> ids, table;
  for (idx i = 0; i < sequences * width; ++i) ids.push_back(kvilt::page_id(i));
  if (order == page_order::down) std::reverse(ids.begin(), ids.end());
  if (order == page_order::shuffled) {
    dice d(5);
    for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[std::size_t(d.below(int(i)))]);
  }
  std::size_t next = 0;
  for (int s = 0; s < sequences; ++s)
    for (idx i = 0; i < width; ++i)
      table.push_back(i < used[std::size_t(s)] ? ids[next++] : (s + i) % 2 ? -1 : 0x7ffffff0);
  return table;
}

}  // namespace support
