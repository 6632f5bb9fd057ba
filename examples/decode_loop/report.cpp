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

using cells = std::vector<std::string>;

cells headings(bool late, bool integers) {
  cells c{"policy",
          "K",
          "V",
          "layout",
          "retention",
          "16-bit",
          "B/token",
          "cache MiB",
          "KLD",
          "KLD 99.9%",
          "top-1 %",
          "change of ln ppl",
          integers ? "tok/s (integer weights)" : "tok/s",
          "ppl"};
  if (late) c.push_back("ppl from " + std::to_string(score_sheet::late_from));
  return c;
}

cells table_cells(const report_row& r, bool late) {
  const quality& q = r.measured;
  const std::string exact = r.columns.sinks16 + r.columns.tail16 == 0
                                ? "-"
                                : std::to_string(r.columns.sinks16) + "+" + std::to_string(r.columns.tail16);
  cells c{r.policy,
          r.columns.k_format,
          r.columns.v_format,
          r.columns.layout,
          r.columns.retention,
          exact,
          bytes_text(r.bytes_per_token),
          format("%.2f", double(r.cache_bytes) / (1 << 20)),
          format("%.1e", q.kld_mean),
          format("%.1e", q.kld_p999),
          format("%.2f", q.top1),
          format("%+.4f +- %.4f", q.dlnppl, q.dlnppl_se),
          format("%.1f", r.tokens_per_second),
          format("%.3f", q.perplexity)};
  if (late) c.push_back(format("%.3f", q.late_perplexity.value_or(NAN)));
  return c;
}

constexpr std::size_t left_aligned = 6;  // the words; numbers are aligned right

}  // namespace

void print_table(std::ostream& out, const std::vector<report_row>& rows) {
  const bool late =
      std::ranges::any_of(rows, [](const report_row& r) { return r.measured.late_perplexity.has_value(); });
  const bool integers = std::ranges::any_of(rows, &report_row::integer_decoding);
  std::vector<cells> lines{headings(late, integers)};
  for (const report_row& r : rows) lines.push_back(table_cells(r, late));
  std::vector<int> widths(lines[0].size());
  for (const cells& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], static_cast<int>(line[i].size()));
  for (const cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      out << (i ? "  " : "") << std::setw(widths[i]) << (i < left_aligned ? std::left : std::right) << line[i];
    out << '\n';
  }
}

void write_csv(std::ostream& out, const std::vector<report_row>& rows) {
  out << "policy,k_format,v_format,layout,retention,sinks16,tail16,bytes_per_token,cache_bytes,kld_mean,kld_p999,top1,"
         "dlnppl,dlnppl_se,tok_s,decoding\n";
  for (const report_row& r : rows) {
    const policy_columns& c = r.columns;
    const quality& q = r.measured;
    out << r.policy << ',' << c.k_format << ',' << c.v_format << ',' << c.layout << ',' << c.retention << ','
        << c.sinks16 << ',' << c.tail16 << ',' << bytes_text(r.bytes_per_token) << ',' << r.cache_bytes << ','
        << format("%.4e,%.4e,%.2f,", q.kld_mean, q.kld_p999, q.top1)
        << format("%.6f,%.6f,%.2f", q.dlnppl, q.dlnppl_se, r.tokens_per_second)
        << (r.integer_decoding ? ",integer\n" : ",fp32\n");
  }
}

}  // namespace example
