#include "support/catch.hpp"

#include <kvilt/cache/policy.hpp>
#include <kvilt/kvilt.hpp>

#include <type_traits>

namespace {

using namespace kvilt;

template <class Policy>
constexpr int segments = view_of<memory_space::host, Policy>::segments;

using plain = policy<paged<16>, q8<64>>;
using both = policy<paged<16>, q4<64>, q8<64>, keep_all, 4, 32>;

static_assert(std::is_same_v<plain::v_format, q8<64>> && plain::sinks == 0 && plain::tail == 0);
static_assert(segments<plain> == 1 && segments<both> == 3);
static_assert(segments<policy<paged<16>, q8<64>, q8<64>, keep_all, 4>> == 2);
static_assert(segments<policy<paged<16>, q8<64>, q8<64>, keep_all, 0, 4>> == 2);
static_assert(segments<ring<q8<64>>> == 1 && segments<ring<q8<64>, q8<64>, 128, 4>> == 2);

// A ring is contiguous memory under a window.
static_assert(std::is_same_v<ring<q8<>, q4<>, 256, 4>, policy<contiguous, q8<>, q4<>, window<256, 4>>>);
static_assert(ring<q8<>, q4<>, 256, 4>::sinks == 4 && ring<q8<>, q4<>, 256, 4>::exact_sinks == 0);

// 16-bit rows keep the body's rotation and, where it is fixed, its dim.
static_assert(std::is_same_v<both::exact_k, fp16<64>>);
static_assert(std::is_same_v<policy<paged<16>, rotated<q4<64>>, q4<64>, keep_all, 4>::exact_k, rotated<fp16<64>>>);
static_assert(std::is_same_v<policy<paged<16>, rotated<q4<>>, q4<>, keep_all, 4>::exact_v, fp16<>>);
static_assert(std::is_same_v<policy<paged<16>, q4<>, q4<>, keep_all, 4, 0, bf16>::exact_k, bf16<>>);

}  // namespace

TEST_CASE("policy: a value carries what its parts leave to run time", "[cache]") {
  using kv = policy<paged<>, q8<>, q4<>, window<>, 0, 8>;
  constexpr kv p(q8<>(96), q4<>(64), window<>(100), paged<>(19));
  CHECK((p.k.dim() == 96 && p.v.dim() == 64 && p.k_exact().dim() == 96 && p.v_exact().dim() == 64));
  CHECK((p.retention.width() == 100 && p.layout.page_size() == 19));
  constexpr policy<contiguous, q8<>> same(80);
  CHECK((same.k.dim() == 80 && same.v.dim() == 80));
}

TEST_CASE("policy: what the formats and layouts cannot do is said when it is planned", "[cache]") {
  const cache_shape shape = {.layers = 1, .kv_heads = 1, .tokens = 10};
  const auto says = [&](const auto& p, const std::string& text) {
    CHECK_THROWS_AS(plan_bytes(p, shape), invalid_argument);
    CHECK_THROWS_WITH(plan_bytes(p, shape), support::containing(text));
  };
  says(policy<contiguous, q8<>>(12), "K rows have 12 numbers; a positive multiple of 8 is needed");
  says(policy<contiguous, q8<>, q8<>>(q8<>(8), q8<>(0)), "V rows have 0 numbers");
  says(policy<contiguous, q8<dynamic, 32>>(40), "K rows have 40 numbers; whole groups of 32 are needed");
  says(policy<contiguous, q8<>, q4<dynamic, 64>>(q8<>(96), q4<dynamic, 64>(96)),
       "V rows have 96 numbers; whole groups of 64");
  says(policy<paged<>, q8<>>(16, {}, paged<>(0)), "a page of 0 rows; at least 1 is needed");
  says(policy<paged<>, q8<>>(16, {}, paged<>(-3)), "a page of -3 rows");
  says(ring<q8<>>(16, window<>(0)), "a window of 0 tokens; at least 1 is needed");
}
