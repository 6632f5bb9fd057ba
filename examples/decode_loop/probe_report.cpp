#include "probe_report.hpp"

#include "text.hpp"

namespace example {
namespace {

void write_line(std::ostream& out, const std::string& probe, const probe_row& row, const std::string& depth,
                const probe_result& r) {
  out << policy_csv(row) << ',' << probe << ',' << depth << ',' << r.answers << ',' << r.tokens
      << format(",%.2f,%.2f,", r.right_tokens, r.right_answers) << (r.kept ? format("%.2f", *r.kept) : "")
      << format(",%.4f\n", r.log_probability);
}

}  // namespace

void print_probe(std::ostream& out, const probe_report& report) {
  const probe_row& whole = report.rows.front();
  cells headings = policy_headings();
  for (const std::string& measured :
       {std::string("tokens %"), "of " + whole.policy + "'s %", std::string("answers %"), std::string("ln p")})
    headings.push_back(measured);
  for (const auto& [depth, result] : whole.depths) headings.push_back(format("at %g %%", depth));
  std::vector<cells> lines{headings};
  for (const probe_row& row : report.rows) {
    cells& line = lines.emplace_back(policy_cells(row));
    line.push_back(format("%.1f", row.all.right_tokens));
    line.push_back(row.all.kept ? format("%.1f", *row.all.kept) : "-");
    line.push_back(format("%.1f", row.all.right_answers));
    line.push_back(format("%.3f", row.all.log_probability));
    for (const auto& [depth, result] : row.depths) line.push_back(format("%.1f", result.right_tokens));
  }
  out << "\nProbe " << report.probe << ": tokens of " << whole.all.answers
      << " answers that are predicted, then by depth\n";
  print_aligned(out, lines);
  out << "With all of the text in " << whole.policy << " the model predicts "
      << format("%.1f %% of %d", whole.all.right_tokens, whole.all.tokens)
      << " tokens; the others it cannot, whatever is kept\n";
}

void write_probes_csv(std::ostream& out, const std::vector<probe_report>& reports) {
  out << policy_csv_columns << ",probe,depth,answers,tokens,right_tokens,right_answers,kept,log_probability\n";
  for (const probe_report& report : reports)
    for (const probe_row& row : report.rows) {
      write_line(out, report.probe, row, "all", row.all);
      for (const auto& [depth, result] : row.depths) write_line(out, report.probe, row, format("%g", depth), result);
    }
}

}  // namespace example
