// What unchecked mode does with what checked mode refuses: this file is a program by itself.
#undef KVILT_CHECKED
#undef KVILT_KERNELS_ELSEWHERE  // those compiled for the other tests are of their mode
#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <algorithm>

namespace {

using namespace kvilt;
using namespace support;

constexpr int dim = 64, heads = 2, page_rows = 3, tokens = 9;
constexpr idx row = dim * 4, token = heads * row, page = page_rows * token;  // bytes

// Remembers the keys that it was asked about.
struct recorder {
  std::vector<idx>* asked;
  bool keep(where w) const {
    asked->push_back(w.k_position);
    return true;
  }
};

}  // namespace

TEST_CASE("absent pages: a token on page -1 is not there", "[unchecked]") {
  const std::vector<page_id> table = {1, -1, 0};
  std::vector<unsigned char> memory(std::size_t(6 * page), 0xff);
  // K and V have a page each before the pool's first, which nobody may touch.
  unsigned char *k_pool = memory.data() + page, *v_pool = k_pool + 3 * page;
  using body = segment<paged<page_rows>, interval<part::body, keep_all>, fp32<>>;
  const auto view =
      make_view<memory_space::host>(heads, body{paged<page_rows>(table.data(), 3),
                                                {},
                                                fp32<>(dim),
                                                fp32<>(dim),
                                                {{k_pool, page, row, token}, {}, {v_pool, page, row, token}, {}, 2}});
  const tensor<float> k = random_tensor(1, tokens, heads, dim), v = random_tensor(2, tokens, heads, dim),
                      q = random_tensor(3, tokens, heads, dim);
  const planned_step s(host(), {0}, {tokens}, {}, dim, dim);
  append(host(), view, s, k.rows(), v.rows());
  for (unsigned char* before : {k_pool - page, v_pool - page})
    CHECK(std::all_of(before, before + page, [](unsigned char b) { return b == 0xff; }));

  answer<> got(tokens, heads, dim);
  attention{causal{}}(host(), view, s, q.rows(), got.out.rows(), got.lse_rows());
  for (int t = 0; t < tokens; ++t)
    for (int head = 0; head < heads; ++head) {
      std::vector<std::vector<double>> kept;
      for (int i = 0; i < tokens; ++i) kept.push_back(widened(k.row(i, head))), kept.push_back(widened(v.row(i, head)));
      std::vector<oracle_key> keys;
      for (std::size_t i = 0; i < tokens; ++i)
        if (i / page_rows != 1) keys.push_back({kept[2 * i], kept[2 * i + 1], idx(i)});
      const oracle_state want = oracle(widened(q.row(t, head)), keys, 0.125, dim, band(t, 100));
      INFO("query " << t);
      CHECK(difference(got.out.row(t, head), want.out) == "");
    }

  // Nor does a variant hear of it.
  std::vector<idx> asked;
  const planned_step one(host(), {tokens}, {0}, {1}, dim, dim);
  attention{recorder{&asked}}(host(), view, one, q.rows(), got.out.rows());
  CHECK(asked == std::vector<idx>{0, 1, 2, 6, 7, 8, 0, 1, 2, 6, 7, 8});
}
