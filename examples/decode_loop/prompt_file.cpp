#include "prompt_file.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace example {

std::string model_label(const gguf_file& file, arithmetic how) {
  std::uint64_t sum = 0;
  std::size_t bytes = 0;
  for (const gguf_tensor& t : file.tensors()) {
    sum = kvilt::crc32c::of(sum, reinterpret_cast<const unsigned char*>(t.data.data()), t.data.size());
    bytes += t.data.size();
  }
  return std::to_string(file.tensors().size()) + " tensors of " + std::to_string(bytes) + " bytes, crc32c " +
         std::to_string(sum) + (how == arithmetic::integer ? ", by integers" : ", in fp32");
}

void save_prompt(const kvilt::host& exec, const session& cache, const std::string& path, const std::string& model,
                 const std::vector<int>& prompt) {
  cache.save(exec, path, {model, {}, std::span(prompt).first(std::size_t(cache.length()))});
}

kvilt::idx load_prompt(const kvilt::host& exec, session& cache, const kvilt::sequence_file<>& file,
                       const std::string& model, const std::vector<int>& prompt) {
  cache.load(exec, file, {model, {}, {}});
  const std::span<const kvilt::token_id> text = file.tokens();
  const auto differs = std::ranges::mismatch(text, prompt).in1;
  const auto common = std::min(kvilt::idx(differs - text.begin()), kvilt::idx(prompt.size()) - 1);
  if (common < cache.length()) cache.truncate(common);
  return common;
}

}  // namespace example
