#include "support/catch.hpp"
#include "support/kept_rows.hpp"
#include "support/saved_files.hpp"

#include <kvilt/kvilt.hpp>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

namespace {

using namespace kvilt;
using support::bytes_of;
using support::containing;
using support::file_bytes;
using support::kept_cache;
using support::test_folder;
using support::write_bytes;

constexpr cache_shape small = {
    .layers = 2, .kv_heads = 2, .sequences = 2, .tokens = 60, .max_length = 40, .max_step = 5};
using kind = policy<paged<4>, q8<16>, q4<8>, keep_all, 2, 3>;

// What can be seen of an owner.
template <class Owner>
std::vector<idx> state_of(const Owner& owner) {
  return {owner.free_sequences(), owner.free_pages(), owner.free_tokens()};
}

// Opening the file, or restoring it, throws `Error` with `text` in its message; the cache is as it was.
template <class Error = file_error, class Cache>
void refuses(Cache& to, const std::string& path, const std::string& text, const text_labels& wanted = {}) {
  const auto before = state_of(to.owner);
  const auto operation = [&] { restore(host(), to.owner, sequence_file(path), wanted); };
  CHECK_THROWS_AS(operation(), Error);
  CHECK_THROWS_WITH(operation(), containing(text));
  CHECK(state_of(to.owner) == before);
}

// Whether it opens and restores.
template <class Cache>
bool restores(Cache& to, const std::string& path) {
  const auto before = state_of(to.owner);
  try {
    to.owner.close(restore(host(), to.owner, sequence_file(path)));
    return true;
  } catch (const file_error&) {
    if (state_of(to.owner) != before) FAIL("changed by what it refused");
    return false;
  }
}

// A saved sequence of `length` tokens, and the cache that it came from.
struct saved {
  test_folder folder;
  kept_cache<kind> cache{kind(), small};
  sequence s = cache.owner.open();
  std::string path = folder / "text";

  explicit saved(idx length, const text_labels& labels = {}) {
    cache.grow(s, 1, length);
    save(host(), cache.owner, s, path, labels);
  }
};

template <class Number>
Number number_at(const file_bytes& bytes, std::size_t at) {
  Number n;
  std::memcpy(&n, bytes.data() + at, sizeof(n));
  return n;
}
template <class Number>
void put_number(file_bytes& bytes, std::size_t at, Number n) {
  std::memcpy(bytes.data() + at, &n, sizeof(n));
}
// The header's own checksum made right again.
void sign(file_bytes& bytes) {
  std::uint64_t sum = crc32c::of(0, bytes.data(), 64);
  sum = crc32c::of(sum, bytes.data() + 72, std::size_t(number_at<std::uint64_t>(bytes, 16)));
  put_number(bytes, 64, sum);
}

}  // namespace

