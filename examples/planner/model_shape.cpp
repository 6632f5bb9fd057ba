#include "model_shape.hpp"

#include "gguf.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

namespace example {
namespace {

struct preset {
  std::string_view name;
  int layers, kv_heads, head_dim;
  int window;  // of local layers; 0: there are none
  int period;  // every period-th layer is global, the others local; 0: all are local
  std::int64_t parameters;
};

// Layers, KV heads and head dims are those of the config.json that each model's owner publishes with its weights
// (Hugging Face: meta-llama/Llama-2-7b-hf, meta-llama/Meta-Llama-3-8B and -70B, Qwen/Qwen2-72B,
// mistralai/Mistral-7B-v0.1, HuggingFaceTB/SmolLM2-135M), and for Gemma those of google/gemma_pytorch, gemma/config.py
// (get_config_for_27b and get_config_for_27b_v3), which also say which layers slide: Gemma 2 turns local and global,
// starting local; Gemma 3 has five local layers before each global one. Mistral 7B slides everywhere in v0.1; v0.2 and
// later keep all. Parameters are the products of those shapes, added up; Gemma 3's contain its vision tower, as its
// weights do.
constexpr std::array<preset, 8> presets{{
    {"llama-2-7b", 32, 32, 128, 0, 1, 6'738'415'616},
    {"llama-3-8b", 32, 8, 128, 0, 1, 8'030'261'248},
    {"llama-3-70b", 80, 8, 128, 0, 1, 70'553'706'496},
    {"qwen2-72b", 80, 8, 128, 0, 1, 72'706'203'648},
    {"gemma-2-27b", 46, 16, 128, 4096, 2, 27'227'128'320},
    {"gemma-3-27b", 62, 16, 128, 1024, 6, 27'432'406'640},
    {"mistral-7b", 32, 8, 128, 4096, 0, 7'241'732'096},
    {"smollm2-135m", 30, 3, 64, 0, 1, 134'515'008},
}};

// The groups of a model in which every period-th layer is global.
std::vector<layer_group> split(const layer_group& all, int period) {
  layer_group global = all, local = all;
  global.name = "global", local.name = "local";
  global.layers = all.window == 0 ? all.layers : period == 0 ? 0 : all.layers / period;
  local.layers = all.layers - global.layers;
  global.window = 0;
  local.beside_global = global.layers > 0;
  std::vector<layer_group> groups;
  for (const layer_group& group : {global, local}) {
    if (group.layers > 0) groups.push_back(group);
  }
  return groups;
}

// The period of an architecture's local and global layers where the file states a window and no pattern: a file leaves
// out what its architecture's name already says.
int usual_period(const std::string& architecture) {
  if (architecture == "gemma2") return 2;
  if (architecture == "gemma3") return 6;
  return 0;
}

int in_range(const std::string& what, int value, int lowest) {
  constexpr int highest = 1 << 24;  // products of the sizes stay within 64 bits
  if (value < lowest || value > highest) {
    throw model_error(what + " is " + std::to_string(value) + "; expected " + std::to_string(lowest) + " to 2^24");
  }
  return value;
}

}  // namespace

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(presets.size());
    for (const preset& p : presets) all.emplace_back(p.name);
    return all;
  }();
  return names;
}

model_shape preset_shape(std::string_view name) {
  const auto* found = std::find_if(presets.begin(), presets.end(), [&](const preset& p) { return p.name == name; });
  if (found == presets.end()) throw model_error("no preset is named '" + std::string(name) + "'");
  const layer_group all{"", found->layers, found->kv_heads, found->head_dim, found->head_dim, found->window};
  return {std::string(name), split(all, found->period), 2 * found->parameters};
}

model_shape read_model_shape(const std::string& path) {
  const gguf_file file(path);
  const auto architecture = file.metadata<std::string>("general.architecture");
  const auto key = [&](const char* rest) { return architecture + "." + rest; };
  const auto size = [&](const char* rest, std::optional<int> fallback = {}) {
    const std::string name = key(rest);
    const int value = fallback ? file.optional<int>(name).value_or(*fallback) : file.metadata<int>(name);
    return in_range(name, value, 1);
  };

  layer_group all{};
  all.layers = size("block_count");
  const int q_heads = size("attention.head_count");
  all.kv_heads = size("attention.head_count_kv", q_heads);
  const auto key_length = file.optional<int>(key("attention.key_length"));
  all.k_dim = key_length ? size("attention.key_length") : size("embedding_length") / q_heads;
  all.v_dim = size("attention.value_length", all.k_dim);
  all.window =
      in_range(key("attention.sliding_window"), file.optional<int>(key("attention.sliding_window")).value_or(0), 0);
  const std::string pattern = key("attention.sliding_window_pattern");
  const int period = in_range(pattern, file.optional<int>(pattern).value_or(usual_period(architecture)), 0);
  return {std::filesystem::path(path).filename().string(), split(all, period),
          static_cast<std::int64_t>(std::filesystem::file_size(path))};
}

}  // namespace example
