#pragma once

#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/random.hpp"
#include "support/saved_files.hpp"

#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/file_transfer.hpp>
#include <kvilt/tiers/memory_transfer.hpp>
#include <kvilt/tiers/page_tiers.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

// An engine over pages with tiers behind them: a row's bytes depend on all tokens up to it and on the keys, so that a page
// that is served is seen to be right or wrong by what lies in it.
namespace support {

using kvilt::idx;
using kvilt::page_id;
using kvilt::token_id;

// A transfer whose copies end when it likes, and sometimes badly.
class unsure_transfer final : public kvilt::transfer {
 public:
  unsure_transfer(kvilt::transfer& real, const kvilt::page_memory& pool, std::uint64_t seed)
      : real_(real), pool_(pool), random_(seed) {}

  int late = 0, late_stores = 0;  // of 100 calls of `done`, those that say no
  int bad_stores = 0;             // of 100 pages, those that fail
  int bad_loads = 0;
  bool waits = true;  // false: everything ends at once, however late it is

  idx slots() const override { return real_.slots(); }
  idx page_bytes() const override { return real_.page_bytes(); }
  ticket start(kvilt::copy_way way, std::span<const kvilt::page_copy> batch) override {
    job j{way, {batch.begin(), batch.end()}, std::vector<kvilt::copy_result>(batch.size(), kvilt::copy_result::done)};
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const bool store = way == kvilt::copy_way::store;
      if (random_.below(100) < (store ? bad_stores : bad_loads)) j.results[i] = kvilt::copy_result::failed;
      // A store takes the bytes that are there now; a load may write anything until it has ended.
      if (store) run(j, i);
      if (!store)
        pool_.each(batch[i].page, batch[i].row,
                   [&](unsigned char* at, idx n) { std::memset(at, 0xee, std::size_t(n)); });
    }
    jobs_.emplace(++newest_, std::move(j));
    return newest_;
  }
  bool done(ticket which, std::span<kvilt::copy_result> results) override {
    ++asked_;
    job& j = jobs_.at(which);
    if (waits && random_.below(100) < (j.way == kvilt::copy_way::load ? late : late_stores)) return false;
    if (j.way == kvilt::copy_way::load)
      for (std::size_t i = 0; i < j.batch.size(); ++i) run(j, i);
    REQUIRE(results.size() == j.results.size());
    std::ranges::copy(j.results, results.begin());
    jobs_.erase(which);
    return true;
  }
  std::size_t under_way() const { return jobs_.size(); }
  idx asked() const { return asked_; }  // calls of `done`

 private:
  struct job {
    kvilt::copy_way way;
    std::vector<kvilt::page_copy> batch;
    std::vector<kvilt::copy_result> results;
  };
  void run(job& j, std::size_t i) {
    if (j.results[i] != kvilt::copy_result::done) return;
    const ticket t = real_.start(j.way, {&j.batch[i], 1});
    REQUIRE(real_.done(t, {&j.results[i], 1}));
  }

  kvilt::transfer& real_;
  const kvilt::page_memory& pool_;
  dice random_;
  std::map<ticket, job> jobs_;
  ticket newest_ = 0;
  idx asked_ = 0;
};

template <class Hash = kvilt::token_hash>
class tiered_engine {
 public:
  static constexpr int page_tokens = 4, row_bytes = 24, first_bytes = 18;  // of a row, in the first piece

  explicit tiered_engine(idx pages, int sequences = 8)
      : pages_(pages),
        pool_(std::size_t(pages) * page_stride, 0xcc),
        shape_{.page_tokens = page_tokens, .sequences = sequences, .groups = {{.pages = pages}}},
        tiers(shape_) {
    shape_.groups[0].hook = tiers.on_page();
    manager_ =
        std::make_unique<kvilt::page_manager<kvilt::lru, Hash>>(shape_, kvilt::lru(pages), Hash(), tiers.on_prefix());
  }

  // Two pieces of each page, with something else between pages.
  kvilt::page_memory memory() {
    return {{{pool_.data(), page_stride, page_tokens * first_bytes},
             {pool_.data() + page_tokens * first_bytes + 8, page_stride, page_tokens * (row_bytes - first_bytes)}},
            pages_};
  }
  kvilt::page_manager<kvilt::lru, Hash>& manager() { return *manager_; }

