#include "support/catch.hpp"
#include "support/gpu.hpp"
#include "support/managed.hpp"

#include <kvilt/core/floats.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace {

using namespace kvilt;

/// One number in every small format.
struct codes {
  std::uint16_t fp16, bf16;
  std::uint8_t e4m3, e5m2;
  KVILT_HD bool operator==(const codes& o) const {
    return fp16 == o.fp16 && bf16 == o.bf16 && e4m3 == o.e4m3 && e5m2 == o.e5m2;
  }
};
/// What one bit pattern means in every small format.
struct values {
  float fp16, bf16, e4m3, e5m2;
};

KVILT_HD codes encoded(float x) {
  return {to_fp16(x), to_bf16(x), to_e4m3(x), to_e5m2(x)};
}
KVILT_HD codes encoded_by_cuda(float x) {
  return {__half_as_ushort(__float2half_rn(x)), __bfloat16_as_ushort(__float2bfloat16_rn(x)),
          __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)};
}

KVILT_HD values decoded(std::uint16_t bits) {
  return {from_fp16(bits), from_bf16(bits), from_e4m3(std::uint8_t(bits)), from_e5m2(std::uint8_t(bits))};
}
KVILT_HD values decoded_by_cuda(std::uint16_t bits) {
  const auto low = static_cast<__nv_fp8_storage_t>(bits);
  return {__half2float(__ushort_as_half(bits)), __bfloat162float(__ushort_as_bfloat16(bits)),
          __half2float(__half(__nv_cvt_fp8_to_halfraw(low, __NV_E4M3))),
          __half2float(__half(__nv_cvt_fp8_to_halfraw(low, __NV_E5M2)))};
}
KVILT_HD bool same(float a, float b) {
  return bits_of(a) == bits_of(b) || (is_nan(a) && is_nan(b));
}
KVILT_HD bool same(const values& a, const values& b) {
  return same(a.fp16, b.fp16) && same(a.bf16, b.bf16) && same(a.e4m3, b.e4m3) && same(a.e5m2, b.e5m2);
}

constexpr int all_codes = 1 << 16;
constexpr std::size_t random_patterns = std::size_t(1) << 24;

/// Every code's value in every format, the middle between it and the next, and what lies beside the middle; NaNs,
/// infinities and fp32 subnormals; random bits, half of them where small formats have their codes.
std::vector<std::uint32_t> patterns() {
  std::vector<std::uint32_t> bits{0,           1,           0x7fff,      0x8000,      0x8001,      0x18000,
                                  0x400000,    0x7fffff,    0x80000000u, 0x80000001u, 0x807fffffu, 0x7f7fffff,
                                  0x7f800000,  0xff800000u, 0x7fc00000,  0xffc00000u, 0x7f800001,  0xff800001u,
                                  0x7fffffffu, 0xffffffffu, 0x7f802000u, 0xffbfffffu};
  const auto add = [&](float x, float next) {
    const std::uint32_t middle = bits_of(0.5f * x + 0.5f * next);
    bits.insert(bits.end(), {bits_of(x), middle - 1, middle, middle + 1});
  };
  for (int code = 0; code + 1 < all_codes; ++code) {
    const values a = decoded(std::uint16_t(code)), b = decoded(std::uint16_t(code + 1));
    add(a.fp16, b.fp16);
    add(a.bf16, b.bf16);
    if (code < 256) add(a.e4m3, b.e4m3), add(a.e5m2, b.e5m2);
  }
  for (const float limit : {65504.0f, 65520.0f, 65536.0f, 448.0f, 464.0f, 480.0f, 57344.0f, 61440.0f})
    for (const std::uint32_t sign : {0u, 0x80000000u})
      for (const std::uint32_t step : {~0u, 0u, 1u}) bits.push_back((bits_of(limit) + step) | sign);
  std::mt19937 random(51);
  for (std::size_t i = 0; i < random_patterns; ++i) {
    const std::uint32_t any = std::uint32_t(random());
    bits.push_back(i % 2 ? any : (any & 0x87ffffffu) + (119u << 23));
  }
  return bits;
}

__global__ void decode_all(values* ours, values* cudas) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  ours[i] = decoded(std::uint16_t(i));
  cudas[i] = decoded_by_cuda(std::uint16_t(i));
}

__global__ void encode_all(const std::uint32_t* bits, std::size_t size, codes* ours, codes* cudas) {
  const std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  ours[i] = encoded(float_of(bits[i]));
  cudas[i] = encoded_by_cuda(float_of(bits[i]));
}

}  // namespace

TEST_CASE("floats: host code has the bits of CUDA's conversions", "[core]") {
  for (int code = 0; code < all_codes; ++code) {
    INFO("code " << code);
    if (!same(decoded(std::uint16_t(code)), decoded_by_cuda(std::uint16_t(code)))) FAIL("differs");
  }
  for (const std::uint32_t bits : patterns())
    if (!(encoded(float_of(bits)) == encoded_by_cuda(float_of(bits)))) FAIL("fp32 bits " << bits << " differ");
  SUCCEED();
}

TEST_CASE("floats: device code has the bits of CUDA's conversions and of host code", "[core]") {
  support::require_gpu();
  const support::managed<values> values_ours(all_codes), values_cudas(all_codes);
  decode_all<<<all_codes / 256, 256>>>(values_ours.data(), values_cudas.data());
  support::finish_kernels();
  for (int code = 0; code < all_codes; ++code) {
    const values ours = values_ours[std::size_t(code)];
    if (!same(ours, values_cudas[std::size_t(code)])) FAIL("code " << code << " differs from CUDA");
    if (!same(ours, decoded(std::uint16_t(code)))) FAIL("code " << code << " differs from the host");
  }

  const std::vector<std::uint32_t> bits = patterns();
  const support::managed<std::uint32_t> inputs(bits.size());
  std::memcpy(inputs.data(), bits.data(), inputs.bytes());
  const support::managed<codes> ours(bits.size()), cudas(bits.size());
  encode_all<<<unsigned((bits.size() + 255) / 256), 256>>>(inputs.data(), bits.size(), ours.data(), cudas.data());
  support::finish_kernels();
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (!(ours[i] == cudas[i])) FAIL("fp32 bits " << bits[i] << " differ from CUDA");
    if (!(ours[i] == encoded(float_of(bits[i])))) FAIL("fp32 bits " << bits[i] << " differ from the host");
  }
}
