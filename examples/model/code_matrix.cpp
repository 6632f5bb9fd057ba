#include "code_matrix.hpp"

#include <kvilt/core/floats.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace example {
namespace {

constexpr int block = coded_rows::block, quad = 4;

std::size_t bytes_of(int count) {
  return static_cast<std::size_t>(count);
}

// Where the code of a row and a column of a block lies in the block's bytes, unpacked.
std::size_t place_in_block(int row, int column) {
  return bytes_of((column / quad * code_panel::rows + row) * quad + column % quad);
}

}  // namespace

void coded_rows::assign(const float* in, int rows, int columns) {
  blocks_ = bytes_of(columns / block);
  const std::size_t blocks = bytes_of(rows) * blocks_;
  codes_.resize(blocks * block);
  scales_.resize(blocks);
  sums_.resize(2 * blocks);
  for (std::size_t b = 0; b < blocks; ++b, in += block) {
    float largest = 0;
    for (int i = 0; i < block; ++i) largest = std::max(largest, std::abs(in[i]));
    const float scale = largest > 0 ? 127.0f / largest : 0.0f;
    scales_[b] = largest / 127.0f;
    std::int8_t* codes = codes_.data() + b * block;
    std::int32_t sums[2] = {0, 0};
    for (int i = 0; i < block; ++i) {
      // Rounds to the nearest integer, whose bits are the last of the sum; compilers make vectors of it.
      constexpr float magic = 0x1.8p23f;
      const auto code = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(in[i] * scale + magic) -
                                                  std::bit_cast<std::uint32_t>(magic));
      codes[i] = static_cast<std::int8_t>(code);
      sums[i / 16] += codes[i];
    }
    sums_[2 * b] = sums[0], sums_[2 * b + 1] = sums[1];
  }
}

coded_rows::row coded_rows::operator[](int index) const {
  const std::size_t first = bytes_of(index) * blocks_;
  return {codes_.data() + first * block, scales_.data() + first, sums_.data() + 2 * first};
}

bool code_matrix::takes(tensor_type type, int columns) {
  return code_traits_of(type).group != 0 && columns % block == 0;
}

code_matrix::code_matrix(tensor_type type, const std::byte* encoded, std::size_t row_bytes, int rows, int columns,
                         const kvilt::host& exec)
    : traits_(code_traits_of(type)),
      rows_(rows),
      blocks_(columns / block),
      panels_((rows + code_panel::rows - 1) / code_panel::rows),
      data_(kvilt::host_memory(), bytes_of(panels_) * panel_bytes()) {
  std::memset(data_.data(), 0, data_.bytes());
  exec.for_each(panels_, [&](kvilt::idx index, int) { fill(type, encoded, row_bytes, static_cast<int>(index)); });
}

std::size_t code_matrix::block_codes() const {
  return bytes_of(block * code_panel::rows) / (traits_.largest < 16 ? 2 : 1);
}

std::size_t code_matrix::block_params() const {
  return bytes_of(block / traits_.group * code_panel::rows) * (traits_.zero ? 1 : 2);
}

std::size_t code_matrix::panel_bytes() const {
  const std::size_t bytes = bytes_of(blocks_) * (block_codes() + sizeof(std::uint16_t) * block_params());
  return (bytes + 63) / 64 * 64;
}

code_panel code_matrix::panel(int index) const {
  const unsigned char* at = data_.data() + bytes_of(index) * panel_bytes();
  return {.codes = at,
          .params = reinterpret_cast<const std::uint16_t*>(at + bytes_of(blocks_) * block_codes()),
          .blocks = blocks_,
          .nibbles = traits_.largest < 16,
          .groups = block / traits_.group,
          .offsets = !traits_.zero,
          .zero = traits_.zero.value_or(0)};
}

void code_matrix::fill(tensor_type type, const std::byte* encoded, std::size_t row_bytes, int index) {
  const code_panel to = panel(index);
  auto* codes = const_cast<std::uint8_t*>(to.codes);
  auto* params = const_cast<std::uint16_t*>(to.params);
  const block_shape shape = block_shape_of(type);
  const int own_blocks = static_cast<int>(shape.elements) / block;  // of ours in one of the file's
  coded_block from;
  for (int row = 0; row < std::min(code_panel::rows, rows_ - index * code_panel::rows); ++row) {
    const std::byte* at = encoded + bytes_of(index * code_panel::rows + row) * row_bytes;
    for (int b = 0; b < blocks_; ++b) {
      if (b % own_blocks == 0) read_codes(type, at + bytes_of(b / own_blocks) * shape.bytes, from);
      std::uint8_t* block_at = codes + bytes_of(b) * block_codes();
      for (int i = 0; i < block; ++i) {
        const int code = from.codes[b % own_blocks * block + i];
        const std::size_t place = place_in_block(row, i);
        const std::size_t half = place % block_codes();  // nibbles: the second half goes on top of the first
        block_at[half] = static_cast<std::uint8_t>(block_at[half] | (half == place ? code : code << 4));
      }
      std::uint16_t* numbers = params + bytes_of(b) * block_params();
      for (int g = 0; g < to.groups; ++g) {
        const int group = b % own_blocks * to.groups + g;
        numbers[g * code_panel::rows + row] = kvilt::to_fp16(from.scale[group]);
        if (to.offsets) numbers[(to.groups + g) * code_panel::rows + row] = kvilt::to_fp16(from.offset[group]);
      }
    }
  }
}

void code_matrix::multiply(const panel_kernel& kernel, int index, const coded_rows::row& in, float* out) const {
  const int first = index * code_panel::rows;
  if (rows_ - first >= code_panel::rows) return kernel.multiply(panel(index), in, out + first);
  float padded[code_panel::rows];
  kernel.multiply(panel(index), in, padded);
  std::copy_n(padded, rows_ - first, out + first);
}

}  // namespace example
