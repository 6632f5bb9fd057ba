#pragma once

#include <kvilt/tiers/persistence.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

template <class... Parts>
void expects_of(const std::string& path, bool held, const Parts&... parts) {
  if (!held) [[unlikely]]
    refuse<file_error, std::string, std::decay_t<const Parts&>...>(path + ": ", parts...);
}

/// A text that may be long or unprintable, for a message.
inline std::string quoted_text(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += (c >= 0 && c < ' ') || c == 127 ? '?' : c;
  return out + (text.size() > longest ? "...'" : "'");
}

/// The file's text is the one that is wanted.
inline void check_labels(const std::string& path, const saved_description& d, const text_labels& wanted) {
  expects_of(path, d.model == wanted.model, "its rows are of the model ", quoted_text(d.model), "; ",
             quoted_text(wanted.model), " is wanted");
  expects_of(path, std::ranges::equal(d.keys, wanted.keys), "its ", d.keys.size(), " keys are others than the ",
             wanted.keys.size(), " that are wanted");
  if (wanted.tokens.empty()) return;
  expects_of(path, std::ranges::equal(d.tokens, wanted.tokens), "its ", d.tokens.size(), " tokens are others than the ",
             wanted.tokens.size(), " that are wanted");
}

/// The owner keeps rows as the file has them.
inline void check_same(const std::string& path, const saved_description& d, const saved_description& here) {
  expects_of(path, d.groups.size() == here.groups.size() && d.shares == here.shares, "it has ", d.groups.size(),
             " groups of layers; the caches are ", here.groups.size(), ", or share the heads out otherwise");
  for (std::size_t g = 0; g < d.groups.size(); ++g) {
    const saved_group &has = d.groups[g], &wants = here.groups[g];
    expects_of(path, has.policy == wants.policy, "group ", g, " is ", quoted_text(has.policy), "; the cache is ",
               quoted_text(wants.policy));
    expects_of(path, has.layers == wants.layers && has.kv_heads == wants.kv_heads, "group ", g, " has ", has.layers,
               " layers of ", has.kv_heads, " KV heads; the cache has ", wants.layers, " of ", wants.kv_heads);
    expects_of(path,
               has.scales.size() == wants.scales.size() &&
                   (has.scales.empty() ||
                    std::memcmp(has.scales.data(), wants.scales.data(), has.scales.size() * sizeof(float)) == 0),
               "group ", g, " has other static scales than the cache");
  }
}

/// What a file says of evicted tokens can be, of a cache that evicts any.
template <class Policy>
listed_rows listed_in(const std::string& path, int g, const saved_group& has, idx length) {
  const idx listed = has.listed, evicted = has.evicted, body = larger(has.body - Policy::sinks, 0);
  constexpr bool evicts = evicts_tokens<typename Policy::retention_type>;
  expects_of(path, listed + evicted <= body && (evicts ? length < idx(1) << 31 : listed + evicted == 0), "group ", g,
             " has ", listed, " rows on record and ", evicted, " tokens evicted of a body of ", body, " and a text of ",
             length);
  return {std::int32_t(listed), std::int32_t(evicted)};
}

/// Positions that were read go up, from the sinks to the first row that is not on record.
template <class Policy>
void check_positions(const std::string& path, int g, const cache<Policy>& c, sequence s) {
  persistence::each_record(c, s, [&](int row, int layer, int head, const auto& body) {
    const listed_rows listed = body.on_record_of(row, head);
    const idx end = Policy::sinks + idx(listed.count) + listed.evicted;
    idx before = Policy::sinks - 1;
    for (idx i = 0; i < listed.count; ++i) {
      const idx position = body.position_of(row, head, i);
      expects_of(path, position > before && position < end, "group ", g, " has position ", position, " after ", before,
                 " in head ", head, " of layer ", layer, "; positions that go up to less than ", end, " are needed");
      before = position;
    }
  });
}

