#!/usr/bin/env bash
# The memory that is planned is the memory that is used: resident sets of `generate` and `grads` against `nibble plan`.
#
#   tests/resident_test.sh NIBBLE MAKE_CHECKPOINT MAKE_ADAPTER PEAK_RSS JSON_GET
#
# The promise: the kernel's maximum resident set of a process, mapped pages of the weights included, is at most 1.03 times
# the plan's total plus that of the bare program (`nibble --version`). The other way round it is no less than 0.9 times
# the plan without moments of an optimiser, which `grads` does not have: a plan that asks for too much is wrong as well.
# With --load the peak of loading counts, too. Needs about 600 MB of disk below TMPDIR (else beside PEAK_RSS); with
# less than twice that it ends with status 77, which means skipped. The last line is `N passed, M failed`.
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
[ $# -eq 5 ] || { echo "usage: tests/resident_test.sh NIBBLE MAKE_CHECKPOINT MAKE_ADAPTER PEAK_RSS JSON_GET" >&2; exit 2; }
nibble=$1 make_checkpoint=$2 make_adapter=$3 peak_rss=$4 json_get=$5
passed=0 failed=0 threads=2

where=${TMPDIR:-$(dirname "$peak_rss")}
room=$(df --output=avail -B1 "$where" | tail -n 1)
if [ "$room" -lt 1200000000 ]; then
    echo "notice: skipped: $(numfmt --to=si "$room")B free in $where, 1.2GB are needed"
    exit 77
fi
work=$(mktemp -d "$where/nibble-resident-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

# ids COUNT: one sequence that touches the whole embedding.
ids() { awk -v n="$1" 'BEGIN { printf "[["; for (i = 0; i < n; i++) printf "%s%d", i ? "," : "", (i * 37 + 5) % 4096; print "]]" }'; }

peak() { # COMMAND...: sets `resident`
    local status
    "$peak_rss" "$@" >"$work/peak" 2>"$work/said" || { cat "$work/said"; return 1; }
    read -r status resident <"$work/peak"
}

# judge TITLE: the last peak against the plan in plan.json.
judge() {
    local total optimizer verdict=ok
    total=$("$json_get" "$work/plan.json" total_bytes)
    optimizer=$("$json_get" "$work/plan.json" arenas.optimizer)
    awk -v used="$resident" -v bare="$bare" -v total="$total" -v moments="$optimizer" \
        'BEGIN { exit !(used <= 1.03 * total + bare && used >= 0.9 * (total - moments)) }' || verdict=FAIL
    if [ "$verdict" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    awk -v v="$verdict" -v t="$1" -v used="$resident" -v bare="$bare" -v total="$total" \
        'BEGIN { printf "%-4s %s: resident %.1f MB, plan %.1f MB, bare program %.1f MB\n", v, t, used / 1e6, total / 1e6, bare / 1e6 }'
}

ids 200 >"$work/prompt.json"
ids 512 >"$work/pack.json"
peak "$nibble" --version
bare=$resident
for dtype in f32 bf16; do
    model=$work/$dtype
    "$make_checkpoint" "$model" --size 200M --dtype "$dtype"
    "$make_adapter" "$model" "$model-adapter" --rank 16 --dora
    for load in "" "--load nf4"; do
        # shellcheck disable=SC2086
        "$nibble" plan "$model" --tokens 256 --threads $threads $load --json >"$work/plan.json"
        # shellcheck disable=SC2086
        peak "$nibble" generate "$model" --ids "$work/prompt.json" --max-tokens 56 --threads $threads $load --quiet
        judge "generate $dtype $load"
        # shellcheck disable=SC2086
        "$nibble" plan "$model" --tokens 512 --adapter "$model-adapter" --threads $threads $load --json >"$work/plan.json"
        # shellcheck disable=SC2086
        peak "$nibble" grads "$model" --ids "$work/pack.json" --labels "$work/pack.json" --adapter "$model-adapter" \
            --out "$work/out.safetensors" --force --threads $threads $load --quiet
        judge "grads $dtype $load"
    done
    rm -rf "$model" "$model-adapter"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -eq 8 ]
