#include "report.hpp"

#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>

namespace example {
namespace {

std::string bytes_text(double bytes) {
  return format(bytes == std::floor(bytes) ? "%.0f" : "%.2f", bytes);
}

cells headings(bool late, bool integers) {
  cells c = policy_headings();
  for (const char* measured : {"KLD", "KLD 99.9%", "top-1 %", "change of ln ppl"}) c.push_back(measured);
  c.push_back(integers ? "tok/s (integer weights)" : "tok/s");
  c.push_back("ppl");
  if (late) c.push_back("ppl from " + std::to_string(score_sheet::late_from));
  return c;
}

cells table_cells(const report_row& r, bool late) {
  const quality& q = r.measured;
  cells c = policy_cells(r);
  c.push_back(format("%.1e", q.kld_mean));
  c.push_back(format("%.1e", q.kld_p999));
  c.push_back(format("%.2f", q.top1));
  c.push_back(format("%+.4f +- %.4f", q.dlnppl, q.dlnppl_se));
  c.push_back(format("%.1f", r.tokens_per_second));
  c.push_back(format("%.3f", q.perplexity));
  if (late) c.push_back(format("%.3f", q.late_perplexity.value_or(NAN)));
  return c;
}

constexpr std::size_t left_aligned = 6;  // the words; numbers are aligned right

}  // namespace

cells policy_headings() {
  return {"policy", "K", "V", "layout", "retention", "16-bit", "B/token", "cache MiB"};
}

cells policy_cells(const policy_line& line) {
  const policy_columns& c = line.columns;
  const std::string exact =
      c.sinks16 + c.tail16 == 0 ? "-" : std::to_string(c.sinks16) + "+" + std::to_string(c.tail16);
  return {line.policy,
          c.k_format,
          c.v_format,
          c.layout,
          c.retention,
          exact,
          bytes_text(line.bytes_per_token),
          format("%.2f", double(line.cache_bytes) / (1 << 20))};
}

void print_aligned(std::ostream& out, const std::vector<cells>& lines) {
  std::vector<int> widths(lines[0].size());
  for (const cells& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], static_cast<int>(line[i].size()));
  for (const cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      out << (i ? "  " : "") << std::setw(widths[i]) << (i < left_aligned ? std::left : std::right) << line[i];
    out << '\n';
  }
}

std::string policy_csv(const policy_line& line) {
  const policy_columns& c = line.columns;
  return line.policy + ',' + c.k_format + ',' + c.v_format + ',' + c.layout + ',' + c.retention + ',' +
         std::to_string(c.sinks16) + ',' + std::to_string(c.tail16) + ',' + bytes_text(line.bytes_per_token) + ',' +
         std::to_string(line.cache_bytes);
}

void print_table(std::ostream& out, const std::vector<report_row>& rows) {
  const bool late =
      std::ranges::any_of(rows, [](const report_row& r) { return r.measured.late_perplexity.has_value(); });
  const bool integers = std::ranges::any_of(rows, &report_row::integer_decoding);
  std::vector<cells> lines{headings(late, integers)};
  for (const report_row& r : rows) lines.push_back(table_cells(r, late));
  print_aligned(out, lines);
}

void write_csv(std::ostream& out, const std::vector<report_row>& rows) {
  out << policy_csv_columns << ",kld_mean,kld_p999,top1,dlnppl,dlnppl_se,tok_s,decoding\n";
  for (const report_row& r : rows) {
    const quality& q = r.measured;
    out << policy_csv(r) << format(",%.4e,%.4e,%.2f,", q.kld_mean, q.kld_p999, q.top1)
        << format("%.6f,%.6f,%.2f", q.dlnppl, q.dlnppl_se, r.tokens_per_second)
        << (r.integer_decoding ? ",integer\n" : ",fp32\n");
  }
}

}  // namespace example
