#include "support/tiny_gguf.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

namespace support {
namespace {

constexpr std::size_t alignment = 32;

// Numbers that are the same with every standard library, which its distributions are not.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>((engine_() >> 32) % bound); }

  // Uniform, of mean 0 and variance 1.
  float unit() {
    const double u = static_cast<double>(engine_() >> 11) * 0x1p-53;
    return static_cast<float>((2.0 * u - 1.0) * 1.7320508075688772);
  }

 private:
  std::mt19937_64 engine_;
};

void put_half(std::string& out, float value) {
  const std::uint16_t bits = half_from_float(value);
  out += static_cast<char>(bits & 255);
  out += static_cast<char>(bits >> 8);
}

float rounded_to_half(float value) {
  const std::uint16_t bits = half_from_float(value);
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

struct code_range {
  float scale;
  float offset;
  int largest;
};

// The nearest codes of 32 values that decode as scale * code + offset.
std::array<int, 32> nearest_codes(const float* values, const code_range& range) {
  std::array<int, 32> codes{};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float code = range.scale == 0.0f ? 0.0f : std::nearbyint((values[i] - range.offset) / range.scale);
    codes[i] = static_cast<int>(std::clamp(code, 0.0f, static_cast<float>(range.largest)));
  }
  return codes;
}

void put_nibbles(std::string& out, const std::array<int, 32>& codes) {
  for (std::size_t i = 0; i < 16; ++i) out += static_cast<char>((codes[i] & 15) | ((codes[i + 16] & 15) << 4));
}

void put_high_bits(std::string& out, const std::array<int, 32>& codes) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) bits |= static_cast<std::uint32_t>(codes[i] >> 4) << i;
  for (int byte = 0; byte < 4; ++byte) out += static_cast<char>((bits >> (8 * byte)) & 255);
}

float largest_magnitude(const float* values) {
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

// Q4_0 and Q5_0: codes around a middle, and a scale.
void put_symmetric(std::string& out, const float* values, int bits) {
  const int middle = 1 << (bits - 1);
  const float scale = rounded_to_half(largest_magnitude(values) / static_cast<float>(middle - 1));
  const auto codes = nearest_codes(values, {scale, -static_cast<float>(middle) * scale, 2 * middle - 1});
  put_half(out, scale);
  if (bits == 5) put_high_bits(out, codes);
  put_nibbles(out, codes);
}

// Q4_1 and Q5_1: codes from the least value up, a scale and that value.
void put_asymmetric(std::string& out, const float* values, int bits) {
  const auto [least, most] = std::minmax_element(values, values + 32);
  const int largest = (1 << bits) - 1;
  const float offset = rounded_to_half(*least);
  const float scale = rounded_to_half((*most - *least) / static_cast<float>(largest));
  const auto codes = nearest_codes(values, {scale, offset, largest});
  put_half(out, scale);
  put_half(out, offset);
  if (bits == 5) put_high_bits(out, codes);
  put_nibbles(out, codes);
}

void put_q8_0(std::string& out, const float* values) {
  const float scale = rounded_to_half(largest_magnitude(values) / 127.0f);
  put_half(out, scale);
  for (int i = 0; i < 32; ++i) {
    const float code = scale == 0.0f ? 0.0f : std::nearbyint(values[i] / scale);
    out += static_cast<char>(static_cast<int>(std::clamp(code, -127.0f, 127.0f)));
  }
}

void put_random_bytes(std::string& out, int count, random_source& random) {
  for (int i = 0; i < count; ++i) out += static_cast<char>(random.below(256));
}

// Random codes and sub-block scales, under block scales that make the values of about the wanted size.
void put_k_block(std::string& out, std::uint32_t type, float scale, random_source& random) {
  if (type == ggml::q6_k) {
    put_random_bytes(out, 208, random);
    put_half(out, scale / 1300.0f);
    return;
  }
  if (type == ggml::q3_k) {
    put_random_bytes(out, 108, random);
    put_half(out, scale / 40.0f);
    return;
  }
  if (type == ggml::q2_k) {
    put_random_bytes(out, 80, random);
    put_half(out, scale / 12.0f);
    put_half(out, scale / 8.0f);
    return;
  }
  const float middle = type == ggml::q4_k ? 7.5f : 15.5f;
  const float step = scale / (32.0f * middle);
  put_half(out, step);
  put_half(out, step * middle);
  put_random_bytes(out, type == ggml::q4_k ? 140 : 172, random);
}

void put_block(std::string& out, std::uint32_t type, const float* values, float scale, random_source& random) {
  switch (type) {
    case ggml::f32:
      out.append(reinterpret_cast<const char*>(values), sizeof(float));
      break;
    case ggml::f16:
      put_half(out, *values);
      break;
    case ggml::bf16: {
      const auto bits = std::bit_cast<std::uint32_t>(*values);
      out += static_cast<char>((bits >> 16) & 255);
      out += static_cast<char>(bits >> 24);
      break;
    }
    case ggml::q4_0:
      put_symmetric(out, values, 4);
      break;
    case ggml::q5_0:
      put_symmetric(out, values, 5);
      break;
    case ggml::q4_1:
      put_asymmetric(out, values, 4);
      break;
    case ggml::q5_1:
      put_asymmetric(out, values, 5);
      break;
    case ggml::q8_0:
      put_q8_0(out, values);
      break;
    default:
      put_k_block(out, type, scale, random);
  }
}

std::string utf8_of(std::uint32_t code_point) {  // below U+0800
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 63))};
}

