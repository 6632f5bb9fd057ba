#pragma once

#include <kvilt/cache/cache_set.hpp>
#include <kvilt/tiers/policy_identity.hpp>
#include <kvilt/tiers/sequence_file.hpp>
#include <kvilt/tiers/sequence_stream.hpp>

#include <array>
#include <type_traits>

namespace kvilt::inline KVILT_ABI::detail {

/// What saving and restoring do with an owner, a `cache` or a `cache_set`, besides its verbs.
struct persistence {
  /// `body(cache, group)` for each cache of an owner.
  template <class Policy, class Body>
  static void each(const cache<Policy>& owner, Body&& body) {
    body(owner, 0);
  }
  template <class Policy, class Body>
  static void each(cache<Policy>& owner, Body&& body) {
    body(owner, 0);
  }
  template <class Set, class Body>
  requires requires { Set::groups; }
  static void each(Set& owner, Body&& body) {
    int g = 0;
    const auto next = [&](auto& c) { in_group(g, [&] { body(c, g); }), ++g; };
    std::apply([&](auto&... c) { (next(c), ...); }, owner.caches_);
  }

  /// What the file is to say of the owner; a sequence's lengths are not in it yet.
  template <class Owner>
  static saved_description describe(const Owner& owner) {
    saved_description d;
    if constexpr (requires { Owner::groups; })
      for (int layer = 0; layer < owner.layers(); ++layer)
        for (const layer_share& share : owner.shares(layer))
          for (const int n : {layer, share.group, share.layer, share.heads.first, share.heads.count})
            d.shares.push_back(std::uint32_t(n));
    each(owner, [&]<class Policy>(const cache<Policy>& c, int) {
      static_assert(!cache<Policy>::by_head || !cache<Policy>::evicts,
                    "kvilt: a text from which tokens were evicted by head is not saved");
      d.groups.push_back({policy_identity(c.policy_), std::uint32_t(c.shape_.layers), std::uint32_t(c.shape_.kv_heads),
                          0, 0, 0, scales_of(c)});
    });
    return d;
  }

  /// Throws in the middle of a step.
  template <class Owner>
  static void check_idle(const Owner& owner, const char* verb) {
    each(owner, [&](const auto& c, int) { c.check_idle(verb); });
  }

  /// What of a sequence is listed; nothing where no tokens are evicted.
  template <class Policy>
  static listed_rows listed_of(const cache<Policy>& c, sequence s) {
    if constexpr (cache<Policy>::evicts)
      return c.lists()[c.row(s)];
    else
      return {};
  }

  /// A new sequence holds what is to be restored: it has a page for each row, none for what its window has left. Throws
  /// as `reserve` and `adopt` do.
  template <class Policy>
  static void hold(cache<Policy>& c, sequence s, const lengths& n, listed_rows listed) {
    using cache_type = cache<Policy>;
    check_holding<Policy>(s.slot, n, c.shape_.max_step);
    const idx tokens = n.after - listed.evicted;
    if constexpr (!cache_type::tabled) {
      c.reserve(s, tokens);
    } else {
      expects(tokens <= c.plan_.max_length, "sequence ", s.slot, " is to hold ", tokens,
              " tokens; the longest may have ", c.plan_.max_length);
      const idx page = c.plan_.page_rows, in_body = larger(n.body_after - Policy::exact_sinks - listed.evicted, 0);
      const idx end = larger(c.pages_for(tokens), c.pages_of_rows(in_body));
      idx sinks = 0, first = 0;
      if constexpr (cache_type::slides) {
        const idx left = larger(first_seen(n.after, c.policy_.retention.width()) - Policy::sinks, 0);
        sinks = smaller(ceil_div(c.first_body_slot(), page), end);
        first = smaller(larger((c.first_body_slot() + left) / page, sinks), end);
      }
      const idx pages = (sinks + end - first) * c.tables();
      expects<out_of_pages>(pages <= c.pages_.free(), "sequence ", s.slot, " needs ", pages, " pages for the ", tokens,
                            " tokens of a file; ", c.pages_.free(), " of ", c.pages_.total(), " are free");
      c.each_table(c.row(s), [&](int t) {
        c.pages_.take(t, 0, sinks);
        c.pages_.take(t, first, end);
        c.filled(t) = end;
      });
    }
    if constexpr (cache_type::evicts)
      c.adopt_listed(s, n, listed);
    else
      c.adopt(s, n);
  }

