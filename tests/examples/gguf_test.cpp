#include "gguf.hpp"

#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using example::gguf_file;
using example::model_error;
using support::byte_writer;
using support::gguf_builder;
using support::value_type;

// A file that goes when the test does.
class scratch_file {
 public:
  explicit scratch_file(const std::string& name, std::string_view bytes = {}) : path_(support::temporary_path(name)) {
    support::write_file(path_, bytes);
  }
  ~scratch_file() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Values of every type and tensors of several: small enough to be broken at every byte.
gguf_builder sampler() {
  gguf_builder file;
  file.value("u8", value_type::u8, byte_writer().number<std::uint8_t>(200).bytes());
  file.value("i8", value_type::i8, byte_writer().number<std::int8_t>(-100).bytes());
  file.value("u16", value_type::u16, byte_writer().number<std::uint16_t>(60000).bytes());
  file.value("i16", value_type::i16, byte_writer().number<std::int16_t>(-30000).bytes());
  file.u32("u32", 4000000000u);
  file.value("i32", value_type::i32, byte_writer().number<std::int32_t>(-2000000000).bytes());
  file.value("u64", value_type::u64, byte_writer().number<std::uint64_t>(~std::uint64_t{0}).bytes());
  file.value("i64", value_type::i64, byte_writer().number<std::int64_t>(-7).bytes());
  file.f32("f32", 1.5f);
  file.value("f64", value_type::f64, byte_writer().number<double>(-2.25).bytes());
  file.boolean("yes", true).text("text", "caf\xc3\xa9").texts("texts", {"a", "", "bc"});
  file.i32s("i32s", {1, -2, 3}).f32s("f32s", {0.5f, 0.25f});
  byte_writer nested;
  nested.number(value_type::array).number<std::uint64_t>(2);
  nested.number(value_type::u8).number<std::uint64_t>(2).raw("xy");
  nested.number(value_type::string).number<std::uint64_t>(1).text("deep");
  file.value("nested", value_type::array, nested.bytes());
  file.tensor("matrix", {3, 2}, support::ggml::f32, byte_writer().raw(std::string(24, 'm')).bytes());
  file.tensor("blocks", {64}, support::ggml::q8_0, std::string(68, 'b'));
  file.tensor("foreign", {256}, support::ggml::iq2_xs, std::string(74, 'f'));
  return file;
}

std::string error_of(const std::string& bytes) {
  const scratch_file file("error.gguf", bytes);
  try {
    gguf_file opened(file.path());
  } catch (const model_error& error) {
    return error.what();
  }
  return "no error";
}

std::string with_bytes(std::string bytes, std::size_t at, std::string_view replacement) {
  return bytes.replace(at, replacement.size(), replacement);
}

// Touches every byte that the file offers.
unsigned sum_of_tensors(const gguf_file& file) {
  unsigned sum = 0;
  for (const example::gguf_tensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.data) sum += static_cast<unsigned>(b);
  }
  return sum;
}

// Whether the whole chain either works or refuses the file with a model_error.
void use_hostile_file(const std::string& path) {
  try {
    const auto file = std::make_shared<const gguf_file>(path);
    sum_of_tensors(*file);
    const example::tokenizer tokenizer(*file);
    tokenizer.decode(tokenizer.encode("the hello 123", {true, true}));
    example::transformer model(file);
  } catch (const model_error& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
}

}  // namespace

TEST_CASE("gguf: metadata of every type", "[examples]") {
  const scratch_file scratch("types.gguf", sampler().bytes());
  const gguf_file file(scratch.path());
  CHECK(file.metadata<int>("u8") == 200);
  CHECK(file.metadata<int>("i8") == -100);
  CHECK(file.metadata<int>("u16") == 60000);
  CHECK(file.metadata<int>("i16") == -30000);
  CHECK(file.metadata<int>("i32") == -2000000000);
  CHECK(file.metadata<int>("i64") == -7);
  CHECK(file.metadata<float>("f32") == 1.5f);
  CHECK(file.metadata<float>("f64") == -2.25f);
  CHECK(file.metadata<float>("u8") == 200.0f);
  CHECK(file.metadata<bool>("yes"));
  CHECK(file.metadata<std::string>("text") == "caf\xc3\xa9");
  CHECK(file.metadata<std::vector<int>>("i32s") == std::vector<int>{1, -2, 3});
  CHECK(file.metadata<std::vector<float>>("f32s") == std::vector<float>{0.5f, 0.25f});
  CHECK(file.metadata<std::vector<std::string_view>>("texts") == std::vector<std::string_view>{"a", "", "bc"});
  CHECK_FALSE(file.optional<int>("absent"));
}