// GPT-2's stand-ins for the 256 bytes.
std::vector<std::string> byte_stand_ins() {
  std::vector<std::string> out;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    out.push_back(utf8_of(printable ? byte : next++));
  }
  return out;
}

void add_byte_level_tokenizer(gguf_builder& file, const std::string& pre_tokenizer) {
  std::vector<std::string> tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<std::int32_t> types(3, 3);  // control
  for (const std::string& byte : byte_stand_ins()) tokens.push_back(byte);
  const std::string space = utf8_of(0x120);
  const std::vector<std::array<std::string, 2>> merges{
      {"h", "e"}, {"t", "he"},   {space, "the"}, {"i", "n"},  {"in", "g"}, {"a", "n"},     {"an", "d"},  {space, "and"},
      {"e", "r"}, {"l", "l"},    {"o", "u"},     {"r", "e"},  {"t", "h"},  {space, "a"},   {space, "s"}, {"ll", "o"},
      {"o", "n"}, {"he", "llo"}, {"1", "2"},     {"12", "3"}, {"'", "s"},  {space, space}, {"e", "s"},   {"ou", "t"}};
  std::vector<std::string> lines;
  for (const auto& [left, right] : merges) {
    tokens.push_back(left + right);
    lines.push_back(left + " " + right);
  }
  types.resize(tokens.size(), 1);
  file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre_tokenizer);
  file.texts("tokenizer.ggml.tokens", tokens).i32s("tokenizer.ggml.token_type", types);
  file.texts("tokenizer.ggml.merges", lines);
  file.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 0);
  file.boolean("tokenizer.ggml.add_bos_token", false);
}

void add_sentence_piece_tokenizer(gguf_builder& file) {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types{2, 3, 3};
  std::vector<float> scores(3, 0.0f);
  constexpr char digits[] = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    tokens.push_back(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
    types.push_back(6);
    scores.push_back(0.0f);
  }
  const std::string space = "\xe2\x96\x81";
  std::vector<std::string> pieces{"he",          "the", space + "the", "in",    "ing",           "an",  "and",
                                  space + "and", "ll",  "llo",         "hello", space + "hello", space, "en"};
  for (char c = 'a'; c <= 'z'; ++c) pieces.push_back(std::string(1, c));
  for (const std::string& piece : pieces) {
    scores.push_back(-static_cast<float>(tokens.size() - 259));
    tokens.push_back(piece);
    types.push_back(1);
  }
  file.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
  file.i32s("tokenizer.ggml.token_type", types).f32s("tokenizer.ggml.scores", scores);
  file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
}

constexpr int byte_level_tokens = 3 + 256 + 24;
constexpr int sentence_piece_tokens = 3 + 256 + 14 + 26;

