// An engine's errors, without Catch2: compiled with and without exceptions, and with and without an ear for errors
// (KVILT_RAISE). What is refused must end the process, or throw, and write nothing into the cache.
#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/sequence_file.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

namespace {

constexpr int kv_heads = 2, q_heads = 4, dim = 16;
using paged_policy = kvilt::policy<kvilt::paged<4>, kvilt::rotated<kvilt::q8<>>, kvilt::q4<>, kvilt::keep_all, 2, 3>;
using policies = kvilt::policy_list<paged_policy, kvilt::ring<kvilt::fp16<>>>;

// What a child process and its parent both see: the cache's memory, and the last words of an error.
struct shared {
  static constexpr std::size_t room = 1 << 20;
  unsigned char bytes[room];
  std::size_t used = 0;
  int kind = -1;
  char words[200] = {};

  void* allocate(std::size_t n, std::size_t align) {
    const std::size_t first = (used + align - 1) / align * align;
    if (first + n > room) return nullptr;
    used = first + n;
    return bytes + first;
  }
  void deallocate(void*, std::size_t, std::size_t) noexcept {}
};
shared* common = nullptr;

int failures = 0;
void check(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failures;
}

template <class Policy>
struct engine {
  kvilt::cache<Policy> cache;
  std::vector<unsigned char> workspace;
  kvilt::sequence sequence;
  std::vector<float> numbers = std::vector<float>(5 * q_heads * dim, 0.5f), out = numbers;

  explicit engine(const Policy& policy)
      : cache({.layers = 1, .kv_heads = kv_heads, .sequences = 1, .tokens = 16, .max_step = 5},
              kvilt::memory<kvilt::memory_space::host>::from(*common), policy),
        workspace(cache.workspace_bytes(kvilt::host(), 1)),
        sequence(cache.open()) {}

  kvilt::rows<float> rows(int heads) { return kvilt::packed_rows(numbers.data(), heads, dim); }
  kvilt::step begin(int tokens) { return cache.begin(kvilt::host(), {&sequence, 1}, {&tokens, 1}, workspace); }
  void append(const kvilt::step& s, int heads) {
    kvilt::append(kvilt::host(), cache.view(0), s, rows(heads), rows(heads));
  }
  void attend(const kvilt::step& s, int heads) {
    kvilt::attention{kvilt::causal{}}(kvilt::host(), cache.view(0), s, rows(heads),
                                      kvilt::packed_rows(out.data(), heads, dim));
  }
};

// Programs of two versions or modes, or that are told of errors in different ways, share no type and no function.
void has_a_namespace_of_its_own() {
  constexpr char version[] = "v" TEXT(KVILT_VERSION_MAJOR) "_" TEXT(KVILT_VERSION_MINOR);
  check(std::strncmp(TEXT(KVILT_ABI), version, sizeof(version) - 1) == 0, TEXT(KVILT_ABI));
  check((std::strstr(TEXT(KVILT_ABI), "_checked") != nullptr) == bool(KVILT_IS_CHECKED), TEXT(KVILT_ABI));
#if defined(__cpp_exceptions)
  check(std::strstr(TEXT(KVILT_ABI), "_trap") == nullptr, TEXT(KVILT_ABI));
#else
  check(std::strstr(TEXT(KVILT_ABI), "_trap") != nullptr, TEXT(KVILT_ABI));
#endif
#if defined(KVILT_RAISE)
  check(std::strstr(TEXT(KVILT_ABI), "_" TEXT(KVILT_RAISE)) != nullptr, TEXT(KVILT_ABI));
#else
  check(std::strstr(TEXT(KVILT_ABI), "_heard") == nullptr, TEXT(KVILT_ABI));
#endif
}

// All values are alike, so attention must give them back.
void works() {
  for (const char* name : {"paged4:q8rot:q4:sinks2:tail3", "contiguous:fp16:window6"}) {
    common->used = 0;
    kvilt::dispatch<policies>(name, dim, [](const auto& policy) {
      engine e(policy);
      for (int i = 0; i < 3; ++i) {
        check(e.cache.try_reserve(e.sequence, 5), "there is room");
        const kvilt::step s = e.begin(5);
        e.append(s, kv_heads);
        e.attend(s, q_heads);
        e.cache.commit(s);
        for (const float x : e.out) check(x > 0.49f && x < 0.51f, "attention gives the values back");
      }
    });
  }
  common->used = 0;
  kvilt::cache<paged_policy> two({.layers = 1, .kv_heads = 1, .sequences = 2, .tokens = 16, .max_length = 16},
                                 kvilt::memory<kvilt::memory_space::host>::from(*common), paged_policy(dim));
  const kvilt::sequence first = two.open(), second = two.open();
  check(two.try_reserve(first, 16) && !two.try_reserve(second, 16), "try_reserve says no where pages are short");
}

// How the process ended in which `operation` was called over a cache that a step has been appended to.
enum class end { signal, exit_3, thrown, none };
template <class Operation>
end ending(Operation operation) {
  common->used = 0;
  common->kind = -1;
  common->words[0] = 0;
  engine<paged_policy> e(paged_policy{dim});
  e.cache.reserve(e.sequence, 8);
  const kvilt::step s = e.begin(4);
  e.append(s, kv_heads);
  const std::vector<unsigned char> before(common->bytes, common->bytes + common->used);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (float& x : e.numbers) x = 7;
#if defined(__cpp_exceptions)
    try {
      operation(e, s);
    } catch (...) {
      _exit(4);
    }
#else
    operation(e, s);
#endif
    _exit(0);
  }
  int status = 0;
  check(child > 0 && waitpid(child, &status, 0) == child, "a child process runs");
  check(std::memcmp(before.data(), common->bytes, before.size()) == 0, "what is refused writes nothing");
  if (WIFSIGNALED(status)) return end::signal;
  return WEXITSTATUS(status) == 3 ? end::exit_3 : WEXITSTATUS(status) == 4 ? end::thrown : end::none;
}

