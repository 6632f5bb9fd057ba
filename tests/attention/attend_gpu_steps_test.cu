#include "support/attend_gpu.cuh"

#include <memory>

// What any kernel must stand: other lengths at every replay, NaN, pages anywhere, kernels in flight, memory far away.
// Nearly all over views of one type.

namespace {

using namespace kvilt;
using support::attend_shape, support::kept_by, support::page_order, support::prompt, support::tried, support::trial;

using kv = policy<paged<16>, bf16<64>>;
using cached = support::filled_cache<kv>;
using pages = support::filled_pages<paged<16>, bf16<64>>;

kept_by kept_pages() {
  return pages::kept({}, {}, 16);
}
std::string wrong(const attend_shape& shape) {
  const cached text(kv(), shape);
  return support::wrong_attention<float, float>(text, cached::kept(kv()), shape, tried<>());
}

// Attention over a batch in which token `nan` of sequence 1 is NaN.
template <class Policy>
void check_nan(const Policy& policy, int length, int queries, idx nan) {
  using text_type = support::filled_cache<Policy>;
  const attend_shape shape{"a NaN in sequence 1", 2, 4, {{length, queries}, {length, queries}, {length + 5, 1}}};
  const text_type text(policy, shape, {}, {1, nan});
  INFO("token " << nan << " is NaN");
  CHECK(support::wrong_attention<float, float>(text, text_type::kept(policy), shape, tried<>()) == "");
}

// Items of a batch over sequences 0, 1, ...
std::vector<step_item> items_of(const std::vector<prompt>& batch) {
  std::vector<step_item> items;
  idx kv_row = 0, q_row = 0;
  for (const prompt& p : batch) {
    const step_item item = support::item_of(p, int(items.size()), kv_row, q_row);
    kv_row += item.new_tokens, q_row += item.queries;
    items.push_back(item);
  }
  return items;
}

class stream {
 public:
  stream() { support::must(cudaStreamCreate(&stream_), "a stream"); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// What `body` launches, to be launched again and again.
class graph {
 public:
  template <class Body>
  graph(cudaStream_t on, Body body) : on_(on) {
    cudaGraph_t captured = nullptr;
    support::must(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal), "a capture");
    body();
    support::must(cudaStreamEndCapture(on, &captured), "a capture's end");
    support::must(cudaGraphInstantiate(&graph_, captured, 0), "a graph");
    support::must(cudaGraphDestroy(captured), "a graph's end");
  }
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;
  ~graph() { cudaGraphExecDestroy(graph_); }
  void launch() const { support::must(cudaGraphLaunch(graph_, on_), "a graph's launch"); }

 private:
  cudaStream_t on_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

TEST_CASE("attend: a captured graph is right while sequences grow, shrink and end", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape most{"replays", 2, 4, {{996, 4}, {296, 4}, {46, 4}, {96, 4}, {1, 4}}};
  const pages text({}, {}, 16, most);
  trial<float, float, pages, causal> one(text, kept_pages(), most);
  const stream s;
  const graph replays(s, [&] {
    one.plan(gpu(s));
    one.launch(gpu(s));
  });
  const std::vector<std::vector<prompt>> steps = {
      {{3, 1}, {0, 1}, {9, 2}, {16, 1}, {0, 0}},       {{999, 1}, {299, 1}, {49, 1}, {99, 1}, {4, 1}},
      {{15, 1}, {}, support::padded, {60, 4}, {0, 1}}, {{}, {}, {}, {}, {}},
      {{996, 4}, {296, 4}, {46, 4}, {96, 4}, {1, 4}},  {{500, 1, 0}, {16, 1}, {31, 2, 1}, {0, 4}, support::padded},
      {{0, 1}, {299, 1}, {0, 1}, {0, 1}, {0, 1}}};
  for (const std::vector<prompt>& batch : steps) {
    one.asked().items = items_of(batch);
    one.batch().put(one.asked().items);
    one.poison();
    replays.launch();
    CHECK(one.wrong(one.collect(one.asked().q_rows())) == "");
  }
}

TEST_CASE("attend: a NaN on the device stays in its sequence", "[attention][gpu]") {
  support::require_gpu();
  for (const int length : {9, 40, 700})
    for (const int queries : {1, 5}) {
      check_nan(kv(), length, queries, length - 3);
      check_nan(policy<contiguous, q8<64>>(), length, queries, length - 3);
      check_nan(policy<paged<3>, fp32<64>, e4m3<64>>(), length, queries, length - 3);
    }
}

TEST_CASE("attend: a NaN among a prompt's tokens on the device stays with those that see it", "[attention][gpu]") {
  support::require_gpu();
  const auto check = [](const auto& policy, idx nan) {
    using text_type = support::filled_cache<std::remove_cvref_t<decltype(policy)>>;
    const attend_shape shape{"a NaN in sequence 1", 2, 4, {{0, 600}, {20, 600}, {30, 1}}};
    const text_type text(policy, shape, {}, {1, nan});
    INFO("token " << nan << " is NaN");
    CHECK(support::wrong_attention<float, float>(text, text_type::kept(policy), shape, tried<>()) == "");
  };
  for (const idx nan : {30, 319, 619}) {
    check(kv(), nan);
    check(policy<contiguous, q8<64>>(), nan);
  }
}

TEST_CASE("attend: a plan leaves prompts to blocks, and few rows to teams", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"a prompt beside a step", 2, 4, {{0, 4000}, {45, 1}}};
  const cached text(kv(), shape);
  const trial<float, float, cached, causal> one(text, cached::kept(kv()), shape);
  std::vector<idx> line(3);
  support::must(cudaMemcpy(line.data(), one.step().work.line, line.size() * sizeof(idx), cudaMemcpyDeviceToHost),
                "the line");
  CHECK(line[1] == 0);
  CHECK(line[2] > 0);
}

TEST_CASE("attend: a NaN on the device reaches the queries that see it", "[attention][gpu]") {
  support::require_gpu();
  for (const int length : {9, 40, 700})
    for (const int token : {0, 2, 4}) {  // among the step's own
      check_nan(kv(), length, 5, length + token);
      check_nan(policy<contiguous, q8<64>>(), length, 5, length + token);
      check_nan(policy<paged<3>, fp32<64>, e4m3<64>>(), length, 5, length + token);
    }
  // What has left the window of later queries.
  for (const int token : {1, 3}) check_nan(policy<paged<16>, q4<64>, bf16<64>, window<4>>(), 40, 5, 40 - token);
}

TEST_CASE("attend: a query of NaN on the device answers for itself", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"a NaN in Q", 2, 4, {{30, 3}, {500, 2}}};
  const pages text({}, {}, 16, shape);
  support::attention_case c = support::case_of(text, kept_pages(), shape, tried<>());
  c.q = support::random_tensor(5, c.q_rows(), shape.q_heads(), 64).data;
  for (const std::size_t row : {9, 26}) c.q[row * 64 + 3] = NAN;
  const trial<float, float, pages, causal> one(text, c);
  CHECK(one.wrong(one.run()) == "");
}

TEST_CASE("attend: long sequences on the device", "[attention][gpu]") {
  support::require_gpu();
  CHECK(wrong({"one of 20000", 2, 4, {{19999, 1}}}) == "");
  CHECK(wrong({"one of 20000 among others", 2, 3, {{5, 1}, {700, 3}, {20000, 2}, {}, {40, 1}}}) == "");
  std::vector<prompt> many(60, prompt{17, 1});
  many[31] = {6000, 2};
  CHECK(wrong({"one of 6000 among 59", 8, 1, many}) == "");
}

TEST_CASE("attend: scores of hundreds on the device", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"large scores", 2, 4, {{300, 1}, {40, 3}}, 6};
  kept_by kept = cached::kept(kv());
  kept.within = kept.lse_within = 2e-2;  // of scores of some hundred, in 16-bit pairs
  const cached text(kv(), shape);
  CHECK(support::wrong_attention<float, float>(text, kept, shape, tried<>()) == "");
}

