#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cstddef>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvilt::inline KVILT_ABI {
namespace detail {

inline constexpr std::size_t huge_page = std::size_t(2) << 20;

/// Where a block of the heap begins: large ones where a huge page does.
inline std::align_val_t heap_alignment(std::size_t bytes, std::size_t align) {
  return std::align_val_t(bytes >= huge_page && align < huge_page ? huge_page : align);
}

/// A block of the heap. Large ones are on huge pages where the system has them to give: attention reads a cache once,
/// from end to end, and on pages of 4 KiB waits a third of its time for the walk through their tables.
inline void* allocate_heap(std::size_t bytes, std::size_t align) {
  void* const block = ::operator new(bytes, heap_alignment(bytes, align));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // NOTE: a wish; whether it is granted makes no difference but in speed.
  if (bytes >= huge_page) (void)::madvise(block, bytes / huge_page * huge_page, MADV_HUGEPAGE);
#endif
  return block;
}

inline void free_heap(void* block, std::size_t bytes, std::size_t align) noexcept {
  ::operator delete(block, heap_alignment(bytes, align));
}

}  // namespace detail

/// Where an owner gets its bytes: a type-erased, non-owning reference to anything with
/// `void* allocate(std::size_t bytes, std::size_t align)` and `void deallocate(void*, std::size_t bytes, std::size_t
/// align) noexcept`. What it refers to outlives every owner that uses it.
template <memory_space Space>
class memory {
 public:
  template <class Resource>
  static memory from(Resource& resource) {
    return memory(
        &resource,
        [](void* self, std::size_t n, std::size_t a) { return static_cast<Resource*>(self)->allocate(n, a); },
        [](void* self, void* p, std::size_t n, std::size_t a) noexcept {
          static_cast<Resource*>(self)->deallocate(p, n, a);
        });
  }

  void* allocate(std::size_t bytes, std::size_t align) const { return allocate_(self_, bytes, align); }
  void deallocate(void* p, std::size_t bytes, std::size_t align) const noexcept { deallocate_(self_, p, bytes, align); }

 private:
  using allocate_fn = void* (*)(void*, std::size_t, std::size_t);
  using deallocate_fn = void (*)(void*, void*, std::size_t, std::size_t) noexcept;
  memory(void* self, allocate_fn a, deallocate_fn d) : self_(self), allocate_(a), deallocate_(d) {}
  friend memory<memory_space::host> host_memory();
  friend memory<memory_space::host> pinned_memory();    // gpu/memory.hpp
  friend memory<memory_space::device> device_memory();  // gpu/memory.hpp

  void* self_;
  allocate_fn allocate_;
  deallocate_fn deallocate_;
};

/// The heap; blocks of 2 MiB and more on huge pages where Linux has them to give.
inline memory<memory_space::host> host_memory() {
  return memory<memory_space::host>(
      nullptr, [](void*, std::size_t n, std::size_t a) { return detail::allocate_heap(n, a); },
      [](void*, void* p, std::size_t n, std::size_t a) noexcept { detail::free_heap(p, n, a); });
}

/// Owned bytes of a resource, on a 256-byte line; moves, does not copy.
template <memory_space Space>
class buffer {
 public:
  static constexpr std::size_t alignment = 256;

  buffer(memory<Space> from, std::size_t bytes)
      : from_(from), bytes_(bytes), data_(bytes ? from.allocate(bytes, alignment) : nullptr) {
    detail::expects<out_of_pages>(data_ != nullptr || bytes == 0, "the memory resource has no ", bytes, " bytes");
  }
  buffer(buffer&& other) noexcept
      : from_(other.from_), bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  buffer& operator=(buffer other) noexcept {
    std::swap(from_, other.from_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~buffer() {
    if (data_) from_.deallocate(data_, bytes_, alignment);
  }

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  memory<Space> from_;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace kvilt::inline KVILT_ABI
