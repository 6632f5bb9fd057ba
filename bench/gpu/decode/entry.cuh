#pragma once

#include <kvilt/gpu/gpu.cuh>

#include <memory>
#include <string>
#include <vector>

namespace bench {

using kvilt::idx;

/// One step of a batch whose sequences are alike.
struct decode_shape {
  int batch = 1;
  int context = 8192;  // tokens of a sequence, those of the step included
  int q_heads = 32;
  int kv_heads = 8;
  int queries = 1;  // newest tokens of a sequence

  /// As in a row's name, and as a table's cells.
  std::string name() const {
    const auto text = [](int n) { return std::to_string(n); };
    return text(batch) + 'x' + text(context) + "/heads:" + text(q_heads) + ':' + text(kv_heads) +
           "/queries:" + text(queries);
  }
  std::string cells() const {
    std::string words;
    for (const int n : {batch, context, q_heads, kv_heads, queries}) words += ',' + std::to_string(n);
    return words.substr(1);
  }

  friend bool operator==(const decode_shape&, const decode_shape&) = default;
};

/// Full caches, their policy's type erased: as many layers as are in no cache of the device.
class decode_subject {
 public:
  virtual ~decode_subject() = default;
  virtual int layers() const = 0;
  /// That attention over one layer reads: codes and params.
  virtual idx bytes() const = 0;
  /// One layer's attention, all of its kernels.
  virtual void attend(const kvilt::gpu& exec, int layer) = 0;
  /// Of what the last layer gives for one KV head of one sequence, against double precision.
  virtual double error() = 0;
};

/// A line of the matrix.
struct decode_entry {
  std::string format, layout;
  int dim = 0;
  std::unique_ptr<decode_subject> (*make)(const decode_shape&) = nullptr;
};

/// NOTE: a file each, so that they compile beside each other.
using decode_entries = std::vector<decode_entry>;
void add_bf16_fixed(decode_entries& to);
void add_bf16_paged(decode_entries& to);
void add_bf16_dims(decode_entries& to);
void add_e4m3_fixed(decode_entries& to);
void add_e4m3_paged(decode_entries& to);
void add_q8_fixed(decode_entries& to);
void add_q8_paged(decode_entries& to);
void add_q8_dims(decode_entries& to);
void add_others(decode_entries& to);

}  // namespace bench
