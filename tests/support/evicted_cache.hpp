#pragma once

#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/random_places.hpp"
#include "support/subject.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace support {

using kvilt::sequence;

// A cache from whose sequences tokens are evicted, beside a plain model: lists of tokens, and of pages that sequences
// have in common, one for all of a sequence's heads or, with page tables by head, one for each. What attention gives is
// held against the oracle over the rows that the model has kept, for variants that ask where a key is.
template <class Policy>
class evicted_cache {
  static constexpr bool tabled = !kvilt::fixed_layout<typename Policy::layout_type>;

 public:
  static constexpr bool by_head = kvilt::tabled_by_head<typename Policy::layout_type>;
  static constexpr int layers = 2, heads = 2, group = 2, lists = layers * heads;
  static constexpr kvilt::cache_shape shape{
      .layers = layers, .kv_heads = heads, .sequences = 4, .tokens = 200, .max_length = 90, .max_step = 6};

  explicit evicted_cache(const Policy& policy, std::uint64_t seed = 1, const kvilt::cache_shape& of = shape)
      : policy_(policy),
        memory_(0xff),
        owner_(of, kvilt::memory<kvilt::memory_space::host>::from(memory_), policy),
        seed_(seed),
        page_(kvilt::detail::arrangement<Policy>(policy, of).page_rows) {}

  kvilt::cache<Policy>& owner() { return owner_; }
  sequence at(int tag) const { return tracks_.at(tag).handle; }
  // The most of any head.
  idx rows(int tag) const {
    std::size_t most = 0;
    for (const std::vector<idx>& r : tracks_.at(tag).rows) most = std::max(most, r.size());
    return idx(most);
  }
  idx length(int tag) const { return idx(tracks_.at(tag).tokens.size()); }
  // Positions of the rows of one layer's head.
  const std::vector<idx>& positions(int tag, int list) const { return tracks_.at(tag).rows[std::size_t(list)]; }
  std::vector<int> tags() const {
    std::vector<int> all;
    for (const auto& [tag, t] : tracks_) all.push_back(tag);
    return all;
  }
  idx used_pages() const {
    if (!tabled) return idx(tracks_.size());
    std::set<const int*> all;
    for (const auto& [tag, t] : tracks_)
      for (const auto& table : t.pages)
        for (const auto& p : table) all.insert(p.get());
    return idx(all.size());
  }
  idx free_pages() const { return owner_.bytes().body_pages - used_pages(); }

  void open(int tag) {
    tracks_[tag] = {};
    tracks_[tag].handle = owner_.open();
    tracks_[tag].rows.resize(lists);
    tracks_[tag].pages.resize(by_head ? lists : 1);
  }
  void close(int tag) {
    owner_.close(at(tag));
    tracks_.erase(tag);
  }
  // Whether there was room.
  bool reserve(int tag, idx tokens) {
    track& t = tracks_.at(tag);
    std::vector<int> replaced(t.pages.size(), -1);
    idx more = 0;
    for (std::size_t i = 0; i < t.pages.size(); ++i) {
      const std::size_t next = std::size_t(body_rows(t, i) / page_), end = end_of(t, i, tokens),
                        has = t.pages[i].size();
      if (tokens > 0 && next < has && t.pages[i][next].use_count() > 1) replaced[i] = int(next), ++more;
      more += std::max<idx>(idx(end) - idx(has), 0);
    }
    const bool fits = !tabled || more <= free_pages();
    const bool beyond = rows(tag) + tokens > shape.max_length;
    if (!beyond) CHECK(owner_.try_reserve(at(tag), tokens) == fits);
    if (beyond) CHECK_THROWS_AS(owner_.reserve(at(tag), tokens), kvilt::invalid_argument);
    if (!fits || beyond) return false;
    for (std::size_t i = 0; i < t.pages.size(); ++i) {
      if (replaced[i] >= 0) t.pages[i][std::size_t(replaced[i])] = std::make_shared<int>();
      while (t.pages[i].size() < end_of(t, i, tokens)) t.pages[i].push_back(std::make_shared<int>());
    }
    return true;
  }
  // A step of one sequence, whose room is there.
  void step(int tag, int tokens) {
    std::vector<unsigned char> workspace(owner_.workspace_bytes(host(), 1), 0xff);
    const sequence s = at(tag);
    const kvilt::step now = owner_.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
    grow(tracks_.at(tag), tokens);
    for (int layer = 0; layer < layers; ++layer) {
      append(tracks_.at(tag), now, layer, tokens);
      attend(tracks_.at(tag), now, layer, tokens);
    }
    owner_.commit(now);
  }
  void grow_to(int tag, idx length) {
    while (this->length(tag) < length) {
      const int tokens = int(std::min<idx>(5, length - this->length(tag)));
      REQUIRE(reserve(tag, tokens));
      step(tag, tokens);
    }
  }

