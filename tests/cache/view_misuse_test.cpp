#include "support/catch.hpp"
#include "support/foreign.hpp"

#include <kvilt/kvilt.hpp>

#include <limits>
#include <utility>

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
    refuses_to_write(v, before, after, text, row);
    const int count = int(after - before);
    const planned_step s(host(), {0, before, 0}, {0, count, 0}, {}, row, row);
    const tensor<float> given = random_tensor(1, count, heads, row);
    answer<> a(count, heads, row);
    const std::vector<float> unwritten = a.lse;
    CHECK_THROWS_WITH(attention{causal{}}(host(), v, s, given.rows(), a.out.rows(), a.lse_rows()), containing(text));
    CHECK(same_bits(a.lse, unwritten));
    for (float x : a.out.data) CHECK(x == 0.0f);
  }
  template <class View>
  void refuses_to_write(const View& v, idx before, idx after, const std::string& text, int row = dim) const {
    const std::vector<unsigned char> kept = bytes_;
    const int count = int(after - before);
    const planned_step s(host(), {0, before, 0}, {0, count, 0}, {}, row, row);
    const tensor<float> given = random_tensor(1, count, heads, row);
    CHECK_THROWS_AS(append(host(), v, s, given.rows(), given.rows()), invalid_argument);
    CHECK_THROWS_WITH(append(host(), v, s, given.rows(), given.rows()), containing(text));
    CHECK(bytes_ == kept);
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

TEST_CASE("view: memory that is not there is refused as soon as a token is, and not before", "[cache]") {
  const engine e;
  const std::vector<page_id> table(9, 0);
  e.refuses(e.view(paged<>(page, nullptr, 3)), 0, 1, "the page table of a view is null");
  e.refuses(e.view(paged<page>(nullptr, 3)), 0, 1, "the page table of a view is null");
  const auto of = [&](auto change, auto format) {
    geometry planes = e.planes();
    planes.k_params = planes.v_params = {const_cast<unsigned char*>(e.bytes().data()), 64, 32, 4};
    change(planes);
    using body = body_of<contiguous, decltype(format)>;
    return make_view<memory_space::host>(heads, body{{page}, {}, format, format, planes});
  };
  e.refuses(of([](geometry& g) { g.k_codes.base = nullptr; }, q8<>(dim)), 0, 1, "a view's memory of K is null");
  e.refuses(of([](geometry& g) { g.v_codes.base = nullptr; }, q8<>(dim)), 0, 1, "a view's memory of V is null");
  e.refuses(of([](geometry& g) { g.k_params.base = nullptr; }, q8<>(dim)), 0, 1, "memory of K's params is null");
  e.refuses(of([](geometry& g) { g.v_params.base = nullptr; }, q8<>(dim)), 0, 1, "memory of V's params is null");
  const auto nothing = of([](geometry& g) { g.k_codes.base = g.v_codes.base = nullptr; }, fp32<>(dim));
  const planned_step idle(host(), {0, 0}, {0, 0}, {1, 1}, dim, dim);
  const tensor<float> q = random_tensor(1, 2, heads, dim);
  answer<> a(2, heads, dim);
  CHECK_NOTHROW(append(host(), nothing, idle, q.rows(), q.rows()));
  CHECK_NOTHROW(attention{causal{}}(host(), nothing, idle, q.rows(), a.out.rows()));
}

TEST_CASE("view: strides at which records lie on each other are refused where they are written", "[cache]") {
  const engine e;
  const auto of = [&](auto change) {
    geometry planes = e.planes();
    planes.k_params = planes.v_params = {const_cast<unsigned char*>(e.bytes().data()), 64, 32, 4};
    change(planes);
    return make_view<memory_space::host>(heads, body_of<contiguous, q8<>>{{page}, {}, q8<>(dim), q8<>(dim), planes});
  };
  const std::string codes = " records of 16 bytes lie on each other", params = "' records of 2 bytes lie on each other";
  e.refuses_to_write(of([](geometry& g) { g.k_codes.record_stride = 15; }), 0, 1, "K's" + codes + " at strides of 15");
  e.refuses_to_write(of([](geometry& g) { g.v_codes.record_stride = 0; }), 0, 1, "V's" + codes + " at strides of 0");
  e.refuses_to_write(of([](geometry& g) { g.v_codes.record_stride = -64; }), 0, 1,
                     "V's" + codes + " at strides of -64");
  e.refuses_to_write(of([](geometry& g) { g.k_codes.head_stride = 0; }), 0, 1, "K's" + codes);
  e.refuses_to_write(of([](geometry& g) { g.v_codes.page_stride = 8; }), 0, 1, "V's" + codes);
  e.refuses_to_write(of([](geometry& g) { g.k_params.record_stride = 1; }), 0, 1, "K's params" + params);
  e.refuses_to_write(of([](geometry& g) { g.v_params.head_stride = 1; }), 0, 1, "V's params" + params);
}

TEST_CASE("view: keys that all heads and sequences share are read", "[cache]") {
  const engine e;
  const planned_step s(host(), {page, page}, {0, 0}, {1, 1}, dim, dim);
  const tensor<float> q = random_tensor(1, 2, heads, dim);
  const tensor<float> rows = random_tensor(2, page, heads, dim);
  append(host(), e.view(contiguous{page}), planned_step(host(), {0}, {page}, {}, dim, dim), rows.rows(), rows.rows());
  geometry shared = e.planes();
  for (plane* p : {&shared.k_codes, &shared.v_codes}) p->head_stride = p->page_stride = 0;
  const auto view = [&](int kv_heads, const geometry& planes) {
    return make_view<memory_space::host>(kv_heads, body_of<contiguous>{{page}, {}, fp32<>(dim), fp32<>(dim), planes});
  };
  answer<> got(2, heads, dim), want(2, heads, dim);
  attention{full{}}(host(), view(heads, shared), s, q.rows(), got.out.rows(), got.lse_rows());
  // One head, which every query reads.
  geometry alone = e.planes();
  for (plane* p : {&alone.k_codes, &alone.v_codes}) p->page_stride = 0;
  attention{full{}}(host(), view(1, alone), s, q.rows(), want.out.rows(), want.lse_rows());
  CHECK(same_bits(got.out.data, want.out.data));
  CHECK(same_bits(got.lse, want.lse));
  e.refuses_to_write(view(heads, shared), 0, 1, "lie on each other");
}

TEST_CASE("view: pages of one row have any stride of rows", "[cache]") {
  const engine e(1);
  const std::vector<page_id> table = {3, 1, 4, 2, 5, 0};
  geometry planes = e.planes();
  planes.k_codes.record_stride = 1, planes.v_codes.record_stride = 0;
  const auto v =
      make_view<memory_space::host>(heads, body_of<paged<1>>{{table.data(), 3}, {}, fp32<>(dim), fp32<>(dim), planes});
  const tensor<float> rows = random_tensor(1, 2, heads, dim);
  CHECK_NOTHROW(append(host(), v, planned_step(host(), {0}, {2}, {}, dim, dim), rows.rows(), rows.rows()));
}

TEST_CASE("view: a sequence beyond contiguous pages is refused", "[cache]") {
  const engine e;
  const auto of = [&](idx known) {
    geometry planes = e.planes();
    planes.pages = known;
    return make_view<memory_space::host>(heads, body_of<contiguous>{{page}, {}, fp32<>(dim), fp32<>(dim), planes});
  };
  e.refuses(of(1), 0, 2, "sequence 1 of 2 tokens is on page 1; the pool has pages 0 to 0");
  const tensor<float> rows = random_tensor(1, 2, heads, dim);
  const planned_step s(host(), {0, 0}, {0, 2}, {}, dim, dim);
  CHECK_NOTHROW(append(host(), of(2), s, rows.rows(), rows.rows()));
  CHECK_NOTHROW(append(host(), of(0), s, rows.rows(), rows.rows()));  // how many there are is not known
}

TEST_CASE("view: steps by hand that cannot be are refused by every verb", "[cache]") {
  const engine e;
  const auto v = e.view(contiguous{page});
  const planned_step good(host(), {1, 0}, {1, 2}, {}, dim, dim);
  const tensor<float> rows = random_tensor(1, 3, heads, dim);
  tensor<float> q = rows;
  answer<> a(3, heads, dim);
  const std::vector<unsigned char> kept = e.bytes();
  const auto refuses = [&](auto change, const std::string& text) {
    step s = good;
    std::vector<step_item> items(s.items, s.items + 2);
    s.items = items.data();
    change(s, items[1]);
    const rope none;
    CHECK_THROWS_WITH(append(host(), v, s, rows.rows(), rows.rows()), containing(text));
    CHECK_THROWS_WITH(attention{causal{}}(host(), v, s, rows.rows(), a.out.rows()), containing(text));
    CHECK_THROWS_WITH(rotate_queries(host(), s, q.rows(), dim, none), containing(text));
    CHECK_THROWS_WITH(largest_key_norm(v, s), containing(text));
    CHECK_THROWS_WITH(keep_path(host(), v, s, std::vector<int>{}, std::vector<int>{0, 0}), containing(text));
  };
  refuses([](step& s, step_item&) { s.items = nullptr; }, "the list of a step's 2 sequences is null");
  refuses([](step& s, step_item&) { s.size = -1; }, "a step has -1 sequences");
  refuses([](step& s, step_item&) { s.q_rows = -1; }, "-1 rows of Q");
  const idx positions[4] = {};
  refuses([&](step& s, step_item&) { s.rope_positions = positions, s.q_rows = 4; },
          "a step of 4 rows of Q and 3 of K and V has positions for RoPE");
  refuses([](step&, step_item& i) { i.sequence = -1; }, "sequence -1 is negative and has 2 tokens and 2 queries");
  refuses([](step&, step_item& i) { i = {-1, 0, 2, 1, 1, {}}; }, "sequence -1 is negative and has 0 tokens");
  refuses([](step&, step_item& i) { i.new_tokens = -2; }, "with -2 new ones");
  refuses([](step&, step_item& i) { i.queries = -2; }, "and -2 queries");
  refuses([](step&, step_item& i) { i.n.before = -1; }, "sequence 1 goes from -1 to 2 tokens");
  refuses([](step&, step_item& i) { i.n.before = 1; }, "sequence 1 goes from 1 to 2 tokens with 2 new ones");
  refuses([](step&, step_item& i) { i.n.after = std::numeric_limits<idx>::min(); }, "sequence 1 goes from 0 to -");
  refuses([](step&, step_item& i) { i.kv_row = 2; }, "has 2 rows of K and V from 2 on");
  refuses([](step&, step_item& i) { i.kv_row = -1; }, "has 2 rows of K and V from -1 on");
  refuses([](step&, step_item& i) { i.q_row = 2; }, "and 2 of Q from 2 on; the step has 3 and 3");
  refuses([](step&, step_item& i) { i.q_row = -1; }, "and 2 of Q from -1 on");
  CHECK((e.bytes() == kept && q.data == rows.data));
  step padded = good;
  std::vector<step_item> items(padded.items, padded.items + 1);
  items.push_back({-1, 0, 0, 1, 1, {}});
  padded.items = items.data();
  CHECK_NOTHROW(append(host(), v, padded, rows.rows(), rows.rows()));
  CHECK_NOTHROW(attention{causal{}}(host(), v, padded, rows.rows(), a.out.rows()));
  step lost = good;
  lost.scratch = nullptr;
  CHECK_THROWS_WITH(append(host(), v, lost, rows.rows(), rows.rows()), containing("a step's scratch of"));
  CHECK_THROWS_WITH(attention{causal{}}(host(), v, lost, rows.rows(), a.out.rows()), containing("bytes is null"));
}

TEST_CASE("view: rows that are written do not lie on each other", "[cache]") {
  const engine e;
  const auto v = e.view(contiguous{page});
  const planned_step s(host(), {0}, {3}, {}, dim, dim);
  const tensor<float> given = random_tensor(1, 3, heads, dim);
  std::vector<float> room(1000, 0.5f);
  const rope none;
  append(host(), v, s, random_tensor(2, 3, heads, dim).rows(), given.rows());
  const std::vector<unsigned char> kept = e.bytes();
  const auto written = [&](idx token, idx head) { return rows<float>{room.data() + 500, token, head, heads, dim}; };
  for (const auto& [token, head] : {std::pair<idx, idx>{0, dim},
                                    {dim, dim},
                                    {2 * dim - 1, dim},
                                    {2 * dim, dim - 1},
                                    {dim, 3 * dim - 1},
                                    {-dim, dim},
                                    {idx(1) << 62, 0},
                                    {dim, 0}}) {
    const std::string text = " of 16 numbers lie on each other: tokens are " + std::to_string(token);
    CHECK_THROWS_WITH(attention{causal{}}(host(), v, s, given.rows(), written(token, head)),
                      containing("rows of the output" + text));
    CHECK_THROWS_WITH(rotate_queries(host(), s, written(token, head), dim, none), containing("rows of Q" + text));
    CHECK_THROWS_WITH(append(host(), v, s, written(token, head), given.rows(), given.rows(), none),
                      containing("rows of Q" + text));
  }
  for (const float x : room) REQUIRE(x == 0.5f);
  CHECK(e.bytes() == kept);
  for (const auto& [token, head] : {std::pair<idx, idx>{2 * dim, dim}, {dim, 3 * dim}, {-2 * dim, dim}, {40, 20}})
    CHECK_NOTHROW(attention{causal{}}(host(), v, s, given.rows(), written(token, head)));
}
