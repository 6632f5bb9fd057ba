#include "support/catch.hpp"
#include "support/random.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>

namespace {

using namespace kvilt;

// A user's parts: they are chosen by their own names.
struct six_bit : fp32<> {
  using fp32<>::fp32;
  static constexpr const char* name() { return "six_bit"; }
};
struct shuffle {
  static constexpr const char* name() { return "mixed"; }
  static void forward(float*, int) {}
  static void inverse(float*, int) {}
};
struct user_pages : paged<5> {
  using paged<5>::paged;
  constexpr user_pages() = default;
  constexpr user_pages(const paged<5>& p) : paged<5>(p) {}
  static constexpr const char* name() { return "zigzag"; }
  constexpr user_pages bind(const page_id* table, idx width) const { return paged<5>::bind(table, width); }
};

using headline = policy<paged<16>, rotated<q8<>>, q4<>, keep_all, 0, 64>;
using any_page = policy<paged<>, q8<>>;
using everything = policy<contiguous, q4<dynamic, 32>, fp16<>, window<dynamic, 4>, 4, 32, bf16>;
using plain_sinks = policy<contiguous, e4m3<>, e4m3<>, window<64, 4>>;
using exact_sinks = policy<contiguous, e4m3<>, e4m3<>, window<64, 4>, 4>;
using small_rows = policy<contiguous, fp16<64>>;
using large_rows = policy<contiguous, fp16<128>>;
using own = policy<user_pages, rotated<six_bit, shuffle>, bf16<>, keep_all, 2>;
using tiles = policy<paged<64>, centred<rotated<q4<>>>, q2<dynamic, 32>, keep_all, 0, 64>;
using handed = policy<paged<>, e4m3_static<>, e4m3<dynamic, 32>>;
using shared = policy<paged<>, q8<>, prefix<q8<>, 48>>;
using evicting = policy<paged<16>, q4<>, q4<>, listed, 4, 64>;
using by_head = policy<paged_by_head<>, q8<>, q8<>, listed>;
using my = policy_list<headline, any_page, everything, plain_sinks, exact_sinks, small_rows, large_rows, own,
                       ring<q4<>>, tiles, handed, evicting, by_head>;

template <class Wanted>
bool chosen(std::string_view text, row_dims dims) {
  return dispatch<my>(text, dims, [](const auto& p) { return std::is_same_v<std::decay_t<decltype(p)>, Wanted>; });
}
std::string name_after(std::string_view text, row_dims dims) {
  return dispatch<my>(text, dims, [](const auto& p) { return name_of(p); });
}
std::string error_of(std::string_view text, row_dims dims = 64) {
  try {
    dispatch<my>(text, dims, [](const auto&) {});
  } catch (const invalid_argument& e) {
    return e.what();
  }
  return "none";
}

constexpr const char* the_list =
    "; the list has paged16:q8rot:q4:tail64, pagedN:q8, contiguous:q4g32:fp16:windowN+4:sinks4:tail32:exact_bf16, "
    "contiguous:e4m3:window64+4, contiguous:e4m3:window64+4:sinks4, contiguous:fp16, contiguous:fp16, "
    "zigzag5:six_bitmixed:bf16:sinks2, contiguous:q4:windowN, paged64:q4rotctr:q2g32:tail64, "
    "pagedN:e4m3_static:e4m3g32, paged16:q4:listed:sinks4:tail64, "
    "paged_by_headN:q8:listed";

}  // namespace

TEST_CASE("dispatch: a name chooses its policy and no other", "[cache]") {
  CHECK(chosen<headline>("paged16:q8rot:q4:tail64", 128));
  CHECK(chosen<any_page>("paged16:q8", 128));
  CHECK(chosen<any_page>("paged16:q8:q8", 128));
  CHECK(chosen<everything>("contiguous:q4g32:fp16:window128+4:sinks4:tail32:exact_bf16", 64));
  CHECK(chosen<plain_sinks>("contiguous:e4m3:window64+4", 64));
  CHECK(chosen<exact_sinks>("contiguous:e4m3:sinks4:window64+4", 64));
  CHECK(chosen<small_rows>("contiguous:fp16", 64));
  CHECK(chosen<large_rows>("contiguous:fp16", 128));
  CHECK(chosen<own>("zigzag5:six_bitmixed:bf16:sinks2", 16));
  CHECK(chosen<ring<q4<>>>("contiguous:q4:window9", 64));
  CHECK(chosen<tiles>("paged64:q4rotctr:q2g32:tail64", 128));
  CHECK(chosen<handed>("paged16:e4m3_static:e4m3g32", 128));
  CHECK(chosen<evicting>("paged16:q4:listed:sinks4:tail64", 128));
  CHECK(chosen<by_head>("paged_by_head16:q8:listed", 128));
  CHECK(name_after("paged_by_head16:q8:listed", 128) == "paged_by_head16:q8:listed");
}