TEST_CASE("gguf: metadata of another kind is refused", "[examples]") {
  const scratch_file scratch("kinds.gguf", sampler().bytes());
  const gguf_file file(scratch.path());
  CHECK_THROWS_WITH(file.metadata<int>("absent"), support::containing("has no metadata 'absent'"));
  CHECK_THROWS_WITH(file.metadata<int>("u32"), support::containing("'u32' is 4000000000, which is out of range"));
  CHECK_THROWS_WITH(file.metadata<int>("u64"), support::containing("out of range"));
  CHECK_THROWS_WITH(file.metadata<int>("text"), support::containing("'text' is not an integer"));
  CHECK_THROWS_WITH(file.metadata<int>("i32s"), support::containing("'i32s' is not an integer"));
  CHECK_THROWS_WITH(file.metadata<bool>("u8"), support::containing("'u8' is not a bool"));
  CHECK_THROWS_WITH(file.metadata<float>("yes"), support::containing("'yes' is not a number"));
  CHECK_THROWS_WITH(file.metadata<std::string>("u8"), support::containing("'u8' is not a string"));
  CHECK_THROWS_WITH(file.optional<std::vector<int>>("u8"), support::containing("'u8' is not an array"));
  CHECK_THROWS_WITH(file.metadata<std::vector<int>>("texts"), support::containing("not an array of numbers"));
  CHECK_THROWS_WITH(file.metadata<std::vector<int>>("f32s"), support::containing("'f32s' is not an integer"));
  CHECK_THROWS_WITH(file.metadata<std::vector<int>>("nested"), support::containing("not an array of numbers"));
  CHECK_THROWS_WITH(file.metadata<std::vector<std::string_view>>("i32s"),
                    support::containing("not an array of strings"));
}

TEST_CASE("gguf: tensors lie where the file says", "[examples]") {
  const scratch_file scratch("tensors.gguf", sampler().bytes());
  const gguf_file file(scratch.path());
  REQUIRE(file.tensors().size() == 3);
  const example::gguf_tensor& matrix = file.tensor("matrix");
  CHECK(matrix.columns() == 3);
  CHECK(matrix.rows() == 2);
  REQUIRE(matrix.data.size() == 24);
  CHECK(matrix.data.back() == static_cast<std::byte>('m'));
  REQUIRE(file.tensor("blocks").data.size() == 68);
  CHECK(file.tensor("blocks").data.front() == static_cast<std::byte>('b'));
  CHECK(file.tensor("foreign").data.empty());
  CHECK(file.find_tensor("absent") == nullptr);
  CHECK_THROWS_WITH(file.tensor("absent"), support::containing("has no tensor 'absent'"));
}

TEST_CASE("gguf: what is no GGUF file is refused", "[examples]") {
  CHECK_THROWS_WITH(gguf_file("/absent/model.gguf"), support::containing("cannot open /absent/model.gguf"));
  CHECK_THROWS_WITH(gguf_file("/"), support::containing("not a regular file"));
  CHECK_THAT(error_of(""), support::containing("is empty"));
  CHECK_THAT(error_of("GGU"), support::containing("truncated: the magic number"));
  CHECK_THAT(error_of("PK\x03\x04 and so on"), support::containing("not a GGUF file"));
  const std::string bytes = sampler().bytes();
  CHECK_THAT(error_of(with_bytes(bytes, 4, "\x01")), support::containing("GGUF version 1 (2 and 3 are supported)"));
  CHECK(error_of(with_bytes(bytes, 4, "\x02")) == "no error");
}

TEST_CASE("gguf: a file cut short at any byte is refused", "[examples]") {
  support::tiny_gguf_options tiny;
  tiny.layers = 1;
  tiny.hidden = tiny.ffn = 8;
  tiny.q_heads = tiny.kv_heads = 1;
  tiny.head_dim = 4;
  gguf_builder whole_to_the_end = sampler();
  whole_to_the_end.tensor("last", {4}, support::ggml::f32, std::string(16, 'l'));
  for (const std::string& bytes : {whole_to_the_end.bytes(), support::tiny_gguf(tiny).bytes()}) {
    const scratch_file scratch("truncated.gguf", bytes);
    REQUIRE_NOTHROW(gguf_file(scratch.path()));
    std::size_t accepted = 0;
    for (std::size_t size = bytes.size(); size-- > 0;) {
      std::filesystem::resize_file(scratch.path(), size);
      try {
        gguf_file opened(scratch.path());
        ++accepted;
      } catch (const model_error&) {
      }
    }
    CHECK(accepted == 0);
  }
}

