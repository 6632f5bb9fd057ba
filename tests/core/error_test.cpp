#include "support/catch.hpp"

#include <kvilt/core/error.hpp>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace {

using namespace kvilt;

std::string message_of(int heads) {
  try {
    detail::expects(heads > 0, "K has ", heads, " heads", std::string("; "), std::size_t(3), " are needed");
  } catch (const invalid_argument& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("error: what does not hold is thrown with its values", "[core]") {
  CHECK(message_of(-2) == "kvilt: K has -2 heads; 3 are needed");
  CHECK(message_of(1).empty());
}

TEST_CASE("error: one base for everything, and its own type for a full pool", "[core]") {
  STATIC_REQUIRE(std::is_base_of_v<std::runtime_error, error>);
  STATIC_REQUIRE(std::is_base_of_v<error, invalid_argument>);
  STATIC_REQUIRE(std::is_base_of_v<error, out_of_pages>);
  STATIC_REQUIRE_FALSE(std::is_base_of_v<invalid_argument, out_of_pages>);
  CHECK_THROWS_AS(detail::expects<out_of_pages>(false, "no page"), out_of_pages);
  CHECK_THROWS_AS(detail::expects(false, "no"), invalid_argument);
}
