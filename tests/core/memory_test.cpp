#include "support/catch.hpp"

#include <kvilt/core/memory.hpp>

#include <cstdint>
#include <map>
#include <new>
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

TEST_CASE("memory: a buffer is not copied", "[core]") {
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<host_buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<host_buffer>);
}
