#include "tensor_types.hpp"

#include <array>
#include <bit>
#include <cstring>

// The block layouts follow the descriptions in ggml's public headers (ggml-common.h, struct block_*). All are
// little-endian and unpadded, so blocks are read byte by byte and never through a struct.
static_assert(std::endian::native == std::endian::little, "GGUF blocks are little-endian");

namespace example {
namespace {

using byte_pointer = const std::uint8_t*;

struct type_entry {
  tensor_type type;
  block_shape shape;
};

constexpr std::array<type_entry, 13> supported_types{{
    {tensor_type::f32, {1, 4}},
    {tensor_type::f16, {1, 2}},
    {tensor_type::bf16, {1, 2}},
    {tensor_type::q4_0, {32, 18}},
    {tensor_type::q4_1, {32, 20}},
    {tensor_type::q5_0, {32, 22}},
    {tensor_type::q5_1, {32, 24}},
    {tensor_type::q8_0, {32, 34}},
    {tensor_type::q2_k, {256, 84}},
    {tensor_type::q3_k, {256, 110}},
    {tensor_type::q4_k, {256, 144}},
    {tensor_type::q5_k, {256, 176}},
    {tensor_type::q6_k, {256, 210}},
}};

// Indexed by the number in the file; an empty name is a number that ggml gave up.
constexpr std::array<const char*, 41> type_names{
    "F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
    "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4",
};

std::uint16_t load16(byte_pointer p) {
  return static_cast<std::uint16_t>(p[0] | (p[1] << 8));
}

std::uint32_t load32(byte_pointer p) {
  return load16(p) | (static_cast<std::uint32_t>(load16(p + 2)) << 16);
}

float load_half(byte_pointer p) {
  return float_from_half(load16(p));
}

void decode_f32(byte_pointer in, std::size_t blocks, float* out) {
  std::memcpy(out, in, blocks * sizeof(float));
}

void decode_f16(byte_pointer in, std::size_t blocks, float* out) {
  for (std::size_t i = 0; i < blocks; ++i) out[i] = load_half(in + 2 * i);
}

void decode_bf16(byte_pointer in, std::size_t blocks, float* out) {
  for (std::size_t i = 0; i < blocks; ++i) {
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(load16(in + 2 * i)) << 16);
  }
}

// 32 codes of 4 bits: value i in the low nibble of byte i, value i + 16 in the high one.
void read_nibbles(byte_pointer packed, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = packed[i] & 15;
    codes[i + 16] = packed[i] >> 4;
  }
}

// 32 bits, bit i of which goes on top of code i.
void add_fifth_bits(std::uint32_t bits, std::uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | ((bits >> i) & 1u) << 4);
}

// value = scale * (code - zero)
void set_symmetric(float scale, int zero, int group, coded_block& out) {
  out.scale[group] = scale;
  out.offset[group] = -static_cast<float>(zero) * scale;
}

void read_q4_0(byte_pointer in, coded_block& out) {
  set_symmetric(load_half(in), 8, 0, out);
  read_nibbles(in + 2, out.codes);
}

void read_q4_1(byte_pointer in, coded_block& out) {
  out.scale[0] = load_half(in), out.offset[0] = load_half(in + 2);
  read_nibbles(in + 4, out.codes);
}

void read_q5_0(byte_pointer in, coded_block& out) {
  set_symmetric(load_half(in), 16, 0, out);
  read_nibbles(in + 6, out.codes);
  add_fifth_bits(load32(in + 2), out.codes);
}

void read_q5_1(byte_pointer in, coded_block& out) {
  out.scale[0] = load_half(in), out.offset[0] = load_half(in + 2);
  read_nibbles(in + 8, out.codes);
  add_fifth_bits(load32(in + 4), out.codes);
}

void read_q8_0(byte_pointer in, coded_block& out) {
  set_symmetric(load_half(in), 128, 0, out);
  for (int i = 0; i < 32; ++i) out.codes[i] = in[2 + i] ^ 0x80;  // two's complement to codes from 0 up
}

