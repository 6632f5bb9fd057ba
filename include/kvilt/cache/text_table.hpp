#pragma once

#include <kvilt/cache/owned_table.hpp>
#include <kvilt/pages/manager_shape.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// What is known of a row's text.
struct known_text {
  prefix_end end;              // of the first `pages` pages, which have names; its root is -1 where nothing is known
  idx pages = 0;               // NOTE: none of them is below 0: who names pages has no window
  std::vector<token_id> rest;  // what follows on these
};

/// The pages of each row, found again by the text that they hold. A page is named when all its rows are there and nobody
/// else has it: whoever has it then goes on from the same pages before it, so that no page is evicted before those behind.
template <memory_space Space>
class text_table : public owned_table<Space> {
  using base = owned_table<Space>;
  using base::at, base::from_;

 public:
  text_table(int rows, idx width, idx pages, int named_tokens, memory<Space> from)
      : base(rows, width, pages, named_tokens, from),
        page_tokens_(named_tokens),
        texts_(std::size_t(named_tokens > 0 ? rows : 0)) {}

  bool keeps_names() const { return !texts_.empty(); }
  const prefix_statistics& statistics() const { return from_.names()->statistics(); }

  /// Tokens of a prompt that are there under these keys, of the first `asked`.
  idx find(std::span<const token_id> prompt, const prompt_options& o) const {
    const auto& index = from_.names()->index();
    prefix_end end = index.find_root(o.keys);
    idx pages = 0;
    if (end.root >= 0) index.find(end, asked(prompt, o), [&](page_id) { ++pages; });
    return pages * page_tokens_;
  }
  /// An empty row begins with the pages that `prompt` finds, at most `most` tokens of them, and knows its text from now
  /// on. Returns how many entries have a page.
  idx begin_text(int row, std::span<const token_id> prompt, const prompt_options& o, idx most) {
    page_cache<>& names = *from_.names();
    known_text& t = text(row);
    std::vector<page_id> pages;
    const std::span<const token_id> wanted = asked(prompt, o);
    prefix_hit hit =
        names.find(names.open_root(o.keys), wanted.first(std::size_t(smaller(idx(wanted.size()), most))), pages);
    names.hold(pages, o.asked);
    if (o.asked) names.count(hit, idx(prompt.size()), 0);
    t = {hit.end, hit.pages, {}};
    std::ranges::copy(pages, at(row));
    base::changed(row, 0, hit.pages);
    return hit.pages;
  }

  /// Tokens of a row that prompts find.
  idx named(int row) const { return texts_[std::size_t(row)].pages * page_tokens_; }
  /// Tokens that are known of a row, or -1.
  idx known(int row) const {
    const known_text& t = texts_[std::size_t(row)];
    return t.end.root < 0 ? -1 : t.pages * page_tokens_ + idx(t.rest.size());
  }
  void add(int row, std::span<const token_id> tokens) {
    known_text& t = text(row);
    t.rest.insert(t.rest.end(), tokens.begin(), tokens.end());
  }
  /// Names what is known of the first `full` pages, up to one that another row has too. Where another row has named a page
  /// of the same text, that takes the place of this row's own.
  void name(int row, idx full) {
    if (!keeps_names() || known(row) < 0) return;
    known_text& t = text(row);
    const idx last = smaller(full, t.pages + idx(t.rest.size()) / page_tokens_), first = t.pages;
    page_cache<>& names = *from_.names();
    idx n = first;
    for (; n < last && !from_.shared(at(row)[n]); ++n)
      names.write_tokens(at(row)[n], 0, t.rest.data() + (n - first) * page_tokens_, page_tokens_);
    if (n == first) return;
    const std::span<page_id> pages(at(row) + first, std::size_t(n - first));
    if (names.store(t.end, pages) > 0) base::changed(row, first, n);
    t.pages = n;
    t.rest.erase(t.rest.begin(), t.rest.begin() + (n - first) * page_tokens_);
  }

  /// Before its pages are given back: forgets the tokens from `length` on.
  void cut_text(int row, idx length) {
    if (!keeps_names() || known(row) <= length) return;
    known_text& t = text(row);
    const idx full = length / page_tokens_;
    if (full < t.pages) {
      const token_id* const tokens = from_.names()->tokens(at(row)[full]);
      t.rest.assign(tokens, tokens + length % page_tokens_);
      t.end = from_.names()->end_at(full > 0 ? at(row)[full - 1] : -1, t.end);
      t.pages = full;
    } else {
      t.rest.resize(std::size_t(length - t.pages * page_tokens_));
    }
  }
  void end_text(int row) {
    if (!keeps_names() || known(row) < 0) return;
    from_.names()->close_root(text(row).end);
    text(row) = {};
  }
  /// A row without a text gets another's.
  void share_text(int from, int to) {
    if (!keeps_names() || known(from) < 0) return;
    text(to) = text(from);
    from_.names()->share_root(text(to).end);
  }

 private:
  static std::span<const token_id> asked(std::span<const token_id> prompt, const prompt_options& o) {
    return prompt.first(std::size_t(larger(idx(prompt.size()) - o.computed, 0)));
  }
  known_text& text(int row) { return texts_[std::size_t(row)]; }

  int page_tokens_;
  std::vector<known_text> texts_;  // [rows], where prompts are to find pages
};

}  // namespace kvilt::inline KVILT_ABI::detail