TEST_CASE("gguf: counts that the file cannot hold are refused before anything is allocated", "[examples]") {
  const std::string huge("\x00\x00\x00\x00\x00\x00\x00\x10", 8);
  const std::string bytes = sampler().bytes();
  CHECK_THAT(error_of(with_bytes(bytes, 8, huge)), support::containing("claims 1152921504606846976 tensors"));
  CHECK_THAT(error_of(with_bytes(bytes, 16, huge)), support::containing("claims 1152921504606846976 metadata entries"));
  CHECK_THAT(error_of(with_bytes(bytes, 24, huge)), support::containing("truncated: a metadata key needs"));
  const auto array_of = [&](value_type element) {
    gguf_builder file;
    file.value("a", value_type::array, byte_writer().number(element).raw(huge).bytes());
    return file.bytes();
  };
  CHECK_THAT(error_of(array_of(value_type::string)), support::containing("claims 1152921504606846976 strings"));
  CHECK_THAT(error_of(array_of(value_type::array)), support::containing("claims 1152921504606846976 arrays"));
  CHECK_THAT(error_of(array_of(value_type::f64)), support::containing("claims 1152921504606846976 array elements"));
}

TEST_CASE("gguf: arrays within arrays end somewhere", "[examples]") {
  byte_writer deep;
  for (int i = 0; i < 1000; ++i) deep.number(value_type::array).number<std::uint64_t>(1);
  deep.number(value_type::u8).number<std::uint64_t>(1).raw("x");
  gguf_builder file;
  file.value("a", value_type::array, deep.bytes());
  CHECK_THAT(error_of(file.bytes()), support::containing("nests arrays more than 4 deep"));
}

TEST_CASE("gguf: lying tensors are refused", "[examples]") {
  const auto error_of_tensor = [](const std::vector<std::uint64_t>& dims, std::uint32_t type, std::size_t size) {
    return error_of(gguf_builder().tensor("t", dims, type, std::string(size, 'x')).bytes());
  };
  CHECK(error_of_tensor({32}, support::ggml::q4_0, 18) == "no error");
  CHECK_THAT(error_of_tensor({32}, support::ggml::q4_0, 17),
             support::containing("truncated: tensor 't' needs 18 bytes"));
  CHECK_THAT(error_of_tensor({33}, support::ggml::q4_0, 99), support::containing("no multiple of the 32"));
  CHECK_THAT(error_of_tensor({0}, support::ggml::f32, 4), support::containing("impossible dimension 0"));
  CHECK_THAT(error_of_tensor({1ull << 40, 1ull << 40}, 0, 4), support::containing("impossible dimension"));
  CHECK_THAT(error_of_tensor({1ull << 63}, 0, 4), support::containing("impossible dimension"));
  CHECK_THAT(error_of_tensor({1, 1, 1, 1, 1}, 0, 4), support::containing("has 5 dimensions; expected 1 to 4"));
  CHECK_THAT(error_of_tensor({}, 0, 4), support::containing("has 0 dimensions; expected 1 to 4"));
  gguf_builder twice;
  twice.tensor("t", {1}, 0, "1234").tensor("t", {1}, 0, "1234");
  CHECK_THAT(error_of(twice.bytes()), support::containing("tensor 't' appears twice"));
  CHECK_THAT(error_of(gguf_builder().u32("k", 1).u32("k", 1).bytes()), support::containing("'k' appears twice"));

  const std::string bytes = gguf_builder().tensor("t", {1}, 0, "1234").bytes();
  const std::size_t offset_at = 24 + 8 + 1 + 4 + 8 + 4;  // header, name, dimension count, dimension, type
  CHECK_THAT(error_of(with_bytes(bytes, offset_at, "\x08")), support::containing("no multiple of the alignment 32"));
  CHECK_THAT(error_of(with_bytes(bytes, offset_at, "\x20")), support::containing("truncated: tensor 't'"));
  CHECK_THAT(error_of(with_bytes(bytes, offset_at + 7, "\x80")), support::containing("truncated: tensor 't'"));
}

TEST_CASE("gguf: an alignment is a power of two", "[examples]") {
  for (const std::uint32_t alignment : {0u, 1u, 4u, 12u, 1u << 21}) {
    CHECK_THAT(error_of(gguf_builder().u32("general.alignment", alignment).bytes()),
               support::containing("alignment " + std::to_string(alignment) + "; expected a power of two"));
  }
  CHECK(error_of(gguf_builder().u32("general.alignment", 64).bytes()) == "no error");
}

TEST_CASE("gguf: files with broken bytes work or are refused", "[examples]") {
  support::tiny_gguf_options options;
  options.layers = 1;
  options.hidden = options.ffn = 16;
  options.q_heads = 2;
  options.kv_heads = 1;
  options.head_dim = 8;
  options.rope_factors = true;
  for (const bool sentence_piece : {false, true}) {
    options.sentence_piece = sentence_piece;
    const std::string bytes = support::tiny_gguf(options).bytes();
    const std::size_t header = bytes.find("rope_freqs.weight") + 64;
    std::mt19937_64 engine(5);
    for (int round = 0; round < 1500; ++round) {
      std::string broken = bytes;
      for (std::uint64_t flips = 1 + engine() % 3; flips > 0; --flips) {
        broken[engine() % header] = static_cast<char>(engine() % 3 == 0 ? 0xff : engine());
      }
      use_hostile_file(scratch_file("broken.gguf", broken).path());
    }
  }
}
