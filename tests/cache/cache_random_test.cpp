#include "support/catch.hpp"
#include "support/owner_checks.hpp"
#include "support/owners.hpp"
#include "support/page_model.hpp"
#include "support/sanitized.hpp"

#include <algorithm>
#include <cstdlib>

namespace {

using namespace kvilt;
using namespace support;

constexpr int max_step = 6, sequences = 4;
constexpr idx no_end = idx(1) << 62;

// Any operation in any order, legal or not, on one owner and on its model.
class random_walk {
 public:
  random_walk(int which, std::uint64_t seed)
      : owner_(make_owner(
            which,
            {.layers = 2, .kv_heads = 2, .sequences = sequences, .tokens = 90, .max_length = 70, .max_step = max_step},
            0xff)),
        session_(*owner_, 3, seed, 2),
        dice_(seed),
        pages_(*owner_) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      const int kind = dice_.below(23);
      if (kind < 3)
        open();
      else if (kind < 4)
        close();
      else if (kind < 6)
        truncate();
      else if (kind < 8)
        reserve(any(), dice_.below(30));
      else if (kind < 9)
        misuse();
      else if (kind < 10)
        fork();
      else if (kind < 12)
        reorder();
      else
        step();
      const idx held = pages_.used();
      const idx total = owner_->bytes().body_pages;
      if (owner_->free_pages() + held != total)
        FAIL(owner_->name << ": operation " << i << " (" << kind << "): " << owner_->free_pages() << " pages free and "
                          << held << " held of " << total);
      const int free_sequences = sequences - int(pages_.tags().size());
      const idx free_tokens = owner_->paged   ? (total - held) * owner_->page_rows()
                              : owner_->width ? no_end
                                              : 70 * free_sequences;
      if (owner_->free_sequences() != free_sequences || owner_->free_tokens() != free_tokens)
        FAIL(owner_->name << ": operation " << i << ": " << owner_->free_sequences() << " sequences and "
                          << owner_->free_tokens() << " tokens free");
    }
    while (!pages_.empty()) close();
    REQUIRE(owner_->free_pages() == owner_->bytes().body_pages);
  }

 private:
  int any() {
    const std::vector<int> tags = pages_.tags();
    return tags.empty() ? -1 : tags[std::size_t(dice_.below(int(tags.size())))];
  }
  std::vector<sequence> handles() const {
    std::vector<sequence> all;
    for (const int tag : pages_.tags()) all.push_back(session_.at(tag));
    return all;
  }
  // Runs what should throw, and holds that nothing has changed. Says whether it threw.
  template <class Error, class Operation>
  bool refused(Operation operation) {
    const owner_state before = state_of(*owner_, handles());
    try {
      operation();
      return false;
    } catch (const Error&) {
      if (!(state_of(*owner_, handles()) == before)) FAIL(owner_->name << ": changed by what it refused");
      return true;
    }
  }

  void open() {
    if (int(pages_.tags().size()) == sequences) {
      if (!refused<out_of_pages>([&] { owner_->open(); })) FAIL("opened too many");
      return;
    }
    session_.open(next_tag_);
    pages_.open(next_tag_++);
  }
  void close() {
    const int tag = any();
    if (tag < 0) return;
    const sequence s = session_.at(tag);
    session_.close(tag);
    pages_.close(tag);
    if (!refused<invalid_argument>([&] { owner_->close(s); })) FAIL("closed twice");
  }
  void truncate() {
    const int tag = any();
    if (tag < 0) return;
    const idx length = dice_.below(int(session_.length(tag)) + 1);
    if (refused<invalid_argument>([&] { session_.truncate(tag, length); })) {
      if (owner_->width == 0) FAIL(owner_->name << ": not truncated to " << length);
      return;
    }
    pages_.truncate(tag, length);
  }
  bool reserve(int tag, idx tokens) {
    if (tag < 0) return false;
    const sequence s = session_.at(tag);
    const bool unlimited = !owner_->paged && owner_->width > 0;
    bool got = false;
    const bool beyond = session_.length(tag) + tokens > owner_->shape().max_length && !unlimited;
    if (beyond) {
      if (!refused<invalid_argument>([&] { owner_->reserve(s, tokens); })) FAIL("reserved beyond the longest");
    } else if (dice_.below(2)) {
      got = owner_->try_reserve(s, tokens);
    } else {
      got = !refused<out_of_pages>([&] { owner_->reserve(s, tokens); });
    }
    if (!beyond && got != pages_.reserve(tag, tokens)) FAIL(owner_->name << ": reserved " << tokens << ": " << got);
    return got;
  }
  void fork() {
    const int tag = any();
    if (tag < 0) return;
    const bool forked = !refused<out_of_pages>([&] { session_.fork(host(), tag, next_tag_); });
    const bool fits = int(pages_.tags().size()) < sequences && pages_.fork(tag, next_tag_);
    if (forked != fits) FAIL(owner_->name << ": forked: " << forked);
    next_tag_ += forked;
  }
  void reorder() {
    std::vector<int> tags, parents;
    for (const int tag : pages_.tags())
      if (dice_.below(5)) tags.push_back(tag);
    for (std::size_t i = tags.size(); i > 1; --i) std::swap(tags[i - 1], tags[std::size_t(dice_.below(int(i)))]);
    for (std::size_t i = 0; i < tags.size(); ++i) parents.push_back(dice_.below(int(tags.size())));
    const bool fits = pages_.reorder(tags, parents);
    if (refused<out_of_pages>([&] { session_.reorder(host(), tags, parents); }) == fits)
      FAIL(owner_->name << ": reordered: " << fits);
  }
  // Rows of a path; while the sinks fill, rows may be of different formats.
  std::vector<int> path(int tag, int tokens) {
    std::vector<int> nodes;
    if (session_.length(tag) < owner_->sinks || dice_.below(4)) return nodes;
    for (int node = 0; node < tokens; ++node)
      if (dice_.below(2)) nodes.push_back(node);
    return nodes;
  }
  void step() {
    std::vector<portion> parts;
    for (const int tag : pages_.tags()) {
      if (dice_.below(3) == 0) continue;
      const int tokens = dice_.below(3) ? 1 : dice_.below(max_step + 1);
      if (reserve(tag, tokens))
        parts.push_back({tag, tokens, dice_.below(4) ? -1 : dice_.below(tokens + 1), path(tag, tokens)});
    }
    if (parts.size() > 1 && dice_.below(2)) std::swap(parts.front(), parts.back());
    session_.resalt();
    if (dice_.below(4) == 0)
      session_.fail(host(), parts, dice_.below(3), [&](const kvilt::step&) { owner_->cancel(); });
    if (dice_.below(4) == 0) session_.resalt();
    session_.step(host(), parts);
    for (const portion& p : parts) pages_.commit(p.tag, session_.length(p.tag));
  }
  void misuse() {
    const int tag = any();
    if (tag < 0) return;
    const sequence s = session_.at(tag);
    std::vector<unsigned char> workspace(owner_->workspace_bytes(host(), 2));
    const auto begin = [&](std::vector<sequence> of, std::vector<int> tokens) {
      return refused<invalid_argument>([&] { owner_->begin(host(), of, tokens, workspace); });
    };
    bool all = begin({s, s}, {0, 0}) && begin({s}, {-1}) && begin({s}, {0, 0}) && begin({sequence{}}, {0});
    all = all && (!owner_->paged && owner_->width > 0 ? begin({s}, {max_step + 1}) : begin({s}, {71}));
    all = all && refused<invalid_argument>([&] { owner_->truncate(s, owner_->length(s) + 1); });
    all = all && refused<invalid_argument>([&] { owner_->reserve(s, -1); });
    if (!all) FAIL(owner_->name << ": took what it should refuse");
  }

  std::unique_ptr<subject> owner_;
  session session_;
  dice dice_;
  page_model pages_;
  int next_tag_ = 0;
};

// Another walk: KVILT_TEST_SEED=7 in the environment.
std::uint64_t seed() {
  const char* given = std::getenv("KVILT_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : 1;
}

}  // namespace

TEST_CASE("cache: random operations agree with a brute-force model", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    INFO("policy " << which << ", KVILT_TEST_SEED=" << seed());
    random_walk(which, seed()).run(support::is_sanitized ? 500 : 1500);
  }
}
