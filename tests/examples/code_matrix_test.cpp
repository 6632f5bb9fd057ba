#include "code_matrix.hpp"

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
using example::code_matrix;
using example::coded_rows;

constexpr std::array coded_types{ggml::q4_0, ggml::q4_1, ggml::q5_0, ggml::q5_1, ggml::q8_0,
                                 ggml::q2_k, ggml::q3_k, ggml::q4_k, ggml::q5_k, ggml::q6_k};

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(static_cast<double>(engine() >> 11) * 0x1p-52 - 1.0);
  return values;
}

struct matrix {
  example::tensor_type type;
  int rows, columns;
  std::string bytes;

  std::size_t row_bytes() const { return bytes.size() / static_cast<std::size_t>(rows); }
  code_matrix codes() const {
    return code_matrix(type, reinterpret_cast<const std::byte*>(bytes.data()), row_bytes(), rows, columns, {});
  }
  std::vector<float> values() const {
    std::vector<float> out(static_cast<std::size_t>(rows * columns));
    example::dequantise(type, reinterpret_cast<const std::byte*>(bytes.data()), out.size(), out.data());
    return out;
  }
};

matrix random_matrix(std::uint32_t type, int rows, int columns) {
  const auto values = random_values(static_cast<std::size_t>(rows * columns), type + 1);
  return {*example::supported_tensor_type(type), rows, columns, support::encode_tensor(type, values, 1.0f, type)};
}

// Activations as they ought to be rounded: to 127ths of the largest of each 32.
std::vector<double> rounded(const std::vector<float>& in) {
  std::vector<double> out;
  for (std::size_t first = 0; first < in.size(); first += 32) {
    double largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(double(in[first + i])));
    for (std::size_t i = 0; i < 32; ++i)
      out.push_back(largest == 0 ? 0 : std::nearbyint(double(in[first + i]) * 127 / largest) * largest / 127);
  }
  return out;
}

// Every kernel against sums in double precision, by the size of what is added up.
void check_products(const matrix& m, const std::vector<float>& in, double tolerance) {
  const code_matrix codes = m.codes();
  const std::vector<float> weights = m.values();
  const std::vector<double> activations = rounded(in);
  const auto columns = static_cast<std::size_t>(m.columns);
  const int tokens = static_cast<int>(in.size() / columns);
  coded_rows coded;
  coded.assign(in.data(), tokens, m.columns);
  for (const example::panel_kernel& kernel : example::panel_kernels()) {
    INFO(kernel.name << ", " << example::tensor_type_name(static_cast<std::uint32_t>(m.type)));
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> out(static_cast<std::size_t>(m.rows) + 1, -7.0f);
      for (int p = 0; p < codes.panels(); ++p) codes.multiply(kernel, p, coded[t], out.data());
      double worst = 0;
      for (std::size_t r = 0; r + 1 < out.size(); ++r) {
        double sum = 0, size = 0;
        for (std::size_t c = 0; c < columns; ++c) {
          const double term = double(weights[r * columns + c]) * activations[static_cast<std::size_t>(t) * columns + c];
          sum += term;
          size += std::abs(term);
        }
        worst = std::max(worst, std::abs(double(out[r]) - sum) / size);
      }
      CHECK(worst < tolerance);
      CHECK(out.back() == -7.0f);
    }
  }
}

}  // namespace

TEST_CASE("code_matrix: activations round to 127ths of the largest of 32", "[examples]") {
  std::vector<float> in = random_values(3 * 96, 5);
  for (std::size_t i = 32; i < 64; ++i) in[i] = i % 2 ? 0.0f : -0.0f;
  for (std::size_t i = 64; i < 96; ++i) in[i] *= 1e-20f;
  const std::vector<double> expected = rounded(in);
  coded_rows coded;
  coded.assign(in.data(), 3, 96);
  for (int r = 0; r < 3; ++r) {
    const coded_rows::row row = coded[r];
    for (int i = 0; i < 96; ++i) {
      const double value = double(row.scales[i / 32]) * row.codes[i];
      CHECK(value == Approx(expected[static_cast<std::size_t>(96 * r + i)]).epsilon(1e-6).margin(1e-35));
    }
    for (int g = 0; g < 6; ++g) {
      int sum = 0;
      for (int i = 0; i < 16; ++i) sum += row.codes[16 * g + i];
      CHECK(row.sums[g] == sum);
    }
  }
}

TEST_CASE("code_matrix: every kernel multiplies every quantised type", "[examples]") {
  CHECK(std::string(example::panel_kernels().back().name) == "portable");
  for (const std::uint32_t type : coded_types) {
    // Scales of two factors are rounded to fp16; the others are the file's.
    const double tolerance =
        example::block_shape_of(*example::supported_tensor_type(type)).elements == 256 ? 4e-4 : 2e-6;
    for (const int rows : {1, 16, 37})
      check_products(random_matrix(type, rows, 512), random_values(3 * 512, type), tolerance);
  }
}

TEST_CASE("code_matrix: the largest codes times the largest activations do not saturate", "[examples]") {
  for (const std::uint32_t type : {ggml::q8_0, ggml::q6_k, ggml::q4_1}) {
    matrix m = random_matrix(type, 19, 256);
    const auto shape = example::block_shape_of(m.type);
    for (std::size_t at = 0; at < m.bytes.size(); at += shape.bytes) {
      // All ones, or for Q8_0 -128; scales stay as they are.
      const std::size_t first = type == ggml::q8_0 ? 2 : type == ggml::q6_k ? 0 : 4;
      const std::size_t last = type == ggml::q6_k ? 192 : shape.bytes;
      for (std::size_t i = first; i < last; ++i)
        m.bytes[at + i] = static_cast<char>(type == ggml::q8_0 && at / shape.bytes % 2 ? 0x80
                                            : type == ggml::q8_0                       ? 0x7f
                                                                                       : 0xff);
    }
    std::vector<float> in(3 * 256, 1.0f);
    for (std::size_t i = 256; i < 512; ++i) in[i] = -1.0f;
    for (std::size_t i = 512; i < 768; ++i) in[i] = i % 2 ? 1.0f : -1.0f;
    check_products(m, in, 4e-4);
  }
}

TEST_CASE("code_matrix: takes quantised rows of whole blocks", "[examples]") {
  CHECK(code_matrix::takes(example::tensor_type::q4_1, 96));
  CHECK_FALSE(code_matrix::takes(example::tensor_type::f32, 96));
  CHECK_FALSE(code_matrix::takes(example::tensor_type::bf16, 96));
}