TEST_CASE("dispatch: what a type leaves to run time comes from the name and the dims", "[cache]") {
  const any_page paged_policy =
      dispatch<policy_list<any_page>>("paged19:q8", {96, 40}, [](const any_page& p) { return p; });
  CHECK(paged_policy.layout.page_size() == 19);
  CHECK(paged_policy.k.dim() == 96);
  CHECK(paged_policy.v.dim() == 40);
  using windowed = ring<q4<>>;
  const windowed narrow =
      dispatch<policy_list<windowed>>("contiguous:q4:window2147483647", 8, [](const windowed& p) { return p; });
  CHECK(narrow.retention.width() == 2147483647);
  const shared latent =
      dispatch<policy_list<shared>>("paged8:q8:prefix48", {64, 48}, [](const shared& p) { return p; });
  CHECK(latent.k.dim() == 64);
  CHECK(latent.v.k().dim() == 64);
}

TEST_CASE("dispatch: every policy of a list comes back from its own name, options in any order", "[cache]") {
  support::dice dice(3);
  int count = 0;
  my::each([&](const auto& p) {
    std::string name = name_of(p);
    for (std::size_t at; (at = name.find('N')) != std::string::npos;) name.replace(at, 1, "7");
    const int dim = std::is_same_v<std::decay_t<decltype(p)>, large_rows> ? 128 : 64;
    CHECK(name_after(name, dim) == name);
    CHECK(chosen<std::decay_t<decltype(p)>>(name, dim));

    std::vector<std::string> pieces(1);
    for (const char c : name) c == ':' ? void(pieces.emplace_back()) : void(pieces.back() += c);
    const auto options = std::find_if(pieces.begin(), pieces.end(), [](const std::string& piece) {
      return piece.find("window") == 0 || piece == "listed" || piece.find("sinks") == 0 || piece.find("tail") == 0;
    });
    for (int round = 0; round < 6; ++round) {
      for (auto i = options; i != pieces.end(); ++i) std::iter_swap(i, i + dice.below(int(pieces.end() - i)));
      std::string shuffled;
      for (const std::string& piece : pieces) shuffled += (shuffled.empty() ? "" : ":") + piece;
      CHECK(name_after(shuffled, dim) == name);
    }
    ++count;
  });
  CHECK(count == my::size);
}

TEST_CASE("dispatch: a name is of the values, where they are known", "[cache]") {
  CHECK(name_of(any_page(q8<>(64), q8<>(64), {}, paged<>(48))) == "paged48:q8");
  CHECK(name_of(any_page()) == "pagedN:q8");
  CHECK(name_of(policy<paged<16>, q8<>, q8<>, keep_all, 4, 64>()) == "paged16:q8:sinks4:tail64");
  CHECK(name_of(policy<paged<16>, q8<>, q8<>, keep_all, 0, 8, bf16>()) == "paged16:q8:tail8:exact_bf16");
  CHECK(name_of(policy<paged<16>, q8<>, q8<>, keep_all, 0, 0, bf16>()) == "paged16:q8");
}

TEST_CASE("dispatch: the policy chosen is one that a cache takes", "[cache]") {
  const cache_shape shape{.layers = 2, .kv_heads = 3, .sequences = 2, .tokens = 64, .max_step = 4};
  for (const std::string name : {"paged16:q8rot:q4:tail64", "paged5:q8", "contiguous:fp16"}) {
    const idx bytes = dispatch<my>(name, 64, [&](const auto& p) {
      using chosen_policy = std::decay_t<decltype(p)>;
      cache<chosen_policy> owner(shape, host_memory(), p);
      return owner.bytes().bytes();
    });
    CHECK(bytes == dispatch<my>(name, 64, [&](const auto& p) { return plan_bytes(p, shape).bytes(); }));
  }
}

