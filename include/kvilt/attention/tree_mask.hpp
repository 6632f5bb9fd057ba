#pragma once

#include <kvilt/attention/variant.hpp>
#include <kvilt/core/given.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Trees of speculated tokens, one path of which will be accepted: a query sees the tokens before the step, and itself
/// and its ancestors among the step's own (X. Miao et al., "SpecInfer", 2024; T. Cai et al., "Medusa", 2024).
///
/// A step has as many queries as new tokens, a token's ancestors come before it, and its position for RoPE is that of
/// the text it belongs to, `length before + depth`: hand it to the step as `rope_positions`. Positions that hooks are
/// told are places in the cache, so what else counts distances (a window, ALiBi) takes the step for a chain.
struct tree_mask {
  const std::uint64_t* ancestors =
      nullptr;              // [sequences][tokens][words]: bit j of a token: it sees token j of the step
  int words = 1;            // of a token; bits beyond them are 0
  idx sequence_stride = 0;  // words from one sequence's tree to the next one's; 0: all share one

  void check() const {
    detail::check_memory(ancestors, 1, "the list of a tree's ancestors");
    detail::expects(words >= 1 && sequence_stride >= 0, "a tree's tokens have ", words, " words and sequences are ",
                    sequence_stride, " apart; at least 1 and 0 are needed");
  }
  KVILT_HD constexpr bool keep(const where& w) const {
    const idx token = w.k_position - before(w);
    if (token < 0) return true;
    if (token > w.q_index) return false;
    const std::uint64_t* row = ancestors + w.sequence * sequence_stride + idx(w.q_index) * words;
    return (row[token / 64] >> (token % 64) & 1) != 0;
  }
  KVILT_HD constexpr position_range tiles(const where& w) const { return {0, w.q_position + 1}; }
  KVILT_HD constexpr bool whole(const where& w, position_range r) const { return r.last <= before(w); }

 private:
  /// Tokens before the step: query i is new token i.
  KVILT_HD static constexpr idx before(const where& w) { return w.q_position - w.q_index; }
};

/// Owns the bits of a `tree_mask`, made from parents.
class tree_table {
 public:
  /// parents: [sequences][tokens]: the number of each token's parent in the step, -1 where it follows the text. Of one
  /// sequence: all share its tree; otherwise a sequence is named by its number in the view's tables, as steps do.
  /// Throws `invalid_argument` where a parent does not come before its child.
  tree_table(int tokens, std::span<const int> parents) : tokens_(tokens), words_((tokens + 63) / 64) {
    detail::expects(tokens >= 1, "a tree of ", tokens, " tokens; 1 or more are needed");
    detail::expects(!parents.empty() && parents.size() % std::size_t(tokens) == 0, "trees of ", tokens, " tokens have ",
                    parents.size(), " parents; one for each token of each sequence is needed");
    ancestors_.resize(parents.size() * std::size_t(words_));
    depths_.resize(parents.size());
    for (std::size_t i = 0; i < parents.size(); ++i) add(i, int(i % std::size_t(tokens)), parents[i]);
  }

  operator tree_mask() const& {
    return {ancestors_.data(), words_, depths_.size() == std::size_t(tokens_) ? 0 : idx(tokens_) * words_};
  }
  operator tree_mask() && = delete;

  /// [sequences][tokens]: 0 for a token that follows the text.
  std::span<const int> depths() const { return depths_; }
  /// [sequences][tokens][words], for a copy to the device.
  std::span<const std::uint64_t> ancestors() const { return ancestors_; }

 private:
  void add(std::size_t row, int token, int parent) {
    detail::expects(parent >= -1 && parent < token, "token ", token, " of a tree has parent ", parent,
                    "; an earlier token or -1 is needed");
    std::uint64_t* const bits = ancestors_.data() + row * std::size_t(words_);
    if (parent >= 0) {
      const std::size_t above = row - std::size_t(token - parent);
      for (int i = 0; i < words_; ++i) bits[i] = ancestors_[above * std::size_t(words_) + std::size_t(i)];
      depths_[row] = depths_[above] + 1;
    }
    bits[token / 64] |= std::uint64_t(1) << (token % 64);
  }

  int tokens_, words_;
  std::vector<std::uint64_t> ancestors_;
  std::vector<int> depths_;
};

static_assert(attention_variant<tree_mask>);

}  // namespace kvilt::inline KVILT_ABI
