#pragma once

#include "support/device_array.cuh"
#include "support/mirrored.cuh"

#include <kvilt/kvilt.cuh>

namespace support {

// A step whose items the host has made, for attention over `view`. What it refers to lies in `workspace`.
template <kvilt::device_view View>
kvilt::device_step device_step_of(const kvilt::gpu& exec, std::span<const kvilt::step_item> items, const View& view,
                                  int q_heads, std::span<unsigned char> workspace) {
  int most_queries = 0, most_new_tokens = 0;
  for (const kvilt::step_item& item : items) {
    most_queries = item.queries > most_queries ? item.queries : most_queries;
    most_new_tokens = item.new_tokens > most_new_tokens ? item.new_tokens : most_new_tokens;
  }
  kvilt::step_item* there = nullptr;
  kvilt::device_step s =
      kvilt::detail::place_device_step(view, int(items.size()), q_heads, most_queries, workspace, there);
  must(cudaMemcpy(there, items.data(), items.size_bytes(), cudaMemcpyHostToDevice), "a step's items");
  for (const kvilt::step_item& item : items) s.q_rows += item.queries, s.kv_rows += item.new_tokens;
  s.most_new_tokens = most_new_tokens;
  kvilt::detail::share_work(exec, view, s);
  return s;
}

// A batch whose arrays are on the device, as an engine's are.
class batch_on_device {
 public:
  batch_on_device(std::span<const kvilt::step_item> items, int q_heads)
      : sequences_(items.size()), before_(items.size()), new_tokens_(items.size()), queries_(items.size()) {
    said_.size = int(items.size());
    said_.q_heads = q_heads;
    said_.most_new_tokens = said_.most_queries = 0;
    for (const kvilt::step_item& item : items) {
      said_.q_rows += item.queries, said_.kv_rows += item.new_tokens;
      said_.most_queries = item.queries > said_.most_queries ? item.queries : said_.most_queries;
      said_.most_new_tokens = item.new_tokens > said_.most_new_tokens ? item.new_tokens : said_.most_new_tokens;
    }
    put(items);
  }

  // Other lengths for as many sequences; bounds stay.
  void put(std::span<const kvilt::step_item> items) {
    std::vector<int> sequences, before, new_tokens, queries;
    for (const kvilt::step_item& item : items) {
      const bool padding = item.sequence < 0;  // whose other numbers nobody reads
      sequences.push_back(item.sequence), before.push_back(padding ? -7 : int(item.n.before));
      new_tokens.push_back(padding ? 1 << 30 : item.new_tokens), queries.push_back(padding ? 1 << 30 : item.queries);
    }
    sequences_.put(sequences), before_.put(before), new_tokens_.put(new_tokens), queries_.put(queries);
  }

  kvilt::device_batch said() const {
    kvilt::device_batch b = said_;
    b.sequences = sequences_.data(), b.length_before = before_.data();
    b.new_tokens = new_tokens_.data(), b.queries = queries_.data();
    return b;
  }
  kvilt::device_batch& bounds() { return said_; }

 private:
  kvilt::device_batch said_;
  device_array<int> sequences_, before_, new_tokens_, queries_;
};

}  // namespace support
