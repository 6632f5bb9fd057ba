#include "support/catch.hpp"
#include "support/session.hpp"
#include "support/tensors.hpp"

#include <kvilt/core/thread_pool.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr cache_shape shape = {
    .layers = 1, .kv_heads = 2, .sequences = 4, .tokens = 1100, .max_length = 270, .max_step = 20};

// A batch of decode, chunks, prefill and nothing at all; returns every answer's bits.
std::vector<float> talk(subject& owner, const host& exec = host()) {
  session s(owner, 3, 1, 2);
  for (int tag = 0; tag < 4; ++tag) s.open(tag);
  s.grow_by(exec, {{0, 65}, {1, 0}, {2, 130}, {3, 19}});
  s.grow_by(exec, {{2, 1}, {0, 0}, {1, 7}});
  s.grow_by(exec, {{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  s.grow_by(exec, {{3, 20}, {1, 1}});
  std::vector<float> all;
  for (int tag = 0; tag < 4; ++tag) all.insert(all.end(), s.answers(tag).begin(), s.answers(tag).end());
  return all;
}

template <class Paged, class Contiguous>
void pages_do_not_show(Paged paged_of, const Contiguous& reference) {
  const auto contiguous_owner = make_subject(reference, shape);
  const std::vector<float> want = talk(*contiguous_owner);
  for (const int page : {1, 2, 3, 16, 19, 64, 256}) {
    const auto owner = make_subject(
        paged_of(page),
        {.layers = 1, .kv_heads = 2, .sequences = 4, .tokens = 4 * 512, .max_length = 270, .max_step = 20}, 0xff);
    INFO(owner->name);
    CHECK(same_bits(talk(*owner), want));
  }
}

// Every answer to one text in steps of `chunk` tokens.
template <class Policy, class Variant>
std::vector<float> decoded(const Policy& kv, const Variant& variant, int chunk) {
  constexpr int tokens = 201, heads = 2, group = 3;
  const int dim = kv.k.dim();
  // NOTE: the longest step decides how many slots a ring has: rows lie elsewhere for each chunk.
  cache<Policy> owner({.layers = 1, .kv_heads = heads, .tokens = tokens, .max_step = chunk}, host_memory(), kv);
  const sequence name = owner.open();
  const tensor<float> k = random_tensor(1, tokens, heads, dim), v = random_tensor(2, tokens, heads, dim),
                      q = random_tensor(3, tokens, heads * group, dim);
  const auto from = [&](const tensor<float>& t, idx token) {
    return rows<const float>{t.rows().at(token, 0), idx(t.heads) * dim, dim, t.heads, dim};
  };
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  std::vector<float> all, lse;
  in_chunks(tokens, chunk, [&](idx first, int count) {
    owner.reserve(name, count);
    const step s = owner.begin(host(), {&name, 1}, {&count, 1}, workspace);
    answer<> a(count, heads * group, dim);
    append(host(), owner.view(0), s, from(k, first), from(v, first));
    attention{variant}(host(), owner.view(0), s, from(q, first), a.out.rows(), a.lse_rows());
    owner.commit(s);
    all.insert(all.end(), a.out.data.begin(), a.out.data.end());
    lse.insert(lse.end(), a.lse.begin(), a.lse.end());
  });
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

template <class Policy>
void chunks_do_not_show(const Policy& kv) {
  const auto same = [&](const auto& variant) {
    const std::vector<float> one_by_one = decoded(kv, variant, 1);
    for (const int chunk : {7, 64, 201}) {
      INFO(kv.layout.name() << ", window " << kv.retention.width() << ", steps of " << chunk);
      CHECK(same_bits(decoded(kv, variant, chunk), one_by_one));
    }
  };
  same(causal{});
  same(causal_window{9});
  same(causal_window{70});
}

}  // namespace

TEST_CASE("attend: pages of any size give the bits of contiguous memory", "[attention]") {
  pages_do_not_show([](int page) { return policy<paged<>, fp32<>>(40, {}, paged<>(page)); },
                    policy<contiguous, fp32<>>(40));
  pages_do_not_show([](int page) { return policy<paged<>, q8<>, q4<>>(q8<>(72), q4<>(40), {}, paged<>(page)); },
                    policy<contiguous, q8<>, q4<>>(q8<>(72), q4<>(40)));
  pages_do_not_show(
      [](int page) { return policy<paged<>, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 16>(64, {}, paged<>(page)); },
      policy<contiguous, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 16>(64));
  // Every page size in the type gives what the same size at run time gives.
  const auto want = talk(*make_subject(policy<contiguous, q8<>, q4<>>(q8<>(72), q4<>(40)), shape));
  CHECK(same_bits(talk(*make_subject(policy<paged<1>, q8<>, q4<>>(q8<>(72), q4<>(40)), shape)), want));
  CHECK(same_bits(talk(*make_subject(policy<paged<19>, q8<>, q4<>>(q8<>(72), q4<>(40)), shape)), want));
}

TEST_CASE("attend: a dim in the type gives the bits of one at run time", "[attention]") {
  const auto want = talk(*make_subject(policy<contiguous, q8<>, q4<>>(q8<>(72), q4<>(40)), shape));
  CHECK(same_bits(talk(*make_subject(policy<contiguous, q8<72>, q4<40>>(), shape)), want));
}

TEST_CASE("attend: a ring before it wraps gives the bits of contiguous memory", "[attention]") {
  const auto want = talk(*make_subject(policy<contiguous, q8<>, fp16<>>(q8<>(64), fp16<>(24)), shape));
  CHECK(same_bits(talk(*make_subject(ring<q8<>, fp16<>>(q8<>(64), fp16<>(24), window<>(152)), shape, 0xff)), want));
  CHECK(same_bits(
      talk(*make_subject(ring<q8<>, fp16<>, dynamic, 4>(q8<>(64), fp16<>(24), window<dynamic, 4>(152)), shape, 0xff)),
      want));
}

TEST_CASE("attend: bits do not depend on threads, nor on the run", "[attention][threads]") {
  const policy<paged<16>, q8<>, q4<>, keep_all, 4, 16> kv(q8<>(64), q4<>(40));
  const auto want = talk(*make_subject(kv, shape));
  CHECK(same_bits(talk(*make_subject(kv, shape)), want));
  for (const int threads : {1, 2, 3}) {
    thread_pool pool(threads);
    CHECK(same_bits(talk(*make_subject(kv, shape, 0xff), host(pool)), want));
  }
}

TEST_CASE("attend: neighbours and the place in the batch do not show", "[attention]") {
  const auto alone_owner = make_subject(policy<paged<3>, q8<>, q4<>>(q8<>(64), q4<>(40)), shape);
  session alone(*alone_owner, 3, 1, 2);
  alone.open(1);
  alone.grow_by(host(), {{1, 70}}), alone.grow_by(host(), {{1, 5}});
  for (const idx nan : {-1, 3}) {
    // The neighbours' tokens are NaN from there on.
    const auto owner = make_subject(policy<paged<3>, q8<>, q4<>>(q8<>(64), q4<>(40)), shape, 0xff);
    session crowd(*owner, 3, 1, 2);
    crowd.poison(2, nan);
    crowd.open(2), crowd.open(0), crowd.open(1);
    crowd.grow_by(host(), {{2, 33}, {1, 70}, {0, 130}}), crowd.grow_by(host(), {{0, 9}, {2, 0}, {1, 5}});
    CHECK(same_bits(crowd.answers(1), alone.answers(1)));
  }
}

TEST_CASE("attend: a query's bits do not depend on how its text is cut into steps", "[attention]") {
  chunks_do_not_show(policy<contiguous, fp32<>>(40));
  chunks_do_not_show(policy<paged<3>, q8<>, q4<>>(40));
  chunks_do_not_show(ring<fp32<>, fp32<>>(40, window<>(11)));
  chunks_do_not_show(ring<fp16<>, fp16<>, dynamic, 2>(40, window<dynamic, 2>(90)));
  chunks_do_not_show(policy<paged<3>, q8<>, q8<>, window<>>(40, window<>(70)));
  chunks_do_not_show(policy<paged<16>, fp32<>, fp32<>, window<dynamic, 3>>(40, window<dynamic, 3>(9)));
}
