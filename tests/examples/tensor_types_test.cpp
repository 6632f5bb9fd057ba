#include "tensor_types.hpp"

#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

namespace ggml = support::ggml;

double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return fraction == 0.0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25));
}

// A block read one value at a time, by where the layout says that its bits lie.
class block_reader {
 public:
  block_reader(std::uint32_t type, const unsigned char* bytes) : type_(type), bytes_(bytes) {}

  double value(int i) const {
    switch (type_) {
      case ggml::f32:
        return static_cast<double>(std::bit_cast<float>(word(0)));
      case ggml::f16:
        return half(0);
      case ggml::bf16:
        return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(half_bits(0)) << 16));
      case ggml::q4_0:
        return half(0) * (nibble(2, i) - 8);
      case ggml::q4_1:
        return half(0) * nibble(4, i) + half(2);
      case ggml::q5_0:
        return half(0) * (nibble(6, i) + 16 * bit(2, i) - 16);
      case ggml::q5_1:
        return half(0) * (nibble(8, i) + 16 * bit(4, i)) + half(2);
      case ggml::q8_0:
        return half(0) * static_cast<signed char>(bytes_[2 + i]);
      case ggml::q2_k:
        return half(80) * (bytes_[i / 16] % 16) * two_bits(16, i) - half(82) * (bytes_[i / 16] / 16);
      case ggml::q3_k:
        return half(108) * (three_bit_scale(i / 16) - 32) * (two_bits(32, i) + 4 * bit_row(0, i) - 4);
      case ggml::q4_k:
        return k_value(i, k_nibble(16, i));
      case ggml::q5_k:
        return k_value(i, k_nibble(48, i) + 16 * bit_row(16, i));
      default:
        return six_bit_value(i);
    }
  }

 private:
  std::uint16_t half_bits(int at) const { return static_cast<std::uint16_t>(bytes_[at] + 256 * bytes_[at + 1]); }
  std::uint32_t word(int at) const { return half_bits(at) + 65536u * half_bits(at + 2); }
  double half(int at) const { return half_value(half_bits(at)); }
  int nibble(int at, int i) const { return i < 16 ? bytes_[at + i] % 16 : bytes_[at + i - 16] / 16; }
  int bit(int at, int i) const { return (bytes_[at + i / 8] >> (i % 8)) & 1; }

  // 256 values to 32 bytes: the bits of a byte belong to values 32 apart.
  int bit_row(int at, int i) const { return (bytes_[at + i % 32] >> (i / 32)) & 1; }

  // 128 values to 32 bytes, likewise.
  int two_bits(int at, int i) const { return (bytes_[at + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32))) & 3; }

  int three_bit_scale(int group) const {
    const int low = group < 8 ? bytes_[96 + group] % 16 : bytes_[96 + group - 8] / 16;
    return low + 16 * ((bytes_[104 + group % 4] >> (2 * (group / 4))) & 3);
  }

  // 64 values to 32 bytes: the first 32 in the low nibbles.
  int k_nibble(int at, int i) const {
    const int byte = bytes_[at + i / 64 * 32 + i % 32];
    return i % 64 < 32 ? byte % 16 : byte / 16;
  }

  // Sub-block scales (which = 0) and minima (which = 1), of 6 bits, in bytes 4 to 15.
  int k_scale(int which, int j) const {
    const unsigned char* packed = bytes_ + 4;
    if (j < 4) return packed[4 * which + j] % 64;
    const int low = which == 0 ? packed[8 + j - 4] % 16 : packed[8 + j - 4] / 16;
    return low + 16 * (packed[4 * which + j - 4] / 64);
  }

  double k_value(int i, int code) const { return half(0) * k_scale(0, i / 32) * code - half(2) * k_scale(1, i / 32); }

  double six_bit_value(int i) const {
    const int half_block = i / 128, part = i % 128 / 32, lane = i % 32;
    const int low_byte = bytes_[64 * half_block + 32 * (part & 1) + lane];
    const int low = part < 2 ? low_byte % 16 : low_byte / 16;
    const int high = (bytes_[128 + 32 * half_block + lane] >> (2 * part)) % 4;
    return half(208) * static_cast<signed char>(bytes_[192 + i / 16]) * (low + 16 * high - 32);
  }

  std::uint32_t type_;
  const unsigned char* bytes_;
};

constexpr std::array all_types{ggml::f32,  ggml::f16,  ggml::bf16, ggml::q4_0, ggml::q4_1, ggml::q5_0, ggml::q5_1,
                               ggml::q8_0, ggml::q2_k, ggml::q3_k, ggml::q4_k, ggml::q5_k, ggml::q6_k};

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(static_cast<double>(engine() >> 11) * 0x1p-52 - 1.0);
  return values;
}

std::vector<float> decode(std::uint32_t type, const std::string& encoded, std::size_t count) {
  std::vector<float> out(count);
  example::dequantise(*example::supported_tensor_type(type), reinterpret_cast<const std::byte*>(encoded.data()), count,
                      out.data());
  return out;
}

}  // namespace

