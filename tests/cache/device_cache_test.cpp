#include "cache/device_twin.hpp"

#include <functional>
#include <memory>

// What a cache in device memory does on the host, with a stream that is no GPU's: what is sent is read late, as by one.
namespace {

using namespace kvilt;
using namespace support;

struct late_stream {
  std::vector<std::function<void()>>* work = nullptr;
};

}  // namespace

template <>
struct kvilt::detail::device_side<late_stream> {
  static void check(const late_stream& exec, const void*) {
    expects(exec.work != nullptr, "a stream of another device");
  }
  template <class View>
  static std::size_t workspace_bytes(const late_stream&, const View&, int sequences, int, int) {
    return 256 + item_bytes(sequences);
  }
  template <class View>
  static device_step place(const View&, int size, int q_heads, int most_queries, std::span<unsigned char> workspace,
                           step_item*& items) {
    const step placed = place_step(size, workspace, items);
    device_step s;
    s.items = items, s.size = size, s.q_heads = q_heads, s.most_queries = most_queries;
    s.scratch = placed.scratch, s.scratch_bytes = placed.scratch_bytes;
    return s;
  }
  using blocks = std::vector<std::vector<unsigned char>>;
  static unsigned char* stage(const late_stream&, staging_handle& held, idx bytes, std::size_t) {
    if (!held) held = staging_handle(new blocks, {[](void* all) { delete static_cast<blocks*>(all); }});
    auto& all = *static_cast<blocks*>(held.get());
    return all.emplace_back(std::size_t(bytes), static_cast<unsigned char>(0xff)).data();
  }
  static void send(const late_stream& exec, staging_handle&, const upload& u, std::size_t blank_bytes) {
    exec.work->push_back([=] {
      std::fill_n(reinterpret_cast<unsigned char*>(u.table), blank_bytes, static_cast<unsigned char>(0xff));
      std::copy_n(u.items_from, u.size, u.items);
      std::copy_n(u.positions_from, u.positions_count, u.positions);
      for (idx i = 0; i < u.run_count; ++i)
        std::copy_n(u.ids + u.runs[i].first, u.runs[i].count, u.table + u.runs[i].at);
    });
  }
  template <class View>
  static void share(const late_stream&, const View&, const device_step&) {}
  template <class View>
  static void copy(const late_stream& exec, const View& view, std::span<const sequence_copy> copies, int layers,
                   idx layer_bytes) {
    const std::vector<sequence_copy> all(copies.begin(), copies.end());
    exec.work->push_back([=] {
      for (const sequence_copy& c : all)
        for (int layer = 0; layer < layers; ++layer)
          view.each([&](auto seg) {
            geometry& g = seg.planes;
            for (plane* p : {&g.k_codes, &g.k_params, &g.v_codes, &g.v_params}) p->base += layer * layer_bytes;
            const auto one = make_view<memory_space::host>(view.kv_heads(), seg);
            for (int head = 0; head < view.kv_heads(); ++head) copy_sequence(one, c.n, c.from, c.to, head);
          });
    });
  }
  // The last first: what may be copied at once may be copied in any order.
  static void copy_pages(const late_stream& exec, const storage& body, unsigned char* data,
                         std::span<const copied_page> copies, int layers, idx layer_bytes) {
    const std::vector<copied_page> all(copies.rbegin(), copies.rend());
    exec.work->push_back([=] {
      for (const copied_page& c : all)
        for (int layer = 0; layer < layers; ++layer) body.copy_page(data + layer * layer_bytes, c);
    });
  }
};

