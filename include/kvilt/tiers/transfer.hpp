#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Whether pages are copied from the pool to a tier's slots, or back.
enum class copy_way : unsigned char { store, load };

/// One page of a batch.
struct page_copy {
  idx slot = 0;
  page_id page = -1;             // of the pool; -1: `row` instead
  unsigned char* row = nullptr;  // [page_bytes] in host memory
  std::uint64_t tag = 0;         // what the slot is to hold: a load that expects another tag finds damage
};

/// What came of it. Nothing is said of a target's bytes unless it is `done`.
enum class copy_result : unsigned char {
  done,
  failed,  // what moves bytes has refused, or moved too few
  damaged  // the slot's bytes are not those that were stored there under this tag
};

/// Moves pages between a pool and the slots of a tier: memory, a file, or the far end of a bus. A batch of scattered pages
/// is one transfer. Throws nothing: what fails is said of each page.
///
/// A load leaves its pages' bytes undefined until it has ended, and whoever started it leaves them alone. A store takes
/// what the pages hold when it is started: the pages may be handed out and written at once, by work that is queued
/// behind it where a transfer runs in a queue of the engine's, as a stream is. Copies that follow on each other in the
/// same slot are started when the one before has ended.
class transfer {
 public:
  using ticket = std::uint64_t;

  virtual ~transfer() = default;
  virtual idx slots() const = 0;
  virtual idx page_bytes() const = 0;
  virtual ticket start(copy_way way, std::span<const page_copy> batch) = 0;
  /// Whether it has ended. If so `results`, one for each page of the batch, say how, and the ticket is used up.
  virtual bool done(ticket which, std::span<copy_result> results) = 0;
};

namespace detail {

/// Results of transfers that have ended when they are started.
class ended_transfers {
 public:
  transfer::ticket add(std::vector<copy_result> results) {
    results_.emplace(++newest_, std::move(results));
    return newest_;
  }
  bool take(transfer::ticket which, std::span<copy_result> results) {
    const auto found = results_.find(which);
    expects(found != results_.end() && found->second.size() == results.size(), "transfer ", which, " of ",
            results.size(), " pages is asked for; there is no such one");
    for (std::size_t i = 0; i < results.size(); ++i) results[i] = found->second[i];
    results_.erase(found);
    return true;
  }

 private:
  std::unordered_map<transfer::ticket, std::vector<copy_result>> results_;
  transfer::ticket newest_ = 0;
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
