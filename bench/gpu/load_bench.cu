// What memory gives to a decode kernel that does nothing but load: every warp has a KV head of its own and copies rows
// of K and V into a ring in shared memory, 16 tokens at a time, without ever waiting for another warp. Beside each row
// the time of a plain read of as many bytes.
//   bench_gpu_load [--quick] [--runs=N] [--csv=FILE] [--commit=ID] [--benchmark_filter=...]
// The best of several depths of the ring and blocks a multiprocessor is shown, with both.
#include "ceilings.cuh"
#include "layers.cuh"
#include "options.hpp"
#include "program.cuh"

#include <kvilt/format/floating.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using kvilt::idx;

constexpr int kv_heads = 8;
constexpr int step_tokens = 16;

__device__ void copy_16_bytes(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Groups>
__device__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

/// The steps of one warp: 16 tokens of K and V of one KV head, of one sequence after the other.
template <class Segment>
struct walk {
  static constexpr int row_bytes = Segment::k_format::get() * 2, chunks = row_bytes / 16;
  static constexpr int rows_at_once = 32 / chunks, stage_bytes = 2 * step_tokens * row_bytes;

  const Segment& seg;
  int head;
  idx steps_of_sequence;
  int lane = int(threadIdx.x) % 32;
  kvilt::place next = {};  // of row `lane % 16` of the step that is copied next

  __device__ void look_up(idx step) {
    next = seg.layout.locate(int(step / steps_of_sequence), head,
                             step % steps_of_sequence * step_tokens + lane % step_tokens);
  }
  /// Copies the step that was looked up last. to: [2][16][row_bytes] in shared memory
  __device__ void copy(unsigned to) const {
    const idx page = next.page, row = next.row;
    const idx k = page * seg.planes.k_codes.page_stride + row * seg.planes.k_codes.record_stride;
    const idx v = page * seg.planes.v_codes.page_stride + row * seg.planes.v_codes.record_stride;
    const unsigned char* const k_base = seg.planes.k_codes.base + head * seg.planes.k_codes.head_stride;
    const unsigned char* const v_base = seg.planes.v_codes.base + head * seg.planes.v_codes.head_stride;
    const int chunk = lane % chunks * 16;
#pragma unroll
    for (int first = 0; first < step_tokens; first += rows_at_once) {
      const int r = first + lane / chunks;
      copy_16_bytes(to + unsigned(r * row_bytes + chunk), k_base + __shfl_sync(0xffffffffu, k, r) + chunk);
      copy_16_bytes(to + unsigned((step_tokens + r) * row_bytes + chunk),
                    v_base + __shfl_sync(0xffffffffu, v, r) + chunk);
    }
  }
};

/// Blocks have equal shares of all sequences' steps; the warps of one are the KV heads and walk the same tokens. With
/// `Sums` what was copied is added up, to see that all of it came.
template <int Stages, bool Sums, class Segment>
__global__ void __launch_bounds__(32 * kv_heads)
    load_kernel(const __grid_constant__ Segment seg, int sequences, idx steps_of_sequence, unsigned* sums) {
  extern __shared__ uint4 ring[];
  using walk_type = walk<Segment>;
  const int head = int(threadIdx.x) / 32;
  const idx steps = sequences * steps_of_sequence;
  const idx begin = steps * blockIdx.x / gridDim.x, end = steps * (blockIdx.x + 1) / gridDim.x;
  uint4* const mine = ring + head * Stages * walk_type::stage_bytes / 16;
  const unsigned base = unsigned(__cvta_generic_to_shared(mine));
  walk_type at{seg, head, steps_of_sequence};
  unsigned sum = 0;
  if (begin < end) at.look_up(begin);
  // NOTE: where the next rows lie is asked for a step ahead, so that no copy waits for the page table.
  const auto issue = [&](idx step, int slot) {
    if (step < end) at.copy(base + unsigned(slot * walk_type::stage_bytes));
    end_group();
    if (step + 1 < end) at.look_up(step + 1);
  };
  for (int i = 0; i < Stages; ++i) issue(begin + i, i);
  int slot = 0;
  for (idx step = begin; step < end; ++step) {
    wait_for_all_but<Stages - 1>();
    if constexpr (Sums) {
      __syncwarp();
      const uint4* const stage = mine + slot * walk_type::stage_bytes / 16;
      for (int i = int(threadIdx.x) % 32; i < walk_type::stage_bytes / 16; i += 32)
        sum += stage[i].x + stage[i].y + stage[i].z + stage[i].w;
      __syncwarp();
    }
    issue(step + Stages, slot);
    slot = slot + 1 == Stages ? 0 : slot + 1;
  }
  if constexpr (Sums) atomicAdd(sums, sum);
}

/// The same sum by a thread a row.
template <class Segment>
__global__ void sum_kernel(const __grid_constant__ Segment seg, int sequences, idx tokens, unsigned* sums) {
  const idx rows = sequences * tokens * kv_heads, step = idx(gridDim.x) * blockDim.x;
  unsigned sum = 0;
  for (idx row = idx(blockIdx.x) * blockDim.x + threadIdx.x; row < rows; row += step) {
    const int head = int(row % kv_heads);
    const kvilt::place p = seg.layout.locate(int(row / kv_heads / tokens), head, row / kv_heads % tokens);
    const auto* const k = reinterpret_cast<const unsigned*>(seg.k_row(p, head).codes);
    const auto* const v = reinterpret_cast<const unsigned*>(seg.v_row(p, head).codes);
    for (int i = 0; i < walk<Segment>::row_bytes / 4; ++i) sum += k[i] + v[i];
  }
  atomicAdd(sums, sum);
}

struct load_shape {
  int sequences, tokens;
};

/// One way to run the loop.
struct setting {
  int stages, blocks;  // blocks on a multiprocessor
};
constexpr setting settings[] = {{2, 1}, {3, 1}, {4, 1}, {6, 1}, {2, 2}, {3, 2}, {4, 2}, {2, 3}, {3, 3}, {2, 4}, {4, 4}};

template <class Policy>
class loaded_layers {
  using segment_type = typename Policy::body_segment;
  using walk_type = walk<segment_type>;

 public:
  explicit loaded_layers(const load_shape& s)
      : shape_(s), layers_(Policy(), count(), s.sequences, kv_heads, s.tokens, 1), sums_(2) {
    for (int layer = 0; layer < count(); ++layer)
      bench::fill_rows(stream_, layers_.view(layer), {s.tokens, s.tokens, s.tokens, s.tokens}, s.sequences,
                       std::uint64_t(layer));
    stream_.wait();
  }

  const bench::stream& stream() const { return stream_; }
  idx bytes() const { return idx(shape_.sequences) * shape_.tokens * kv_heads * bench::row_bytes(Policy()); }
  int count() const { return int(std::max<idx>(kvilt::ceil_div(idx(1) << 30, bytes()), 2)); }

  static int shared_bytes(const setting& s) { return kv_heads * s.stages * walk_type::stage_bytes; }
  // NOTE: 1 KiB of each block is the system's.
  static bool fits(const setting& s) {
    int device = 0, processor = 0;
    bench::check(cudaGetDevice(&device), "which device is current");
    bench::check(cudaDeviceGetAttribute(&processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
                 "an attribute of the current device");
    return shared_bytes(s) <= kvilt::detail::device_limits::current().shared_bytes &&
           s.blocks * (shared_bytes(s) + 1024) <= processor;
  }

  template <bool Sums>
  void load(const setting& s, int layer) {
    const auto kernel = s.stages == 2   ? load_kernel<2, Sums, segment_type>
                        : s.stages == 3 ? load_kernel<3, Sums, segment_type>
                        : s.stages == 4 ? load_kernel<4, Sums, segment_type>
                                        : load_kernel<6, Sums, segment_type>;
    kvilt::detail::launch(stream_, kernel, dim3(bench::blocks_of(s.blocks)), dim3(32 * kv_heads),
                          std::size_t(shared_bytes(s)), false, layers_.view(layer).first(), shape_.sequences, steps(),
                          sums_.data());
  }

  // Whether all was copied that is there.
  bool right(const setting& s) {
    sums_.fill(0);
    load<true>(s, count() - 1);
    sum_kernel<<<bench::blocks_of(8), 128, 0, stream_>>>(layers_.view(count() - 1).first(), shape_.sequences,
                                                         idx(shape_.tokens), sums_.data() + 1);
    bench::check(cudaGetLastError(), "a launch");
    stream_.wait();
    const std::vector<unsigned> sums = sums_.copied();
    return sums[0] == sums[1];
  }

 private:
  idx steps() const { return shape_.tokens / step_tokens; }

  load_shape shape_;
  bench::stream stream_;
  bench::kv_layers<Policy> layers_;
  bench::device_array<unsigned> sums_;
};

class measurement {
 public:
  explicit measurement(int runs) : runs_(runs), ceilings_(stream_, runs) {}

  template <class Policy>
  void measure(benchmark::State& state, const std::string& label, const load_shape& shape) {
    loaded_layers<Policy> layers(shape);
    double best = 1e30;
    setting chosen{};
    bool right = true;
    for (const setting& s : settings) {
      if (!layers.fits(s)) continue;
      right = right && layers.right(s);
      const bench::graph chain(layers.stream(), [&] {
        for (int layer = 0; layer < layers.count(); ++layer) layers.template load<false>(s, layer);
      });
      const double seconds = bench::median_seconds(layers.stream(), chain, runs_) / layers.count();
      if (seconds < best) best = seconds, chosen = s;
    }
    if (!right) ++failures_;
    for (auto _ : state) state.SetIterationTime(best);
    const double bytes = double(layers.bytes()), read = ceilings_.read_seconds(layers.bytes());
    state.SetLabel(label + ',' + std::to_string(chosen.stages) + ',' + std::to_string(chosen.blocks) +
                   (right ? ",ok" : ",FAIL"));
    state.counters["us"] = 1e6 * best;
    state.counters["MB"] = 1e-6 * bytes;
    state.counters["GB_s"] = 1e-9 * bytes / best;
    state.counters["read_GB_s"] = 1e-9 * bytes / read;
    state.counters["of_read"] = 100 * read / best;
  }

  int failures() const { return failures_; }

 private:
  int runs_;
  bench::stream stream_;
  bench::ceilings ceilings_;
  int failures_ = 0;
};

template <class Layout, int RowBytes>
void add_rows(const char* layout, measurement& m, bool quick) {
  using policy = kvilt::policy<Layout, kvilt::bf16<RowBytes / 2>>;
  std::vector<load_shape> shapes{{16, 8192}};
  if (!quick) shapes.insert(shapes.begin(), {1, 8192});
  for (const load_shape& s : shapes) {
    const std::string row = std::to_string(RowBytes), sequences = std::to_string(s.sequences);
    const std::string tokens = std::to_string(s.tokens);
    const std::string label = row + ',' + layout + ',' + sequences + ',' + tokens;
    benchmark::RegisterBenchmark(("bytes:" + row + '/' + layout + '/' + sequences + 'x' + tokens).c_str(),
                                 [&m, label, s](benchmark::State& state) { m.measure<policy>(state, label, s); })
        ->Iterations(1)
        ->UseManualTime();
  }
}

template <int RowBytes>
void add_layouts(measurement& m, bool quick) {
  add_rows<kvilt::contiguous, RowBytes>("contiguous", m, quick);
  add_rows<kvilt::paged<64>, RowBytes>("paged64", m, quick);
  add_rows<kvilt::paged<16>, RowBytes>("paged16", m, quick);
  add_rows<kvilt::paged<1>, RowBytes>("paged1", m, quick);
}

int run(int argc, char** argv) {
  const bench::options o = bench::read_options(argc, argv);
  measurement m(o.runs);
  add_layouts<256>(m, o.quick);
  add_layouts<128>(m, o.quick);
  add_layouts<64>(m, o.quick);
  bench::run_into_table({{"row_bytes", 9},
                         {"layout", 10},
                         {"sequences", 9},
                         {"tokens", 6},
                         {"stages", 6},
                         {"blocks", 6},
                         {"check", 5},
                         {"us", 8, "%.2f"},
                         {"MB", 6, "%.1f"},
                         {"GB_s", 5, "%.0f"},
                         {"read_GB_s", 9, "%.0f"},
                         {"of_read", 7, "%.1f"}},
                        o);
  return bench::result_of(m.failures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_load", run, argc, argv);
}
