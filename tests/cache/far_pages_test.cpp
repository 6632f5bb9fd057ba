#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <sys/mman.h>

namespace {

using namespace kvilt;
using namespace support;

// Addresses with nothing behind them until they are touched.
class far_memory {
 public:
  explicit far_memory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) skip("no room for " + std::to_string(bytes) + " bytes of addresses");
  }
  far_memory(const far_memory&) = delete;
  far_memory& operator=(const far_memory&) = delete;
  ~far_memory() { munmap(data_, bytes_); }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

constexpr int dim = 16, heads = 2, tokens = 9;
constexpr idx apart = idx(1) << 32;  // bytes, and in tensors numbers

}  // namespace

TEST_CASE("far pages: planes whose pages, heads and records are 4 GiB apart", "[cache]") {
  const tensor<float> k = random_tensor(1, tokens, heads, dim), v = random_tensor(2, tokens, heads, dim),
                      q = random_tensor(3, tokens, heads, dim);
  const planned_step s(host(), {0}, {tokens}, {}, dim, dim);
  const text near(tokens, heads, dim, dim, 1);
  const answer<> want = near.attend(attention{causal{}}, s, q);

  const far_memory memory(std::size_t(8 * apart));
  const std::vector<page_id> table = {2, 0, 1};
  using body = segment<paged<3>, interval<part::body, keep_all>, fp32<>>;
  const auto check = [&](idx page, idx head, idx record) {
    const idx v_part = 256 << 10;
    const geometry planes{{memory.data(), page, head, record}, {}, {memory.data() + v_part, page, head, record}, {}, 3};
    const auto view = make_view<memory_space::host>(
        heads, body{paged<3>(table.data(), 3), interval<part::body, keep_all>(), fp32<>(dim), fp32<>(dim), planes});
    append(host(), view, s, k.rows(), v.rows());
    answer<> got(tokens, heads, dim);
    attention{causal{}}(host(), view, s, q.rows(), got.out.rows(), got.lse_rows());
    CHECK(same_bits(got.out.data, want.out.data));
    CHECK(same_bits(got.lse, want.lse));
  };
  check(apart, 4096, 64);
  check(4096, apart, 64);
  check(4096, 16384, apart);
}

TEST_CASE("far pages: tensors whose tokens are 2^32 numbers apart", "[cache]") {
  constexpr int few = 2;
  const tensor<float> k = random_tensor(1, few, heads, dim), q = random_tensor(3, few, heads, dim);
  const text near(few, heads, dim, dim, 1);
  const planned_step s(host(), {0}, {few}, {}, dim, dim);
  const answer<> want = near.attend(attention{causal{}}, s, q);

  const far_memory queries(std::size_t(2 * 4 * apart)), outputs(std::size_t(2 * 4 * apart));
  const auto far = [](const far_memory& m) {
    return rows<float>{reinterpret_cast<float*>(m.data()), apart, dim, heads, dim};
  };
  for (int t = 0; t < few; ++t)
    for (int h = 0; h < heads; ++h) std::copy(q.row(t, h).begin(), q.row(t, h).end(), far(queries).at(t, h));
  attention{causal{}}(host(), near.view(), s, far(queries), far(outputs));
  for (int t = 0; t < few; ++t)
    for (int h = 0; h < heads; ++h)
      CHECK(std::equal(want.out.row(t, h).begin(), want.out.row(t, h).end(), far(outputs).at(t, h)));
}
