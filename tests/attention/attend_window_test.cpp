#include "support/catch.hpp"
#include "support/session.hpp"

namespace {

using namespace kvilt;
using namespace support;

constexpr int max_step = 5;
constexpr cache_shape shape = {.layers = 1, .kv_heads = 1, .tokens = 130, .max_step = max_step};

// Every answer of a text of `tokens` in steps of `chunk`, each held against the oracle.
std::vector<float> read(subject& owner, int tokens, int chunk) {
  session s(owner, 2);
  s.open(0);
  in_chunks(tokens, chunk, [&](idx, int count) { s.grow_by(host(), {{0, count}}); });
  return s.answers(0);
}

}  // namespace

TEST_CASE("attend: over a window, decode, chunks and a long prefill agree", "[attention]") {
  for (const int width : {1, 2, 3, 8, 17}) {
    const auto on_ring = [&] { return make_subject(ring<fp32<>, fp32<>>(16, window<>(width)), shape, 0xff); };
    const auto on_pages = [&] {
      return make_subject(policy<paged<3>, fp32<>, fp32<>, window<>>(16, window<>(width)), shape, 0xff);
    };
    const auto with_sinks = [&] {
      return make_subject(ring<fp32<>, fp32<>, dynamic, 2>(16, window<dynamic, 2>(width)), shape, 0xff);
    };
    for (const int tokens : {0, 1, width - 1, width, width + 1, 3 * width + 7}) {
      INFO("window " << width << ", " << tokens << " tokens");
      const std::vector<float> decoded = read(*on_ring(), tokens, 1);
      for (const int chunk : {1, max_step, 60}) {
        CHECK(difference(read(*on_ring(), tokens, chunk), decoded) == "");
        CHECK(difference(read(*on_pages(), tokens, chunk), decoded) == "");
        read(*with_sinks(), tokens, chunk);
      }
    }
  }
}

TEST_CASE("attend: a window of the cache is a window of the variant", "[attention]") {
  constexpr int width = 7, tokens = 45, dim = 16;
  using kept = policy<contiguous, fp32<>>;
  cache<kept> all({.layers = 1, .kv_heads = 1, .tokens = tokens}, host_memory(), kept(dim));
  const auto narrow = make_subject(ring<fp32<>, fp32<>>(dim, window<>(width)), shape);
  for (const bool at_once : {true, false}) {
    const sequence s = all.open(), n = narrow->open();
    all.reserve(s, tokens);
    in_chunks(tokens, at_once ? max_step : 1, [&](idx first, int count) {
      std::vector<float> rows;
      normal_numbers numbers(std::uint64_t(first) + 7);
      for (int i = 0; i < count * dim; ++i) rows.push_back(numbers.next());
      std::vector<float> from_all(rows.size()), from_narrow(rows.size());
      const kvilt::rows<const float> in = packed_rows<const float>(rows.data(), 1, dim);
      std::vector<unsigned char> workspace(all.workspace_bytes(host(), 1));
      const step wide = all.begin(host(), {&s, 1}, {&count, 1}, workspace);
      append(host(), all.view(0), wide, in, in);
      attention{causal_window{width}}(host(), all.view(0), wide, in, packed_rows(from_all.data(), 1, dim));
      all.commit(wide);
      const step slim = narrow->begin(host(), {&n, 1}, {&count, 1}, workspace);
      narrow->append(host(), 0, slim, in, in);
      narrow->attend(host(), 0, slim, in, packed_rows(from_narrow.data(), 1, dim), {});
      narrow->commit(slim, {});
      CHECK(difference(from_narrow, from_all) == "");
    });
    all.close(s), narrow->close(n);
  }
}
