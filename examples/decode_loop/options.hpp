#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace example {

// What the user asks for.
struct options {
  std::string model;
  std::string text;
  std::string calibration;
  std::vector<std::string> prompts{"Explain photosynthesis in one sentence."};
  std::string shared_prefix;  // what stands before each of them, or @ and a file
  int fork = 1;               // continuations of a prompt
  std::string prompt_file;
  int tokens = 128;
  int positions = 2048;
  int windows = 1;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::string> policies;
  std::vector<double> keep{50, 25, 12.5};  // percent, of policies that evict tokens
  std::string device = "cpu";
  bool integer_weights = false;                    // for decoding; never for what is scored
  std::vector<int> decode_at;                      // depths to time decoding at, instead of the evaluation
  std::vector<std::string> probes;                 // what is asked for behind the text, instead of the evaluation
  std::vector<double> depths{0, 25, 50, 75, 100};  // percent of the text before what probes ask for
  std::uint64_t seed = 1;                          // of what probes draw
  std::vector<int> band_ends;                      // positions at which the scores are parted
  std::string bands_csv;
  std::string bands_plot;
  std::string csv;
  std::string plot;
  std::string save;  // files of the prompt's K and V
  std::string load;
  bool list = false;
  bool generate_only = false;

  bool on_cuda() const { return device == "cuda"; }
  // Prompts, or continuations of one, in one cache.
  bool shares() const { return prompts.size() > 1 || !shared_prefix.empty() || fork > 1; }
};

}  // namespace example
