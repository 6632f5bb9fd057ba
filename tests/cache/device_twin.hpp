#pragma once

#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/random.hpp"

#include <kvilt/kvilt.hpp>

#include <cstring>
#include <span>
#include <string>
#include <vector>

// A cache in device memory and one in host memory, driven alike: what is in the one's memory is what is in the other's.
// `Device` is where the first lies: a stream and what tests need to look behind it.
namespace support {

using kvilt::idx;
using kvilt::memory_space;

constexpr kvilt::cache_shape twin_shape = {
    .layers = 3, .kv_heads = 2, .sequences = 4, .tokens = 90, .max_length = 70, .max_step = 6};
constexpr int twin_q_heads = 6;

inline std::vector<unsigned char> random_bytes(std::size_t size, std::uint64_t seed) {
  dice bytes(seed);
  std::vector<unsigned char> all(size);
  for (unsigned char& b : all) b = static_cast<unsigned char>(bytes.below(256));
  return all;
}

inline bool same_item(const kvilt::step_item& a, const kvilt::step_item& b) {
  return a.sequence == b.sequence && a.new_tokens == b.new_tokens && a.queries == b.queries && a.kv_row == b.kv_row &&
         a.q_row == b.q_row && a.n.before == b.n.before && a.n.after == b.n.after &&
         a.n.body_before == b.n.body_before && a.n.body_after == b.n.body_after;
}

template <class Policy, class Device>
class twin {
 public:
  using device_cache = kvilt::cache<Policy, memory_space::device>;

  twin(Device& device, const Policy& policy, std::uint64_t seed, const kvilt::cache_shape& shape = twin_shape)
      : device_(device),
        there_(shape, device.memory(), policy),
        here_(shape, kvilt::memory<memory_space::host>::from(host_memory_), policy),
        dice_(seed),
        sequences_(shape.sequences) {
    const auto bytes = std::size_t(here_.bytes().kv_bytes);
    filling_ = random_bytes(bytes, seed + 1);
    std::memcpy(host_data(), filling_.data(), bytes);
    device.write(device.last_block(), filling_.data(), bytes);
    REQUIRE(device.bytes() == std::size_t(there_.bytes().bytes()));
  }

  device_cache& there() { return there_; }

