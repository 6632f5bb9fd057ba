// Any file: the GGUF reader opens it, and everything it then says lies in the file; or it throws one line.
#include "fuzz/memory_file.hpp"
#include "gguf.hpp"

#include <array>
#include <vector>

namespace {

volatile unsigned sink;

template <class Read>
void allows_errors(Read read) {
  try {
    read();
  } catch (const example::model_error& error) {
    const std::string message = error.what();
    if (message.empty() || message.find('\n') != std::string::npos) fuzz::fail("not one line: " + message);
  }
}

template <class T>
void reads(const example::gguf_file& file, const char* key) {
  allows_errors([&] { (void)file.optional<T>(key); });
}
template <class Text>
void reads_text(const example::gguf_file& file, const char* key) {
  allows_errors([&] {
    if (const auto text = file.optional<Text>(key))
      for (const char c : *text) sink = sink + unsigned(c);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::memory_file memory(data, size);
  allows_errors([&] {
    const example::gguf_file file(memory.path());
    for (const example::gguf_tensor& tensor : file.tensors()) {
      for (const std::byte b : tensor.data) sink = sink + unsigned(b);
      for (const char c : tensor.name) sink = sink + unsigned(c);
      if (file.find_tensor(tensor.name) != &tensor) fuzz::fail("a tensor is not found by its name");
      if (tensor.rows() == 0 || tensor.columns() == 0) fuzz::fail("a tensor of nothing");
      const bool is_f32 = tensor.type_id == 0;
      if (is_f32 && tensor.data.size() / 4 / tensor.rows() != tensor.columns()) fuzz::fail("a tensor of another size");
    }
    for (const char* key : {"a", "b", "general.alignment", "general.architecture"}) {
      reads<bool>(file, key), reads<int>(file, key), reads<float>(file, key);
      reads_text<std::string>(file, key), reads_text<std::string_view>(file, key);
      reads<std::vector<int>>(file, key), reads<std::vector<float>>(file, key);
      allows_errors([&] {
        if (const auto texts = file.optional<std::vector<std::string_view>>(key))
          for (const std::string_view text : *texts)
            for (const char c : text) sink = sink + unsigned(c);
      });
    }
  });
  return 0;
}
