#!/usr/bin/env bash
# Models of other shapes learn the sums of the demo: GPT-OSS's with its experts in MXFP4, and Qwen3.5's with 4-bit
# weights. Both begin with random weights. A run is as examples/train says; what it learned survives merging.
#
#   tests/shapes_test.sh ROOT NIBBLE ASK_CHATS MAKE_TINY
set -euo pipefail
root=$1 nibble=$2 ask=$3 make=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root/examples" examples

fail() {
    printf 'shapes_test: %s\n' "$*" >&2
    exit 1
}

# learn NAME SHAPE: the answers of the start, then those after training, then those of the merged model
learn() {
    "$make" start "$1-start" "$2"
    before=$("$ask" "$1-start" examples/train/sums.jsonl)
    [ "$before" = "0 of 900" ] || fail "$2: the random model answers $before"
    "$nibble" train "examples/train/sums-$1.yml" --quiet
    after=$("$ask" "$1-start" examples/train/sums.jsonl --adapter "$1-out" "${@:3}")
    [ "$after" = "900 of 900" ] || fail "$2: the trained model answers $after"
    "$nibble" merge "$1-start" "$1-out" "$1-merged" --verify >/dev/null
    merged=$("$ask" "$1-merged" examples/train/sums.jsonl)
    [ "${merged% of 900}" -ge 890 ] || fail "$2: the merged model answers $merged"
    printf '%s: %s, merged %s\n' "$2" "$after" "$merged"
}

learn gpt-oss gpt_oss
learn qwen3-5 qwen3_5 --load nf4 --double
