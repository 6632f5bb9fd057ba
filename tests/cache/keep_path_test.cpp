#include "support/catch.hpp"
#include "support/owner_checks.hpp"
#include "support/owners.hpp"

#include <kvilt/core/thread_pool.hpp>

namespace {

using namespace kvilt;
using namespace support;

// A step of drafts of one sequence: how many there are, and the rows of the path that is accepted.
struct drafts {
  int tokens = 0;
  std::vector<int> path;
};

// The same sequences in two caches: one appends trees and keeps a path, the other appends the path alone. A token's
// numbers depend on its name.
class tree_and_path {
 public:
  tree_and_path(int which, const cache_shape& shape)
      : tree_(make_owner(which, shape, 0xff)), plain_(make_owner(which, shape, 0xff)) {
    for (int i = 0; i < shape.sequences; ++i) {
      names_.push_back(tree_->open());
      REQUIRE(plain_->open() == names_.back());
    }
  }

  const subject& owner() const { return *tree_; }
  subject& tree() { return *tree_; }
  idx length(int i) const { return tree_->length(names_[std::size_t(i)]); }
  const std::vector<sequence>& names() const { return names_; }

  // One step of each sequence. Before the one that counts: `failed` trees that are forgotten; afterwards all is equal.
  void step(const host& exec, const std::vector<drafts>& of, int failed = 0) {
    std::vector<int> tokens, accepted, nodes, path_tokens;
    std::vector<std::uint64_t> tree_names, path_names;
    for (std::size_t i = 0; i < of.size(); ++i) {
      tree_->reserve(names_[i], of[i].tokens);
      plain_->reserve(names_[i], of[i].tokens);
      tokens.push_back(of[i].tokens), accepted.push_back(int(of[i].path.size()));
      for (int t = 0; t < of[i].tokens; ++t) tree_names.push_back(++next_name_);
      for (const int node : of[i].path) {
        nodes.push_back(node);
        path_names.push_back(tree_names[tree_names.size() - std::size_t(of[i].tokens - node)]);
      }
    }
    for (int i = 0; i < failed; ++i) {
      grow(*tree_, exec, tokens, tree_names, [&](int layer, const kvilt::step& s) {
        if (layer <= i) tree_->keep_path(exec, layer, s, nodes, accepted);
      });
      tree_->cancel();
    }
    tree_->commit(grow(*tree_, exec, tokens, tree_names,
                       [&](int layer, const kvilt::step& s) { tree_->keep_path(exec, layer, s, nodes, accepted); }),
                  accepted);
    plain_->commit(grow(*plain_, exec, accepted, path_names, [](int, const kvilt::step&) {}), {});
    compare();
  }

 private:
  // begin, and append in each layer; `then(layer, step)` after each.
  template <class Then>
  kvilt::step grow(subject& owner, const host& exec, const std::vector<int>& tokens,
                   const std::vector<std::uint64_t>& token_names, Then then) {
    workspace_.assign(owner.workspace_bytes(exec, int(tokens.size())), 0xff);
    const kvilt::step s = owner.begin(exec, names_, tokens, workspace_);
    const int heads = owner.shape().kv_heads;
    for (int layer = 0; layer < owner.shape().layers; ++layer) {
      std::vector<float> k, v;
      for (const std::uint64_t name : token_names) {
        normal_numbers numbers(mixed({name, std::uint64_t(layer)}));
        for (int i = 0; i < heads * owner.k_dim; ++i) k.push_back(numbers.next());
        for (int i = 0; i < heads * owner.v_dim; ++i) v.push_back(numbers.next());
      }
      owner.append(exec, layer, s, packed_rows<const float>(k.data(), heads, owner.k_dim),
                   packed_rows<const float>(v.data(), heads, owner.v_dim));
      then(layer, s);
    }
    return s;
  }
  void compare() {
    for (const sequence s : names_) {
      REQUIRE(tree_->length(s) == plain_->length(s));
      if (tree_->live_bytes(s) != plain_->live_bytes(s))
        FAIL(tree_->name << ": other bytes of sequence " << s.slot << " at " << plain_->length(s) << " tokens");
    }
    REQUIRE(tree_->free_pages() >= 0);
  }

  std::unique_ptr<subject> tree_, plain_;
  std::vector<sequence> names_;
  std::vector<unsigned char> workspace_;
  std::uint64_t next_name_ = 0;
};

// Going up, any number of `tokens` rows.
std::vector<int> any_path(dice& d, int tokens) {
  std::vector<int> path;
  for (int node = 0; node < tokens; ++node)
    if (d.below(2)) path.push_back(node);
  return path;
}

constexpr int sequences = 3;

// Whole steps until every sequence is beyond its sinks, where a row may pass between formats.
void fill_sinks(tree_and_path& both, const host& exec) {
  while (both.length(0) < both.owner().sinks) both.step(exec, std::vector<drafts>(sequences, {1, {0}}));
}

constexpr cache_shape tree_shape{
    .layers = 2, .kv_heads = 2, .sequences = sequences, .tokens = 400, .max_length = 100, .max_step = 6};

}  // namespace

