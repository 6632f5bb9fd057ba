#include "gguf.hpp"

#include "tensor_types.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace example {
namespace {

using byte_span = std::span<const std::byte>;

constexpr std::uint32_t magic = 0x46554747;  // "GGUF", little-endian
constexpr std::uint64_t default_alignment = 32;
constexpr std::uint64_t largest_alignment = 1 << 20;
constexpr int deepest_array = 4;

// The smallest things that the file can spend on a string, an array, a metadata entry and a tensor entry: a count that
// could not fit in what is left of the file is refused before anything is allocated for it.
constexpr std::uint64_t smallest_string = 8;
constexpr std::uint64_t smallest_array = 12;
constexpr std::uint64_t smallest_entry = 13;
constexpr std::uint64_t smallest_tensor = 24;

constexpr std::uint64_t fixed_size(gguf_type type) {
  switch (type) {
    case gguf_type::u8:
    case gguf_type::i8:
    case gguf_type::boolean:
      return 1;
    case gguf_type::u16:
    case gguf_type::i16:
      return 2;
    case gguf_type::u32:
    case gguf_type::i32:
    case gguf_type::f32:
      return 4;
    case gguf_type::u64:
    case gguf_type::i64:
    case gguf_type::f64:
      return 8;
    case gguf_type::string:
    case gguf_type::array:
      break;
  }
  return 0;
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 80;  // a lying file may name anything: keep the message one readable line
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += (static_cast<unsigned char>(c) < 32 || c == 127) ? '?' : c;
  return out + (text.size() > longest ? "...'" : "'");
}

// Walks the bytes and never past their end.
class reader {
 public:
  reader(byte_span bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t remaining() const { return bytes_.size() - offset_; }

  byte_span take(std::uint64_t size, std::string_view what) {
    if (size > remaining()) {
      fail("truncated: " + std::string(what) + " needs " + std::to_string(size) + " bytes at offset " +
           std::to_string(offset_) + ", and the file has " + std::to_string(bytes_.size()));
    }
    const byte_span taken = bytes_.subspan(offset_, size);
    offset_ += size;
    return taken;
  }

  template <typename T>
  T number(std::string_view what) {
    return load<T>(take(sizeof(T), what).data());
  }

  std::string_view text(std::string_view what) {
    const byte_span taken = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  void check_count(std::uint64_t count, std::uint64_t smallest, std::string_view what) const {
    if (count > remaining() / smallest) {
      fail("claims " + std::to_string(count) + " " + std::string(what) + ", more than its " +
           std::to_string(bytes_.size()) + " bytes can hold");
    }
  }

  [[noreturn]] void fail(const std::string& message) const { throw model_error(path_ + ": " + message); }

 private:
  byte_span bytes_;
  const std::string& path_;
  std::uint64_t offset_ = 0;
};

gguf_type read_type(reader& in, std::string_view key) {
  const auto id = in.number<std::uint32_t>("a metadata type");
  if (id > static_cast<std::uint32_t>(gguf_type::f64)) {
    in.fail("metadata " + quoted(key) + " has type " + std::to_string(id) + "; expected 0 to 12");
  }
  return static_cast<gguf_type>(id);
}

gguf_value read_array(reader& in, std::string_view key, int depth);

void skip_elements(reader& in, gguf_type element, std::uint64_t count, std::string_view key, int depth) {
  if (element == gguf_type::string) {
    in.check_count(count, smallest_string, "strings");
    for (std::uint64_t i = 0; i < count; ++i) in.text("a string");
  } else if (element == gguf_type::array) {
    in.check_count(count, smallest_array, "arrays");
    for (std::uint64_t i = 0; i < count; ++i) read_array(in, key, depth + 1);
  } else {
    in.check_count(count, fixed_size(element), "array elements");
    in.take(count * fixed_size(element), "an array");
  }
}

gguf_value read_array(reader& in, std::string_view key, int depth) {
  if (depth > deepest_array) {
    in.fail("metadata " + quoted(key) + " nests arrays more than " + std::to_string(deepest_array) + " deep");
  }
  const gguf_type element = read_type(in, key);
  const auto count = in.number<std::uint64_t>("an array's length");
  reader start = in;
  skip_elements(in, element, count, key, depth);
  return {gguf_type::array, element, count, start.take(in.offset() - start.offset(), "an array")};
}

gguf_value read_value(reader& in, std::string_view key) {
  const gguf_type type = read_type(in, key);
  if (type == gguf_type::array) return read_array(in, key, 1);
  if (type == gguf_type::string) {
    const std::string_view text = in.text("a string");
    return {type, type, 1, std::as_bytes(std::span(text.data(), text.size()))};
  }
  return {type, type, 1, in.take(fixed_size(type), "a number")};
}

struct tensor_entry {
  gguf_tensor tensor;
  std::uint64_t offset;  // from the start of the tensor data
};

tensor_entry read_tensor(reader& in) {
  tensor_entry entry{};
  gguf_tensor& tensor = entry.tensor;
  tensor.name = in.text("a tensor's name");
  const auto dimensions = in.number<std::uint32_t>("a tensor's dimensions");
  if (dimensions < 1 || dimensions > tensor.dims.size()) {
    in.fail("tensor " + quoted(tensor.name) + " has " + std::to_string(dimensions) + " dimensions; expected 1 to 4");
  }
  tensor.dims.fill(1);
  std::uint64_t elements = 1;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto size = in.number<std::uint64_t>("a tensor's dimensions");
    // 2^56 elements, so that no later product of a size with a block's bytes overflows.
    if (size == 0 || size > (std::uint64_t{1} << 56) / elements) {
      in.fail("tensor " + quoted(tensor.name) + " has an impossible dimension " + std::to_string(size));
    }
    tensor.dims[d] = size;
    elements *= size;
  }
  tensor.type_id = in.number<std::uint32_t>("a tensor's type");
  entry.offset = in.number<std::uint64_t>("a tensor's offset");
  return entry;
}

// Points the tensor at its bytes, which must lie within `data`, all that follows the header.
void place_tensor(const reader& in, byte_span data, std::uint64_t alignment, tensor_entry& entry) {
  gguf_tensor& tensor = entry.tensor;
  const std::string name = "tensor " + quoted(tensor.name);
  if (entry.offset % alignment != 0) {
    in.fail(name + " lies at offset " + std::to_string(entry.offset) + ", no multiple of the alignment " +
            std::to_string(alignment));
  }
  std::uint64_t size = 1;  // all that is known of a type that this runtime does not read
  const std::optional<tensor_type> type = supported_tensor_type(tensor.type_id);
  if (type) {
    const block_shape block = block_shape_of(*type);
    if (tensor.columns() % block.elements != 0) {
      in.fail(name + " has rows of " + std::to_string(tensor.columns()) + ", no multiple of the " +
              std::to_string(block.elements) + " that a block of " + tensor_type_name(tensor.type_id) + " holds");
    }
    size = tensor.columns() / block.elements * tensor.rows() * block.bytes;
  }
  if (entry.offset > data.size() || size > data.size() - entry.offset) {
    in.fail("truncated: " + name + " needs " + std::to_string(size) + " bytes at offset " +
            std::to_string(entry.offset) + " of the tensor data, which has " + std::to_string(data.size()));
  }
  if (type) tensor.data = data.subspan(entry.offset, size);
}

[[noreturn]] void fail_kind(std::string_view key, std::string_view expected) {
  throw model_error("metadata " + quoted(key) + " is not " + std::string(expected));
}

template <typename T>
T integer_as(std::string_view key, std::int64_t value) {
  if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
    throw model_error("metadata " + quoted(key) + " is " + std::to_string(value) + ", which is out of range");
  }
  return static_cast<T>(value);
}

std::optional<std::int64_t> integer_at(gguf_type type, const std::byte* at) {
  switch (type) {
    case gguf_type::u8:
      return load<std::uint8_t>(at);
    case gguf_type::i8:
      return load<std::int8_t>(at);
    case gguf_type::u16:
      return load<std::uint16_t>(at);
    case gguf_type::i16:
      return load<std::int16_t>(at);
    case gguf_type::u32:
      return load<std::uint32_t>(at);
    case gguf_type::i32:
      return load<std::int32_t>(at);
    case gguf_type::i64:
      return load<std::int64_t>(at);
    case gguf_type::u64: {
      constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
      return static_cast<std::int64_t>(std::min(load<std::uint64_t>(at), largest));
    }
    default:
      return std::nullopt;
  }
}

// One scalar of a fixed size, be it a value of its own or an element of an array.
template <typename T>
T scalar_as(std::string_view key, gguf_type type, const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    if (type != gguf_type::boolean) fail_kind(key, "a bool");
    return load<std::uint8_t>(at) != 0;
  } else {
    const std::optional<std::int64_t> integer = integer_at(type, at);
    if constexpr (std::is_integral_v<T>) {
      if (!integer) fail_kind(key, "an integer");
      return integer_as<T>(key, *integer);
    } else {
      if (type == gguf_type::f32) return load<float>(at);
      if (type == gguf_type::f64) return static_cast<T>(load<double>(at));
      if (!integer) fail_kind(key, "a number");
      return static_cast<T>(*integer);
    }
  }
}

