#pragma once

#include <string>
#include <vector>

namespace example {

inline constexpr double letter_width = 7.1, line_height = 14;  // pixels, about

struct point {
  double x = 0;
  double y = 0;
};

// A name beside a point, in pixels; y goes down.
struct label {
  std::string text;
  point anchor;      // what it names
  point position;    // of the text's left end, at half its height
  bool far = false;  // wants a line to its anchor
};

// Where names fit between two corners of a picture: over each other, over points and over the line through `path` as
// little as possible.
std::vector<label> place_labels(const std::vector<std::string>& names, const std::vector<point>& points,
                                const std::vector<point>& path, point low, point high);

}  // namespace example