namespace {

// Memory that only the stream's work may touch, by agreement.
class late_device {
 public:
  late_stream exec() { return {&work_}; }
  kvilt::memory<memory_space::device> memory() { return kvilt::memory<memory_space::device>::from(*this); }
  void* allocate(std::size_t bytes, std::size_t align) {
    blocks_.push_back(static_cast<unsigned char*>(memory_.allocate(bytes, align)));
    return blocks_.back();
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept { memory_.deallocate(p, bytes, align); }
  unsigned char* last_block() const { return blocks_.back(); }
  std::size_t bytes() const { return memory_.bytes(); }
  std::vector<unsigned char> contents() const { return memory_.contents(); }

  void finish() {
    for (const auto& task : work_) task();
    work_.clear();
  }
  std::size_t waiting() const { return work_.size(); }
  std::vector<unsigned char> read(const void* from, std::size_t bytes) const {
    const auto* const first = static_cast<const unsigned char*>(from);
    return {first, first + bytes};
  }
  void write(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  std::span<unsigned char> workspace(std::size_t bytes) {
    workspaces_.push_back(std::vector<unsigned char>(bytes, 0xff));
    return workspaces_.back();
  }
  template <class View>
  std::vector<idx> pages(const View& view, int rows, idx entries, int step) const {
    std::vector<idx> all(std::size_t(rows * entries), -2);
    view.each([&](const auto& seg) {
      // Of a tail the body's table tells more.
      if (fixed_layout<typename std::remove_cvref_t<decltype(seg)>::layout_type> && all[0] != -2) return;
      for (std::size_t i = 0; i < all.size(); ++i)
        all[i] = seg.layout.locate(int(idx(i) / entries), 0, idx(i) % entries * step).page;
    });
    return all;
  }

 private:
  test_memory memory_{0xa5};
  std::vector<unsigned char*> blocks_;
  std::vector<std::function<void()>> work_;
  std::vector<std::vector<unsigned char>> workspaces_;
};

using kept = policy<paged<4>, fp16<>, q8<>>;
const kept kept_alike(fp16<>(8), q8<>(16));

// What an engine's header has: no word of CUDA.
struct engine {
  explicit engine(memory<memory_space::device> from)
      : kv({.layers = 1, .kv_heads = 1, .tokens = 64}, from, kept_alike) {}
  cache<kept, memory_space::device> kv;
};

}  // namespace

TEST_CASE("device_cache: a source without CUDA holds one and moves it", "[cache]") {
  late_device device;
  engine first(device.memory());
  const sequence s = first.kv.open();
  first.kv.reserve(s, 9);
  engine second = std::move(first);
  CHECK(second.kv.free_tokens() == 64 - 12);
  second.kv.truncate(s, 0);
  CHECK(second.kv.free_tokens() == 64);
  CHECK(device.bytes() == std::size_t(second.kv.bytes().bytes()));
  STATIC_REQUIRE(device_view<decltype(second.kv.view(0))>);
  STATIC_REQUIRE(std::is_same_v<decltype(engine::kv)::step_type, device_step>);
  second.kv.close(s);
}

TEST_CASE("device_cache: tables, items and bytes are a host cache's after any history", "[cache]") {
  each_twin_policy([](const auto& policy) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      INFO("K " << name_of(policy.k) << ", seed " << seed);
      late_device device;
      twin pair(device, policy, seed);
      pair.run(150);
    }
  });
}

TEST_CASE("device_cache: what is sent late is what was said at begin", "[cache]") {
  late_device device;
  cache<kept, memory_space::device> kv({.layers = 1, .kv_heads = 1, .sequences = 2, .tokens = 80}, device.memory(),
                                       kept_alike);
  const sequence s[] = {kv.open(), kv.open()};
  std::vector<device_step> steps;
  for (int i = 1; i <= 5; ++i) {
    kv.reserve(s[0], i), kv.reserve(s[1], 1);
    const int tokens[] = {i, 1};
    steps.push_back(
        kv.begin(device.exec(), s, tokens, 2, device.workspace(kv.workspace_bytes(device.exec(), 2, 2, i))));
    kv.commit(steps.back());
  }
  CHECK(device.waiting() == 5);
  device.finish();
  for (int i = 1; i <= 5; ++i) {
    const device_step& step = steps[std::size_t(i - 1)];
    CHECK(step.items[0].n.before == i * (i - 1) / 2);
    CHECK(step.items[0].new_tokens == i);
    CHECK(step.items[1].kv_row == i);
    CHECK(step.items[1].n.after == i);
  }
}

