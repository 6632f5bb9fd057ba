#include "bands.hpp"

#include "gnuplot.hpp"
#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <sstream>
#include <stdexcept>

namespace example {
namespace {

std::string text_of(const band& b) {
  return std::to_string(b.first) + " to " + std::to_string(b.last);
}

// Rows of one policy stand together.
template <class Use>
void for_each_policy(const std::vector<band_row>& rows, Use&& use) {
  for (std::size_t first = 0, last; first < rows.size(); first = last) {
    last = first;
    while (last < rows.size() && rows[last].policy == rows[first].policy) ++last;
    use(rows[first].policy,
        std::vector<band_row>(rows.begin() + std::ptrdiff_t(first), rows.begin() + std::ptrdiff_t(last)));
  }
}

// A divergence of 0 has no place on a logarithmic axis.
bool on_axis(const band_row& r) {
  return r.measured.kld_mean > 0;
}

double middle(const band& b) {
  return std::sqrt(double(b.first) * b.last);
}

void write_axes(std::ostream& out, const std::vector<band_row>& rows) {
  const int last = std::ranges::max(rows, {}, [](const band_row& r) { return r.positions.last; }).positions.last;
  const int first = std::ranges::min(rows, {}, [](const band_row& r) { return r.positions.first; }).positions.first;
  out << "set title \"How far predictions are from those of the fp32 cache, by how long the context is\\n"
         "bars: one standard error\"\n"
      << "set key outside top center horizontal noenhanced\nset linetype 5 lc rgb '#8c564b'\n"
      << "set xlabel 'position, mean over a band'\n"
      << "set ylabel 'KL divergence from the fp32 cache, nats per token'\n"
      << "set logscale x 2\nset logscale y 10\nset format y '10^{%T}'\nset format x '%.0f'\n"
      << "set xrange [" << first << ':' << last << "]\n";
}

}  // namespace

std::vector<band> bands_until(const std::vector<int>& ends, int first, int positions) {
  std::vector<band> bands;
  for (const int end : ends) {
    if (end <= first)
      throw std::invalid_argument("--bands " + std::to_string(end) + " does not come after " + std::to_string(first));
    if (end > positions)
      throw std::invalid_argument("--bands " + std::to_string(end) + " is beyond the " + std::to_string(positions) +
                                  " positions that are read");
    bands.push_back({first, end});
    first = end;
  }
  return bands;
}

void print_bands(std::ostream& out, const std::vector<band_row>& rows) {
  out << "\nKL divergence and its standard error, by position\n" << std::left << std::setw(28) << "policy";
  const std::string& shown_first = rows.front().policy;
  for (const band_row& r : rows)
    if (r.policy == shown_first) out << std::right << std::setw(20) << text_of(r.positions);
  out << '\n';
  for_each_policy(rows, [&](const std::string& policy, const std::vector<band_row>& bands) {
    out << std::left << std::setw(28) << policy << std::right;
    for (const band_row& b : bands)
      out << std::setw(20) << format("%.1e +- %.0e", b.measured.kld_mean, b.measured.kld_se);
    out << '\n';
  });
}

void write_bands_csv(std::ostream& out, const std::vector<band_row>& rows) {
  out << "policy,first,last,positions,kld_mean,kld_se,top1,dlnppl,dlnppl_se\n";
  for (const auto& [policy, positions, q] : rows)
    out << policy << ',' << positions.first << ',' << positions.last << ',' << q.positions
        << format(",%.4e,%.4e,%.2f", q.kld_mean, q.kld_se, q.top1) << format(",%.6f,%.6f\n", q.dlnppl, q.dlnppl_se);
}

void plot_bands(const std::string& path, const std::vector<band_row>& rows) {
  std::ostringstream out, plots;
  write_terminal(out, path);
  write_axes(out, rows);
  int lines = 0;
  for_each_policy(rows, [&](const std::string& policy, const std::vector<band_row>& bands) {
    if (std::ranges::none_of(bands, on_axis)) return;
    const std::string name = "$line" + std::to_string(lines++);
    out << name << " << EOD\n";
    for (const band_row& b : bands)
      if (on_axis(b)) out << middle(b.positions) << ' ' << b.measured.kld_mean << ' ' << b.measured.kld_se << '\n';
    out << "EOD\n";
    plots << (lines == 1 ? "plot " : ", ") << name << " with yerrorlines pt 7 ps 0.7 lw 1.5 title " << quoted(policy);
  });
  if (lines == 0) throw std::runtime_error("no policy differs from the reference: there is nothing to draw in " + path);
  draw(path, out.str() + plots.str() + '\n');
}

}  // namespace example
