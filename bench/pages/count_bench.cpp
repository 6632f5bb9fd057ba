// How many instructions a page manager takes: one row's work, a fixed number of times, in a function that Callgrind can
// count alone. bench/pages/instructions.sh runs all rows and divides.
//   bench_pages_count ROW    prints how many operations the counted part did
#include "workloads.hpp"

#include <kvilt/pages/lru.hpp>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

// What it calls is counted (valgrind --tool=callgrind --toggle-collect=counted). NOTE: a call that no compiler follows,
// and that returns here, or Callgrind does not see the function.
extern "C" void counted(void (*work)(void*), void* self) {
  work(self);
  KVILT_FENCE();
}

namespace {

using namespace bench;

template <class Work>
void count(Work work) {
  void (*const volatile call)(void (*)(void*), void*) = counted;
  call([](void* self) { (*static_cast<Work*>(self))(); }, &work);
}

// A sequence's token in a step of 1,000, `reserve` and `append`.
idx decode() {
  constexpr int sequences = 1000, steps = 160;
  growth g(sequences);
  for (int i = 0; i < page_tokens; ++i) g.step();
  count([&] {
    for (int i = 0; i < steps; ++i) g.step();
  });
  return idx(sequences) * steps;
}
// A page that comes into a table or leaves one, with all that belongs to it.
idx churning() {
  churn c;
  const idx before = c.page_operations();
  count([&] {
    for (int i = 0; i < 300; ++i) c.step();
  });
  return c.page_operations() - before;
}
// A cached page that is looked up.
idx lookup() {
  cached_prompts cached(40);
  dice random(1);
  std::vector<std::vector<token_id>> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(cached.one_of(random));
  idx found = 0;
  count([&] {
    for (const auto& text : texts) found += cached.find(text);
  });
  if (found != idx(texts.size()) * prompt_pages) throw std::runtime_error("not all pages are found");
  return found;
}
// A page of a prompt of which nothing is cached: asked for, taken by eviction, stored, given back.
template <class Eviction>
idx insert() {
  full_manager<Eviction> full;
  std::vector<std::vector<token_id>> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(full.next_prompt());
  count([&] {
    for (const auto& text : texts) full.pass(text);
  });
  return idx(texts.size()) * prompt_pages;
}
// A page that is evicted and taken.
template <class Eviction>
idx evict() {
  constexpr idx tokens = 126'000;
  full_manager<Eviction> full;
  std::vector<page_move> moves;
  const sequence s = full.manager().open({}, moves).name;
  count([&] { full.manager().reserve(s, tokens, moves); });
  full.manager().discard(s);
  return tokens / page_tokens;
}
// A request of which nothing is cached, of no page: open and discard.
idx request() {
  constexpr int requests = 1000;
  page_manager<> manager({page_tokens, 1, {{1000}}});
  std::vector<page_move> moves;
  const std::vector<std::uint64_t> salt{42};
  const token_id text[2] = {1, 2};
  manager.discard(manager.open(text, moves, {salt}).name);
  count([&] {
    for (int i = 0; i < requests; ++i) manager.discard(manager.open(text, moves, {salt}).name);
  });
  return requests;
}

struct row {
  const char* name;
  idx (*run)();
};
constexpr row rows[] = {
    {"decode", decode},
    {"churn", churning},
    {"lookup", lookup},
    {"insert_lru", insert<lru>},
    {"insert_aged_lfu", insert<aged_lfu>},
    {"evict_lru", evict<lru>},
    {"evict_aged_lfu", evict<aged_lfu>},
    {"request", request},
};

int run(const std::string& name) {
  for (const row& r : rows)
    if (name == r.name) {
      std::printf("%lld\n", static_cast<long long>(r.run()));
      return 0;
    }
  std::string known;
  for (const row& r : rows) known += std::string(known.empty() ? "" : ", ") + r.name;
  std::fprintf(stderr, "usage: bench_pages_count ROW; a row is one of %s, not '%s'\n", known.c_str(), name.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc == 2 ? argv[1] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