TEST_CASE("device_cache: a step is padded to its bounds, in one place from step to step", "[cache]") {
  late_device device;
  cache<kept, memory_space::device> kv({.layers = 1, .kv_heads = 1, .sequences = 3, .tokens = 80}, device.memory(),
                                       kept_alike);
  const sequence s[] = {kv.open(), kv.open()};
  const auto workspace = device.workspace(kv.workspace_bytes(device.exec(), 5, 2, 3));
  const device_bounds bounds{.sequences = 5, .most_new_tokens = 3};
  const auto begin = [&](std::span<const sequence> who, std::vector<int> tokens) {
    for (std::size_t i = 0; i < who.size(); ++i) kv.reserve(who[i], tokens[i]);
    std::vector<idx> positions;
    for (const int n : tokens) positions.resize(positions.size() + std::size_t(n), 7);
    const device_step step = kv.begin(device.exec(), who, tokens, 2, workspace, positions, bounds);
    device.finish();
    kv.commit(step);
    return step;
  };
  const device_step a = begin(s, {3, 2});
  CHECK((a.size == 5 && a.kv_rows == 15 && a.q_rows == 15 && a.most_new_tokens == 3 && a.most_queries == 3));
  for (int i = 2; i < 5; ++i) {
    CHECK(same_item(a.items[i], {-1, 0, 0, 5, 5, {}}));
  }
  const device_step b = begin({s + 1, 1}, {1});
  CHECK((b.items == a.items && b.rope_positions == a.rope_positions && b.scratch == a.scratch));
  CHECK((b.size == a.size && b.kv_rows == a.kv_rows && b.serial != a.serial));
  CHECK(same_item(b.items[0], {kv.row(s[1]), 1, 1, 0, 0, {2, 3, 2, 3}}));
  CHECK(same_item(b.items[1], {-1, 0, 0, 1, 1, {}}));
  const device_step none = begin({}, {});
  CHECK((none.items == a.items && none.scratch == a.scratch && none.size == a.size));
  CHECK(same_item(none.items[0], {-1, 0, 0, 0, 0, {}}));
}

TEST_CASE("device_cache: what is refused sends nothing and begins nothing", "[cache]") {
  late_device device;
  cache<kept, memory_space::device> kv({.layers = 1, .kv_heads = 1, .sequences = 2, .tokens = 80}, device.memory(),
                                       kept_alike);
  const sequence s[] = {kv.open(), kv.open()};
  kv.reserve(s[0], 8), kv.reserve(s[1], 8);
  const int tokens[] = {3, 2};
  const idx positions[] = {1, 2, 3, 4, 5};
  const auto workspace = device.workspace(kv.workspace_bytes(device.exec(), 2, 2, 3));
  const auto refuses = [&](const std::string& text, auto operation) {
    const auto before = device.contents();
    CHECK_THROWS_AS(operation(), invalid_argument);
    CHECK_THROWS_WITH(operation(), containing(text));
    CHECK(device.waiting() == 0);
    CHECK(device.contents() == before);
    CHECK(kv.free_sequences() == 0);
    kv.truncate(s[0], 0);  // no step is begun
    kv.reserve(s[0], 8);
  };
  const auto begin = [&](const device_bounds& bounds, std::span<const idx> given = {}) {
    kv.begin(device.exec(), s, tokens, 2, workspace, given, bounds);
  };
  refuses("5 of all is begun within bounds of 1, 3 and 3", [&] { begin({.sequences = 1, .most_new_tokens = 3}); });
  refuses("2 sequences, 3 new tokens of one and 5 of all is begun within bounds of 2, 2 and 4",
          [&] { begin({.most_new_tokens = 2}); });
  refuses("within bounds of 2, 3 and 4", [&] { begin({.kv_rows = 4}); });
  refuses("4 positions", [&] { begin({}, std::span(positions).first(4)); });
  refuses("positions of 5 rows alone need",
          [&] { kv.begin(device.exec(), s, tokens, 2, workspace.first(100), positions); });
  refuses("a step of 2 sequences needs more", [&] { kv.begin(device.exec(), s, tokens, 2, workspace.first(511)); });
  refuses("another device", [&] { kv.begin(late_stream{}, s, tokens, 2, workspace); });
  kv.close(s[1]);
  CHECK_THROWS_WITH(kv.fork(late_stream{}, s[0]), containing("another device"));
  CHECK(kv.free_sequences() == 1);
  CHECK(device.waiting() == 0);
}

