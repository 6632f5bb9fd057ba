#pragma once

#include <kvilt/core/memory.hpp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace support {

// Host memory that holds one byte everywhere when it is handed out, and that can be looked at.
class test_memory {
 public:
  explicit test_memory(unsigned char fill = 0) : fill_(fill) {}
  test_memory(const test_memory&) = delete;
  test_memory& operator=(const test_memory&) = delete;

  void* allocate(std::size_t bytes, std::size_t align) {
    void* p = kvilt::host_memory().allocate(bytes, align);
    std::memset(p, fill_, bytes);
    blocks_.emplace_back(static_cast<unsigned char*>(p), bytes);
    return p;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept {
    const auto block = std::find(blocks_.begin(), blocks_.end(), std::pair(static_cast<unsigned char*>(p), bytes));
    balanced_ = balanced_ && block != blocks_.end();
    if (block != blocks_.end()) blocks_.erase(block);
    kvilt::host_memory().deallocate(p, bytes, align);
  }

  const auto& blocks() const { return blocks_; }
  // Everything that is handed out now, in the order in which it was.
  std::vector<unsigned char> contents() const {
    std::vector<unsigned char> all;
    for (const auto& [p, bytes] : blocks_) all.insert(all.end(), p, p + bytes);
    return all;
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& block : blocks_) sum += block.second;
    return sum;
  }
  bool balanced() const { return balanced_; }

 private:
  unsigned char fill_;
  bool balanced_ = true;
  std::vector<std::pair<unsigned char*, std::size_t>> blocks_;
};

}  // namespace support
