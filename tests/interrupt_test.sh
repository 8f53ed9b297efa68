#!/usr/bin/env bash
# Interrupts commands (SIGINT, SIGTERM) while they render rows with a slow template, and a run while it trains: each ends
# with 130 and leaves nothing half written.
#
#   tests/interrupt_test.sh BUILD_DIR
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
wait_s=30 # generous: what is judged is that the command stops, not how fast

fail() { echo "interrupt_test: $*"; tail -5 log; exit 1; }

# A template that takes about a second for every row, and rows for minutes.
cp -r "$root/models/nibble-tiny" slow
chmod -R u+w slow
cat >slow/chat_template.jinja <<'END'
{%- for i in range(9) %}{% for k in range(90000) %}{% for m in messages %}{% set x = k * 2 + i %}{% endfor %}{% endfor %}{% endfor -%}
{%- for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor -%}
END
for i in $(seq 400); do
    echo '{"messages": [{"role": "user", "content": "What is '$i'?"}, {"role": "assistant", "content": "A number."}]}'
done >rows.jsonl
cat >run.yml <<'END'
base_model: slow
adapter: lora
lora_r: 4
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: chat_template
sequence_len: 64
max_steps: 2
learning_rate: 1e-3
output_dir: out
END

# stopped SIGNALS DELAY COMMAND...: the command ends with 130 after the signals. It receives them all at once, as it
# stands still while they are sent: they are different ones, so that none is taken for another.
stopped() {
    local signals=$1 delay=$2 pid code=0
    shift 2
    # A job of a script ignores SIGINT from birth unless it is in a group of its own.
    set -m
    "$@" >log 2>&1 &
    pid=$!
    set +m
    sleep "$delay"
    kill -STOP $pid 2>/dev/null || { wait $pid || code=$?; fail "$*: ended by itself with $code"; }
    for signal in $signals; do kill -"$signal" $pid; done
    kill -CONT $pid
    for _ in $(seq $((wait_s * 10))); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid || code=$?
    [ $code = 130 ] || fail "$*: SIG$signals gave $code, not 130"
}

for signal in INT TERM; do
    stopped $signal 1.5 "$build/nibble" data run.yml
    stopped $signal 1.5 "$build/nibble" train run.yml
    stopped $signal 1.5 "$build/nibble" eval slow --data rows.jsonl
    stopped $signal 1.5 "$build/nibble" template slow --batch rows.jsonl
    [ ! -e out ] || [ -z "$(find out -type f)" ] || fail "train left $(find out -type f) behind"
    [ -z "$(find . -name '*.partial*')" ] || fail "something half written is left"
done

# While a run trains: one signal saves, two do not, three end it where it stands.
train=("$build/nibble" train "$root/examples/train/sums.yml" --set base_model="$root/models/nibble-tiny"
    --set datasets.0.path="$root/examples/train/sums.jsonl" --set max_steps=100000 --set save_steps=100000 --set report=false
    --set micro_batch_size=64 --set gradient_accumulation_steps=16 --samples 0)
stopped INT 4 "${train[@]}" --set output_dir=one
grep -q "stopping after this step; press Ctrl-C again to stop without saving" log || fail "the first Ctrl-C was not acknowledged"
[ -n "$(find one -name 'checkpoint-*' -type d)" ] || fail "the first Ctrl-C did not save"
stopped "INT TERM" 4 "${train[@]}" --set output_dir=two
[ -z "$(find two -name 'checkpoint-*')" ] || fail "the second Ctrl-C saved"
stopped "INT TERM HUP" 4 "${train[@]}" --set output_dir=three
[ -z "$(find three -name 'checkpoint-*')" ] || fail "the third Ctrl-C saved"
echo "interrupt_test: passed"