  /// `body(row, layer, head, retention)` for the body of each layer and head, where positions are on record.
  template <class Policy, class Body>
  static void each_record(const cache<Policy>& c, sequence s, Body&& body) {
    for (int layer = 0; layer < c.shape_.layers; ++layer)
      c.view(layer).each([&](const auto& seg) {
        if constexpr (leaves_gaps<typename std::remove_cvref_t<decltype(seg)>::retention_type>())
          for (int head = 0; head < c.shape_.kv_heads; ++head) body(c.row(s), layer, head, seg.retention);
      });
  }

  /// The file's header, and what of it `restore` needs.
  template <checksum C>
  static const saved_header& header(const sequence_file<C>& f) {
    return f.header_;
  }
  template <checksum C>
  static const saved_description& description(const sequence_file<C>& f) {
    return f.description_;
  }
  template <checksum C>
  static const file& bytes(const sequence_file<C>& f) {
    return f.file_;
  }

 private:
  /// The static scales of all layers, bit for bit as the caller set them.
  template <class Policy>
  static std::vector<float> scales_of(const cache<Policy>& c) {
    std::vector<float> scales;
    if constexpr (cache<Policy>::has_static_scales)
      for (int layer = 0; layer < c.shape_.layers; ++layer) {
        const layer_scales& of = c.scales_[std::size_t(layer)];
        add_scales<typename Policy::k_format>("K", layer, of.k, c.shape_.kv_heads, scales);
        add_scales<typename Policy::v_format>("V", layer, of.v, c.shape_.kv_heads, scales);
      }
    return scales;
  }
  template <class F>
  static void add_scales(const char* which, int layer, const plane& of, int heads, std::vector<float>& scales) {
    if constexpr (has_static_scale<F>) {
      expects(of.base != nullptr, which, "'s static scale of layer ", layer, " is not set");
      for (int head = 0; head < heads; ++head) scales.push_back(read<float>(of.at({}, head, 0)));
    }
  }
};

/// The streams of an owner's layers, one after another, for one sequence.
template <class Owner>
class owner_stream {
 public:
  explicit owner_stream(const Owner& owner, sequence s, const std::vector<lengths>& held) : owner_(owner) {
    persistence::each(owner, [&](const auto& c, int g) {
      const held_sequence in{c.row(s), held[std::size_t(g)]};
      groups_.push_back({in, kvilt::detail::stream_bytes(c.view(0), in)});
      bytes_ += groups_.back().layer_bytes * c.shape().layers;
    });
  }

  idx bytes() const { return bytes_; }

  /// Bytes [first, last): `visit(bytes in memory, how many)`, in order.
  template <class Visit>
  void each(idx first, idx last, Visit&& visit) const {
    idx begin = 0;  // of the group
    persistence::each(owner_, [&](const auto& c, int g) {
      const group& of = groups_[std::size_t(g)];
      const idx layer = of.layer_bytes, bytes = layer * c.shape().layers;
      for (idx at = larger(first, begin); at < smaller(last, begin + bytes);) {
        const idx nth = (at - begin) / layer, base = begin + nth * layer, end = smaller(last, base + layer);
        each_stretch(c.view(int(nth)), of.held, at - base, end - base, visit);
        at = end;
      }
      begin += bytes;
    });
  }

 private:
  struct group {
    held_sequence held;
    idx layer_bytes = 0;
  };
  const Owner& owner_;
  std::vector<group> groups_;
  idx bytes_ = 0;
};

/// What happened to a worker's block first.
struct block_fault {
  enum class kind : unsigned char { none, system, ended, damaged };
  kind what = kind::none;
  idx block = 0;
  int error = 0;  // errno

  static const block_fault& earliest(const std::vector<block_fault>& all) {
    const block_fault* first = &all[0];
    for (const block_fault& f : all)
      if (f.what != kind::none && (first->what == kind::none || f.block < first->block)) first = &f;
    return *first;
  }
};

/// `move(block, bytes for it and its sum)` for every block, on all workers of the host; each returns what went wrong. The
/// first fault, or none.
template <class Move>
block_fault move_blocks(const host& exec, const saved_header& h, Move&& move) {
  const std::size_t room = std::size_t(smaller(h.block, idx(h.stream)) + saved_header::sum_bytes);
  std::vector<std::vector<unsigned char>> staged(std::size_t(exec.workers()), std::vector<unsigned char>(room));
  std::vector<block_fault> faults(staged.size());
  exec.for_each(h.blocks(), [&](idx block, int worker) {
    block_fault& known = faults[std::size_t(worker)];
    if (known.what != block_fault::kind::none) return;
    known = move(block, staged[std::size_t(worker)].data());
    known.block = block;
  });
  return block_fault::earliest(faults);
}

}  // namespace kvilt::inline KVILT_ABI::detail