template <checksum Checksum>
block_fault read_block(const file& from, const saved_header& h, idx block, unsigned char* staged, std::uint64_t& sum) {
  const idx bytes = h.size_of(block), all = bytes + saved_header::sum_bytes;
  const idx n = from.read(staged, all, h.at(block));
  if (n < 0) return {block_fault::kind::system, block, int(-n)};
  if (n < all) return {block_fault::kind::ended, block, 0};
  std::memcpy(&sum, staged + bytes, sizeof(sum));
  const bool right = sum == block_sum<Checksum>(block, staged, bytes);
  return {right ? block_fault::kind::none : block_fault::kind::damaged, block, 0};
}

template <class Owner, checksum Checksum>
sequence restore_sequence(const host& exec, Owner& owner, const sequence_file<Checksum>& from,
                          const text_labels& wanted) {
  const saved_description& d = persistence::description(from);
  const saved_header& h = persistence::header(from);
  persistence::check_idle(owner, "restore");
  check_labels(from.path(), d, wanted);
  check_same(from.path(), d, persistence::describe(owner));
  std::vector<lengths> held;
  for (const saved_group& g : d.groups) held.push_back({d.length, d.length, g.body, g.body});

  const sequence s = owner.open();
  on_failure undo([&] { owner.close(s); });
  persistence::each(owner, [&]<class Policy>(cache<Policy>& c, int g) {
    const listed_rows listed = listed_in<Policy>(from.path(), g, d.groups[std::size_t(g)], d.length);
    persistence::hold(c, s, held[std::size_t(g)], listed);
  });
  const owner_stream<Owner> stream(owner, s, held);
  expects_of(from.path(), stream.bytes() == idx(h.stream), "it has ", h.stream, " bytes of K and V; ", d.length,
             " tokens of its policy have ", stream.bytes());
  std::vector<std::uint64_t> sums(std::size_t(h.blocks()));
  const block_fault fault = move_blocks(exec, h, [&](idx block, unsigned char* staged) {
    const block_fault read = read_block<Checksum>(persistence::bytes(from), h, block, staged, sums[std::size_t(block)]);
    if (read.what != block_fault::kind::none) return read;
    const idx first = block * idx(h.block);
    const unsigned char* next = staged;
    stream.each(first, first + h.size_of(block), [&](unsigned char* to, idx n) {
      std::memcpy(to, next, std::size_t(n));
      next += n;
    });
    return read;
  });
  using kind = block_fault::kind;
  expects_of(from.path(), fault.what != kind::system, "block ", fault.block, " cannot be read: ", reason(fault.error));
  expects_of(from.path(), fault.what != kind::ended, "it ended in block ", fault.block, " while it was read");
  expects_of(from.path(), fault.what != kind::damaged, "block ", fault.block, " of ", h.blocks(),
             " is damaged: its checksum is another");
  expects_of(from.path(), sum_of_sums<Checksum>(sums) == h.blocks_sum,
             "its blocks are not those that it was written with: the checksum of theirs is another");
  persistence::each(owner, [&](const auto& c, int g) { check_positions(from.path(), g, c, s); });
  undo.done();
  return s;
}

}  // namespace detail

/// A new sequence that holds what the saved one did, byte for byte, and goes on like it, bit for bit: in a cache of the
/// same formats, retention, sinks, tail, layers and heads, with pages of any size, contiguous or larger. `wanted` must be
/// what the file was saved with: model, keys, and, if any are given, tokens. Refused by name is what does not fit or is
/// damaged, in a block too, and then there is no new sequence: nothing has changed but bytes of pages that nobody has.
/// Throws `file_error` for what is wrong with the file, `out_of_pages` where it has no room, `invalid_argument` where the
/// cache takes no sequence as long, or in the middle of a step.
template <checksum Checksum, class Policy>
sequence restore(const host& exec, cache<Policy>& to, const sequence_file<Checksum>& from,
                 const text_labels& wanted = {}) {
  return detail::restore_sequence(exec, to, from, wanted);
}
template <checksum Checksum, class... Policies>
sequence restore(const host& exec, cache_set<Policies...>& to, const sequence_file<Checksum>& from,
                 const text_labels& wanted = {}) {
  return detail::restore_sequence(exec, to, from, wanted);
}

}  // namespace kvilt::inline KVILT_ABI
