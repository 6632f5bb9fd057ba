#!/usr/bin/env bash
# What caches cost a model's predictions, into bench/results: a table, and mostly a picture. Takes hours of two cores,
# most of them for the model's own arithmetic.
#   bash bench/model/evaluate.sh policies smollm2|gemma [--positions N] [options of examples/run.sh]
#     every policy that runs by default, 2,048 positions: host_policies_<model>_<positions>.csv and .svg
#   bash bench/model/evaluate.sh bands smollm2|gemma [--positions N] [options of examples/run.sh]
#     how the divergence of five policies grows with the context, 8,192 positions: host_bands_<model>_<positions>.csv
#     and .svg; --policy NAME, repeated, takes others
#   bash bench/model/evaluate.sh scales smollm2|gemma [--positions N] [options of examples/run.sh]
#     8 bits with a scale of the token, of the KV head and of the tensor, 2,048 positions:
#     host_scales_<model>_<positions>.csv. What follows in the text gives the static scales, or --calibration FILE
#   bash bench/model/evaluate.sh probes smollm2|gemma [--positions N] [options of examples/run.sh]
#     what caches of fewer bits or tokens still copy and look up, 2,048 positions: host_probes_<model>_<positions>.csv
# The first run fetches the model and builds, as examples/run.sh does. bench/tables.py then writes README's tables.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
results=$root/bench/results
declare -A names=([smollm2]=smollm2 [gemma]=gemma3_270m)
best=(fp16 int8_rot paged16_int8_rot_s4_t64 paged16_int8_int4_s4_t64 paged16_int4_rot_s4_t64)
probed=(fp16 int8 int4 int4_rot window_fp16 h2o_mean_fp16 tova_fp16 snapkv_fp16 keynorm_fp16 expected_fp16)

fail() {
  echo "evaluate.sh: $*" >&2
  exit 2
}

what=${1-}
with=${2-}
[[ $what =~ ^(policies|bands|scales|probes)$ ]] || fail "takes policies, bands, scales or probes first, not '$what'"
[[ ${names[${with:-none}]:-} ]] || fail "takes smollm2 or gemma second, not '$with'"
shift 2

positions=2048
if [[ $what == bands ]]; then positions=8192; fi
others= # policies that were named
passed=()
while (($#)); do
  case $1 in
    --positions | --positions=*)
      if [[ $1 == --positions ]]; then shift; fi
      positions=${1-}
      positions=${positions#--positions=}
      [[ $positions =~ ^[1-9][0-9]*$ ]] || fail "--positions takes a number, not '$positions'"
      ;;
    --csv* | --plot* | --bands*) fail "$1: the files and bands are this script's own" ;;
    *)
      if [[ $1 == --policy* ]]; then others=1; fi
      passed+=("$1")
      ;;
  esac
  shift
done

# Each band is as long as all before it.
bands_until() {
  local end ends=
  for ((end = 256; end < $1; end *= 2)); do ends+=$end,; done
  echo "$ends$1"
}

# K and V, K alone and V alone, by the scale that 8 bits have.
scale_policies() {
  local format scale
  for format in int8 e4m3; do
    for scale in "" _head _tensor; do
      printf -- '--policy=%s\n' "$format$scale" "$format${scale}_fp16" "fp16_$format$scale"
    done
  done
}

scratch=$(mktemp -d) # files that are complete alone come to bench/results
trap 'rm -rf "$scratch"' EXIT
name=host_${what}_${names[$with]}_$positions
options=(--tokens 0 --positions "$positions")
if [[ $what == policies ]]; then
  options+=(--csv "$scratch/$name.csv" --plot "$scratch/$name.svg")
elif [[ $what == scales ]]; then
  options+=(--csv "$scratch/$name.csv" --plot "$scratch/unused.svg")
  if [[ ! $others ]]; then
    mapfile -t scales < <(scale_policies)
    options+=("${scales[@]}")
  fi
elif [[ $what == probes ]]; then
  options+=(--probe copy --probe retrieval --csv "$scratch/$name.csv")
  if [[ ! $others ]]; then options+=("${probed[@]/#/--policy=}"); fi
else
  options+=(--bands "$(bands_until "$positions")" --bands-csv "$scratch/$name.csv" --bands-plot "$scratch/$name.svg")
  if [[ ! $others ]]; then options+=("${best[@]/#/--policy=}"); fi
fi
bash "$root/examples/run.sh" --with "$with" "${options[@]}" ${passed[@]+"${passed[@]}"}
for result in "$scratch/$name".*; do
  mv "$result" "$results"
  echo "The result: ${results#"$PWD"/}/${result##*/}"
done
