#include "cache/device_twin.hpp"
#include "support/gpu.hpp"
#include "support/managed.hpp"

#include <kvilt/kvilt.cuh>

// The same histories as on a stream that is no GPU's, and what only a GPU can do wrong.
namespace {

using namespace kvilt;
using namespace support;

void check(cudaError_t status) {
  INFO(cudaGetErrorString(status));
  REQUIRE(status == cudaSuccess);
}

class gpu_stream {
 public:
  gpu_stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  gpu_stream(const gpu_stream&) = delete;
  gpu_stream& operator=(const gpu_stream&) = delete;
  ~gpu_stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

template <class View>
__global__ void locate_pages(View view, int rows, idx entries, int step, idx* out) {
  for (idx i = threadIdx.x; i < rows * entries; i += blockDim.x)
    view.each([&](const auto& seg) {
      using layout = typename std::remove_cvref_t<decltype(seg)>::layout_type;
      // Of a tail the body's table tells more.
      if (!fixed_layout<layout> || out[i] == -2)
        out[i] = seg.layout.locate(int(i / entries), 0, i % entries * step).page;
    });
}

// Device memory that is remembered, and 0xff where nothing has been written.
class real_device {
 public:
  gpu exec() const { return cudaStream_t(stream_); }
  kvilt::memory<memory_space::device> memory() { return kvilt::memory<memory_space::device>::from(*this); }
  void* allocate(std::size_t bytes, std::size_t align) {
    last_ = device_memory().allocate(bytes, align);
    check(cudaMemset(last_, 0xff, bytes));
    check(cudaDeviceSynchronize());
    bytes_ += bytes;
    return last_;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept {
    device_memory().deallocate(p, bytes, align);
    bytes_ -= bytes;
  }
  void* last_block() const { return last_; }
  std::size_t bytes() const { return bytes_; }

  void finish() const { check(cudaStreamSynchronize(stream_)); }
  std::vector<unsigned char> read(const void* from, std::size_t bytes) const {
    std::vector<unsigned char> all(bytes);
    if (bytes > 0) check(cudaMemcpy(all.data(), from, bytes, cudaMemcpyDeviceToHost));
    return all;
  }
  void write(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  }
  // Used again while it is large enough, as an engine does.
  std::span<unsigned char> workspace(std::size_t bytes) {
    if (!workspace_ || workspace_->bytes() < bytes) {
      finish();
      workspace_ = std::make_unique<buffer<memory_space::device>>(device_memory(), bytes);
      check(cudaMemset(workspace_->data(), 0xff, bytes));
    }
    return {workspace_->data(), bytes};
  }
  template <class View>
  std::vector<idx> pages(const View& view, int rows, idx entries, int step) const {
    managed<idx> out(std::size_t(rows * entries));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = -2;
    locate_pages<<<1, 128, 0, stream_>>>(view, rows, entries, step, out.data());
    finish_kernels();
    return {out.data(), out.data() + out.size()};
  }

 private:
  gpu_stream stream_;
  void* last_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<buffer<memory_space::device>> workspace_;
};

// Holds the stream up until `*go`, or for about a second.
__global__ void hold(const volatile int* go, int* gave_up) {
  const long long start = clock64();
  while (*go == 0)
    if (clock64() - start > 2000000000) {
      *gave_up = 1;
      return;
    }
}

// What a graph of an engine does with a step: reads it.
__global__ void sum_lengths(device_step s, idx* out) {
  idx sum = 0;
  for (int i = 0; i < s.size; ++i)
    if (s.items[i].sequence >= 0) sum += s.items[i].n.after + 1000 * s.rope_positions[s.items[i].kv_row];
  *out = sum;
}

using kept = policy<paged<4>, fp16<>, q8<>>;
const kept kept_alike(fp16<>(8), q8<>(16));
constexpr cache_shape kept_shape = {.layers = 2, .kv_heads = 2, .sequences = 3, .tokens = 300};
using kept_cache = cache<kept, memory_space::device>;

device_step begin(kept_cache& kv, const gpu& exec, std::span<const sequence> who, int tokens,
                  std::span<unsigned char> workspace, const device_bounds& bounds = {}) {
  const std::vector<int> all(who.size(), tokens);
  std::vector<idx> positions;
  for (std::size_t i = 0; i < who.size() * std::size_t(tokens); ++i) positions.push_back(idx(i) + tokens);
  for (const sequence s : who) kv.reserve(s, tokens);
  return kv.begin(exec, who, all, 4, workspace, positions, bounds);
}

}  // namespace

TEST_CASE("device_cache: on a GPU tables, items and bytes are a host cache's after any history", "[cache][gpu]") {
  require_gpu();
  each_twin_policy([](const auto& policy) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      INFO("K " << name_of(policy.k) << ", seed " << seed);
      real_device device;
      twin pair(device, policy, seed);
      pair.run(120);
    }
  });
}

