#include "support/catch.hpp"
#include "support/foreign.hpp"
#include "support/memory.hpp"
#include "support/subject.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <array>
#include <map>
#include <utility>

namespace {

using namespace kvilt;
using namespace support;

constexpr int heads = 2, layers = 2, max_step = 6;

// Every number that a view says a sequence holds, by token: [heads][k_dim + v_dim], not rotated.
template <class View>
std::map<idx, std::vector<double>> held(const View& view, const lengths& n, int sequence) {
  std::map<idx, std::vector<double>> tokens;
  const auto take = [](auto rotation, std::vector<float> row, std::vector<double>& to) {
    std::vector<double> x(row.begin(), row.end());
    if constexpr (!std::is_same_v<decltype(rotation), no_rotation>) walsh(x);
    to.insert(to.end(), x.begin(), x.end());
  };
  for (int head = 0; head < view.kv_heads(); ++head)
    view.each([&](const auto& seg) {
      for (idx i = 0; i < seg.retention.count(n, sequence, head); ++i) {
        const kept_row kept = seg.retention.at(n, sequence, head, i);
        const place p = seg.layout.locate(sequence, head, kept.slot);
        std::vector<float> k(std::size_t(view.k_dim())), v(std::size_t(view.v_dim()));
        decode_row(seg.k, seg.k_row(p, head), k.data());
        decode_row(seg.v, seg.v_row(p, head), v.data());
        take(typename View::k_rotation(), k, tokens[kept.position]);
        take(typename View::v_rotation(), v, tokens[kept.position]);
      }
    });
  return tokens;
}

// Bytes of every record that holds a live row, in the order of the tokens.
template <class View>
std::vector<unsigned char> records(const View& view, const lengths& n, int sequence) {
  std::vector<unsigned char> bytes;
  const auto add = [&](const unsigned char* from, int count) { bytes.insert(bytes.end(), from, from + count); };
  for (int head = 0; head < view.kv_heads(); ++head)
    view.each([&](const auto& seg) {
      for (idx i = 0; i < seg.retention.count(n, sequence, head); ++i) {
        const place p = seg.layout.locate(sequence, head, seg.retention.at(n, sequence, head, i).slot);
        const row_ref k = seg.k_row(p, head), v = seg.v_row(p, head);
        if (k.row == 0) add(k.codes, seg.k.code_bytes()), add(k.params, seg.k.param_bytes());
        if (v.row == 0) add(v.codes, seg.v.code_bytes()), add(v.params, seg.v.param_bytes());
      }
    });
  return bytes;
}

// A cache over poisoned memory that one sequence, not its first, is appended to or copied to.
template <class Policy>
class owned {
 public:
  explicit owned(const Policy& p, idx tokens = 0)
      : policy(p),
        owner({.layers = layers,
               .kv_heads = heads,
               .sequences = 3,
               .tokens = 400,
               .max_length = 120,
               .max_step = max_step},
              memory<memory_space::host>::from(poisoned_), p) {
    const sequence other = owner.open();
    name = owner.open();
    if (owner.free_pages() > 0) owner.reserve(other, 5);
    if (tokens > 0) fill(tokens);
  }

  void fill(idx tokens, std::uint64_t seed = 1) {
    owner.reserve(name, tokens);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1), 0xff);
    in_chunks(tokens, max_step, [&](idx first, int count) {
      const step s = owner.begin(host(), {&name, 1}, {&count, 1}, workspace);
      for (int layer = 0; layer < layers; ++layer) {
        const std::uint64_t at = seed + std::uint64_t(100 * first + 10 * layer + owner.length(name));
        const tensor<float> k = random_tensor(at, count, heads, policy.k.dim());
        const tensor<float> v = random_tensor(at + 5, count, heads, policy.v.dim());
        append(host(), owner.view(layer), s, k.rows(), v.rows());
      }
      owner.commit(s);
    });
  }
  std::map<idx, std::vector<double>> rows_of(int layer) const { return held(view(layer), owner.holds(name), row()); }
  std::vector<unsigned char> bytes_of(int layer) const { return records(view(layer), owner.holds(name), row()); }
  auto view(int layer) const { return owner.view(layer); }
  int row() const { return owner.row(name); }

 private:
  test_memory poisoned_{0xff};

 public:
  Policy policy;
  cache<Policy> owner;
  sequence name;
};

