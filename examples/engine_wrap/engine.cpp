#include "engine.hpp"

#include "cuda.hpp"

namespace example {
namespace {

kvilt::buffer<kvilt::memory_space::device> numbers(idx count) {
  kvilt::buffer<kvilt::memory_space::device> of(kvilt::device_memory(), sizeof(bfloat16) * std::size_t(count));
  // Every number a NaN: what is read before it is written shows.
  check(cudaMemset(of.data(), 0xff, of.bytes()), "filling memory of the device");
  check(cudaDeviceSynchronize(), "filling memory of the device");
  return of;
}
template <kvilt::memory_space Space>
bfloat16* start(const kvilt::buffer<Space>& of) {
  return reinterpret_cast<bfloat16*>(of.data());
}
template <kvilt::memory_space Space>
batch_lists lists(const kvilt::buffer<Space>& of, const engine_shape& s) {
  return {reinterpret_cast<int*>(of.data()), s.seats, s.width};
}
std::size_t batch_bytes(const engine_shape& s) {
  return sizeof(int) * std::size_t(batch_lists::count(s));
}

}  // namespace

engine::engine(const engine_shape& shape)
    : shape_(shape),
      pool_(numbers(model::layers * shape.layer_numbers())),
      qkv_(numbers(shape.rows() * model::heads * model::dim)),
      out_(numbers(model::layers * shape.rows() * model::q_heads * model::dim)),
      device_batch_(kvilt::device_memory(), batch_bytes(shape)),
      staged_(kvilt::pinned_memory(), batch_bytes(shape)),
      batch_(lists(staged_, shape)),
      scheduler_(shape),
      decoder_(shape, {start(pool_), start(qkv_), start(out_), lists(device_batch_, shape)}, batch_) {}

std::vector<bfloat16> engine::copy_of(const device_buffer& numbers) {
  std::vector<bfloat16> to(numbers.bytes() / sizeof(bfloat16));
  check(cudaMemcpy(to.data(), numbers.data(), numbers.bytes(), cudaMemcpyDeviceToHost), "a copy from the device");
  return to;
}

}  // namespace example
