#pragma once

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/subject.hpp"

#include <map>

namespace support {

// One sequence's part of a step; `accepted` below 0: all.
struct portion {
  int tag = 0;  // the sequence's name in the session: its numbers depend on it alone
  int new_tokens = 0;
  int accepted = -1;
  std::vector<int> path = {};  // of the new tokens, which are then a tree's nodes; not empty: what is accepted
};

// Drives a cache, and beside it a brute-force model: every token's numbers in a plain list, kept as the policy's words
// say. Each answer of the cache is compared with the oracle's over that list.
class session {
 public:
  session(subject& cache, int group, std::uint64_t seed = 1, int checks_per_part = 1 << 30)
      : cache_(cache),
        heads_(cache.shape().kv_heads),
        layers_(cache.shape().layers),
        group_(group),
        seed_(seed),
        checks_(checks_per_part) {}

  // A new sequence is as an old one; sequence `tags[i]` continues what `tags[parents[i]]` was.
  void fork(const host& exec, int tag, int child) {
    const sequence s = cache_.fork(exec, at(tag));
    tracks_[child] = {s, tracks_.at(tag).tokens, {}};
  }
  void reorder(const host& exec, const std::vector<int>& tags, const std::vector<int>& parents) {
    std::vector<sequence> handles;
    for (const int tag : tags) handles.push_back(at(tag));
    cache_.reorder(exec, handles, parents);
    const std::map<int, track> before = tracks_;
    for (std::size_t i = 0; i < tags.size(); ++i)
      tracks_.at(tags[i]).tokens = before.at(tags[std::size_t(parents[i])]).tokens;
  }

  void open(int tag) { tracks_[tag] = {cache_.open(), {}, {}}; }
  void close(int tag) {
    cache_.close(at(tag));
    tracks_.erase(tag);
  }
  void truncate(int tag, idx length) {
    cache_.truncate(at(tag), length);
    tracks_.at(tag).tokens.resize(std::size_t(length));
  }
  sequence at(int tag) const { return tracks_.at(tag).handle; }
  idx length(int tag) const { return idx(tracks_.at(tag).tokens.size()); }
  // Every output and log-sum-exp of a sequence, in the order of its queries.
  const std::vector<float>& answers(int tag) const { return tracks_.at(tag).answers; }
  // Tokens from now on are other ones.
  void resalt() { ++salt_; }
  // Makes this sequence's token at this position NaN; -1: none.
  void poison(int tag, idx position) { nan_tag_ = tag, nan_position_ = position; }

  // Every append from now on is done this often.
  void repeat_appends(int times) { appends_ = times; }

  // begin, and append and attend in each layer, compare, commit. Room must be reserved.
  void step(const host& exec, const std::vector<portion>& parts) {
    std::vector<unsigned char> workspace;
    std::vector<int> accepted, nodes;
    bool trees = false;
    std::map<int, std::vector<token>> before;
    for (const portion& p : parts) {
      accepted.push_back(!p.path.empty() ? int(p.path.size()) : p.accepted < 0 ? p.new_tokens : p.accepted);
      trees = trees || !p.path.empty();
      for (int i = 0; i < accepted.back(); ++i) nodes.push_back(p.path.empty() ? i : p.path[std::size_t(i)]);
      // What has left the tail is there again.
      if (accepted.back() == 0) before[p.tag] = tracks_.at(p.tag).tokens;
    }
    const kvilt::step s = begin(exec, parts, workspace);
    for (const portion& p : parts) grow(tracks_.at(p.tag), p);
    for (int layer = 0; layer < layers_; ++layer) {
      append(exec, s, layer, parts);
      attend(exec, s, layer, parts);
      if (trees) cache_.keep_path(exec, layer, s, nodes, accepted);
    }
    cache_.commit(s, accepted);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      track& t = tracks_.at(parts[i].tag);
      if (accepted[i] == 0)
        t.tokens = std::move(before[parts[i].tag]);
      else
        keep_path(t, parts[i], accepted[i]);
      if (cache_.length(t.handle) != idx(t.tokens.size())) FAIL("length " << cache_.length(t.handle));
    }
  }

  // begin, and append in the first `layers` layers; then the forward pass fails. `end(step)` ends it.
  template <class End>
  void fail(const host& exec, const std::vector<portion>& parts, int layers, End end) {
    std::vector<unsigned char> workspace;
    const kvilt::step s = begin(exec, parts, workspace);
    const std::map<int, track> before = tracks_;
    for (const portion& p : parts) grow(tracks_.at(p.tag), p);
    for (int layer = 0; layer < layers; ++layer) append(exec, s, layer, parts);
    end(s);
    tracks_ = before;
  }