// All that `from` holds beyond what `to` has goes there, to be held as `n` says.
template <class From, class To>
void copy_all(const host& exec, const owned<From>& from, owned<To>& to, const lengths& n) {
  const idx before = to.owner.length(to.name);
  to.owner.reserve(to.name, n.after - before);
  std::vector<unsigned char> workspace(workspace_bytes(exec, 0, from.policy.k.dim(), from.policy.v.dim()), 0xff);
  const row_copy copy{from.row(), from.owner.holds(from.name), to.row(), n, {before, n.after}};
  for (int layer = 0; layer < layers; ++layer) copy_rows(exec, from.view(layer), to.view(layer), {&copy, 1}, workspace);
  to.owner.adopt(to.name, n);
}
template <class From, class To>
void copy_all(const host& exec, const owned<From>& from, owned<To>& to) {
  copy_all(exec, from, to, to.owner.holds(to.name, from.owner.length(from.name) - to.owner.length(to.name)));
}

// What a format makes of a row. [dim]
template <class F>
std::vector<double> through(const F& f, const double* row) {
  std::vector<float> x(row, row + f.dim());
  rotation_of<F>::forward(x.data(), f.dim());
  support::detail::round_trip(f, x);
  std::vector<double> y(x.begin(), x.end());
  if constexpr (!std::is_same_v<rotation_of<F>, no_rotation>) walsh(y);
  return y;
}

// Every token that a policy of token formats keeps is the source's, taken once through the format it is now in.
template <class From, class To>
void converts(const From& from_policy, const To& to_policy, idx tokens) {
  const owned<From> from(from_policy, tokens);
  owned<To> to(to_policy);
  copy_all(host(), from, to);
  const lengths n = to.owner.holds(to.name);
  CHECK(n.after == tokens);
  const idx width = to_policy.retention.width();
  for (int layer = 0; layer < layers; ++layer) {
    const auto source = from.rows_of(layer), target = to.rows_of(layer);
    idx count = 0;
    for (const auto& [position, numbers] : target) {
      INFO("token " << position << " of layer " << layer);
      ++count;
      REQUIRE(source.count(position) == 1);
      const double* row = source.at(position).data();
      const bool sink = position<To::sinks, in_tail = To::tail> 0 && !sink && position >= n.body_after;
      const bool exact = sink ? To::exact_sinks > 0 : in_tail;
      std::vector<double> wanted;
      for (int head = 0; head < heads; ++head) {
        const auto k = exact ? through(to_policy.k_exact(), row) : through(to_policy.k, row);
        row += to_policy.k.dim();
        const auto v = exact ? through(to_policy.v_exact(), row) : through(to_policy.v, row);
        row += to_policy.v.dim();
        wanted.insert(wanted.end(), k.begin(), k.end());
        wanted.insert(wanted.end(), v.begin(), v.end());
      }
      const std::vector<float> got(numbers.begin(), numbers.end());
      REQUIRE(difference(got, wanted, {.absolute = 1e-6, .relative = 1e-6}) == "");
    }
    CHECK(count == (width ? std::min<idx>(tokens, std::min<idx>(tokens, To::sinks) + width - 1) : tokens));
  }
  // A fork holds what was copied.
  const auto copied = to.rows_of(layers - 1);
  const sequence parent = std::exchange(to.name, to.owner.fork(host(), to.name));
  CHECK(to.rows_of(layers - 1) == copied);
  to.owner.close(std::exchange(to.name, parent));
  // The next steps find a sequence as they left it.
  CHECK(to.owner.length(to.name) == tokens);
  to.fill(2 * max_step, 77);
  CHECK(to.owner.length(to.name) == tokens + 2 * max_step);
}

