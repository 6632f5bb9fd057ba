#pragma once

#include <kvilt/format/format.hpp>

#include <cstddef>
#include <vector>

namespace example {

// What a format's largest code stands for at a scale of 1.
template <class Format>
float largest_at_scale_1(const Format& format) {
  float scale = 1, decoded[8];
  const std::vector<float> row(std::size_t(format.dim()), 1e30f);  // codes saturate
  std::vector<unsigned char> codes(std::size_t(format.code_bytes()));
  const kvilt::row_ref record{codes.data(), reinterpret_cast<unsigned char*>(&scale), 0};
  format.encode(row.data(), record);
  format.decode(record, 0, decoded);
  return decoded[0];
}

// Static scales at which the largest numbers of a text take the largest code; none for formats that write their own.
template <class Format>
std::vector<float> scales_for(const Format& format, std::vector<float> ranges) {
  if constexpr (!kvilt::has_static_scale<Format>) {
    return {};
  } else {
    for (float& r : ranges) r /= largest_at_scale_1(format);
    return ranges;
  }
}

}  // namespace example