TEST_CASE("restore: the file lies as its description says", "[tiers]") {
  const test_folder folder;
  kept_cache<policy<contiguous, fp32<8>>> cache({}, {.layers = 2, .kv_heads = 1, .tokens = 8, .max_step = 4});
  const sequence s = cache.owner.open();
  cache.grow(s, 1, 3);
  const std::vector<token_id> tokens = {11, 12, -13};
  const std::vector<std::uint64_t> keys = {0x0102030405060708};
  save(host(), cache.owner, s, folder / "text", {"m1", keys, tokens});
  const file_bytes bytes = bytes_of(folder / "text");

  const unsigned char begins[] = {0x89, 'K', 'V', 'I', 'L', 'T', '\r', '\n', 4, 3, 2, 1, 2, 0, 0, 0};
  REQUIRE(std::equal(std::begin(begins), std::end(begins), bytes.begin()));
  const std::uint64_t described = number_at<std::uint64_t>(bytes, 16);
  CHECK(number_at<std::uint64_t>(bytes, 24) == 2 * 2 * 3 * 8 * 4);  // layers, K and V, tokens, numbers, bytes
  CHECK(number_at<std::uint32_t>(bytes, 32) == 1 << 18);
  CHECK(std::string(reinterpret_cast<const char*>(&bytes[40])) == "crc32c");
  CHECK(std::count(bytes.begin() + 46, bytes.begin() + 56, 0) == 10);

  const std::string identity =
      "K fp32 of 8, records of 1 x 32 + 0 bytes; V fp32 of 8, records of 1 x 32 + 0 bytes; all";
  std::string wanted("\2\0\0\0m1\1\0\0\0\0\0\0\0\10\7\6\5\4\3\2\1\3\0\0\0\0\0\0\0", 30);  // model, keys, length
  wanted += std::string("\3\0\0\0\0\0\0\0\13\0\0\0\14\0\0\0\363\377\377\377", 20);        // tokens
  wanted += std::string("\0\0\0\0\0\0\0\0\1\0\0\0", 12);                                  // no shares, one group
  wanted += char(identity.size()) + std::string(3, '\0') + identity;
  wanted += std::string("\2\0\0\0\1\0\0\0\3\0\0\0\0\0\0\0", 16);  // layers, heads, body
  wanted += std::string(16, '\0');                                // nothing listed or evicted, no scales
  CHECK(std::string(bytes.begin() + 72, bytes.begin() + 72 + std::ptrdiff_t(described)) == wanted);

  const std::size_t first = 72 + std::size_t(described);
  const std::vector<unsigned char> rows = cache.bytes(s);  // by token; the file has K of all tokens before V
  std::vector<unsigned char> stream;
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t side = 0; side < 2; ++side)
      for (std::size_t token = 0; token < 3; ++token) {
        const auto row = rows.begin() + std::ptrdiff_t(((layer * 3 + token) * 2 + side) * 32);
        stream.insert(stream.end(), row, row + 32);
      }
  REQUIRE(bytes.size() == first + stream.size() + 8);
  CHECK(std::equal(stream.begin(), stream.end(), bytes.begin() + std::ptrdiff_t(first)));
  const std::uint64_t sum = crc32c::of(0, bytes.data(), 64);
  CHECK(number_at<std::uint64_t>(bytes, 64) == crc32c::of(sum, bytes.data() + 72, std::size_t(described)));
  stream.insert(stream.begin(), 8, 0);  // the block's number
  const std::size_t last = bytes.size() - 8;
  CHECK(number_at<std::uint64_t>(bytes, last) == crc32c::of(0, stream.data(), stream.size()));
  CHECK(number_at<std::uint64_t>(bytes, 56) == crc32c::of(0, &bytes[last], 8));

  const sequence_file file(folder / "text");
  CHECK(std::ranges::equal(file.tokens(), tokens));
  CHECK(std::ranges::equal(file.keys(), keys));
}

TEST_CASE("restore: every flipped bit, every cut and every byte too many is refused", "[tiers]") {
  saved one(7);
  kept_cache<kind> to(kind(), small);
  const file_bytes right = bytes_of(one.path);
  REQUIRE(restores(to, one.path));
  // NOTE: changed where it lies: a file that is written anew takes a disk much longer.
  {
    const detail::file file(one.path.c_str(), O_WRONLY);
    for (std::size_t bit = 0; bit < 8 * right.size(); ++bit) {
      const auto wrong = static_cast<unsigned char>(right[bit / 8] ^ 1 << bit % 8);
      REQUIRE(file.write(&wrong, 1, idx(bit / 8)) == 0);
      if (restores(to, one.path)) FAIL("bit " << bit % 8 << " of byte " << bit / 8);
      REQUIRE(file.write(&right[bit / 8], 1, idx(bit / 8)) == 0);
    }
  }
  REQUIRE(restores(to, one.path));
  for (std::size_t count = right.size(); count-- > 0;) {
    std::filesystem::resize_file(one.path, count);
    if (restores(to, one.path)) FAIL("cut to " << count << " bytes of " << right.size());
  }
  for (const std::size_t more : {1, 8, 4096}) {
    file_bytes longer = right;
    longer.resize(right.size() + more);
    write_bytes(one.path, longer);
    refuses(to, one.path, "says that it has a description");
  }
  write_bytes(one.path, right);
  CHECK(restores(to, one.path));
}