  // The same with room reserved first, and split where the cache takes no step as long.
  void grow_by(const host& exec, std::vector<portion> parts) {
    const bool limited = cache_.width > 0 || cache_.tail > 0;
    for (const portion& p : parts) cache_.reserve(at(p.tag), p.new_tokens);
    for (bool more = true; more;) {
      std::vector<portion> now = parts;
      more = false;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (limited && now[i].new_tokens > cache_.shape().max_step) now[i].new_tokens = cache_.shape().max_step;
        parts[i].new_tokens -= now[i].new_tokens;
        more = more || parts[i].new_tokens > 0;
      }
      step(exec, now);
    }
  }

 private:
  // A token in every layer and head.
  struct token {
    std::vector<float> k, v;  // as given: [layers][heads][dim]
    std::vector<std::vector<double>> kept_k, kept_v;
    bool in_body = false;
  };
  struct track {
    sequence handle;
    std::vector<token> tokens;
    std::vector<float> answers;
  };

  void keep(token& t, kept_as how) const {
    t.kept_k.clear(), t.kept_v.clear();
    for (int i = 0; i < layers_ * heads_; ++i) {
      t.kept_k.push_back(cache_.kept_k(t.k.data() + i * cache_.k_dim, how));
      t.kept_v.push_back(cache_.kept_v(t.v.data() + i * cache_.v_dim, how));
    }
  }

  void add_row(std::vector<float>& to, int what, int tag, idx position, int row, int dim, bool nan = false) const {
    normal_numbers numbers(mixed({seed_, std::uint64_t(salt_), std::uint64_t(what), std::uint64_t(tag),
                                  std::uint64_t(position), std::uint64_t(row)}));
    for (int d = 0; d < dim; ++d) to.push_back(nan ? NAN : numbers.next());
  }

  // The committed tokens that are no longer among the newest `tail` once the step's first token is there leave the tail
  // for good; then the new ones come.
  void grow(track& t, const portion& p) {
    const idx before = idx(t.tokens.size());
    if (cache_.tail > 0 && p.new_tokens > 0)
      for (idx i = cache_.sinks; i < before + 1 - cache_.tail; ++i)
        if (token& old = t.tokens[std::size_t(i)]; !old.in_body) {
          keep(old, kept_as::body_of_exact);
          old.in_body = true;
        }
    for (idx position = before; position < before + p.new_tokens; ++position) {
      token fresh;
      const bool nan = p.tag == nan_tag_ && position == nan_position_;
      for (int i = 0; i < layers_ * heads_; ++i) {
        add_row(fresh.k, 0, p.tag, position, i, cache_.k_dim, nan);
        add_row(fresh.v, 1, p.tag, position, i, cache_.v_dim, nan);
      }
      const bool exact = position < cache_.sinks ? cache_.exact_sinks > 0 : cache_.tail > 0;
      keep(fresh, exact ? kept_as::exact : kept_as::body);
      t.tokens.push_back(std::move(fresh));
    }
  }

  // Of the new tokens the accepted ones.
  static void keep_path(track& t, const portion& p, int accepted) {
    const std::size_t before = t.tokens.size() - std::size_t(p.new_tokens);
    for (std::size_t i = 0; i < p.path.size(); ++i)
      if (p.path[i] != int(i)) t.tokens[before + i] = t.tokens[before + std::size_t(p.path[i])];
    t.tokens.resize(before + std::size_t(accepted));
  }

  kvilt::step begin(const host& exec, const std::vector<portion>& parts, std::vector<unsigned char>& workspace) {
    std::vector<sequence> sequences;
    std::vector<int> new_tokens;
    for (const portion& p : parts) {
      sequences.push_back(at(p.tag));
      new_tokens.push_back(p.new_tokens);
    }
    workspace.assign(cache_.workspace_bytes(exec, int(parts.size())), 0xff);
    return cache_.begin(exec, sequences, new_tokens, workspace);
  }

  void append(const host& exec, const kvilt::step& s, int layer, const std::vector<portion>& parts) {
    std::vector<float> k, v;
    for (const portion& p : parts) {
      const track& t = tracks_.at(p.tag);
      for (std::size_t i = t.tokens.size() - std::size_t(p.new_tokens); i < t.tokens.size(); ++i) {
        const auto layer_rows = [&](const std::vector<float>& all, int dim) {
          return std::span(all).subspan(std::size_t(layer * heads_ * dim), std::size_t(heads_ * dim));
        };
        for (float x : layer_rows(t.tokens[i].k, cache_.k_dim)) k.push_back(x);
        for (float x : layer_rows(t.tokens[i].v, cache_.v_dim)) v.push_back(x);
      }
    }
    for (int i = 0; i < appends_; ++i)
      cache_.append(exec, layer, s, kvilt::packed_rows<const float>(k.data(), heads_, cache_.k_dim),
                    kvilt::packed_rows<const float>(v.data(), heads_, cache_.v_dim));
  }

  void attend(const host& exec, const kvilt::step& s, int layer, const std::vector<portion>& parts) {
    const int q_heads = heads_ * group_;
    std::vector<float> q, out(std::size_t(s.q_rows * q_heads * cache_.v_dim), NAN),
        lse(std::size_t(s.q_rows * q_heads), NAN);
    for (const portion& p : parts) {
      const idx length = idx(tracks_.at(p.tag).tokens.size());
      for (idx position = length - p.new_tokens; position < length; ++position)
        for (int row = 0; row < q_heads; ++row) add_row(q, 2 + layer, p.tag, position, row, cache_.k_dim);
    }
    cache_.attend(exec, layer, s, kvilt::packed_rows<const float>(q.data(), q_heads, cache_.k_dim),
                  kvilt::packed_rows(out.data(), q_heads, cache_.v_dim), {lse.data(), q_heads});
    // The other sets of instructions must agree with the oracle too, in turn: they are tested whatever machine this is.
    const auto sets = instruction_sets();
    const host other = exec.with(sets[std::size_t(++turn_) % sets.size()]);
    std::vector<float> other_out(out.size(), NAN), other_lse(lse.size(), NAN);
    cache_.attend(other, layer, s, kvilt::packed_rows<const float>(q.data(), q_heads, cache_.k_dim),
                  kvilt::packed_rows(other_out.data(), q_heads, cache_.v_dim), {other_lse.data(), q_heads});
    std::size_t row = 0;
    for (const portion& p : parts) {
      track& t = tracks_.at(p.tag);
      for (int i = 0; i < p.new_tokens; ++i, ++row) {
        const idx position = idx(t.tokens.size()) - p.new_tokens + i;
        const bool checked = i < checks_ / 2 || p.new_tokens - i <= (checks_ + 1) / 2;
        for (int head = 0; head < q_heads; ++head) {
          const std::size_t at = row * std::size_t(q_heads) + std::size_t(head);
          const std::span<const float> got =
              std::span(out).subspan(at * std::size_t(cache_.v_dim), std::size_t(cache_.v_dim));
          t.answers.insert(t.answers.end(), got.begin(), got.end());
          t.answers.push_back(lse[at]);
          if (!checked) continue;
          const oracle_state want = wanted(t, layer, position, head, q.data() + at * std::size_t(cache_.k_dim));
          const auto where = [&] {
            return "layer " + std::to_string(layer) + ", query " + std::to_string(position) + " of " +
                   std::to_string(t.tokens.size()) + ", head " + std::to_string(head);
          };
          check(exec, want, got, lse[at], where);
          check(other, want,
                std::span<const float>(other_out).subspan(at * std::size_t(cache_.v_dim), std::size_t(cache_.v_dim)),
                other_lse[at], where);
        }
      }
    }
  }

  oracle_state wanted(const track& t, int layer, idx position, int head, const float* q) const {
    const std::size_t kept = std::size_t(layer * heads_ + head / group_);
    std::vector<oracle_key> keys;
    for (std::size_t i = 0; i < t.tokens.size(); ++i)
      keys.push_back({t.tokens[i].kept_k[kept], t.tokens[i].kept_v[kept], idx(i)});
    const std::vector<double> query(q, q + cache_.k_dim);
    const band seen(position, cache_.width ? cache_.width : 1 << 30, cache_.sinks);
    return oracle(query, keys, 1 / std::sqrt(double(cache_.k_dim)), std::size_t(cache_.v_dim), seen);
  }

  template <class Where>
  void check(const host& exec, const oracle_state& want, std::span<const float> out, float lse, Where where) const {
    const tolerance close = within(exec, cache_.integers);
    std::string wrong = difference(out, want.out, close);
    if (wrong.empty()) wrong = difference(std::span(&lse, 1), std::vector<double>{want.lse}, close);
    if (!wrong.empty())
      FAIL(cache_.name << ", " << kvilt::name_of(exec.instructions()) << ": " << where() << ", " << wrong);
  }

  subject& cache_;
  int heads_, layers_, group_;
  std::uint64_t seed_;
  int checks_;
  int salt_ = 0;
  int appends_ = 1;
  int turn_ = 0;
  int nan_tag_ = -1;
  idx nan_position_ = -1;
  std::map<int, track> tracks_;
};

}  // namespace support
