#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/tiers/crc32c.hpp>
#include <kvilt/tiers/file.hpp>
#include <kvilt/tiers/memory_transfer.hpp>
#include <kvilt/tiers/page_memory.hpp>
#include <kvilt/tiers/transfer.hpp>

#include <sys/uio.h>

#include <string>

namespace kvilt::inline KVILT_ABI {

/// Slots in a file, one page after another, written and read by whoever starts a copy, through the system's cache of
/// files. The file is of this process alone: it is emptied, and has no name any more once it is open, so it is gone with
/// the process however that ends. Checksums stay in memory. Disk full, errors of the device and pages that come back short
/// fail the copy. Throws `file_error` where it cannot be made.
template <checksum Checksum = crc32c>
class file_transfer final : public transfer {
 public:
  file_transfer(page_memory pool, idx slots, const std::string& path)
      : pool_(std::move(pool)),
        sums_(std::size_t(checked(slots))),
        file_(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600) {
    if (file_.error()) detail::refuse_file(path, "cannot be made: ", file_.error());
    if (::unlink(path.c_str()) != 0) detail::refuse_file(path, "cannot be unlinked: ", errno);
    vectors_.reserve(most_vectors);
  }

  idx slots() const override { return idx(sums_.size()); }
  idx page_bytes() const override { return pool_.page_bytes(); }
  /// The open file, say to limit or to damage it.
  int descriptor() const { return file_.descriptor(); }

  ticket start(copy_way way, std::span<const page_copy> batch) override {
    std::vector<copy_result> results;
    results.reserve(batch.size());
    for (const page_copy& c : batch) results.push_back(copy(way, c));
    return ended_.add(std::move(results));
  }
  bool done(ticket which, std::span<copy_result> results) override { return ended_.take(which, results); }

 private:
  static constexpr std::size_t most_vectors = 64;  // of one call
  static constexpr idx most_at_once = 256 << 10;   // bytes, so that they are checked while they are near

  static idx checked(idx slots) {
    detail::expects(slots >= 0 && slots < idx(1) << 31, "a tier of ", slots, " slots; 0 to 2^31 - 1 can be");
    return slots;
  }

  copy_result copy(copy_way way, const page_copy& c) {
    std::uint64_t sum = detail::sum_of_tag<Checksum>(c.tag);
    idx offset = c.slot * pool_.page_bytes(), waiting = 0;
    bool moved = true;
    const auto flush = [&] {
      if (moved && way == copy_way::store) sum = sum_of(sum);
      moved = moved && move(way, offset, waiting);
      if (moved && way == copy_way::load) sum = sum_of(sum);
      offset += waiting, waiting = 0;
      vectors_.clear();
    };
    pool_.each(c.page, c.row, [&](unsigned char* at, idx bytes) {
      vectors_.push_back({at, std::size_t(bytes)});
      waiting += bytes;
      if (waiting >= most_at_once || vectors_.size() == most_vectors) flush();
    });
    flush();
    if (!moved) return copy_result::failed;
    std::uint64_t& known = sums_[std::size_t(c.slot)];
    if (way == copy_way::store) known = sum;
    return sum == known ? copy_result::done : copy_result::damaged;
  }
  std::uint64_t sum_of(std::uint64_t sum) const {
    for (const iovec& v : vectors_) sum = Checksum::of(sum, static_cast<const unsigned char*>(v.iov_base), v.iov_len);
    return sum;
  }
  // All that waits, in one call; what that leaves in others.
  bool move(copy_way way, idx offset, idx bytes) const {
    if (bytes == 0) return true;
    const int count = int(vectors_.size());
    const ssize_t n = way == copy_way::store ? ::pwritev(file_.descriptor(), vectors_.data(), count, off_t(offset))
                                             : ::preadv(file_.descriptor(), vectors_.data(), count, off_t(offset));
    if (n == ssize_t(bytes)) return true;
    if (n < 0 && errno != EINTR) return false;
    idx done = n < 0 ? 0 : idx(n), begin = 0;
    for (const iovec& v : vectors_) {
      const idx first = larger(done - begin, 0), rest = idx(v.iov_len) - first;
      unsigned char* const at = static_cast<unsigned char*>(v.iov_base) + first;
      const idx place = offset + begin + first;
      if (rest > 0 &&
          (way == copy_way::store ? file_.write(at, rest, place) != 0 : file_.read(at, rest, place) != rest))
        return false;
      begin += idx(v.iov_len);
    }
    return true;
  }

  page_memory pool_;
  std::vector<std::uint64_t> sums_;  // [slots]
  detail::file file_;
  std::vector<iovec> vectors_;  // of the copy under way
  detail::ended_transfers ended_;
};

}  // namespace kvilt::inline KVILT_ABI
