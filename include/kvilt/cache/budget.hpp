#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/policy.hpp>
#include <kvilt/cache/reorder.hpp>
#include <kvilt/core/given.hpp>

#include <cstddef>
#include <cstring>

namespace kvilt::inline KVILT_ABI {

/// How large a cache is to be.
struct cache_shape {
  int layers = 0;
  int kv_heads = 0;
  int sequences = 1;   // open at one time
  idx tokens = 0;      // in all sequences together; a ring has room for its window whatever is given here
  idx max_length = 0;  // longest sequence; 0: `tokens` where pages are shared, `tokens / sequences` where they are not
                       // (where tokens are evicted, those that stay count)
  int max_step = 1;    // most tokens that one step appends to one sequence where a window or a tail keeps room for them
  bool prefixes =
      false;  // full pages stay for prompts that begin alike: some 60 bytes a page and 4 a token of the host
};

/// Whether prompts can find what a cache of this policy holds. Not where a window gives pages back that a prompt would
/// need, or tokens are evicted, where 16-bit sinks lie beside the pages, and where there are no pages, or those of one
/// head.
template <class Policy>
inline constexpr bool keeps_prefixes = !fixed_layout<typename Policy::layout_type> && !Policy::retention_type::slides &&
                                       !tabled_by_head<typename Policy::layout_type> &&
                                       !evicts_tokens<typename Policy::retention_type> && Policy::exact_sinks == 0;

/// Bytes of one cache, exact: what the owner asks of its memory resource, to the byte.
struct budget {
  idx body_pages = 0;            // pages of the body's pool, in all layers alike; by head: of all layers together
  idx body_page_bytes = 0;       // one page in one layer, both K and V, codes and params, and positions on record
  idx exact_sequence_bytes = 0;  // 16-bit sinks and tail of one sequence, all layers
  idx kv_bytes = 0;              // K and V, codes, params and positions, sinks and tail, padding included
  idx table_bytes = 0;           // page tables
  idx list_bytes = 0;            // how much of each sequence is listed, where tokens are evicted
  idx table_width = 0;           // pages a table may name; 0 where pages come by arithmetic
  double bytes_per_token = 0;    // of the body, all layers: codes at their pitch, params, positions on record
  idx bytes_per_sequence = 0;    // of a sequence of `max_length` tokens: whole pages, sinks and tail
  idx tokens_per_sequence = 0;   // `tokens` of a pool that holds one: whole pages, of a window those that stay

  idx bytes() const { return kv_bytes + table_bytes + list_bytes; }
};

namespace detail {

/// Strides of one storage (body, sinks or tail) in one layer, for pages of `rows` rows.
/// Codes and params lie in regions of their own, K and V of a head side by side. From 8 rows on a head's rows follow
/// each other, on 128-byte lines; smaller pages are token-major, so that all heads of a token are read together. Behind
/// them lie positions on record, where there are any.
struct storage {
  static constexpr int head_major_rows = 8;
  static constexpr idx region_alignment = 256;

  idx pages = 0;
  idx codes_page = 0, codes_head = 0, codes_v = 0;  // strides, and where V lies in a head's share
  idx params_page = 0, params_head = 0, params_v = 0;
  idx k_record = 0, v_record = 0, k_params_record = 0, v_params_record = 0;
  idx positions_page = 0, positions_head = 0;  // 0: none are on record

  // NOTE: as every size here, no more than a few times `most_bytes`, so that it is refused, not wrapped around.
  idx codes_bytes() const { return round_up(bytes_of(pages, codes_page), region_alignment); }
  idx params_bytes() const { return round_up(bytes_of(pages, params_page), region_alignment); }
  idx positions_bytes() const { return round_up(bytes_of(pages, positions_page), region_alignment); }
  idx layer_bytes() const { return codes_bytes() + params_bytes() + positions_bytes(); }