TEST_CASE("device_cache: a step is committed once, and by the cache that began it last", "[cache]") {
  late_device device;
  cache<kept, memory_space::device> kv({.layers = 1, .kv_heads = 1, .tokens = 80}, device.memory(), kept_alike);
  const sequence s = kv.open();
  kv.reserve(s, 8);
  const int one = 1, two = 2;
  const auto workspace = device.workspace(kv.workspace_bytes(device.exec(), 1, 1, 2));
  const device_step stale = kv.begin(device.exec(), {&s, 1}, {&two, 1}, 1, workspace);
  kv.cancel();
  const device_step step = kv.begin(device.exec(), {&s, 1}, {&two, 1}, 1, workspace);
  CHECK_THROWS_WITH(kv.commit(stale), containing("the one begun last is 2"));
  kv.commit(step, {&one, 1});
  CHECK(kv.length(s) == 1);
  CHECK_THROWS_WITH(kv.commit(step), containing("already ended"));
}

TEST_CASE("device_cache: at static scales the host does not look", "[cache]") {
  late_device device;
  using scaled = policy<paged<4>, e4m3_static<16>>;
  cache<scaled, memory_space::device> kv({.layers = 2, .kv_heads = 2, .tokens = 80}, device.memory());
  const std::vector<float> unreadable(2, NAN);
  kv.set_scales(1, unreadable, std::span(unreadable).first(1));
  const auto view = kv.view(1);
  CHECK(view.first().planes.k_params.base == reinterpret_cast<const unsigned char*>(unreadable.data()));
  CHECK_THROWS_WITH(kv.set_scales(0, std::span<const float>(), unreadable), containing("0 static scales"));
}

TEST_CASE("device_cache: what prompts find and names replace is in the table that is sent", "[cache]") {
  late_device device;
  const cache_shape few{.layers = 2, .kv_heads = 1, .sequences = 3, .tokens = 60, .max_length = 40, .prefixes = true};
  cache<kept, memory_space::device> there(few, device.memory(), kept_alike);
  cache<kept> here(few, host_memory(), kept_alike);
  std::vector<token_id> text;
  for (int i = 0; i < 18; ++i) text.push_back(i);
  const auto grow = [&](sequence s, int tokens) {
    there.reserve(s, tokens), here.reserve(s, tokens);
    std::vector<unsigned char> host_workspace(here.workspace_bytes(host(), 1));
    there.commit(there.begin(device.exec(), {&s, 1}, {&tokens, 1}, 1,
                             device.workspace(there.workspace_bytes(device.exec(), 1, 1, tokens))));
    here.commit(here.begin(host(), {&s, 1}, {&tokens, 1}, host_workspace));
    device.finish();
    const auto pages = device.pages(there.view(0), 3, 10, 4);
    for (int row = 0; row < 3; ++row)
      for (int i = 0; i < 10; ++i)
        REQUIRE(pages[std::size_t(row * 10 + i)] == here.view(0).first().layout.locate(row, 0, 4 * i).page);
  };
  const auto open = [&] {
    const opened_sequence a = there.open(text), b = here.open(text);
    REQUIRE((a.name == b.name && a.tokens == b.tokens));
    return a;
  };
  const opened_sequence first = open(), second = open();
  grow(first.name, 18), grow(second.name, 18);
  there.name(first.name, text), here.name(first.name, text);
  there.name(second.name, text), here.name(second.name, text);  // its pages are the first's now
  CHECK(there.pages().used == 6);
  grow(second.name, 1);
  const opened_sequence third = open();
  CHECK(third.tokens == 16);
  grow(third.name, 2);
  there.close(first.name), here.close(first.name);
  there.truncate(third.name, 6), here.truncate(third.name, 6);
  grow(third.name, 3);
  CHECK(there.pages() == here.pages());
}