void add_matrix(gguf_builder& file, const std::string& name, int rows, int columns, std::uint32_t type, float scale,
                random_source& random) {
  const auto size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  std::vector<float> values(size);
  for (float& v : values) v = scale * random.unit();
  const std::uint32_t stored = columns % block_elements(type) == 0 ? type : ggml::f32;
  file.tensor(name, {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)}, stored,
              encode_tensor(stored, values, scale, random.below(1u << 30)));
}

void add_vector(gguf_builder& file, const std::string& name, int size, float middle, random_source& random) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& v : values) v = middle + 0.1f * random.unit();
  file.tensor(name, {static_cast<std::uint64_t>(size)}, ggml::f32, encode_tensor(ggml::f32, values, 1.0f, 0));
}

void add_layer(gguf_builder& file, int layer, const tiny_gguf_options& o, random_source& random) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const auto matrix = [&](const char* name, int rows, int columns) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(columns));
    add_matrix(file, prefix + name + ".weight", rows, columns, o.tensor_type, scale, random);
  };
  add_vector(file, prefix + "attn_norm.weight", o.hidden, 1.0f, random);
  matrix("attn_q", o.q_heads * o.head_dim, o.hidden);
  matrix("attn_k", o.kv_heads * o.head_dim, o.hidden);
  matrix("attn_v", o.kv_heads * o.head_dim, o.hidden);
  matrix("attn_output", o.hidden, o.q_heads * o.head_dim);
  if (o.architecture == "gemma3") {
    add_vector(file, prefix + "attn_q_norm.weight", o.head_dim, 1.0f, random);
    add_vector(file, prefix + "attn_k_norm.weight", o.head_dim, 1.0f, random);
    add_vector(file, prefix + "post_attention_norm.weight", o.hidden, 1.0f, random);
    add_vector(file, prefix + "post_ffw_norm.weight", o.hidden, 1.0f, random);
  }
  add_vector(file, prefix + "ffn_norm.weight", o.hidden, 1.0f, random);
  matrix("ffn_gate", o.ffn, o.hidden);
  matrix("ffn_up", o.ffn, o.hidden);
  matrix("ffn_down", o.hidden, o.ffn);
}

void add_config(gguf_builder& file, const tiny_gguf_options& o) {
  const std::string prefix = o.architecture + ".";
  const auto u32 = [&](const char* key, int value) { file.u32(prefix + key, static_cast<std::uint32_t>(value)); };
  file.text("general.architecture", o.architecture);
  u32("block_count", o.layers);
  u32("embedding_length", o.hidden);
  u32("feed_forward_length", o.ffn);
  u32("attention.head_count", o.q_heads);
  u32("attention.head_count_kv", o.kv_heads);
  u32("attention.key_length", o.head_dim);
  u32("attention.value_length", o.head_dim);
  u32("rope.dimension_count", o.rope_dims > 0 ? o.rope_dims : o.head_dim);
  u32("context_length", o.context);
  if (o.window > 0) u32("attention.sliding_window", o.window);
  if (o.global_period > 0) u32("attention.sliding_window_pattern", o.global_period);
  file.f32(prefix + "rope.freq_base", o.rope_base).f32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
}

}  // namespace

gguf_builder& gguf_builder::value(std::string_view key, value_type type, std::string_view encoded) {
  metadata_.text(key).number(type).raw(encoded);
  ++values_;
  return *this;
}

gguf_builder& gguf_builder::u32(std::string_view key, std::uint32_t v) {
  return value(key, value_type::u32, byte_writer().number(v).bytes());
}

gguf_builder& gguf_builder::f32(std::string_view key, float v) {
  return value(key, value_type::f32, byte_writer().number(v).bytes());
}

gguf_builder& gguf_builder::boolean(std::string_view key, bool v) {
  return value(key, value_type::boolean, byte_writer().number<std::uint8_t>(v).bytes());
}

gguf_builder& gguf_builder::text(std::string_view key, std::string_view v) {
  return value(key, value_type::string, byte_writer().text(v).bytes());
}