// A cache of the same policy gets the same bytes, wherever its pages lie.
template <class Policy>
void keeps_bytes(const Policy& p, idx tokens) {
  const owned<Policy> from(p, tokens);
  owned<Policy> to(p);
  const sequence hole = to.owner.open();
  if (to.owner.try_reserve(hole, 20)) to.owner.close(hole);
  copy_all(host(), from, to, from.owner.holds(from.name));
  CHECK(to.owner.holds(to.name).body_after == from.owner.holds(from.name).body_after);
  for (int layer = 0; layer < layers; ++layer) {
    CHECK(from.bytes_of(layer) == to.bytes_of(layer));
    CHECK(from.bytes_of(layer).size() > 0);
  }
}

using wide = policy<contiguous, fp32<>>;
using half = policy<paged<16>, fp16<>>;

}  // namespace

TEST_CASE("copy: a 16-bit pool goes into caches of other layouts, formats and rotations", "[cache]") {
  const half from(32);
  for (const idx tokens : {1, 5, 17, 50}) {
    INFO(tokens << " tokens");
    converts(from, policy<contiguous, q4<>, q8<>>(32), tokens);
    converts(from, policy<paged<3>, rotated<q4<>>, rotated<q8<>>>(32), tokens);
    converts(from, policy<paged<>, rotated<q4<>>, q4<>, keep_all, 4, 16>(32, {}, paged<>(5)), tokens);
    converts(from, policy<contiguous, q3<>, q2<dynamic, 32>, keep_all, 0, 7, bf16>(32), tokens);
  }
}

TEST_CASE("copy: rows leave a rotation, tails and sinks as they are", "[cache]") {
  const policy<paged<4>, rotated<q8<>>, q4<>, keep_all, 3, 9> from(24);
  converts(from, wide(24), 40);
  converts(from, policy<contiguous, rotated<fp32<>>>(24), 40);
  converts(from, policy<paged<8>, q8<>, rotated<q8<>>, keep_all, 5, 4>(24), 40);
}

TEST_CASE("copy: of a longer text a window keeps its part", "[cache]") {
  const half from(16);
  for (const idx tokens : {3, 9, 60}) {
    INFO(tokens << " tokens");
    converts(from, ring<q8<>>(16, window<>(9)), tokens);
    converts(from, ring<q8<>, q4<>, dynamic, 3>(16, window<dynamic, 3>(9)), tokens);
    converts(from, policy<paged<4>, q8<>, q8<>, window<dynamic, 2>>(16, window<dynamic, 2>(11)), tokens);
    converts(from, policy<paged<2>, q4<>, q4<>, window<>, 3, 5>(16, window<>(12)), tokens);
    converts(ring<fp16<>>(16, window<>(20)), ring<q8<>>(16, window<>(9)), tokens);
  }
}

TEST_CASE("copy: between equal formats bytes stay as they are", "[cache]") {
  keeps_bytes(policy<paged<3>, q4<>, q8<>>(40), 50);
  keeps_bytes(policy<paged<16>, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 16>(32), 70);
  keeps_bytes(policy<contiguous, e4m3<>, q2<>, window<>, 0, 5>(24, window<>(11)), 60);
  keeps_bytes(ring<q8<>, q8<>, dynamic, 2>(16, window<dynamic, 2>(9)), 60);
  keeps_bytes(policy<paged<16>, q4_channel<24, 16>, q2<32, 32>, keep_all, 3, 9>(), 70);
  keeps_bytes(policy<paged<32>, rotated<centred<q4<64>, 32>>, q4<64>, keep_all, 0, 8>(), 70);
  using parts = concat<q4<>, fp16<>>;
  keeps_bytes(policy<paged<4>, parts, q4<>>(parts(q4<>(24), fp16<>(8)), q4<>(16)), 30);
}

