#include "entry.hpp"
#include "evaluate.hpp"
#include "evict_policies.hpp"
#include "examples/brute_force.hpp"
#include "examples/tiny_model.hpp"
#include "generate.hpp"
#include "host_reader.hpp"
#include "labels.hpp"
#include "metrics.hpp"
#include "policies.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"
#include "timing.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using example::policy_entry;
using example::session;
using support::brute_force, support::mixed_layers, support::named, support::tiny_model;

// KL divergence of softmaxes, and surprise at a token, in the plainest way.
struct plain_score {
  double divergence;
  double surprise;
};

std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double high = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - high);
  std::vector<double> out(logits.begin(), logits.end());
  for (double& l : out) l -= high + std::log(sum);
  return out;
}

plain_score score(const std::vector<float>& reference, const std::vector<float>& logits, int next) {
  const std::vector<double> p = log_softmax(reference), q = log_softmax(logits);
  plain_score s{0, -q[static_cast<std::size_t>(next)]};
  for (std::size_t i = 0; i < p.size(); ++i) s.divergence += std::exp(p[i]) * (p[i] - q[i]);
  return s;
}

struct program_result {
  int code;
  std::string out;
  std::string err;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

program_result run_decode_loop(const std::string& arguments) {
  const std::string out = support::temporary_path("decode.out"), err = support::temporary_path("decode.err");
  const int status =
      std::system(("'" EXAMPLES_DIR "/decode_loop' " + arguments + " > '" + out + "' 2> '" + err + "'").c_str());
  program_result result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
  std::filesystem::remove(out);
  std::filesystem::remove(err);
  return result;
}

// Words enough for several hundred tokens.
std::string write_text() {
  const std::string path = support::temporary_path("decode.txt");
  std::string text;
  for (int i = 0; i < 400; ++i) text += std::to_string(i * 7919 % 1009) + (i % 9 == 0 ? ".\n" : " and ");
  support::write_file(path, text);
  return path;
}

std::vector<std::vector<std::string>> csv_of(const std::string& path) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream text(contents(path));
  for (std::string line; std::getline(text, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

}  // namespace

TEST_CASE("decode_loop: decoding with a cache gives the tokens of recomputing the whole prefix", "[examples]") {
  tiny_model tiny;
  const policy_entry fp32 = named("fp32");
  std::vector<int> tokens = tiny.some_tokens(20);
  const auto cache = tiny.open(fp32, 84);
  example::host_decoder decode(tiny.model(), *cache, kvilt::host());
  int next = 0;
  for (const int t : tokens) next = decode.feed(std::array{t});
  for (int i = 0; i < 64; ++i) {
    const auto whole = tiny.open(fp32, 84, 84);
    example::host_decoder recompute(tiny.model(), *whole, kvilt::host());
    const int expected = recompute.feed(tokens);
    const std::vector<float>& logits = recompute.logits();
    INFO("token " << i);
    if (next != expected)
      REQUIRE(logits[static_cast<std::size_t>(expected)] - logits[static_cast<std::size_t>(next)] < 1e-3f);
    tokens.push_back(next);
    next = decode.feed(std::array{next});
  }
}

TEST_CASE("decode_loop: a local layer sees its window and a global one all", "[examples]") {
  tiny_model tiny(mixed_layers());
  const std::vector<int> tokens = tiny.some_tokens(150);
  const auto vocab = static_cast<std::size_t>(tiny.model().config().vocab);
  std::vector<float> hidden, expected(tokens.size() * vocab);
  tiny.model().forward(tokens, brute_force(tiny.shape(150)), hidden);
  tiny.model().logits(hidden.data(), 150, expected.data());
  for (const char* name : {"fp32", "paged16_fp16", "paged16_int8_rot_s4_t64"}) {
    for (const int step : {1, 7}) {
      INFO(name << " in steps of " << step);
      const auto cache = tiny.open(named(name), 150, step);
      example::host_decoder decode(tiny.model(), *cache, kvilt::host());
      double worst = 0;
      for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(step)) {
        const std::size_t count = std::min(tokens.size() - first, static_cast<std::size_t>(step));
        decode.feed(std::span(tokens).subspan(first, count));
        for (std::size_t i = 0; i < vocab; ++i) {
          const float logit = expected[(first + count - 1) * vocab + i];
          worst = std::max(worst, std::abs(double(decode.logits()[i]) - double(logit)));
        }
      }
      CHECK(worst < (name == std::string("fp32") ? 1e-3 : name == std::string("paged16_fp16") ? 0.05 : 0.5));
    }
  }
}

TEST_CASE("decode_loop: local layers hold their window in the policy's formats", "[examples]") {
  support::tiny_gguf_options options = mixed_layers();
  const int heads = options.kv_heads = GENERATE(1, 2);
  tiny_model tiny(options);
  const int row = heads * 2 * 32 * 2;  // K and V, heads of 32, fp16
  CHECK(named("fp16").plan(tiny.shape(150)).kv_bytes == (2 * 150 + 4 * 40) * row);
  CHECK(named("fp16").plan(tiny.shape(24)).kv_bytes == 6 * 24 * row);  // no window is longer than the text
  // Ten pages of 16 for 150 tokens; a window of 40 may begin inside a page: 3 and one more.
  CHECK(named("paged16_fp16").plan(tiny.shape(150)).kv_bytes == (2 * 10 + 4 * 4) * 16 * row);
  // The policy's own window is for global layers, with their sinks.
  CHECK(named("ring256_s4_fp16").plan(tiny.shape(400)).kv_bytes == (2 * 260 + 4 * 40) * row);
  CHECK(named("fp16").plan(tiny.shape(150)).bytes_per_token == 6 * row);
  for (const policy_entry& p : example::all_policies()) {
    INFO(p.name);
    const auto global = p.plan_layers({"global", 2, heads, 32, 32, 0}, 400, 1);
    const auto local = p.plan_layers({"local", 4, heads, 32, 32, 40, true}, 400, 1);
    const auto planned = p.plan(tiny.shape(400));
    CHECK(planned.bytes_per_token == global.bytes_per_token + local.bytes_per_token);
    // What the planner adds are page tables, and what it takes off is pages for tokens that are in a 16-bit tail.
    const std::int64_t tables = global.cache_bytes + local.cache_bytes - planned.kv_bytes;
    // A quarter of the tokens stays where others are evicted, and there is room for a block of 128 more.
    // By head, and for a page more: each head of two global layers has a table.
    if (p.at_share && p.columns.layout == "paged_by_head16")
      CHECK(tables == (2 * heads * 16 + 25) * 4 + 2 * heads * 8);
    else if (p.at_share)
      CHECK(tables == (15 + 25) * 4 + 8);
    else if (p.columns.tail16 == 0)
      CHECK(tables == (p.columns.layout == "paged16" ? 2 * 25 * 4 : 0));
  }
}

TEST_CASE("decode_loop: a token that is only looked at leaves no trace", "[examples]") {
  for (const auto& options : {support::tiny_gguf_options(), mixed_layers()}) {
    tiny_model tiny(options);
    const std::vector<int> tokens = tiny.some_tokens(120);
    for (const char* name :
         {"paged16_int4_rot_s4_t64", "ring256_s4_int8", "fp16", "h2o_mean_fp16", "tova_int8_rot", "expected_fp16"}) {
      INFO(name);
      const auto cache = tiny.open(named(name), 120), other = tiny.open(named(name), 120);
      example::host_decoder decode(tiny.model(), *cache, kvilt::host()), plain(tiny.model(), *other, kvilt::host());
      for (const int t : tokens) {
        decode.peek(7);
        decode.feed(std::array{t});
        plain.feed(std::array{t});
      }
      CHECK(cache->length() == 120);
      CHECK(decode.logits() == plain.logits());
    }
  }
}

TEST_CASE("decode_loop: teacher forcing in blocks is what decoding token by token gives", "[examples]") {
  const bool mixed = GENERATE(false, true);
  tiny_model tiny(mixed ? mixed_layers() : support::tiny_gguf_options());
  const std::vector<int> tokens = tiny.some_tokens(300);
  for (const char* name :
       {"int4", "paged16_int4_rot_s4_t64", "ring256_s4_int8", "paged16_fp16_window256_s4", "ada_keynorm_int8_rot"}) {
    INFO(name);
    policy_entry policy = named(name);
    if (policy.at_share) policy = policy.at_share(100);  // tokens are evicted between blocks
    std::vector<std::unique_ptr<session>> caches;
    caches.push_back(tiny.open(named("fp32"), 300));
    caches.push_back(tiny.open(policy, 300));
    example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
    example::evaluation evaluation(reader, kvilt::host());
    long ticks = 0;
    evaluation.read(tokens, [&] { ++ticks; });
    CHECK(ticks == evaluation.ticks(300));
    CHECK(evaluation.result(0).kld_mean == 0);
    CHECK(evaluation.result(0).top1 == 100);

    const auto exact = tiny.open(named("fp32"), 300), tried = tiny.open(policy, 300);
    example::host_decoder reference(tiny.model(), *exact, kvilt::host()), decode(tiny.model(), *tried, kvilt::host());
    double divergence = 0, surprise = 0;
    int positions = 0;
    for (int t = 0; t + 1 < 300; ++t) {
      reference.feed(std::array{tokens[static_cast<std::size_t>(t)]});
      decode.feed(std::array{tokens[static_cast<std::size_t>(t)]});
      if (t < example::evaluation::first_scored) continue;
      const plain_score s = score(reference.logits(), decode.logits(), tokens[static_cast<std::size_t>(t + 1)]);
      divergence += s.divergence;
      surprise += s.surprise;
      ++positions;
    }
    // Blocks and single tokens take different paths through BLAS, and a code may round the other way.
    CHECK(evaluation.result(1).kld_mean == Approx(divergence / positions).epsilon(2e-2).margin(1e-9));
    CHECK(std::log(evaluation.result(1).perplexity) == Approx(surprise / positions).epsilon(1e-3));
  }
}

TEST_CASE("decode_loop: ranges are the largest numbers of K, turned, and of V", "[examples]") {
  tiny_model tiny(GENERATE(false, true) ? mixed_layers() : support::tiny_gguf_options{.kv_heads = 2});
  const std::vector<int> tokens = tiny.some_tokens(150);
  brute_force plain(tiny.shape(150));
  std::vector<float> hidden;
  tiny.model().forward(tokens, std::ref(plain), hidden);
  const auto ranges = example::ranges_over(tiny.model(), tiny.shape(150, 64), tokens);
  REQUIRE(ranges.size() == tiny.model().config().layers.size());
  for (std::size_t layer = 0; layer < ranges.size(); ++layer) {
    const std::vector<float> k = plain.key_range(layer), v = plain.value_range(layer);
    REQUIRE(ranges[layer].k.size() == k.size());
    REQUIRE(ranges[layer].v.size() == v.size());
    for (std::size_t head = 0; head < k.size(); ++head) {
      CHECK(ranges[layer].k[head] == Approx(k[head]).epsilon(1e-3));
      CHECK(ranges[layer].v[head] == Approx(v[head]).epsilon(1e-3));
    }
  }
}

TEST_CASE("decode_loop: a static scale is that of its layer and head, or of the widest head", "[examples]") {
  tiny_model tiny(GENERATE(false, true) ? mixed_layers() : support::tiny_gguf_options{.kv_heads = 2});
  example::session_shape shape = tiny.shape(8);
  const auto heads = static_cast<std::size_t>(shape.kv_heads), q_heads = static_cast<std::size_t>(shape.q_heads);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto range = [&](std::size_t layer, std::size_t head) { return float(1 + layer * heads + head); };
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    shape.layers[layer].ranges = {std::vector<float>(heads, 1), std::vector<float>(heads)};
    for (std::size_t head = 0; head < heads; ++head) shape.layers[layer].ranges.v[head] = range(layer, head);
  }
  for (const char* name : {"int8_head", "fp16_int8_head", "e4m3_head", "int8_tensor", "fp16_e4m3_tensor"}) {
    INFO(name);
    const auto cache = named(name).open(shape);
    cache->begin(1, 1);
    for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
      // What is beyond the range comes back as the end of the range.
      std::vector<float> q(q_heads * dim, 1), k(heads * dim, 1), v(heads * dim, 1000), out(q.size());
      cache->attend(kvilt::host(), int(layer), q.data(), k.data(), v.data(), out.data());
      for (std::size_t h = 0; h < q_heads; ++h) {
        const std::size_t head = h / (q_heads / heads);
        const bool tensor = std::string(name).find("tensor") != std::string::npos;
        CHECK(out[h * dim] == Approx(tensor ? float((layer + 1) * heads) : range(layer, head)));
      }
    }
    cache->commit();
  }
}

