#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/pages/token_hash.hpp>
#include <kvilt/tiers/checksum.hpp>
#include <kvilt/tiers/file.hpp>

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// \file
/// A file that holds a sequence: what the text's K and V were, byte for byte, and what they can be used for. Numbers are
/// little-endian, texts are a `u32` of their bytes and these, lists a `u64` of their entries and these.
///
///     0   8 bytes  89 4b 56 49 4c 54 0d 0a
///     8   u32      0x01020304: in a file of another byte order it reads 0x04030201
///     12  u32      version of what follows: 2
///     16  u64      bytes of the description
///     24  u64      bytes of the stream
///     32  u32      bytes of a block of the stream, all but the last
///     36  u32      0
///     40  16 bytes name of the checksum, filled up with zeros
///     56  u64      checksum of the checksums of all blocks, in order
///     64  u64      checksum of bytes 0 to 63 and the description
///     72           the description:
///                    text   model          as the caller names the weights
///                    list   keys, u64      tenant, adapter, digests
///                    i64    length         tokens of the sequence
///                    list   tokens, i32    the text: none, or one for each token
///                    list   shares, u32    of a set of caches, for each layer's heads in order: layer of the model,
///                                          group, the group's layer, first KV head, KV heads; of one cache none
///                    u32    groups, then for each:
///                      text  policy        its formats, dims, record bytes, retention, sinks and tail
///                      u32   layers, u32 KV heads
///                      i64   body          tokens below have left the 16-bit tail; without one as many as there are
///                      u32   listed, u32 evicted   of the body's first rows, with gaps in the text; tokens gone there
///                      list  scales, f32   static ones: [layers]{K [heads], V [heads]}
///         then the stream in blocks, each followed by a u64: the checksum of its number, a u64, and its bytes
///
/// A block in another place is none, nor is one of another file. The header is written last. The stream is that of all groups' layers in turn: see `stream_bytes`.

namespace kvilt::inline KVILT_ABI {

/// What a file says of a text besides its K and V.
struct text_labels {
  std::string_view model = {};               // which weights made the rows, say a file's name and digest
  std::span<const std::uint64_t> keys = {};  // what a prompt is asked under: tenant, adapter, digests; `prompt_options`
  std::span<const token_id> tokens = {};     // of the text: none, or one for each token of the sequence
};

namespace detail {

struct persistence;  // persistence.hpp

/// Numbers and texts one after another.
class record_writer {
 public:
  template <class Number>
  void put(Number n) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(Number));
    std::memcpy(bytes_.data() + at, &n, sizeof(Number));
  }
  void put(std::string_view text) {
    put(std::uint32_t(text.size()));
    append(text.data(), text.size());
  }
  template <class Number>
  void put(std::span<const Number> list) {
    put(std::uint64_t(list.size()));
    append(list.data(), list.size_bytes());
  }
  void append(const void* from, std::size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(from);
    if (bytes > 0) bytes_.insert(bytes_.end(), first, first + bytes);
  }
  std::vector<unsigned char>& bytes() { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
};

/// The same, read from bytes that may say anything. Once they end too early all that is read is empty.
class record_reader {
 public:
  explicit record_reader(std::span<const unsigned char> bytes) : rest_(bytes) {}

  /// Everything was there, and nothing follows.
  bool complete() const { return whole_ && rest_.empty(); }

  template <class Number>
  Number get() {
    Number n{};
    if (const auto from = take(sizeof(Number)); !from.empty()) std::memcpy(&n, from.data(), sizeof(Number));
    return n;
  }
  std::string get_text() {
    const auto from = take(get<std::uint32_t>());
    return std::string(from.begin(), from.end());
  }
  /// NOTE: what a list claims is held against what is there before anything is allocated.
  template <class Number>
  std::vector<Number> get_list() {
    const std::uint64_t count = get<std::uint64_t>();
    if (count > rest_.size() / sizeof(Number)) whole_ = false;
    std::vector<Number> list(whole_ ? std::size_t(count) : 0);
    const auto from = take(list.size() * sizeof(Number));
    if (!from.empty()) std::memcpy(list.data(), from.data(), from.size());
    return list;
  }

