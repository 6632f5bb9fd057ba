#include "format/record.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"
#include "support/managed.hpp"

#include <kvilt/format/centred.hpp>
#include <kvilt/format/channel.hpp>
#include <kvilt/format/concat.hpp>
#include <kvilt/format/floating.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/narrow.hpp>
#include <kvilt/format/rotate.hpp>
#include <kvilt/format/static_scale.hpp>

#include <cstring>
#include <random>
#include <tuple>
#include <vector>

// Built twice, once with -use_fast_math by encode_fast_math_test.cu.
#ifndef ENCODE_TEST_MODE
#define ENCODE_TEST_MODE ""
#endif

namespace {

using namespace kvilt;

/// Two formats in a row, made as the others are.
struct latent : concat<e4m3<64, 32>, bf16<8>> {
  constexpr explicit latent(int) {}
};

using all = std::tuple<fp32<>, fp16<>, bf16<>, e4m3<>, q8<>, q8<dynamic, 32>, q4<>, q4<dynamic, 32>, rotated<q8<>>,
                       rotated<q4<>>, q8<128>, q4<64>, rotated<q4<64>>, e4m3<72>, e4m3<dynamic, 32>, e5m2<>,
                       e5m2<dynamic, 64>, e4m3_static<>, e5m2_static<>, q8_static<>, q4<dynamic, 64>, q3<>,
                       q3<dynamic, 32>, q2<>, q2<dynamic, 64>, rotated<q2<64, 32>>, q4_channel<>, q2_channel<>,
                       q4_channel<72, 64>, centred<q4<>>, centred<q8<64>, 16>, centred<e4m3<>, 32>, latent>;

constexpr int longest_row = 256;
constexpr int random_rows = 2000;

/// One record as `append` takes it: rotated, then encoded.
template <class F>
KVILT_HD void put(const F& f, const float* x, row_ref to) {
  if constexpr (std::is_same_v<rotation_of<F>, no_rotation>) {
    f.encode(x, to);
  } else {
    static_assert(F::rows == 1, "tiles are tried without rotation");
    float row[longest_row];
    for (int i = 0; i < f.dim(); ++i) row[i] = x[i];
    rotation_of<F>::forward(row, f.dim());
    f.encode(row, to);
  }
}

/// x [records][rows][dim] -> codes [records][code_bytes], params [records][param_bytes] or one static scale,
/// decoded [records][rows][dim]
template <class F>
__global__ void put_records(F f, const float* x, int records, unsigned char* codes, unsigned char* params,
                            float* decoded) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= records) return;
  const row_ref to{codes + i * f.code_bytes(), params + i * f.param_bytes(), 0};
  put(f, x + i * F::rows * f.dim(), to);
  for (int row = 0; row < F::rows; ++row)
    decode_row(f, {to.codes, to.params, row}, decoded + (i * F::rows + row) * f.dim());
}

/// Awkward rows, random ones of many magnitudes, and ones of random bits, one after the other.
std::vector<float> many_rows(int dim) {
  std::vector<float> x;
  for (const awkward::row& row : awkward::all_rows(dim)) x.insert(x.end(), row.x.begin(), row.x.end());
  std::mt19937 random(61);
  for (int i = 0; i < random_rows; ++i) {
    const std::vector<float> row = awkward::gaussian(dim, random, std::ldexp(1.0f, i % 60 - 35));
    x.insert(x.end(), row.begin(), row.end());
  }
  for (int i = 0; i < 200 * dim; ++i) {
    const float any = float_of(std::uint32_t(random()));
    x.push_back(is_nan(any) ? 0.0f : any);
  }
  return x;
}

/// Is the number that the device decodes the host's, but for one rounding of a product that was fused with a sum?
bool close(float device, float host) {
  if (is_nan(host)) return is_nan(device);
  return device == host || std::fabs(double(device) - host) <= std::fmax(std::fabs(host) * 1e-6, FLT_MIN);
}

__global__ void halve(float* x) {
  *x *= 0.5f;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("format: the device encodes the bytes of the host" ENCODE_TEST_MODE, "[format]", all) {
  support::require_gpu();
  for (const int dim : formats::dims_of<TestType>()) {
    INFO("dim " << dim);
    const TestType f(dim);
    const std::vector<float> rows = many_rows(dim);
    const int record_size = TestType::rows * dim, count = int(rows.size()) / record_size;
    const support::managed<float> x(rows.size()), decoded(rows.size());
    const support::managed<unsigned char> codes(std::size_t(count * f.code_bytes()));
    const support::managed<unsigned char> params(std::size_t(count * f.param_bytes()) + sizeof(float));
    std::memset(codes.data(), formats::record<TestType>::guard, codes.bytes());
    const float scale = formats::record<TestType>(f).scale;
    std::memcpy(params.data(), &scale, sizeof(scale));
    std::memcpy(x.data(), rows.data(), x.bytes());
    put_records<<<(count + 63) / 64, 64>>>(f, x.data(), count, codes.data(), params.data(), decoded.data());
    support::finish_kernels();
    std::vector<float> y(static_cast<std::size_t>(dim));
    for (int i = 0; i < count; ++i) {
      INFO("record " << i);
      formats::record<TestType> expected{f};
      put(f, rows.data() + i * record_size, expected.ref());
      const unsigned char* const row_codes = codes.data() + i * f.code_bytes();
      const unsigned char* const row_params = params.data() + i * f.param_bytes();
      if (std::memcmp(row_codes, expected.ref().codes, std::size_t(f.code_bytes())) != 0) FAIL("codes differ");
      if (std::memcmp(row_params, expected.ref().params, std::size_t(f.param_bytes())) != 0) FAIL("params differ");
      for (int row = 0; row < TestType::rows; ++row) {
        decode_row(f, {expected.ref().codes, expected.ref().params, row}, y.data());
        for (int d = 0; d < dim; ++d)
          if (!close(decoded[std::size_t(i * record_size + row * dim + d)], y[std::size_t(d)]))
            FAIL("number " << d << " of row " << row << " decodes differently");
      }
    }
  }
}

TEST_CASE("format: this program is built as it says" ENCODE_TEST_MODE, "[format]") {
  support::require_gpu();
  const support::managed<float> x(1);
  x[0] = FLT_MIN;
  halve<<<1, 1>>>(x.data());
  support::finish_kernels();
  const bool flushes_subnormals = x[0] == 0;
  CHECK(flushes_subnormals == (std::strlen(ENCODE_TEST_MODE) > 0));
}
