#!/usr/bin/env bash
# Goes through the parallel loops of the commands once: makes a Llama-shaped checkpoint, quantises it, looks into it,
# dequantises it, compares; trains the small model for some steps. For sanitizers, which see what happens on the way.
#
#   tests/tour.sh BUILD_DIR [OPTION...]          (options for every nibble command, e.g. --threads 4)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "$1" && pwd)
options=("${@:2}")
PATH=$build:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root/models" "$root/examples" .

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

run make_checkpoint llama --size 100M --shards 2
run nibble inspect llama "${options[@]}"
run nibble quantize llama llama-nf4 --format nf4 --double "${options[@]}"
run nibble inspect llama-nf4 "${options[@]}"
run nibble dequantize llama-nf4 llama-again "${options[@]}"
# 4-bit NormalFloat moves normal weights by 9 % in the norm; more would be a defect, and diff would say no.
run nibble diff llama llama-again --tol 0.1 "${options[@]}"
run nibble train examples/train/sums.yml --set max_steps=4 --set eval_steps=2 "${options[@]}"
run nibble generate models/nibble-tiny --adapter sums-out --chat "What is 5 plus 5?" "${options[@]}"