TEST_CASE("decode_loop: static scales serve what they were measured for", "[examples]") {
  tiny_model tiny({.kv_heads = 2});
  const std::vector<int> tokens = tiny.some_tokens(200);
  const auto divergence = [&](const std::string& name, float k, float v) {
    example::session_shape shape = tiny.shape(200);
    for (example::layer_attention& layer : shape.layers) {
      for (float& r : layer.ranges.k) r *= k;
      for (float& r : layer.ranges.v) r *= v;
    }
    std::vector<std::unique_ptr<session>> caches;
    for (const std::string& policy : {std::string("fp32"), name}) caches.push_back(named(policy).open(shape));
    example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
    example::evaluation evaluation(reader, kvilt::host());
    evaluation.read(tokens, [] {});
    return evaluation.result(1).kld_mean;
  };
  for (const std::string format : {"int8", "e4m3"}) {
    INFO(format);
    const double head = divergence(format + "_head", 1, 1);
    CHECK(head > 0);
    CHECK(head < 5 * divergence(format, 1, 1));
    CHECK(divergence(format + "_head", 0.1f, 1) > 100 * head);  // codes saturate
    CHECK(divergence(format + "_head", 1, 0.1f) > 100 * head);
    CHECK(divergence(format + "_head_fp16", 1, 0.1f) == divergence(format + "_head_fp16", 1, 1));
    CHECK(divergence("fp16_" + format + "_head", 0.1f, 1) == divergence("fp16_" + format + "_head", 1, 1));
  }
  CHECK(divergence("int8_head", 64, 64) > 100 * divergence("int8_head", 1, 1));  // and are coarse
}