// 16 scales and minima of 4 bits, then 2-bit codes: four rows of 32 values share 32 bytes.
void read_q2_k(byte_pointer in, coded_block& out) {
  const float scale = load_half(in + 80), min = load_half(in + 82);
  for (int group = 0; group < 16; ++group) {
    out.scale[group] = scale * static_cast<float>(in[group] & 15);
    out.offset[group] = -min * static_cast<float>(in[group] >> 4);
  }
  for (int i = 0; i < 256; ++i) out.codes[i] = in[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}

// A third bit for each code in bytes 0-31 (bit r for the r-th row of 32), codes as in Q2_K, then sixteen 6-bit scales:
// the low nibbles of eight and the high nibbles of the same bytes for the other eight, and four bytes of upper bits.
void read_q3_k(byte_pointer in, coded_block& out) {
  const float scale = load_half(in + 108);
  const byte_pointer packed = in + 96;
  for (int group = 0; group < 16; ++group) {
    const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    const int high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
    set_symmetric(scale * static_cast<float>((low | high << 4) - 32), 4, group, out);
  }
  for (int i = 0; i < 256; ++i) {
    const int low = in[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
    out.codes[i] = static_cast<std::uint8_t>(low | (in[i % 32] >> (i / 32) & 1) << 2);
  }
}

struct scale_and_min {
  float scale;
  float min;
};

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each are the low six bits of bytes 0-3 and
// 4-7, whose two upper bits are the upper bits of the last four, whose low nibbles share bytes 8-11.
scale_and_min unpack_k_scale(byte_pointer packed, int sub_block) {
  if (sub_block < 4) {
    return {static_cast<float>(packed[sub_block] & 63), static_cast<float>(packed[sub_block + 4] & 63)};
  }
  const int shared = packed[sub_block + 4];
  return {static_cast<float>((shared & 15) | ((packed[sub_block - 4] >> 6) << 4)),
          static_cast<float>((shared >> 4) | ((packed[sub_block] >> 6) << 4))};
}

// Two rows of 32 values share 32 bytes.
void read_k_nibbles(byte_pointer in, byte_pointer packed, coded_block& out) {
  const float scale = load_half(in), min = load_half(in + 2);
  for (int group = 0; group < 8; ++group) {
    const scale_and_min k = unpack_k_scale(in + 4, group);
    out.scale[group] = scale * k.scale;
    out.offset[group] = -min * k.min;
    for (int i = 0; i < 32; ++i) out.codes[32 * group + i] = packed[32 * (group / 2) + i] >> (4 * (group % 2)) & 15;
  }
}

void read_q4_k(byte_pointer in, coded_block& out) {
  read_k_nibbles(in, in + 16, out);
}

void read_q5_k(byte_pointer in, coded_block& out) {
  read_k_nibbles(in, in + 48, out);
  const byte_pointer high = in + 16;  // [32], bit r belongs to the r-th row of 32
  for (int i = 0; i < 256; ++i)
    out.codes[i] = static_cast<std::uint8_t>(out.codes[i] | (high[i % 32] >> (i / 32) & 1) << 4);
}

// 128 values at a time: four rows of 32, whose lower four bits lie in two rows of bytes and upper two bits in one.
void read_q6_k(byte_pointer in, coded_block& out) {
  const float scale = load_half(in + 208);
  for (int group = 0; group < 16; ++group)
    set_symmetric(scale * static_cast<float>(static_cast<std::int8_t>(in[192 + group])), 32, group, out);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, part = i / 32 % 4, lane = i % 32;
    const int low = in[64 * half + 32 * (part % 2) + lane] >> (4 * (part / 2)) & 15;
    const int high = in[128 + 32 * half + lane] >> (2 * part) & 3;
    out.codes[i] = static_cast<std::uint8_t>(low | high << 4);
  }
}

}  // namespace

std::optional<tensor_type> supported_tensor_type(std::uint32_t id) {
  for (const type_entry& entry : supported_types) {
    if (static_cast<std::uint32_t>(entry.type) == id) return entry.type;
  }
  return std::nullopt;
}

