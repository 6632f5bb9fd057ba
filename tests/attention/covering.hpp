#pragma once

#include "support/policies.hpp"
#include "support/sanitized.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <utility>

// The script that each policy of the covering runs: every length around its edges, then ragged batches of decode,
// chunks and prefill with empty sequences, each answer against the oracle; and its bits again under other
// circumstances.
namespace support {

struct covering_script {
  covering_case c;
  int number = 0;

  static constexpr int width = 11, max_step = 9;

  std::vector<int> lengths() const {
    std::set<int> around = {0, 1, 2, 5};
    const int page = c.layout == layouts - 1 ? run_time_pages[std::size_t(c.k)] : page_sizes[std::size_t(c.layout)];
    for (int edge : {page, width, width + 4, 16, 20, 32})
      for (int i = -1; i <= 1; ++i) around.insert(std::max(edge + i, 0));
    std::vector<int> all;
    int n = 0;  // NOTE: a sanitizer makes each ten times as slow, so it sees every third, others at each policy
    for (const int length : around)
      if (!is_sanitized || n++ % 3 == number % 3) all.push_back(length);
    return all;
  }
  kvilt::cache_shape shape() const {
    const int sequences = int(lengths().size());
    return {.layers = 1,
            .kv_heads = c.group > 8 ? 1 : 1 + number % 3,
            .sequences = sequences,
            .tokens = sequences * 512,
            .max_length = 300,
            .max_step = max_step};
  }

  // `only`: one sequence of the batch alone, -1 for all.
  void run(session& s, const host& exec, int only = -1) const {
    const std::vector<int> all = lengths();
    const auto step = [&](auto new_tokens) {
      std::vector<portion> parts;
      for (int i = 0; i < int(all.size()); ++i)
        if (only < 0 || i == only) parts.push_back({i, new_tokens(i)});
      s.grow_by(exec, parts);
    };
    for (int i = 0; i < int(all.size()); ++i)
      if (only < 0 || i == only) s.open(i);
    step([&](int i) { return all[std::size_t(i)]; });
    step([](int) { return 1; });
    step([](int i) { return i % 3 == 1 ? 7 : 0; });
    step([](int i) { return i % 4 == 0 ? 1 : i % 4 == 1 ? 5 : 2; });
  }
};

template <int K, int L>
void run_covering_policy(int which) {
  const int number = 2 * (layouts * K + L) + which;
  const covering_script script{covering()[std::size_t(number)], number};
  const auto make = [&](unsigned char fill) {
    return covering_subject<K, L>(script.c, covering_script::width, script.shape(), fill);
  };
  const auto first = make(0);
  session reference(*first, script.c.group, 1, 3);
  script.run(reference, host());

  kvilt::thread_pool pool(2 + which);
  const auto poisoned = make(0xff);
  session threads(*poisoned, script.c.group, 1, 0);
  script.run(threads, host(pool));
  const auto again = make(0x7f);
  session alone(*again, script.c.group, 1, 0);
  const int one = number % int(script.lengths().size());
  script.run(alone, host(), one);

  for (int i = 0; i < int(script.lengths().size()); ++i)
    if (!same_bits(reference.answers(i), threads.answers(i)))
      FAIL(first->name << ": other bits over poisoned memory, with threads, in sequence " << i);
  if (!same_bits(reference.answers(one), alone.answers(one)))
    FAIL(first->name << ": other bits without neighbours, in sequence " << one);
}

// Every layout with K's format number `K`.
template <int K, std::size_t... L>
void run_covering_row(std::index_sequence<L...>) {
  (run_covering_policy<K, int(L)>(0), ...);
  (run_covering_policy<K, int(L)>(1), ...);
}
template <int K>
void run_covering_format() {
  run_covering_row<K>(std::make_index_sequence<layouts>());
}

}  // namespace support