TEST_CASE("tensor_types: every half converts exactly", "[examples]") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double expected = half_value(half);
    const auto got = static_cast<double>(example::float_from_half(half));
    const bool same = std::isnan(expected) ? std::isnan(got) : got == expected && std::signbit(got) == (bits >> 15);
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("tensor_types: random blocks decode as the layout says", "[examples]") {
  constexpr std::size_t blocks = 64;
  for (const std::uint32_t type : all_types) {
    INFO(example::tensor_type_name(type));
    const auto known = example::supported_tensor_type(type);
    REQUIRE(known);
    const auto shape = example::block_shape_of(*known);
    std::mt19937_64 engine(type + 1);
    std::string encoded(blocks * shape.bytes, '\0');
    for (char& c : encoded) c = static_cast<char>(engine());
    const auto got = decode(type, encoded, blocks * shape.elements);
    int wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t block = i / shape.elements;
      const block_reader reader(type, reinterpret_cast<const unsigned char*>(encoded.data()) + block * shape.bytes);
      const double expected = reader.value(static_cast<int>(i % shape.elements));
      const auto value = static_cast<double>(got[i]);
      // A scale and an offset may cancel: what is left carries the rounding of either, each below 65504 * 2^16.
      const bool same = std::isfinite(expected)
                            ? std::abs(value - expected) <= 1e-6 * std::abs(expected) + 1e-6 * 4096.0 * 65504.0
                            : std::isnan(value) || value == expected;
      wrong += same ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("tensor_types: blocks of moderate scale decode to the last bits", "[examples]") {
  for (const std::uint32_t type : all_types) {
    INFO(example::tensor_type_name(type));
    const auto shape = example::block_shape_of(*example::supported_tensor_type(type));
    const auto values = random_values(32 * 256, type + 7);
    const std::string encoded = support::encode_tensor(type, values, 1.0f, type);
    REQUIRE(encoded.size() == values.size() / shape.elements * shape.bytes);
    const auto got = decode(type, encoded, values.size());
    double worst = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto* block = reinterpret_cast<const unsigned char*>(encoded.data()) + i / shape.elements * shape.bytes;
      const double expected = block_reader(type, block).value(static_cast<int>(i % shape.elements));
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected));
    }
    CHECK(worst < 2e-6);  // of values of about one
  }
}

TEST_CASE("tensor_types: codes, scales and offsets are what a block decodes to", "[examples]") {
  for (const std::uint32_t type : all_types) {
    INFO(example::tensor_type_name(type));
    const auto known = *example::supported_tensor_type(type);
    const example::code_traits traits = example::code_traits_of(known);
    if (traits.group == 0) continue;
    const auto shape = example::block_shape_of(known);
    const std::string encoded = support::encode_tensor(type, random_values(shape.elements, type), 1.0f, type);
    example::coded_block block;
    example::read_codes(known, reinterpret_cast<const std::byte*>(encoded.data()), block);
    const block_reader reader(type, reinterpret_cast<const unsigned char*>(encoded.data()));
    for (std::size_t i = 0; i < shape.elements; ++i) {
      const std::size_t g = i / static_cast<std::size_t>(traits.group);
      CHECK(block.codes[i] <= traits.largest);
      CHECK(double(block.scale[g]) * block.codes[i] + double(block.offset[g]) ==
            Approx(reader.value(static_cast<int>(i))).margin(1e-7));
      if (traits.zero) CHECK(block.offset[g] == -static_cast<float>(*traits.zero) * block.scale[g]);
    }
  }
}

TEST_CASE("tensor_types: the test files' quantisers stay within half a step", "[examples]") {
  const auto values = random_values(32 * 64, 3);
  const auto worst = [&](std::uint32_t type) {
    const auto got = decode(type, support::encode_tensor(type, values, 1.0f, 0), values.size());
    float error = 0.0f;
    for (std::size_t i = 0; i < got.size(); ++i) error = std::max(error, std::abs(got[i] - values[i]));
    return error;
  };
  CHECK(worst(ggml::f32) == 0.0f);
  CHECK(worst(ggml::f16) < 0.0005f);
  CHECK(worst(ggml::bf16) < 0.008f);
  CHECK(worst(ggml::q8_0) < 0.5f / 127.0f + 0.001f);
  CHECK(worst(ggml::q5_0) < 0.5f / 15.0f + 0.001f);
  CHECK(worst(ggml::q5_1) < 1.0f / 31.0f + 0.001f);
  CHECK(worst(ggml::q4_0) < 0.5f / 7.0f + 0.001f);
  CHECK(worst(ggml::q4_1) < 1.0f / 15.0f + 0.001f);
}

TEST_CASE("tensor_types: names of known and unknown types", "[examples]") {
  CHECK(example::tensor_type_name(17) == "IQ2_XS");
  CHECK(example::tensor_type_name(4) == "number 4");
  CHECK(example::tensor_type_name(4000000000u) == "number 4000000000");
  CHECK_FALSE(example::supported_tensor_type(17));
  CHECK(example::supported_tensor_type_names() ==
        "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K");
}