  std::vector<int> random_places(int tag, idx count, dice& die) const {
    return support::random_places(owner_, at(tag), count, die);
  }
  // Of each layer's head some number of rows from `least` up to all: others in each, and with all that may not go.
  bool keep_random(int tag, dice& die) {
    std::vector<int> places, sizes;
    for (int list = 0; list < lists; ++list) {
      const kvilt::position_range body = owner_.evictable(at(tag), list / heads, list % heads);
      const idx all = owner_.kept(at(tag), list / heads, list % heads);
      if (by_head || list == 0) sizes.push_back(int(all - die.below(int(body.last - body.first) + 1)));
      if (!by_head && list > 0) sizes.push_back(sizes[0]);
      const std::vector<int> one = some_of(all, body, sizes.back(), die);
      places.insert(places.end(), one.begin(), one.end());
    }
    return keep(tag, places, sizes);
  }
  // As many in each.
  bool keep(int tag, const std::vector<int>& places) {
    return keep(tag, places, std::vector<int>(lists, int(places.size() / lists)));
  }
  // Whether the pages were there. Bytes of rows that stay are what they were, and those of rows that are gone become
  // 0xff, in which every float is NaN.
  bool keep(int tag, const std::vector<int>& places, const std::vector<int>& sizes) {
    track& t = tracks_.at(tag);
    const idx sinks = owner_.evictable(at(tag)).first;
    std::vector<std::vector<int>> stay;
    for (auto next = places.begin(); const int size : sizes) stay.emplace_back(next, next + size), next += size;
    std::vector<std::pair<std::size_t, std::size_t>> replaced;
    for (std::size_t i = 0; i < t.pages.size(); ++i) {
      const idx count = idx(stay[i].size());
      idx unmoved = count;
      for (std::size_t list = by_head ? i : 0; list < (by_head ? i + 1 : lists); ++list)
        for (idx j = 0; j < unmoved; ++j)
          if (stay[list][std::size_t(j)] != j) unmoved = j;
      const idx body = std::max(body_rows(t, i) - (idx(t.rows[i].size()) - count), room_for(count)),
                first = std::max<idx>(unmoved - sinks, 0);
      for (std::size_t page = std::size_t(first / page_); tabled && first < body && page < pages_of(body); ++page)
        if (t.pages[i][page].use_count() > 1) replaced.emplace_back(i, page);
    }
    const auto before = bytes();
    const auto others = bytes_of_others(tag);
    std::vector<unsigned char*> were = addresses(tag);
    const auto evict = [&] {
      if constexpr (by_head)
        owner_.keep(host(), at(tag), places, sizes);
      else
        owner_.keep(host(), at(tag), places);
    };
    if (idx(replaced.size()) > free_pages()) {
      CHECK_THROWS_AS(evict(), kvilt::out_of_pages);
      CHECK(bytes() == before);
      return false;
    }
    evict();
    for (const auto& [i, page] : replaced) t.pages[i][page] = std::make_shared<int>();
    for (std::size_t list = 0; list < lists; ++list) {
      std::vector<idx> left;
      std::vector<std::vector<unsigned char>> want;
      for (const int place : stay[list]) {
        left.push_back(t.rows[list][std::size_t(place)]);
        want.push_back(before.at(tag)[list][std::size_t(place)]);
      }
      t.rows[list] = left;
      CHECK(row_bytes(t, int(list)) == want);
    }
    shrink(t);
    CHECK(bytes_of_others(tag) == others);
    poison(were);
    return true;
  }
  bool truncate(int tag, idx length) {
    track& t = tracks_.at(tag);
    std::vector<std::size_t> counts;
    for (const std::vector<idx>& r : t.rows)
      counts.push_back(std::size_t(std::lower_bound(r.begin(), r.end(), length) - r.begin()));
    if (!by_head && std::ranges::count(counts, counts[0]) != lists) {
      const auto before = bytes();
      CHECK_THROWS_AS(owner_.truncate(at(tag), length), kvilt::invalid_argument);
      CHECK(bytes() == before);
      return false;
    }
    owner_.truncate(at(tag), length);
    t.tokens.resize(std::size_t(length));
    for (std::size_t list = 0; list < lists; ++list) t.rows[list].resize(counts[list]);
    shrink(t);
    return true;
  }
  bool fork(int tag, int child) {
    idx needed = 0;
    const track copy = forked(tracks_.at(tag), needed);
    if (needed > free_pages()) {
      CHECK_THROWS_AS(owner_.fork(host(), at(tag)), kvilt::out_of_pages);
      return false;
    }
    tracks_[child] = copy;
    tracks_[child].handle = owner_.fork(host(), at(tag));
    return true;
  }
  // Of two sequences the second becomes as the first is.
  bool reorder(int parent, int other) {
    const sequence both[] = {at(parent), at(other)};
    const int parents[] = {0, 0};
    const track before = tracks_.at(other);
    for (auto& table : tracks_.at(other).pages) table.clear();
    idx needed = 0;
    track copy = forked(tracks_.at(parent), needed);
    if (tabled && needed > free_pages()) {
      tracks_.at(other) = before;
      CHECK_THROWS_AS(owner_.reorder(host(), both, parents), kvilt::out_of_pages);
      return false;
    }
    owner_.reorder(host(), both, parents);
    copy.handle = before.handle;
    tracks_.at(other) = copy;
    return true;
  }

