#pragma once

#include "support/subject.hpp"

// One policy of each kind, small in every respect, for tests of what an owner does.
namespace support {

inline constexpr int owner_count = 10;

inline std::unique_ptr<subject> make_owner(int which, const kvilt::cache_shape& shape, unsigned char fill = 0) {
  using namespace kvilt;
  switch (which) {
    case 0:
      return make_subject(policy<contiguous, fp32<>>(fp32<>(16), fp32<>(8)), shape, fill);
    case 1:
      return make_subject(policy<paged<3>, fp16<>, q8<>>(fp16<>(8), q8<>(24)), shape, fill);
    case 2:
      return make_subject(
          policy<paged<>, rotated<q4<>>, q8<>, keep_all, 4, 16>(rotated<q4<>>(32), q8<>(16), {}, paged<>(5)), shape,
          fill);
    case 3:
      return make_subject(ring<fp16<>, q8<>, dynamic, 2>(fp16<>(16), q8<>(8), window<dynamic, 2>(7)), shape, fill);
    case 4:
      return make_subject(
          policy<paged<4>, fp32<>, q4<>, window<dynamic, 3>, 3, 6>(fp32<>(8), q4<>(16), window<dynamic, 3>(10)), shape,
          fill);
    case 5:
      return make_subject(policy<paged<2>, bf16<>, fp32<>, window<>>(bf16<>(16), fp32<>(8), window<>(5)), shape, fill);
    case 6:
      return make_subject(policy<contiguous, e4m3<>, fp32<>, window<>, 0, 5>(e4m3<>(16), fp32<>(8), window<>(9)), shape,
                          fill);
    case 7:
      return make_subject(policy<paged<1>, q8<>, fp16<>, keep_all, 2>(q8<>(16), fp16<>(8)), shape, fill);
    case 8:
      return make_subject(
          policy<paged<2>, q8<>, fp32<>, window<dynamic, 3>, 0, 6>(q8<>(16), fp32<>(8), window<dynamic, 3>(8)), shape,
          fill);
    default:
      return make_subject(ring<fp32<>, fp32<>, dynamic, 0>(fp32<>(8), fp32<>(16), window<>(1)), shape, fill);
  }
}

}  // namespace support
