#!/usr/bin/env bash
# Runs the CUDA kernels of the operators without a device: nibble_ops_traced interprets them on the CPU (tests/ptx).
#
#   tests/cuda_interpreted_test.sh BUILD
#
# A few small cases of each line of the operators' table must match the reference, with the kernels for sm_80.
set -euo pipefail
build=$(cd "$1" && pwd)
ops=$build/nibble_ops_traced
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NIBBLE_CUDA_TRACE_RUN=1 OMP_NUM_THREADS=1

fail() {
    echo "cuda_interpreted: $*" >&2
    exit 1
}

"$ops" test --device cuda --small 4 --threads 1 >"$work/all" 2>"$work/errors" || {
    tail -n 40 "$work/errors" >&2
    fail "kernels and reference differ"
}
grep -q ', 0 failures$' "$work/all" || fail "nothing was tested"
for family in add attention attention_decode cross_entropy linear rmsnorm; do
    grep -qE "^$family +[1-9][0-9]* cases, +[1-9]" "$work/all" || fail "$family was not tested"
done
[[ ! -s $work/errors ]] || fail "there was something on stderr: $(head -n 3 "$work/errors")"
tail -n 1 "$work/all"
