#pragma once

#include "code_matrix.hpp"
#include "gguf.hpp"
#include "tensor_types.hpp"

#include <kvilt/core/executor.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace example {

enum class arithmetic {
  fp32,
  integer  // for a few tokens, where the weights have codes: activations in 8 bit, dot products of integers
};

// A weight matrix [rows][columns] of a model file: decoded to fp32 when it is made, or left in the file and decoded a
// block of rows at a time where it is used. Both give the same results, bit for bit: the same products of the same
// blocks. The file must outlive the matrix.
class weight_matrix {
 public:
  weight_matrix() = default;
  // `keep_codes`: also for integer arithmetic, where the type has codes.
  weight_matrix(const gguf_tensor& tensor, bool decode_now, bool keep_codes, const kvilt::host& exec);

  int rows() const { return rows_; }
  int columns() const { return columns_; }

  bool decoded() const { return values_ != nullptr; }
  const code_matrix* codes() const { return codes_ ? &*codes_ : nullptr; }

  // Decodes one row into out [columns].
  void copy_row(int row, float* out) const;

  // The values of some rows [count][columns]; those of a matrix that is not decoded hold until this thread's next call.
  const float* block(int first_row, int count) const;

 private:
  tensor_type type_ = tensor_type::f32;
  const std::byte* encoded_ = nullptr;
  std::size_t row_bytes_ = 0;
  int rows_ = 0;
  int columns_ = 0;
  const float* values_ = nullptr;  // [rows][columns]: into storage_, or the file's own floats
  std::unique_ptr<float[]> storage_;
  std::optional<code_matrix> codes_;
};

// One matrix and where its product goes: out [tokens][rows].
struct product {
  const weight_matrix* weights;
  float* out;
};

// out = in x transposed weights, for several matrices of the same input, in [tokens][columns], at once.
void multiply(const kvilt::host& exec, std::span<const product> products, const float* in, int tokens,
              arithmetic how = arithmetic::fp32);

// The values of a vector of `size` elements.
std::vector<float> read_vector(const gguf_tensor& tensor, int size);

}  // namespace example