std::string tensor_type_name(std::uint32_t id) {
  if (id < type_names.size() && type_names[id][0] != '\0') return type_names[id];
  return "number " + std::to_string(id);
}

std::string supported_tensor_type_names() {
  std::string names;
  for (const type_entry& entry : supported_types) {
    if (!names.empty()) names += ", ";
    names += tensor_type_name(static_cast<std::uint32_t>(entry.type));
  }
  return names;
}

block_shape block_shape_of(tensor_type type) {
  for (const type_entry& entry : supported_types) {
    if (entry.type == type) return entry.shape;
  }
  return {1, 1};
}

code_traits code_traits_of(tensor_type type) {
  switch (type) {
    case tensor_type::f32:
    case tensor_type::f16:
    case tensor_type::bf16:
      return {};
    case tensor_type::q4_0:
      return {32, 15, 8};
    case tensor_type::q4_1:
      return {32, 15, std::nullopt};
    case tensor_type::q5_0:
      return {32, 31, 16};
    case tensor_type::q5_1:
      return {32, 31, std::nullopt};
    case tensor_type::q8_0:
      return {32, 255, 128};
    case tensor_type::q2_k:
      return {16, 3, std::nullopt};
    case tensor_type::q3_k:
      return {16, 7, 4};
    case tensor_type::q4_k:
      return {32, 15, std::nullopt};
    case tensor_type::q5_k:
      return {32, 31, std::nullopt};
    case tensor_type::q6_k:
      return {16, 63, 32};
  }
  return {};
}

void read_codes(tensor_type type, const std::byte* block, coded_block& out) {
  const auto* in = reinterpret_cast<byte_pointer>(block);
  switch (type) {
    case tensor_type::f32:
    case tensor_type::f16:
    case tensor_type::bf16:
      return;
    case tensor_type::q4_0:
      return read_q4_0(in, out);
    case tensor_type::q4_1:
      return read_q4_1(in, out);
    case tensor_type::q5_0:
      return read_q5_0(in, out);
    case tensor_type::q5_1:
      return read_q5_1(in, out);
    case tensor_type::q8_0:
      return read_q8_0(in, out);
    case tensor_type::q2_k:
      return read_q2_k(in, out);
    case tensor_type::q3_k:
      return read_q3_k(in, out);
    case tensor_type::q4_k:
      return read_q4_k(in, out);
    case tensor_type::q5_k:
      return read_q5_k(in, out);
    case tensor_type::q6_k:
      return read_q6_k(in, out);
  }
}

void dequantise(tensor_type type, const std::byte* blocks, std::size_t elements, float* out) {
  if (type == tensor_type::f32) return decode_f32(reinterpret_cast<byte_pointer>(blocks), elements, out);
  if (type == tensor_type::f16) return decode_f16(reinterpret_cast<byte_pointer>(blocks), elements, out);
  if (type == tensor_type::bf16) return decode_bf16(reinterpret_cast<byte_pointer>(blocks), elements, out);
  const block_shape shape = block_shape_of(type);
  const int group = code_traits_of(type).group;
  coded_block coded;
  for (std::size_t done = 0; done < elements; done += shape.elements, blocks += shape.bytes) {
    read_codes(type, blocks, coded);
    const std::uint8_t* codes = coded.codes;
    for (int g = 0; g < static_cast<int>(shape.elements) / group; ++g, codes += group, out += group)
      for (int i = 0; i < group; ++i) out[i] = coded.scale[g] * static_cast<float>(codes[i]) + coded.offset[g];
  }
}

float float_from_half(std::uint16_t bits) {
  // The exponent and fraction, moved to their places in a float, are the value times 2^-112: one multiplication brings
  // normal and subnormal numbers home alike. Infinities and NaNs keep an exponent of all ones.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const bool finite = magnitude < 0x0f800000u;
  const std::uint32_t value = finite ? std::bit_cast<std::uint32_t>(scaled) : (magnitude | 0x7f800000u);
  return std::bit_cast<float>(value | sign);
}

}  // namespace example
