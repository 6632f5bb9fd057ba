#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace example {

// The tensor encodings that this runtime reads, with the numbers that GGUF files give them.
enum class tensor_type : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

// A row is a whole number of blocks; a block holds `elements` values in `bytes` bytes.
struct block_shape {
  std::size_t elements;
  std::size_t bytes;
};

// The type that a file's number stands for, or nothing where this runtime cannot read it.
std::optional<tensor_type> supported_tensor_type(std::uint32_t id);

// The name of any type that ggml defines, supported here or not: "Q4_K", "IQ2_XS", "number 77".
std::string tensor_type_name(std::uint32_t id);

// "F32, F16, ...": for error messages.
std::string supported_tensor_type_names();

block_shape block_shape_of(tensor_type type);

// Decodes `elements` values (a multiple of the block's) into out [elements].
void dequantise(tensor_type type, const std::byte* blocks, std::size_t elements, float* out);

// A quantised type's values are scale * code + offset; the codes of `group` values in a row share scale and offset.
struct code_traits {
  int group = 0;  // 16 or 32; 0: the type has no codes
  int largest = 0;
  std::optional<int> zero;  // where every offset is -zero * scale
};

code_traits code_traits_of(tensor_type type);

struct coded_block {
  std::uint8_t codes[256];
  float scale[16];
  float offset[16];
};

// Takes one block of a quantised type apart.
void read_codes(tensor_type type, const std::byte* block, coded_block& out);

float float_from_half(std::uint16_t bits);

}  // namespace example