TEST_CASE("decode_loop: every policy takes the bytes that were planned, and decodes on", "[examples]") {
  const bool mixed = GENERATE(false, true);
  tiny_model tiny(mixed ? mixed_layers() : support::tiny_gguf_options{.hidden = 128, .head_dim = 32});
  std::vector<std::unique_ptr<session>> caches;
  const std::vector<policy_entry> policies = example::all_policies();
  for (const policy_entry& p : policies) caches.push_back(tiny.open(p, 280));
  example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
  example::evaluation evaluation(reader, kvilt::host());
  const std::vector<int> tokens = tiny.some_tokens(280);
  evaluation.read(tokens, [] {});
  for (std::size_t i = 0; i < policies.size(); ++i) {
    INFO(policies[i].name);
    CHECK(reader.cache(i).cache_bytes() == policies[i].plan(tiny.shape(280)).kv_bytes);
    CHECK(reader.cache(i).length() == 279);
    CHECK(std::isfinite(evaluation.result(i).kld_mean));
    CHECK(example::decode_rate(reader.cache(i), tokens.back()) > 0);
  }
}

TEST_CASE("decode_loop: policies that evict tokens keep their share", "[examples]") {
  tiny_model tiny({.hidden = 128, .head_dim = 32});
  const example::model_config& c = tiny.model().config();
  // What attention gives over 600 tokens, in blocks of 100.
  const auto outputs = [&](session& cache) {
    std::vector<float> all;
    for (int block = 0; block < 6; ++block) {
      cache.begin(100, 1);
      for (int layer = 0; layer < static_cast<int>(c.layers.size()); ++layer) {
        const std::uint64_t seed = support::mixed({std::uint64_t(block), std::uint64_t(layer)});
        support::tensor<float> q = support::random_tensor(seed, 100, c.q_heads, c.head_dim);
        const auto k = support::random_tensor(seed + 1, 100, c.kv_heads, c.head_dim);
        const auto v = support::random_tensor(seed + 2, 100, c.kv_heads, c.head_dim);
        support::tensor<float> out(100, c.q_heads, c.head_dim);
        cache.attend(kvilt::host(), layer, q.data.data(), k.data.data(), v.data.data(), out.data.data());
        all.insert(all.end(), out.data.begin(), out.data.end());
      }
      cache.commit();
    }
    CHECK(cache.length() == 600);
    return all;
  };
  const auto whole = tiny.open(named("paged16_fp16"), 600);
  const std::vector<float> want = outputs(*whole);
  const std::size_t first_block = want.size() / 6;
  std::vector<std::vector<float>> of_a_quarter;
  for (const char* name : {"window_fp16", "h2o_fp16", "h2o_mean_fp16", "tova_fp16", "snapkv_fp16", "keynorm_fp16",
                           "expected_fp16", "ada_h2o_mean_fp16", "ada_snapkv_fp16", "ada_keynorm_fp16",
                           "ada_expected_fp16", "pyramid_snapkv_fp16", "ada_pyramid_snapkv_fp16"}) {
    INFO(name);
    const bool by_head = named(name).columns.layout == "paged_by_head16";
    const std::vector<policy_entry> shares = example::at_shares({named(name)}, {100, 25});
    REQUIRE(shares.size() == 2);
    CHECK(shares[1].name == std::string(name) + " 25%");
    // All of the tokens are none evicted, but for 4 bytes a row and head, for its position.
    const auto all = tiny.open(shares[0], 600), quarter = tiny.open(shares[1], 600);
    CHECK(outputs(*all) == want);
    CHECK(all->cache_bytes() == whole->cache_bytes() * (2 * 2 * 32 + 4) / (2 * 2 * 32));
    // A quarter has room for 150 rows and a block of 128: 18 pages of 38, by head one more. The first eviction comes after
    // two blocks.
    CHECK(quarter->cache_bytes() * 38 == all->cache_bytes() * (by_head ? 19 : 18));
    of_a_quarter.push_back(outputs(*quarter));
    const std::vector<float>& got = of_a_quarter.back();
    CHECK(std::equal(want.begin(), want.begin() + std::ptrdiff_t(2 * first_block), got.begin()));
    CHECK_FALSE(std::equal(want.begin() + std::ptrdiff_t(2 * first_block), want.end(),
                           got.begin() + std::ptrdiff_t(2 * first_block)));
  }
  for (std::size_t i = 0; i < of_a_quarter.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(of_a_quarter[i] != of_a_quarter[j]);
  CHECK_THROWS_WITH(example::at_shares({named("h2o_fp16")}, {0}), support::containing("--keep 0; a number above 0"));
}

TEST_CASE("decode_loop: what is scored is computed in fp32, whatever decoding does", "[examples]") {
  support::tiny_gguf_options options;
  options.hidden = options.ffn = 256;
  options.tensor_type = support::ggml::q8_0;
  tiny_model plain(options), coded(options, {.codes = true});
  const auto measure = [](tiny_model& tiny) {
    std::vector<std::unique_ptr<session>> caches;
    for (const char* name : {"fp32", "int4"}) caches.push_back(tiny.open(named(name), 131));
    example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
    example::evaluation evaluation(reader, kvilt::host());
    evaluation.read(tiny.some_tokens(131), [] {});  // the last block is of 2 tokens
    return std::array{evaluation.result(0).perplexity, evaluation.result(1).perplexity, evaluation.result(1).kld_mean};
  };
  CHECK(measure(plain) == measure(coded));
}

TEST_CASE("decode_loop: decoding is timed at ascending depths", "[examples]") {
  tiny_model tiny;
  const std::vector<int> text = tiny.some_tokens(200);
  const auto cache = tiny.open(named("fp16"), 200, 16);
  example::host_decoder decode(tiny.model(), *cache, kvilt::host());
  const auto times = example::time_decoding(decode, text, std::array{5, 20, 100});
  REQUIRE(times.size() == 3);
  CHECK(times[0].depth == 5);
  CHECK(times[1].depth == 5 + example::timed_tokens);  // the first ones' tokens are there already
  CHECK(times[2].depth == 100);
  for (const auto& t : times) CHECK(t.milliseconds > 0);
  CHECK(cache->length() == 100 + example::timed_tokens);
}

TEST_CASE("decode_loop: pages change nothing", "[examples]") {
  const bool mixed = GENERATE(false, true);
  tiny_model tiny(mixed ? mixed_layers() : support::tiny_gguf_options());
  // NOTE: each in the same place of a batch, on which the bits of a BLAS's products depend.
  const auto measure = [&](const char* name) {
    std::vector<std::unique_ptr<session>> caches;
    for (const char* n : {"fp32", name}) caches.push_back(tiny.open(named(n), 256));
    example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
    example::evaluation evaluation(reader, kvilt::host());
    evaluation.read(tiny.some_tokens(256), [] {});
    return evaluation.result(1).kld_mean;
  };
  CHECK(measure("fp16") == measure("paged16_fp16"));
  CHECK(measure("int8") == measure("paged16_int8"));
}

TEST_CASE("decode_loop: threads change nothing", "[examples]") {
  tiny_model tiny;
  const std::vector<int> tokens = tiny.some_tokens(200);
  const auto measure = [&](const kvilt::host& exec) {
    std::vector<std::unique_ptr<session>> caches;
    for (const char* name : {"fp32", "int4", "paged16_int4_rot_s4_t64", "ring256_s4_int8"})
      caches.push_back(tiny.open(named(name), 200));
    example::host_reader reader(tiny.model(), exec, std::move(caches));
    example::evaluation evaluation(reader, exec);
    evaluation.read(tokens, [] {});
    std::vector<double> divergences;
    for (std::size_t i = 0; i < 4; ++i) divergences.push_back(evaluation.result(i).kld_mean);
    return divergences;
  };
  kvilt::thread_pool pool(3);
  CHECK(measure(kvilt::host(pool)) == measure(kvilt::host()));
}

TEST_CASE("decode_loop: a summary has mean, percentile, agreement and paired error", "[examples]") {
  example::score_sheet sheet;
  for (int i = 0; i < 2000; ++i)
    sheet.add(i,
              {.divergence = i / 1000.0, .surprise = 2, .surprise_change = i % 2 ? 0.5 : -0.1, .same_top = i % 4 != 0});
  const example::quality q = sheet.summary();
  CHECK(q.kld_mean == Approx(0.9995));
  CHECK(q.kld_p999 == Approx(1.997));
  CHECK(q.top1 == Approx(75));
  CHECK(q.dlnppl == Approx(0.2));
  CHECK(q.dlnppl_se == Approx(0.3 / std::sqrt(1999.0)));
  CHECK(q.perplexity == Approx(std::exp(2)));
  CHECK(*q.late_perplexity == Approx(std::exp(2)));
}

TEST_CASE("decode_loop: a band is summed up from its own positions", "[examples]") {
  example::score_sheet sheet;
  const auto add = [&](int position, double divergence, bool same_top) {
    sheet.add(position,
              {.divergence = divergence, .surprise = 1, .surprise_change = divergence / 2, .same_top = same_top});
  };
  for (const int window : {0, 1}) {
    add(128, 1 + window, true);
    add(511, 3 + window, false);
    add(512, 10, true);
  }
  const example::quality early = sheet.summary({128, 512}), late = sheet.summary({512, 513});
  CHECK(early.positions == 4);
  CHECK(early.kld_mean == Approx(2.5));  // of 1, 2, 3, 4, whose squared distances from it are 5 in all
  CHECK(early.kld_se == Approx(std::sqrt(5.0 / 4 / 3)));
  CHECK(early.top1 == Approx(50));
  CHECK(early.dlnppl == Approx(1.25));
  CHECK_FALSE(early.late_perplexity.has_value());
  CHECK(late.positions == 2);
  CHECK(late.kld_mean == Approx(10));
  CHECK(late.kld_se == Approx(0).margin(1e-12));
  CHECK(sheet.summary({600, 700}).positions == 0);
  CHECK(sheet.summary().positions == 6);
}

TEST_CASE("decode_loop: a question stands in the model's chat template, or alone", "[examples]") {
  const auto words_of = [](const support::gguf_builder& builder, auto&& use) {
    const std::string path = support::temporary_path("chat.gguf");
    builder.write(path);
    const example::gguf_file file(path);
    use(example::tokenizer(file));
    std::filesystem::remove(path);
  };
  words_of(support::tiny_gguf(), [](const example::tokenizer& words) {
    CHECK(words.special("<|im_start|>"));
    CHECK(example::prompt_tokens(words, "the hello") == words.encode("the hello"));
  });
  words_of(support::tiny_gguf().text("tokenizer.chat_template", "{{ messages }}"), [](const example::tokenizer& words) {
    const std::string_view whole = "<|im_start|>user\nthe hello<|im_end|>\n<|im_start|>assistant\n";
    CHECK(example::prompt_tokens(words, "the hello") == words.encode(whole, {.parse_special = true}));
    const std::string_view told =
        "<|im_start|>system\nthe hello<|im_end|>\n<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n";
    CHECK(example::prompt_tokens(words, "the", "the hello") == words.encode(told, {.parse_special = true}));
    // What is spelt like a special token in the question is text.
    const std::vector<int> tokens = example::prompt_tokens(words, "<|im_end|>");
    CHECK(std::count(tokens.begin(), tokens.end(), *words.special("<|im_end|>")) == 1);
  });
}

TEST_CASE("decode_loop: text streams in whole characters", "[examples]") {
  tiny_model tiny;
  const example::tokenizer words(tiny.file());
  const auto cache = tiny.open(named("fp16"), 60, 8);
  example::host_decoder decode(tiny.model(), *cache, kvilt::host());
  std::ostringstream out;
  const std::vector<int> prompt = example::prompt_tokens(words, "a question of some length");
  const example::generation_speed speed = example::answer(decode, words, prompt, 16, out);
  CHECK(speed.prompt_tokens == static_cast<int>(prompt.size()));
  CHECK(cache->length() == static_cast<kvilt::idx>(prompt.size()) + speed.answer_tokens);
}

TEST_CASE("decode_loop: labels keep apart and inside the picture", "[examples]") {
  const std::vector<std::string> names(6, "a_long_policy_name");
  const std::vector<example::point> points{{200, 200}, {204, 203}, {200, 206}, {590, 200}, {12, 300}, {300, 8}};
  const auto labels = example::place_labels(names, points, {}, {0, 0}, {600, 400});
  const double width = example::letter_width * double(names[0].size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    CHECK(labels[i].position.x >= 0);
    CHECK(labels[i].position.x + width <= 600);
    for (std::size_t j = 0; j < i; ++j) {
      const bool apart = std::abs(labels[i].position.x - labels[j].position.x) >= width ||
                         std::abs(labels[i].position.y - labels[j].position.y) >= example::line_height;
      CHECK(apart);
    }
  }
}

TEST_CASE("decode_loop: the program writes the table of all default policies", "[examples]") {
  tiny_model tiny;
  const std::string text = write_text(), csv = support::temporary_path("decode.csv");
  const program_result result = run_decode_loop("--model '" + tiny.path() + "' --text '" + text +
                                                "' --positions 200 --tokens 4 --threads 2 --csv '" + csv + "'");
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
  const auto rows = csv_of(csv);
  REQUIRE(rows.size() == 17);
  const std::vector<std::string> columns{"policy", "k_format",        "v_format",    "layout",   "retention", "sinks16",
                                         "tail16", "bytes_per_token", "cache_bytes", "kld_mean", "kld_p999",  "top1",
                                         "dlnppl", "dlnppl_se",       "tok_s",       "decoding"};
  CHECK(rows[0] == columns);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    INFO(rows[i][0]);
    REQUIRE(rows[i].size() == columns.size());
    CHECK(std::stod(rows[i][7]) > 0);
    CHECK(std::stod(rows[i][8]) > 0);
    CHECK(std::stod(rows[i][9]) >= 0);
    CHECK(std::stod(rows[i][14]) > 0);
  }
  CHECK(rows[1][0] == "fp32");
  CHECK(rows[1][15] == "fp32");
  CHECK(std::stod(rows[1][9]) == 0);
  CHECK(std::stoll(rows[1][8]) == 2 * 2 * 2 * 16 * 4 * 200);  // layers, K and V, heads, dim, bytes, tokens
  CHECK(rows[14] == [&] {
    auto expected = rows[14];
    const std::array<std::string, 7> known{"paged16_int4_rot_s4_t64", "q4rot", "q4rot", "paged16", "all", "4", "64"};
    std::copy(known.begin(), known.end(), expected.begin());
    return expected;
  }());
  CHECK(rows[15][4] == "window256+4");
  std::filesystem::remove(text);
  std::filesystem::remove(csv);
}

