#include "support/catch.hpp"

#include <kvilt/core/memory.hpp>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace {

using namespace kvilt;

/// Notes what is allocated, and whether it comes back as it went.
struct ledger {
  std::map<void*, std::pair<std::size_t, std::size_t>> live;
  int allocations = 0;
  bool wrong = false;

  void* allocate(std::size_t bytes, std::size_t align) {
    ++allocations;
    void* p = ::operator new(bytes, std::align_val_t(align));
    live[p] = {bytes, align};
    return p;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept {
    const auto entry = live.find(p);
    wrong |= entry == live.end() || entry->second != std::pair(bytes, align);
    live.erase(p);
    ::operator delete(p, std::align_val_t(align));
  }
};

struct exhausted {
  void* allocate(std::size_t, std::size_t) { throw std::bad_alloc(); }
  void deallocate(void*, std::size_t, std::size_t) noexcept {}
};

using host_buffer = buffer<memory_space::host>;

/// What the system was told of the mapping that holds `p`.
[[maybe_unused]] bool asks_for_huge_pages(const void* p) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t first, last;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2)
      inside = reinterpret_cast<std::uintptr_t>(p) >= first && reinterpret_cast<std::uintptr_t>(p) < last;
    else if (inside && line.rfind("VmFlags:", 0) == 0)
      return line.find(" hg") != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("memory: a buffer takes its bytes once, on a 256-byte line, and gives them back", "[core]") {
  ledger resource;
  {
    const host_buffer b(memory<memory_space::host>::from(resource), 1000);
    CHECK(b.bytes() == 1000);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
    REQUIRE(resource.live.size() == 1);
    CHECK(resource.live.begin()->second == std::pair<std::size_t, std::size_t>(1000, 256));
  }
  CHECK(resource.live.empty());
  CHECK_FALSE(resource.wrong);
}

TEST_CASE("memory: an empty buffer allocates nothing", "[core]") {
  ledger resource;
  const host_buffer b(memory<memory_space::host>::from(resource), 0);
  CHECK(b.data() == nullptr);
  CHECK(resource.allocations == 0);
}

TEST_CASE("memory: a moved buffer keeps its address and is freed once, by its own resource", "[core]") {
  ledger first, second;
  {
    host_buffer a(memory<memory_space::host>::from(first), 64);
    host_buffer b(memory<memory_space::host>::from(second), 32);
    unsigned char* const address = a.data();
    host_buffer moved(std::move(a));
    CHECK(moved.data() == address);
    b = std::move(moved);
    CHECK(b.data() == address);
    CHECK(b.bytes() == 64);
    CHECK(second.live.empty());
    CHECK(first.live.size() == 1);
  }
  CHECK(first.live.empty());
  CHECK_FALSE((first.wrong || second.wrong));
}

TEST_CASE("memory: what a resource throws reaches the caller", "[core]") {
  exhausted resource;
  CHECK_THROWS_AS(host_buffer(memory<memory_space::host>::from(resource), 1), std::bad_alloc);
}

TEST_CASE("memory: host memory is aligned", "[core]") {
  const host_buffer b(host_memory(), 3);
  CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
  b.data()[2] = 7;
  CHECK(b.data()[2] == 7);
}

TEST_CASE("memory: large blocks ask for huge pages, small ones do not", "[core]") {
  constexpr std::size_t huge = std::size_t(2) << 20;
  const host_buffer large(host_memory(), 2 * huge + 5), small(host_memory(), huge - 1);
  CHECK(reinterpret_cast<std::uintptr_t>(large.data()) % huge == 0);
  large.data()[2 * huge + 4] = 7;
#if defined(__linux__)
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) return;
  CHECK(asks_for_huge_pages(large.data()));
  CHECK(asks_for_huge_pages(large.data() + 2 * huge - 1));
  CHECK_FALSE(asks_for_huge_pages(small.data()));
#endif
}

TEST_CASE("memory: a buffer is not copied", "[core]") {
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<host_buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<host_buffer>);
}
