#!/usr/bin/env bash
# Peak memory of quantize and dequantize on a large checkpoint, made for the test.
#
#   tests/memory_test.sh NIBBLE MAKE_CHECKPOINT PEAK_RSS [SIZE]        (SIZE: about 4G by default)
#
# The promise: at most the largest weight that is converted, in its source format and in its packed format, plus 64 MiB.
# What is measured is the kernel's maximum resident set of the process, mapped pages of the files included, so pages must
# be dropped behind. (Tensors that are only copied, such as a large embedding, count for nothing in the limit.)
#
# Uses up to twice SIZE of disk below TMPDIR (else beside PEAK_RSS) and asks for three times that much, so that it never
# fills a disk. With less room it takes a smaller size, down to 256M, and says so; with less than that it ends with status
# 77, which means skipped. The last line is `N passed, M failed`.
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
[ $# -ge 3 ] && [ $# -le 4 ] || { echo "usage: tests/memory_test.sh NIBBLE MAKE_CHECKPOINT PEAK_RSS [SIZE]" >&2; exit 2; }
nibble=$1 make_checkpoint=$2 peak_rss=$3 size=$(numfmt --from=si "${4:-4G}")
smallest=256000000 slack=$((64 << 20))
passed=0 failed=0 child=

where=${TMPDIR:-$(dirname "$peak_rss")}
room=$(df --output=avail -B1 "$where" | tail -n 1)
if [ "$room" -lt $((3 * size)) ]; then
    wanted=$size
    size=$((room / 3))
    if [ "$size" -lt "$smallest" ]; then
        echo "notice: skipped: $(numfmt --to=si "$room")B free in $where, at least $(numfmt --to=si $((3 * smallest)))B are needed"
        exit 77
    fi
    echo "notice: only $(numfmt --to=si "$room")B free in $where: a checkpoint of $(numfmt --to=si "$size")B instead of $(numfmt --to=si "$wanted")B"
fi

work=$(mktemp -d "$where/nibble-memory-XXXXXX")
stop() {
    [ -z "$child" ] || { kill "$child" && wait "$child"; } 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

# Runs a command so that a signal to this script is heard at once, not when the command is done.
run() {
    local status=0
    "$@" &
    child=$!
    wait "$child" || status=$?
    child=
    return "$status"
}

# "NAME FORMAT BYTES" of every tensor of a folder.
list() {
    run "$nibble" inspect "$1" --json --tensors >"$work/list.json"
    awk -F '"' '/^  "tensors": \[/ { inside = 1 }
                inside && /^      "name": / { name = $4 }
                inside && /^      "format": / { format = $4 }
                inside && /^      "bytes": / { gsub(/[^0-9]/, "", $3); print name, format, $3 }' "$work/list.json"
}

# limit_for PLAIN PACKED FORMAT: bytes allowed for converting between the two lists.
limit_for() {
    awk -v format="$3" -v slack="$slack" '
        NR == FNR { plain[$1] = $3; next }
        $2 == format { if (plain[$1] > most) most = plain[$1]; if ($3 > packed) packed = $3; weights++ }
        END { if (!weights || !most) exit 1; printf "%d %d %d\n", most + packed + slack, most, packed }' "$1" "$2"
}

mb() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }

# measure TITLE COMMAND...: sets peak; a command that fails is a failed test.
measure() {
    local title=$1 status begin=$SECONDS
    shift
    run "$peak_rss" "$@" >"$work/peak" || true
    read -r status peak <"$work/peak" || status=none
    took=$((SECONDS - begin))
    [ "$status" = 0 ] && return 0
    echo "FAIL $title: exit status $status"
    failed=$((failed + 1))
    return 1
}

# judge TITLE FOLDER FORMAT: the last peak against the limit for a conversion between the plain folder and this one.
judge() {
    local verdict=ok limit source packed
    if ! read -r limit source packed < <(limit_for "$work/plain.list" "$work/$2.list" "$3"); then
        limit=0 source=0 packed=0
    fi
    if [ "$peak" -le "$limit" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) verdict=FAIL; fi
    printf '%-4s %s: peak %s, limit %s = %s + %s + 64 MiB (%d s)\n' "$verdict" "$1" "$(mb "$peak")" "$(mb "$limit")" \
        "$(mb "$source")" "$(mb "$packed")" "$took"
}

run "$make_checkpoint" "$work/plain" --size "$size"
list "$work/plain" >"$work/plain.list"
echo "checkpoint of $(mb "$(du -sb "$work/plain" | cut -f 1)"), $(wc -l <"$work/plain.list") tensors, bf16, in $where"

# quantise FOLDER FORMAT OPTION...: folder FOLDER is made of the plain one.
quantise() {
    local folder=$1 format=$2
    shift
    measure "quantize --format $*" "$nibble" quantize "$work/plain" "$work/$folder" --quiet --format "$@" || return 0
    list "$work/$folder" >"$work/$folder.list"
    judge "quantize --format $*" "$folder" "$format"
}

# dequantise FOLDER FORMAT WHAT: and back, into a folder that is removed again.
dequantise() {
    [ -d "$work/$1" ] || return 0
    measure "dequantize --dtype bf16 of $3" "$nibble" dequantize "$work/$1" "$work/again" --quiet --dtype bf16 || return 0
    judge "dequantize --dtype bf16 of $3" "$1" "$2"
    rm -rf "$work/again"
}

quantise int8 int8
rm -rf "$work/int8"
quantise flat nf4
quantise nested nf4 --double
rm -rf "$work/plain"
dequantise flat nf4 "flat nf4"
dequantise nested nf4 "nested nf4"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -eq 5 ]