TEST_CASE("copy: equal formats of other shapes inside are converted", "[cache]") {
  // As long and as heavy, but the parts end elsewhere.
  using parts = concat<q8<>, q8<>>;
  const fp32<> v(8);
  converts(policy<paged<4>, parts, fp32<>>(parts(q8<>(16), q8<>(32)), v),
           policy<paged<4>, parts, fp32<>>(parts(q8<>(32), q8<>(16)), v), 20);
}

TEST_CASE("copy: tiles are made of the tokens that they would have been made of", "[cache]") {
  // From 16-bit rows, so that each is rounded once: the same bytes as by way of a tail.
  const auto like_appended = [](const auto& p, idx tokens) {
    using target = std::remove_cvref_t<decltype(p)>;
    using source = policy<contiguous, typename target::exact_k, typename target::exact_v>;
    const owned<source> from(source(p.k_exact(), p.v_exact()), tokens);
    owned<target> to(p);
    copy_all(host(), from, to);
    const owned<target> appended(p, tokens);
    for (int layer = 0; layer < layers; ++layer) {
      const auto got = to.rows_of(layer), want = appended.rows_of(layer);
      REQUIRE(got.size() == want.size());
      // The step that came last may have found more in the tail than the copy leaves there.
      const idx body = appended.owner.holds(appended.name).body_after;
      for (const auto& [position, numbers] : want)
        if (position < body || position >= to.owner.holds(to.name).body_after) REQUIRE(got.at(position) == numbers);
    }
  };
  like_appended(policy<paged<16>, q4_channel<24, 16>, q2<32, 32>, keep_all, 3, 9>(), 75);
  like_appended(policy<contiguous, q2_channel<24>, q4<16>, keep_all, 0, 4>(), 75);
  like_appended(policy<paged<64>, centred<q4<24>>, q8<16>, keep_all, 2, 1>(), 75);
}

TEST_CASE("copy: tiles that begin elsewhere in the source are made anew", "[cache]") {
  using format = q4_channel<24, 16>;
  using kv = policy<paged<16>, format, fp32<16>, keep_all, 3, 9, fp16>;
  using other = policy<paged<16>, format, fp32<16>, keep_all, 5, 9, fp16>;
  const owned<kv> from(kv(), 70);
  owned<other> to((other()));
  copy_all(host(), from, to);
  const idx body = to.owner.holds(to.name).body_after;
  REQUIRE(body == 5 + 3 * 16);
  const auto source = from.rows_of(1), target = to.rows_of(1);
  for (idx first = 5; first < body; first += 16)
    for (int head = 0; head < heads; ++head) {
      std::vector<float> tile;
      for (idx t = first; t < first + 16; ++t)
        for (int d = 0; d < 24; ++d) tile.push_back(float(source.at(t)[std::size_t(40 * head + d)]));
      std::vector<unsigned char> codes(std::size_t(format().code_bytes())), params(std::size_t(format().param_bytes()));
      format().encode(tile.data(), {codes.data(), params.data(), 0});
      for (int i = 0; i < 16; ++i) {
        float row[24];
        decode_row(format(), {codes.data(), params.data(), i}, row);
        for (int d = 0; d < 24; ++d) REQUIRE(target.at(first + i)[std::size_t(40 * head + d)] == double(row[d]));
      }
    }
}

TEST_CASE("copy: workers do not change bits", "[cache]") {
  const policy<paged<5>, rotated<q4<>>, q8<>, keep_all, 2, 6> p(32);
  const owned<half> from(half(32), 60);
  owned<decltype(policy<paged<5>, rotated<q4<>>, q8<>, keep_all, 2, 6>(32))> one(p), many(p);
  copy_all(host(), from, one);
  thread_pool pool(3);
  copy_all(host(pool), from, many);
  for (int layer = 0; layer < layers; ++layer) CHECK(one.bytes_of(layer) == many.bytes_of(layer));
}

