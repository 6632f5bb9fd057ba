#include "support/device_array.cuh"
#include "support/gpu.hpp"

#include <kvilt/tiers/stream_transfer.cuh>

#include <vector>

namespace {

using namespace kvilt;

constexpr idx pages = 6, stride = 1024, first = 640, second = 96;

}  // namespace

TEST_CASE("stream_transfer: pages go to page-locked memory and come back, in the order of the stream", "[tiers]") {
  support::require_gpu();
  std::vector<unsigned char> bytes(pages * stride);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 31 % 251);
  support::device_array<unsigned char> pool{std::span<const unsigned char>(bytes)};
  const page_memory memory({{pool.data(), stride, first}, {pool.data() + 700, stride, second}}, pages);
  stream_transfer<> moves(memory, 4, gpu());
  const auto run = [&](copy_way way, const std::vector<page_copy>& batch) {
    std::vector<copy_result> results(batch.size(), copy_result::failed);
    const transfer::ticket t = moves.start(way, batch);
    while (!moves.done(t, results)) {
    }
    return results;
  };
  const std::vector<copy_result> two_done(2, copy_result::done);
  CHECK(run(copy_way::store, {{2, 5, nullptr, 7}, {0, 1, nullptr, 8}}) == two_done);
  support::must(cudaMemset(pool.data(), 0, bytes.size()), "the pool is emptied");
  CHECK(run(copy_way::load, {{0, 3, nullptr, 8}, {2, 0, nullptr, 7}}) == two_done);
  std::vector<unsigned char> wanted(bytes.size(), 0);
  const auto copy = [&](idx from, idx to) {
    std::copy_n(bytes.begin() + from * stride, first, wanted.begin() + to * stride);
    std::copy_n(bytes.begin() + from * stride + 700, second, wanted.begin() + to * stride + 700);
  };
  copy(1, 3), copy(5, 0);
  std::vector<unsigned char> now(bytes.size());
  support::must(cudaMemcpy(now.data(), pool.data(), now.size(), cudaMemcpyDeviceToHost), "the pool");
  CHECK(now == wanted);

  // A page as a row of the host's, and a slot of another tag.
  std::vector<unsigned char> row(std::size_t(memory.page_bytes()));
  CHECK(run(copy_way::load, {{2, -1, row.data(), 7}}) == std::vector(1, copy_result::done));
  CHECK(std::equal(row.begin(), row.begin() + first, bytes.begin() + 5 * stride));
  CHECK(run(copy_way::load, {{2, -1, row.data(), 8}}) == std::vector(1, copy_result::damaged));
}
