// Any string: `dispatch` takes it where a list of names by hand says so, and refuses it in one line otherwise.
#include "fuzz/fuzz.hpp"

#include <kvilt/cache/dispatch.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace kvilt;

using policies = policy_list<policy<paged<16>, rotated<q8<>>, q4<>, keep_all, 0, 64>, policy<paged<>, q8<>>,
                             policy<contiguous, q4<dynamic, 32>, fp16<>, window<dynamic, 4>, 4, 32, bf16>,
                             policy<contiguous, e4m3<>, e4m3<>, window<64, 4>>, policy<contiguous, fp16<64>>,
                             policy<contiguous, fp16<128>>, ring<q4<>>>;

// The same list, each as its pieces; N is any number.
struct known {
  std::vector<std::string_view> pieces;  // layout, K, V, options
  int dim = 0;                           // 0: any
};
const std::array<known, 7> all{{{{"paged16", "q8rot", "q4", "tail64"}},
                                {{"pagedN", "q8", "q8"}},
                                {{"contiguous", "q4g32", "fp16", "windowN+4", "sinks4", "tail32", "exact_bf16"}},
                                {{"contiguous", "e4m3", "e4m3", "window64+4"}},
                                {{"contiguous", "fp16", "fp16"}, 64},
                                {{"contiguous", "fp16", "fp16"}, 128},
                                {{"contiguous", "q4", "q4", "windowN"}}}};

bool is_number(std::string_view digits) {
  if (digits.empty() || digits[0] == '0') return false;
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) return false;
  return digits.size() < 10 || (digits.size() == 10 && digits <= "2147483647");
}
bool is_piece(std::string_view piece, std::string_view pattern) {
  const std::size_t n = pattern.find('N');
  if (n == std::string_view::npos) return piece == pattern;
  const std::size_t rest = pattern.size() - n - 1;
  return piece.size() > n + rest && piece.substr(0, n) == pattern.substr(0, n) &&
         piece.substr(piece.size() - rest) == pattern.substr(n + 1) &&
         is_number(piece.substr(n, piece.size() - n - rest));
}
bool is_option(std::string_view piece) {
  for (const std::string_view word : {"window", "sinks", "tail", "exact_"})
    if (piece.substr(0, word.size()) == word) return true;
  return false;
}

bool is_named(std::string_view text, int dim, const known& one) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(':', at), text.size());
    pieces.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  // K's format stands for V's. NOTE: exact_fp16 may be said where it is so anyway.
  if (pieces.size() >= 2 && (pieces.size() == 2 || is_option(pieces[2]))) pieces.insert(pieces.begin() + 2, pieces[1]);
  std::vector<std::string_view> want = one.pieces;
  if (std::find(want.begin(), want.end(), "exact_bf16") == want.end() &&
      std::find(pieces.begin(), pieces.end(), "exact_fp16") != pieces.end())
    want.push_back("exact_fp16");
  if (pieces.size() != want.size() || (one.dim && one.dim != dim)) return false;
  for (std::size_t i = 0; i < 3; ++i)
    if (!is_piece(pieces[i], want[i])) return false;
  return std::all_of(want.begin() + 3, want.end(), [&](std::string_view pattern) {
    return std::any_of(pieces.begin() + 3, pieces.end(),
                       [&](std::string_view piece) { return is_piece(piece, pattern); });
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::choices first(data, size > 0 ? 1 : 0);
  const int dim = std::array{64, 128, 72}[std::size_t(first.below(3))];
  const std::string text(reinterpret_cast<const char*>(data) + (size > 0), size - (size > 0));
  const bool expected = std::any_of(all.begin(), all.end(), [&](const known& k) { return is_named(text, dim, k); });
  const auto name_after = [&](const std::string& name) {
    return dispatch<policies>(name, dim, [&](const auto& p) {
      if (p.k.dim() != dim || p.v.dim() != dim) fuzz::fail("other rows after '" + name + "'");
      return name_of(p);
    });
  };
  try {
    const std::string name = name_after(text);
    if (!expected) fuzz::fail("taken: '" + text + "' as " + name);
    if (name_after(name) != name) fuzz::fail("no way back from '" + name + "'");
  } catch (const invalid_argument& e) {
    const std::string message = e.what();
    if (expected) fuzz::fail("refused: '" + text + "': " + message);
    if (message.find("kvilt: policy '") != 0 || message.find('\n') != std::string::npos)
      fuzz::fail("another message: " + message);
    if (message.find("; the list has paged16:q8rot:q4:tail64, ") == std::string::npos)
      fuzz::fail("no list: " + message);
  }
  return 0;
}