TEST_CASE("restore: what the file says of itself is refused by name", "[tiers]") {
  saved one(7);
  kept_cache<kind> to(kind(), small);
  const file_bytes right = bytes_of(one.path);
  const auto with = [&](auto change, const std::string& text) {
    file_bytes wrong = right;
    change(wrong);
    sign(wrong);
    write_bytes(one.path, wrong);
    refuses(to, one.path, text);
  };
  with([](file_bytes& b) { b[0] = 'x'; }, "it is no saved sequence of kvilt");
  with([](file_bytes& b) { std::reverse(b.begin() + 8, b.begin() + 12); }, "by a machine of another byte order");
  with([](file_bytes& b) { put_number(b, 12, 3); }, "it has version 3 of the format; version 2 is known");
  with([](file_bytes& b) { put_number(b, 32, 0); }, "its blocks have 0 bytes");
  with([](file_bytes& b) { put_number(b, 32, (1 << 24) + 1); }, "its blocks have 16777217 bytes");
  with([](file_bytes& b) { b[45] = 'd'; }, "its checksum is another than crc32c");
  // Claims of more than there is, which are not believed: none of these allocates what it says.
  for (const std::size_t at : {16, 24})
    for (const std::uint64_t lie : {std::uint64_t(1) << 40, ~std::uint64_t(0), std::uint64_t(1) << 63}) {
      file_bytes wrong = right;
      put_number(wrong, at, lie);
      write_bytes(one.path, wrong);
      refuses(to, one.path, "and says that it has a description of");
    }
  // Nor is a file of that size: blocks of a byte have checksums of more bytes than 64 bits count.
  const int memory = memfd_create("claims", 0);
  REQUIRE(memory >= 0);
  file_bytes claims = right;
  put_number(claims, 24, std::uint64_t(1) << 61);
  put_number(claims, 32, 1);
  sign(claims);
  REQUIRE(pwrite(memory, claims.data(), claims.size(), 0) == ssize_t(claims.size()));
  std::uint64_t description = 0;
  std::memcpy(&description, claims.data() + 16, 8);
  REQUIRE(ftruncate(memory, off_t(72 + description + (std::uint64_t(1) << 61))) == 0);
  refuses(to, "/proc/self/fd/" + std::to_string(memory), "and says that it has a description of");
  close(memory);
  // What is no file is not waited for.
  const support::test_folder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  refuses(to, folder / "pipe", "it is no file, but a folder, a pipe or a device");
  refuses(to, folder.path().string(), "it is no file, but a folder, a pipe or a device");
  with([](file_bytes& b) { put_number(b, 72 + 4, ~std::uint64_t(0) / 8); }, "its description of");  // keys
  with([](file_bytes& b) { put_number(b, 72 + 12, -1ll); }, "its description of");                  // length
  with([](file_bytes& b) { put_number(b, 72 + 12, 8ll); }, "8 tokens of its policy have");
  with([](file_bytes& b) { put_number(b, 72 + 36, ~std::uint32_t(0)); }, "its description of");  // groups
}

