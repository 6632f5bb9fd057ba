#pragma once

#include <boost/timer/progress_display.hpp>
#include <unistd.h>

#include <iostream>
#include <optional>

namespace example {

// A progress bar on the error stream, if that is a terminal.
class progress {
 public:
  explicit progress(long total) {
    if (::isatty(STDERR_FILENO)) bar_.emplace(static_cast<unsigned long>(total), std::cerr, "");
  }
  void tick() {
    if (bar_) ++*bar_;
  }

 private:
  std::optional<boost::timer::progress_display> bar_;
};

}  // namespace example