gguf_builder& gguf_builder::texts(std::string_view key, const std::vector<std::string>& v) {
  byte_writer out;
  out.number(value_type::string).number<std::uint64_t>(v.size());
  for (const std::string& s : v) out.text(s);
  return value(key, value_type::array, out.bytes());
}

gguf_builder& gguf_builder::i32s(std::string_view key, const std::vector<std::int32_t>& v) {
  byte_writer out;
  out.number(value_type::i32).number<std::uint64_t>(v.size());
  for (const std::int32_t i : v) out.number(i);
  return value(key, value_type::array, out.bytes());
}

gguf_builder& gguf_builder::f32s(std::string_view key, const std::vector<float>& v) {
  byte_writer out;
  out.number(value_type::f32).number<std::uint64_t>(v.size());
  for (const float f : v) out.number(f);
  return value(key, value_type::array, out.bytes());
}

gguf_builder& gguf_builder::tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                                   std::string_view data) {
  data_.resize((data_.size() + alignment - 1) / alignment * alignment);
  tensor_entries_.text(name).number(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t d : dims) tensor_entries_.number(d);
  tensor_entries_.number(type).number<std::uint64_t>(data_.size());
  data_ += data;
  ++tensors_;
  return *this;
}

std::string gguf_builder::bytes() const {
  byte_writer out;
  out.raw("GGUF").number<std::uint32_t>(3).number(tensors_).number(values_);
  out.raw(metadata_.bytes()).raw(tensor_entries_.bytes());
  std::string bytes = out.bytes();
  if (tensors_ > 0) bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  return bytes + data_;
}

void gguf_builder::write(const std::string& path) const {
  write_file(path, bytes());
}

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

std::string temporary_path(std::string_view name) {
  const std::string file = "kvilt-" + std::to_string(::getpid()) + "-" + std::string(name);
  return (std::filesystem::temp_directory_path() / file).string();
}

std::string encode_tensor(std::uint32_t type, const std::vector<float>& values, float scale, std::uint64_t seed) {
  const int block = block_elements(type);
  if (block == 0) throw std::invalid_argument("no encoder for tensor type " + std::to_string(type));
  random_source random(seed);
  std::string out;
  for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(block)) {
    put_block(out, type, values.data() + i, scale, random);
  }
  return out;
}

int block_elements(std::uint32_t type) {
  switch (type) {
    case ggml::f32:
    case ggml::f16:
    case ggml::bf16:
      return 1;
    case ggml::q4_0:
    case ggml::q4_1:
    case ggml::q5_0:
    case ggml::q5_1:
    case ggml::q8_0:
      return 32;
    case ggml::q2_k:
    case ggml::q3_k:
    case ggml::q4_k:
    case ggml::q5_k:
    case ggml::q6_k:
      return 256;
    default:
      return 0;
  }
}

std::uint16_t half_from_float(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::abs(value);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  // A unit in the last place is 2^-24 up to 2^-14 and doubles with each power of two from there.
  const int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + units));
}

gguf_builder tiny_gguf(const tiny_gguf_options& o) {
  random_source random(o.seed);
  gguf_builder file;
  add_config(file, o);
  if (o.sentence_piece) {
    add_sentence_piece_tokenizer(file);
  } else {
    add_byte_level_tokenizer(file, o.pre_tokenizer);
  }
  const int vocab = o.sentence_piece ? sentence_piece_tokens : byte_level_tokens;
  add_matrix(file, "token_embd.weight", vocab, o.hidden, o.tensor_type, 1.0f, random);
  for (int layer = 0; layer < o.layers; ++layer) add_layer(file, layer, o, random);
  add_vector(file, "output_norm.weight", o.hidden, 1.0f, random);
  if (o.separate_output) add_matrix(file, "output.weight", vocab, o.hidden, o.tensor_type, 0.3f, random);
  if (o.rope_factors)
    add_vector(file, "rope_freqs.weight", (o.rope_dims > 0 ? o.rope_dims : o.head_dim) / 2, 2.0f, random);
  return file;
}

void write_tiny_gguf(const std::string& path, const tiny_gguf_options& options) {
  tiny_gguf(options).write(path);
}

}  // namespace support
