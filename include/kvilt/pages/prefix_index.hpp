#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/pages/page_array.hpp>
#include <kvilt/pages/prefix_roots.hpp>
#include <kvilt/pages/token_hash.hpp>

#include <array>
#include <cstring>
#include <span>

namespace kvilt::inline KVILT_ABI {

/// Where a prefix ends: at a page of the index, or at a root; and its name.
struct prefix_end {
  page_id page = -1;  // -1: no page yet
  int root = -1;
  std::uint64_t name = 0;
};

/// Rows of a page whose first tokens are those that are looked for.
struct prefix_tail {
  page_id page = -1;
  int rows = 0;
};

/// Which page holds which prefix: a trie whose nodes are pages. A full page is found by the name of its whole prefix, in
/// one step whatever its depth, and then compared: its tokens one by one, and the page before it, which has been compared
/// already; the first with its root, and that with its extra keys. A page with fewer tokens is found among those that
/// follow on the same prefix, and nothing follows on it. Knows tokens and ids; who holds a page is not its affair.
/// 24 bytes a page for the trie, 13 for the table, and the tokens.
template <prefix_hash Hash = token_hash>
class prefix_index {
 public:
  /// Pages whose memory is waited for together.
  static constexpr idx batch = 32;
  using batch_names = std::array<std::uint64_t, batch>;

  prefix_index(idx pages, int page_tokens, Hash hash)
      : page_tokens_(page_tokens),
        hash_(hash),
        nodes_(std::size_t(pages)),
        tokens_(std::size_t(pages) * std::size_t(page_tokens)),
        slots_(std::size_t(pages * 8 / 5 + 1)) {}

  int page_tokens() const { return page_tokens_; }
  idx pages() const { return idx(nodes_.size()); }
  idx roots() const { return roots_.count(); }

  /// A page's tokens, to be written while it is not in the index.
  token_id* tokens(page_id p) { return tokens_.data() + std::size_t(p) * std::size_t(page_tokens_); }
  const token_id* tokens(page_id p) const { return const_cast<prefix_index*>(this)->tokens(p); }

  /// The empty prefix under `keys`. It is there until `close_root`, and while pages follow on it.
  prefix_end open_root(std::span<const std::uint64_t> keys) {
    const std::uint64_t name = hash_.root(keys);
    return {-1, roots_.open(keys, name), name};
  }
  /// The same where it is there, to look at; a root of -1 where it is not.
  prefix_end find_root(std::span<const std::uint64_t> keys) const {
    const std::uint64_t name = hash_.root(keys);
    return {-1, roots_.find(keys, name), name};
  }
  void share_root(int root) { roots_.use(root); }
  void close_root(int root) { roots_.close(root); }
  std::span<const std::uint64_t> keys(int root) const { return roots_.keys(root); }
  std::uint64_t root_name(int root) const { return roots_.name(root); }

  /// Goes on from `end` over full pages as far as the index does, `found(page)` for each.
  template <class Found>
  void find(prefix_end& end, std::span<const token_id> tokens, Found&& found) const {
    const idx pages = idx(tokens.size()) / page_tokens_;
    std::uint64_t name = end.name;
    batch_names names;
    for (idx first = 0; first < pages; first += batch) {
      const int n = int(smaller(batch, pages - first));
      const token_id* t = tokens.data() + first * page_tokens_;
      for (int i = 0; i < n; ++i) {
        names[std::size_t(i)] = name = hash_.page(name, t + i * page_tokens_, page_tokens_);
        prefetch(slot_of(name));
      }
      // NOTE: all misses of a batch are under way before the first is waited for.
      for (int i = 0; i < n; ++i) prefetch_candidate(names[std::size_t(i)]);
      for (int i = 0; i < n; ++i) {
        const page_id p = at(names[std::size_t(i)], place_of(end), t + i * page_tokens_);
        if (p < 0) return;
        end = {p, end.root, names[std::size_t(i)]};
        found(p);
      }
    }
  }