template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};

template <typename T>
constexpr bool is_text = std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>;

template <typename T>
std::vector<T> array_as(std::string_view key, const gguf_value& value) {
  std::vector<T> out;
  out.reserve(value.count);
  if constexpr (is_text<T>) {
    if (value.element != gguf_type::string) fail_kind(key, "an array of strings");
    const std::string checked_already;  // the strings were walked when the file was parsed: no error names a path here
    reader in(value.bytes, checked_already);
    for (std::uint64_t i = 0; i < value.count; ++i) out.push_back(T(in.text("a string")));
  } else {
    const std::uint64_t size = fixed_size(value.element);
    if (size == 0) fail_kind(key, "an array of numbers");
    for (std::uint64_t i = 0; i < value.count; ++i) {
      out.push_back(scalar_as<T>(key, value.element, value.bytes.data() + i * size));
    }
  }
  return out;
}

template <typename T>
T value_as(std::string_view key, const gguf_value& value) {
  if constexpr (is_vector<T>::value) {
    if (value.type != gguf_type::array) fail_kind(key, "an array");
    return array_as<typename T::value_type>(key, value);
  } else if constexpr (is_text<T>) {
    if (value.type != gguf_type::string) fail_kind(key, "a string");
    return T(std::string_view(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()));
  } else {
    return scalar_as<T>(key, value.type, value.bytes.data());
  }
}

}  // namespace

