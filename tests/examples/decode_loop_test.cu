#include "activations.hpp"
#include "cuda_decoder.cuh"
#include "cuda_kernels.cuh"
#include "cuda_policy_of.cuh"
#include "examples/tiny_model.hpp"
#include "host_reader.hpp"
#include "support/catch.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

// A model and its caches on a GPU, against the same on the host.
namespace {

using namespace example;
using support::mixed_layers, support::named, support::tiny_model;

std::vector<float> random_numbers(std::size_t count, std::uint64_t seed) {
  support::dice dice(seed);
  std::vector<float> x(count);
  for (float& number : x) number = float(dice.below(2001) - 1000) / 250;
  return x;
}

template <class T>
std::vector<T> copied(const cuda_array<T>& there) {
  std::vector<T> x(there.size());
  check(cudaDeviceSynchronize(), "what came before");
  check(cudaMemcpy(x.data(), there.data(), x.size() * sizeof(T), cudaMemcpyDeviceToHost), "a copy");
  return x;
}

cuda_array<float> on_device(const std::vector<float>& x) {
  return cuda_array<float>(std::span(x));
}

// But for sums in another order.
void check_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance = 1e-5f) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= tolerance * (1 + std::abs(want[i]))))
      FAIL("number " << i << " is " << got[i] << ", not " << want[i]);
}

// A few policies of the list, each with another part of a session: plain rows; scales that are handed in; pages, a
// rotation, sinks and a tail.
std::vector<cuda_policy> some_policies() {
  using namespace kvilt;
  using example::named;  // not the one of the tests' support
  using int4_rot = rotated<q4<>>;
  return {cuda_policy_of(named<policy<contiguous, fp16<>>>("fp16")),
          cuda_policy_of(named_calibrated<policy<contiguous, q8_static<>>>("int8_head", scale_of::head)),
          cuda_policy_of(named<policy<paged<16>, int4_rot, int4_rot, keep_all, 4, 64>>("paged16_int4_rot_s4_t64"))};
}

// The root of the mean of squared differences.
class distance {
 public:
  void add(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) squares_ += std::pow(double(a[i]) - double(b[i]), 2);
    count_ += double(a.size());
  }
  double value() const { return std::sqrt(squares_ / count_); }

 private:
  double squares_ = 0, count_ = 0;
};

}  // namespace

TEST_CASE("decode_loop: what a model computes beside products and attention is the host's on a GPU",
          "[examples][gpu]") {
  support::require_gpu();
  const stream on;
  constexpr int tokens = 3, ffn = 300;
  for (const int hidden : {8, 256, 576, 1032}) {
    INFO("rows of " << hidden);
    const auto size = std::size_t(tokens * hidden);
    const std::vector<float> residual = random_numbers(size, 1), more = random_numbers(size, 2),
                             norm = random_numbers(std::size_t(hidden), 3),
                             post = random_numbers(std::size_t(hidden), 4);
    const auto there_more = on_device(more), there_norm = on_device(norm), there_post = on_device(post);
    for (const bool adds : {false, true})
      for (const bool norms : {false, true}) {
        std::vector<float> sum = residual, delta = more, out(size);
        for (std::size_t at = 0; at < size; at += std::size_t(hidden)) {
          if (norms) rms_norm(&delta[at], post, 1e-5f, &delta[at]);
          for (std::size_t i = at; adds && i < at + std::size_t(hidden); ++i) sum[i] += delta[i];
          rms_norm(&sum[at], norm, 1e-5f, &out[at]);
        }
        const auto there = on_device(residual), there_out = cuda_array<float>(size);
        cuda::add_and_norm(on, there.data(), {adds ? there_more.data() : nullptr, norms ? there_post.data() : nullptr},
                           there_norm.data(), 1e-5f, tokens, hidden, there_out.data());
        check_near(copied(there), sum);
        check_near(copied(there_out), out);
      }
  }
  for (const gate_activation kind : {gate_activation::silu, gate_activation::gelu_tanh}) {
    const std::vector<float> both = random_numbers(std::size_t(tokens * 2 * ffn), 5);
    std::vector<float> want;
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> gate(both.begin() + t * 2 * ffn, both.begin() + (t * 2 + 1) * ffn);
      apply_gate(kind, gate.data(), &both[std::size_t((t * 2 + 1) * ffn)], ffn);
      want.insert(want.end(), gate.begin(), gate.end());
    }
    const auto there = on_device(both), there_out = cuda_array<float>(want.size());
    cuda::apply_gate(on, kind, there.data(), tokens, ffn, there_out.data());
    check_near(copied(there_out), want);
  }
}

TEST_CASE("decode_loop: heads of Q and K are normalised where they lie on a GPU", "[examples][gpu]") {
  support::require_gpu();
  const stream on;
  constexpr int tokens = 2, q_heads = 3, kv_heads = 2, dim = 40, stride = (q_heads + 2 * kv_heads) * dim;
  const std::vector<float> rows = random_numbers(std::size_t(tokens * stride), 6), q_norm = random_numbers(dim, 7),
                           k_norm = random_numbers(dim, 8);
  std::vector<float> want = rows;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < q_heads + kv_heads; ++h) {
      float* const head = &want[std::size_t(t * stride + h * dim)];
      rms_norm(head, h < q_heads ? q_norm : k_norm, 1e-6f, head);
    }
  const auto there = on_device(rows), there_q = on_device(q_norm), there_k = on_device(k_norm);
  cuda::norm_heads(on, there.data(), tokens, stride, q_heads, there_q.data(), kv_heads, there_k.data(), dim, 1e-6f);
  check_near(copied(there), want);
}

