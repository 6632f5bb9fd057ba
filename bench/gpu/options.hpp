#pragma once

#include <benchmark/benchmark.h>

#include <charconv>
#include <functional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace bench {

/// What the GPU's benchmarks are told.
struct options {
  bool quick = false;  // a few rows
  int runs = 7;        // of which the median is taken
  std::string csv, commit = "unknown";
};

/// Options of a program of its own: what each begins with, and what takes the rest.
using more_options = std::vector<std::pair<std::string, std::function<void(const std::string&)>>>;

inline int number_of(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw std::invalid_argument(text + " is not a number from 1 on");
  return value;
}

/// Takes what it knows and hands the rest to Google Benchmark. Throws `std::invalid_argument`.
inline options read_options(int argc, char** argv, const more_options& more = {}) {
  options o;
  more_options known{{"--quick", [&](const std::string&) { o.quick = true; }},
                     {"--runs=", [&](const std::string& text) { o.runs = number_of(text); }},
                     {"--csv=", [&](const std::string& text) { o.csv = text; }},
                     {"--commit=", [&](const std::string& text) { o.commit = text; }}};
  known.insert(known.end(), more.begin(), more.end());
  std::vector<char*> arguments(argv, argv + argc);
  std::erase_if(arguments, [&](const std::string& argument) {
    for (const auto& [option, take] : known)
      if (argument.starts_with(option)) return take(argument.substr(option.size())), true;
    return false;
  });
  int count = int(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data()))
    throw std::invalid_argument("its source names the options at the top");
  return o;
}

}  // namespace bench