TEST_CASE("device_cache: a fork of many pages, layers and heads is its parent's bytes", "[cache][gpu]") {
  require_gpu();
  cache_shape large = twin_shape;
  large.layers = 5, large.kv_heads = 3, large.sequences = 60, large.tokens = 60 * 400, large.max_length = 400;
  large.max_step = 390;
  real_device device;
  using policy_type = policy<paged<16>, q4<40>, q8<24>, keep_all, 4, 64>;
  twin pair(device, policy_type(), 7, large);
  // Steps long enough for several pieces, then children in more than one launch.
  pair.open();
  pair.grow(0, 390);
  pair.fork();
  pair.compare_memory();
  for (int i = 0; i < 55; ++i) pair.open();
  pair.reorder(1);
  pair.reorder();
  pair.compare_memory();
}

TEST_CASE("device_cache: begin, fork and reorder do not wait for the stream", "[cache][gpu]") {
  require_gpu();
  real_device device;
  kept_cache kv(kept_shape, device.memory(), kept_alike);
  const sequence s = kv.open();
  const auto workspace = device.workspace(kv.workspace_bytes(device.exec(), 1, 4));
  const auto go_on = [&] {  // seven of the eight staged blocks
    for (int i = 0; i < 5; ++i) kv.commit(begin(kv, device.exec(), {&s, 1}, 1, workspace));
    const sequence child = kv.fork(device.exec(), s);
    const sequence both[] = {s, child};
    const int parents[] = {1, 1};
    kv.reorder(device.exec(), both, parents);
    kv.close(child);
  };
  go_on();  // memory is allocated, kernels are loaded
  go_on();
  device.finish();
  managed<int> flags(2);
  int* pinned = nullptr;
  check(cudaMallocHost(&pinned, sizeof(int)));
  *pinned = 0;
  hold<<<1, 1, 0, device.exec().stream()>>>(pinned, flags.data());
  check(cudaGetLastError());
  go_on();
  *static_cast<volatile int*>(pinned) = 1;
  device.finish();
  CHECK(flags[0] == 0);
  check(cudaFreeHost(pinned));
}

TEST_CASE("device_cache: what is staged is read before it is written again", "[cache][gpu]") {
  require_gpu();
  real_device device;
  kept_cache kv(kept_shape, device.memory(), kept_alike);
  const sequence s[] = {kv.open(), kv.open()};
  constexpr int steps = 3 * detail::staging::blocks + 1;
  const std::size_t bytes = kv.workspace_bytes(device.exec(), 2, 4, 3) / 256 * 256 + 256;
  const auto workspace = device.workspace(bytes * steps);
  kv.commit(begin(kv, device.exec(), s, 1, workspace.first(bytes)));
  managed<int> flags(2);
  hold<<<1, 1, 0, device.exec().stream()>>>(flags.data(), flags.data() + 1);  // until it gives up
  check(cudaGetLastError());
  std::vector<device_step> begun;
  for (int i = 0; i < steps; ++i) {
    begun.push_back(begin(kv, device.exec(), s, 1 + i % 3, workspace.subspan(bytes * std::size_t(i), bytes)));
    kv.commit(begun.back());
  }
  device.finish();
  idx length = 1;
  for (int i = 0; i < steps; ++i) {
    const device_step& step = begun[std::size_t(i)];
    INFO("step " << i << " of " << steps);
    const int tokens = 1 + i % 3;
    const auto items = device.read(step.items, 2 * sizeof(step_item));
    const auto positions = device.read(step.rope_positions, std::size_t(2 * tokens) * sizeof(idx));
    for (int which = 0; which < 2; ++which) {
      step_item got;
      std::memcpy(&got, items.data() + std::size_t(which) * sizeof(got), sizeof(got));
      const lengths n{length, length + tokens, length, length + tokens};
      CHECK(same_item(got, {kv.row(s[which]), tokens, tokens, which * tokens, which * tokens, n}));
    }
    for (int t = 0; t < 2 * tokens; ++t) {
      idx got = 0;
      std::memcpy(&got, positions.data() + std::size_t(t) * sizeof(got), sizeof(got));
      CHECK(got == t + tokens);
    }
    length += tokens;
  }
}

