#!/usr/bin/env bash
# Runs the CUDA kernels of the operators without a device: nibble_ops_traced interprets them on the CPU (tests/ptx).
#
#   tests/cuda_interpreted_test.sh BUILD
#
# 1. A few small cases of each line of the operators' table must match the reference, with the kernels for sm_80.
# 2. The command trains a small model: steps are captured and replayed, and losses are those of the CPU.
# 3. The golden models are as upstream has them, but those that are refused on CUDA.
set -euo pipefail
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
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

cd "$work"
"$build/make_checkpoint" model --layers 2 --vocab 512 >/dev/null
cp "$root"/models/nibble-tiny/tokenizer*.json model
for i in $(seq 40); do echo "{\"text\": \"The sum of the numbers up to $i.\"}"; done >rows.jsonl
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
sequence_len: 32
micro_batch_size: 2
max_steps: 6
learning_rate: 1e-3
END

# losses DEVICE "KEY=VALUE…": of all steps.
losses() {
    local sets=() key
    for key in $2; do sets+=(--set "$key"); done
    "$build/nibble_traced" train run.yml --quiet --device "$1" --threads 1 --samples 0 --set output_dir="out.$1" \
        "${sets[@]}" >&2 || fail "$1 $2: exit status $?"
    sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "out.$1/metrics.jsonl"
}
for keys in "bf16=true" "adapter=lora load_in_4bit=false" "bf16=false peft_use_dora=true"; do
    rm -rf out.*
    losses cpu "$keys" >cpu
    NIBBLE_CUDA_TRACE=trace losses cuda "$keys" >cuda
    [[ $(wc -l <cuda) -eq 6 ]] || fail "$keys: not six losses"
    paste cpu cuda | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-3 * $1) bad = 1 }
        END { exit bad }' || fail "$keys: losses of the CPU and the interpreter: $(paste cpu cuda)"
    grep -q '^replay' trace || fail "$keys: no step was replayed"
    grep -q '^left over: 0 allocations' trace || fail "$keys: something was not freed"
done
echo "trained: the last loss is $(tail -n 1 cuda), on the CPU $(tail -n 1 cpu)"

NIBBLE_TEST_DEVICE=cuda "$build/tests/models_traced" >models 2>&1 || true
failed=$(sed -n 's/^ *\([0-9]*\) FAILED TEST(S)$/\1/p' models)
refused=$(grep -ac '^ERROR: .* does not run on CUDA$' models || true)
passed=$(grep -ac '^\[       OK' models || true)
((${failed:-0} == refused && passed >= 20)) || fail "models: $passed passed, ${failed:-0} failed: $(grep -a '^ERROR' models)"
echo "models: $passed are right, $refused are refused"
