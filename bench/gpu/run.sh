#!/usr/bin/env bash
# Runs the GPU's benchmarks one after the other: gpu_<verb>.csv of each, and the picture of decode. A few minutes, one
# with --quick.
#   cmake -B BUILD_FOLDER -DKVILT_TEST_CUDA_ARCHS=90a && cmake --build BUILD_FOLDER -j --target bench_gpu
#   bash bench/gpu/run.sh BUILD_FOLDER [--quick] [--results FOLDER] [--commit ID] [--only VERB…]
# Files go to bench/results where no other folder is named. bench/tables.py then writes README's tables.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
results=$root/bench/results
commit=$(git -C "$root" rev-parse --short HEAD 2> /dev/null || echo unknown)
verbs=(load decode prefill mass append plan step)
options=()

fail() {
  echo "run.sh: $*" >&2
  exit 2
}

build=${1-}
[[ -d $build/bench ]] || fail "takes a build folder first, not '$build'"
shift
while (($#)); do
  case $1 in
    --quick) options+=(--quick) ;;
    --results) results=${2-} && shift ;;
    --commit) commit=${2-} && shift ;;
    --only)
      shift
      verbs=("$@")
      break
      ;;
    *) fail "$1 is no option" ;;
  esac
  shift
done
mkdir -p "$results" || fail "cannot make '$results'"

failed=()
for verb in "${verbs[@]}"; do
  program=$build/bench/bench_gpu_$verb
  if [[ ! -x $program ]]; then
    echo "bench_gpu_$verb was not built"
    continue
  fi
  echo "== $verb"
  "$program" "${options[@]}" --commit="$commit" --csv="$results/gpu_$verb.csv" || failed+=("$verb")
done
if [[ -f $results/gpu_decode.csv && $results == "$root/bench/results" ]] && command -v gnuplot > /dev/null; then
  python3 "$root/bench/plot_gpu.py" || failed+=(plot)
fi
((${#failed[@]} == 0)) || fail "not all is right: ${failed[*]}"
