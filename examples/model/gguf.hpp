#pragma once

#include "model_error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace example {

// The value types of GGUF metadata, with the file's own numbers.
enum class gguf_type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// A value where it lies in the file. Arrays are converted when asked for, so parsing allocates nothing for them.
struct gguf_value {
  gguf_type type;
  gguf_type element;  // of an array; otherwise equal to type
  std::uint64_t count;
  std::span<const std::byte> bytes;
};

// A tensor where it lies in the file. The first dimension is the contiguous one: a row has dims[0] elements.
struct gguf_tensor {
  std::string_view name;
  std::array<std::uint64_t, 4> dims;
  std::uint32_t type_id;
  std::span<const std::byte> data;  // empty where type_id is not one that this runtime reads

  std::uint64_t columns() const { return dims[0]; }
  std::uint64_t rows() const { return dims[1] * dims[2] * dims[3]; }
};

// A GGUF file of version 2 or 3, mapped into memory and checked against its own length: a file that is truncated or
// claims what it does not hold throws model_error from the constructor. Values and tensors point into the mapping.
class gguf_file {
 public:
  explicit gguf_file(const std::string& path);
  gguf_file(gguf_file&&) noexcept;
  gguf_file& operator=(gguf_file&&) noexcept;
  ~gguf_file();

  const std::string& path() const { return path_; }

  // T: bool, int, float, std::string, std::string_view, or a std::vector of int, float or std::string_view. Integers of
  // every width convert where the value fits. Throws model_error where the key is missing or of another kind.
  template <typename T>
  T metadata(std::string_view key) const;

  // As metadata, but nothing where the key is missing. Another kind still throws.
  template <typename T>
  std::optional<T> optional(std::string_view key) const;

  const gguf_tensor& tensor(std::string_view name) const;
  const gguf_tensor* find_tensor(std::string_view name) const;
  std::span<const gguf_tensor> tensors() const { return tensors_; }

 private:
  class mapping;

  void parse();

  std::string path_;
  std::unique_ptr<mapping> mapping_;
  std::unordered_map<std::string_view, gguf_value> metadata_;
  std::vector<gguf_tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
};

}  // namespace example
