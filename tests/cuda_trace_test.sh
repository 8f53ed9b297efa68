#!/usr/bin/env bash
# Trains on the traced CUDA runtime (tests/cuda_trace), which needs no device, and reads the trace: steps are replayed
# from the third on, nothing is allocated after the first step, everything is freed at the end. Then each CUDA call fails
# once: the command ends with a message, or with the same adapter where the call was repeated or did not matter.
#
#   tests/cuda_trace_test.sh BUILD_DIR
set -euo pipefail
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export nibble=$build/nibble_traced

fail() { echo "cuda_trace_test: $*"; exit 1; }

# One layer, so that there are few calls; rows of one length, so that all steps have one shape.
"$build/make_checkpoint" model --layers 1 --vocab 512 >/dev/null
cp "$root"/models/nibble-tiny/tokenizer*.json model
for _ in $(seq 40); do echo '{"text": "The sum of the two numbers."}'; done >rows.jsonl
cat >run.yml <<'END'
base_model: model
load_in_4bit: true
adapter: qlora
lora_r: 4
lora_target_linear: true
bf16: true
datasets:
  - path: rows.jsonl
    type: completion
sequence_len: 16
micro_batch_size: 2
max_steps: 6
learning_rate: 1e-3
output_dir: out
END

# train TRACE OUT KEY=VALUE…
train() {
    local trace=$1 out=$2 keys=() key
    shift 2
    for key in "$@"; do keys+=(--set "$key"); done
    NIBBLE_CUDA_TRACE=$trace "$nibble" train run.yml --quiet --device cuda --threads 1 --samples 0 --set output_dir="$out" \
        "${keys[@]}"
}
export -f train

# clean TRACE: nothing failed, nothing is left over.
clean() {
    tail -3 "$1" | cmp -s - <(printf '%s\n' "left over: 0 allocations of the device (0 bytes), 0 of the host (0 bytes)" \
        "left over: 0 streams, 0 events, 0 graphs" "end: $(calls "$1") calls, 0 failed") || fail "$1: $(tail -3 "$1")"
}
calls() { sed -n 's/^end: \([0-9]*\) calls.*/\1/p' "$1"; }

for device in sm_90 sm_80; do
    for keys in "" "peft_use_dora=true lora_dropout=0" "adapter=lora load_in_4bit=false load_in_8bit=true" \
        "gradient_accumulation_steps=2" "adapter= load_in_4bit=false"; do
        rm -rf out
        # shellcheck disable=SC2086
        NIBBLE_CUDA_TRACE_DEVICE=$device train trace out $keys || fail "$device $keys: exit status $?"
        clean trace
        # A step ends with the gradient norm (finish_kernel of grad_norm.cu) and AdamW. Until the second one everything is launched and captured.
        awk -v what="$device $keys" '
            function bad(why) { print "cuda_trace_test: " what ": step " steps + 1 ": " why; failed = 1; exit 1 }
            /^cudaFree 0x/ && steps >= 6 { exit }
            /^(cudaMalloc|cudaHostAlloc) / && steps >= 1 { bad("allocates: " $0) }
            /^replay/ { replays++ }
            /^kernel/ && !/captured/ { launched++ }
            /^kernel .*finish_kernelEPKNS_4part/ {
                if (++steps == 1 && launched < 20) bad("only " launched " kernels")
                if (steps > 3 && (launched > 12 || !replays)) bad(launched " kernels are launched one by one")
                launched = replays = 0
            }
            END { if (!failed && steps != 6) bad("there are 6 steps"); exit failed }' trace || exit 1
    done
done

# Views: q, k, v and gate, up of fused matrices are read and written where they lie. A row of dispatch that copies strided
# tensors would copy within the device, row by row.
echo '[[1,5,9,2,7,3,11,4],[8,6,1,13,2]]' >ids.json
phi3=$root/tests/data/models/phi3
for device in sm_90 sm_80; do
    rm -f gradients
    NIBBLE_CUDA_TRACE=trace NIBBLE_CUDA_TRACE_DEVICE=$device "$nibble" grads "$phi3" --ids ids.json --labels ids.json \
        --adapter "$phi3/lora" --dtype bf16 --out gradients --device cuda --quiet
    grep -q '^kernel .*attention' trace || fail "$device phi3: no attention in the trace"
    ! grep '^copy on device .* rows of ' trace || fail "$device phi3: a view is copied"
done

# Every call fails once. A CUDA call whose failure does not matter frees something, or belongs to a step that is begun
# ahead of its turn and is begun again.
rm -rf out
train trace out max_steps=3
count=$(calls trace)
export expected=$work/out/adapter_model.safetensors
one() {
    local n=$1 status=0 failed
    NIBBLE_CUDA_TRACE_FAIL=$n train "trace-$n" "out-$n" max_steps=3 >"said-$n" 2>&1 || status=$?
    failed=$(sed -n 's/^failed: //p' "trace-$n" | head -1)
    if [ $status = 0 ]; then cmp -s "$expected" "out-$n/adapter_model.safetensors" || echo "call $n ($failed): other bytes"
    elif [ $status != 1 ] || ! grep -q '^nibble: train: .' "said-$n"; then
        echo "call $n ($failed): exit status $status: $(head -3 "said-$n")"
    fi
    [ -n "$failed" ] || echo "call $n did not fail"
    grep -q '^left over: 0 allocations of the device (0 bytes), 0 of the host (0 bytes)' "trace-$n" &&
        grep -q '^left over: 0 streams, 0 events, 0 graphs' "trace-$n" || echo "call $n ($failed): something is left over"
    rm -rf "trace-$n" "out-$n" "said-$n"
}
export -f one
seq "$count" | xargs -P "$(nproc)" -I{} bash -c 'one {}' >problems
[ ! -s problems ] || { head -20 problems; fail "$(wc -l <problems) of $count calls"; }

# A device that fails for good: no matter when, the command ends with its message.
for n in $(seq 1 37 "$count"); do
    status=0
    NIBBLE_CUDA_TRACE_FAIL=$n+ train trace "out-$n" max_steps=3 >said 2>&1 || status=$?
    [ $status = 1 ] && grep -q '^nibble: train: .' said || [ "$n" -gt $((count - 60)) ] || fail "call $n and later: exit status $status: $(head -3 said)"
done

# No device: it is said.
! NIBBLE_CUDA_TRACE_DEVICE=none train trace out-none >said 2>&1 || fail "there is no device"
grep -q 'no CUDA device' said || fail "no device: $(head -3 said)"
echo "cuda_trace_test: $count calls"