  /// Makes room for the position of every row.
  void record_positions(int kv_heads, idx page_rows) {
    positions_head = bytes_of(page_rows, sizeof(std::int32_t));
    positions_page = bytes_of(kv_heads, positions_head);
  }
  plane positions(unsigned char* base) const {
    if (pages == 0) return {};
    return {base + codes_bytes() + params_bytes(), positions_page, positions_head, sizeof(std::int32_t)};
  }

  geometry at(unsigned char* base) const {
    // NOTE: where there are no pages there may be no memory, and nothing is a distance from none.
    const auto behind = [&](idx bytes) { return base ? base + bytes : nullptr; };
    const idx params = codes_bytes();
    return {{base, codes_page, codes_head, k_record},
            {behind(params), params_page, params_head, k_params_record},
            {behind(codes_v), codes_page, codes_head, v_record},
            {behind(params + params_v), params_page, params_head, v_params_record},
            pages};
  }
  /// All that lies in a page, whoever reads it; `base`: of the layer.
  void copy_page(unsigned char* base, const copied_page& c) const {
    std::memcpy(base + c.to * codes_page, base + c.from * codes_page, std::size_t(codes_page));
    unsigned char* const params = base + codes_bytes();
    if (params_page > 0)
      std::memcpy(params + c.to * params_page, params + c.from * params_page, std::size_t(params_page));
    unsigned char* const positions = params + params_bytes();
    if (positions_page > 0)
      std::memcpy(positions + c.to * positions_page, positions + c.from * positions_page, std::size_t(positions_page));
  }
};

/// NOTE: formats by value: of references to empty ones gcc says that they may be uninitialised.
template <class K, class V>
storage make_storage(K k, V v, int kv_heads, idx pages, idx page_rows) {
  const idx k_pitch = round_up(k.code_bytes(), 16), v_pitch = round_up(v.code_bytes(), 16);
  const idx k_records = ceil_div(page_rows, K::rows), v_records = ceil_div(page_rows, V::rows);
  storage s;
  s.pages = pages;
  if (page_rows >= storage::head_major_rows) {
    const idx k_run = round_up(k_records * k_pitch, 128), v_run = round_up(v_records * v_pitch, 128);
    const idx k_params = round_up(k_records * k.param_bytes(), 16),
              v_params = round_up(v_records * v.param_bytes(), 16);
    s.k_record = k_pitch, s.v_record = v_pitch;
    s.codes_v = k_run, s.codes_head = k_run + v_run, s.codes_page = bytes_of(kv_heads, s.codes_head);
    s.k_params_record = k.param_bytes(), s.v_params_record = v.param_bytes();
    s.params_v = k_params, s.params_head = k_params + v_params, s.params_page = bytes_of(kv_heads, s.params_head);
  } else {
    s.codes_v = k_pitch, s.codes_head = k_pitch + v_pitch;
    s.k_record = s.v_record = bytes_of(kv_heads, s.codes_head);
    s.codes_page = bytes_of(larger(k_records, v_records), s.k_record);
    // NOTE: pairs of scale and zero are read as one word.
    const idx word = k.param_bytes() % 4 == 0 || v.param_bytes() % 4 == 0 ? 4 : 2;
    s.params_v = round_up(k.param_bytes(), word), s.params_head = s.params_v + round_up(v.param_bytes(), word);
    s.k_params_record = s.v_params_record = round_up(bytes_of(kv_heads, s.params_head), 4);
    s.params_page = bytes_of(larger(k_records, v_records), s.k_params_record);
  }
  if constexpr (shares_keys<V>) {
    s.codes_v = s.params_v = 0;
    s.v_record = s.k_record, s.v_params_record = s.k_params_record;
  }
  return s;
}

/// Everything that follows from a policy and a shape: used by the planner and by the owner alike, so that what is
/// planned is what is allocated.
template <class Policy>
struct arrangement {
  static constexpr bool evicts = evicts_tokens<typename Policy::retention_type>;
  /// Each layer's heads have tables of their own, and pages of one pool, which lies before what else the layers have.
  static constexpr bool by_head = tabled_by_head<typename Policy::layout_type>;

