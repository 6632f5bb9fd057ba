#include "linear.hpp"

#include "ranges.hpp"

#include <cblas.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#ifdef KVILT_EXAMPLE_OPENBLAS
extern "C" void openblas_set_num_threads(int);
#endif

namespace example {
namespace {

// Tiles of a product. The work of a run is shared out by tiles, each one call of a single-threaded BLAS; so the results
// do not depend on the number of threads, and no idle BLAS thread spins while attention wants the processor.
struct tile_shape {
  int rows;
  int tokens;
};

tile_shape tiles_for(int tokens) {
  if (tokens < 8) return {64, 8};
  if (tokens < 256) return {128, 256};
  return {512, 256};
}

void use_one_blas_thread() {
#ifdef KVILT_EXAMPLE_OPENBLAS
  openblas_set_num_threads(1);
#endif
}

tensor_type require_supported(const gguf_tensor& tensor) {
  if (const auto type = supported_tensor_type(tensor.type_id)) return *type;
  throw model_error("tensor '" + std::string(tensor.name) + "' has type " + tensor_type_name(tensor.type_id) +
                    ", which is not supported; supported: " + supported_tensor_type_names());
}

int dimension(const gguf_tensor& tensor, std::uint64_t size) {
  if (size > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw model_error("tensor '" + std::string(tensor.name) + "' has a dimension of " + std::to_string(size));
  }
  return static_cast<int>(size);
}

// weights [rows][columns], in [tokens][columns], out [tokens][stride], of which `rows` columns are written
void multiply_tile(const float* weights, int rows, int columns, const float* in, int tokens, float* out, int stride) {
  if (tokens == 1) {
    // Bound by memory: one row after the other reads at full bandwidth, which OpenBLAS's sgemv misses by half.
    for (int row = 0; row < rows; ++row) {
      out[row] =
          cblas_sdot(columns, weights + static_cast<std::size_t>(row) * static_cast<std::size_t>(columns), 1, in, 1);
    }
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tokens, rows, columns, 1.0f, in, columns, weights, columns,
                0.0f, out, stride);
  }
}

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

bool in_integers(std::span<const product> products, int tokens, arithmetic how) {
  constexpr int most_tokens = 8;  // beyond, BLAS gains more by taking tokens together
  return how == arithmetic::integer && tokens <= most_tokens &&
         std::all_of(products.begin(), products.end(), [](const product& p) { return p.weights->codes() != nullptr; });
}

void multiply_in_integers(const kvilt::host& exec, std::span<const product> products, const float* in, int tokens) {
  thread_local coded_rows coded;  // of the calling thread; the others read it
  coded.assign(in, tokens, products.front().weights->columns());
  const coded_rows& rows = coded;
  const panel_kernel& kernel = panel_kernels().front();
  int panels = 0;
  for (const product& p : products) panels += p.weights->codes()->panels();
  const int share = ceil_div(panels, 4 * exec.workers());
  exec.for_each(ceil_div(panels, share), [&](kvilt::idx item, int) {
    int panel = static_cast<int>(item) * share;
    const int end = std::min(panel + share, panels);
    int first = 0;  // of the product's panels among all
    for (const product& p : products) {
      const code_matrix& codes = *p.weights->codes();
      for (; panel < std::min(end, first + codes.panels()); ++panel)
        for (int t = 0; t < tokens; ++t)
          codes.multiply(kernel, panel - first, rows[t], p.out + std::ptrdiff_t{t} * p.weights->rows());
      first += codes.panels();
    }
  });
}

}  // namespace