  // Lengths, rows, positions and pages are the model's.
  void check() {
    CHECK(owner_.free_pages() == free_pages());
    for (auto& [tag, t] : tracks_) {
      CHECK(owner_.length(t.handle) == idx(t.tokens.size()));
      CHECK(owner_.kept(t.handle) == rows(tag));
      for (int list = 0; list < lists; ++list) {
        CHECK(seen_positions(t, list) == t.rows[std::size_t(list)]);
        CHECK(owner_.kept(t.handle, list / heads, list % heads) == idx(t.rows[std::size_t(list)].size()));
      }
    }
  }

  // What the queries of an empty-handed step would see: `body(seg, place, position, head)` for each row.
  template <class Body>
  void each_row(int tag, int list, Body&& body) {
    each_row(tracks_.at(tag), list, body);
  }
  std::vector<double> key(int tag, int list, idx position) const {
    return kept_k(tracks_.at(tag).tokens[std::size_t(position)], list);
  }

 private:
  struct token {
    std::vector<float> k, v;  // [lists][dim]
    kept_as how = kept_as::body;
  };
  struct track {
    sequence handle;
    std::vector<token> tokens;  // of every position
    std::vector<std::vector<idx>> rows;
    std::vector<std::vector<std::shared_ptr<int>>> pages;  // by table, table i of the rows of list i, or of all
  };

  static idx in_body(const track& t) {
    idx tokens = 0;
    for (std::size_t i = Policy::sinks; i < t.tokens.size(); ++i) tokens += t.tokens[i].how != kept_as::exact;
    return tokens;
  }
  static idx body_rows(const track& t, std::size_t table) {
    return in_body(t) - (idx(t.tokens.size()) - idx(t.rows[table].size()));
  }
  // Rows of the body that so many tokens may take.
  static idx room_for(idx tokens) { return std::max<idx>(tokens - Policy::sinks - std::max(Policy::tail - 1, 0), 0); }
  std::size_t pages_of(idx rows) const { return tabled ? std::size_t((rows + page_ - 1) / page_) : 0; }
  // Pages of a table with room for `tokens` more.
  std::size_t end_of(const track& t, std::size_t table, idx tokens) const {
    return pages_of(room_for(idx(t.rows[table].size()) + tokens));
  }
  void shrink(track& t) const {
    for (std::size_t i = 0; i < t.pages.size(); ++i) {
      const std::size_t pages = std::max(end_of(t, i, 0), pages_of(body_rows(t, i)));
      if (t.pages[i].size() > pages) t.pages[i].resize(pages);
    }
  }
  track forked(const track& t, idx& needed) const {
    track copy = t;
    for (std::size_t table = 0; table < t.pages.size(); ++table)
      for (std::size_t i = 0; i < t.pages[table].size(); ++i)
        if (idx(i) >= body_rows(t, table) / page_ && t.pages[table][i].use_count() == 2)
          copy.pages[table][i] = std::make_shared<int>(), ++needed;
    return copy;
  }

