#include "support/attend_gpu.cuh"

// Types and strides of a caller's tensors.

namespace {

using namespace kvilt;
using support::attend_shape;

// Gaps that leave no row on a line of its own.
template <class Q, class Out>
void check_types(int number, int head_gap, int token_gap) {
  using kv = policy<paged<16>, bf16<72>, bf16<40>>;
  using text_type = support::filled_cache<kv>;
  const support::kept_by kept = text_type::kept(kv());
  for (attend_shape shape : support::shapes_for(number, kept)) {
    shape.head_gap = head_gap, shape.token_gap = token_gap;
    const text_type text(kv(), shape);
    CHECK(support::wrong_attention<Q, Out>(text, kept, shape, support::tried<>()) == "");
  }
}

}  // namespace

TEST_CASE("attend: Q and outputs of every type on the device", "[attention][gpu]") {
  support::require_gpu();
  check_types<float, float>(0, 0, 0);
  check_types<float, float16>(1, 8, 0);
  check_types<float16, bfloat16>(2, 0, 16);
  check_types<bfloat16, float16>(4, 8, 8);
}

TEST_CASE("attend: rows of Q and of outputs at any stride on the device", "[attention][gpu]") {
  support::require_gpu();
  check_types<float, float>(2, 1, 0);
  check_types<float, float16>(4, 0, 1);
  check_types<float16, bfloat16>(1, 3, 5);
  check_types<bfloat16, float16>(0, 1, 2);
}
