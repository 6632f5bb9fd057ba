#pragma once

#include "calibrate.hpp"
#include "policies.hpp"
#include "support/tiny_gguf.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace support {

// The model that every test here decodes with, its file removed at the end.
class tiny_model {
 public:
  explicit tiny_model(const tiny_gguf_options& options = {}, const example::weight_options& weights = {})
      : path_(temporary_path("decode.gguf")) {
    write_tiny_gguf(path_, options);
    file_ = std::make_shared<const example::gguf_file>(path_);
    model_ = std::make_unique<example::transformer>(file_, kvilt::host(), weights);
    ropes_ = example::ropes_of(model_->config());
    ranges_ = example::ranges_over(*model_, shape(100, 32), some_tokens(100));
  }
  tiny_model(const tiny_model&) = delete;
  tiny_model& operator=(const tiny_model&) = delete;
  ~tiny_model() { std::filesystem::remove(path_); }

  const std::string& path() const { return path_; }
  const example::gguf_file& file() const { return *file_; }
  example::transformer& model() { return *model_; }

  std::unique_ptr<example::session> open(const example::policy_entry& policy, int tokens, int max_step = 1) const {
    return policy.open(shape(tokens, max_step));
  }
  example::session_shape shape(int tokens, int max_step = 1) const {
    example::session_shape shape = example::shape_for(model_->config(), ropes_, kvilt::host(), tokens, max_step);
    for (std::size_t i = 0; i < ranges_.size(); ++i) shape.layers[i].ranges = ranges_[i];
    return shape;
  }

  std::vector<int> some_tokens(int count) const {
    std::vector<int> tokens(static_cast<std::size_t>(count));
    unsigned state = 7;
    for (int& t : tokens) {
      state = state * 1664525u + 1013904223u;
      t = static_cast<int>((state >> 8) % static_cast<unsigned>(model_->config().vocab));
    }
    return tokens;
  }

 private:
  std::string path_;
  std::shared_ptr<const example::gguf_file> file_;
  std::unique_ptr<example::transformer> model_;
  std::vector<kvilt::rope_table> ropes_;
  std::vector<example::layer_ranges> ranges_;
};

// Two layers of three see the last 40 tokens.
inline tiny_gguf_options mixed_layers() {
  tiny_gguf_options options;
  options.architecture = "gemma3";
  options.layers = 6;
  options.kv_heads = 1;
  options.window = 40;
  options.head_dim = 32;
  options.global_period = 3;
  return options;
}

inline example::policy_entry named(const std::string& name) {
  return example::choose_policies({name}).front();
}

}  // namespace support
