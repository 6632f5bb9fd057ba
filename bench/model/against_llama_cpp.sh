#!/usr/bin/env bash
# Decoding by kvilt and by llama.cpp side by side: the same model, text, threads and kind of cache, one after the other
# in one run.
#   bash bench/model/against_llama_cpp.sh SCRATCH [--model FILE.gguf] [--text FILE] [--threads N] [--depths "N..."]
#     [--csv FILE]
# SCRATCH is a folder for a Python environment in which llama-cpp-python is built for this machine; the first time that
# takes a quarter of an hour of one core. examples/run.sh must have been run: it fetches the model and the text, and
# builds decode_loop.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=0.3.36
program=$root/build/examples/decode_loop
model=$root/build/data/SmolLM2-135M-Instruct.Q4_1.gguf
text=$root/build/data/alice29.txt
threads=2
csv=
depths=(16 2048 8000)
# llama.cpp's type of cache, and the policy that stands beside it
pairs=("f16 fp16" "q8_0 int8" "q4_0 paged16_int4_rot_s4_t64")

fail() {
  echo "against_llama_cpp.sh: $*" >&2
  exit 2
}

if [[ ${1:--} == -* ]]; then fail "SCRATCH is needed: a folder to build llama.cpp in"; fi
scratch=$1
shift
while (($#)); do
  case $1 in
    --model) model=${2-} ;;
    --text) text=${2-} ;;
    --threads) threads=${2-} ;;
    --depths) read -ra depths <<<"${2-}" ;;
    --csv) csv=${2-} ;;
    *) fail "$1 is not known; options: --model, --text, --threads, --depths, --csv" ;;
  esac
  shift 2 || fail "a value is missing at the end"
done
for file in "$program" "$model" "$text"; do
  [[ -f $file ]] || fail "$file is not there: run examples/run.sh first, or name another file"
done

python=$scratch/venv/bin/python
if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
  echo "== Building llama-cpp-python $version (see $scratch/build.log)" >&2
  mkdir -p "$scratch"
  python3 -m venv "$scratch/venv"
  CMAKE_ARGS='-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF' CMAKE_BUILD_PARALLEL_LEVEL=1 nice -n 19 "$python" -m pip install \
    --disable-pip-version-check --no-binary llama-cpp-python "llama-cpp-python==$version" >"$scratch/build.log" 2>&1 ||
    fail "llama-cpp-python could not be built: see $scratch/build.log"
fi

times=$(mktemp)
ours=$(mktemp)
trap 'rm -f "$times" "$ours"' EXIT
for pair in "${pairs[@]}"; do
  read -r type policy <<<"$pair"
  echo "== $type, $policy" >&2
  "$python" "$root/bench/model/time_llama_cpp.py" "$model" "$text" "$threads" "$type" "${depths[@]}" >>"$times"
  "$program" --integer-weights --model "$model" --text "$text" --threads "$threads" --policy "$policy" --csv "$ours" \
    "${depths[@]/#/--decode-at=}" >&2
  sed -n "s/^$policy,/kvilt,$type,$policy,/p" "$ours" >>"$times"
done

if [[ $csv ]]; then (echo program,cache,policy,depth,ms && cat "$times") >"$csv"; fi
awk -F, '
  $1 == "kvilt" { ours[$2, $4] = $5; policy[$2] = $3 }
  $1 != "kvilt" { theirs[$2, $4] = $5; order[++n] = $2 SUBSEP $4 }
  END {
    print "milliseconds a token; attention: what comes on top of the shortest context"
    printf "%-6s %-28s %6s %10s %10s %7s %22s\n", "cache", "policy", "depth", "llama.cpp", "kvilt", "ratio", "attention"
    for (i = 1; i <= n; ++i) {
      split(order[i], key, SUBSEP)
      t = theirs[key[1], key[2]]; o = ours[key[1], key[2]]
      if (key[1] != last) { last = key[1]; t0 = t; o0 = o }
      printf "%-6s %-28s %6d %10.2f %10.2f %7.2f", key[1], policy[key[1]], key[2], t, o, t / o
      if (t > t0 && o > o0) printf " %8.2f / %5.2f = %4.1f", t - t0, o - o0, (t - t0) / (o - o0)
      printf "\n"
    }
  }' "$times"
