#!/usr/bin/env bash
# Runs all GPU tests from the built programs alone, without CMake or sources:
#
#     gpu_tests.sh [folder] [pattern]
#
# The folder (default: this script's own) holds the programs gpu_*_test. The pattern (for grep -E) selects among
# "PROGRAM" and "memcheck PROGRAM". GTEST_FILTER selects tests. Each program has a deadline. The script prints skipped
# and unserved tests with the reason. If a test fails, it prints the end of that log and fails. If compute-sanitizer is
# installed, memcheck covers the tests that one GPU can run.
set -uo pipefail
folder=${1:-$(dirname "$0")} pattern=${2:-.}
logs=$(mktemp -d) failed=()

# run NAME SECONDS COMMAND...
run() {
    local name=$1 seconds=$2 log="$logs/${1// /_}" begin=$SECONDS code
    shift 2
    grep -qE "$pattern" <<<"$name" || return 0
    timeout -k 10 "$seconds" "$@" >"$log" 2>&1
    code=$?
    echo "== $name: $([[ $code == 0 ]] && echo passed || echo "FAILED ($code)") in $((SECONDS - begin)) s"
    awk '/: Skipped$/ { getline; print "skipped: " $0 }
         /^\[  PASSED|^\[  FAILED .*ms\)|UNSERVED|ERROR SUMMARY|problems$|^unserved/' "$log" | sort | uniq -c
    [[ $code == 0 ]] && return 0
    failed+=("$name")
    [[ $code == 124 || $code == 137 ]] && echo "-- not done within $seconds s"
    grep -A12 -E "Failure$|^=+ (Invalid|Program|Error)|terminate called" "$log" | head -60
    echo "-- the log ends:" && tail -15 "$log"
}

shopt -s nullglob
programs=("$folder"/gpu_*_test)
[[ ${#programs[@]} -gt 0 ]] || { echo "gpu_tests: $folder has no programs gpu_*_test" >&2; exit 2; }
for program in "${programs[@]}"; do run "$(basename "$program")" 400 "$program"; done

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [[ -n $sanitizer ]]; then
    devices=${CUDA_VISIBLE_DEVICES:-0}
    export CUDA_VISIBLE_DEVICES=${devices%%,*} SHINGLE_GPU_PROBLEMS=8 SHINGLE_GPU_STRESS=40
    slow=-*AwaitsManyCounts*:*ComesBehindTheUsersWork*  # with memcheck, launches take so long that their kernels find the waits done
    for program in "${programs[@]}"; do
        name=$(basename "$program")
        # Programs that measure time or start other processes gain nothing from memcheck.
        [[ $name =~ ^gpu_(fault|processes|context_processes)_test$ ]] ||
            GTEST_FILTER=${GTEST_FILTER:-$slow} run "memcheck $name" 300 \
                "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 "$program"
    done
else
    echo "== memcheck: skipped, no compute-sanitizer here"
fi
echo "== $((${#failed[@]})) failed${failed:+: ${failed[*]}}; logs in $logs"
[[ ${#failed[@]} == 0 ]]