weight_matrix::weight_matrix(const gguf_tensor& tensor, bool decode_now, bool keep_codes, const kvilt::host& exec)
    : type_(require_supported(tensor)),
      encoded_(tensor.data.data()),
      row_bytes_(tensor.data.size() / tensor.rows()),
      rows_(dimension(tensor, tensor.rows())),
      columns_(dimension(tensor, tensor.columns())) {
  use_one_blas_thread();
  if (keep_codes && code_matrix::takes(type_, columns_))
    codes_.emplace(type_, encoded_, row_bytes_, rows_, columns_, exec);
  if (type_ == tensor_type::f32) {
    values_ = reinterpret_cast<const float*>(encoded_);  // aligned: the file's alignment is at least 8
  } else if (decode_now) {
    const auto row_size = static_cast<std::size_t>(columns_);
    storage_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows_) * row_size);
    values_ = storage_.get();
    run_ranges(exec, rows_, 64, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) copy_row(row, storage_.get() + static_cast<std::size_t>(row) * row_size);
    });
  }
}

void weight_matrix::copy_row(int row, float* out) const {
  dequantise(type_, encoded_ + static_cast<std::size_t>(row) * row_bytes_, static_cast<std::size_t>(columns_), out);
}

const float* weight_matrix::block(int first_row, int count) const {
  const auto row_size = static_cast<std::size_t>(columns_);
  if (values_ != nullptr) return values_ + static_cast<std::size_t>(first_row) * row_size;
  thread_local std::vector<float> decoded_block;
  decoded_block.resize(std::max(decoded_block.size(), static_cast<std::size_t>(count) * row_size));
  for (int row = 0; row < count; ++row) {
    copy_row(first_row + row, decoded_block.data() + static_cast<std::size_t>(row) * row_size);
  }
  return decoded_block.data();
}

void multiply(const kvilt::host& exec, std::span<const product> products, const float* in, int tokens, arithmetic how) {
  if (in_integers(products, tokens, how)) return multiply_in_integers(exec, products, in, tokens);
  const tile_shape tile = tiles_for(tokens);
  const int token_tiles = ceil_div(tokens, tile.tokens);

  // A task is a tile of decoded weights, or every tile of a block of rows that must be decoded first.
  const auto tasks_of = [&](const weight_matrix& weights) {
    return ceil_div(weights.rows(), tile.rows) * (weights.decoded() ? token_tiles : 1);
  };
  int tasks = 0;
  for (const product& p : products) tasks += tasks_of(*p.weights);

  exec.for_each(tasks, [&](kvilt::idx item, int) {
    int task = static_cast<int>(item);
    const product* p = products.data();
    for (; task >= tasks_of(*p->weights); ++p) task -= tasks_of(*p->weights);
    const weight_matrix& weights = *p->weights;
    const int row_tiles = ceil_div(weights.rows(), tile.rows);
    const int first_row = task % row_tiles * tile.rows;
    const int rows = std::min(tile.rows, weights.rows() - first_row);
    const int begin = weights.decoded() ? task / row_tiles * tile.tokens : 0;
    const int end = weights.decoded() ? std::min(begin + tile.tokens, tokens) : tokens;
    const float* block = weights.block(first_row, rows);
    for (int token = begin; token < end; token += tile.tokens) {
      const float* from = in + static_cast<std::size_t>(token) * static_cast<std::size_t>(weights.columns());
      float* to = p->out + static_cast<std::size_t>(token) * static_cast<std::size_t>(weights.rows()) + first_row;
      multiply_tile(block, rows, weights.columns(), from, std::min(tile.tokens, end - token), to, weights.rows());
    }
  });
}

std::vector<float> read_vector(const gguf_tensor& tensor, int size) {
  const tensor_type type = require_supported(tensor);
  if (tensor.rows() != 1 || tensor.columns() != static_cast<std::uint64_t>(size)) {
    throw model_error("tensor '" + std::string(tensor.name) + "' is " + std::to_string(tensor.columns()) + " x " +
                      std::to_string(tensor.rows()) + "; expected " + std::to_string(size));
  }
  std::vector<float> values(static_cast<std::size_t>(size));
  dequantise(type, tensor.data.data(), values.size(), values.data());
  return values;
}

}  // namespace example
