#!/usr/bin/env bash
# What including the library costs a compiler, in seconds of user time, the least of three: nvcc for sm_90a and g++.
#   bash bench/gpu/compile_cost.sh [OPTIONS OF NVCC…] > bench/results/gpu_compile.csv
# NVCC and CXX name the compilers, 'nvcc' and 'g++' where they are not set.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
nvcc=${NVCC:-nvcc}
cxx=${CXX:-g++}
commit=$(git -C "$root" rev-parse --short HEAD 2> /dev/null || echo unknown)
cpu=$(sed -n '/^model name/{s/[^:]*: //;s/,/ /g;p;q}' /proc/cpuinfo)
ending=$(date -u +%F),${cpu:-unknown},$commit
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# NOTE: one launch of everything that a decode kernel is made of: what an engine's .cu file has.
cat > "$scratch/decode.cu" << 'END'
#include <kvilt/kvilt.cuh>

using policy = kvilt::policy<kvilt::paged<16>, kvilt::bf16<128>>;
using view = kvilt::view_of<kvilt::memory_space::device, policy>;

void decode(const kvilt::gpu& exec, const view& v, const kvilt::device_step& s, kvilt::rows<kvilt::bfloat16> q,
            kvilt::rows<kvilt::bfloat16> out) {
  kvilt::attention{kvilt::causal{}}(exec, v, s, q, out);
}
END
sed 's/bf16<128>/q8<128>/' "$scratch/decode.cu" > "$scratch/decode_q8.cu"
: > "$scratch/empty.cu"
: > "$scratch/empty.cpp"
echo '#include <kvilt/kvilt.cuh>' > "$scratch/all.cu"
echo '#include <kvilt/kvilt.hpp>' > "$scratch/all.cpp"

# seconds <command…>
seconds() {
  local TIMEFORMAT=%U least=
  for _ in 1 2 3; do
    local took
    took=$({ time "$@" > "$scratch/errors" 2>&1 || { cat "$scratch/errors" >&3; exit 1; }; } 3>&2 2>&1)
    least=$(printf '%s\n' "$took" "${least:-$took}" | sort -g | head -1)
  done
  echo "$least"
}
# line <what> <compiler> <file> <options…>
line() {
  local what=$1 compiler=$2 file=$3
  shift 3
  local took
  took=$(seconds "$compiler" -std=c++20 "$@" -I"$root/include" -c "$scratch/$file" -o "$scratch/out.o")
  echo "$(basename "$compiler"),$what,$took,$ending"
}

arch=(-O3 -gencode=arch=compute_90a,code=sm_90a "$@")
echo "compiler,what,user_seconds,date,cpu,commit"
line "an empty file" "$nvcc" empty.cu "${arch[@]}"
line "kvilt.cuh" "$nvcc" all.cu "${arch[@]}"
line "kvilt.cuh and decode of bf16 in pages of 16" "$nvcc" decode.cu "${arch[@]}"
line "kvilt.cuh and decode of q8 in pages of 16" "$nvcc" decode_q8.cu "${arch[@]}"
line "an empty file" "$cxx" empty.cpp -O2
line "kvilt.hpp" "$cxx" all.cpp -O2
