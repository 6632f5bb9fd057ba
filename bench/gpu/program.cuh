#pragma once

#include "../host/table.hpp"
#include "device.cuh"
#include "options.hpp"

#include <benchmark/benchmark.h>

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

/// What the GPU's benchmarks have in common as programs.
namespace bench {

/// Runs what is registered and prints it, into o.csv too where it names a file. Throws where that cannot be written.
inline void run_into_table(std::vector<table::column> columns, const options& o) {
  table out(std::move(columns), o.csv, date() + ',' + device_name() + ',' + o.commit, "gpu");
  benchmark::RunSpecifiedBenchmarks(&out);
}

/// main's result after so many wrong rows.
inline int result_of(int wrong) {
  if (wrong > 0) std::fprintf(stderr, "%d rows are wrong\n", wrong);
  return wrong > 0 ? 1 : 0;
}

/// main of a program: what run(argc, argv) returns, or 2 and what it threw.
inline int guarded(const char* name, int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    return 2;
  }
}

}  // namespace bench
