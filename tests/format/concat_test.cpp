#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/concat.hpp>
#include <kvilt/format/floating.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/rotate.hpp>

#include <vector>

namespace {

using namespace kvilt;
using formats::record;

template <class A, class B>
void parts_stand_alone(const A& a, const B& b) {
  const concat<A, B> f(a, b);
  REQUIRE(f.dim() == a.dim() + b.dim());
  const auto split = std::ptrdiff_t(a.dim());
  for (const awkward::row& x : awkward::all_rows(f.dim())) {
    INFO(x.name << ", dims " << a.dim() << " and " << b.dim());
    record<concat<A, B>> whole(f, x.x);
    REQUIRE(whole.guards_hold());
    record<A> first(a, {x.x.begin(), x.x.begin() + split});
    record<B> second(b, {x.x.begin() + split, x.x.end()});
    const std::vector<unsigned char> codes = whole.codes(), params = whole.params();
    const std::vector<unsigned char> a_codes = first.codes(), a_params = first.params();
    REQUIRE(std::equal(a_codes.begin(), a_codes.end(), codes.begin()));
    REQUIRE(std::equal(a_params.begin(), a_params.end(), params.begin()));
    const std::vector<unsigned char> b_codes = second.codes(), b_params = second.params();
    REQUIRE(std::equal(b_codes.rbegin(), b_codes.rend(), codes.rbegin()));
    REQUIRE((codes.size() - b_codes.size()) % 16 == 0);
    REQUIRE(std::equal(b_params.rbegin(), b_params.rend(), params.rbegin()));
    std::vector<float> wanted = first.template decoded<8>();
    for (const float number : second.template decoded<8>()) wanted.push_back(number);
    const auto same = [&](const std::vector<float>& y) {
      return y.size() == wanted.size() && std::memcmp(y.data(), wanted.data(), y.size() * sizeof(float)) == 0;
    };
    REQUIRE(same(whole.template decoded<8>()));
    REQUIRE(same(whole.template decoded<16>()));
    REQUIRE(same(whole.template decoded<32>()));
    std::vector<float> row(wanted.size());
    decode_row(f, whole.ref(), row.data());
    REQUIRE(same(row));
  }
}

}  // namespace

TEST_CASE("concat: each part is what its format makes of it, wherever a part ends", "[format]") {
  parts_stand_alone(e4m3<512, 128>(), bf16<64>());
  parts_stand_alone(q8<>(40), q4<>(24));
  parts_stand_alone(q4<>(8), fp32<>(64));
  parts_stand_alone(fp16<>(72), e4m3<dynamic, 32>(96));
  parts_stand_alone(q4<64, 32>(), q8<>(8));
}

TEST_CASE("concat: the latent of multi-head latent attention", "[format]") {
  using latent = concat<e4m3<512, 128>, bf16<64>>;
  STATIC_REQUIRE(kv_format<latent> && kv_format<prefix<latent, 512>>);
  STATIC_REQUIRE(latent::get() == 576);
  CHECK(latent().code_bytes() == 512 + 128);
  CHECK(latent().param_bytes() == 8);
  CHECK(concat<q8<>, bf16<>>(q8<>(40), bf16<>(8)).code_bytes() == 48 + 16);
  CHECK(concat<q8<>, q8<>>(q8<>(40), q8<>(8)).param_bytes() == 4 + 2);
}

TEST_CASE("concat: a prefix reads K's record and has none", "[format]") {
  using latent = concat<e4m3<>, bf16<>>;
  const latent k(e4m3<>(40), bf16<>(24));
  const prefix<latent, 48> v(k);
  STATIC_REQUIRE(shares_keys<prefix<latent, 48>>);
  STATIC_REQUIRE(!shares_keys<latent>);
  CHECK(v.dim() == 48);
  CHECK(v.code_bytes() == 0);
  CHECK(v.param_bytes() == 0);
  for (const awkward::row& x : awkward::finite_rows(64)) {
    record<latent> r(k, x.x);
    const std::vector<float> whole = r.decoded<8>();
    std::vector<float> row(48);
    decode_row(v, r.ref(), row.data());
    REQUIRE(std::memcmp(row.data(), whole.data(), 48 * sizeof(float)) == 0);
    v.encode(x.x.data() + 1, r.ref());
    REQUIRE(std::memcmp(r.decoded<8>().data(), whole.data(), 64 * sizeof(float)) == 0);
  }
  CHECK(std::string(name_of(k)) == "e4m3_bf16");
  CHECK(std::string(name_of(v)) == "prefix48");
}