  struct text {
    kvilt::sequence name;
    std::vector<std::uint64_t> keys;
    std::vector<token_id> tokens;
  };

  static kvilt::prompt_options options(const std::vector<std::uint64_t>& keys) { return {.keys = keys}; }

  // Opens a prompt and computes what is missing. Returns how many tokens were there; -1: there was no room.
  idx open(std::vector<text>& open, std::vector<token_id> tokens, std::vector<std::uint64_t> keys) {
    if (manager_->free_sequences() == 0) return -1;
    std::vector<kvilt::page_move> moves;
    text t{{}, std::move(keys), std::move(tokens)};
    const kvilt::opened_sequence o = manager_->open(t.tokens, moves, options(t.keys));
    t.name = o.name;
    copy(moves);
    check(t);
    if (!compute(t)) {
      manager_->discard(t.name);
      return -1;
    }
    open.push_back(std::move(t));
    return o.tokens;
  }
  // The rows that a text lacks; false where they have no room.
  bool compute(const text& t) {
    const idx length = manager_->length(t.name), more = idx(t.tokens.size()) - length;
    std::vector<kvilt::page_move> moves;
    if (!manager_->try_reserve(t.name, more, moves)) return false;
    copy(moves);
    for (idx i = length; i < idx(t.tokens.size()); ++i) {
      const page_id page = manager_->pages(t.name)[std::size_t(i / page_tokens)];
      const auto row = row_of(t, i);
      std::copy_n(row.begin(), first_bytes, at(page, int(i % page_tokens), 0));
      std::copy(row.begin() + first_bytes, row.end(), at(page, int(i % page_tokens), 1));
    }
    manager_->append(t.name, std::span(t.tokens).subspan(std::size_t(length)));
    return true;
  }
  // Every row that the text has is what it should be.
  void check(const text& t) const {
    const auto pages = manager_->pages(t.name);
    for (idx i = 0; i < manager_->length(t.name); ++i) {
      const auto row = row_of(t, i);
      const page_id page = pages[std::size_t(i / page_tokens)];
      if (!std::equal(row.begin(), row.begin() + first_bytes, at(page, int(i % page_tokens), 0)) ||
          !std::equal(row.begin() + first_bytes, row.end(), at(page, int(i % page_tokens), 1)))
        FAIL("token " << i << " of " << t.tokens.size() << " has other bytes, on page " << page);
    }
  }
  void copy(const std::vector<kvilt::page_move>& moves) {
    for (const kvilt::page_move& m : moves)
      for (int row = 0; row < m.rows; ++row) {
        std::copy_n(at(m.from, row, 0), first_bytes, at(m.to, row, 0));
        std::copy_n(at(m.from, row, 1), row_bytes - first_bytes, at(m.to, row, 1));
      }
  }
  void check_counts() const {
    const kvilt::page_counts c = manager_->counters().groups[0].pages;
    REQUIRE(c.free + c.used + c.cached + c.pending == c.total);
    for (int t = 0; t < tiers.tiers(); ++t) REQUIRE(tiers.counters(t).used <= tiers.counters(t).slots);
  }

 private:
  static constexpr idx page_stride = page_tokens * row_bytes + 8 + 16;

  unsigned char* at(page_id p, int row, int piece) const {
    unsigned char* const page = const_cast<unsigned char*>(pool_.data()) + p * page_stride;
    return piece == 0 ? page + row * first_bytes
                      : page + page_tokens * first_bytes + 8 + row * (row_bytes - first_bytes);
  }
  static std::vector<unsigned char> row_of(const text& t, idx position) {
    std::uint64_t state = 17;
    for (const std::uint64_t k : t.keys) state = mixed({state, k, 1});
    for (idx i = 0; i <= position; ++i) state = mixed({state, std::uint64_t(t.tokens[std::size_t(i)]), 2});
    std::vector<unsigned char> row;
    for (std::uint64_t i = 0; i < row_bytes; ++i) row.push_back(static_cast<unsigned char>(mixed({state, i})));
    return row;
  }

  idx pages_;
  std::vector<unsigned char> pool_;
  kvilt::manager_shape shape_;

 public:
  kvilt::page_tiers<Hash> tiers;

 private:
  std::unique_ptr<kvilt::page_manager<kvilt::lru, Hash>> manager_;
};

}  // namespace support