TEST_CASE("keep_path: leaves what appending the path alone would have left", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    tree_and_path both(which, tree_shape);
    INFO(both.owner().name);
    dice d(std::uint64_t(which) + 1);
    fill_sinks(both, host());
    while (both.length(0) < 80 && both.length(1) < 80 && both.length(2) < 80) {
      std::vector<drafts> of;
      for (int i = 0; i < sequences; ++i) {
        const int tokens = d.below(7);
        of.push_back({tokens, any_path(d, tokens)});
      }
      both.step(host(), of, d.below(3));
    }
  }
}

TEST_CASE("keep_path: every path of a small tree, at every place of the window, the page and the tail", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    tree_and_path both(which, tree_shape);
    INFO(both.owner().name);
    fill_sinks(both, host());
    for (int mask = 0; mask < 32; ++mask) {
      std::vector<int> path;
      for (int node = 0; node < 5; ++node)
        if (mask >> node & 1) path.push_back(node);
      both.step(host(), {{5, path}, {1, {0}}, {0, {}}});
    }
  }
}

TEST_CASE("keep_path: threads change no bits", "[cache][threads]") {
  thread_pool pool(3);
  for (const int which : {1, 2, 4}) {
    tree_and_path both(which, tree_shape);
    fill_sinks(both, host(pool));
    for (int i = 0; i < 12; ++i) both.step(host(pool), {{6, {1, 2, 5}}, {4, {3}}, {3, {0, 2}}});
  }
}

TEST_CASE("keep_path: refuses what is no path, and moves nothing", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    const auto owner = make_owner(which, tree_shape, 0xff);
    session filled(*owner, 1);
    filled.open(0);
    fill(filled, 0, 9);
    const sequence s = filled.at(0);
    owner->reserve(s, 4);
    std::vector<unsigned char> workspace(owner->workspace_bytes(host(), 1));
    const int four[] = {4};
    const step begun = owner->begin(host(), {&s, 1}, four, workspace);
    const auto refused = [&](std::vector<int> nodes, std::vector<int> accepted, const std::string& text) {
      refuses(*owner, {s}, text, [&] { owner->keep_path(host(), 1, begun, nodes, accepted); });
    };
    refused({1}, {}, "a step of 1 sequences has 0 accepted counts");
    refused({1}, {1, 0}, "a step of 1 sequences has 2 accepted counts");
    refused({1}, {2}, "paths have 1 nodes; 2 are accepted");
    refused({1, 2}, {1}, "paths have 2 nodes; 1 are accepted");
    refused({}, {-1}, "accepts -1 of 4 tokens");
    refused({0, 1, 2, 3, 3}, {5}, "accepts 5 of 4 tokens");
    refused({1, 1}, {2}, "has node 1 after 1 in its path");
    refused({2, 1}, {2}, "has node 1 after 2 in its path");
    refused({-1}, {1}, "has node -1 after -1 in its path");
    refused({1, 4}, {2}, "has node 4 after 1 in its path; nodes of 4 going up are needed");
    owner->cancel();
  }
}

TEST_CASE("keep_path: a row does not pass between formats", "[cache]") {
  for (int which = 0; which < owner_count; ++which) {
    const auto owner = make_owner(which, tree_shape, 0xff);
    INFO(owner->name);
    const sequence s = owner->open();
    owner->reserve(s, 6);
    std::vector<unsigned char> workspace(owner->workspace_bytes(host(), 1));
    const int six[] = {6};
    const step begun = owner->begin(host(), {&s, 1}, six, workspace);
    const int nodes[] = {0, 2, 3, 5}, accepted[] = {4};
    // Sinks are in 16 bit and the others not, or the others and not they.
    const bool passes = owner->sinks > 0 && (owner->exact_sinks > 0) != (owner->tail > 0);
    if (passes)
      refuses(*owner, {s}, "does not become token", [&] { owner->keep_path(host(), 0, begun, nodes, accepted); });
    else
      CHECK_NOTHROW(owner->keep_path(host(), 0, begun, nodes, accepted));
    // What stays where it is passes nowhere.
    const int first[] = {0, 1, 2}, three[] = {3};
    CHECK_NOTHROW(owner->keep_path(host(), 0, begun, first, three));
    owner->cancel();
  }
}
