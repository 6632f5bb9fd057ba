#pragma once

#include "fuzz/fuzz.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace fuzz {

// Bytes as a file that is in memory alone.
class memory_file {
 public:
  memory_file(const std::uint8_t* data, std::size_t size) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) fail("memfd_create");
    for (std::size_t done = 0; done < size;) {
      const ssize_t n = write(descriptor_, data + done, size - done);
      if (n <= 0) fail("write");
      done += std::size_t(n);
    }
  }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace fuzz