TEST_CASE("attend: several items read one sequence on the device", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"items of two sequences", 2, 4, {{50, 2}, {200, 1}}};
  const pages text({}, {}, 16, shape);
  support::attention_case c = support::case_of(text, kept_pages(), shape, tried<>());
  c.items = items_of({{50, 2}, {200, 1}, {52, 0, 3}, {30, 0, 1}});
  c.items[2].sequence = 0, c.items[3].sequence = 1;
  trial<float, float, pages, causal> one(text, c);
  CHECK(one.wrong_plan() == "");
  CHECK(one.wrong(one.run()) == "");
}

TEST_CASE("attend: bits on the device do not depend on where pages lie", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"pages in any order", 2, 4, {{700, 1}, {33, 4}, {0, 1}, {111, 2}}};
  std::vector<support::answers> all;
  for (const page_order order : {page_order::up, page_order::down, page_order::shuffled}) {
    const pages text({}, {}, 16, shape, order);
    const trial<float, float, pages, causal> one(text, kept_pages(), shape);
    all.push_back(one.run());
    CHECK(one.wrong(all.back()) == "");
  }
  CHECK(all[1].same_as(all[0]));
  CHECK(all[2].same_as(all[0]));
}

TEST_CASE("attend: pages beyond 2^32 bytes on the device", "[attention][gpu]") {
  support::require_gpu();
  const attend_shape shape{"far pages", 2, 4, {{110, 2}}};
  const pages text({}, {}, 16, shape);
  const trial<float, float, pages, causal> one(text, kept_pages(), shape);
  auto seg = one.view().first();
  const auto& here = text.view().first().planes;
  const idx count = here.pages, apart = round_up((idx(5) << 30) / count, 256), page = here.k_codes.page_stride;
  std::size_t room = 0, total = 0;
  support::must(cudaMemGetInfo(&room, &total), "the device's memory");
  if (room < std::size_t(count * apart) + (std::size_t(1) << 28)) support::skip("too little memory on the device");
  const support::device_array<unsigned char> far{std::size_t(count * apart)};
  for (idx p = 0; p < count; ++p)
    support::must(
        cudaMemcpy(far.data() + p * apart, here.k_codes.base + p * page, std::size_t(page), cudaMemcpyHostToDevice),
        "a page");
  seg.planes.v_codes.base = far.data() + (here.v_codes.base - here.k_codes.base);
  seg.planes.k_codes.base = far.data();
  seg.planes.k_codes.page_stride = seg.planes.v_codes.page_stride = apart;
  const support::answers near = one.run();
  one.poison();
  one.launch(gpu(), make_view<memory_space::device>(2, seg), one.step());
  CHECK(one.collect(2).same_as(near));
  CHECK(one.wrong(near) == "");
}

