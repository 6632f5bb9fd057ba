#pragma once

#include "outcome.hpp"
#include "tiers.hpp"
#include "trace.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace example {

// What steps cost, in seconds: a constant (weights are read), each prompt token that is computed, each sequence that says
// a token. Attention's own cost, which grows with the context, is not in it.
struct time_model {
  double step = 10e-3, prefill = 50e-6, decode = 50e-6;
  double of(std::int64_t prefilled, std::int64_t decoding) const {
    return step + prefill * double(prefilled) + decode * double(decoding);
  }
};

struct engine_options {
  std::string policy = "aged_lfu";
  std::int64_t pages = 0;
  int page_tokens = 16;
  int sequences = 256;              // open at one time
  std::int64_t step_tokens = 8192;  // of prompts in one step; longer prompts take several
  time_model time;
  std::vector<tier_spec> tiers;  // where pages go that leave the pool
  std::int64_t page_bytes = 0;   // with tiers
};

// Throws std::invalid_argument for a policy that there is not.
void check_policy(const std::string& name);
// The same where a request alone needs more pages than there are.
void check_budget(const trace& t, const engine_options& o);

// Continuous batching: in each step every sequence that has its prompt says one token, and prompts that wait are computed,
// first come first served. Where pages run out, whoever was opened last goes back to the head of the line. With tiers, what
// they have of a prompt is brought back while it waits, from the fourth place of the line on, and it is opened when that
// has arrived.
outcome simulate(const trace& t, const engine_options& o);

// Prompts alone, one after another, in blocks of 512: each is looked up, stored, given back, and then as much is evicted
// as is beyond `capacity` blocks; below 0 it is unbounded.
outcome replay_prompts(const trace& t, const std::string& policy, std::int64_t capacity);

}  // namespace example
