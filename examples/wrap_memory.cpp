// An engine that owns its memory, its page table and its lengths gives kvilt a view of them: no copy, no owner.
// The pool here has the shape of vLLM's: [K or V][page][token][kv head][dim] in fp16.
#include <kvilt/kvilt.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kv_heads = 2, q_heads = 8, dim = 64, page_size = 16, pages = 12;

/// The engine's pool as a view. Strides say how the memory lies; nothing is rebuilt from shapes.
auto wrap(std::vector<kvilt::float16>& pool, const std::vector<kvilt::page_id>& table, kvilt::idx width) {
  const kvilt::idx row = dim * 2, token = kv_heads * row, page = page_size * token;  // bytes
  auto* k = reinterpret_cast<unsigned char*>(pool.data());
  unsigned char* v = k + pages * page;
  const kvilt::geometry planes{.k_codes = {k, page, row, token},
                               .k_params = {},
                               .v_codes = {v, page, row, token},
                               .v_params = {},
                               .pages = pages};
  const kvilt::segment<kvilt::paged<page_size>, kvilt::interval<kvilt::part::body, kvilt::keep_all>, kvilt::fp16<dim>>
      body{.layout = {table.data(), width}, .retention = {}, .k = {}, .v = {}, .planes = planes};
  return kvilt::make_view<kvilt::memory_space::host>(kv_heads, body);
}

}  // namespace

int main() {
  // The engine's: 2 sequences of up to 4 pages, of which one has 20 tokens and the other none.
  std::vector<kvilt::float16> pool(std::size_t(2) * pages * page_size * kv_heads * dim, {0x3c00});  // ones
  const std::vector<kvilt::page_id> table{7, 3, -1, -1, 5, -1, -1, -1};
  const std::vector<int> slots{0, 1}, new_tokens{1, 3};
  const std::vector<kvilt::idx> lengths{20, 0};

  const kvilt::host host;
  std::vector<unsigned char> workspace(kvilt::workspace_bytes(host, 2, dim, dim));
  const auto view = wrap(pool, table, 4);
  const kvilt::step step =
      plan(host, {.sequences = slots, .length_before = lengths, .new_tokens = new_tokens}, workspace);

  const int tokens = int(step.kv_rows);
  std::vector<float> q(std::size_t(tokens) * q_heads * dim, 0.1f), k(std::size_t(tokens) * kv_heads * dim, 1.0f),
      v(k.size(), 3.0f), out(q.size());
  append(host, view, step, kvilt::packed_rows(k.data(), kv_heads, dim), kvilt::packed_rows(v.data(), kv_heads, dim));
  kvilt::attention{kvilt::causal{}}(host, view, step, kvilt::packed_rows(q.data(), q_heads, dim),
                                    kvilt::packed_rows(out.data(), q_heads, dim));

  // All keys are alike, so the output is the mean of the values: 20 ones and a three, and threes alone.
  const float first = (20 + 3) / 21.0f, second = 3;
  std::printf("%.4f (expected %.4f), %.4f (expected %.4f)\n", double(out[0]), double(first),
              double(out[std::size_t(q_heads) * dim]), double(second));
  return std::abs(out[0] - first) < 1e-5f && std::abs(out[std::size_t(q_heads) * dim] - second) < 1e-5f ? 0 : 1;
}
