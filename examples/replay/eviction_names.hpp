#pragma once

#include <kvilt/pages/aged_lfu.hpp>
#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/priority.hpp>

#include <array>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace example {

inline constexpr std::array eviction_names{"lru", "aged_lfu", "priority", "cost_aware"};

// Calls body(std::type_identity<Eviction>{}). Throws std::invalid_argument for a name that there is not.
template <class Body>
auto with_eviction(const std::string& name, Body&& body) {
  if (name == "lru") return body(std::type_identity<kvilt::lru>{});
  if (name == "aged_lfu") return body(std::type_identity<kvilt::aged_lfu>{});
  if (name == "priority") return body(std::type_identity<kvilt::priority>{});
  if (name == "cost_aware") return body(std::type_identity<kvilt::cost_aware<>>{});
  throw std::invalid_argument("policy '" + name + "'; there are lru, aged_lfu, priority, cost_aware");
}

}  // namespace example
