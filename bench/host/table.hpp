#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// What has been measured as a table for people and as comma-separated lines for programs. A benchmark's label has the
/// words of its line, comma-separated; its counters have the numbers.
class table : public benchmark::BenchmarkReporter {
 public:
  struct column {
    const char* name;
    int width;
    const char* format = nullptr;  // of a counter; null: a word of the label
  };

  /// ending: what every line of the file ends with, date, machine and commit; empty path: no file. Throws where it cannot
  /// be written.
  table(std::vector<column> columns, const std::string& path, std::string ending, const char* machine = "cpu")
      : columns_(std::move(columns)), ending_(std::move(ending)) {
    if (path.empty()) return;
    csv_.open(path);
    if (!csv_) throw std::runtime_error("cannot write " + path);
    for (const column& c : columns_) csv_ << c.name << ',';
    csv_ << "date," << machine << ",commit\n";
  }

  bool ReportContext(const Context&) override {
    for (const column& c : columns_) std::printf(c.format ? "%*s " : "%-*s ", c.width, c.name);
    std::printf("\n");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type == Run::RT_Aggregate) continue;
      std::istringstream words(run.report_label);
      for (const column& c : columns_) {
        const std::string text = cell(run, c, words);
        std::printf(c.format ? "%*s " : "%-*s ", c.width, text.c_str());
        if (csv_.is_open()) csv_ << text << ',';
      }
      std::printf("\n");
      std::fflush(stdout);
      if (csv_.is_open()) csv_ << ending_ << std::endl;
    }
  }

 private:
  static std::string cell(const Run& run, const column& c, std::istream& words) {
    std::string text;
    if (!c.format) {
      std::getline(words, text, ',');
      return text;
    }
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), c.format, run.counters.at(c.name).value);
    return number.data();
  }

  std::vector<column> columns_;
  std::string ending_;
  std::ofstream csv_;
};

/// Today, in UTC.
inline std::string date() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", std::gmtime(&now));
  return text.data();
}

/// What the processor calls itself, where Linux says so.
inline std::string cpu() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    std::string name = line.substr(std::min(line.find(": ") + 2, line.size()));
    std::replace(name.begin(), name.end(), ',', ' ');
    return name;
  }
  return "unknown";
}