TEST_CASE("restore: what a file says of evicted tokens is held against its text", "[tiers]") {
  using rule = policy<paged<4>, q8<16>, q4<8>, listed>;
  const test_folder folder;
  const std::string path = folder / "text";
  const auto refused_with = [&](auto kept, std::uint32_t rows, std::uint32_t evicted, const std::string& text) {
    file_bytes bytes = bytes_of(path);
    const std::size_t after_body = 72 + std::size_t(number_at<std::uint64_t>(bytes, 16)) - 16;
    put_number(bytes, after_body, rows);
    put_number(bytes, after_body + 4, evicted);
    sign(bytes);
    write_bytes(path, bytes);
    refuses(kept, path, text);
  };
  {
    kept_cache<kind> none(kind(), small);
    const sequence s = none.owner.open();
    none.grow(s, 1, 7);
    save(host(), none.owner, s, path);
    refused_with(kept_cache<kind>(kind(), small), 0, 1, "has 0 rows on record and 1 tokens evicted of a body of");
  }
  kept_cache<rule> one(rule(), small);
  const sequence s = one.owner.open();
  one.grow(s, 1, 9);
  std::vector<int> places;
  for (int list = 0; list < 4; ++list)
    for (const int row : {0, 2, 5, 7, 8}) places.push_back(row);
  one.owner.keep(host(), s, places);  // 3 rows on record, 4 tokens evicted
  for (const std::uint32_t lie : {7u, ~0u}) {
    save(host(), one.owner, s, path);
    refused_with(kept_cache<rule>(rule(), small), lie, 4, " rows on record and 4 tokens evicted of a body of 9");
    save(host(), one.owner, s, path);
    refused_with(kept_cache<rule>(rule(), small), 3, lie, "has 3 rows on record and ");
  }
  // Positions that do not go up, or reach into the rows that are not on record, under a checksum that is right.
  for (const std::int32_t lie : {-1, 0, 5, 7, 1 << 30}) {
    save(host(), one.owner, s, path);
    file_bytes bytes = bytes_of(path);
    const std::size_t first = 72 + std::size_t(number_at<std::uint64_t>(bytes, 16)), last = bytes.size() - 8;
    std::size_t at = first + 5 * (16 + 2 + 4 + 4);  // behind K and V of one head
    REQUIRE(number_at<std::int32_t>(bytes, at) == 0);
    REQUIRE(number_at<std::int32_t>(bytes, at + 4) == 2);
    put_number(bytes, at + 4, lie);
    file_bytes block(8, 0);  // its number
    block.insert(block.end(), bytes.begin() + std::ptrdiff_t(first), bytes.begin() + std::ptrdiff_t(last));
    put_number(bytes, last, std::uint64_t(crc32c::of(0, block.data(), block.size())));
    put_number(bytes, 56, std::uint64_t(crc32c::of(0, &bytes[last], 8)));
    sign(bytes);
    write_bytes(path, bytes);
    kept_cache<rule> to(rule(), small);
    refuses(to, path, lie <= 0 || lie > 5 ? "has position " + std::to_string(lie) : "has position 5 after 5");
  }
}

