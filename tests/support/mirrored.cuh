#pragma once

#include "support/catch.hpp"
#include "support/memory.hpp"

#include <kvilt/kvilt.cuh>

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>
#include <string>
#include <vector>

namespace support {

// A copy of host bytes in device memory, on a 256-byte line, between guards.
class device_block {
 public:
  device_block(const void* host, std::size_t bytes) : host_(static_cast<const unsigned char*>(host)), bytes_(bytes) {
    if (cudaMalloc(&block_, bytes + 2 * margin) != cudaSuccess) throw std::bad_alloc();
    REQUIRE(cudaMemset(block_, guard, bytes + 2 * margin) == cudaSuccess);
    if (bytes) REQUIRE(cudaMemcpy(data(), host, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  device_block(const device_block&) = delete;
  device_block& operator=(const device_block&) = delete;
  ~device_block() { cudaFree(block_); }

  unsigned char* data() const { return static_cast<unsigned char*>(block_) + margin; }
  const unsigned char* host() const { return host_; }
  std::size_t bytes() const { return bytes_; }

  // What lies there now; the guards must hold.
  std::vector<unsigned char> contents() const {
    std::vector<unsigned char> all(bytes_ + 2 * margin);
    REQUIRE(cudaMemcpy(all.data(), block_, all.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (std::size_t i = 0; i < margin; ++i)
      if (all[i] != guard || all[all.size() - 1 - i] != guard) FAIL("a kernel wrote beside a block");
    return {all.begin() + margin, all.end() - margin};
  }
  // Where it differs from `want`, or nothing.
  std::string difference(const unsigned char* want) const {
    const std::vector<unsigned char> got = contents();
    std::size_t count = 0, first = 0;
    for (std::size_t i = bytes_; i-- > 0;)
      if (got[i] != want[i]) first = i, ++count;
    if (count == 0) return {};
    return std::to_string(count) + " of " + std::to_string(bytes_) + " bytes differ, the first is byte " +
           std::to_string(first) + ": " + std::to_string(got[first]) + ", not " + std::to_string(want[first]);
  }

 private:
  static constexpr unsigned char guard = 0xa5;
  static constexpr std::size_t margin = 256;
  const unsigned char* host_;
  std::size_t bytes_;
  void* block_ = nullptr;
};

// Device copies of blocks of host memory, and host views and steps made over to them.
class mirror {
 public:
  // What is there from now on: `host` stays where it is.
  const device_block& add(const void* host, std::size_t bytes) { return blocks_.emplace_back(host, bytes); }
  template <class T>
  T* add(const std::vector<T>& host) {
    return reinterpret_cast<T*>(add(host.data(), host.size() * sizeof(T)).data());
  }
  // Everything that an owner has: pools and tables.
  void add(const test_memory& owner) {
    for (const auto& [p, bytes] : owner.blocks()) add(p, bytes);
  }

  // The same view over the copies: every word of it that is an address in a block is moved.
  template <kvilt::memory_space Space, class... Segments>
  auto operator()(const kvilt::view<Space, Segments...>& view) const {
    using device_view = kvilt::view<kvilt::memory_space::device, Segments...>;
    static_assert(sizeof(device_view) == sizeof(view) && std::is_trivially_copyable_v<device_view>);
    device_view moved;
    std::memcpy(static_cast<void*>(&moved), &view, sizeof(view));
    relocate(reinterpret_cast<unsigned char*>(&moved), sizeof(moved));
    return moved;
  }
  // The same of anything else that refers to the blocks, as variants do to their arrays.
  template <class T>
  T moved(T value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    relocate(reinterpret_cast<unsigned char*>(&value), sizeof(value));
    return value;
  }
  // The same rows of a tensor.
  template <class T>
  kvilt::rows<T> operator()(kvilt::rows<T> x) const {
    relocate(reinterpret_cast<unsigned char*>(&x), sizeof(x));
    return x;
  }
  // A host's step without attention's work; its items and positions are copied.
  kvilt::device_step operator()(const kvilt::step& s) {
    kvilt::device_step d;
    if (s.size > 0)
      d.items =
          reinterpret_cast<const kvilt::step_item*>(add(s.items, sizeof(s.items[0]) * std::size_t(s.size)).data());
    if (s.rope_positions)
      d.rope_positions = reinterpret_cast<const kvilt::idx*>(
          add(s.rope_positions, sizeof(kvilt::idx) * std::size_t(s.kv_rows)).data());
    d.size = s.size, d.q_rows = s.q_rows, d.kv_rows = s.kv_rows;
    for (int i = 0; i < s.size; ++i) {
      d.most_queries = std::max(d.most_queries, s.items[i].queries);
      d.most_new_tokens = std::max(d.most_new_tokens, s.items[i].new_tokens);
    }
    return d;
  }
  // The frequencies of a table.
  kvilt::rope operator()(kvilt::rope turn) {
    if (turn.dims)
      turn.turns = reinterpret_cast<const std::uint64_t*>(
          add(turn.turns, sizeof(std::uint64_t) * std::size_t(turn.dims / 2)).data());
    return turn;
  }

  // Where the copies differ from what the host has now, or nothing.
  std::string difference() const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const std::string wrong = blocks_[i].difference(blocks_[i].host());
      if (!wrong.empty()) return "block " + std::to_string(i) + ": " + wrong;
    }
    return {};
  }

 private:
  void relocate(unsigned char* object, std::size_t bytes) const {
    for (std::size_t at = 0; at + sizeof(const unsigned char*) <= bytes; at += sizeof(const unsigned char*)) {
      const unsigned char* word;
      std::memcpy(&word, object + at, sizeof(word));
      for (const device_block& b : blocks_)
        if (word >= b.host() && word < b.host() + b.bytes()) {
          word = b.data() + (word - b.host());
          std::memcpy(object + at, &word, sizeof(word));
          break;
        }
    }
  }

  std::deque<device_block> blocks_;
};

}  // namespace support
