#!/usr/bin/env bash
# Kills a training run (SIGKILL) at random moments and resumes it, as often as it takes: the adapter it ends with has the bytes of a run that
# nobody disturbed, and nothing is left behind.
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
    --set datasets.0.path="$root/examples/train/sums.jsonl" --set max_steps=12 --set save_steps=1 --set save_total_limit=2 --set report=false)

begin=$(date +%s%N)
"${words[@]}" --set output_dir=whole
full=$(($(date +%s%N) - begin))

done=0 attempts=0
while [ $done -lt "$kills" ]; do
    attempts=$((attempts + 1))
    [ $attempts -le $((20 * kills)) ] || { echo "kill_test: the run is too short to be killed"; exit 1; }
    delay=$((full / 100 * (5 + RANDOM % 90)))
    "${words[@]}" --set output_dir=killed --resume &
    pid=$!
    sleep "$(printf '%d.%09d' $((delay / 1000000000)) $((delay % 1000000000)))"
    if kill -KILL $pid 2>/dev/null; then done=$((done + 1)); fi
    wait $pid 2>/dev/null || true
    if cmp -s killed/adapter_model.safetensors whole/adapter_model.safetensors; then # it had finished: begin again
        rm -rf killed
    fi
done
"${words[@]}" --set output_dir=killed --resume
cmp killed/adapter_model.safetensors whole/adapter_model.safetensors || { echo "kill_test: other bytes after $kills kills"; exit 1; }
for file in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json adapter_config.json; do
    cmp "killed/$file" "whole/$file" || { echo "kill_test: another $file after $kills kills"; exit 1; }
done
left=$(comm -23 <(ls -A killed | sort) <(ls -A whole | sort))
[ -z "$left" ] || { echo "kill_test: left behind: $left"; exit 1; }
echo "kill_test: $kills kills in $attempts runs, the same bytes"