TEST_CASE("restore: another policy, shape, model, key or text is refused by name", "[tiers]") {
  const std::vector<std::uint64_t> keys = {5, 6}, fewer = {5}, others = {5, 7};
  const std::vector<token_id> tokens = {1, 2, 3, 4, 5, 6, 7};
  std::vector<token_id> other_tokens = tokens;
  other_tokens[6] = 8;
  saved one(7, {"this model", keys, tokens});
  kept_cache<kind> to(kind(), small);
  const text_labels wanted{"this model", keys, {}};
  const auto changed = [&](auto change) {
    text_labels l = wanted;
    change(l);
    return l;
  };
  refuses(to, one.path, "of the model 'this model'; 'that model' is wanted",
          changed([](text_labels& l) { l.model = "that model"; }));
  refuses(to, one.path, "its 2 keys are others than the 1", changed([&](text_labels& l) { l.keys = fewer; }));
  refuses(to, one.path, "its 2 keys are others than the 2", changed([&](text_labels& l) { l.keys = others; }));
  refuses(to, one.path, "its 7 tokens are others", changed([&](text_labels& l) { l.tokens = other_tokens; }));
  to.owner.close(restore(host(), to.owner, sequence_file(one.path), wanted));
  to.owner.close(
      restore(host(), to.owner, sequence_file(one.path), changed([&](text_labels& l) { l.tokens = tokens; })));

  const auto refused_by = [&](auto policy, const cache_shape& shape, const std::string& text) {
    kept_cache other(policy, shape);
    refuses(other, one.path, text, wanted);
  };
  refused_by(policy<paged<4>, q8<16>, q8<8>, keep_all, 2, 3>(), small,
             "the cache is 'K q8 of 16, records of 1 x 16 + 2");
  refused_by(policy<paged<4>, rotated<q8<16>>, q4<8>, keep_all, 2, 3>(), small, "the cache is 'K q8rot of 16");
  refused_by(policy<paged<4>, q8<24>, q4<8>, keep_all, 2, 3>(), small, "the cache is 'K q8 of 24");
  refused_by(policy<paged<4>, q8<16>, q4<8>, keep_all, 3, 3>(), small, "sinks 3; tail 3");
  refused_by(policy<paged<4>, q8<16>, q4<8>, keep_all, 2, 4>(), small, "sinks 2; tail 4");
  refused_by(policy<paged<4>, q8<16>, q4<8>, keep_all, 2, 3, bf16>(), small, "sinks and tail in bf16 of 16");
  refused_by(policy<paged<4>, q8<16>, q4<8>, window<9>, 2, 3>(), small, "window 9");
  cache_shape shape = small;
  shape.layers = 3;
  refused_by(kind(), shape, "has 2 layers of 2 KV heads; the cache has 3 of 2");
  shape = small, shape.kv_heads = 1;
  refused_by(kind(), shape, "has 2 layers of 2 KV heads; the cache has 2 of 1");
}

TEST_CASE("restore: where there is no room nothing changes", "[tiers]") {
  saved one(33);
  cache_shape shape = small;
  shape.tokens = 24;
  kept_cache<kind> few_pages(kind(), shape);
  refuses<out_of_pages>(few_pages, one.path, "8 pages for the 33 tokens of a file; 6 of 6 are free");
  shape = small, shape.max_length = 32;
  kept_cache<kind> short_texts(kind(), shape);
  refuses<invalid_argument>(short_texts, one.path, "is to hold 33 tokens; the longest may have 32");
  shape = small, shape.max_length = 32, shape.sequences = 1, shape.tokens = 32;
  kept_cache<policy<contiguous, q8<16>, q4<8>, keep_all, 2, 3>> rows({}, shape);
  refuses<invalid_argument>(rows, one.path, "the longest may have 32");
  kept_cache<kind> full(kind(), small);
  full.owner.open(), full.owner.open();
  refuses<out_of_pages>(full, one.path, "all 2 sequences are open");

  kept_cache<kind> busy(kind(), small);
  const sequence s = busy.owner.open();
  busy.owner.reserve(s, 1);
  std::vector<unsigned char> workspace(busy.owner.workspace_bytes(host(), 1));
  const int token = 1;
  busy.owner.begin(host(), {&s, 1}, {&token, 1}, workspace);
  refuses<invalid_argument>(busy, one.path, "restore: step 1 is begun");
  CHECK_THROWS_WITH(save(host(), busy.owner, s, one.folder / "other"), containing("save: step 1 is begun"));
  busy.owner.cancel();
  CHECK(restores(busy, one.path));
}

TEST_CASE("restore: static scales are those that rows were written at", "[tiers]") {
  using scaled = policy<paged<4>, e4m3_static<16>, q8_static<8>>;
  const test_folder folder;
  kept_cache<scaled> one(scaled(), small), other(scaled(), small);
  const sequence s = one.owner.open();
  one.grow(s, 1, 9);
  save(host(), one.owner, s, folder / "text");
  other.set_scales(0.06f);
  refuses(other, folder / "text", "group 0 has other static scales than the cache");
  other.set_scales(0.05f);
  CHECK(other.bytes(restore(host(), other.owner, sequence_file(folder / "text"))) == one.bytes(s));
  cache<scaled> unset(small, host_memory());
  CHECK_THROWS_WITH(restore(host(), unset, sequence_file(folder / "text")),
                    containing("static scale of layer 0 is not"));
}