TEST_CASE("decode_loop: static scales come from another text than is evaluated", "[examples]") {
  tiny_model tiny;
  const std::string text = write_text(), other = support::temporary_path("other.txt"),
                    csv = support::temporary_path("static.csv");
  support::write_file(other, contents(text) + contents(text));
  const std::string arguments = "--model '" + tiny.path() + "' --tokens 0 --policy int8_head --csv '" + csv + "' ";
  const auto kld = [&](const std::string& more) {
    const program_result result = run_decode_loop(arguments + more);
    INFO(more << "\n" << result.err);
    REQUIRE(result.code == 0);
    CHECK_THAT(result.out, support::containing("Static scales are those of 200 tokens of"));
    const auto rows = csv_of(csv);
    REQUIRE(rows.size() == 2);
    CHECK(rows[1][1] == "q8_static");
    return rows[1][9];
  };
  const std::string evaluated = "--positions 200 --text '" + text + "' ";
  const std::string behind = kld(evaluated);
  CHECK(kld(evaluated + "--calibration '" + other + "'") != behind);
  const std::string whole = kld(evaluated + "--windows 2");
  CHECK(whole != behind);
  for (const std::string& path : {text, other, csv}) std::filesystem::remove(path);
}

TEST_CASE("decode_loop: the program sums scores up by position", "[examples]") {
  tiny_model tiny;
  const std::string text = write_text(), csv = support::temporary_path("all.csv"),
                    bands_csv = support::temporary_path("bands.csv"), plot = support::temporary_path("bands.svg");
  const program_result result =
      run_decode_loop("--model '" + tiny.path() + "' --text '" + text +
                      "' --positions 400 --tokens 0 --policy int4 --policy int8 --bands 200,300 --bands 400 --csv '" +
                      csv + "' --bands-csv '" + bands_csv + "'" +
                      (std::system("command -v gnuplot > /dev/null") == 0 ? " --bands-plot '" + plot + "'" : ""));
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK_THAT(result.out, support::containing("128 to 200"));
  const auto all = csv_of(csv), rows = csv_of(bands_csv);
  REQUIRE(all.size() == 3);
  REQUIRE(rows.size() == 7);
  CHECK(rows[0] == std::vector<std::string>{"policy", "first", "last", "positions", "kld_mean", "kld_se", "top1",
                                            "dlnppl", "dlnppl_se"});
  const std::array<std::array<std::string, 3>, 3> bands{
      {{"128", "200", "72"}, {"200", "300", "100"}, {"300", "400", "99"}}};  // the last token is only predicted
  for (std::size_t policy = 0; policy < 2; ++policy) {
    double sum = 0;
    for (std::size_t b = 0; b < 3; ++b) {
      const auto& row = rows[1 + 3 * policy + b];
      CHECK(row[0] == all[1 + policy][0]);
      CHECK(std::equal(bands[b].begin(), bands[b].end(), row.begin() + 1));
      CHECK(std::stod(row[5]) > 0);
      sum += std::stod(row[3]) * std::stod(row[4]);
    }
    CHECK(sum / 271 == Approx(std::stod(all[1 + policy][9])).epsilon(1e-3));
  }
  if (std::filesystem::exists(plot)) CHECK_THAT(contents(plot), support::containing("int8"));
  for (const std::string& path : {text, csv, bands_csv, plot}) std::filesystem::remove(path);
}