TEST_CASE("copy: a range goes, and nothing beside it", "[cache]") {
  const owned<half> from(half(16), 30);
  owned<wide> to(wide(16));
  to.fill(30, 50);
  const auto before = to.rows_of(0);
  std::vector<unsigned char> workspace(workspace_bytes(host(), 0, 16, 16), 0xff);
  const lengths n{30, 30, 30, 30};
  const row_copy copies[] = {{from.row(), n, to.row(), n, {5, 12}},
                             {from.row(), n, to.row(), n, {20, 20}},
                             {from.row(), n, to.row(), n, {29, 30}}};
  copy_rows(host(), from.view(0), to.view(0), copies, workspace);
  const auto source = from.rows_of(0), after = to.rows_of(0);
  for (const auto& [position, numbers] : after) {
    const bool copied = (position >= 5 && position < 12) || position == 29;
    CHECK(numbers == (copied ? source : before).at(position));
  }
}

TEST_CASE("copy: a view by hand is a source and a target", "[cache]") {
  const owned<half> from(half(16), 22);
  foreign_pool<q8<>, q8<>> pool(q8<>(16), q8<>(16), heads, 4, 12, arrangement::interleaved);
  const std::vector<page_id> table = foreign_table(2, 6, {0, 6}, page_order::down);
  using body = segment<paged<4>, interval<part::body, keep_all>, q8<>>;
  const auto view =
      make_view<memory_space::host>(heads, body{{table.data(), 6}, {}, q8<>(16), q8<>(16), pool.planes(1)});
  const lengths n{22, 22, 22, 22};
  std::vector<unsigned char> workspace(workspace_bytes(host(), 0, 16, 16), 0xff);
  const row_copy there{from.row(), n, 1, n, {0, 22}};
  copy_rows(host(), from.view(0), view, {&there, 1}, workspace);
  const auto source = from.rows_of(0);
  for (const auto& [position, numbers] : held(view, n, 1)) {
    std::vector<double> wanted;
    for (int row = 0; row < 2 * heads; ++row)
      for (const double x : through(q8<>(16), source.at(position).data() + 16 * row)) wanted.push_back(x);
    REQUIRE(numbers == wanted);
  }
  owned<policy<contiguous, q8<>>> back(policy<contiguous, q8<>>(16));
  back.fill(22);
  const row_copy again{1, n, back.row(), n, {0, 22}};
  copy_rows(host(), view, back.view(0), {&again, 1}, workspace);
  CHECK(records(view, n, 1) == back.bytes_of(0));
}

TEST_CASE("copy: a sequence is copied from and to where a reorder has put it", "[cache]") {
  owned<half> from(half(16), 30);
  owned<wide> to(wide(16));
  const auto before = from.rows_of(0);
  const sequence all[] = {from.name, from.owner.open()};
  from.owner.reorder(host(), all, std::array{1, 0});
  from.name = all[1];
  REQUIRE(from.row() != from.name.slot);
  REQUIRE(from.rows_of(0) == before);
  const sequence none[] = {to.name, to.owner.open()};
  to.owner.reorder(host(), none, std::array{1, 0});
  REQUIRE(to.row() != to.name.slot);
  copy_all(host(), from, to);
  CHECK(to.rows_of(0) == before);
}

TEST_CASE("copy: static scales that differ are converted, equal ones are not", "[cache]") {
  using kv = policy<paged<4>, q8_static<>>;
  const float coarse = 0.05f, fine = 0.03f, same = 0.05f;
  owned<kv> from(kv(16)), other(kv(16)), alike(kv(16));
  for (int layer = 0; layer < layers; ++layer) {
    from.owner.set_scales(layer, {&coarse, 1}, {&coarse, 1});
    other.owner.set_scales(layer, {&fine, 1}, {&fine, 1});
    alike.owner.set_scales(layer, {&same, 1}, {&same, 1});
  }
  from.fill(20);
  copy_all(host(), from, other);
  copy_all(host(), from, alike);
  CHECK(alike.bytes_of(1) == from.bytes_of(1));
  const auto source = from.rows_of(1), target = other.rows_of(1);
  for (const auto& [position, numbers] : target)
    for (std::size_t i = 0; i < numbers.size(); ++i)
      REQUIRE(std::abs(numbers[i] - std::clamp(source.at(position)[i], -127.0 * fine, 127.0 * fine)) <= 0.0151);
}

