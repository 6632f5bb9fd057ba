#!/usr/bin/env bash
# Builds and runs every test, on Debian 12 or newer and Ubuntu 24.04 or newer; installs the packages that are missing.
#   bash tests/run.sh            g++ -O1; clang++ with ASan + UBSan in checked mode; TSan; NEON under qemu; fuzzing; and a
#                                sixtieth of the protections switched off one by one, another with each commit
#                                (bash tests/protections.sh takes them all)
#   bash tests/run.sh --quick    g++ alone
# Builds below build-tests/; a second run builds only what changed. KVILT_JOBS sets how many jobs run at once.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=
case ${1:-} in
  "") ;;
  --quick) quick=1 ;;
  *)
    echo "usage: bash tests/run.sh [--quick], not: $*" >&2
    exit 2
    ;;
esac

jobs=${KVILT_JOBS:-$(nproc)}
export KVILT_BUILD_ROOT=$PWD/build-tests
logs=$KVILT_BUILD_ROOT/logs
mkdir -p "$logs"

install_packages() {
  local wanted=(g++ cmake ninja-build catch2 pkg-config libopenblas-dev libcli11-dev nlohmann-json3-dev libpcre2-dev
    libboost-dev gnuplot-nox python3)
  if [[ ! $quick ]]; then
    wanted+=(clang libclang-rt-dev patch)
    if [[ $(uname -m) == x86_64 ]]; then wanted+=(g++-aarch64-linux-gnu qemu-user); fi
  fi
  if compgen -G 'bench/*/*_bench.c*' >/dev/null; then wanted+=(libbenchmark-dev); fi
  local missing=() package
  for package in "${wanted[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return; fi

  echo "== Installing ${missing[*]}"
  local sudo=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || {
      echo "these packages are missing, and neither root nor sudo is here to install them: ${missing[*]}" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get -q update >"$logs/apt" || { cat "$logs/apt"; exit 1; }
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" \
    >>"$logs/apt" || { cat "$logs/apt"; exit 1; }
}

summary=()  # a line for each stage
skipped=()  # a line for each thing left out
failures=() # what ctest would list at its end
total=0
skip() { skipped+=("$*"); }

# finish <stage> <passed> <of> <seconds>
finish() {
  summary+=("$(printf '%-20s %4d of %d passed, %d s' "$1" "$2" "$3" "$4")")
  total=$((total + $3))
}

# stage <name> <folder> <cmake options…>: configure, build, ctest; goes on after failures.
stage() {
  local name=$1 dir=$KVILT_BUILD_ROOT/$2 log=$logs/$2 started=$SECONDS count failed
  shift 2
  echo
  echo "== $name"
  if ! cmake -S . -B "$dir" -G Ninja -DKVILT_WARNINGS_AS_ERRORS=ON -DKVILT_BUILD_BENCH=OFF "$@" >"$log"; then
    cat "$log"
    failures+=("$name: cmake")
    finish "$name" 0 1 $((SECONDS - started))
    return
  fi
  if ! cmake --build "$dir" -j "$jobs" -- -k 0; then
    failures+=("$name: build")
  fi
  count=$(ctest --test-dir "$dir" -N | sed -n 's/^Total Tests: //p')
  if ((count == 0)); then
    skip "$name: there are no such tests"
    return
  fi
  "${test_runner[@]}" ctest --test-dir "$dir" -j "$jobs" --output-on-failure 2>&1 | tee "$log" || true
  failed=$(sed -n 's/.* tests passed, \([0-9]*\) tests failed out of .*/\1/p' "$log")
  while IFS= read -r line; do failures+=("$name: $line"); done \
    < <(sed -n '/^The following tests FAILED:/,$s/^[[:space:]]*[0-9]* - \(.*\)/\1/p' "$log")
  finish "$name" $((count - ${failed:-$count})) "$count" $((SECONDS - started))
  while IFS= read -r line; do skip "$name: $line"; done \
    < <(sed -n '/^The following tests did not run:/,/^$/s/^[[:space:]]*[0-9]* - \(.*\) (Skipped)/\1/p' "$log")
}
test_runner=()

with_gcc() {
  local cuda=ON cuda_flags=(-O1 -Xcompiler=-fstrict-aliasing) unseen=()
  if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then PATH=$PATH:/usr/local/cuda/bin; fi
  if ! command -v nvcc >/dev/null; then
    cuda=OFF
    skip "CUDA: no nvcc here, so no .cuh and no .cu was compiled"
  elif ! nvidia-smi -L >/dev/null 2>&1; then
    skip "GPU tests: no GPU here; they were compiled, those of many kernels and lone headers for sm_90a alone"
    unseen=(-DKVILT_MANY_KERNELS_ARCHS=90a)
    # Half of nvcc's time. What its optimiser makes of the kernels that count is the spills' tests' affair.
    if [[ $(nvcc --help) == *--Ofast-compile* ]]; then cuda_flags+=(-Ofc=max); fi
  fi
  local bench=OFF
  if compgen -G 'bench/*/*_bench.c*' >/dev/null; then bench=ON; fi
  # At -O2 g++ takes half as long again; of what that adds, which types may alias tells most.
  stage g++ gcc -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O1 -fstrict-aliasing" \
    "-DCMAKE_CUDA_FLAGS=${cuda_flags[*]}" -DKVILT_BUILD_BENCH=$bench -DKVILT_CUDA=$cuda "${unseen[@]}"
}

# Older sanitizer runtimes do not find their way in the address layout of newer kernels.
with_plain_addresses() {
  # ASan keeps the callers of each allocation: fewer of them are a seventh of some tests' time.
  export ASAN_OPTIONS=malloc_context_size=3${ASAN_OPTIONS:+:$ASAN_OPTIONS}
  if setarch "$(uname -m)" -R true 2>/dev/null; then test_runner=(setarch "$(uname -m)" -R); fi
  "$@"
  test_runner=()
}

# The second compiler and the sanitizers in one build. Unoptimised but for the kernels: at -O1 clang++ takes 3.5 times as
# long to compile with these.
with_sanitizers() {
  local options=(-DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O0 -g1" -DKVILT_CHECKED=ON -DKVILT_CUDA=OFF)
  stage "clang++, ASan, UBSan" clang "${options[@]}" -DCMAKE_CXX_COMPILER=clang++ -DKVILT_SANITIZE=address,undefined
  stage TSan tsan "${options[@]}" -DCMAKE_CXX_COMPILER=g++ -DKVILT_SANITIZE=thread
}

# The host's kernels in AArch64's vectors, where the processor has others.
with_neon() {
  local dir=$KVILT_BUILD_ROOT/neon log=$logs/neon started=$SECONDS passed=0 test
  local tests=(core_instructions_test attention_host_kernels_test attention_attend_test)
  if [[ $(uname -m) != x86_64 ]]; then return; fi # NOTE: on AArch64 all stages have them
  echo
  echo "== NEON"
  if ! cmake -S . -B "$dir" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O2 -DKVILT_CUDA=OFF \
    -DKVILT_WARNINGS_AS_ERRORS=ON -DKVILT_TEST_PER_FILE=ON -DKVILT_BUILD_EXAMPLES=OFF -DKVILT_BUILD_BENCH=OFF >"$log" ||
    ! cmake --build "$dir" -j "$jobs" --target "${tests[@]}" >>"$log" 2>&1; then
    cat "$log"
    failures+=("NEON: build")
  else
    for test in "${tests[@]}"; do
      if qemu-aarch64 -L /usr/aarch64-linux-gnu "$dir/tests/$test"; then passed=$((passed + 1)); else failures+=("NEON: $test"); fi
    done
  fi
  finish NEON "$passed" "${#tests[@]}" $((SECONDS - started))
}

with_fuzzer() {
  local nothing='extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
  if ! clang++ -x c++ - -fsanitize=fuzzer,address,undefined -o "$logs/fuzzer" <<<"$nothing" 2>"$logs/fuzzer.log"; then
    skip "libFuzzer: clang's runtime for it is not here; the seeds were run"
    return
  fi
  stage libFuzzer fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O1 -g1" \
    -DKVILT_FUZZ=ON -DKVILT_BUILD_EXAMPLES=OFF -DKVILT_CUDA=OFF
}

protections() {
  local log=$logs/protections started=$SECONDS count red
  echo
  echo "== Protections switched off one by one"
  local part=$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % 60 + 1))
  skip "protections: all but part $part of 60"
  KVILT_PROTECTIONS=${KVILT_PROTECTIONS:-$part/60} bash tests/protections.sh 2>&1 | tee "$log" || true
  read -r red count < <(sed -n 's/^protections: \([0-9]*\) of \([0-9]*\) are noticed$/\1 \2/p' "$log") || {
    failures+=("protections: the script did not come to its end")
    return
  }
  while read -r _ line; do failures+=("protections: $line"); done < <(grep '^FAILED' "$log")
  finish protections "$red" "$count" $((SECONDS - started))
}

# The same closing lines as ctest's, over all stages.
close() {
  local line number=0
  echo
  echo "== Summary"
  printf '%s\n' "${summary[@]}"
  for line in "${skipped[@]}"; do echo "skipped: $line"; done
  if [[ $quick ]]; then echo "skipped: all but g++, as --quick asks"; fi
  local failed=${#failures[@]}
  if ((failed > total)); then total=$failed; fi
  echo
  echo "$(((total - failed) * 100 / (total ? total : 1)))% tests passed, $failed tests failed out of $total"
  echo
  echo "Total Test time (real) = $SECONDS sec"
  if ((failed == 0 && total > 0)); then return; fi
  echo
  echo "The following tests FAILED:"
  for line in "${failures[@]}"; do echo "	$((++number)) - $line"; done
  exit 1
}

install_packages
with_gcc
if [[ ! $quick ]]; then
  with_plain_addresses with_sanitizers
  with_neon
  with_plain_addresses with_fuzzer
  protections
fi
close