  /// Of the pages that follow on `end` the one that has most in common with `tokens` at its beginning; the newest few
  /// are looked at.
  prefix_tail find_tail(const prefix_end& end, std::span<const token_id> tokens) const {
    prefix_tail best;
    page_id p = first_after(end);
    for (int looked = 0; p >= 0 && looked < most_looked_at; ++looked, p = node_of(p).next) {
      const token_id* t = this->tokens(p);
      const int most = int(smaller(rows(p), idx(tokens.size())));
      int n = 0;
      while (n < most && t[n] == tokens[std::size_t(n)]) ++n;
      if (n > best.rows) best = {p, n};
    }
    return best;
  }

  /// Names of prefixes that go on from `end` over full pages, at most `batch`, by the tokens that stand in them. Looks at
  /// nothing else; what `insert` reads first is asked for.
  void name(const prefix_end& end, std::span<const page_id> pages, batch_names& names) const {
    std::uint64_t name = end.name;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      names[i] = name = hash_.page(name, tokens(pages[i]), page_tokens_);
      prefetch(slot_of(name));
    }
  }
  /// Enters full pages that follow on `end` by these names; `end` goes on over them. Where the index has such a page
  /// already, `twice(there, page)` is called and the page is not entered, else `entered(page, before)`.
  template <class Entered, class Twice>
  void insert(prefix_end& end, std::span<const page_id> pages, const batch_names& names, Entered&& entered,
              Twice&& twice) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const prefix_end before = end;
      const page_id there = at(names[i], place_of(end), tokens(pages[i]));
      end = {there >= 0 ? there : pages[i], end.root, names[i]};
      if (there >= 0) {
        twice(there, pages[i]);
        continue;
      }
      put(pages[i], names[i]);
      link(pages[i], before);
      entered(pages[i], before);
    }
  }
  /// Enters a page of which the first `rows` tokens stand, fewer than a page has.
  void insert_tail(const prefix_end& end, page_id p, int rows) {
    link(p, end);
    node_of(p).child = -1 - rows;
  }

  /// Nothing follows on the page.
  bool leaf(page_id p) const { return node_of(p).child < 0; }
  int rows(page_id p) const { return node_of(p).child < -1 ? -1 - node_of(p).child : page_tokens_; }
  std::uint64_t name(page_id p) const { return node_of(p).name; }
  /// The page before it, or -1.
  page_id before(page_id p) const { return node_of(p).place & root_bit ? -1 : page_id(node_of(p).place); }
  /// The root of a page without one before it.
  int root(page_id p) const { return int(node_of(p).place & ~root_bit); }

  /// Before `prefetch_erase`, which reads what this asks for.
  void prefetch_node(page_id p) const { prefetch(&node_of(p)); }
  void prefetch_erase(page_id p) const {
    const std::size_t s = home(hash_.place(node_of(p).name));
    prefetch(&slots_[s]);
    if (s + 8 < slots_.size()) prefetch(&slots_[s + 8]);  // what stands behind a hole may move
  }
  /// Takes a leaf out.
  void erase(page_id p) {
    if (rows(p) == page_tokens_) take_out(p);
    unlink(p);
  }

 private:
  // `name`: of a page with all its rows. `place`: the page before it, or root_bit and its root. `child`: a page that
  // follows, -1 for none, -1 - rows where there are fewer. `next`, `previous`: that follow on the same prefix.
  struct node {
    std::uint64_t name = 0;
    std::uint32_t place = 0;
    page_id child = -1, next = -1, previous = -1;
  };
  static constexpr std::uint32_t root_bit = std::uint32_t(1) << 31;
  static constexpr int most_looked_at = 8;

  static void prefetch(const void* p) { __builtin_prefetch(p); }
  node& node_of(page_id p) { return nodes_[std::size_t(p)]; }
  const node& node_of(page_id p) const { return nodes_[std::size_t(p)]; }
  static std::uint32_t place_of(const prefix_end& e) {
    return e.page >= 0 ? std::uint32_t(e.page) : root_bit | std::uint32_t(e.root);
  }

  // The table: open addressing, linear probing. A slot has the upper half of what a name hashes to, and 1 + page.
  std::size_t home(std::uint64_t hashed) const { return std::size_t((hashed >> 32) * slots_.size() >> 32); }
  const std::uint64_t* slot_of(std::uint64_t name) const { return &slots_[home(hash_.place(name))]; }
  std::size_t after(std::size_t s) const { return s + 1 == slots_.size() ? 0 : s + 1; }

  void prefetch_candidate(std::uint64_t name) const {
    const std::uint64_t hashed = hash_.place(name), slot = slots_[home(hashed)];
    if (slot == 0 || (slot ^ hashed) >> 32) return;
    const page_id p = page_id(std::uint32_t(slot) - 1);
    prefetch(&node_of(p));
    prefetch(tokens(p));
  }
  page_id at(std::uint64_t name, std::uint32_t place, const token_id* t) const {
    const std::uint64_t hashed = hash_.place(name);
    for (std::size_t s = home(hashed); slots_[s]; s = after(s)) {
      if ((slots_[s] ^ hashed) >> 32) continue;
      const page_id p = page_id(std::uint32_t(slots_[s]) - 1);
      if (node_of(p).place == place && same(tokens(p), t)) return p;
    }
    return -1;
  }
  bool same(const token_id* a, const token_id* b) const {
    if (page_tokens_ == 16)
      return std::memcmp(a, b, 16 * sizeof(token_id)) == 0;  // the compiler has a few vectors for it
    return std::memcmp(a, b, std::size_t(page_tokens_) * sizeof(token_id)) == 0;
  }
  void put(page_id p, std::uint64_t name) {
    const std::uint64_t hashed = hash_.place(name);
    std::size_t s = home(hashed);
    while (slots_[s]) s = after(s);
    slots_[s] = (hashed >> 32) << 32 | (std::uint32_t(p) + 1);
    node_of(p).name = name;
  }
  void take_out(page_id p) {
    std::size_t hole = home(hash_.place(node_of(p).name));
    while (std::uint32_t(slots_[hole]) != std::uint32_t(p) + 1) hole = after(hole);
    // What would no longer be found behind the hole moves into it: what stands as far from its home as from the hole.
    std::size_t from_hole = 1;
    for (std::size_t s = after(hole); slots_[s]; s = after(s), ++from_hole) {
      const std::size_t wanted = home(slots_[s]), from_home = s >= wanted ? s - wanted : s + slots_.size() - wanted;
      if (from_home < from_hole) continue;
      slots_[hole] = slots_[s];
      hole = s;
      from_hole = 0;
    }
    slots_[hole] = 0;
  }

  // The trie.
  page_id first_after(const prefix_end& e) const {
    if (e.page >= 0) return leaf(e.page) ? -1 : node_of(e.page).child;
    return const_cast<prefix_index*>(this)->roots_.first_page(e.root);
  }
  page_id& first_at(std::uint32_t place) {
    return place & root_bit ? roots_.first_page(int(place & ~root_bit)) : node_of(page_id(place)).child;
  }
  void link(page_id p, const prefix_end& e) {
    const std::uint32_t place = place_of(e);
    page_id& first = first_at(place);
    node& n = node_of(p);
    n.place = place;
    n.child = n.previous = -1;
    n.next = first;
    if (first >= 0) node_of(first).previous = p;
    first = p;
    if (place & root_bit) roots_.use(e.root);
  }
  void unlink(page_id p) {
    const node n = node_of(p);
    if (n.next >= 0) node_of(n.next).previous = n.previous;
    if (n.previous >= 0)
      node_of(n.previous).next = n.next;
    else
      first_at(n.place) = n.next;
    if (n.place & root_bit) roots_.close(root(p));
  }

  int page_tokens_;
  Hash hash_;
  detail::page_array<node> nodes_;           // [pages]
  detail::page_array<token_id> tokens_;      // [pages][page_tokens]
  detail::page_array<std::uint64_t> slots_;  // five of eight are used when every page is in the index
  detail::prefix_roots roots_;
};

}  // namespace kvilt::inline KVILT_ABI