TEST_CASE("copy: V in K's records goes with them, or gets rows of its own", "[cache]") {
  using latent = policy<paged<4>, fp16<48>, prefix<fp16<48>, 32>>;
  using small = policy<contiguous, q8<48>, prefix<q8<48>, 32>, keep_all, 0, 5>;
  using apart = policy<contiguous, fp32<48>, fp32<32>>;
  const owned<latent> from(latent(), 20);
  owned<small> to((small()));
  owned<apart> split((apart()));
  copy_all(host(), from, to);
  copy_all(host(), from, split);
  const auto source = from.rows_of(0);
  CHECK(split.rows_of(0) == source);
  for (const auto& [position, numbers] : to.rows_of(0))
    for (int head = 0; head < heads; ++head) {
      const double* row = source.at(position).data();
      const bool in_body = position < to.owner.holds(to.name).body_after;
      const std::vector<double> given(row + 80 * head, row + 80 * head + 48);
      const std::vector<double> wanted = in_body ? through(q8<48>(), given.data()) : given;
      for (std::size_t i = 0; i < 80; ++i) REQUIRE(numbers[std::size_t(80 * head) + i] == wanted[i < 48 ? i : i - 48]);
    }
}

TEST_CASE("copy: what cannot be is refused by name, and nothing is written", "[cache]") {
  owned<half> from(half(16), 30);
  owned<wide> to(wide(16));
  to.fill(30, 50);
  std::vector<unsigned char> workspace(workspace_bytes(host(), 0, 16, 16), 0xff);
  const lengths n{30, 30, 30, 30};
  const auto refuses = [&](const auto& source, const auto& target, const row_copy& copy, const std::string& text) {
    const auto before = to.bytes_of(0);
    CHECK_THROWS_AS(copy_rows(host(), source, target, {&copy, 1}, workspace), invalid_argument);
    CHECK_THROWS_WITH(copy_rows(host(), source, target, {&copy, 1}, workspace), containing(text));
    CHECK(to.bytes_of(0) == before);
  };
  const row_copy good{from.row(), n, to.row(), n, {0, 30}};
  const auto with = [&](auto change) {
    row_copy c = good;
    change(c);
    return c;
  };
  const auto source = from.view(0);
  const auto target = to.view(0);
  refuses(source, target, with([](row_copy& c) { c.tokens.last = 31; }),
          "tokens 0 to 31 are copied to sequence 1, which is to hold 30");
  refuses(source, target, with([](row_copy& c) { c.tokens = {7, 5}; }), "tokens 7 to 5");
  refuses(source, target, with([](row_copy& c) { c.tokens.first = -1; }), "tokens -1 to 30");
  refuses(source, target, with([](row_copy& c) { c.from = -1; }), "source sequence -1 is negative");
  refuses(source, target, with([](row_copy& c) { c.to = -2; }), "target sequence -2 is negative");
  refuses(source, target, with([](row_copy& c) { c.from_holds.before = 31; }), "source sequence 1 goes from 31 to 30");
  refuses(source, target, with([](row_copy& c) {
            c.from_holds = {29, 29, 29, 29};
          }),
          "sequence 1 keeps token 29, which sequence 1 of the source does not hold");
  refuses(source, target, with([](row_copy& c) { c.to_holds = {131, 131, 131, 131}; }), "needs slots 0 to 130");
  refuses(source, target, with([](row_copy& c) { c.from_holds = {500, 500, 500, 500}; }), "needs slots 0 to 499");
  const owned<half> wider(half(24));
  refuses(wider.view(0), target, good, "rows of 2 KV heads of 24 and 24 numbers are copied to 2 of 16 and 16");
  const owned<ring<fp16<>>> windowed(ring<fp16<>>(16, window<>(9)), 30);
  refuses(windowed.view(0), target, good, "sequence 1 keeps token 0, which sequence 1 of the source does not hold");
  using tiled = policy<contiguous, q4_channel<16, 8>, q4<16>, keep_all, 2, 3>;
  const owned<tiled> tiles((tiled()));
  const lengths held{30, 30, 26, 26};
  refuses(source, tiles.view(0), {from.row(), n, 0, held, {0, 25}},
          "sequence 0 gets tokens up to 25, inside a tile of 8");
  refuses(source, tiles.view(0), {from.row(), n, 0, held, {4, 30}},
          "sequence 0 gets token 4 without the others of its tile of 8");
  std::vector<unsigned char> little(100);
  CHECK_THROWS_WITH(copy_rows(host(), source, target, {&good, 1}, little), containing("workspace"));
}

