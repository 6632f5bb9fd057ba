// expect: kvilt: to be chosen by its name a layout or a format needs `static constexpr const char. name\(\)`
#include <kvilt/kvilt.hpp>

struct mine {
  static constexpr int rows = 1;
#ifdef KVILT_COMPILE_FAIL_CONTROL
  static constexpr const char* name() {
    return "mine";
  }
#endif
  int width = 0;
  int dim() const {
    return width;
  }
  int code_bytes() const {
    return 4 * width;
  }
  int param_bytes() const {
    return 0;
  }
  void encode(const float*, kvilt::row_ref) const {}
  template <int N>
  void decode(kvilt::row_ref, int, float (&)[N]) const {}
};

int main() {
  return kvilt::dispatch<kvilt::policy_list<kvilt::policy<kvilt::paged<16>, mine>>>("paged16:mine", 64,
                                                                                    [](const auto&) { return 0; });
}