  layout_request request;
  int tables = 1;  // page tables of a sequence: 1, or layers x KV heads
  idx max_length = 0;
  idx window_slots = 0;  // slots a sliding body reuses in turn; 0: none
  idx body_sinks = 0;    // sinks that lie in the body's storage
  idx tail_slots = 0;
  int page_rows = 0;
  storage body, sinks, tail;
  budget bytes;

  arrangement(const Policy& p, const cache_shape& s) {
    check(p, s);
    constexpr bool tabled = !fixed_layout<typename Policy::layout_type>;
    body_sinks = Policy::exact_sinks ? 0 : Policy::sinks;
    const idx longest = s.max_length ? s.max_length : tabled ? s.tokens : ceil_div(s.tokens, s.sequences);
    max_length = longest;
    request = {s.sequences, round_up(larger(body_rows(longest), 1), Policy::tile), s.kv_heads};
    if constexpr (Policy::retention_type::slides && !tabled) {
      window_slots = p.retention.width() - 1 + s.max_step;
      request.slots = body_sinks + window_slots;
    }
    expects(request.slots < idx(1) << 31, "a sequence needs ", request.slots, " slots; fewer than 2^31 are supported");
    if constexpr (by_head) {
      const idx all = idx(s.layers) * s.kv_heads;
      expects(all < most_tables && all * s.sequences < most_tables, s.sequences, " sequences, ", s.layers,
              " layers and ", s.kv_heads, " KV heads have a page table each; fewer than 2^31 are supported");
      tables = int(all);
    }
    page_rows = p.layout.page_rows(request);
    expects(page_rows >= 1, "a page of ", page_rows, " rows; at least 1 is needed");
    expects(page_rows % Policy::tile == 0, "a page of ", page_rows, " rows does not hold whole tiles of ",
            Policy::tile);
    idx pages = 0;
    if constexpr (tabled) {
      pages = ceil_div(s.tokens, page_rows) * tables;
      expects(pages < most_tables, s.tokens, " tokens are on ", pages, " pages of ", page_rows,
              " rows; fewer than 2^31 are supported");
      bytes.table_width = ceil_div(request.slots, page_rows);
      bytes.table_bytes = bytes_of(idx(sizeof(page_id)) * s.sequences * tables, bytes.table_width);
    } else {
      pages = p.layout.pages(request);
    }
    const int page_heads = by_head ? 1 : s.kv_heads;
    body = make_storage(p.k, p.v, page_heads, pages, page_rows);
    if constexpr (evicts) {
      body.record_positions(page_heads, page_rows);
      bytes.list_bytes = bytes_of(idx(s.sequences) * tables, sizeof(listed_rows));
    }
    if constexpr (by_head) body.codes_head = body.params_head = body.positions_head = 0;
    if constexpr (Policy::exact_sinks > 0)
      sinks = make_storage(p.k_exact(), p.v_exact(), s.kv_heads, s.sequences, Policy::exact_sinks);
    if constexpr (Policy::tail > 0) {
      // NOTE: what the step appends and what leaves in it are there at once: neither overwrites the other.
      tail_slots = Policy::tail + Policy::tile - 1 + 2 * idx(s.max_step) - 1;
      expects(tail_slots < idx(1) << 31, "a tail that takes steps of ", s.max_step, " tokens has ", tail_slots,
              " slots; fewer than 2^31 are supported");
      tail = make_storage(p.k_exact(), p.v_exact(), s.kv_heads, s.sequences, tail_slots);
    }
    count(p, s, pages);
  }

  /// Slots of the body that a sequence of `length` tokens needs. NOTE: a token reaches the body when it leaves the
  /// tail; sinks in the body's formats never were in it.
  static idx body_rows(idx length) {
    const idx at_once = Policy::exact_sinks ? 0 : smaller(length, Policy::sinks);
    return larger(length - Policy::exact_sinks - (Policy::tail ? Policy::tail - 1 : 0), at_once);
  }

