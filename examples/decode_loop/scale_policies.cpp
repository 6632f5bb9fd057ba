#include "entry.hpp"

namespace example {
namespace {

// One scale a KV head and layer, or one a layer, for both, for K alone and for V alone.
template <class Format>
void add_calibrated(const std::string& name, std::vector<policy_entry>& to) {
  using namespace kvilt;
  for (const scale_of which : {scale_of::head, scale_of::tensor}) {
    const std::string own = name + (which == scale_of::head ? "_head" : "_tensor");
    to.push_back(calibrated_entry<policy<contiguous, Format>>(own, which));
    to.push_back(calibrated_entry<policy<contiguous, Format, fp16<>>>(own + "_fp16", which));
    to.push_back(calibrated_entry<policy<contiguous, fp16<>, Format>>("fp16_" + own, which));
  }
}

}  // namespace

// Whose scale a number of 8 bits has: its token's, its head's or the whole tensor's. On request.
std::vector<policy_entry> scale_policies() {
  using namespace kvilt;
  std::vector<policy_entry> all{
      entry<policy<contiguous, q8<>, fp16<>>>("int8_fp16"),
      entry<policy<contiguous, fp16<>, q8<>>>("fp16_int8"),
      entry<policy<contiguous, e4m3<>, fp16<>>>("e4m3_fp16"),
      entry<policy<contiguous, fp16<>, e4m3<>>>("fp16_e4m3"),
  };
  add_calibrated<q8_static<>>("int8", all);
  add_calibrated<e4m3_static<>>("e4m3", all);
  for (policy_entry& p : all) p = on_request(std::move(p));
  return all;
}

}  // namespace example