TEST_CASE("decode_loop: integer weights change the rate alone, and are named", "[examples]") {
  support::tiny_gguf_options options;
  options.hidden = options.ffn = 256;
  options.tensor_type = support::ggml::q4_1;
  tiny_model tiny(options);
  const std::string text = write_text(), csv = support::temporary_path("integers.csv");
  const std::string arguments = "--model '" + tiny.path() + "' --text '" + text +
                                "' --positions 200 --tokens 0 --policy int4 --csv '" + csv + "'";
  const program_result exact = run_decode_loop(arguments);
  const auto expected = csv_of(csv);
  const program_result integer = run_decode_loop(arguments + " --integer-weights");
  const auto rows = csv_of(csv);
  INFO(exact.err << integer.err);
  REQUIRE(expected.size() == 2);
  REQUIRE(rows.size() == 2);
  CHECK(std::equal(rows[1].begin(), rows[1].begin() + 14, expected[1].begin()));
  CHECK(rows[1][15] == "integer");
  CHECK_THAT(integer.out, support::containing("tok/s (integer weights)"));
  CHECK(exact.out.find("integer") == std::string::npos);
  std::filesystem::remove(text);
  std::filesystem::remove(csv);
}

TEST_CASE("decode_loop: the program times decoding at depths", "[examples]") {
  tiny_model tiny(mixed_layers());
  const std::string text = write_text(), csv = support::temporary_path("times.csv");
  const program_result result =
      run_decode_loop("--model '" + tiny.path() + "' --text '" + text +
                      "' --policy fp16 --policy paged16_fp16 --decode-at 100 --decode-at 9 --csv '" + csv + "'");
  INFO(result.err);
  REQUIRE(result.code == 0);
  const auto rows = csv_of(csv);
  REQUIRE(rows.size() == 5);
  CHECK(rows[0] == std::vector<std::string>{"policy", "depth", "ms"});
  for (std::size_t i = 1; i < 5; ++i) {
    CHECK(rows[i][0] == (i < 3 ? "fp16" : "paged16_fp16"));
    CHECK(rows[i][1] == (i % 2 ? "9" : "100"));
    CHECK(std::stod(rows[i][2]) > 0);
  }
  std::filesystem::remove(text);
  std::filesystem::remove(csv);
}