  void grow(track& t, int tokens) {
    const idx before = idx(t.tokens.size());
    for (idx i = Policy::sinks; Policy::tail > 0 && i < before + 1 - Policy::tail; ++i)
      if (token& old = t.tokens[std::size_t(i)]; old.how == kept_as::exact) old.how = kept_as::body_of_exact;
    for (idx position = before; position < before + tokens; ++position) {
      token fresh;
      normal_numbers numbers(mixed({seed_, std::uint64_t(++salt_)}));
      for (int i = 0; i < lists * policy_.k.dim(); ++i) fresh.k.push_back(numbers.next());
      for (int i = 0; i < lists * policy_.v.dim(); ++i) fresh.v.push_back(numbers.next());
      if (position < Policy::sinks || Policy::tail > 0) fresh.how = kept_as::exact;
      t.tokens.push_back(fresh);
      for (std::vector<idx>& r : t.rows) r.push_back(position);
    }
  }
  void append(const track& t, const kvilt::step& s, int layer, int tokens) {
    std::vector<float> k, v;
    const auto add = [&](std::vector<float>& to, const std::vector<float>& all, int dim) {
      const auto first = all.begin() + layer * heads * dim;
      to.insert(to.end(), first, first + heads * dim);
    };
    for (std::size_t i = t.tokens.size() - std::size_t(tokens); i < t.tokens.size(); ++i)
      add(k, t.tokens[i].k, policy_.k.dim()), add(v, t.tokens[i].v, policy_.v.dim());
    kvilt::append(host(), owner_.view(layer), s, kvilt::packed_rows<const float>(k.data(), heads, policy_.k.dim()),
                  kvilt::packed_rows<const float>(v.data(), heads, policy_.v.dim()));
  }
  std::vector<double> kept_k(const token& t, int list) const {
    return detail::kept(policy_.k_exact(), policy_.k, t.k.data() + list * policy_.k.dim(), t.how);
  }
  std::vector<double> kept_v(const token& t, int list) const {
    return detail::kept(policy_.v_exact(), policy_.v, t.v.data() + list * policy_.v.dim(), t.how);
  }

  // ALiBi over a window, said again in double precision.
  struct biased {
    double slope;
    idx query, width;
    bool keep(const oracle_key& key) const { return key.position <= query && query - key.position < width; }
    double score(const oracle_key& key, double s) const { return s - slope * double(query - key.position); }
  };
  void attend(const track& t, const kvilt::step& s, int layer, int tokens) {
    const tensor<float> q =
        random_tensor(mixed({seed_, std::uint64_t(++salt_)}), tokens, heads * group, policy_.k.dim());
    static constexpr float slopes[] = {0.5f, 0.25f, 0.05f, 0.01f}, none[] = {0, 0, 0, 0};
    const idx all = 1 << 20, width = 37;
    compare(t, s, layer, q, none, all);
    compare(t, s, layer, q, slopes, all);
    compare(t, s, layer, q, slopes, width);
  }
  void compare(const track& t, const kvilt::step& s, int layer, const tensor<float>& q, const float* slopes,
               idx width) {
    const auto view = owner_.view(layer);
    answer<> got(q.tokens(), q.heads, policy_.v.dim());
    kvilt::attention{kvilt::compose(kvilt::causal_window{width}, kvilt::alibi{slopes})}(host(), view, s, q.rows(),
                                                                                        got.out.rows(), got.lse_rows());
    for (int head = 0; head < q.heads; ++head) {
      const int list = layer * heads + head / group;
      std::vector<std::vector<double>> k, v;
      std::vector<oracle_key> keys;
      for (const idx position : t.rows[std::size_t(list)]) {
        k.push_back(kept_k(t.tokens[std::size_t(position)], list));
        v.push_back(kept_v(t.tokens[std::size_t(position)], list));
      }
      for (std::size_t i = 0; i < k.size(); ++i) keys.push_back({k[i], v[i], t.rows[std::size_t(list)][i]});
      for (int i = 0; i < q.tokens(); ++i) {
        const biased variant{double(slopes[head]), s.items[0].query_position(i), width};
        const oracle_state want =
            oracle(widened(q.row(i, head)), keys, 1 / std::sqrt(double(q.dim)), std::size_t(policy_.v.dim()), variant);
        const float lse = got.lse_of(i, head);
        std::string wrong = difference(got.out.row(i, head), want.out, within(host(), view));
        if (wrong.empty()) wrong = difference(std::span(&lse, 1), std::vector<double>{want.lse}, within(host(), view));
        if (!wrong.empty())
          FAIL("layer " << layer << ", query " << variant.query << " over " << keys.size() << " rows, head " << head
                        << ", window " << width << ": " << wrong);
      }
    }
  }

