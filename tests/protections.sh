#!/usr/bin/env bash
# Switches off, one by one, the protections listed in protections/list.txt and expects the tests to notice.
#   bash tests/protections.sh [regex of names]
# KVILT_PROTECTIONS=2/60 takes the second sixtieth of them.
# Works in a copy of the tree below ${KVILT_BUILD_ROOT:-build-tests}/protections; a second run builds only what changed.
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/.." && pwd)
list=$source_dir/tests/protections/list.txt
work_dir=${KVILT_BUILD_ROOT:-$source_dir/build-tests}/protections
wanted=${1:-.}
patience=300 # seconds for one program: a mutant may hang

# Copies what differs and leaves the rest alone, so that the time stamps tell the build what to do.
sync_tree() {
  local tree=$1 file
  mkdir -p "$tree"
  while IFS= read -r file; do
    [[ -e $source_dir/$file ]] || rm -f "$tree/$file"
  done < <(cd "$tree" && find . -type f)
  while IFS= read -r file; do
    if ! cmp -s "$source_dir/$file" "$tree/$file"; then
      mkdir -p "$(dirname "$tree/$file")"
      cp "$source_dir/$file" "$tree/$file"
    fi
  done < <(cd "$source_dir" && find CMakeLists.txt LICENSE README.md include examples tests bench -type f)
}

entries() {
  awk -F' [|] ' -v wanted="$wanted" '
    /^[[:space:]]*(#|$)/ { next }
    NF != 4 { print "not 4 fields: " $0 > "/dev/stderr"; exit 1 }
    $1 ~ wanted { print $4 "\t" $1 "\t" $2 "\t" $3 }' "$list" | sort # neighbours share a program
}

build() { # tree target; the compiler's words go to the tree's log
  cmake --build "$1/../build" --target "$2" >"$1/../build.log" 2>&1
}

# Is the place named by `where` red? Prints why it cannot be said, if so.
judge() { # tree where -> 0 red, 1 green, 2 neither
  local tree=$1 where=$2 kind rest target
  read -r kind rest <<<"$where"
  case $kind in
    build)
      read -r target rest <<<"$rest"
      if build "$tree" "$target"; then return 1; fi
      grep -qE -- "$rest" "$tree/../build.log" && return 0
      echo "fails to build with another message than $rest"
      return 2
      ;;
    program)
      if ! build "$tree" "$rest"; then
        echo "$rest does not build"
        return 2
      fi
      if timeout $patience "$tree/../build/tests/$rest" >"$tree/../run.log" 2>&1; then return 1; fi
      return 0
      ;;
    ctest)
      cmake "$tree/../build" >"$tree/../build.log" 2>&1 || return 0
      if ! ctest --test-dir "$tree/../build" -N -R "^$rest\$" | grep -q 'Total Tests: 1'; then
        echo "there is no ctest entry $rest"
        return 2
      fi
      if timeout $patience ctest --test-dir "$tree/../build" -R "^$rest\$" >"$tree/../run.log" 2>&1; then return 1; fi
      return 0
      ;;
    *)
      target=${kind//\//_}
      if ! build "$tree" "$target"; then
        echo "$target does not build"
        return 2
      fi
      if timeout $patience "$tree/../build/tests/$target" ${rest:+"$rest"} >"$tree/../run.log" 2>&1; then
        # A filter that matches nothing would pass.
        grep -qE 'All tests passed|test cases?:' "$tree/../run.log" && return 1
        echo "no test matches $rest"
        return 2
      fi
      return 0
      ;;
  esac
}

switch_off() { # tree file how
  local tree=$1 file=$2 how=$3
  if [[ $how == patch:* ]]; then
    patch -d "$tree" -p1 --no-backup-if-mismatch -s <"$source_dir/tests/protections/${how#patch:}" >/dev/null
  else
    sed -E -i -e "$how" "$tree/$file" && ! cmp -s "$source_dir/$file" "$tree/$file"
  fi
}

report() { printf '%-7s %-40s %-40s %s\n' "$@"; }

# One worker: its own tree and build folder, its share of the entries on standard input.
work() {
  local root=$work_dir/$1 tree=$work_dir/$1/tree where name file how why verdict started
  declare -A baseline=()
  sync_tree "$tree"
  local examples=OFF
  if grep -q '| *examples/' "$list"; then examples=ON; fi
  if ! cmake -S "$tree" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DKVILT_CHECKED=ON \
    -DKVILT_CUDA=OFF -DKVILT_TEST_PER_FILE=ON -DKVILT_BUILD_EXAMPLES=$examples -DKVILT_BUILD_BENCH=OFF \
    >"$root/configure.log" 2>&1; then
    report FAILED "worker $1" "" "cmake fails, see $root/configure.log"
    return
  fi
  while IFS=$'\t' read -r where name file how; do
    started=$SECONDS
    if [[ -z ${baseline[$where]:-} ]]; then
      verdict=0
      why=$(judge "$tree" "$where") || verdict=$?
      case $verdict in
        0) baseline[$where]="is red before anything is switched off" ;;
        1) baseline[$where]=green ;;
        *) baseline[$where]="before anything is switched off: $why" ;;
      esac
    fi
    if [[ ${baseline[$where]} != green ]]; then
      report FAILED "$name" "$where" "${baseline[$where]}"
      continue
    fi
    if ! switch_off "$tree" "$file" "$how"; then
      report FAILED "$name" "$where" "no longer applies to $file"
    else
      verdict=0
      why=$(judge "$tree" "$where") || verdict=$?
      case $verdict in
        0) report red "$name" "$where" "$((SECONDS - started)) s" ;;
        1) report FAILED "$name" "$where" "stays green" ;;
        *) report FAILED "$name" "$where" "$why" ;;
      esac
    fi
    sync_tree "$tree"
  done
}

mkdir -p "$work_dir"
rm -f "$work_dir"/*/report
entries >"$work_dir/entries"
if [[ ${KVILT_PROTECTIONS:-} ]]; then
  part=${KVILT_PROTECTIONS%/*} parts=${KVILT_PROTECTIONS#*/} all=$(wc -l <"$work_dir/entries")
  sed -n "$((all * (part - 1) / parts + 1)),$((all * part / parts))p" "$work_dir/entries" >"$work_dir/chosen"
  mv "$work_dir/chosen" "$work_dir/entries"
fi
count=$(wc -l <"$work_dir/entries")
workers=$(nproc)
if ((workers > count)); then workers=$count; fi
share=$(((count + workers - 1) / (workers ? workers : 1)))
report result protection "noticed by" ""
for ((i = 0; i < workers; ++i)); do
  mkdir -p "$work_dir/$i"
  tail -n +$((i * share + 1)) "$work_dir/entries" | head -n $share | work "$i" 2>&1 | tee "$work_dir/$i/report" &
done
wait
red=$(cat "$work_dir"/*/report | grep -c '^red ' || true)
echo "protections: $red of $count are noticed"
((red == count))
