#!/usr/bin/env bash
# Counts the instructions of bench_pages_count's rows with Callgrind, and prints how many an operation takes.
#   bash bench/pages/instructions.sh build/bench/bench_pages_count [ROW ...]
# Callgrind of older versions knows no AVX-512: compile without -march=native (KVILT_NATIVE=OFF, the default).
set -euo pipefail

if (($# == 0)); then
  echo "usage: bash bench/pages/instructions.sh PATH/TO/bench_pages_count [ROW ...]" >&2
  exit 2
fi
program=$1
shift
rows=("$@")
if ((${#rows[@]} == 0)); then
  rows=(decode churn lookup insert_lru insert_aged_lfu evict_lru evict_aged_lfu request)
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '%-16s %12s %14s %10s\n' row operations instructions each
for row in "${rows[@]}"; do
  operations=$(valgrind --tool=callgrind --toggle-collect=counted --callgrind-out-file="$folder/$row" "$program" "$row" \
    2>"$folder/log") || { cat "$folder/log" >&2; exit 1; }
  instructions=$(sed -n 's/^\(totals\|summary\): *//p' "$folder/$row" | tail -n 1)
  printf '%-16s %12d %14d %10s\n' "$row" "$operations" "$instructions" \
    "$(awk "BEGIN { printf \"%.1f\", $instructions / $operations }")"
done
