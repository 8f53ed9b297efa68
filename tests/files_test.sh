#!/usr/bin/env bash
# files_test.sh - what the command does with files that are not its own: models that change under a run, outputs that
# exist, links that lead elsewhere, what a killed command left behind.
#
#     bash tests/files_test.sh NIBBLE NIBBLE_OPS
#
# One line per check, as cli_test.sh has it.
set -u
export CUDA_VISIBLE_DEVICES= LC_ALL=C
nibble=$(realpath "$1") ops=$(realpath "$2")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tiny=$root/models/nibble-tiny
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-files-test.XXXXXX") || exit 2
trap 'chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 2
passed=0 failed=0

check() { # SENTENCE FUNCTION [ARGUMENT...]
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: ${said//$'\n'/ | }"
    fi
}

exits() { # STATUS WORD...
    local wanted=$1 got
    shift
    timeout 60 "$@" >out 2>err
    got=$?
    [[ $got -eq $wanted ]] || { echo "$*: exit $got instead of $wanted: $(head -c 400 err)"; return 1; }
}

says() { # TEXT...: each is in the error
    local text
    for text; do
        grep -qF -- "$text" err || { echo "the error does not say '$text': $(head -c 600 err)"; return 1; }
    done
}

# ---- a base that changes during training ----

train() { # OUTPUT_DIR: begins a long run on the folder `base`, and waits for its first steps
    rm -rf base "$1"
    cp -r "$tiny" base
    "$nibble" train "$root/examples/train/sums.yml" --quiet --set base_model=base --set load_in_4bit=false --set adapter=lora \
        --set datasets.0.path="$root/examples/train/sums.jsonl" --set max_steps=1000000 --set save_steps=1000000 \
        --set logging_steps=1 --set report=false --set output_dir="$1" >out 2>err &
    run=$!
    for _ in $(seq 600); do
        [[ -s $1/metrics.jsonl ]] && return 0
        sleep 0.05
    done
    echo "the run does not begin: $(cat err)"
    kill $run
    return 1
}

ends_with_error() { # OUTPUT_DIR
    local got _
    for _ in $(seq 600); do
        kill -0 $run 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL $run 2>/dev/null && { echo "the run goes on"; return 1; }
    wait $run
    got=$?
    [[ $got -eq 1 ]] || { echo "exit $got instead of 1: $(cat err)"; return 1; }
    says "base/model.safetensors" "changed while it was being used" || return 1
    ! ls "$1"/adapter_model.safetensors "$1"/checkpoint-* 2>/dev/null
}

truncated() { train t && truncate -s 100000 base/model.safetensors && ends_with_error t; }
check "a base that is truncated during training is named" truncated
overwritten() {
    train o && dd if=/dev/zero of=base/model.safetensors bs=1 seek=900000 count=64 conv=notrunc status=none && ends_with_error o
}
check "a base that is overwritten during training is named" overwritten

# ---- the end ----

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
