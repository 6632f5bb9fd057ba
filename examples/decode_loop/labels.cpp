#include "labels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace example {
namespace {

constexpr double marker = 5, near = 12;  // pixels

struct box {
  point low, high;
};

double overlap(const box& a, const box& b) {
  const double width = std::min(a.high.x, b.high.x) - std::max(a.low.x, b.low.x);
  const double height = std::min(a.high.y, b.high.y) - std::max(a.low.y, b.low.y);
  return width > 0 && height > 0 ? width * height : 0;
}

double area(const box& a) {
  return (a.high.x - a.low.x) * (a.high.y - a.low.y);
}

// The text of a size at a distance from a point, in one of eight directions.
box beside(point at, point size, double distance, point direction) {
  const point centre{at.x + direction.x * (distance + size.x / 2), at.y + direction.y * (distance + size.y / 2)};
  return {{centre.x - size.x / 2, centre.y - size.y / 2}, {centre.x + size.x / 2, centre.y + size.y / 2}};
}

box around(point p, double reach) {
  return {{p.x - reach, p.y - reach}, {p.x + reach, p.y + reach}};
}

// A line as a chain of small boxes.
void add_line(point from, point to, std::vector<box>& boxes) {
  const double length = std::hypot(to.x - from.x, to.y - from.y);
  for (double at = 0; at < length; at += 4)
    boxes.push_back(around({from.x + (to.x - from.x) * at / length, from.y + (to.y - from.y) * at / length}, 2));
}

}  // namespace

std::vector<label> place_labels(const std::vector<std::string>& names, const std::vector<point>& points,
                                const std::vector<point>& path, point low, point high) {
  constexpr std::array<point, 8> directions{{{1, 0}, {-1, 0}, {0, -1}, {0, 1}, {1, -1}, {-1, -1}, {1, 1}, {-1, 1}}};
  std::vector<box> taken;
  taken.reserve(points.size());
  for (const point& p : points) taken.push_back(around(p, marker));
  for (std::size_t i = 1; i < path.size(); ++i) add_line(path[i - 1], path[i], taken);
  const box picture{low, high};

  std::vector<label> placed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const point size{letter_width * double(names[i].size()), line_height};
    box best{};
    double least = std::numeric_limits<double>::max(), best_distance = 0;
    for (double distance = 8; distance < 120; distance += 4) {
      for (const point& d : directions) {
        const box b = beside(points[i], size, d.x != 0 && d.y != 0 ? distance * 0.7 : distance, d);
        double cost = 4 * distance + 50 * (area(b) - overlap(b, picture));
        for (const box& t : taken) cost += 20 * overlap(b, t);
        if (cost < least) least = cost, best = b, best_distance = distance;
      }
    }
    taken.push_back(best);
    placed.push_back({names[i], points[i], {best.low.x, (best.low.y + best.high.y) / 2}, best_distance > near});
  }
  return placed;
}

}  // namespace example