TEST_CASE("device_cache: a graph captured once reads each step begun since", "[cache][gpu]") {
  require_gpu();
  real_device device;
  kept_cache kv(kept_shape, device.memory(), kept_alike);
  const auto workspace = device.workspace(kv.workspace_bytes(device.exec(), 5, 4));
  const device_bounds bounds{.sequences = 5, .most_new_tokens = 1};
  managed<idx> out(1);
  std::vector<sequence> open = {kv.open()};
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  const cudaStream_t stream = device.exec().stream();
  for (int round = 0; round < 12; ++round) {
    if (round % 4 == 2 && open.size() < 3) open.push_back(kv.open());
    if (round == 9) kv.close(open.front()), open.erase(open.begin());
    const device_step step = begin(kv, device.exec(), open, 1, workspace, bounds);
    if (!replay) {
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      CHECK_THROWS_WITH(begin(kv, device.exec(), {}, 1, workspace), containing("begun and not committed"));
      sum_lengths<<<1, 1, 0, stream>>>(step, out.data());
      check(cudaStreamEndCapture(stream, &graph));
      check(cudaGraphInstantiate(&replay, graph, 0));
    }
    check(cudaGraphLaunch(replay, stream));
    device.finish();
    idx want = 0;
    for (std::size_t i = 0; i < open.size(); ++i) want += kv.length(open[i]) + 1 + 1000 * idx(i + 1);
    CHECK(out[0] == want);
    kv.commit(step);
  }
  kv.close(open.back()), open.pop_back();  // a fork has a place to go to
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK_THROWS_WITH(begin(kv, device.exec(), open, 1, workspace), containing("is being captured"));
  CHECK_THROWS_WITH(kv.fork(device.exec(), open[0]), containing("is being captured"));
  cudaGraph_t empty = nullptr;
  check(cudaStreamEndCapture(stream, &empty));
  std::size_t nodes = 1;
  check(cudaGraphGetNodes(empty, nullptr, &nodes));
  CHECK(nodes == 0);
  check(cudaGraphDestroy(empty));
  check(cudaGraphExecDestroy(replay));
  check(cudaGraphDestroy(graph));
}

TEST_CASE("device_cache: what is refused launches nothing", "[cache][gpu]") {
  require_gpu();
  real_device device;
  kept_cache kv(kept_shape, device.memory(), kept_alike);
  const sequence s = kv.open();
  kv.reserve(s, 8);
  const int tokens = 3;
  const std::size_t bytes = kv.workspace_bytes(device.exec(), 1, 4, 3);
  const auto workspace = device.workspace(bytes);
  const auto table = device.read(kv.view(0).first().planes.k_codes.base, 64);
  const auto refuses = [&](const std::string& text, auto operation) {
    CHECK_THROWS_AS(operation(), invalid_argument);
    CHECK_THROWS_WITH(operation(), containing(text));
    device.finish();
    CHECK(device.read(workspace.data(), bytes) == std::vector<unsigned char>(bytes, 0xff));
    CHECK(device.read(kv.view(0).first().planes.k_codes.base, 64) == table);
  };
  const auto begin_with = [&](int q_heads, std::span<unsigned char> in, const device_bounds& bounds = {}) {
    kv.begin(device.exec(), {&s, 1}, {&tokens, 1}, q_heads, in, {}, bounds);
  };
  refuses("5 query heads; a multiple of the cache's 2", [&] { begin_with(5, workspace); });
  refuses("a workspace of 444 bytes", [&] { begin_with(4, workspace.first(700)); });
  refuses("is null", [&] { begin_with(4, {static_cast<unsigned char*>(nullptr), bytes}); });
  refuses("1 sequences, 3 new tokens of one and 3 of all is begun within bounds of 1, 2 and 2",
          [&] { begin_with(4, workspace, {.most_new_tokens = 2}); });
  CHECK(kv.length(s) == 0);
  kv.truncate(s, 0);  // no step is begun
}

