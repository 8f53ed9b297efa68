#!/usr/bin/env bash
# Kills training runs (SIGKILL) at random moments and resumes them, as often as it takes: the adapter each ends with has the bytes of a run that
# nobody disturbed, and nothing is left behind. One run keeps its last step, the other its best (load_best_model_at_end).
#
#   tests/kill_test.sh BUILD_DIR [KILLS]         (default: 12)
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
build=$(cd "$1" && pwd)
kills=${2:-12}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

words=("$build/nibble" train "$root/examples/train/sums.yml" --quiet --set base_model="$root/models/nibble-tiny"
    --set datasets.0.path="$root/examples/train/sums.jsonl" --set report=false)

killed() { # NAME KEYS...
    local name=$1
    shift
    rm -rf whole killed
    local begin full delay pid file left
    begin=$(date +%s%N)
    "${words[@]}" "$@" --set output_dir=whole
    full=$(($(date +%s%N) - begin))

    local done=0 attempts=0
    while [ $done -lt "$kills" ]; do
        attempts=$((attempts + 1))
        [ $attempts -le $((20 * kills)) ] || { echo "kill_test: the run is too short to be killed"; exit 1; }
        delay=$((full / 100 * (5 + RANDOM % 90)))
        "${words[@]}" "$@" --set output_dir=killed --resume &
        pid=$!
        sleep "$(printf '%d.%09d' $((delay / 1000000000)) $((delay % 1000000000)))"
        if kill -KILL $pid 2>/dev/null; then done=$((done + 1)); fi
        wait $pid 2>/dev/null || true
        if cmp -s killed/adapter_model.safetensors whole/adapter_model.safetensors; then # it had finished: begin again
            rm -rf killed
        fi
    done
    "${words[@]}" "$@" --set output_dir=killed --resume
    cmp killed/adapter_model.safetensors whole/adapter_model.safetensors || { echo "kill_test: other bytes after $kills kills"; exit 1; }
    for file in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json adapter_config.json; do
        cmp "killed/$file" "whole/$file" || { echo "kill_test: another $file after $kills kills"; exit 1; }
    done
    diff <(grep "^# result" killed/run.yml) <(grep "^# result" whole/run.yml) || { echo "kill_test: another step after $kills kills"; exit 1; }
    left=$(comm -23 <(ls -A killed | sort) <(ls -A whole | sort))
    [ -z "$left" ] || { echo "kill_test: left behind: $left"; exit 1; }
    echo "kill_test: $name: $kills kills in $attempts runs, the same bytes"
}

killed last --set max_steps=12 --set save_steps=1 --set save_total_limit=2
# The loss falls, then rises; the best step is none that save_steps names.
killed best --set max_steps=24 --set save_steps=4 --set save_total_limit=1 --set early_stopping_patience=3 --set val_set_size=8 --set eval_steps=1 \
    --set learning_rate=0.01 --set lr_scheduler=constant --set warmup_ratio=null --set warmup_steps=null
grep -q "^# result: step" whole/run.yml || { echo "kill_test: the best step is not named"; exit 1; }
