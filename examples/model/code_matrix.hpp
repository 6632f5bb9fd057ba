#pragma once

#include "tensor_types.hpp"

#include <kvilt/core/executor.hpp>
#include <kvilt/core/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace example {

// Rows of activations in 8 bit: a scale for each block of 32, and the sums of codes that the weights' zeros and offsets
// are multiplied by.
class coded_rows {
 public:
  static constexpr int block = 32;

  // in [rows][columns], columns a multiple of 32
  void assign(const float* in, int rows, int columns);

  struct row {
    const std::int8_t* codes;  // [blocks][32]
    const float* scales;       // [blocks]
    const std::int32_t* sums;  // of 16 codes: [blocks][2]
  };
  row operator[](int index) const;

 private:
  std::size_t blocks_ = 0;  // of a row
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_;
  std::vector<std::int32_t> sums_;
};

// Sixteen rows of a quantised matrix as integer dot products want them. A block is 32 columns of all sixteen:
//   codes   columns in quads, a row's side by side: [quad][row][4]. Codes of up to 4 bits lie two to a byte, as
//           [4][row][4]: the low nibbles are those of quads 0 to 3, the high ones those of quads 4 to 7.
//   params  scales of each group of 16 or 32 columns, then offsets where the type stores them, in fp16: [group][row]
struct code_panel {
  static constexpr int rows = 16;

  const std::uint8_t* codes;
  const std::uint16_t* params;
  int blocks;
  bool nibbles;
  int groups;    // of a block: 1 or 2
  bool offsets;  // else every offset is -zero * scale
  int zero;
};

// One way to multiply: out [16] = the panel's rows times a row of activations.
struct panel_kernel {
  const char* name;
  void (*multiply)(const code_panel& panel, const coded_rows::row& in, float* out);
};

// The kernels that this processor runs, the fastest first; the last one is portable.
const std::vector<panel_kernel>& panel_kernels();

// A quantised matrix of a model file for products with few rows of activations, which are taken in 8 bit: it reads a
// quarter to an eighth of the bytes of fp32. Codes are the file's own, regrouped; scales that the file gives as products
// of two numbers are rounded to fp16.
class code_matrix {
 public:
  // Whether the type has codes and rows are whole blocks of 32.
  static bool takes(tensor_type type, int columns);

  // encoded: rows as in the file, row_bytes apart
  code_matrix(tensor_type type, const std::byte* encoded, std::size_t row_bytes, int rows, int columns,
              const kvilt::host& exec);

  int panels() const { return panels_; }  // the last one's rows perhaps padded with zeros
  code_panel panel(int index) const;

  // Writes those rows of a panel that there are to out [rows of the matrix].
  void multiply(const panel_kernel& kernel, int panel, const coded_rows::row& in, float* out) const;

 private:
  void fill(tensor_type type, const std::byte* encoded, std::size_t row_bytes, int index);
  std::size_t block_codes() const;   // bytes
  std::size_t block_params() const;  // numbers
  std::size_t panel_bytes() const;

  code_traits traits_;
  int rows_;
  int blocks_;  // of a row
  int panels_;
  kvilt::buffer<kvilt::memory_space::host> data_;  // [panel]{codes | params}
};

}  // namespace example
