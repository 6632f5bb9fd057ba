#include "support/catch.hpp"
#include "support/gpu.hpp"
#include "support/managed.hpp"

#include <kvilt/core/floats.hpp>
#include <kvilt/gpu/wgmma.cuh>

#include <random>

// Products of warpgroups: every width, kind of numbers and place of a factor in shared memory, on small whole numbers, of
// which every product and sum is exact.

namespace {

namespace ptx = kvilt::detail::ptx;

constexpr int rows = 64, panel_numbers = 64, panel_row = 128;

template <ptx::numbers Numbers>
__device__ std::uint16_t bits_of_number(float x) {
  return std::uint16_t(ptx::pack<Numbers>(x, 0));
}

// A matrix [height][width] in panels of 64 columns, 128 bytes a row, of which the chunks of 16 bytes of row r lie at those
// whose number differs by the bits of r % 8.
template <ptx::numbers Numbers>
__device__ void put(unsigned char* to, const float* from, int height, int width) {
  for (int i = int(threadIdx.x); i < height * width; i += int(blockDim.x)) {
    const int row = i / width, column = i % width, inside = column % panel_numbers;
    const int at = column / panel_numbers * height * panel_row + row * panel_row + ((inside / 8) ^ (row % 8)) * 16 +
                   inside % 8 * 2;
    *reinterpret_cast<std::uint16_t*>(to + at) = bits_of_number<Numbers>(from[i]);
  }
}

template <int N>
__device__ void leave(const float (&d)[N / 2], float* out) {
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  for (int i = 0; i < N / 2; ++i) out[(16 * warp + g + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * t + i % 2] = d[i];
}

// out [64][N] = a [64][depth] b [N][depth] transposed, of depth 128: two panels.
template <ptx::numbers Numbers, int N>
__global__ void __launch_bounds__(128) multiply_shared_kernel(const float* a, const float* b, float* out, int* there) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int depth = 2 * panel_numbers;
  unsigned char* const second = memory + depth / panel_numbers * rows * panel_row;
  put<Numbers>(memory, a, rows, depth);
  put<Numbers>(second, b, N, depth);
  ptx::show_to_products();
  __syncthreads();
  float d[N / 2];
  for (int i = 0; i < N / 2; ++i) d[i] = 1e30f;  // the first product adds nothing
  ptx::begin_products();
#pragma unroll
  for (int p = 0; p < depth / 16; ++p) {
    const ptx::u32 panel = p / 4, inside = p % 4 * 32;
    ptx::multiply_shared<Numbers, N>(d, ptx::factor(ptx::shared_address(memory) + panel * rows * panel_row + inside),
                                     ptx::factor(ptx::shared_address(second) + panel * N * panel_row + inside), p > 0);
  }
  ptx::commit_products();
  ptx::wait_products<0>();
  ptx::settle(d);
  leave<N>(d, out);
  if (threadIdx.x == 0) *there = KVILT_WARPGROUPS;
}

// out [64][N] = a [64][32] b [32][from, from + N), of 256 columns: four panels.
template <ptx::numbers Numbers, int N>
__global__ void __launch_bounds__(128)
    multiply_registers_kernel(const float* a, const float* b, int from, float* out, int* there) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int depth = 32, width = 4 * panel_numbers;
  put<Numbers>(memory, b, depth, width);
  ptx::show_to_products();
  __syncthreads();
  const int warp = int(threadIdx.x) / 32, g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  float d[N / 2] = {};
  ptx::u32 factors[depth / 16][4];
  for (int k = 0; k < depth / 16; ++k)
    for (int i = 0; i < 4; ++i) {
      const float* const pair = a + (16 * warp + g + i % 2 * 8) * depth + 16 * k + i / 2 * 8 + 2 * t;
      factors[k][i] = ptx::pack<Numbers>(pair[0], pair[1]);
    }
  const ptx::u32 at =
      ptx::shared_address(memory) + ptx::u32(from / panel_numbers * depth * panel_row + from % panel_numbers * 2);
  ptx::begin_products();
#pragma unroll
  for (int k = 0; k < depth / 16; ++k)
    ptx::multiply_registers<Numbers, N>(d, factors[k], ptx::factor(at + k * 16 * panel_row, depth * panel_row));
  ptx::commit_products();
  ptx::wait_products<0>();
  ptx::settle(d);
  leave<N>(d, out);
  if (threadIdx.x == 0) *there = KVILT_WARPGROUPS;
}

struct matrix {
  int width;
  support::managed<float> numbers;

  matrix(int height, int columns, unsigned seed) : width(columns), numbers(std::size_t(height * columns)) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(int(random() % 15) - 7);
  }
  float at(int row, int column) const { return numbers[std::size_t(row * width + column)]; }
};

void skip_without(const support::managed<int>& there) {
  support::finish_kernels();
  if (there[0] == 0) support::skip("not compiled for sm_90a");
}

template <ptx::numbers Numbers, int N>
void check_shared() {
  constexpr int depth = 2 * panel_numbers;
  const matrix a(rows, depth, 1), b(N, depth, 2);
  const support::managed<float> out(rows * N);
  const support::managed<int> there(1);
  multiply_shared_kernel<Numbers, N>
      <<<1, 128, (rows + N) * depth * 2>>>(a.numbers.data(), b.numbers.data(), out.data(), there.data());
  skip_without(there);
  INFO("width " << N);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < N; ++c) {
      float sum = 0;
      for (int k = 0; k < depth; ++k) sum += a.at(r, k) * b.at(c, k);
      if (out[std::size_t(r * N + c)] != sum) FAIL("row " << r << ", column " << c);
    }
  SUCCEED();
}

template <ptx::numbers Numbers, int N>
void check_registers(int from) {
  constexpr int depth = 32, width = 4 * panel_numbers;
  const matrix a(rows, depth, 3), b(depth, width, 4);
  const support::managed<float> out(rows * N);
  const support::managed<int> there(1);
  multiply_registers_kernel<Numbers, N>
      <<<1, 128, depth * width * 2>>>(a.numbers.data(), b.numbers.data(), from, out.data(), there.data());
  skip_without(there);
  INFO("width " << N << " from column " << from);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < N; ++c) {
      float sum = 0;
      for (int k = 0; k < depth; ++k) sum += a.at(r, k) * b.at(k, from + c);
      if (out[std::size_t(r * N + c)] != sum) FAIL("row " << r << ", column " << c);
    }
  SUCCEED();
}

template <ptx::numbers Numbers>
void check_all() {
  check_shared<Numbers, 16>();
  check_shared<Numbers, 32>();
  check_shared<Numbers, 64>();
  check_shared<Numbers, 128>();
  // Wherever a result's numbers are parted into widths of powers of two.
  for (const int from : {0, 64, 128}) check_registers<Numbers, 128>(from);
  for (const int from : {0, 64, 128, 192}) check_registers<Numbers, 64>(from);
  for (const int from : {0, 32, 64, 96, 160, 224}) check_registers<Numbers, 32>(from);
  for (const int from : {0, 16, 32, 48, 64, 112, 240}) check_registers<Numbers, 16>(from);
}

}  // namespace

TEST_CASE("wgmma: products of warpgroups are those of the matrices, fp16", "[gpu]") {
  support::require_gpu();
  check_all<ptx::numbers::fp16>();
}

TEST_CASE("wgmma: products of warpgroups are those of the matrices, bf16", "[gpu]") {
  support::require_gpu();
  check_all<ptx::numbers::bf16>();
}
