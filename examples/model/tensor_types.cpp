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

constexpr std::array<type_entry, 11> supported_types{{
    {tensor_type::f32, {1, 4}},
    {tensor_type::f16, {1, 2}},
    {tensor_type::bf16, {1, 2}},
    {tensor_type::q4_0, {32, 18}},
    {tensor_type::q4_1, {32, 20}},
    {tensor_type::q5_0, {32, 22}},
    {tensor_type::q5_1, {32, 24}},
    {tensor_type::q8_0, {32, 34}},
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
void decode_nibbles(byte_pointer codes, float scale, float offset, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(codes[i] & 15) + offset;
    out[i + 16] = scale * static_cast<float>(codes[i] >> 4) + offset;
  }
}

// As above, with bit i of `high` on top of code i.
void decode_five_bits(byte_pointer codes, std::uint32_t high, float scale, float offset, float* out) {
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t low_code = (codes[i] & 15u) | (((high >> i) & 1u) << 4);
    const std::uint32_t high_code = (codes[i] >> 4) | (((high >> (i + 16)) & 1u) << 4);
    out[i] = scale * static_cast<float>(low_code) + offset;
    out[i + 16] = scale * static_cast<float>(high_code) + offset;
  }
}

void decode_q4_0(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 18, out += 32) {
    const float scale = load_half(in);
    decode_nibbles(in + 2, scale, -8.0f * scale, out);
  }
}

void decode_q4_1(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 20, out += 32) decode_nibbles(in + 4, load_half(in), load_half(in + 2), out);
}

void decode_q5_0(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 22, out += 32) {
    const float scale = load_half(in);
    decode_five_bits(in + 6, load32(in + 2), scale, -16.0f * scale, out);
  }
}

void decode_q5_1(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 24, out += 32) {
    decode_five_bits(in + 8, load32(in + 4), load_half(in), load_half(in + 2), out);
  }
}

void decode_q8_0(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 34, out += 32) {
    const float scale = load_half(in);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<std::int8_t>(in[2 + i]));
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

void decode_q4_k(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 144) {
    const float scale = load_half(in);
    const float min = load_half(in + 2);
    for (int sub_block = 0; sub_block < 8; ++sub_block, out += 32) {
      const scale_and_min packed = unpack_k_scale(in + 4, sub_block);
      const byte_pointer codes = in + 16 + 32 * (sub_block / 2);
      const int shift = 4 * (sub_block % 2);
      const float step = scale * packed.scale;
      const float offset = min * packed.min;
      for (int i = 0; i < 32; ++i) out[i] = step * static_cast<float>((codes[i] >> shift) & 15) - offset;
    }
  }
}

void decode_q5_k(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 176) {
    const float scale = load_half(in);
    const float min = load_half(in + 2);
    const byte_pointer high = in + 16;  // [32], bit s belongs to sub-block s
    for (int sub_block = 0; sub_block < 8; ++sub_block, out += 32) {
      const scale_and_min packed = unpack_k_scale(in + 4, sub_block);
      const byte_pointer codes = in + 48 + 32 * (sub_block / 2);
      const int shift = 4 * (sub_block % 2);
      const float step = scale * packed.scale;
      const float offset = min * packed.min;
      for (int i = 0; i < 32; ++i) {
        const int code = ((codes[i] >> shift) & 15) | (((high[i] >> sub_block) & 1) << 4);
        out[i] = step * static_cast<float>(code) - offset;
      }
    }
  }
}

void decode_q6_k(byte_pointer in, std::size_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 210) {
    const float scale = load_half(in + 208);
    for (int quarter = 0; quarter < 8; ++quarter, out += 32) {  // 32 values at a time, four quarters to each half
      const int half = quarter / 4;
      const int part = quarter % 4;
      const byte_pointer low = in + 64 * half + 32 * (part % 2);
      const byte_pointer high = in + 128 + 32 * half;
      const byte_pointer scales = in + 192 + 8 * half + 2 * part;  // one signed scale per 16 values
      for (int i = 0; i < 32; ++i) {
        const int code = ((low[i] >> (4 * (part / 2))) & 15) | (((high[i] >> (2 * part)) & 3) << 4);
        const float step = scale * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
        out[i] = step * static_cast<float>(code - 32);
      }
    }
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

void dequantise(tensor_type type, const std::byte* blocks, std::size_t elements, float* out) {
  const auto* in = reinterpret_cast<byte_pointer>(blocks);
  const std::size_t count = elements / block_shape_of(type).elements;
  switch (type) {
    case tensor_type::f32:
      return decode_f32(in, count, out);
    case tensor_type::f16:
      return decode_f16(in, count, out);
    case tensor_type::bf16:
      return decode_bf16(in, count, out);
    case tensor_type::q4_0:
      return decode_q4_0(in, count, out);
    case tensor_type::q4_1:
      return decode_q4_1(in, count, out);
    case tensor_type::q5_0:
      return decode_q5_0(in, count, out);
    case tensor_type::q5_1:
      return decode_q5_1(in, count, out);
    case tensor_type::q8_0:
      return decode_q8_0(in, count, out);
    case tensor_type::q4_k:
      return decode_q4_k(in, count, out);
    case tensor_type::q5_k:
      return decode_q5_k(in, count, out);
    case tensor_type::q6_k:
      return decode_q6_k(in, count, out);
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