TEST_CASE("attend: layers follow each other on the device without waiting", "[attention][gpu]") {
  support::require_gpu();
  // The layers' kernels share a step's scratch, and each may start while the one before it ends.
  const attend_shape shape{"layers", 2, 4, {{2000, 1}, {33, 4}, {}, {900, 2}, {5, 1}}};
  const pages first({}, {}, 16, shape, page_order::up), second({}, {}, 16, shape, page_order::down, 91);
  using trial_type = trial<float, float, pages, causal>;
  std::vector<std::unique_ptr<trial_type>> layers;
  for (int i = 0; i < 12; ++i)
    layers.push_back(std::make_unique<trial_type>(i % 2 ? second : first, kept_pages(), shape));
  std::vector<support::answers> alone;
  for (const auto& layer : layers) alone.push_back(layer->run());
  const stream s;
  for (const auto& layer : layers) layer->poison();
  support::must(cudaDeviceSynchronize(), "poison");
  for (const auto& layer : layers) layer->launch(gpu(s), layer->view(), layers[0]->step());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    INFO("layer " << i);
    CHECK(layers[i]->collect(layers[i]->asked().q_rows()).same_as(alone[i]));
  }
  CHECK(layers[0]->wrong(alone[0]) == "");
  CHECK(layers[1]->wrong(alone[1]) == "");
}

TEST_CASE("attend: the current device does the work", "[attention][gpu]") {
  support::require_gpu();
  int devices = 0;
  support::must(cudaGetDeviceCount(&devices), "how many devices");
  if (devices < 2) support::skip("one GPU");
  support::must(cudaSetDevice(1), "another device");
  CHECK(wrong({"on the second device", 2, 4, {{700, 1}, {33, 4}}}) == "");
  support::must(cudaSetDevice(0), "the first device");
}