TEST_CASE("dispatch: what the list has not is refused with the piece and all that it has", "[cache]") {
  CHECK(error_of("pagd16:q8") ==
        std::string("kvilt: policy 'pagd16:q8': no policy has the layout 'pagd16'") + the_list);
  const auto why = [](const char* text, row_dims dims = 64) {
    const std::string error = error_of(text, dims), head = "kvilt: policy '" + std::string(text) + "': ";
    const std::size_t list = error.find(the_list);
    REQUIRE(error.substr(0, head.size()) == head);
    REQUIRE(list != std::string::npos);
    return error.substr(head.size(), list - head.size());
  };
  CHECK(why("paged16:q5") == "none that has what precedes it has the format of K 'q5'");
  CHECK(why("paged16:q8:q4") == "none that has what precedes it has the format of V 'q4'");
  CHECK(why("paged16:q8rot:q4") == "a piece for its 16-bit tail is missing");
  CHECK(why("paged16:q8rot:q4:tail63") == "none that has what precedes it has the 16-bit tail 'tail63'");
  CHECK(why("paged16:q8rot:q4:window9:tail64") == "none that has what precedes it has the window 'window9'");
  CHECK(why("contiguous:e4m3:window64") == "none that has what precedes it has the window 'window64'");
  CHECK(why("contiguous:e4m3:window63+4") == "none that has what precedes it has the window 'window63+4'");
  CHECK(why("contiguous:e4m3:window64+3") == "none that has what precedes it has the window 'window64+3'");
  CHECK(why("contiguous:e4m3:window64+4:sinks3") == "none that has what precedes it has the 16-bit sinks 'sinks3'");
  CHECK(why("contiguous:q4g32:fp16:window8+4:sinks4:tail32") == "a piece for its 16-bit format is missing");
  CHECK(why("contiguous:q4") == "a piece for its window is missing");
  CHECK(why("paged16:q4:listed:sinks4") == "a piece for its 16-bit tail is missing");
  CHECK(why("contiguous:q4:listed") == "none that has what precedes it has the window 'listed'");
  CHECK(why("contiguous:fp16", 72) == "none of this name has rows of 72 and 72 numbers");
  CHECK(why("contiguous:fp16", {64, 128}) == "none of this name has rows of 64 and 128 numbers");
  CHECK(why("PAGED16:q8") == "no policy has the layout 'PAGED16'");
  CHECK(why("paged16 :q8") == "no policy has the layout 'paged16 '");
  CHECK(why("pagedN:q8") == "no policy has the layout 'pagedN'");
  CHECK(why("contiguous16:fp16") == "no policy has the layout 'contiguous16'");
  CHECK(why("zigzag6:six_bitmixed:bf16:sinks2") == "no policy has the layout 'zigzag6'");
}

TEST_CASE("dispatch: what is no name is refused with the piece that is none", "[cache]") {
  const auto why = [](const std::string& text) { return error_of(text); };
  CHECK_THAT(why(""),
             support::containing("policy '': a piece is empty where a layout should be; the list has paged16"));
  CHECK_THAT(why("paged16"), support::containing(": it ends where a format of K should be;"));
  CHECK_THAT(why("paged16:"), support::containing(": a piece is empty where a format of K should be;"));
  CHECK_THAT(why("paged16:q8:"), support::containing(": a piece is empty where an option should be;"));
  CHECK_THAT(why("paged16:q8rot:q4::tail64"), support::containing(": a piece is empty where an option should be;"));
  CHECK_THAT(why("paged16:q8rot:q4:tail64:tail64"), support::containing(": 'tail64' comes after 'tail64'; once is"));
  CHECK_THAT(why("contiguous:q4:window8:window9"), support::containing(": 'window9' comes after 'window8'; once is"));
  CHECK_THAT(why("contiguous:q4:window8:listed"), support::containing(": 'listed' comes after 'window8'; once is"));
  CHECK_THAT(why("paged16:q8:exact_bf16:exact_fp16"), support::containing("'exact_fp16' comes after 'exact_bf16'"));
  CHECK_THAT(why("paged16:q8:q4:q4"), support::containing(": 'q4' is no option; there are window<W>,"));
  CHECK_THAT(why("paged16:tail64:q8"),
             support::containing(": none that has what precedes it has the format of K 'tail64';"));
  CHECK_THAT(why("paged16:q8:q8:tial64"), support::containing(": 'tial64' is no option;"));
  for (const char* number :
       {"", "0", "-1", "+1", "01", "2147483648", "99999999999999999999", "1x", "1.0", "8+", "8+0"}) {
    const std::string window = "window" + std::string(number);
    CHECK_THAT(why("contiguous:q4:" + window),
               support::containing(": the number in '" + window + "' is none from 1 to 2147483647;"));
  }
  for (const char* number : {"", "0", "-1", "01", "2147483648", "4 "})
    for (const char* word : {"sinks", "tail"})
      CHECK_THAT(why("paged16:q8:" + std::string(word) + number),
                 support::containing(": the number in '" + std::string(word) + number + "' is none from 1"));
  CHECK_THAT(why("paged16\n:q8"), support::containing("policy 'paged16?:q8': no policy has the layout 'paged16?';"));
  CHECK_THAT(why(std::string("paged16\0:q8", 11)), support::containing("policy 'paged16?:q8': no policy has"));
  CHECK_THAT(why(std::string(100, 'x') + ":q8"),
             support::containing(": no policy has the layout '" + std::string(80, 'x') + "...';"));
  for (const char* number : {"0", "-1", "016", "2147483648", "16x", ""})
    CHECK_THAT(why("paged" + std::string(number) + ":q8"),
               support::containing(": no policy has the layout 'paged" + std::string(number) + "';"));
}