TEST_CASE("device_cache: a set's groups begin, fork and reorder together", "[cache]") {
  late_device device;
  test_memory host_side;
  auto there = twin_set(device.memory());
  auto here = twin_set(kvilt::memory<memory_space::host>::from(host_side));
  STATIC_REQUIRE(std::is_same_v<decltype(there), device_cache_set<first_of_set, second_of_set>>);
  CHECK(device.bytes() == std::size_t(there.bytes().bytes()));
  std::vector<sequence> s = {there.open(), there.open()};
  CHECK(here.open() == s[0]);
  CHECK(here.open() == s[1]);
  const auto workspace = device.workspace(there.workspace_bytes(device.exec(), 3, 4, 4));
  std::vector<unsigned char> host_workspace(here.workspace_bytes(host(), 3));
  for (int round = 0; round < 8; ++round) {
    std::vector<int> tokens = {1 + round % 4, round % 2, 3};
    tokens.resize(s.size());
    const std::vector<int> accepted = {1, 0, 2};
    for (std::size_t i = 0; i < s.size(); ++i) there.reserve(s[i], tokens[i]), here.reserve(s[i], tokens[i]);
    const auto a = there.begin(device.exec(), s, tokens, 4, workspace, {}, {.sequences = 3});
    const auto b = here.begin(host(), s, tokens, host_workspace);
    device.finish();
    for (std::size_t g = 0; g < 2; ++g) {
      CHECK((a[g].size == 3 && a[g].q_heads == 2));
      for (std::size_t i = 0; i < s.size(); ++i) CHECK(same_item(a[g].items[i], b[g].items[i]));
    }
    CHECK(a[0].items + 3 <= a[1].items);
    std::vector<int> groups;
    there.visit(1, a, [&](const auto& view, const device_step& of, const head_range& heads) {
      CHECK((view.kv_heads() == 1 && of.size == 3));
      groups.push_back(heads.first);
    });
    CHECK(groups == std::vector<int>{0, 1});
    there.commit(a, std::span(accepted).first(s.size())), here.commit(b, std::span(accepted).first(s.size()));
    if (round == 3) {
      s.push_back(there.fork(device.exec(), s[0]));
      CHECK(here.fork(host(), s[0]) == s[2]);
    }
    if (round == 5) {
      const int parents[] = {1, 2, 1};
      there.reorder(device.exec(), s, parents), here.reorder(host(), s, parents);
    }
  }
  for (const sequence of : s) CHECK(there.length(of) == here.length(of));
}

TEST_CASE("device_cache: what one group of a set refuses, none has begun", "[cache]") {
  late_device device;
  auto set = twin_set(device.memory());
  const sequence s = set.open();
  set.reserve(s, 4);
  const int tokens = 4;
  const auto workspace = device.workspace(set.workspace_bytes(device.exec(), 1, 4, 4));
  CHECK_THROWS_WITH(set.begin(device.exec(), {&s, 1}, {&tokens, 1}, 4, workspace.first(workspace.size() - 1000)),
                    containing("group 1: a workspace of"));
  CHECK_THROWS_WITH(set.begin(device.exec(), {&s, 1}, {&tokens, 1}, 3, workspace), containing("3 query heads over 2"));
  set.truncate(s, 0);  // no step is begun
  set.reserve(s, 4);
  set.commit(set.begin(device.exec(), {&s, 1}, {&tokens, 1}, 4, workspace));
  CHECK(set.length(s) == 4);
  CHECK_THROWS_WITH(set.fork(late_stream{}, s), containing("group 0: a stream of another device"));
  CHECK(set.free_sequences() == 2);
}