  template <class Body>
  void each_row(const track& t, int list, Body&& body) {
    const kvilt::lengths n = owner_.holds(t.handle);
    const int row = owner_.row(t.handle), head = list % heads;
    owner_.view(list / heads).each([&](const auto& seg) {
      for (idx i = 0; i < seg.retention.count(n, row, head); ++i) {
        const kvilt::kept_row kept = seg.retention.at(n, row, head, i);
        body(seg, seg.layout.locate(row, head, kept.slot), kept.position, head);
      }
    });
  }
  std::vector<idx> seen_positions(const track& t, int list) {
    std::vector<idx> all;
    each_row(t, list, [&](const auto& seg, kvilt::place p, idx position, int head) {
      const kvilt::lengths n = owner_.holds(t.handle);
      const idx slot = seg.retention.slot(n, owner_.row(t.handle), head, position);
      const kvilt::place again = seg.layout.locate(owner_.row(t.handle), head, slot);
      CHECK((again.page == p.page && again.row == p.row));
      all.push_back(position);
    });
    return all;
  }
  std::vector<std::vector<unsigned char>> row_bytes(const track& t, int list) {
    std::vector<std::vector<unsigned char>> all;
    each_row(t, list, [&](const auto& seg, kvilt::place p, idx, int head) {
      std::vector<unsigned char> one;
      const auto add = [&](const kvilt::row_ref& r, const auto& f) {
        one.insert(one.end(), r.codes, r.codes + f.code_bytes());
        one.insert(one.end(), r.params, r.params + f.param_bytes());
      };
      add(seg.k_row(p, head), seg.k), add(seg.v_row(p, head), seg.v);
      all.push_back(one);
    });
    return all;
  }
  using bytes_by_row = std::vector<std::vector<std::vector<unsigned char>>>;
  std::map<int, bytes_by_row> bytes() {
    std::map<int, bytes_by_row> all;
    for (const auto& [tag, t] : tracks_)
      for (int list = 0; list < lists; ++list) all[tag].push_back(row_bytes(t, list));
    return all;
  }
  std::map<int, bytes_by_row> bytes_of_others(int tag) {
    std::map<int, bytes_by_row> all = bytes();
    all.erase(tag);
    return all;
  }
  // Where codes begin, of every row of one sequence.
  std::vector<unsigned char*> addresses(int tag) {
    std::vector<unsigned char*> all;
    for (int list = 0; list < lists; ++list)
      each_row(tag, list, [&](const auto& seg, kvilt::place p, idx, int head) {
        all.push_back(seg.k_row(p, head).codes), all.push_back(seg.v_row(p, head).codes);
      });
    return all;
  }
  void poison(const std::vector<unsigned char*>& were) {
    std::set<unsigned char*> live;
    for (const auto& [tag, t] : tracks_)
      for (unsigned char* row : addresses(tag)) live.insert(row);
    const int bytes = std::min(policy_.k.code_bytes(), policy_.v.code_bytes());
    for (unsigned char* row : were)
      if (!live.contains(row)) std::fill_n(row, bytes, static_cast<unsigned char>(0xff));
  }

  Policy policy_;
  test_memory memory_;
  kvilt::cache<Policy> owner_;
  std::uint64_t seed_;
  idx page_;
  int salt_ = 0;
  std::map<int, track> tracks_;
};

}  // namespace support
