#include "plot.hpp"

#include "gnuplot.hpp"
#include "labels.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>

namespace example {
namespace {

constexpr int width = picture_width, height = picture_height;
constexpr double left = 80, right = 24, top = 64, bottom = 64;

double bytes_of(const report_row& r) {
  return double(r.cache_bytes) / double(r.positions);
}

// One axis: from the number on one edge to that on the other, logarithmic, and where the edges lie in the picture.
struct axis {
  double low, high, from, to;
  double pixel(double value) const {
    const double share = std::log(std::clamp(value, low, high) / low) / std::log(high / low);
    return from + share * (to - from);
  }
};

axis bytes_axis(const std::vector<report_row>& rows) {
  axis a{std::numeric_limits<double>::max(), 0, left, width - right};
  for (const report_row& r : rows) a.low = std::min(a.low, bytes_of(r)), a.high = std::max(a.high, bytes_of(r));
  return {a.low / 1.3, a.high * 1.5, a.from, a.to};
}

// Whole decades; below the smallest divergence there is room for the reference, whose divergence is 0.
axis divergence_axis(const std::vector<report_row>& rows) {
  double low = 1, high = 0;
  for (const report_row& r : rows) {
    if (r.measured.kld_mean > 0) low = std::min(low, r.measured.kld_mean);
    high = std::max(high, r.measured.kld_mean);
  }
  const double lowest = std::floor(std::log10(low) - 0.3);
  return {std::pow(10, lowest), std::pow(10, std::max(std::ceil(std::log10(std::max(high, low)) + 0.1), lowest + 1)),
          height - bottom, top};
}

bool on_front(const report_row& r, const std::vector<report_row>& rows) {
  return std::ranges::none_of(rows, [&](const report_row& other) {
    const bool no_worse = bytes_of(other) <= bytes_of(r) && other.measured.kld_mean <= r.measured.kld_mean;
    return no_worse && (bytes_of(other) < bytes_of(r) || other.measured.kld_mean < r.measured.kld_mean);
  });
}

// 1234567 as 1,234,567.
std::string with_commas(long number) {
  const std::string digits = std::to_string(number);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

void write_axes(std::ostream& out, const axis& x, const axis& y) {
  out << "unset key\n"
      << "set lmargin at screen " << left / width << "\nset rmargin at screen " << 1 - right / width
      << "\nset tmargin at screen " << 1 - top / height << "\nset bmargin at screen " << bottom / height << '\n'
      << "set title \"What a cache costs in memory, and what it costs the model's predictions\\n"
         "filled: no other policy is both smaller and nearer to the fp32 cache\"\n"
      << "set xlabel 'bytes of cache per token of context'\n"
      << "set ylabel 'KL divergence from the fp32 cache, nats per token'\n"
      << "set logscale xy 10\nset format y '10^{%T}'\n"
      << "set xrange [" << x.low << ':' << x.high << "]\nset yrange [" << y.low << ':' << y.high << "]\nset xtics (";
  for (long tic = 1; double(tic) <= x.high; tic *= 2)
    if (double(tic) >= x.low) out << '\'' << with_commas(tic) << "' " << tic << ", ";
  out << "'' " << x.high << ")\n";
}

void write_points(std::ostream& out, const char* name, const std::vector<report_row>& rows, const axis& y) {
  out << name << " << EOD\n";
  for (const report_row& r : rows) out << bytes_of(r) << ' ' << std::max(r.measured.kld_mean, y.low) << '\n';
  out << "EOD\n";
}

// Policies that lie on each other share a label.
void add_name(const report_row& r, point at, std::vector<std::string>& names, std::vector<point>& points) {
  constexpr double same_place = 4;
  const std::string name = r.policy + (r.measured.kld_mean > 0 ? "" : " (0)");
  for (std::size_t i = 0; i < points.size(); ++i)
    if (std::hypot(points[i].x - at.x, points[i].y - at.y) < same_place) {
      names[i] += ", " + name;
      return;
    }
  names.push_back(name);
  points.push_back(at);
}

void write_labels(std::ostream& out, const std::vector<report_row>& front, const std::vector<report_row>& others,
                  const axis& x, const axis& y) {
  std::vector<std::string> names;
  std::vector<point> points, path;
  for (const report_row& r : front) path.push_back({x.pixel(bytes_of(r)), y.pixel(r.measured.kld_mean)});
  for (const auto* rows : {&front, &others})
    for (const report_row& r : *rows) add_name(r, {x.pixel(bytes_of(r)), y.pixel(r.measured.kld_mean)}, names, points);
  const auto screen = [](point p) {
    return "screen " + std::to_string(p.x / width) + "," + std::to_string(1 - p.y / height);
  };
  for (const label& l : place_labels(names, points, path, {left, top}, {width - right, height - bottom})) {
    out << "set label " << quoted(l.text) << " at " << screen(l.position) << " left noenhanced front\n";
    if (!l.far) continue;
    const double text_end = l.position.x + letter_width * double(l.text.size());
    const point end{std::clamp(l.anchor.x, l.position.x, text_end), l.position.y};
    out << "set arrow from " << screen(l.anchor) << " to " << screen(end) << " nohead lc rgb '#aaaaaa' lw 0.7\n";
  }
}

std::string script(const std::string& path, std::vector<report_row> rows) {
  const axis x = bytes_axis(rows), y = divergence_axis(rows);
  std::ranges::sort(rows, {}, bytes_of);
  std::vector<report_row> front, others;
  for (const report_row& r : rows) (on_front(r, rows) ? front : others).push_back(r);
  std::ostringstream out;
  write_terminal(out, path);
  write_axes(out, x, y);
  write_labels(out, front, others, x, y);
  write_points(out, "$front", front, y);
  write_points(out, "$others", others, y);
  out << "plot $front with lines lc rgb '#1f5fa8' lw 1.5";
  if (!others.empty()) out << ", $others with points pt 6 ps 0.8 lw 1.5 lc rgb '#777777'";
  out << ", $front with points pt 7 ps 0.9 lc rgb '#1f5fa8'\n";
  return out.str();
}

}  // namespace

void plot_front(const std::string& path, const std::vector<report_row>& rows) {
  draw(path, script(path, rows));
}

}  // namespace example