TEST_CASE("restore: a block of another place or another file is none", "[tiers]") {
  using large = policy<contiguous, fp32<64>>;
  const test_folder folder;
  const cache_shape shape = {.layers = 2, .kv_heads = 4, .tokens = 512, .max_step = 64};
  kept_cache<large> cache({}, shape), to({}, shape);
  for (const char* name : {"one", "two"}) {
    const sequence s = cache.owner.open();
    for (int i = 0; i < 8; ++i) cache.step(s, std::uint64_t(name[0]), 64);
    save(host(), cache.owner, s, folder / name);
    cache.owner.close(s);
  }
  const file_bytes one = bytes_of(folder / "one"), two = bytes_of(folder / "two");
  const std::size_t block = (1 << 18) + 8, first = one.size() % block;  // whole blocks end the file
  REQUIRE(one.size() == first + 8 * block);
  REQUIRE(restores(to, folder / "one"));
  file_bytes wrong = one;
  std::swap_ranges(wrong.begin() + std::ptrdiff_t(first), wrong.begin() + std::ptrdiff_t(first + block),
                   wrong.begin() + std::ptrdiff_t(first + 3 * block));
  write_bytes(folder / "one", wrong);
  refuses(to, folder / "one", "block 0 of 8 is damaged");
  wrong = one;
  std::copy_n(two.begin() + std::ptrdiff_t(first + 5 * block), block,
              wrong.begin() + std::ptrdiff_t(first + 5 * block));
  write_bytes(folder / "one", wrong);
  refuses(to, folder / "one", "its blocks are not those that it was written with");
}

TEST_CASE("restore: a checksum of one's own", "[tiers]") {
  struct fnv {  // FNV-1a, 64 bit
    static constexpr const char* name() { return "fnv1a64"; }
    static std::uint64_t of(std::uint64_t before, const unsigned char* bytes, std::size_t count) {
      std::uint64_t h = 0xcbf29ce484222325u ^ before;
      for (std::size_t i = 0; i < count; ++i) h = (h ^ bytes[i]) * 0x100000001b3u;
      return h;
    }
  };
  static_assert(checksum<fnv>);
  saved one(7);
  save<fnv>(host(), one.cache.owner, one.s, one.path);
  CHECK_THROWS_WITH(sequence_file(one.path), containing("its checksum is another than crc32c"));
  kept_cache<kind> to(kind(), small);
  const sequence s = restore(host(), to.owner, sequence_file<fnv>(one.path));
  CHECK(to.bytes(s) == one.cache.bytes(one.s));
  file_bytes wrong = bytes_of(one.path);
  wrong[wrong.size() - 20] ^= 4;
  write_bytes(one.path, wrong);
  CHECK_THROWS_WITH(restore(host(), to.owner, sequence_file<fnv>(one.path)), containing("block 0 of 1 is damaged"));
}

