#pragma once

#include "device.cuh"
#include "random.cuh"

#include <algorithm>
#include <map>
#include <vector>

/// What a GPU could do at most, measured: how fast it reads and copies memory that no cache holds.
namespace bench {

__device__ inline uint4 read_once(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

/// Each thread has `Flight` reads of 16 bytes on their way; blocks take pieces in turn. from: [pieces][Flight][threads]
template <int Flight>
__global__ void __launch_bounds__(256) read_kernel(const uint4* from, idx pieces, unsigned* sums) {
  unsigned sum = 0;
  for (idx piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const uint4* const at = from + piece * Flight * blockDim.x + threadIdx.x;
    uint4 x[Flight];
#pragma unroll
    for (int i = 0; i < Flight; ++i) x[i] = read_once(at + i * blockDim.x);
#pragma unroll
    for (int i = 0; i < Flight; ++i) sum ^= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  if (sum == 0x12345678u) *sums = sum;  // so that nothing is left out
}

template <int Flight>
__global__ void __launch_bounds__(256) copy_kernel(const uint4* from, uint4* to, idx pieces) {
  for (idx piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const idx at = piece * Flight * blockDim.x + threadIdx.x;
    uint4 x[Flight];
#pragma unroll
    for (int i = 0; i < Flight; ++i) x[i] = read_once(from + at + i * blockDim.x);
#pragma unroll
    for (int i = 0; i < Flight; ++i) to[at + i * blockDim.x] = x[i];
  }
}

/// Seconds that plain kernels take for as many bytes, the best of several of them, over memory that is in no cache.
class ceilings {
 public:
  ceilings(const stream& on, int runs) : stream_(on), runs_(runs), memory_(words), sums_(1) {
    fill_normal_kernel<<<blocks_of(8), 256>>>(reinterpret_cast<float*>(memory_.data()), 4 * words, 1.0f, 1);
    check(cudaDeviceSynchronize(), "random numbers");
  }

  /// Of a read of so many bytes.
  double read_seconds(idx bytes) { return known(reads_, bytes, 0); }
  /// Of a copy that moves so many bytes in all, half of them read and half written.
  double copy_seconds(idx bytes) { return known(copies_, bytes, 1); }

 private:
  static constexpr idx words = idx(9) << 24;  // 2.25 GiB
  static constexpr int threads = 256;

  struct variant {
    int flight, blocks;  // blocks on a multiprocessor; 0: one for each piece
  };
  static constexpr variant variants[] = {{4, 8}, {8, 4}, {8, 8}, {4, 0}, {8, 0}};

  double known(std::map<idx, double>& of, idx bytes, bool copies) {
    const auto found = of.find(bytes);
    if (found != of.end()) return found->second;
    double best = 1e30;
    for (const variant v : variants) best = std::min(best, seconds(bytes, v, copies));
    return of[bytes] = best;
  }

  double seconds(idx bytes, variant v, bool copies) {
    const idx piece = idx(v.flight) * threads, room = words / (copies ? 2 : 1);
    const idx pieces = std::clamp<idx>(bytes / 16 / piece / (copies ? 2 : 1), 1, room / piece);
    const idx size = pieces * piece;
    const int sets = int(std::clamp<idx>(room / size, 1, 256));
    const unsigned blocks = v.blocks ? std::min(blocks_of(v.blocks), unsigned(pieces)) : unsigned(pieces);
    const graph work(stream_, [&] {
      for (int i = 0; i < sets; ++i) {
        const uint4* const from = memory_.data() + i * (room / sets);
        if (copies)
          copy(v.flight, blocks, from, memory_.data() + room + i * (room / sets), pieces);
        else
          read(v.flight, blocks, from, pieces);
        check(cudaGetLastError(), "a launch");
      }
    });
    // NOTE: of what was asked for: whole pieces are a little less, and the memory may be.
    return median_seconds(stream_, work, runs_) / sets * double(bytes) / double(16 * size * (copies ? 2 : 1));
  }
  void read(int flight, unsigned blocks, const uint4* from, idx pieces) {
    const auto kernel = flight == 4 ? read_kernel<4> : read_kernel<8>;
    kernel<<<blocks, threads, 0, stream_>>>(from, pieces, sums_.data());
  }
  void copy(int flight, unsigned blocks, const uint4* from, uint4* to, idx pieces) {
    const auto kernel = flight == 4 ? copy_kernel<4> : copy_kernel<8>;
    kernel<<<blocks, threads, 0, stream_>>>(from, to, pieces);
  }

  const stream& stream_;
  int runs_;
  device_array<uint4> memory_;
  device_array<unsigned> sums_;
  std::map<idx, double> reads_, copies_;
};

}  // namespace bench
