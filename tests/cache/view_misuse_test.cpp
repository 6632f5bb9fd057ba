#include "support/catch.hpp"
#include "support/foreign.hpp"

#include <kvilt/kvilt.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr int heads = 2, page = 4, pages = 12, dim = 16;

template <class Layout, class Format = fp32<>, class Retention = interval<part::body, keep_all>>
using body_of = segment<Layout, Retention, Format>;

// Memory of an engine's own for 3 sequences, of which the middle one is used.
class engine {
 public:
  explicit engine(int page_rows = page, int row = dim)
      : bytes_(std::size_t(pages * page_rows * heads * row * 8), 0x7f) {
    const idx record = row * 4, head = page_rows * record, whole = heads * head;
    planes_.k_codes = {bytes_.data(), whole, head, record};
    planes_.v_codes = {bytes_.data() + pages * whole, whole, head, record};
    planes_.pages = pages;
  }

  const geometry& planes() const { return planes_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

  template <class Layout>
  auto view(const Layout& layout, int rows = dim) const {
    return make_view<memory_space::host>(heads, body_of<Layout>{layout, {}, fp32<>(rows), fp32<>(rows), planes_});
  }

  // Both verbs refuse a step of sequence 1 from `before` to `after` tokens, and nothing is written.
  template <class View>
  void refuses(const View& v, idx before, idx after, const std::string& text, int row = dim) const {
    const std::vector<unsigned char> kept = bytes_;
    const int count = int(after - before);
    const planned_step s(host(), {0, before, 0}, {0, count, 0}, {}, row, row);
    const tensor<float> given = random_tensor(1, count, heads, row);
    answer<> a(count, heads, row);
    const std::vector<float> unwritten = a.lse;
    CHECK_THROWS_AS(append(host(), v, s, given.rows(), given.rows()), invalid_argument);
    CHECK_THROWS_WITH(append(host(), v, s, given.rows(), given.rows()), containing(text));
    CHECK_THROWS_WITH(attention{causal{}}(host(), v, s, given.rows(), a.out.rows(), a.lse_rows()), containing(text));
    CHECK(bytes_ == kept);
    CHECK(same_bits(a.lse, unwritten));
    for (float x : a.out.data) CHECK(x == 0.0f);
  }

 private:
  std::vector<unsigned char> bytes_;
  geometry planes_;
};

}  // namespace

TEST_CASE("view: a length beyond the table's width is refused", "[cache]") {
  const engine e;
  const std::vector<page_id> table = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const paged<> layout(page, table.data(), 3);
  e.refuses(e.view(layout), 10, 13, "sequence 1 of 13 tokens needs slots 0 to 12; its layout has 12");
  e.refuses(e.view(layout), 1000, 1001, "sequence 1 of 1001 tokens needs slots 0 to 1000; its layout has 12");
  e.refuses(e.view(paged<page>(table.data(), 3)), 0, 13, "needs slots 0 to 12; its layout has 12");
  e.refuses(e.view(paged<>(page, table.data(), 0)), 0, 1, "needs slots 0 to 0; its layout has 0");
  const tensor<float> rows = random_tensor(1, 2, heads, dim);
  CHECK_NOTHROW(
      append(host(), e.view(layout), planned_step(host(), {0, 10}, {0, 2}, {}, dim, dim), rows.rows(), rows.rows()));
}

TEST_CASE("view: a length beyond contiguous capacity is refused", "[cache]") {
  const engine e;
  e.refuses(e.view(contiguous{page}), 2, 5, "sequence 1 of 5 tokens needs slots 0 to 4; its layout has 4");
  e.refuses(e.view(contiguous{}), 0, 1, "needs slots 0 to 0; its layout has 0");
}

TEST_CASE("view: slots that are reused in turn lie within the layout, at whatever turn", "[cache]") {
  const engine e;
  using ring_part = interval<part::body, window<>>;
  using kept = body_of<contiguous, fp32<>, ring_part>;
  const auto of = [&](idx reused) {
    return make_view<memory_space::host>(
        heads, kept{{page}, ring_part(window<>(reused), 0, {0, reused}), fp32<>(dim), fp32<>(dim), e.planes()});
  };
  // 6 slots where there are 4: tokens 3 to 8 lie in slots 3, 4, 5, 0, 1, 2.
  e.refuses(of(6), 8, 9, "sequence 1 of 9 tokens needs slots 3 to 5; its layout has 4");
  const tensor<float> rows = random_tensor(1, 1, heads, dim);
  CHECK_NOTHROW(append(host(), of(4), planned_step(host(), {0, 8}, {0, 1}, {}, dim, dim), rows.rows(), rows.rows()));
}

TEST_CASE("view: a page size that was never given is refused", "[cache]") {
  const engine e;
  const std::vector<page_id> table = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  e.refuses(e.view(paged<>(0, table.data(), 3)), 0, 1, "needs slots 0 to 0; its layout has 0");
  e.refuses(e.view(paged<>()), 0, 1, "needs slots 0 to 0; its layout has 0");
}