TEST_CASE("decode_loop: what is wrong with the command line is said in one line", "[examples]") {
  tiny_model tiny;
  const std::string text = write_text();
  const std::string model = "--model '" + tiny.path() + "' ", both = model + "--text '" + text + "' ";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "--model"},
      {"--model /nonexistent.gguf --generate-only", "/nonexistent.gguf"},
      {"--model '" + text + "' --generate-only", "GGUF"},
      {model, "--text"},
      {model + "--text /nonexistent.txt", "/nonexistent.txt"},
      {both + "--policy int9", "'int8'"},
      {both + "--positions 500 --windows 50", "tokens"},
      {both + "--positions 500 --windows 3 --policy int8_head", "4 x 500"},
      {both + "--positions 200 --policy int8_head --calibration /nonexistent.txt", "/nonexistent.txt"},
      {model + "--policy int8_head --generate-only", "policy int8_head takes its scales from a text: --calibration"},
      {both + "--positions 600", "context of 512"},
      {both + "--positions 5", "--positions"},
      {both + "--positions 200 --csv /nonexistent/a.csv", "/nonexistent/a.csv"},
      {both + "--positions 200 --plot picture.gif", "picture.gif"},
      {both + "--positions 200 --bands 150,150", "150 does not come after 150"},
      {both + "--positions 200 --bands 128", "128 does not come after 128"},
      {both + "--positions 200 --bands 150,201", "201 is beyond the 200 positions"},
      {both + "--positions 200 --bands-csv bands.csv", "--bands"},
      {both + "--positions 200 --bands 150 --bands-plot bands.gif", "--bands-plot bands.gif"},
      {model + "--generate-only --tokens 600", "context"},
      {both + "--threads 0", "--threads"},
      {both + "--device gpu", "--device"},
      {both + "--device cuda --integer-weights", "--integer-weights"},
      {both + "--no-such-option", "--no-such-option"},
  };
  for (const auto& [arguments, expected] : cases) {
    const program_result result = run_decode_loop(arguments);
    INFO(arguments << "\n" << result.err);
    CHECK(result.code == 2);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK_THAT(result.err, support::containing(expected));
  }
  std::filesystem::remove(text);
}

