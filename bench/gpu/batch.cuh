#pragma once

#include "device.cuh"

#include <kvilt/cache/plan.cuh>

#include <numeric>
#include <span>
#include <vector>

namespace bench {

/// A step of all of a view's sequences, planned on the device.
class device_plan {
 public:
  /// lengths: of each sequence before the step.
  template <class View>
  device_plan(const stream& on, const View& view, const std::vector<int>& lengths, int new_tokens, int q_heads)
      : device_plan(on, view, int(lengths.size()), lengths, new_tokens, q_heads) {}
  /// Of sequences that are alike.
  template <class View>
  device_plan(const stream& on, const View& view, int sequences, idx length, int new_tokens, int q_heads)
      : device_plan(on, view, std::vector<int>(std::size_t(sequences), int(length)), new_tokens, q_heads) {}

  /// Plans once more, as at the beginning of every step.
  template <class View>
  void again(const kvilt::gpu& exec, const View& view) {
    step_ = kvilt::plan(exec, view, batch_, std::span(workspace_.data(), workspace_.bytes()));
  }
  const kvilt::device_step& step() const { return step_; }

 private:
  template <class View>
  device_plan(const stream& on, const View& view, int sequences, const std::vector<int>& lengths, int new_tokens,
              int q_heads)
      : sequences_(numbered(sequences)),
        lengths_(lengths),
        new_tokens_(std::vector<int>(std::size_t(sequences), new_tokens)),
        workspace_(idx(kvilt::workspace_bytes(on, view, sequences, q_heads, new_tokens))) {
    batch_.size = sequences, batch_.q_heads = q_heads;
    batch_.sequences = sequences_.data(), batch_.length_before = lengths_.data();
    batch_.new_tokens = new_tokens_.data();
    batch_.most_new_tokens = batch_.most_queries = new_tokens;
    workspace_.fill(0xff);
    again(on, view);
  }

  static std::vector<int> numbered(int count) {
    std::vector<int> numbers(std::size_t(count), 0);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }

  device_array<int> sequences_, lengths_, new_tokens_;
  device_array<unsigned char> workspace_;
  kvilt::device_batch batch_;
  kvilt::device_step step_;
};

}  // namespace bench
