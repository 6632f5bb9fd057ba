// Any order of operations, legal or not, on small caches of ten kinds: every answer is the brute-force model's, what is
// refused changes nothing, and no page is lost.
#include "fuzz/fuzz.hpp"
#include "support/catch.hpp"

#include <sstream>

// The model says what it finds through Catch2's FAIL; here is no Catch2 to hear it.
#undef FAIL
#define FAIL(words)           \
  do {                        \
    std::ostringstream found; \
    found << words;           \
    fuzz::fail(found.str());  \
  } while (false)

#include "support/owner_checks.hpp"
#include "support/owners.hpp"

namespace {

using namespace kvilt;
using namespace support;

constexpr int sequences = 3, max_step = 4, longest = 40, most_operations = 48;

class walk {
 public:
  explicit walk(fuzz::choices& choose)
      : choose_(choose),
        owner_(make_owner(choose.below(owner_count),
                          {.layers = 2,
                           .kv_heads = 1,
                           .sequences = sequences,
                           .tokens = 50,
                           .max_length = longest,
                           .max_step = max_step},
                          0xff)),
        session_(*owner_, 2, 1, 1),
        all_pages_(owner_->free_pages()) {}

  void run() {
    for (int i = 0; i < most_operations && !choose_.empty(); ++i) {
      operation(choose_.below(11));
      begin_nothing();
      if (owner_->free_sequences() != sequences - int(tags_.size())) FAIL("sequences are lost");
      if (owner_->free_pages() < 0 || owner_->free_pages() > all_pages_) FAIL(owner_->free_pages() << " pages free");
    }
    while (!tags_.empty()) close(int(tags_.size()) - 1);
    if (owner_->free_pages() != all_pages_) FAIL(owner_->free_pages() << " of " << all_pages_ << " pages come back");
  }

 private:
  void operation(int kind) {
    const int which = tags_.empty() ? -1 : choose_.below(int(tags_.size()));
    if (kind == 0) return open();
    if (which < 0) return;
    const int tag = tags_[std::size_t(which)];
    switch (kind) {
      case 1:
        return close(which);
      case 2:
        return refusable([&] { owner_->reserve(session_.at(tag), amount()); });
      case 3:
        return refusable([&] { (void)owner_->try_reserve(session_.at(tag), amount()); });
      case 4:
        return refusable([&] { session_.truncate(tag, std::max(amount(), 0)); });
      case 5:
        return session_.resalt();
      case 6:
        return misuse(tag);
      case 9:
        return fork(tag);
      case 10:
        return reorder();
      default:
        return step(kind == 7);
    }
  }
  // After whatever has been refused no step is left open.
  void begin_nothing() {
    std::vector<unsigned char> workspace(owner_->workspace_bytes(host(), 0));
    owner_->begin(host(), {}, {}, workspace);
    owner_->cancel();
  }
  int amount() { return choose_.below(longest + 3) - 1; }

  // What throws has changed nothing.
  template <class Operation>
  bool refused(Operation operate) {
    std::vector<sequence> open;
    for (const int tag : tags_) open.push_back(session_.at(tag));
    const owner_state before = state_of(*owner_, open);
    try {
      operate();
      return false;
    } catch (const error&) {
      if (!(state_of(*owner_, open) == before)) FAIL(owner_->name << ": changed by what it refused");
      return true;
    }
  }
  template <class Operation>
  void refusable(Operation operate) {
    (void)refused(operate);
  }

  void open() {
    const bool full = refused([&] { session_.open(next_tag_); });
    if (full != (int(tags_.size()) == sequences)) FAIL("opened " << tags_.size() << " of " << sequences);
    if (!full) tags_.push_back(next_tag_++);
  }
  void close(int which) {
    const sequence s = session_.at(tags_[std::size_t(which)]);
    session_.close(tags_[std::size_t(which)]);
    tags_.erase(tags_.begin() + which);
    if (!refused([&] { owner_->close(s); })) FAIL("closed twice");
  }

  void fork(int tag) {
    if (!refused([&] { session_.fork(host(), tag, next_tag_); })) tags_.push_back(next_tag_++);
  }
  void reorder() {
    std::vector<int> parents;
    for (std::size_t i = 0; i < tags_.size(); ++i) parents.push_back(choose_.below(int(tags_.size())));
    refusable([&] { session_.reorder(host(), tags_, parents); });
  }

  std::vector<portion> some_portions() {
    std::vector<portion> parts;
    for (const int tag : tags_) {
      if (choose_.below(3) == 0) continue;
      const int tokens = choose_.below(max_step + 2);
      parts.push_back({tag, tokens, choose_.below(3) ? -1 : choose_.below(tokens + 1)});
    }
    return parts;
  }
  // A step for which there is no room is refused whole; one that fails is as if it had not been.
  void step(bool fails) {
    const std::vector<portion> parts = some_portions();
    for (const portion& p : parts) refusable([&] { (void)owner_->try_reserve(session_.at(p.tag), p.new_tokens); });
    refusable([&] {
      if (fails)
        session_.fail(host(), parts, choose_.below(3), [&](const kvilt::step&) { owner_->cancel(); });
      else
        session_.step(host(), parts);
    });
  }
  void misuse(int tag) {
    const sequence s = session_.at(tag);
    std::vector<unsigned char> workspace(owner_->workspace_bytes(host(), 2));
    const auto begin = [&](std::vector<sequence> of, std::vector<int> tokens) {
      if (!refused([&] { owner_->begin(host(), of, tokens, workspace); })) FAIL(owner_->name << ": began a wrong step");
    };
    switch (choose_.below(6)) {
      case 0:
        return begin({s, s}, {0, 0});
      case 1:
        return begin({s}, {-2 - amount()});
      case 2:
        return begin({s}, {0, 0});
      case 3:
        return begin({{choose_.below(5) - 1, s.generation + 1000}}, {0});
      case 4:
        return begin({s}, {longest + 2 + amount()});
      default:
        if (!refused([&] { owner_->truncate(s, owner_->length(s) + 2 + amount()); })) FAIL("cut longer than it is");
    }
  }

  fuzz::choices& choose_;
  std::unique_ptr<subject> owner_;
  session session_;
  idx all_pages_;
  std::vector<int> tags_;
  int next_tag_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::choices choose(data, size);
  walk(choose).run();
  return 0;
}