TEST_CASE("decode_loop: where no GPU can be used, that is said in one line", "[examples]") {
  tiny_model tiny;
  const program_result result = run_decode_loop("--model '" + tiny.path() + "' --generate-only --device cuda");
  if (result.code == 0) support::skip("a program with CUDA, and a GPU");
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK_THAT(result.err, support::containing("--device cuda: "));
}

TEST_CASE("decode_loop: a policy without a kernel is left out, or refused where it is named", "[examples]") {
  using namespace example;
  using fp16 = kvilt::policy<kvilt::contiguous, kvilt::fp16<>>;
  const std::vector<policy_entry> all{entry_of(named<fp16>("taken")),
                                      entry_of(on_host_only(named<fp16>("first"), "its format is the host's")),
                                      entry_of(on_host_only(named<fp16>("second"), "so is this"))};
  std::vector<policy_entry> chosen = all;
  CHECK(leave_out_without_kernels(chosen, {"taken"}) ==
        "Left out, without a kernel for a GPU: first (its format is the host's), second (so is this)");
  REQUIRE(chosen.size() == 1);
  CHECK(chosen[0].name == "taken");
  CHECK(leave_out_without_kernels(chosen, {}).empty());
  chosen = all;
  CHECK_THROWS_WITH(leave_out_without_kernels(chosen, {"taken", "second"}),
                    "policy second has no kernel for a GPU: so is this");
}

TEST_CASE("decode_loop: help and the list of policies need no model", "[examples]") {
  CHECK(run_decode_loop("--help").code == 0);
  const program_result list = run_decode_loop("--list");
  CHECK(list.code == 0);
  CHECK_THAT(list.out, support::containing("paged16_int8_rot_s4_t64\n"));
}
