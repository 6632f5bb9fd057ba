#include "evict_policies.hpp"

#include "entry.hpp"
#include "text.hpp"

#include <cmath>

namespace example {
namespace {

// How a policy chooses: by which score, and how much of what it keeps is the newest whatever that says.
struct choice {
  std::string name;
  eviction_score score;
  double newest = 0;
  head_shares heads = {};
};

const std::vector<choice>& choices() {
  static const std::vector<choice> all = {
      {"window", newest()},
      {"h2o", kvilt::h2o(), 0.5},  // half of them, as its authors have it
      {"h2o_mean", kvilt::h2o{.mean = true}, 0.5},
      {"tova", kvilt::tova()},
      {"snapkv", kvilt::snap_kv()},
      {"keynorm", kvilt::key_norm(), 0.25},
      {"expected", expected_queries()},
  };
  return all;
}

// The same where each head has pages of its own.
const std::vector<choice>& choices_by_head() {
  static const std::vector<choice> all = {
      {"ada_h2o_mean", kvilt::h2o{.mean = true}, 0.5},
      {"ada_snapkv", kvilt::snap_kv()},
      {"ada_keynorm", kvilt::key_norm(), 0.25},
      {"ada_expected", expected_queries()},
      {"pyramid_snapkv", kvilt::snap_kv(), 0, {{.floor = 1}, true}},
      {"ada_pyramid_snapkv", kvilt::snap_kv(), 0, {{}, true}},
  };
  return all;
}

constexpr kvilt::idx sinks = 4, least_kept = 16;

template <class Policy>
eviction eviction_of(const choice& by, double percent, kvilt::idx tokens) {
  using layout = typename Policy::layout_type;
  const auto keep = std::max(least_kept, kvilt::idx(std::llround(double(tokens) * percent / 100)));
  const auto newest = std::min(kvilt::idx(std::llround(double(keep) * by.newest)), keep - sinks);
  return {by.score, keep, {sinks, newest}, by.heads, kvilt::tabled_by_head<layout> ? layout::min_run : 0};
}

std::string share_text(double percent) {
  return format(percent == std::floor(percent) ? "%.0f%%" : "%.1f%%", percent);
}

template <class Policy>
policy_entry entry_of(const choice& by, const std::string& rows, double percent) {
  const auto listing = on_host_only(on_request(named<Policy>(by.name + "_" + rows)), "tokens are evicted on the host");
  policy_entry entry = entry_of(listing);
  const auto with_eviction = [by, percent](session_shape s) {
    s.evict = eviction_of<Policy>(by, percent, s.tokens);
    return s;
  };
  entry.columns.retention = by.name + " " + share_text(percent);
  entry.plan = [plan = entry.plan, with_eviction](const session_shape& s) { return plan(with_eviction(s)); };
  entry.open = [open = entry.open, with_eviction](const session_shape& s) { return open(with_eviction(s)); };
  entry.plan_layers = [plan = entry.plan_layers, by, percent](const layer_group& layers, std::int64_t tokens,
                                                              int sequences) {
    const kvilt::idx rows_there = eviction_of<Policy>(by, percent, tokens).most_rows(tokens, 1);
    return plan(layers, layers.window == 0 ? rows_there : tokens, sequences);
  };
  entry.at_share = [by, rows](double other) {
    policy_entry again = entry_of<Policy>(by, rows, other);
    again.name += " " + share_text(other);
    return again;
  };
  return entry;
}

template <class Policy>
void add_entries(const std::string& rows, std::vector<policy_entry>& to) {
  const bool by_head = kvilt::tabled_by_head<typename Policy::layout_type>;
  for (const choice& by : by_head ? choices_by_head() : choices()) to.push_back(entry_of<Policy>(by, rows, 25));
}

}  // namespace

std::vector<policy_entry> evict_policies() {
  using namespace kvilt;
  std::vector<policy_entry> all;
  add_entries<policy<paged<16>, fp16<>, fp16<>, kvilt::listed>>("fp16", all);
  add_entries<policy<paged<16>, rotated<q8<>>, rotated<q8<>>, kvilt::listed>>("int8_rot", all);
  add_entries<policy<paged_by_head<16>, fp16<>, fp16<>, kvilt::listed>>("fp16", all);
  add_entries<policy<paged_by_head<16>, rotated<q8<>>, rotated<q8<>>, kvilt::listed>>("int8_rot", all);
  return all;
}

std::vector<policy_entry> at_shares(const std::vector<policy_entry>& policies, const std::vector<double>& percents) {
  std::vector<policy_entry> all;
  for (const double percent : percents)
    if (!(percent > 0 && percent <= 100))
      throw std::invalid_argument("--keep " + format("%g", percent) + "; a number above 0 and up to 100 is needed");
  for (const policy_entry& p : policies) {
    if (!p.at_share || percents.empty())
      all.push_back(p);
    else
      for (const double percent : percents) all.push_back(p.at_share(percent));
  }
  return all;
}

}  // namespace example