 private:
  std::span<const unsigned char> take(std::size_t bytes) {
    whole_ = whole_ && bytes <= rest_.size();
    const auto taken = rest_.first(whole_ ? bytes : 0);
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

  std::span<const unsigned char> rest_;
  bool whole_ = true;
};

/// A group of layers as a file describes it.
struct saved_group {
  std::string policy;
  std::uint32_t layers = 0, kv_heads = 0;
  std::int64_t body = 0;
  std::uint32_t listed = 0, evicted = 0;
  std::vector<float> scales;
};

struct saved_description {
  std::string model;
  std::vector<std::uint64_t> keys;
  std::int64_t length = 0;
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> shares;
  std::vector<saved_group> groups;
};

inline void put_description(record_writer& to, const text_labels& labels, const saved_description& d) {
  to.put(labels.model);
  to.put(labels.keys);
  to.put(d.length);
  to.put(labels.tokens);
  to.put(std::span(d.shares));
  to.put(std::uint32_t(d.groups.size()));
  for (const saved_group& g : d.groups) {
    to.put(std::string_view(g.policy));
    to.put(g.layers);
    to.put(g.kv_heads);
    to.put(g.body);
    to.put(g.listed);
    to.put(g.evicted);
    to.put(std::span(g.scales));
  }
}

/// Returns whether the bytes are a description and nothing else.
inline bool get_description(std::span<const unsigned char> bytes, saved_description& d) {
  record_reader from(bytes);
  d.model = from.get_text();
  d.keys = from.get_list<std::uint64_t>();
  d.length = from.get<std::int64_t>();
  d.tokens = from.get_list<token_id>();
  d.shares = from.get_list<std::uint32_t>();
  const auto groups = from.get<std::uint32_t>();
  constexpr std::size_t least = 36;  // bytes of a group
  if (groups > bytes.size() / least) return false;
  for (std::uint32_t g = 0; g < groups; ++g) {
    saved_group& group = d.groups.emplace_back();
    group.policy = from.get_text();
    group.layers = from.get<std::uint32_t>();
    group.kv_heads = from.get<std::uint32_t>();
    group.body = from.get<std::int64_t>();
    group.listed = from.get<std::uint32_t>();
    group.evicted = from.get<std::uint32_t>();
    group.scales = from.get_list<float>();
  }
  return from.complete() && d.length >= 0 && d.length < no_end &&
         (d.tokens.empty() || std::int64_t(d.tokens.size()) == d.length);
}

/// What stands before the description.
struct saved_header {
  static constexpr unsigned char signature[8] = {0x89, 'K', 'V', 'I', 'L', 'T', '\r', '\n'};
  static constexpr std::uint32_t byte_order = 0x01020304, other_order = 0x04030201, newest = 2;
  static constexpr std::size_t bytes = 72, summed = 64, name_bytes = 16;
  static constexpr std::uint32_t usual_block = 1 << 18, largest_block = 1 << 24;
  static constexpr idx sum_bytes = 8;
  // NOTE: so that sums of these, and of a checksum for each byte, are far from what 64 bits count to.
  static constexpr std::uint64_t most_description = std::uint64_t(1) << 30, most_stream = std::uint64_t(1) << 59;

  unsigned char magic[8] = {};
  std::uint32_t order = byte_order, version = newest;
  std::uint64_t description = 0, stream = 0;
  std::uint32_t block = usual_block, zero = 0;
  char checksum[name_bytes] = {};
  std::uint64_t blocks_sum = 0, sum = 0;

  idx blocks() const { return ceil_div(idx(stream), idx(block)); }
  idx first_block() const { return idx(bytes + description); }
  idx at(idx nth) const { return first_block() + nth * (idx(block) + sum_bytes); }
  idx size_of(idx nth) const { return smaller(idx(stream) - nth * idx(block), block); }
  idx file_bytes() const { return first_block() + idx(stream) + blocks() * sum_bytes; }
};
static_assert(sizeof(saved_header) == saved_header::bytes);

/// The checksums of blocks and headers: see the head of this file.
template <checksum C>
std::uint64_t block_sum(idx block, const unsigned char* bytes, idx count) {
  unsigned char number[sizeof(idx)];
  std::memcpy(number, &block, sizeof(idx));
  return C::of(C::of(0, number, sizeof(number)), bytes, std::size_t(count));
}
template <checksum C>
std::uint64_t sum_of_sums(const std::vector<std::uint64_t>& sums) {
  return C::of(0, reinterpret_cast<const unsigned char*>(sums.data()), sums.size() * sizeof(std::uint64_t));
}
template <checksum C>
std::uint64_t header_sum(const saved_header& h, const std::vector<unsigned char>& description) {
  const std::uint64_t sum = C::of(0, reinterpret_cast<const unsigned char*>(&h), saved_header::summed);
  return C::of(sum, description.data(), description.size());
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
