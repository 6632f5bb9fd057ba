#pragma once

#include "shape.hpp"

#include <vector>

namespace example {

/// The last step once more, by the host backend over pools in its own memory: the same view, the same verbs.
class host_check {
 public:
  /// `batch` is the step's, in the host's memory. Refers to it.
  host_check(const engine_shape& shape, const batch_lists& batch);

  /// A pool that the host fills itself from the texts of everyone in the batch, at the batch's pages.
  std::vector<bfloat16> filled_pool();

  /// The largest difference between the host's answers over `pool` and `out`, [layers][rows][q_heads][dim], which the
  /// device gave; infinite where one of them is no number.
  double difference(std::vector<bfloat16>& pool, const std::vector<bfloat16>& out);

 private:
  std::vector<bfloat16> rows(int layer, const std::vector<idx>& first, const std::vector<int>& counts) const;
  kvilt::step planned(const std::vector<idx>& first, const std::vector<int>& counts);
  auto view(std::vector<bfloat16>& pool, int layer) const;

  engine_shape shape_;
  batch_lists batch_;
  std::vector<int> sequences_, new_tokens_, lengths_;  // [seats]; lengths after the step
  std::vector<idx> length_before_, nothing_;           // [seats]
  kvilt::host host_;
  std::vector<unsigned char> workspace_;
  kvilt::rope_table rope_ = model::rope();
};

}  // namespace example
