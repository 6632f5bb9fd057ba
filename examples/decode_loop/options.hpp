#pragma once

#include <string>
#include <thread>
#include <vector>

namespace example {

// What the user asks for.
struct options {
  std::string model;
  std::string text;
  std::string calibration;
  std::string prompt = "Explain photosynthesis in one sentence.";
  int tokens = 128;
  int positions = 2048;
  int windows = 1;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::string> policies;
  bool integer_weights = false;  // for decoding; never for what is scored
  std::vector<int> decode_at;    // depths to time decoding at, instead of the evaluation
  std::vector<int> band_ends;    // positions at which the scores are parted
  std::string bands_csv;
  std::string bands_plot;
  std::string csv;
  std::string plot;
  bool list = false;
  bool generate_only = false;
};

}  // namespace example