TEST_CASE("decode_loop: the first of the largest numbers is found on a GPU", "[examples][gpu]") {
  support::require_gpu();
  const stream on;
  const cuda_array<int> at(1);
  for (const int count : {1, 31, 1024, 5000})
    for (const int first : {0, count / 3, count - 1}) {
      INFO(first << " of " << count);
      std::vector<float> x = random_numbers(std::size_t(count), 9);
      for (const int i : {first, (first + count - 1) / 2, count - 1})
        if (i >= first) x[std::size_t(i)] = 7;
      const auto there = on_device(x);
      cuda::find_largest(on, there.data(), count, at.data());
      CHECK(copied(at)[0] == first);
    }
}

TEST_CASE("decode_loop: decoding on a GPU is the host's, policy by policy", "[examples][gpu]") {
  support::require_gpu();
  for (const auto& options : {support::tiny_gguf_options(), mixed_layers()}) {
    tiny_model tiny(options);
    cuda_transformer model(tiny.model(), 32);
    const std::vector<int> tokens = tiny.some_tokens(180);
    for (const cuda_policy& policy : some_policies()) {
      INFO(policy.name << " in a model of " << tiny.model().config().layers.size() << " layers");
      const session_shape shape = tiny.shape(180, 16);
      host_decoder host(tiny.model(), named(policy.name).open(shape), kvilt::host());
      host_decoder exact(tiny.model(), named("fp32").open(shape), kvilt::host());
      cuda_decoder there(model, policy.open(shape, kvilt::gpu(model.on())));
      CHECK(there.cache_bytes() == named(policy.name).plan(shape).kv_bytes);
      distance between, cost;
      std::size_t at = 0;
      for (const std::size_t step : {std::size_t(39), std::size_t(1), std::size_t(5)}) {  // 16 + 16 + 7, and so on
        const auto some = std::span(tokens).subspan(at, step);
        for (decoder* d : {static_cast<decoder*>(&host), static_cast<decoder*>(&exact), static_cast<decoder*>(&there)})
          d->feed(some);
        at += step;
        between.add(there.logits(), host.logits());
        cost.add(host.logits(), exact.logits());
      }
      for (; at < tokens.size(); ++at) {
        host.feed(std::array{tokens[at]});
        exact.feed(std::array{tokens[at]});
        const int next = there.feed(std::array{tokens[at]});
        CHECK(there.logits()[std::size_t(next)] == *std::max_element(there.logits().begin(), there.logits().end()));
        between.add(there.logits(), host.logits());
        cost.add(host.logits(), exact.logits());
      }
      CHECK(there.length() == 180);
      // Sums in another order, queries in 16 bit and, now and then, a code that falls to the other side: less than half of
      // what the format costs. Of 16-bit rows it may be all of it, since softmax weights are rounded likewise.
      CHECK(between.value() < (policy.name == "fp16" ? 1.0 : 0.5) * cost.value());
    }
  }
}

TEST_CASE("decode_loop: a token that is only looked at on a GPU leaves no trace, and a restart none of the text",
          "[examples][gpu]") {
  support::require_gpu();
  tiny_model tiny;
  cuda_transformer model(tiny.model(), 16);
  const std::vector<int> tokens = tiny.some_tokens(100);
  const session_shape shape = tiny.shape(100);
  for (const cuda_policy& policy : some_policies()) {
    INFO(policy.name);
    cuda_decoder looking(model, policy.open(shape, kvilt::gpu(model.on())));
    cuda_decoder plain(model, policy.open(shape, kvilt::gpu(model.on())));
    for (const int t : tokens) plain.feed(std::array{t});
    const std::vector<float> first = plain.logits();
    plain.restart();
    for (const int t : tokens) {
      looking.peek(7);
      looking.feed(std::array{t});
      plain.feed(std::array{t});
    }
    CHECK(looking.length() == 100);
    CHECK(looking.logits() == plain.logits());
    CHECK(plain.logits() == first);
  }
}

TEST_CASE("decode_loop: reading side by side on a GPU is decoding token by token", "[examples][gpu]") {
  support::require_gpu();
  tiny_model tiny(mixed_layers());
  cuda_transformer model(tiny.model(), 1);
  const std::vector<int> tokens = tiny.some_tokens(2 * reader::block);
  const session_shape shape = tiny.shape(2 * reader::block);
  const std::vector<cuda_policy> policies = some_policies();
  const auto vocab = std::size_t(model.config().vocab);
  std::vector<std::unique_ptr<cuda_session>> caches;
  for (const cuda_policy& policy : policies) caches.push_back(policy.open(shape, kvilt::gpu(model.on())));
  cuda_reader reads(model, std::move(caches));
  long ticks = 0;
  for (const auto block : {std::span(tokens).first(reader::block), std::span(tokens).last(reader::block)})
    reads.read(block, [&] { ++ticks; });
  CHECK(ticks == 2 * reads.ticks());
  for (std::size_t i = 0; i < policies.size(); ++i) {
    INFO(policies[i].name);
    cuda_decoder decode(model, policies[i].open(shape, kvilt::gpu(model.on())));
    decode.feed(std::span(tokens).first(reader::block));
    for (int t = 0; t < reader::block; ++t) {
      decode.feed(std::span(tokens).subspan(std::size_t(reader::block + t), 1));
      std::vector<float> logits(vocab);
      reads.logits(i, t, 1, logits.data());
      REQUIRE(logits == decode.logits());
    }
    std::vector<float> last(3 * vocab);  // by products of another shape
    reads.logits(i, reader::block - 3, 3, last.data());
    check_near({last.end() - std::ptrdiff_t(vocab), last.end()}, decode.logits(), 1e-4f);
    CHECK(reads.cache(i).length() == 2 * reader::block);
  }
}
