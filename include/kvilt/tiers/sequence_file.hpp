#pragma once

#include <kvilt/tiers/crc32c.hpp>
#include <kvilt/tiers/sequence_record.hpp>

#include <algorithm>

namespace kvilt::inline KVILT_ABI {

/// A sequence that `save` has written, opened to look at it and to `restore` it from. The header and the description are
/// checked when it is opened: what is no such file, was cut off or goes on too long, has another version or byte order,
/// or lost a bit there, is refused by name. The open file stays what it was when another takes its place. Throws
/// `file_error`. Nothing is allocated that is not in the file.
template <checksum Checksum = crc32c>
class sequence_file {
 public:
  explicit sequence_file(const std::string& path) : path_(path), file_(path.c_str(), O_RDONLY | O_NONBLOCK) {
    if (file_.error()) detail::refuse_file(path_, "cannot be read: ", file_.error());
    expects(file_.regular(), "it is no file, but a folder, a pipe or a device");
    read_header();
    std::vector<unsigned char> bytes(std::size_t(header_.description));
    read_all(bytes.data(), idx(bytes.size()), detail::saved_header::bytes);
    const std::uint64_t sum = detail::header_sum<Checksum>(header_, bytes);
    expects(sum == header_.sum, "its header or description is damaged: their checksum is ", sum, ", and ", header_.sum,
            " is written");
    expects(detail::get_description(bytes, description_), "its description of ", bytes.size(),
            " bytes is none, though its checksum is right");
  }

  const std::string& path() const { return path_; }
  /// Tokens of the sequence.
  idx length() const { return description_.length; }
  const std::string& model() const { return description_.model; }
  std::span<const std::uint64_t> keys() const { return description_.keys; }
  /// The text where it was given, or nothing.
  std::span<const token_id> tokens() const { return description_.tokens; }
  /// Bytes of K and V.
  idx stream_bytes() const { return idx(header_.stream); }

 private:
  friend struct detail::persistence;
  template <class... Parts>
  void expects(bool held, const Parts&... parts) const {
    if (!held) detail::refuse<file_error, std::string, std::decay_t<const Parts&>...>(path_ + ": ", parts...);
  }
  void read_all(void* to, idx count, idx offset) const {
    const idx n = file_.read(static_cast<unsigned char*>(to), count, offset);
    if (n < 0) detail::refuse_file(path_, "cannot be read: ", int(-n));
    expects(n == count, "it ended at byte ", offset + n, " while it was read");
  }
  void read_header() {
    using header = detail::saved_header;
    const idx size = file_.size();
    if (size < 0) detail::refuse_file(path_, "cannot be read: ", int(-size));
    expects(size >= idx(header::bytes), "it has ", size, " bytes; a saved sequence has at least ", header::bytes);
    read_all(&header_, header::bytes, 0);
    const header& h = header_;
    expects(std::equal(h.magic, h.magic + sizeof(h.magic), header::signature), "it is no saved sequence of kvilt");
    expects(h.order != header::other_order, "it was written by a machine of another byte order");
    expects(h.order == header::byte_order, "its mark of the byte order is ", h.order, ", and no order's");
    expects(h.version == header::newest, "it has version ", h.version, " of the format; version ", header::newest,
            " is known");
    const std::string name(h.checksum, std::find(h.checksum, h.checksum + header::name_bytes, '\0'));
    expects(name == Checksum::name(), "its checksum is another than ", Checksum::name());
    expects(h.block >= 1 && h.block <= header::largest_block && h.zero == 0, "its blocks have ", h.block,
            " bytes; 1 to ", header::largest_block, " can be");
    // NOTE: each by itself first, so that nothing overflows.
    expects(h.description <= header::most_description && h.stream <= header::most_stream && h.file_bytes() == size,
            "it has ", size, " bytes, and says that it has a description of ", h.description, " and a stream of ",
            h.stream);
  }

  std::string path_;
  detail::file file_;
  detail::saved_header header_;
  detail::saved_description description_;
};

}  // namespace kvilt::inline KVILT_ABI
