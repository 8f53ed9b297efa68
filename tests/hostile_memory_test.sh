#!/usr/bin/env bash
# Small files that promise much: no command takes memory for what a config or a header claims before the claim is checked.
#
#   tests/hostile_memory_test.sh ROOT NIBBLE PEAK_RSS
#
# Every size of config.json is set to 2^31 - 1, or the most there is, and each command that opens a model must refuse the
# model by the name of a tensor with a resident set below LIMIT. The last line is `N passed, M failed`.
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
[ $# -eq 3 ] || { echo "usage: tests/hostile_memory_test.sh ROOT NIBBLE PEAK_RSS" >&2; exit 2; }
root=$1 nibble=$2 peak_rss=$3
LIMIT=64000000 # bytes; the bare program takes about 14 MB
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
cd "$work"

verdict() { # TITLE 0|1
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1"; tail -c 400 said; fi
}

# measured COMMAND...: sets `code` and `resident`; the address space is bounded as well, so that a defect fails and
# takes no machine down.
measured() {
    (ulimit -v 8000000; "$peak_rss" "$@") >peak 2>said || true
    read -r code resident <peak
}

model() { # KEY VALUE...: the small model with other values
    rm -rf m
    cp -r "$root/models/nibble-tiny" m
    chmod -R u+w m
    while [ $# -gt 0 ]; do
        grep -q "\"$1\"" m/config.json || { echo "no key $1"; exit 1; }
        sed -i "s/\"$1\": *[0-9]*/\"$1\": $2/" m/config.json
        shift 2
    done
}

echo '[[1, 2, 3]]' >ids.json
echo '{"text": "one and one"}' >text.jsonl
cat >run.yml <<END
base_model: m
adapter: lora
lora_r: 4
lora_target_linear: true
datasets:
  - path: text.jsonl
    type: completion
sequence_len: 64
max_steps: 1
learning_rate: 1e-3
output_dir: out
END
model vocab_size 512
"$nibble" train run.yml --quiet --set output_dir=adapter >/dev/null

commands() { # every one that opens a model
    cat <<'END'
plan m
plan m --train run.yml
logits m --ids ids.json --out o.safetensors
grads m --ids ids.json --labels ids.json --adapter adapter --out o.safetensors
generate m --prompt one
generate m --ids ids.json --load nf4
chat m
eval m --data text.jsonl
export m o.gguf --type f16
export m o.gguf --type q8_0 --adapter adapter
merge m adapter merged --verify
train run.yml
END
}

while read -r setting; do
    # shellcheck disable=SC2086
    model $setting
    while read -r command; do
        rm -rf out o.safetensors o.gguf merged
        # shellcheck disable=SC2086
        measured "$nibble" $command </dev/null
        bad=0
        [ "$code" = 1 ] && [ "$resident" -lt "$LIMIT" ] && grep -q '"model\.' said || bad=1
        verdict "$command with $setting: status $code, $resident bytes" $bad
    done < <(commands)
done <<'END'
vocab_size 2147483647
hidden_size 2147483647
intermediate_size 2147483647
num_hidden_layers 1024
head_dim 2147483646
num_attention_heads 2147483647 num_key_value_heads 2147483647
END

# Nothing but text longer than that depends on the positions.
model max_position_embeddings 2147483647
for command in "generate m --prompt one --max-tokens 2" "eval m --data text.jsonl" "export m o.gguf --type f16" "plan m"; do
    # shellcheck disable=SC2086
    measured "$nibble" $command
    bad=0
    [ "$code" = 0 ] && [ "$resident" -lt "$LIMIT" ] || bad=1
    verdict "$command with many positions: status $code, $resident bytes" $bad
done

# A header of 57 MB with a million empty tensors: what is kept of them must not be a gigabyte.
awk 'BEGIN { printf "{"; for (i = 0; i < 1000000; i++) printf "%s\"t%07d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", i; printf "}" }' >header
size=$(stat -c %s header)
{
    for shift in 0 8 16 24 32 40 48 56; do
        # shellcheck disable=SC2059
        printf "\\x$(printf %02x $((size >> shift & 255)))"
    done
    cat header
} >many.safetensors
measured "$nibble" inspect many.safetensors
bad=0
[ "$code" = 1 ] && [ "$resident" -lt 100000000 ] && grep -q "more than 262144 tensors in one file" said || bad=1
verdict "a million empty tensors: status $code, $resident bytes" $bad

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