TEST_CASE("copy: an owner takes copies where it has room, and behind a tail into an empty sequence", "[cache]") {
  using tailed = policy<paged<4>, q8<>, q8<>, keep_all, 0, 4>;
  owned<tailed> to(tailed(16));
  const auto refuses = [&](const lengths& n, const std::string& text) {
    const lengths before = to.owner.holds(to.name);
    CHECK_THROWS_AS(to.owner.adopt(to.name, n), invalid_argument);
    CHECK_THROWS_WITH(to.owner.adopt(to.name, n), containing(text));
    CHECK(to.owner.length(to.name) == before.after);
    CHECK(to.owner.holds(to.name).body_after == before.body_after);
  };
  refuses(to.owner.holds(to.name, 19), "sequence 1 has 0 tokens and appends 19; that many are not reserved");
  to.owner.reserve(to.name, 19);
  CHECK(to.owner.holds(to.name, 19).body_after == 15);
  refuses({19, 19, 19, 19}, "that many are not reserved");  // 19 in the body, where there is room for 16
  refuses({19, 20, 16, 16}, "a step's lengths");
  refuses({20, 20, 12, 16}, "a step's lengths");
  refuses({20, 20, 10, 10}, "sequence 1 is to hold 20 tokens and the body those below 10");
  refuses({20, 20, 21, 21}, "the body those below 21");
  refuses({20, 20, -1, -1}, "the body those below -1");
  to.fill(3);
  refuses(to.owner.holds(to.name, 10), "sequence 1 of 3 tokens is to hold 13 by copy; behind a tail it must be empty");
  owned<half> whole(half(16));
  whole.fill(3);
  const owned<half> from(half(16), 30);
  copy_all(host(), from, whole);
  CHECK(whole.owner.length(whole.name) == 30);
  const auto rows = whole.rows_of(0), source = from.rows_of(0);
  for (idx t = 3; t < 30; ++t) CHECK(rows.at(t) == source.at(t));
  std::vector<unsigned char> workspace(whole.owner.workspace_bytes(host(), 1), 0xff);
  const int none = 0;
  const step s = whole.owner.begin(host(), {&whole.name, 1}, {&none, 1}, workspace);
  CHECK_THROWS_WITH(whole.owner.adopt(whole.name, {30, 30, 30, 30}), containing("adopt: step"));
  whole.owner.commit(s);
  CHECK_THROWS_WITH(whole.owner.adopt(whole.name, {29, 29, 29, 29}), containing("is to hold 29 by copy; no fewer"));
  CHECK_THROWS_WITH(whole.owner.adopt(whole.name, {30, 30, 29, 29}), containing("a step's lengths"));
}

TEST_CASE("copy: a window that was copied is not cut to what it never had", "[cache]") {
  using slid = ring<q8<>>;
  const owned<half> from(half(16), 60);
  owned<slid> to(slid(16, window<>(9)));
  copy_all(host(), from, to);
  CHECK_THROWS_WITH(to.owner.truncate(to.name, 59), containing("its window would show token 51, and those before 52"));
  CHECK(to.owner.length(to.name) == 60);
}
