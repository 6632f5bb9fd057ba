#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace support {

// The numbers of GGUF, written out here so that tests do not take them from the code under test.
enum class value_type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

namespace ggml {
constexpr std::uint32_t f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q2_k = 10, q3_k = 11,
                        q4_k = 12, q5_k = 13, q6_k = 14, iq2_xs = 17, bf16 = 30;
}

// Bytes in a row, little-endian.
class byte_writer {
 public:
  template <typename T>
  byte_writer& number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  byte_writer& text(std::string_view value) {
    number<std::uint64_t>(value.size());
    return raw(value);
  }
  byte_writer& raw(std::string_view value) {
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Builds a GGUF file of version 3 piece by piece, right or wrong as a test wants it.
class gguf_builder {
 public:
  // A value as it lies in the file, after its key and type.
  gguf_builder& value(std::string_view key, value_type type, std::string_view encoded);
  gguf_builder& u32(std::string_view key, std::uint32_t v);
  gguf_builder& f32(std::string_view key, float v);
  gguf_builder& boolean(std::string_view key, bool v);
  gguf_builder& text(std::string_view key, std::string_view v);
  gguf_builder& texts(std::string_view key, const std::vector<std::string>& v);
  gguf_builder& i32s(std::string_view key, const std::vector<std::int32_t>& v);
  gguf_builder& f32s(std::string_view key, const std::vector<float>& v);

  // dims as in the file: the contiguous one first.
  gguf_builder& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                       std::string_view data);

  std::string bytes() const;
  void write(const std::string& path) const;

 private:
  std::uint64_t values_ = 0;
  std::uint64_t tensors_ = 0;
  byte_writer metadata_;
  byte_writer tensor_entries_;
  std::string data_;
};

void write_file(const std::string& path, std::string_view bytes);

// A file name in the system's folder for temporary files, of this process alone.
std::string temporary_path(std::string_view name);

// Values in the encoding of a tensor type. K-quants are not fitted to the values: their blocks are random, of about
// unit scale times `scale`.
std::string encode_tensor(std::uint32_t type, const std::vector<float>& values, float scale, std::uint64_t seed);

// How many values a block of the type holds; 0 where encode_tensor does not know it.
int block_elements(std::uint32_t type);

std::uint16_t half_from_float(float value);

struct tiny_gguf_options {
  int layers = 2;
  int hidden = 64;
  int ffn = 96;
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int rope_dims = 0;  // 0: head_dim
  int context = 512;
  float rope_base = 10000.0f;
  bool sentence_piece = false;  // else byte-level BPE
  std::string pre_tokenizer = "gpt-2";
  std::string architecture = "llama";  // gemma3 has more norms, and layers of two kinds:
  int window = 0;                      // tokens that a query of a local layer sees
  int global_period = 0;               // n: every n-th layer is global; 0: the file does not say
  std::uint32_t tensor_type = 0;       // of the matrices whose rows are whole blocks; the others are F32
  bool separate_output = false;        // else the embedding serves as output
  bool rope_factors = false;
  std::uint64_t seed = 1;
};

// Writes a model of random weights with a tokenizer of about 300 tokens; the same options give the same bytes.
void write_tiny_gguf(const std::string& path, const tiny_gguf_options& options = {});

// The same model before its last step, for tests that add to it.
gguf_builder tiny_gguf(const tiny_gguf_options& options = {});

}  // namespace support