TEST_CASE("view: rows that no kernel takes are refused", "[cache]") {
  for (const int row : {20, 4, 0, -8}) {
    const engine e(page, 20);
    const std::string text = "K rows have " + std::to_string(row) + " numbers; a positive multiple of 8 is needed";
    const auto v = e.view(contiguous{page}, row);
    const planned_step s(host(), {0}, {1}, {}, 24, 24);
    rows<float> x = {nullptr, 24, 24, heads, row};
    float numbers[48] = {};
    x.data = numbers;
    const std::vector<unsigned char> kept = e.bytes();
    CHECK_THROWS_WITH(append(host(), v, s, x, x), containing(text));
    CHECK_THROWS_WITH(attention{causal{}}(host(), v, s, x, x), containing(text));
    CHECK(e.bytes() == kept);
  }
  const engine e;
  using grouped = body_of<contiguous, q8<dynamic, 32>>;
  const auto v =
      make_view<memory_space::host>(heads, grouped{{page}, {}, q8<dynamic, 32>(40), q8<dynamic, 32>(40), e.planes()});
  e.refuses(v, 0, 1, "K rows have 40 numbers; whole groups of 32 are needed", 40);
}

TEST_CASE("view: segments of other dims than the first's are refused", "[cache]") {
  const engine first, second;
  using body = body_of<contiguous, fp32<>>;
  using tail = body_of<contiguous, fp32<>, interval<part::tail, keep_all>>;
  const auto of = [&](int k, int v) {
    return make_view<memory_space::host>(heads, body{{page}, {}, fp32<>(dim), fp32<>(dim), first.planes()},
                                         tail{{page}, {}, fp32<>(k), fp32<>(v), second.planes()});
  };
  first.refuses(of(dim, 8), 0, 1, "segments of one view have rows of 16 and 16, and of 16 and 8 numbers");
  first.refuses(of(8, dim), 0, 1, "segments of one view have rows of 16 and 16, and of 8 and 16 numbers");
  CHECK(second.bytes() == engine().bytes());
}

TEST_CASE("view: a view of no heads is refused", "[cache]") {
  const engine e;
  const auto none =
      make_view<memory_space::host>(0, body_of<contiguous>{{page}, {}, fp32<>(dim), fp32<>(dim), e.planes()});
  const planned_step s(host(), {0}, {0}, {}, dim, dim);
  const rows<float> nothing = {nullptr, 0, 0, 0, dim};
  CHECK_THROWS_WITH(append(host(), none, s, nothing, nothing), containing("a view of 0 KV heads"));
  CHECK_THROWS_WITH(attention{causal{}}(host(), none, s, nothing, nothing), containing("a view of 0 KV heads"));
}

TEST_CASE("view: a live slot on page -1 is neither written nor read", "[cache]") {
  const engine e;
  const std::vector<page_id> table = {7, 8, 9, 3, -1, 5};
  const auto v = e.view(paged<>(page, table.data(), 3));
  const tensor<float> k = random_tensor(1, 11, heads, dim), values = random_tensor(2, 11, heads, dim),
                      q = random_tensor(3, 11, heads, dim);
  const planned_step s(host(), {0, 0}, {0, 11}, {}, dim, dim);
  if (KVILT_IS_CHECKED) {
    CHECK_THROWS_WITH(append(host(), v, s, k.rows(), values.rows()), containing("token 4 (slot 4) is on page -1"));
    return;
  }
  const std::vector<unsigned char> before = e.bytes();
  append(host(), v, s, k.rows(), values.rows());
  // Tokens 0 to 3 on page 3 and 8 to 10 on page 5, all other bytes as they were.
  const std::size_t plane = before.size() / 2, whole = plane / pages, record = dim * 4;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::size_t on = i % plane / whole, row = i % (whole / heads) / record;
    if (!(on == 3 || (on == 5 && row < 3)) && e.bytes()[i] != before[i]) FAIL("byte " << i << " on page " << on);
  }
  struct not_on_page : band {
    using band::band;
    bool keep(const oracle_key& key) const { return band::keep(key) && (key.position < 4 || key.position >= 8); }
  };
  answer<> a(11, heads, dim);
  attention{causal{}}(host(), v, s, q.rows(), a.out.rows(), a.lse_rows());
  for (int head = 0; head < heads; ++head) {
    std::vector<std::vector<double>> rows;
    for (int t = 0; t < 11; ++t) rows.push_back(widened(k.row(t, head))), rows.push_back(widened(values.row(t, head)));
    std::vector<oracle_key> keys;
    for (std::size_t t = 0; t < 11; ++t) keys.push_back({rows[2 * t], rows[2 * t + 1], idx(t)});
    for (int i = 0; i < 11; ++i) {
      const oracle_state want = oracle(widened(q.row(i, head)), keys, 0.25, dim, not_on_page(i, 1000));
      const float lse = a.lse_of(i, head);
      INFO("query " << i << ", head " << head);
      CHECK(difference(a.out.row(i, head), want.out) == "");
      CHECK(difference(std::span(&lse, 1), std::vector<double>{want.lse}) == "");
    }
  }
}
