#include "support/catch.hpp"

#include <kvilt/kvilt.hpp>

#include <limits>
#include <new>
#include <type_traits>
#include <vector>

namespace {

using namespace kvilt;

/// Counts what a cache asks for.
struct counting_resource {
  idx live = 0, most = 0;

  void* allocate(std::size_t bytes, std::size_t align) {
    live += idx(bytes);
    most = larger(most, live);
    return ::operator new(bytes, std::align_val_t(align));
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept {
    live -= idx(bytes);
    ::operator delete(p, std::align_val_t(align));
  }
};

const cache_shape shapes[] = {
    {.layers = 1, .kv_heads = 1, .sequences = 1, .tokens = 1},
    {.layers = 2, .kv_heads = 3, .sequences = 3, .tokens = 100, .max_step = 7},
    {.layers = 3, .kv_heads = 8, .sequences = 2, .tokens = 333, .max_length = 250, .max_step = 32},
    {.layers = 2, .kv_heads = 5, .sequences = 4, .tokens = 0},
    {.layers = 1, .kv_heads = 2, .sequences = 5, .tokens = 64, .max_length = 1},
};

/// Bytes of regions that end on a 256-byte line: seven of them at most in a layer.
idx rounding(const cache_shape& s) {
  return idx(s.layers) * 7 * 255;
}

template <class Policy>
void check(const Policy& p) {
  for (const cache_shape& shape : shapes) {
    INFO("layers " << shape.layers << ", heads " << shape.kv_heads << ", sequences " << shape.sequences << ", tokens "
                   << shape.tokens << ", dims " << p.k.dim() << " and " << p.v.dim());
    const budget planned = plan_bytes(p, shape);
    counting_resource resource;
    {
      cache<Policy> owner(shape, memory<memory_space::host>::from(resource), p);
      CHECK(resource.live == planned.bytes());
      CHECK(owner.bytes().bytes() == planned.bytes());
      if (shape.tokens > 0) {
        const sequence s = owner.open();
        if (owner.try_reserve(s, smaller(owner.max_length(), shape.max_step))) owner.close(s);
      }
      for (int layer = 0; layer < shape.layers; ++layer) owner.view(layer);
    }
    CHECK(resource.most == planned.bytes());
    CHECK(resource.live == 0);
    // The parts that are named make up the whole.
    constexpr bool by_head = tabled_by_head<typename Policy::layout_type>;  // a page is in one layer, for one head
    const idx tables = by_head ? shape.layers * shape.kv_heads : 1;
    const idx named = (by_head ? 1 : shape.layers) * planned.body_pages * planned.body_page_bytes +
                      shape.sequences * planned.exact_sequence_bytes;
    CHECK(planned.kv_bytes >= named);
    CHECK(planned.kv_bytes <= named + rounding(shape));
    CHECK(planned.table_bytes == idx(sizeof(page_id)) * shape.sequences * tables * planned.table_width);
    CHECK(planned.list_bytes == (evicts_tokens<typename Policy::retention_type> ? 8 * shape.sequences * tables : 0));
    if (by_head) CHECK(planned.body_pages == ceil_div(shape.tokens, p.layout.page_rows({})) * tables);
    if (by_head)
      CHECK(planned.body_page_bytes == plan_bytes(p, {.layers = 1, .kv_heads = 1, .tokens = 1}).body_page_bytes);
  }
}

constexpr idx mib = 1 << 20;

/// Marks bytes that nobody else has marked.
class land_register {
 public:
  explicit land_register(idx bytes) : base_(std::size_t(bytes)), taken_(std::size_t(bytes)) {}

  unsigned char* base() { return base_.data(); }
  bool take(const unsigned char* from, idx bytes) {
    const idx first = from - base_.data();
    if (first < 0 || first + bytes > idx(taken_.size())) return false;
    for (idx i = first; i < first + bytes; ++i) {
      if (taken_[std::size_t(i)]) return false;
      taken_[std::size_t(i)] = true;
    }
    return true;
  }

