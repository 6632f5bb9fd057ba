#include "report.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <iomanip>
#include <sstream>

namespace example {
namespace {

// 1234567 as 1,234,567
std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = int(digits.size()) - 3; at > 0; at -= 3) digits.insert(std::size_t(at), 1, ',');
  return digits;
}
std::string fixed(double n, int decimals, const char* unit) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(decimals) << n << ' ' << unit;
  return out.str();
}
std::string percent(double share) {
  return fixed(100 * share, 2, "%");
}

class metrics {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    out_ << "# HELP kvilt_" << name << ' ' << help << "\n# TYPE kvilt_" << name << ' ' << type << '\n';
  }
  template <class Number>
  void sample(Number value, const std::string& labels = {}) {
    out_ << "kvilt_" << name_ << (labels.empty() ? "" : "{" + labels + "}") << ' ' << value << '\n';
  }
  void one(const char* name, const char* type, const char* help, kvilt::idx value) {
    family(name, type, help);
    sample(value);
  }
  std::string text() const { return out_.str(); }

 private:
  const char* name_ = "";
  std::ostringstream out_;
};

std::string label(const char* key, const std::string& value) {
  return std::string(key) + "=\"" + value + '"';
}

void write_groups(metrics& m, const kvilt::manager_counters& c) {
  const auto each = [&](auto body) {
    for (std::size_t g = 0; g < c.groups.size(); ++g) body(c.groups[g], label("group", std::to_string(g)));
  };
  m.family("pages", "gauge", "Pages by state; the states add up to the pool.");
  each([&](const kvilt::group_counters& g, const std::string& group) {
    m.sample(g.pages.free, group + "," + label("state", "free"));
    m.sample(g.pages.used, group + "," + label("state", "used"));
    m.sample(g.pages.cached, group + "," + label("state", "cached"));
    m.sample(g.pages.pending, group + "," + label("state", "pending"));
  });
  m.family("pages_used_most", "gauge", "The most pages that were used at one time.");
  each([&](const auto& g, const std::string& group) { m.sample(g.pages.most_used, group); });
  m.family("pages_held", "gauge", "Pages in all page tables; a shared one counts for each.");
  each([&](const auto& g, const std::string& group) { m.sample(g.held_pages, group); });
  m.family("rows_empty", "gauge", "Rows of held pages that are not filled.");
  each([&](const auto& g, const std::string& group) { m.sample(g.empty_rows, group); });
}

}  // namespace

std::string outcome_json(const outcome& o, bool simulated) {
  using nlohmann::ordered_json;
  const auto timed = [&](double value) { return simulated ? ordered_json(value) : ordered_json(); };
  ordered_json tiers = ordered_json::array();
  for (const outcome::tier& t : o.tiers)
    tiers.push_back({{"tier", t.name},
                     {"pages", t.counters.slots},
                     {"token_hit_rate", o.tokens_asked ? double(t.tokens) / double(o.tokens_asked) : 0},
                     {"saved_seconds", t.saved_seconds},
                     {"stored", t.counters.stored},
                     {"loaded", t.counters.loaded},
                     {"passed_on", t.counters.passed_on},
                     {"dropped", t.counters.dropped}});
  ordered_json all{{"block_hit_rate", o.block_hit_rate()},
                   {"token_hit_rate", o.token_hit_rate()},
                   {"requests", o.requests},
                   {"utilisation", timed(o.utilisation)},
                   {"fragmentation", timed(o.fragmentation)},
                   {"preemptions", o.preemptions},
                   {"page_moves", o.page_moves}};
  if (!o.tiers.empty()) all["tiers"] = tiers;
  return all.dump();
}

std::string outcome_table(const outcome& o, bool simulated) {
  std::ostringstream out;
  const auto line = [&](const char* what, const std::string& value) {
    out << std::left << std::setw(36) << what << std::right << std::setw(16) << value << '\n';
  };
  line("requests", grouped(o.requests));
  line(simulated ? "full pages of prompts found" : "blocks of 512 found", percent(o.block_hit_rate()));
  line("tokens of prompts found", percent(o.token_hit_rate()));
  if (simulated) {
    line("pages used, mean over time", percent(o.utilisation));
    line("rows empty in held pages", percent(o.fragmentation));
    line("preemptions", grouped(o.preemptions));
    line("pages copied", grouped(o.page_moves));
    line("steps", grouped(o.steps));
    line("simulated time", fixed(o.seconds, 3, "s"));
    line("first token after, mean", fixed(o.first_token, 3, "s"));
  }
  for (const outcome::tier& t : o.tiers) {
    line((t.name + ", of tokens brought back").c_str(),
         percent(o.tokens_asked ? double(t.tokens) / double(o.tokens_asked) : 0));
    line((t.name + ", not computed again").c_str(), fixed(t.saved_seconds, 3, "s"));
  }
  std::string text = out.str();
  text.pop_back();
  return text;
}

std::string metrics_text(const kvilt::manager_counters& c) {
  metrics m;
  write_groups(m, c);
  m.one("sequences_open", "gauge", "Sequences that are open.", c.open_sequences);
  m.one("tokens", "gauge", "Tokens in open sequences.", c.tokens);
  m.one("sequences_opened_total", "counter", "Sequences opened with a prompt.", c.opened);
  m.family("sequences_ended_total", "counter", "Sequences ended, by how.");
  m.sample(c.closed, label("how", "closed"));
  m.sample(c.discarded, label("how", "discarded"));
  m.sample(c.preempted, label("how", "preempted"));
  m.one("sequences_forked_total", "counter", "Sequences forked.", c.forked);
  m.one("tokens_appended_total", "counter", "Tokens appended.", c.appended);
  m.one("page_moves_total", "counter", "Pages copied.", c.moves);
  m.one("pages_replaced_total", "counter", "Pages that another sequence had stored already.", c.replaced);
  m.one("prompt_tokens_total", "counter", "Tokens of prompts, those that go on after preemption included.",
        c.prefixes.asked);
  m.family("prompt_tokens_found_total", "counter", "Of these, found: in pages that are shared, or in rows copied.");
  m.sample(c.prefixes.hit, label("how", "shared"));
  m.sample(c.prefixes.copied, label("how", "copied"));
  m.family("prompt_tokens_missed_total", "counter", "Of these, not found though they are or were there, by why.");
  m.sample(c.prefixes.missed_granularity, label("why", "granularity"));
  m.sample(c.prefixes.missed_capacity, label("why", "capacity"));
  m.one("pages_stored_total", "counter", "Pages named.", c.prefixes.stored_pages);
  m.one("pages_evicted_total", "counter", "Pages evicted.", c.prefixes.evicted_pages);
  return m.text();
}

}  // namespace example