  // Any operation, legal or not, on both; now and then what is in memory is compared.
  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      INFO("operation " << i);
      const int kind = dice_.below(12);
      if (kind < 2)
        open();
      else if (kind < 3)
        close();
      else if (kind < 4)
        cut();
      else if (kind < 5)
        fork();
      else if (kind < 6)
        reorder();
      else
        step();
      if (dice_.below(3) == 0) compare_memory();
    }
    compare_memory();
  }

  void open() {
    kvilt::sequence a, b;
    if (!alike([&] { a = there_.open(); }, [&] { b = here_.open(); })) return;
    REQUIRE(a == b);
    open_.push_back(a);
  }
  void close() {
    if (open_.empty()) return;
    const std::size_t which = any();
    there_.close(open_[which]), here_.close(open_[which]);
    open_.erase(open_.begin() + std::ptrdiff_t(which));
  }
  void cut() {
    if (open_.empty()) return;
    const kvilt::sequence s = open_[any()];
    const idx to = dice_.below(int(here_.length(s)) + 2);
    alike([&] { there_.truncate(s, to); }, [&] { here_.truncate(s, to); });
  }
  void fork() {
    if (open_.empty()) return;
    const kvilt::sequence s = open_[any()];
    kvilt::sequence a, b;
    if (!alike([&] { a = there_.fork(device_.exec(), s); }, [&] { b = here_.fork(kvilt::host(), s); })) return;
    REQUIRE(a == b);
    open_.push_back(a);
  }
  // `parent`: of all; below 0 any of each.
  void reorder(int parent = -1) {
    std::vector<int> parents;
    for (std::size_t i = 0; i < open_.size(); ++i) parents.push_back(parent < 0 ? int(any()) : parent);
    alike([&] { there_.reorder(device_.exec(), open_, parents); },
          [&] { here_.reorder(kvilt::host(), open_, parents); });
  }

  // Appends to one sequence in a step of its own.
  void grow(std::size_t which, int tokens) {
    const kvilt::sequence s = open_[which];
    there_.reserve(s, tokens), here_.reserve(s, tokens);
    const auto workspace = device_.workspace(there_.workspace_bytes(device_.exec(), 1, twin_q_heads, tokens));
    std::vector<unsigned char> host_workspace(here_.workspace_bytes(kvilt::host(), 1));
    const auto a = there_.begin(device_.exec(), {&s, 1}, {&tokens, 1}, twin_q_heads, workspace);
    const auto b = here_.begin(kvilt::host(), {&s, 1}, {&tokens, 1}, host_workspace);
    compare_step(a, b, {}, {});
    there_.commit(a), here_.commit(b);
  }

  // begin, compare the items, and commit a part of it or cancel.
  void step() {
    std::vector<kvilt::sequence> who;
    std::vector<int> tokens, accepted;
    std::vector<idx> positions;
    for (const kvilt::sequence s : open_) {
      if (dice_.below(4) == 0) continue;
      who.push_back(s);
      tokens.push_back(dice_.below(twin_shape.max_step + 1));
      alike([&] { there_.reserve(s, tokens.back()); }, [&] { here_.reserve(s, tokens.back()); });
      accepted.push_back(dice_.below(tokens.back() + 1));
    }
    const bool with_positions = dice_.below(2) == 0;
    for (std::size_t i = 0; with_positions && i < tokens.size(); ++i)
      for (int t = 0; t < tokens[i]; ++t) positions.push_back(dice_.below(1000));
    kvilt::device_bounds bounds;
    if (dice_.below(2) == 0) bounds.sequences = int(who.size()) + dice_.below(3);
    if (dice_.below(2) == 0) bounds.most_new_tokens = twin_shape.max_step + dice_.below(2);
    const auto workspace = device_.workspace(
        there_.workspace_bytes(device_.exec(), sequences_ + 3, twin_q_heads, twin_shape.max_step + 1));
    std::vector<unsigned char> host_workspace(here_.workspace_bytes(kvilt::host(), sequences_));
    kvilt::device_step a;
    kvilt::step b;
    std::vector<idx> lent = positions;
    if (!alike([&] { a = there_.begin(device_.exec(), who, tokens, twin_q_heads, workspace, lent, bounds); },
               [&] { b = here_.begin(kvilt::host(), who, tokens, host_workspace, positions); }))
      return;
    std::fill(lent.begin(), lent.end(), -1);  // the caller's again
    compare_step(a, b, positions, bounds);
    if (dice_.below(4) == 0) {
      there_.cancel(), here_.cancel();
    } else {
      there_.commit(a, accepted), here_.commit(b, accepted);
    }
  }

  // Tables, and every byte of K and V.
  void compare_memory() {
    if (!sent_) return;
    // NOTE: what changed since is sent with the next step.
    const auto workspace = device_.workspace(there_.workspace_bytes(device_.exec(), 0, twin_q_heads));
    (void)there_.begin(device_.exec(), {}, {}, twin_q_heads, workspace);
    there_.cancel();
    device_.finish();
    const idx slots = here_.bytes().table_width ? here_.bytes().table_width : 1;
    const auto there = device_.pages(there_.view(0), sequences_, slots, page_rows());
    for (int row = 0; row < sequences_; ++row)
      for (idx i = 0; i < slots; ++i) {
        const idx want = body(here_.view(0)).layout.locate(row, 0, i * page_rows()).page;
        if (there[std::size_t(row * slots + i)] != want)
          FAIL("row " << row << ", entry " << i << ": page " << there[std::size_t(row * slots + i)] << ", not "
                      << want);
      }
    const std::vector<unsigned char> bytes = device_.read(device_.last_block(), filling_.size());
    for (std::size_t i = 0; std::memcmp(bytes.data(), host_data(), bytes.size()) != 0; ++i)
      if (bytes[i] != host_data()[i])
        FAIL("byte " << i << " of " << bytes.size() << " is " << int(bytes[i]) << ", not " << int(host_data()[i]));
  }

 private:
  template <class View>
  static auto body(const View& view) {
    // The body's segment: the only one with a table, or any.
    typename Policy::body_segment found;
    view.each([&](const auto& seg) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(seg)>, typename Policy::body_segment>) found = seg;
    });
    return found;
  }
  int page_rows() const {
    if constexpr (kvilt::fixed_layout<typename Policy::layout_type>)
      return 1;
    else
      return body(here_.view(0)).layout.page_size();
  }

  void compare_step(const kvilt::device_step& a, const kvilt::step& b, std::span<const idx> positions,
                    const kvilt::device_bounds& bounds) {
    sent_ = true;
    REQUIRE(a.size == (bounds.sequences ? bounds.sequences : b.size));
    int most = bounds.most_new_tokens;
    for (int i = 0; i < b.size && bounds.most_new_tokens == 0; ++i) most = std::max(most, b.items[i].new_tokens);
    REQUIRE((a.most_new_tokens == most && a.most_queries == most && a.q_heads == twin_q_heads));
    const idx rows = bounds.most_new_tokens ? idx(a.size) * most : b.kv_rows;
    REQUIRE((a.kv_rows == rows && a.q_rows == rows));
    device_.finish();
    const auto bytes = device_.read(a.items, std::size_t(a.size) * sizeof(kvilt::step_item));
    for (int i = 0; i < a.size; ++i) {
      kvilt::step_item got, want{-1, 0, 0, b.kv_rows, b.q_rows, {}};
      std::memcpy(&got, bytes.data() + std::size_t(i) * sizeof(got), sizeof(got));
      if (i < b.size) want = b.items[i];
      if (!same_item(got, want)) FAIL("item " << i << " of " << a.size << ": sequence " << got.sequence);
    }
    REQUIRE((a.rope_positions == nullptr) == positions.empty());
    const auto there = device_.read(a.rope_positions, positions.size_bytes());
    REQUIRE((positions.empty() || std::memcmp(there.data(), positions.data(), positions.size_bytes()) == 0));
  }

  // Both throw the same or neither does; says whether neither did.
  template <class First, class Second>
  bool alike(First first, Second second) {
    const std::string a = said(first), b = said(second);
    REQUIRE(a == b);
    return a.empty();
  }
  template <class Operation>
  static std::string said(Operation operation) {
    try {
      operation();
    } catch (const kvilt::device_error&) {
      throw;
    } catch (const kvilt::error& e) {
      return e.what();
    }
    return {};
  }

  std::size_t any() { return std::size_t(dice_.below(int(open_.size()))); }
  unsigned char* host_data() { return body(here_.view(0)).planes.k_codes.base; }

  Device& device_;
  test_memory host_memory_;
  device_cache there_;
  kvilt::cache<Policy> here_;
  dice dice_;
  int sequences_;
  bool sent_ = false;
  std::vector<kvilt::sequence> open_;
  std::vector<unsigned char> filling_;
};