// Owns the mapped bytes of a file.
class gguf_file::mapping {
 public:
  explicit mapping(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw model_error("cannot open " + path + ": " + std::strerror(errno));
    struct ::stat status {};
    const bool known = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    size_ = known ? static_cast<std::size_t>(status.st_size) : 0;
    if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int map_error = errno;
    ::close(descriptor);
    if (!known) throw model_error(path + " is not a regular file");
    if (size_ == 0) throw model_error(path + " is empty; expected a GGUF file");
    if (data_ == MAP_FAILED) throw model_error("cannot map " + path + ": " + std::strerror(map_error));
  }
  ~mapping() { ::munmap(data_, size_); }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;

  byte_span bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = MAP_FAILED;
  std::size_t size_ = 0;
};

gguf_file::gguf_file(const std::string& path) : path_(path), mapping_(std::make_unique<mapping>(path)) {
  parse();
}
gguf_file::gguf_file(gguf_file&&) noexcept = default;
gguf_file& gguf_file::operator=(gguf_file&&) noexcept = default;
gguf_file::~gguf_file() = default;

void gguf_file::parse() {
  reader in(mapping_->bytes(), path_);
  if (in.number<std::uint32_t>("the magic number") != magic) in.fail("not a GGUF file");
  const auto version = in.number<std::uint32_t>("the version");
  if (version != 2 && version != 3) in.fail("GGUF version " + std::to_string(version) + " (2 and 3 are supported)");
  const auto tensor_count = in.number<std::uint64_t>("the number of tensors");
  const auto entry_count = in.number<std::uint64_t>("the number of metadata entries");

  in.check_count(entry_count, smallest_entry, "metadata entries");
  for (std::uint64_t i = 0; i < entry_count; ++i) {
    const std::string_view key = in.text("a metadata key");
    if (!metadata_.emplace(key, read_value(in, key)).second) in.fail("metadata " + quoted(key) + " appears twice");
  }

  in.check_count(tensor_count, smallest_tensor, "tensors");
  std::vector<tensor_entry> entries;
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    entries.push_back(read_tensor(in));
    const std::string_view name = entries.back().tensor.name;
    if (!tensor_index_.emplace(name, i).second) in.fail("tensor " + quoted(name) + " appears twice");
  }

  std::uint64_t alignment = default_alignment;
  if (const auto stated = optional<int>("general.alignment")) alignment = static_cast<std::uint64_t>(*stated);
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > largest_alignment) {
    in.fail("alignment " + std::to_string(alignment) + "; expected a power of two from 8 to 2^20");
  }
  const std::uint64_t padding = (alignment - in.offset() % alignment) % alignment;
  if (!entries.empty()) in.take(padding, "the padding before the tensors");
  const byte_span data = mapping_->bytes().subspan(in.offset());
  for (tensor_entry& entry : entries) {
    place_tensor(in, data, alignment, entry);
    tensors_.push_back(entry.tensor);
  }
}

template <typename T>
T gguf_file::metadata(std::string_view key) const {
  if (auto value = optional<T>(key)) return *std::move(value);
  throw model_error(path_ + " has no metadata " + quoted(key));
}

template <typename T>
std::optional<T> gguf_file::optional(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return std::nullopt;
  return value_as<T>(key, found->second);
}

const gguf_tensor& gguf_file::tensor(std::string_view name) const {
  if (const gguf_tensor* found = find_tensor(name)) return *found;
  throw model_error(path_ + " has no tensor " + quoted(name));
}

const gguf_tensor* gguf_file::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

template bool gguf_file::metadata(std::string_view) const;
template int gguf_file::metadata(std::string_view) const;
template float gguf_file::metadata(std::string_view) const;
template std::string gguf_file::metadata(std::string_view) const;
template std::string_view gguf_file::metadata(std::string_view) const;
template std::vector<int> gguf_file::metadata(std::string_view) const;
template std::vector<float> gguf_file::metadata(std::string_view) const;
template std::vector<std::string_view> gguf_file::metadata(std::string_view) const;
template std::optional<bool> gguf_file::optional(std::string_view) const;
template std::optional<int> gguf_file::optional(std::string_view) const;
template std::optional<float> gguf_file::optional(std::string_view) const;
template std::optional<std::string> gguf_file::optional(std::string_view) const;
template std::optional<std::string_view> gguf_file::optional(std::string_view) const;
template std::optional<std::vector<int>> gguf_file::optional(std::string_view) const;
template std::optional<std::vector<float>> gguf_file::optional(std::string_view) const;
template std::optional<std::vector<std::string_view>> gguf_file::optional(std::string_view) const;

}  // namespace example
