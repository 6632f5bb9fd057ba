#include "support/attend_gpu.cuh"

// Dims, page sizes and tables that are known at run time only.

namespace {

using namespace kvilt;
using support::check_attention;

constexpr int dims[] = {40, 64, 72, 80, 96, 112, 128, 192, 256};

}  // namespace

TEST_CASE("attend: 16-bit rows of any dim on the device", "[attention][gpu]") {
  support::require_gpu();
  using kv = policy<contiguous, fp16<>>;
  for (int i = 0; i < 9; ++i) check_attention(i + 1, kv(fp16<>(dims[i]), fp16<>(dims[(i + i % 3) % 9])));
}

TEST_CASE("attend: 8-bit rows of any dim in pages of any size on the device", "[attention][gpu]") {
  support::require_gpu();
  using kv = policy<paged<>, q8<>>;
  constexpr int pages[] = {1, 3, 5, 8, 16, 19, 33, 64, 256};
  for (int i = 0; i < 9; ++i)
    check_attention<bfloat16, bfloat16>(
        i + 2, kv(q8<>(dims[i]), q8<>(dims[(i + 4 * (i % 2)) % 9]), keep_all(), paged<>(pages[i])));
}

TEST_CASE("attend: 4-bit rows of any dim on the device", "[attention][gpu]") {
  support::require_gpu();
  using kv = policy<paged<16>, q4<>, rotated<q8<>>>;
  for (int i = 0; i < 9; i += 2) check_attention(i, kv(q4<>(dims[i]), rotated<q8<>>(dims[8 - i])));
}

TEST_CASE("attend: pages in one list, in any order, on the device", "[attention][gpu]") {
  support::require_gpu();
  using pages = support::filled_pages<paged_list, bf16<80>>;
  int number = 0;
  for (const int page : {1, 3, 16, 19, 64}) {
    const support::kept_by kept = pages::kept({}, {}, page);
    for (const support::attend_shape& shape : support::shapes_for(number++, kept)) {
      const pages text({}, {}, page, shape);
      CHECK(support::wrong_attention<bfloat16, float>(text, kept, shape, support::tried<>()) == "");
    }
  }
}

TEST_CASE("attend: rows in two passes over sequences of few and of many queries on the device", "[attention][gpu]") {
  support::require_gpu();
  using pages = support::filled_pages<paged<16>, bf16<256>>;
  support::attend_shape shape{"5 to 16 queries", 1, 1, {}};
  constexpr int queries[] = {5, 16, 3, 9, 16, 12, 1};
  for (int i = 0; i < 150; ++i) shape.batch.push_back({100 + 7 * (i % 9), queries[i % 7]});
  const pages text({}, {}, 16, shape);
  CHECK(support::wrong_attention<float, float>(text, pages::kept({}, {}, 16), shape, support::tried<>()) == "");
}