 private:
  std::vector<unsigned char> base_;
  std::vector<bool> taken_;
};

/// Every row's codes and params of K and V have bytes of their own, inside the layer; codes begin on 16-byte lines, and
/// on 128-byte lines where a head's rows follow each other.
template <class K, class V>
void check_storage(const K& k, const V& v, int heads, idx pages, int rows) {
  INFO("dims " << k.dim() << " and " << v.dim() << ", heads " << heads << ", pages " << pages << " of " << rows);
  const detail::storage s = detail::make_storage(k, v, heads, pages, rows);
  land_register land(s.layer_bytes());
  const geometry g = s.at(land.base());
  bool apart = true, aligned = true;
  for (idx page = 0; page < pages; ++page)
    for (int head = 0; head < heads; ++head)
      for (int row = 0; row < rows; ++row) {
        const place p{page, row, 1};
        apart = apart && land.take(g.k_codes.at(p, head, row), k.code_bytes());
        apart = apart && land.take(g.v_codes.at(p, head, row), v.code_bytes());
        apart = apart && land.take(g.k_params.at(p, head, row), k.param_bytes());
        apart = apart && land.take(g.v_params.at(p, head, row), v.param_bytes());
        const idx line = rows >= 8 && row == 0 ? 128 : 16;
        for (const plane& codes : {g.k_codes, g.v_codes})
          aligned = aligned && (codes.at(p, head, row) - land.base()) % line == 0;
        for (const plane& params : {g.k_params, g.v_params})
          aligned = aligned && (params.at(p, head, row) - land.base()) % 2 == 0;
      }
  CHECK(apart);
  CHECK(aligned);
}

}  // namespace

TEST_CASE("budget: what is planned is what is allocated, to the byte", "[cache]") {
  for (const int dim : {40, 64, 128, 256}) {
    check(policy<contiguous, fp32<>>(dim));
    check(policy<paged<16>, fp16<>>(dim));
    check(policy<contiguous, q8<>, q4<>>(dim));
    check(policy<paged<>, rotated<q8<>>>(dim, {}, paged<>(19)));
    check(policy<paged<16>, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 64>(dim));
    check(policy<paged_by_head<16>, q8<>, q4<>, listed>(dim));
    check(policy<paged_by_head<>, fp16<>, rotated<q8<>>, listed, 3, 9>(dim, {}, paged_by_head<>(5)));
    check(policy<paged_by_head<8>, q8<>>(dim));
  }
  check(policy<paged<1>, e4m3<>>(72));
  check(policy<paged<2>, bf16<>>(80));
  check(policy<paged<3>, q4<>, q8<>, keep_all, 1, 0>(112));
  check(policy<paged<64>, q8<>, q4<>, keep_all, 0, 16>(192));
  check(policy<paged<256>, q8<dynamic, 32>>(96));
  check(policy<contiguous, q8<>, q8<>, keep_all, 4, 1>(128));
  check(ring<fp16<>, fp16<>, 256, 4>(64));
  check(ring<q8<>>(64, window<>(1)));
  check(policy<contiguous, q8<>, q8<>, window<32>, 4, 16>(64));
  check(policy<paged<16>, q8<>, q8<>, window<20, 4>>(64));
  check(policy<paged<>, q4<>, q4<>, window<>, 2, 8>(64, window<>(33), paged<>(3)));
  check(policy<paged<16>, fp16<>, q8<>>(fp16<>(192), q8<>(128)));
  check(policy<contiguous, fp16<>, fp16<>, listed>(64));
  check(policy<paged<16>, rotated<q4<>>, rotated<q4<>>, listed, 4, 64>(128));
  check(policy<paged<3>, q8<>, q4<>, listed, 0, 5>(72));
}

TEST_CASE("budget: every row has bytes of its own", "[cache]") {
  for (const int rows : {1, 2, 3, 7, 8, 16, 19})
    for (const int heads : {1, 3, 8})
      for (const idx pages : {1, 4}) {
        check_storage(fp32<>(40), fp32<>(40), heads, pages, rows);
        check_storage(q8<>(72), q4<>(40), heads, pages, rows);
        check_storage(fp16<>(192), q8<>(128), heads, pages, rows);
        check_storage(q8<dynamic, 32>(96), e4m3<>(80), heads, pages, rows);
      }
}

TEST_CASE("budget: textbook sizes of Llama-2-7B and Llama-3-8B", "[cache]") {
  const policy<contiguous, fp16<128>> kv;
  const budget llama_2 = plan_bytes(kv, {.layers = 32, .kv_heads = 32, .tokens = 1024});
  CHECK(llama_2.bytes_per_sequence == 512 * mib);
  CHECK(llama_2.bytes() == 512 * mib);
  CHECK(llama_2.bytes_per_token == 2 * 32 * 32 * 128 * 2);
  const budget llama_3 = plan_bytes(kv, {.layers = 32, .kv_heads = 8, .tokens = 4096});
  CHECK(llama_3.bytes_per_sequence == 512 * mib);
  const budget in_pages = plan_bytes(policy<paged<16>, fp16<128>>(), {.layers = 32, .kv_heads = 8, .tokens = 4096});
  CHECK(in_pages.bytes_per_sequence == 512 * mib);
  CHECK(in_pages.body_pages == 256);
  CHECK(in_pages.table_width == 256);
}

TEST_CASE("budget: bytes of a token", "[cache]") {
  const cache_shape shape{.layers = 32, .kv_heads = 8, .tokens = 4096};
  CHECK(plan_bytes(policy<contiguous, q8<128>>(), shape).bytes_per_token == 32 * 8 * 2 * 130);
  CHECK(plan_bytes(policy<contiguous, q8<128>, q4<128>>(), shape).bytes_per_token == 32 * 8 * (130 + 68));
  CHECK(plan_bytes(policy<contiguous, q4<128, 32>>(), shape).bytes_per_token == 32 * 8 * 2 * (64 + 16));
  // Codes of 40 and 20 bytes lie 48 and 32 bytes apart.
  CHECK(plan_bytes(policy<contiguous, q8<40>, q4<40>>(), shape).bytes_per_token == 32 * 8 * (48 + 2 + 32 + 4));
}

TEST_CASE("budget: where tokens are evicted a row has 4 bytes more, for its position", "[cache]") {
  const cache_shape shape{.layers = 3, .kv_heads = 8, .sequences = 2, .tokens = 160};
  const budget all = plan_bytes(policy<paged<16>, q4<128>>(), shape);
  const budget some = plan_bytes(policy<paged<16>, q4<128>, q4<128>, listed>(), shape);
  CHECK(some.bytes_per_token == all.bytes_per_token + 3 * 8 * 4);
  CHECK(some.body_page_bytes == all.body_page_bytes + 16 * 8 * 4);
  CHECK(some.bytes() == all.bytes() + 3 * 160 * 8 * 4 + 2 * 8);
}

TEST_CASE("budget: pages are whole, a sequence's and the pool's", "[cache]") {
  const policy<paged<16>, fp16<64>> kv;
  for (const idx tokens : {1, 15, 16, 17, 160, 161}) {
    const budget b = plan_bytes(kv, {.layers = 2, .kv_heads = 3, .sequences = 4, .tokens = tokens});
    const idx pages = (tokens + 15) / 16;
    CHECK(b.body_pages == pages);
    CHECK(b.table_width == pages);
    CHECK(b.body_page_bytes == 16 * 3 * 2 * 128);
    CHECK(b.bytes_per_sequence == 2 * pages * b.body_page_bytes);
    CHECK(b.tokens_per_sequence == pages * 16);
  }
}

TEST_CASE("budget: a ring holds its window, a step and the sinks, whatever the length", "[cache]") {
  const ring<fp16<64>, fp16<64>, 256, 4> kv;
  for (const idx tokens : {1, 300, 100'000}) {
    const budget b = plan_bytes(kv, {.layers = 1, .kv_heads = 1, .tokens = tokens, .max_step = 32});
    CHECK(b.bytes_per_sequence == (4 + 256 - 1 + 32) * 256);
  }
}

TEST_CASE("budget: sinks and tail in 16 bit are counted beside the body", "[cache]") {
  const policy<paged<16>, q4<128>, q4<128>, keep_all, 4, 64> kv;
  const budget b = plan_bytes(kv, {.layers = 2, .kv_heads = 8, .sequences = 1, .tokens = 1024, .max_step = 16});
  CHECK(b.exact_sequence_bytes == 2 * 8 * (4 + 64 - 1 + 16 + 16) * 2 * 256);
  CHECK(b.table_width == (1024 - 4 - 63 + 15) / 16);
  CHECK(b.bytes_per_sequence == 2 * b.table_width * b.body_page_bytes + b.exact_sequence_bytes);
}

TEST_CASE("budget: a paged window's sequence has no more pages than its window touches", "[cache]") {
  const policy<paged<16>, fp16<64>, fp16<64>, window<100, 4>> kv;
  const budget long_one = plan_bytes(kv, {.layers = 1, .kv_heads = 1, .tokens = 10'000});
  CHECK(long_one.bytes_per_sequence == ((100 + 15) / 16 + 1 + 1) * long_one.body_page_bytes);
  const budget short_one = plan_bytes(kv, {.layers = 1, .kv_heads = 1, .tokens = 20});
  CHECK(short_one.bytes_per_sequence == 2 * short_one.body_page_bytes);
  CHECK(long_one.tokens_per_sequence == (7 + 1 + 1) * 16);
  CHECK(short_one.tokens_per_sequence == 2 * 16);
}

TEST_CASE("budget: a pool of the tokens that a sequence takes holds it", "[cache]") {
  const auto check = [](const auto& policy) {
    const cache_shape shape{.layers = 3, .kv_heads = 2, .tokens = 300, .max_length = 300, .max_step = 7};
    const budget one = plan_bytes(policy, shape);
    cache_shape pool = shape;
    pool.tokens = one.tokens_per_sequence;
    cache kv(pool, host_memory(), policy);
    const sequence s = kv.open();
    std::vector<unsigned char> workspace(kv.workspace_bytes(host(), 1));
    in_chunks(300, shape.max_step, [&](idx, int count) {
      kv.reserve(s, count);
      kv.commit(kv.begin(host(), {&s, 1}, {&count, 1}, workspace));
    });
    CHECK(kv.length(s) == 300);
    // And takes no more.
    CHECK(kv.bytes().kv_bytes + kv.bytes().table_bytes <= one.bytes_per_sequence + one.table_bytes + rounding(shape));
  };
  check(policy<paged<16>, fp16<64>>());
  check(policy<paged<8>, q8<64>, q4<64>, window<100, 4>>());
  check(policy<paged_by_head<16>, fp16<64>>());
  check(policy<paged_by_head<4>, fp16<64>, q8<64>, window<50>>());
}

TEST_CASE("budget: shapes that cannot be are refused by name", "[cache]") {
  const policy<contiguous, fp16<>> kv(64);
  const cache_shape good{.layers = 1, .kv_heads = 1, .tokens = 16};
  const auto refuses = [&](auto change, const char* what) {
    cache_shape s = good;
    change(s);
    CHECK_THROWS_AS(plan_bytes(kv, s), invalid_argument);
    CHECK_THROWS_WITH(plan_bytes(kv, s), support::containing(what));
    CHECK_THROWS_WITH((cache<policy<contiguous, fp16<>>>(s, host_memory(), kv)), support::containing(what));
  };
  refuses([](cache_shape& s) { s.layers = 0; }, "layers is 0");
  refuses([](cache_shape& s) { s.kv_heads = -1; }, "kv_heads is -1");
  refuses([](cache_shape& s) { s.sequences = 0; }, "sequences is 0");
  refuses([](cache_shape& s) { s.tokens = -5; }, "tokens is -5");
  refuses([](cache_shape& s) { s.max_length = -7; }, "max_length -7");
  refuses([](cache_shape& s) { s.tokens = idx(1) << 31; }, "2147483648");
  refuses([](cache_shape& s) { s.max_step = 0; }, "max_step is 0");
  const std::string absurd = "is beyond 2^56 bytes";
  refuses(
      [](cache_shape& s) {
        s.layers = s.kv_heads = std::numeric_limits<int>::max(), s.tokens = std::numeric_limits<int>::max();
      },
      absurd.c_str());
  refuses([](cache_shape& s) { s.layers = 1 << 20, s.kv_heads = 1 << 20, s.sequences = 1 << 20; }, absurd.c_str());
}

TEST_CASE("budget: what no memory holds is refused by name, whichever number makes it so", "[cache]") {
  constexpr int most = std::numeric_limits<int>::max();
  // Each policy as every shape makes it: a size is what the numbers say, or it is refused.
  const auto check = [](const auto& p, const cache_shape& s) {
    INFO(name_of(p) << ": " << s.layers << " layers, " << s.kv_heads << " heads, " << s.sequences << " sequences, "
                    << s.tokens << " tokens, longest " << s.max_length << ", steps of " << s.max_step);
    const double row_bytes = double(p.k.dim() + p.v.dim()) / 4;  // no format has fewer
    try {
      const budget b = plan_bytes(p, s);
      CHECK(double(b.body_page_bytes) >= row_bytes * s.kv_heads);
      CHECK(double(b.kv_bytes) * 1.001 >= double(b.body_pages) * double(b.body_page_bytes) * s.layers);
      CHECK(double(b.table_bytes) == 4.0 * s.sequences * double(b.table_width));
      CHECK((b.exact_sequence_bytes >= 0 && b.bytes_per_sequence >= b.body_page_bytes));
      CHECK(larger(b.bytes(), b.bytes_per_sequence) < idx(1) << 56);
    } catch (const invalid_argument& e) {
      const std::string what = e.what();
      CHECK((what.find("is beyond 2^56 bytes") != what.npos || what.find("fewer than 2^31") != what.npos ||
             what.find("must be below 2^31") != what.npos));
    }
  };
  for (const int layers : {1, 80, most})
    for (const int heads : {1, 128, most})
      for (const int sequences : {1, 1 << 20, most})
        for (const idx tokens : {idx(0), idx(1), idx(most), idx(1) << 62, std::numeric_limits<idx>::max()})
          for (const idx longest : {idx(0), idx(1), idx(most), std::numeric_limits<idx>::max()})
            for (const int step : {1, 1 << 16, most}) {
              const cache_shape s{layers, heads, sequences, tokens, longest, step};
              check(policy<contiguous, fp32<>>(128), s);
              check(policy<paged<>, q4<>>(128, {}, paged<>(most)), s);
              check(policy<paged<1>, fp16<>>(1 << 16), s);
              check(policy<paged<16>, q8<>, q4<>, keep_all, 4, 64>(128), s);
              check(policy<contiguous, q4_channel<>, q2<>, keep_all, 0, 64>(128), s);
              check(ring<q8<>>(64, window<>(4096)), s);
              check(policy<paged<16>, fp16<>, fp16<>, window<>>(64, window<>(most)), s);
            }
}

TEST_CASE("budget: what makes a shape too large is named", "[cache]") {
  constexpr int most = std::numeric_limits<int>::max();
  const auto refuses = [](const auto& p, const cache_shape& s, const std::string& text) {
    CHECK_THROWS_WITH(plan_bytes(p, s), support::containing(text));
  };
  const policy<paged<>, fp16<>> wide(64, {}, paged<>(most));
  const cache_shape one{.layers = 1, .kv_heads = 1 << 20, .sequences = 1 << 10, .tokens = 1};
  refuses(wide, one, "1048576 KV heads, 1024 sequences and 1 tokens, the longest of 1, is beyond 2^56 bytes");
  refuses(policy<contiguous, fp16<>>(64),
          {.layers = 1, .kv_heads = 1, .sequences = most, .tokens = 1, .max_length = most},
          "2147483647 sequences and 1 tokens, the longest of 2147483647, is beyond 2^56 bytes");
  refuses(policy<paged<1>, fp16<>>(64),
          {.layers = 1, .kv_heads = 1, .sequences = most, .tokens = 1, .max_length = most},
          "is beyond 2^56 bytes");  // its tables alone
  refuses(policy<paged<16>, q8<>, q8<>, keep_all, 0, 64>(64),
          {.layers = 1, .kv_heads = 1, .tokens = 1, .max_step = most},
          "a tail that takes steps of 2147483647 tokens has 4294967357 slots; fewer than 2^31 are supported");
  refuses(ring<q8<>>(64, window<>(2)), {.layers = 1, .kv_heads = 1, .tokens = 1, .max_step = most},
          "a sequence needs 2147483648 slots");
  const cache_shape small{.layers = 1, .kv_heads = 1, .tokens = 16};
  for (const int dim : {(1 << 16) + 8, 1 << 30, most - 7}) {
    const std::string rows = "rows have " + std::to_string(dim) + " numbers; up to 65536 are supported";
    refuses(policy<contiguous, fp32<>>(dim), small, "K " + rows);
    refuses(policy<contiguous, fp16<>, q4<>>(fp16<>(64), q4<>(dim)), small, "V " + rows);
  }
  using joined = concat<fp16<>, fp16<>>;
  const policy<contiguous, joined, fp16<>> parts(joined(fp16<>(1 << 30), fp16<>(1 << 30)), fp16<>(64));
  refuses(parts, small, "K rows have 1073741824 numbers");
}

TEST_CASE("budget: policies that cannot be are refused by name", "[cache]") {
  const cache_shape shape{.layers = 1, .kv_heads = 1, .tokens = 16};
  CHECK_THROWS_WITH(plan_bytes(policy<contiguous, fp16<>>(12), shape), support::containing("K rows have 12 numbers"));
  CHECK_THROWS_WITH(plan_bytes(policy<contiguous, fp16<>>(0), shape), support::containing("K rows have 0 numbers"));
  CHECK_THROWS_WITH(plan_bytes(policy<contiguous, fp16<>, q8<>>(fp16<>(64), q8<>(60)), shape),
                    support::containing("V rows have 60 numbers"));
  CHECK_THROWS_WITH(plan_bytes(policy<contiguous, q8<dynamic, 32>>(40), shape),
                    support::containing("K rows have 40 numbers; whole groups of 32"));
  CHECK_THROWS_WITH((policy<contiguous, q8<64>>(128)),
                    support::containing("rows have 64 and 64 numbers is made for rows of 128"));
  CHECK_THROWS_WITH((policy<contiguous, q8<>, q4<64>>(128)),
                    support::containing("rows have 128 and 64 numbers is made for rows of 128"));
  CHECK_NOTHROW(policy<contiguous, q8<64>>(64));
  CHECK_THROWS_WITH(plan_bytes(policy<paged<>, fp16<>>(64), shape), support::containing("page of 0"));
  CHECK_THROWS_WITH(plan_bytes(policy<paged<>, fp16<>>(64, {}, paged<>(0)), shape), support::containing("page of 0"));
  CHECK_THROWS_WITH(plan_bytes(policy<paged<>, fp16<>>(64, {}, paged<>(-3)), shape), support::containing("page of -3"));
  CHECK_THROWS_WITH(plan_bytes(ring<fp16<>>(64, window<>(0)), shape), support::containing("window of 0"));
  CHECK_THROWS_WITH(plan_bytes(ring<fp16<>>(64, window_from_left(-1)), shape), support::containing("window of 0"));
}