TEST_CASE("attend: what no kernel takes is refused on the device before anything is written", "[attention][gpu]") {
  support::require_gpu();
  using support::containing;
  const attend_shape shape{"refused", 2, 4, {{30, 3}, {5, 1}}};
  const pages text({}, {}, 16, shape);
  const trial<float, float, pages, causal> one(text, kept_pages(), shape);
  const auto& attend = one.attention();
  const rows<const float> q = one.q().read();
  const rows<float> out = one.out().rows();
  const auto call = [&](auto view, device_step s, rows<const float> qs, rows<float> outs, natural_lse lse) {
    attend(gpu(), view, s, qs, outs, lse);
  };
  const auto with_heads = [](auto x, int heads) { return x.heads = heads, x; };
  const auto with_dim = [](auto x, int dim) { return x.dim = dim, x; };
  const auto without_data = [](auto x) { return x.data = nullptr, x; };
  const auto with_token_stride = [](auto x, idx stride) { return x.token_stride = stride, x; };
  const auto with_scratch = [](device_step s, std::size_t bytes) { return s.scratch_bytes = bytes, s; };
  const auto v = one.view();
  const device_step& s = one.step();
  CHECK_THROWS_WITH(call(v, s, with_heads(q, 4), with_heads(out, 4), {}), containing("Q has 4 heads"));
  CHECK_THROWS_WITH(call(v, s, q, with_heads(out, 4), {}), containing("the output has 4 heads"));
  CHECK_THROWS_WITH(call(v, s, with_dim(q, 56), out, {}), containing("rows of Q have 56 numbers"));
  CHECK_THROWS_WITH(call(v, s, q, with_dim(out, 56), {}), containing("heads of 56"));
  CHECK_THROWS_WITH(call(v, s, without_data(q), out, {}), containing("Q of 4 rows is null"));
  CHECK_THROWS_WITH(call(v, s, q, without_data(out), {}), containing("the output of 4 rows is null"));
  CHECK_THROWS_WITH(call(v, s, q, with_token_stride(out, 64), {}), containing("lie on each other"));
  CHECK_THROWS_WITH(call(v, s, q, out, {one.lse().data, 7}), containing("rows of log-sum-exps are 7 apart"));
  CHECK_THROWS_WITH(call(v, with_scratch(s, 1000), q, out, {}), containing("the step's workspace leaves 1000 bytes"));
  CHECK_THROWS_WITH((attention<causal>({}, NAN)(gpu(), v, s, q, out)), containing("scores are scaled by nan"));
  device_step of_another = s;  // whose kernels leave other items to blocks
  of_another.work.shape.longest = 7;
  CHECK_THROWS_WITH(call(v, of_another, q, out, {}), containing("for items of up to 7 queries"));

  const auto with_heads_of_view = [&](int heads) { return make_view<memory_space::device>(heads, v.first()); };
  CHECK_THROWS_WITH(call(with_heads_of_view(1), s, q, out, {}), containing("the step is planned for 2 KV heads"));
  CHECK_THROWS_WITH(call(with_heads_of_view(0), s, q, out, {}), containing("a view of 0 KV heads"));

  // Planes that kernels cannot copy 16 bytes at a time from.
  const auto misplaced = [&](idx plane::*what, plane geometry::*which) {
    auto seg = v.first();
    seg.planes.*which.*what += 8;
    return make_view<memory_space::device>(2, seg);
  };
  for (plane geometry::*which : {&geometry::k_codes, &geometry::v_codes}) {
    for (idx plane::*what : {&plane::page_stride, &plane::head_stride, &plane::record_stride})
      CHECK_THROWS_WITH(call(misplaced(what, which), s, q, out, {}), containing("multiples of 16 are needed"));
    auto seg = v.first();
    (seg.planes.*which).base += 8;
    CHECK_THROWS_WITH(call(make_view<memory_space::device>(2, seg), s, q, out, {}),
                      containing("multiples of 16 are needed"));
    seg = v.first();
    (seg.planes.*which).page_stride = idx(1) << 32;
    CHECK_THROWS_WITH(call(make_view<memory_space::device>(2, seg), s, q, out, {}),
                      containing("takes distances from 0 to 4294967295"));
  }
  const support::answers nothing = one.collect(0);
  CHECK(nothing.wrong == "");
}

TEST_CASE("attend: what no kernel takes is refused when it is planned", "[attention][gpu]") {
  support::require_gpu();
  using support::containing;
  using body = segment<contiguous, interval<part::body, keep_all>, fp16<>>;
  const auto view = [](int dim, int heads) {
    body seg;
    seg.k = seg.v = fp16<>(dim);
    return make_view<memory_space::device>(heads, seg);
  };
  const support::device_array<unsigned char> workspace(1 << 20);
  const support::device_array<int> numbers(4);
  device_batch batch{3, numbers.data(), numbers.data(), numbers.data()};
  batch.q_heads = 4;
  const auto planned = [&](int dim, int heads) { return plan(gpu(), view(dim, heads), batch, workspace.span()); };
  CHECK_THROWS_WITH(workspace_bytes(gpu(), view(264, 2), 1, 4), containing("attention on the device takes up to 256"));
  CHECK_THROWS_WITH(planned(264, 2), containing("attention on the device takes up to 256"));
  CHECK_THROWS_WITH(workspace_bytes(gpu(), view(64, 3), 1, 4), containing("a multiple of the cache's 3 is needed"));
  CHECK_THROWS_WITH(planned(64, 3), containing("a multiple of the cache's 3 is needed"));
  CHECK_THROWS_WITH(workspace_bytes(gpu(), view(64, 4097), 1, 4097), containing("a view of 4097 KV heads"));
  CHECK_THROWS_WITH(planned(60, 2), containing("a positive multiple of 8 is needed"));
  CHECK_THROWS_WITH(workspace_bytes(gpu(), view(64, 2), -1, 4), containing("that may not be negative"));
  CHECK_THROWS_WITH(plan(gpu(), view(64, 2), batch, workspace.span().first(3000)), containing("see workspace_bytes"));
  batch.new_tokens = nullptr;
  CHECK_THROWS_WITH(planned(64, 2), containing("token counts is null"));
}