template <class Operation>
void refuses(kvilt::error_kind kind, const char* words, Operation operation) {
  using enum end;
  const end how = ending(operation);
#if defined(KVILT_RAISE)
  check(common->kind == int(kind), "the engine hears what kind of error it is");
  check(std::strstr(common->words, words) != nullptr, words);
  const bool out_of_pages = kind == kvilt::error_kind::out_of_pages;
#else
  const bool out_of_pages = false;
  (void)kind, (void)words;
#endif
#if defined(__cpp_exceptions)
  check(how == (out_of_pages ? exit_3 : thrown), words);
#else
  check(how == (out_of_pages ? exit_3 : signal), words);
#endif
}

void refuses_all() {
  using kvilt::error_kind;
  refuses(error_kind::out_of_pages, "kvilt: all 1 sequences are open", [](auto& e, auto&) { e.cache.open(); });
  refuses(error_kind::invalid_argument, "kvilt: K has 3 and V 3 heads; the cache has 2",
          [](auto& e, auto& s) { e.append(s, 3); });
  refuses(error_kind::invalid_argument, "kvilt: Q has 3 heads; a multiple of the cache's 2 is needed",
          [](auto& e, auto& s) { e.attend(s, 3); });
  refuses(error_kind::invalid_argument, "kvilt: truncate: step 1 is begun",
          [](auto& e, auto&) { e.cache.truncate(e.sequence, 0); });
  refuses(error_kind::invalid_argument, "kvilt: sequence 0 has 0 tokens and reserves 17 more",
          [](auto& e, auto&) { e.cache.reserve(e.sequence, 17); });
  refuses(error_kind::invalid_argument, "kvilt: sequence 0 (opened as its 9th) is closed", [](auto& e, auto&) {
    (void)e.cache.try_reserve({0, 9}, 1);
  });
  refuses(error_kind::invalid_argument, "kvilt: policy 'paged4:q5': none that has",
          [](auto&, auto&) { kvilt::dispatch<policies>("paged4:q5", dim, [](const auto&) {}); });
  refuses(error_kind::file_error, "kvilt: /nonexistent/text: cannot be read: No such file",
          [](auto&, auto&) { kvilt::sequence_file<>("/nonexistent/text"); });
}

}  // namespace

#if defined(KVILT_RAISE)
// Ends the process where pages are short, and leaves the rest to the library.
void KVILT_RAISE(kvilt::error_kind kind, const char* message) {
  common->kind = int(kind);
  std::strncpy(common->words, message, sizeof(common->words) - 1);
  if (kind == kvilt::error_kind::out_of_pages) _exit(3);
}
#endif

int main() {
  void* memory = mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  common = new (memory) shared;
  has_a_namespace_of_its_own();
  works();
  refuses_all();
  return failures == 0 ? 0 : 1;
}