TEST_CASE("restore: a save that fails leaves the file that was there", "[tiers]") {
  saved one(7);
  kept_cache<kind> to(kind(), small);
  const file_bytes before = bytes_of(one.path);
  one.cache.grow(one.s, 1, 30);
  const auto fails = [&](const std::string& path, const std::string& text) {
    CHECK_THROWS_AS(save(host(), one.cache.owner, one.s, path), file_error);
    CHECK_THROWS_WITH(save(host(), one.cache.owner, one.s, path), containing(text));
  };
  fails(one.folder / "no folder/text", "no folder/text.part: cannot be written: No such file");
  std::filesystem::create_directory(one.folder / "taken");
  fails(one.folder / "taken", "taken: cannot be replaced: Is a directory");

  // A disk that takes no more than this.
  rlimit was{};
  getrlimit(RLIMIT_FSIZE, &was);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t most : {0, 64, 500, 1200}) {
    const rlimit now{most, was.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
    std::string words;
    try {
      save(host(), one.cache.owner, one.s, one.path);
    } catch (const file_error& e) {
      words = e.what();
    }
    setrlimit(RLIMIT_FSIZE, &was);
    INFO(most << " bytes: " << words);
    CHECK(words.find("text.part: cannot be written: File too large") != words.npos);
    CHECK(bytes_of(one.path) == before);
  }
  std::signal(SIGXFSZ, ignored);
  {
    const detail::replacement other(one.path);
    fails(one.path, "text.part: is being written by somebody else");
  }
  CHECK(bytes_of(one.path) == before);
  for (const auto& entry : std::filesystem::directory_iterator(one.folder.path()))
    CHECK(entry.path().filename().string().find(".part") == std::string::npos);
  save(host(), one.cache.owner, one.s, one.path);
  CHECK(to.bytes(restore(host(), to.owner, sequence_file(one.path))) == one.cache.bytes(one.s));
}

// KVILT_KILLS: how many, for who has the time.
TEST_CASE("restore: whenever a writer is killed, the old file is there or the new one", "[tiers]") {
  using large = policy<paged<16>, fp32<64>>;
  const test_folder folder;
  const std::string path = folder / "text";
  const cache_shape shape = {.layers = 2, .kv_heads = 4, .sequences = 2, .tokens = 1024, .max_step = 64};
  kept_cache<large> cache({}, shape), to({}, shape);
  std::vector<unsigned char> texts[2];
  sequence s[2];
  for (int i = 0; i < 2; ++i) {
    s[i] = cache.owner.open();
    for (int n = 0; n < 4 + 2 * i; ++n) cache.step(s[i], std::uint64_t(i), 63);
    texts[i] = cache.bytes(s[i]);
  }
  const auto save_once = [&](int which) { save(host(), cache.owner, s[which], path, {}, durability::program); };
  const auto start = std::chrono::steady_clock::now();
  save_once(0), save_once(1);
  const double usual = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 2;

  const char* const asked = std::getenv("KVILT_KILLS");
  const int kills = asked ? std::atoi(asked) : 40;
  support::dice random(7);
  int found[2] = {}, left = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t writer = fork();
    REQUIRE(writer >= 0);
    if (writer == 0) {
      for (int which = 0;; which ^= 1) save_once(which);
    }
    usleep(useconds_t(usual * (0.5 + 3 * random.below(1000) / 1000.0)));
    kill(writer, SIGKILL);
    int status = 0;
    waitpid(writer, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    const sequence back = restore(host(), to.owner, sequence_file(path));
    const std::vector<unsigned char> bytes = to.bytes(back);
    const int which = bytes == texts[1];
    if (bytes != texts[which]) FAIL("kill " << i << " leaves a file of " << bytes.size() << " other bytes");
    ++found[which];
    to.owner.close(back);
    // What the writer did not complete is found to be broken.
    if (std::filesystem::exists(path + ".part")) {
      ++left;
      std::filesystem::copy_file(path + ".part", folder / "broken", std::filesystem::copy_options::overwrite_existing);
      try {
        const sequence rest = restore(host(), to.owner, sequence_file(folder / "broken"));
        const std::vector<unsigned char> whole = to.bytes(rest);
        if (whole != texts[0] && whole != texts[1]) FAIL("kill " << i << " leaves a file that is wrong");
        to.owner.close(rest);
      } catch (const file_error&) {
      }
    }
  }
  INFO(found[0] << " and " << found[1] << " times the one file and the other, " << left << " times a part of one");
  CHECK(found[0] + found[1] == kills);
  CHECK(left > 0);
}