TEST_CASE("device_cache: a set's groups begin on a GPU as on the host", "[cache][gpu]") {
  require_gpu();
  real_device device;
  test_memory host_side;
  auto there = twin_set(device.memory());
  auto here = twin_set(kvilt::memory<memory_space::host>::from(host_side));
  std::vector<sequence> s = {there.open(), there.open()};
  for (int i = 0; i < 2; ++i) (void)here.open();
  const auto workspace = device.workspace(there.workspace_bytes(device.exec(), 3, 4, 4));
  std::vector<unsigned char> host_workspace(here.workspace_bytes(host(), 3));
  for (int round = 0; round < 4; ++round) {
    std::vector<int> tokens = {1 + round, round % 2, 3};
    tokens.resize(s.size());
    for (std::size_t i = 0; i < s.size(); ++i) there.reserve(s[i], tokens[i]), here.reserve(s[i], tokens[i]);
    const auto a = there.begin(device.exec(), s, tokens, 4, workspace, {}, {.sequences = 3});
    const auto b = here.begin(host(), s, tokens, host_workspace);
    device.finish();
    for (std::size_t g = 0; g < 2; ++g)
      for (std::size_t i = 0; i < s.size(); ++i) {
        step_item got;
        std::memcpy(&got, device.read(a[g].items + i, sizeof(got)).data(), sizeof(got));
        CHECK(same_item(got, b[g].items[i]));
      }
    there.commit(a), here.commit(b);
    if (round == 1) {
      s.push_back(there.fork(device.exec(), s[0]));
      CHECK(here.fork(host(), s[0]) == s[2]);
    }
    if (round == 2) {
      const int parents[] = {2, 2, 1};
      there.reorder(device.exec(), s, parents), here.reorder(host(), s, parents);
    }
  }
}

TEST_CASE("device_cache: a second device is as good as the first, and a cache is used on its own", "[cache][gpu]") {
  require_gpu();
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  if (devices < 2) skip("one GPU");
  check(cudaSetDevice(1));
  {
    real_device device;
    twin pair(device, kept_alike, 3);
    pair.run(60);
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, device.last_block()));
    CHECK(attributes.device == 1);
    const gpu exec = device.exec();
    const auto workspace = device.workspace(pair.there().workspace_bytes(exec, 0, twin_q_heads));
    check(cudaSetDevice(0));
    CHECK_THROWS_WITH(pair.there().begin(exec, {}, {}, twin_q_heads, workspace),
                      containing("a cache on device 1 is used while device 0 is current"));
    // Everything is given back while the first device is current.
  }
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

TEST_CASE("device memory: what is not there is named in bytes, and the next call is not told", "[cache][gpu]") {
  require_gpu();
  const std::size_t bytes = std::size_t(1) << 50;
  CHECK_THROWS_AS(buffer<memory_space::device>(device_memory(), bytes), out_of_pages);
  CHECK_THROWS_WITH(buffer<memory_space::device>(device_memory(), bytes), containing("no 1125899906842624 bytes"));
  CHECK(cudaGetLastError() == cudaSuccess);
  const buffer<memory_space::device> there(device_memory(), 1000);
  const buffer<memory_space::host> pinned(pinned_memory(), 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(there.data()) % buffer<memory_space::device>::alignment == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(pinned.data()) % buffer<memory_space::host>::alignment == 0);
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pinned.data()));
  CHECK(attributes.type == cudaMemoryTypeHost);
}