// `body(policy)` for one of each kind.
template <class Body>
void each_twin_policy(Body body) {
  using namespace kvilt;
  body(policy<contiguous, fp32<>>(fp32<>(16), fp32<>(8)));
  body(policy<paged<3>, fp16<>, q8<>>(fp16<>(8), q8<>(24)));
  body(policy<paged<>, rotated<q4<>>, q8<>, keep_all, 4, 16>(rotated<q4<>>(32), q8<>(16), {}, paged<>(5)));
  body(ring<fp16<>, q8<>, dynamic, 2>(fp16<>(16), q8<>(8), window<dynamic, 2>(7)));
  body(policy<paged<4>, fp32<>, q4<>, window<dynamic, 3>, 3, 6>(fp32<>(8), q4<>(16), window<dynamic, 3>(10)));
  body(policy<paged<2>, bf16<>, fp32<>, window<>>(bf16<>(16), fp32<>(8), window<>(5)));
  body(policy<paged<16>, q4_channel<24, 16>, q2<32, 32>, keep_all, 3, 9>());
}

// Layer 0 in the first group; of layer 1 head 0 in the second, and head 1 in the first.
using first_of_set = kvilt::policy<kvilt::paged<4>, kvilt::fp16<>, kvilt::q8<>>;
using second_of_set = kvilt::policy<kvilt::contiguous, kvilt::fp32<>, kvilt::fp32<>, kvilt::window<>>;
template <memory_space Space>
auto twin_set(const kvilt::memory<Space>& from) {
  using namespace kvilt;
  return basic_cache_set<Space, first_of_set, second_of_set>(
      {.sequences = 3, .tokens = 48, .max_length = 32, .max_step = 4}, from,
      layer_group<first_of_set>{{{0, 0}, {0, 1}, {1, 1}}, 1, first_of_set(fp16<>(8), q8<>(16))},
      layer_group<second_of_set>{{{1, 0}}, 1, second_of_set(fp32<>(8), fp32<>(16), window<>(6))});
}

}  // namespace support
