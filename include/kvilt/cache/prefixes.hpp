#pragma once

#include <kvilt/cache/ledger.hpp>

#include <span>

namespace kvilt::inline KVILT_ABI::detail {

/// What an owner whose shape says `prefixes` knows of texts besides: prompts find the pages of others that begin alike.
template <class Policy, memory_space Space>
class prefix_ledger : public ledger<Policy, Space> {
  using book = ledger<Policy, Space>;

 public:
  using book::open;

  /// A new sequence that has as much of `prompt` as is there already under the same extra keys: whole pages, whose
  /// tokens have been compared one by one. The rest is appended, and `name` says which tokens these were. With a 16-bit
  /// tail it begins with an empty one: all that is found is in the body's formats. Rows are taken to depend on the text
  /// alone: what they depend on besides, an adapter, an image, positions given for RoPE, goes into `keys`. Throws
  /// `out_of_pages` when all sequences are open, and `invalid_argument` where the shape does not say `prefixes`.
  opened_sequence open(std::span<const token_id> prompt, const prompt_options& options = {}) {
    check_prompt(options);
    return open_within(prompt, options, no_end);
  }

  /// Says which tokens follow on those of the sequence that are named already: some of its committed tokens, as soon as
  /// one likes. A page all of whose tokens have a name is found by others from then on, and after `close` until room is
  /// needed; it is never written again. Where others have named such a page already, their page takes the place of the
  /// sequence's own, whose rows differ by what products of other batches differ. A page that a fork has too gets no name
  /// while it has it, nor do those behind: name before you fork. Returns how many of the sequence's tokens prompts find
  /// now. Throws `invalid_argument` for a sequence that was opened without a prompt, and for more tokens than it has.
  idx name(sequence s, std::span<const token_id> tokens) {
    check_name(s, tokens);
    const int row = book::find(s).row;
    pages_.add(row, tokens);
    pages_.name(row, book::kept_pages(row));
    return pages_.named(row);
  }

  /// How many tokens of a prompt `open` would find.
  idx cached_tokens(std::span<const token_id> prompt, const prompt_options& options = {}) const {
    check_kept();
    check(options);
    return pages_.find(prompt, options);
  }
  /// What prompts found.
  const prefix_statistics& prefixes() const {
    check_kept();
    return pages_.statistics();
  }
  /// Pages by state; `cached` are those that prompts alone may find.
  page_counts pages() const { return pages_.counts(); }

 protected:
  using book::book;
  using book::pages_, book::plan_;
  template <memory_space, class...>
  friend class kvilt::basic_cache_set;

  void check_kept() const {
    static_assert(
        keeps_prefixes<Policy>,
        "kvilt: prompts find nothing in a cache with a window, eviction, 16-bit sinks or places by arithmetic");
    expects(pages_.keeps_names(), "prompts are looked for in a cache whose shape does not say `prefixes`");
  }
  void check_prompt(const prompt_options& options) const {
    check_kept();
    check(options);
    expects(options.priority == 0, "a prompt has priority ", options.priority,
            "; pages of a cache go by age and hits alone: `page_manager` takes other policies");
    book::handles_.check_free();
  }
  void check_name(sequence s, std::span<const token_id> tokens) const {
    check_kept();
    const idx known = pages_.known(book::find(s).row), length = book::length(s);
    book::check_idle("name");
    expects(known >= 0, "sequence ", s.slot, " is named; it was opened without a prompt");
    expects(idx(tokens.size()) <= length - known, "sequence ", s.slot, " is named by ", tokens.size(),
            " more tokens; it has ", length, ", of which ", known, " are named");
  }
  /// `most`: tokens that are taken from the cache.
  opened_sequence open_within(std::span<const token_id> prompt, const prompt_options& options, idx most) {
    const sequence s = open();
    entry& e = book::of(s);
    const int row = book::find(s).row;
    const idx pages = book::filled(row) = pages_.begin_text(row, prompt, options, most);
    e.length = e.written = pages * plan_.page_rows;
    if constexpr (Policy::tail > 0) e.body = e.length;
    return {s, e.length};
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
