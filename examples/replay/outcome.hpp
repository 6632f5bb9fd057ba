#pragma once

#include <kvilt/pages/manager_counters.hpp>
#include <kvilt/tiers/prefetch.hpp>
#include <kvilt/tiers/tier_level.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace example {

// What came of a trace. Hits are those of a request when it is first opened, not of one that goes on after preemption.
struct outcome {
  std::int64_t requests = 0;                      // finished
  std::int64_t blocks_asked = 0, blocks_hit = 0;  // pages that prompts fill; with --prompts-only blocks of 512
  std::int64_t tokens_asked = 0, tokens_hit = 0;
  double utilisation = 0;    // of the pages, the mean over time that was used
  double fragmentation = 0;  // of the rows in held pages, the mean over time that was empty
  std::int64_t preemptions = 0, page_moves = 0;
  // Of the simulation alone.
  std::int64_t steps = 0;
  double seconds = 0;      // simulated, from the first arrival on
  double first_token = 0;  // mean seconds from arrival
  kvilt::manager_counters counters;
  // With tiers: tokens of prompts that each brought back, which are in `tokens_hit` too where the prompt found them, and
  // what it would have taken to compute them.
  struct tier {
    std::string name;
    kvilt::tier_counters counters;
    std::int64_t tokens = 0;
    double saved_seconds = 0;
  };
  std::vector<tier> tiers;
  kvilt::prefetch_counters prefetches;

  double block_hit_rate() const { return share(blocks_hit, blocks_asked); }
  double token_hit_rate() const { return share(tokens_hit, tokens_asked); }

 private:
  static double share(std::int64_t part, std::int64_t whole) { return whole ? double(part) / double(whole) : 0; }
};

}  // namespace example
