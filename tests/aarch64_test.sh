#!/usr/bin/env bash
# The command for aarch64, in an emulator, beside the command for this machine: what has one answer must be the same bytes,
# what is computed in f32 must agree within rounding.
#
#   tests/aarch64_test.sh ROOT NATIVE_NIBBLE FOREIGN_NIBBLE EMULATOR...
set -euo pipefail
export CUDA_VISIBLE_DEVICES= NIBBLE_ISA=scalar
root=$(realpath "$1") native=$(realpath "$2") foreign=$(realpath "$3")
emulator=("${@:4}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root/models" "$root/examples" .
model=models/nibble-tiny

fail() {
    echo "aarch64: $*" >&2
    exit 1
}
here() { "$native" "$@"; }
there() { "${emulator[@]}" "$foreign" "$@"; }

# same WHAT COMMAND...: both print the same bytes.
same() {
    local what=$1
    shift
    here "$@" >here.out || fail "$what: this machine's command failed"
    there "$@" >there.out || fail "$what: the emulated command failed"
    cmp here.out there.out || fail "$what: other output"
}

# same_files WHAT NAME COMMAND...: both write the same bytes; @ in an argument is here or there.
same_files() {
    local what=$1 name=$2
    shift 2
    here "${@//@/here}" >/dev/null || fail "$what: this machine's command failed"
    there "${@//@/there}" >/dev/null || fail "$what: the emulated command failed"
    diff -r "here$name" "there$name" || fail "$what: other files"
}

# near WHAT BOUND KEY FILE: the numbers behind "KEY" in here/FILE and there/FILE.
near() {
    for side in here there; do
        grep -o "\"$3\": *[-0-9.e+]*" "$side$4" | sed 's/.*: *//' >"$side.numbers" || fail "$1: no $3"
    done
    paste here.numbers there.numbers | awk -v bound="$2" '
        NF != 2 { exit bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= bound * ($1 < 0 ? -$1 : $1))) { print $1, $2; bad = 1 } }
        END { exit bad || NR == 0 }' >&2 || fail "$1: $3 differs"
}

# ---- doctor: the sets of the emulated processor ----
doctor() { # PROCESSOR SET...: what is found beside scalar
    "${emulator[@]}" -cpu "$1" "$foreign" doctor >doctor.out
    [ "$(awk '$2 == "used" { print $1 }' doctor.out)" = scalar ] || fail "doctor: $1: something but scalar is used"
    [ "$(awk '$2 == "found" { printf "%s ", $1 }' doctor.out)" = "${*:2} " ] || fail "doctor: $1: $(cat doctor.out)"
    ! grep -q avx doctor.out || fail "doctor: x86's instruction sets"
}
doctor cortex-a57 neon
doctor neoverse-n1 neon fp16 dotprod
doctor a64fx neon fp16 sve
there doctor --json >doctor.json
grep -q '"name": *"neon"' doctor.json || fail "doctor --json: no neon"

# ---- text and formats: the same bytes ----
same "a folder" inspect $model --json
same "tokens" tokenize $model --text $'it\'s 1234.5, isn\'t it?\n  Grüße, 日本語 🙂' --json
printf '[{"role": "user", "content": "Grüße: {{ 7 / 2 }}"}]' >messages.json
same "a template" template $model --messages messages.json --generation-prompt --json
for format in nf4 fp4 int8; do
    same_files "quantize to $format" "-$format" quantize $model "@-$format" --format $format
done
same_files "nested scales" -double quantize $model @-double --format nf4 --double
same_files "dequantize" -plain dequantize here-nf4 @-plain
for type in f16 q8_0 q4_0; do
    same_files "export as $type" ".$type.gguf" export $model "@.$type.gguf" --type $type
done

# ---- the model: the same answers; losses within rounding ----
same "an answer" generate $model --chat "Count from 3 to 8."
same "an answer from 4 bits" generate here-nf4 --chat "What is the opposite of hot?" --threads 1
same "a sampled answer" generate $model --chat "Count from 3 to 8." --temperature 1 --seed 3 --max-tokens 12
for side in here there; do
    # Bits in f32 do not depend on the number of threads.
    for threads in 1 2; do
        $side train examples/train/sums.yml --quiet --threads $threads --set max_steps=3 --set eval_steps=3 --set save_steps=3 \
            --set logging_steps=1 --set micro_batch_size=1 --set sequence_len=64 --set val_set_size=4 \
            --set output_dir=$side-$threads || fail "train: $side, $threads threads"
    done
    cmp $side-1/adapter_model.safetensors $side-2/adapter_model.safetensors || fail "train: $side: bits depend on threads"
done
near "train" 1e-4 loss -1/metrics.jsonl
near "train" 1e-4 eval_loss -1/metrics.jsonl
near "train" 1e-3 grad_norm -1/metrics.jsonl
same "an answer of a trained adapter" generate $model --adapter here-1 --chat "Count from 3 to 8."
there merge $model there-1 there-merged --verify >/dev/null || fail "merge: the emulated command failed"
same "a merged model" generate there-merged --chat "Count from 3 to 8."
echo "aarch64: $(here --version) and the emulated command agree"
