#pragma once

#include <kvilt/tiers/persistence.hpp>

namespace kvilt::inline KVILT_ABI {

/// Whether a file that is written has to survive the end of the machine, or that of the program alone, which is faster.
enum class durability : unsigned char { machine, program };

namespace detail {

template <checksum Checksum, class Owner>
void save_sequence(const host& exec, const Owner& owner, sequence s, const std::string& path, const text_labels& labels,
                   durability survives) {
  persistence::check_idle(owner, "save");
  saved_description d = persistence::describe(owner);
  std::vector<lengths> held;
  persistence::each(owner, [&](const auto& c, int g) {
    held.push_back(c.holds(s));
    d.length = held.back().after;
    const listed_rows listed = persistence::listed_of(c, s);
    saved_group& group = d.groups[std::size_t(g)];
    group.body = held.back().body_after, group.listed = std::uint32_t(listed.count);
    group.evicted = std::uint32_t(listed.evicted);
  });
  expects(labels.tokens.empty() || idx(labels.tokens.size()) == d.length, "sequence ", s.slot, " of ", d.length,
          " tokens is saved with ", labels.tokens.size(), " token ids; one of each or none is needed");
  constexpr std::size_t longest = 1 << 16;
  expects(labels.model.size() <= longest, "the model's name has ", labels.model.size(), " bytes; ", longest,
          " at most are saved");
  const owner_stream<Owner> stream(owner, s, held);

  record_writer record;
  put_description(record, labels, d);
  saved_header h;
  expects(record.bytes().size() <= h.most_description && std::uint64_t(stream.bytes()) <= h.most_stream,
          "a sequence whose labels have ", record.bytes().size(), " bytes and whose rows ", stream.bytes(),
          "; a file has room for ", h.most_description, " and ", h.most_stream);
  std::copy_n(saved_header::signature, sizeof(h.magic), h.magic);
  h.description = record.bytes().size();
  h.stream = std::uint64_t(stream.bytes());
  static_assert(std::string_view(Checksum::name()).size() < saved_header::name_bytes,
                "kvilt: a checksum's name has up to 15 characters");
  std::strncpy(h.checksum, Checksum::name(), saved_header::name_bytes - 1);

  replacement to(path);
  const auto written = [&](int error) {
    if (error) refuse_file(to.part(), "cannot be written: ", error);
  };
  std::vector<std::uint64_t> sums(std::size_t(h.blocks()));
  const block_fault fault = move_blocks(exec, h, [&](idx block, unsigned char* staged) -> block_fault {
    const idx bytes = h.size_of(block), first = block * idx(h.block);
    unsigned char* put = staged;
    stream.each(first, first + bytes, [&](const unsigned char* from, idx n) {
      std::memcpy(put, from, std::size_t(n));
      put += n;
    });
    const std::uint64_t sum = sums[std::size_t(block)] = block_sum<Checksum>(block, staged, bytes);
    std::memcpy(put, &sum, sizeof(sum));
    const int error = to.to().write(staged, bytes + saved_header::sum_bytes, h.at(block));
    return {error ? block_fault::kind::system : block_fault::kind::none, block, error};
  });
  written(fault.error);
  h.blocks_sum = sum_of_sums<Checksum>(sums);
  h.sum = header_sum<Checksum>(h, record.bytes());
  written(to.to().write(record.bytes().data(), idx(h.description), saved_header::bytes));
  written(to.to().write(reinterpret_cast<const unsigned char*>(&h), saved_header::bytes, 0));
  to.take_place(survives == durability::machine);
}

}  // namespace detail

/// Writes what a sequence holds between steps to a file, byte for byte, codes and params, sinks and 16-bit tail: see
/// sequence_record.hpp for the format, and `restore`. `labels` are kept with it. The file takes the place of `path` when
/// it is complete: a reader never sees a part of it, and one that was there before stays when anything fails. Every
/// worker of the host has a block of 256 KiB. Throws `file_error`, or `invalid_argument` for a sequence that is not open,
/// in the middle of a step, or where labels do not fit. What only a truncation would show again is not saved; of a text
/// from which tokens were evicted the rest is, with its positions, and `column_sums` are the caller's.
template <checksum Checksum = crc32c, class Policy>
void save(const host& exec, const cache<Policy>& from, sequence s, const std::string& path,
          const text_labels& labels = {}, durability survives = durability::machine) {
  detail::save_sequence<Checksum>(exec, from, s, path, labels, survives);
}
template <checksum Checksum = crc32c, class... Policies>
void save(const host& exec, const cache_set<Policies...>& from, sequence s, const std::string& path,
          const text_labels& labels = {}, durability survives = durability::machine) {
  detail::save_sequence<Checksum>(exec, from, s, path, labels, survives);
}

}  // namespace kvilt::inline KVILT_ABI
