#pragma once

#include <kvilt/tiers/checksum.hpp>

#include <array>
#include <cstring>

#if KVILT_X86
#include <nmmintrin.h>
#endif

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// The cyclic redundancy check of Castagnoli's polynomial, bits reflected (G. Castagnoli, S. Bräuer, M. Herrmann,
/// "Optimization of cyclic redundancy-check codes with 24 and 32 parity bits", 1993). `crc` is the register, which the
/// check's first and last step invert.
inline constexpr std::uint32_t castagnoli = 0x82f63b78u;

/// [k][b]: what byte b does to the register when k more bytes of zeros follow it. Eight bytes are taken at a time
/// (M. Kounavis, F. Berry, "Novel table lookup-based algorithms for high-performance CRC generation", 2008).
using crc_tables = std::array<std::array<std::uint32_t, 256>, 8>;
constexpr crc_tables make_crc_tables() {
  crc_tables t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? castagnoli : 0);
    t[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = t[k - 1][b] >> 8 ^ t[0][t[k - 1][b] & 0xff];
  return t;
}
inline constexpr crc_tables crc_of_byte = make_crc_tables();

inline std::uint32_t crc_portable(std::uint32_t crc, const unsigned char* p, std::size_t n) {
  const crc_tables& t = crc_of_byte;
  for (; n >= 8; n -= 8, p += 8) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = t[7][low & 0xff] ^ t[6][low >> 8 & 0xff] ^ t[5][low >> 16 & 0xff] ^ t[4][low >> 24] ^ t[3][high & 0xff] ^
          t[2][high >> 8 & 0xff] ^ t[1][high >> 16 & 0xff] ^ t[0][high >> 24];
  }
  for (; n > 0; --n, ++p) crc = crc >> 8 ^ t[0][(crc ^ *p) & 0xff];
  return crc;
}

#if KVILT_X86

/// Bytes of each of three stretches whose checks are computed side by side: the instruction takes three cycles, and one
/// may begin in each.
inline constexpr std::size_t crc_stretch = 512;

/// [k][b]: the register whose byte k is b, and the others 0, behind `crc_stretch` bytes of zeros.
using crc_shifts = std::array<std::array<std::uint32_t, 256>, 4>;
constexpr crc_shifts make_crc_shifts() {
  std::array<std::uint32_t, 32> after{};  // of each bit, at first behind one byte
  for (std::size_t bit = 0; bit < 32; ++bit) {
    const std::uint32_t crc = std::uint32_t(1) << bit;
    after[bit] = crc >> 8 ^ crc_of_byte[0][crc & 0xff];
  }
  const auto apply = [](const std::array<std::uint32_t, 32>& to, std::uint32_t crc) {
    std::uint32_t sum = 0;
    for (std::size_t bit = 0; bit < 32; ++bit) sum ^= crc >> bit & 1 ? to[bit] : 0;
    return sum;
  };
  for (std::size_t bytes = 1; bytes < crc_stretch; bytes *= 2) {
    const std::array<std::uint32_t, 32> once = after;
    for (std::size_t bit = 0; bit < 32; ++bit) after[bit] = apply(once, once[bit]);
  }
  crc_shifts s{};
  for (std::size_t k = 0; k < 4; ++k)
    for (std::uint32_t b = 0; b < 256; ++b) s[k][b] = apply(after, b << 8 * k);
  return s;
}
inline constexpr crc_shifts crc_behind_stretch = make_crc_shifts();

inline std::uint32_t crc_shifted(std::uint64_t crc) {
  const crc_shifts& s = crc_behind_stretch;
  return s[0][crc & 0xff] ^ s[1][crc >> 8 & 0xff] ^ s[2][crc >> 16 & 0xff] ^ s[3][crc >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) inline std::uint32_t crc_sse42(std::uint32_t crc, const unsigned char* p,
                                                                 std::size_t n) {
  const auto word = [](const unsigned char* at) {
    std::uint64_t w;
    std::memcpy(&w, at, 8);
    return w;
  };
  std::uint64_t a = crc;
  for (; n >= 3 * crc_stretch; n -= 3 * crc_stretch, p += 3 * crc_stretch) {
    std::uint64_t b = 0, c = 0;
    for (std::size_t i = 0; i < crc_stretch; i += 8) {
      a = _mm_crc32_u64(a, word(p + i));
      b = _mm_crc32_u64(b, word(p + i + crc_stretch));
      c = _mm_crc32_u64(c, word(p + i + 2 * crc_stretch));
    }
    a = crc_shifted(crc_shifted(a) ^ b) ^ c;
  }
  for (; n >= 8; n -= 8, p += 8) a = _mm_crc32_u64(a, word(p));
  std::uint32_t rest = std::uint32_t(a);
  for (; n > 0; --n, ++p) rest = _mm_crc32_u8(rest, *p);
  return rest;
}

#endif

}  // namespace detail

/// CRC-32C, as iSCSI, ext4 and LevelDB check with it: every burst of errors up to 32 bits long is found, of all others
/// one in 2^32 is not. The processor's own instruction where there is one, at about the speed of a cache; so a file is
/// checked at no cost beside that of reading it, without a library.
struct crc32c {
  static constexpr const char* name() { return "crc32c"; }
  static std::uint64_t of(std::uint64_t before, const unsigned char* bytes, std::size_t count) {
    const std::uint32_t crc = ~std::uint32_t(before);
#if KVILT_X86
    if (__builtin_cpu_supports("sse4.2")) return std::uint32_t(~detail::crc_sse42(crc, bytes, count));
#endif
    return std::uint32_t(~detail::crc_portable(crc, bytes, count));
  }
};
static_assert(checksum<crc32c>);

}  // namespace kvilt::inline KVILT_ABI
