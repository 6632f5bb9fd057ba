// Any file: it is opened and restored as what it says, or refused by an error of the library, and then the cache is as it
// was. The first byte says whether the checksums are as they are in the file, or made right, so that what stands behind
// them is met too.
#include "fuzz/memory_file.hpp"

#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/restore.hpp>
#include <kvilt/tiers/save.hpp>

#include <array>
#include <vector>

namespace {

using namespace kvilt;

// As many of a file's checksums as it has room for.
void sign(std::vector<unsigned char>& bytes) {
  using header = detail::saved_header;
  if (bytes.size() < header::bytes) return;
  header h;
  std::memcpy(&h, bytes.data(), header::bytes);
  std::vector<std::uint64_t> sums;
  if (h.description > bytes.size() || h.stream > bytes.size() || h.block < 1 || h.file_bytes() != idx(bytes.size()))
    return;
  for (idx block = 0; block < h.blocks(); ++block) {
    unsigned char* const at = bytes.data() + h.at(block);
    sums.push_back(detail::block_sum<crc32c>(block, at, h.size_of(block)));
    std::memcpy(at + h.size_of(block), &sums.back(), sizeof(std::uint64_t));
  }
  h.blocks_sum = detail::sum_of_sums<crc32c>(sums);
  const auto described = bytes.begin() + std::ptrdiff_t(header::bytes);
  h.sum = detail::header_sum<crc32c>(h, {described, described + std::ptrdiff_t(h.description)});
  std::memcpy(bytes.data(), &h, header::bytes);
}

template <class Policy>
void open(const fuzz::memory_file& memory, const Policy& policy) {
  cache<Policy> owner({.layers = 1, .kv_heads = 1, .sequences = 2, .tokens = 40, .max_length = 24, .max_step = 3},
                      host_memory(), policy);
  const std::array<idx, 3> before = {owner.free_sequences(), owner.free_pages(), owner.free_tokens()};
  try {
    const sequence_file<> file(memory.path());
    const sequence s = restore(host(), owner, file, {file.model(), file.keys(), file.tokens()});
    if (owner.length(s) != file.length()) fuzz::fail("restored to another length");
    owner.reserve(s, 1);
    owner.close(s);
  } catch (const error& e) {
    if (std::string(e.what()).empty()) fuzz::fail("an error without words");
  }
  if (before != std::array<idx, 3>{owner.free_sequences(), owner.free_pages(), owner.free_tokens()})
    fuzz::fail("the cache is not as it was");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::choices choose(data, size);
  const int how = choose.below(8);
  std::vector<unsigned char> bytes(data + (size > 0), data + size);
  if (how % 2) sign(bytes);
  const fuzz::memory_file memory(bytes.data(), bytes.size());
  if (how < 2)
    open(memory, policy<paged<4>, q8<8>, q4<8>, keep_all, 1, 2>());
  else if (how < 4)
    open(memory, policy<paged<2>, fp16<8>, fp16<8>, window<5>>());
  else if (how < 6)
    open(memory, ring<fp16<8>, q8<8>, 5, 1>());
  else
    open(memory, policy<paged<4>, q8<8>, q4<8>, listed, 1, 2>());
  return 0;
}
