#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cstddef>
#include <new>
#include <utility>

namespace kvilt::inline KVILT_ABI {

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

  void* self_;
  allocate_fn allocate_;
  deallocate_fn deallocate_;
};

/// The heap.
inline memory<memory_space::host> host_memory() {
  return memory<memory_space::host>(
      nullptr, [](void*, std::size_t n, std::size_t a) { return ::operator new(n, std::align_val_t(a)); },
      [](void*, void* p, std::size_t, std::size_t a) noexcept { ::operator delete(p, std::align_val_t(a)); });
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