  /// From one layer to the next.
  idx layer_bytes() const { return (by_head ? 0 : body.layer_bytes()) + exact_bytes(); }
  /// Where a layer's body begins, and its 16-bit sinks or what there is instead.
  idx body_at(idx layer) const { return by_head ? 0 : layer * layer_bytes(); }
  idx exact_at(idx layer) const { return body.layer_bytes() + layer * layer_bytes(); }
  /// How many layers have a body page of their own under one id.
  int page_layers(const cache_shape& s) const { return by_head ? 1 : s.layers; }

 private:
  static constexpr idx most_tables = idx(1) << 31;

  idx exact_bytes() const { return sinks.layer_bytes() + tail.layer_bytes(); }
  template <class F>
  static double row_bytes(const F& f) {
    return double(round_up(f.code_bytes(), 16) + f.param_bytes()) / F::rows;
  }
  static void check(const Policy& p, const cache_shape& s) {
    expects(s.layers >= 1, "layers is ", s.layers, "; at least 1 is needed");
    expects(s.kv_heads >= 1, "kv_heads is ", s.kv_heads, "; at least 1 is needed");
    expects(s.sequences >= 1, "sequences is ", s.sequences, "; at least 1 is needed");
    expects(s.tokens >= 0 && s.max_length >= 0, "tokens is ", s.tokens, " and max_length ", s.max_length,
            "; neither may be negative");
    expects(s.tokens < idx(1) << 31 && s.max_length < idx(1) << 31, "tokens is ", s.tokens, " and max_length ",
            s.max_length, "; both must be below 2^31");
    expects(s.max_step >= 1, "max_step is ", s.max_step, "; at least 1 is needed");
    expects(!s.prefixes || keeps_prefixes<Policy>,
            "prefixes are to be kept; a policy with pages, without a window, eviction or 16-bit sinks is needed");
    check_format_dim("K", p.k);
    check_format_dim("V", p.v);
    if constexpr (Policy::retention_type::slides)
      expects(p.retention.width() >= 1, "a window of ", p.retention.width(), " tokens; at least 1 is needed");
  }
  void count(const Policy& p, const cache_shape& s, idx pages) {
    bytes.body_pages = pages;
    bytes.body_page_bytes = body.codes_page + body.params_page + body.positions_page;
    bytes.kv_bytes = bytes_of(s.layers, layer_bytes()) + (by_head ? body.layer_bytes() : 0);
    bytes.exact_sequence_bytes =
        bytes_of(s.layers, sinks.codes_page + sinks.params_page + tail.codes_page + tail.params_page);
    bytes.bytes_per_token =
        double(s.layers) * s.kv_heads * (row_bytes(p.k) + row_bytes(p.v) + (evicts ? sizeof(std::int32_t) : 0));
    idx live = ceil_div(request.slots, page_rows);
    // NOTE: where a window gives pages back, one more page than the window fills may be live, and the sinks' pages.
    if constexpr (Policy::retention_type::slides && !fixed_layout<typename Policy::layout_type>)
      live = smaller(live,
                     ceil_div(p.retention.width() - 1 + s.max_step, page_rows) + 1 + ceil_div(body_sinks, page_rows));
    bytes.bytes_per_sequence =
        bytes_of(by_head ? tables : s.layers, bytes_of(live, bytes.body_page_bytes)) + bytes.exact_sequence_bytes;
    bytes.tokens_per_sequence = live * page_rows;
    expects(larger(bytes.bytes(), bytes.bytes_per_sequence) < most_bytes, "a cache of ", s.layers, " layers, ",
            s.kv_heads, " KV heads, ", s.sequences, " sequences and ", s.tokens, " tokens, the longest of ", max_length,
            ", is beyond 2^56 bytes");
  }
};

}  // namespace detail

/// What a cache of this policy and shape takes, without allocating it. Throws `invalid_argument` as the cache would.
template <class Policy>
budget plan_bytes(const Policy& p, const cache_shape& s) {
  return detail::arrangement<Policy>(p, s).bytes;
}

}  // namespace kvilt::inline KVILT_ABI
