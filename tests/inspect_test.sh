#!/usr/bin/env bash
# inspect_test.sh - `nibble inspect` of GGUF files and adapters, as a user sees them.
#
#   tests/inspect_test.sh ROOT NIBBLE JSON_GET
#
# One line per check; the last line counts them.
set -u
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
export LC_ALL=C TERM=xterm
root=$(realpath "$1") nibble=$(realpath "$2") json_get=$(realpath "$3")
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-inspect-test.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
model=$root/models/nibble-tiny

passed=0 failed=0
check() { # SENTENCE FUNCTION
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
exits() { # STATUS ARGUMENT...
    local wanted=$1 got
    shift
    "$nibble" "$@" >out 2>err
    got=$?
    [[ $got -eq $wanted ]] || { echo "nibble $*: exit $got instead of $wanted: $(head -c 400 err)"; return 1; }
}
says() { # FILE TEXT...
    local file=$1
    shift
    for text in "$@"; do grep -qF -- "$text" "$file" || { echo "no '$text' in: $(head -c 900 "$file")"; return 1; }; done
}
json_is() { # KEY VALUE
    local got
    got=$("$json_get" out "$1") && [[ $got == "$2" ]] || { echo "$1 is '$got' instead of '$2'"; return 1; }
}

# ---- what is looked at ----

printf '%s\n' '{"messages": [{"role": "user", "content": "Count from 3 to 8."}, {"role": "assistant", "content": "3 4 5 6 7 8"}]}' >chats.jsonl
cat >run.yml <<YAML
base_model: $model
datasets: [{path: chats.jsonl, type: chat_template}]
learning_rate: 0.001
max_steps: 1
adapter: lora
lora_r: 4
lora_alpha: 8
peft_use_rslora: true
peft_use_dora: true
lora_target_modules: [q_proj, v_proj]
lora_modules_to_save: [lm_head]
output_dir: lora
report: false
YAML
"$nibble" train run.yml --quiet || exit 2
"$nibble" export "$model" m.gguf --type q8_0 --quiet >log || exit 2

# ---- GGUF ----

gguf_json() {
    exits 0 inspect m.gguf --json --tensors && json_is kind gguf && json_is type model && json_is architecture llama && json_is version 3 &&
        json_is parameters 918656 && json_is formats.q8_0.tensors 29 && json_is formats.f32.tensors 9 && json_is layers 4 && json_is context 512 &&
        json_is tokenizer.model gpt2 && json_is tokenizer.tokens 512 && json_is tokenizer.special.eos.id 511 && json_is tokenizer.special.eos.text "<|im_end|>" &&
        json_is tokenizer.chat_templates 1 && json_is "problems.#" 0 && json_is "tensors.#" 38 && json_is tensors.0.file m.gguf &&
        json_is metadata.0.key general.architecture && json_is metadata.0.type string && json_is metadata.0.value llama && json_is file_bytes "$(stat -c %s m.gguf)"
}
check "inspect --json tells a GGUF file's formats, sizes, tokenizer and metadata" gguf_json
gguf_people() {
    exits 0 inspect m.gguf --tensors && says out "GGUF version 3" "gpt2 (qwen2), 512 tokens, eos <|im_end|>" "llama.block_count = 4" "llama.rope.freq_base = 10000" \
        "(512 string)" "blk.0.attn_q.weight" "128 x 128" "q8_0" && ! grep -q problems out
}
check "inspect of a GGUF file is readable" gguf_people
gguf_hostile() { # names that would steer a terminal
    sed -e 's/blk\.0\.attn_norm\.weight/blk.0\x1b[31mm_norm\n\xc2\x9bght/' -e 's/general\.quantization_version/general\x1b[2Jantization_v\xe2\x80\xaeon/' m.gguf >odd.gguf
    exits 0 inspect odd.gguf --tensors && ! grep -q $'\e' out && ! grep -q $'\xc2\x9b' out && says out "problems" 'tensor "blk.0.attn_norm.weight": it is missing' &&
        exits 0 inspect odd.gguf --json && json_is "problems.#" 2 && ! grep -q $'\e' out
}
check "control characters in a GGUF file's names are shown as text" gguf_hostile
gguf_cut() { # every byte count opens or is refused, never with a crash
    local n
    for n in 0 3 8 23 24 100 1000 5000 12000 20000 900000; do
        head -c $n m.gguf >cut.gguf
        "$nibble" inspect cut.gguf --json >out 2>err
        case $? in
            0) json_is kind gguf && ! json_is "problems.#" 0 >/dev/null ;;
            1) says err "nibble: inspect: cut.gguf" ;;
            *) false ;;
        esac || { echo "$n bytes: $(cat err)"; return 1; }
    done
    exits 0 inspect cut.gguf --json && says out "(truncated copy?)" && [[ $("$json_get" out "problems.#") -gt 2 ]]
}
check "a GGUF file that was cut is told with every tensor that is lost" gguf_cut
gguf_claims() { # a header that claims 2^60 tensors, a text of 2^60 bytes
    printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0' >claims.gguf && exits 1 inspect claims.gguf && says err claims.gguf "tensors in" &&
        printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10xxxxxxxxxxxxxxxx' >claims.gguf && exits 0 inspect claims.gguf --json && json_is "problems.#" 1
}
check "sizes that a GGUF file claims cost no memory" gguf_claims
gguf_adapter() {
    sed -e '/peft_use/d' -e '/lora_modules/d' -e 's/output_dir: lora/output_dir: plain/' run.yml >plain.yml && exits 0 train plain.yml --quiet &&
        exits 0 export "$model" plain.gguf --adapter plain && exits 0 inspect plain.gguf --json && json_is type adapter && json_is "problems.#" 0
}
check "a GGUF LoRA is no model, and not told to lack tensors" gguf_adapter

# ---- adapters ----

adapter_json() {
    exits 0 inspect lora --json --tensors --base "$model" && json_is kind adapter && json_is type LORA && json_is r 4 && json_is lora_alpha 8.0 && json_is use_rslora true &&
        json_is use_dora true && json_is lora_bias false && json_is modules_to_save.0 lm_head && json_is modules 8 && json_is replaced_weights 1 && json_is dtype f32 && json_is non_finite 0 &&
        json_is base_model_name_or_path "$model" && json_is base "$model" && json_is fits true && json_is "problems.#" 0 && json_is "tensors.#" 25 && json_is "target_modules.#" 2 || return 1
    cp out one && exits 0 inspect lora/adapter_model.safetensors --json --tensors --base "$model" && cmp out one &&
        exits 0 inspect lora/checkpoint-1 --json && json_is kind adapter && json_is fits null && json_is base null
}
check "inspect --json tells an adapter's settings, sizes and whether it fits" adapter_json
adapter_people() {
    exits 0 inspect lora --base "$model" && says out "LORA, DoRA" "r 4, alpha 8, rsLoRA (alpha / sqrt r), dropout 0" "q_proj, v_proj" "saved whole   lm_head" "of 8 modules and 1 whole weights" "fits          $model"
}
check "inspect of an adapter is readable" adapter_people
adapter_gguf_base() { exits 0 inspect plain --base m.gguf --json && json_is fits true && json_is "problems.#" 0; }
check "the base may be a GGUF file" adapter_gguf_base
adapter_foreign() {
    exits 0 inspect plain --base "$root/tests/data/folders/llama" --json && json_is fits false && says out "of another model?" && [[ $("$json_get" out "problems.#") -gt 3 ]] &&
        exits 0 inspect plain --base "$root/tests/data/folders/llama" && says out "not $root/tests/data/folders/llama: see the problems" &&
        exits 1 inspect plain --base absent && says err absent
}
check "an adapter of another model does not fit, and every module is told" adapter_foreign
adapter_bad() {
    cp -r plain bad && sed -i 's/layers\.1\.self_attn\.q_proj\.lora_B/layers.1.self_attn.q_proj.lora_\x7f/' bad/adapter_model.safetensors && exits 0 inspect bad &&
        ! grep -q $'\x7f' out && says out "model.layers.1.self_attn.q_proj" "lora_B is missing" && exits 0 inspect bad --json && [[ $("$json_get" out "problems.#") -ge 1 ]] &&
        rm -r bad && cp -r plain bad && rm bad/adapter_config.json && exits 0 inspect bad --json && json_is type null && json_is r null && json_is "problems.#" 1 && says out "adapter_config.json" &&
        rm bad/adapter_model.safetensors && echo x >bad/adapter_model.bin && exits 0 inspect bad --json && says out "a pickle, which is not read"
}
check "what is wrong with an adapter is told" adapter_bad
not_adapters() { # a model's folder stays a checkpoint, and --base is for adapters
    exits 2 inspect "$model" --base "$model" && says err "--base is for adapters" && exits 0 inspect "$model" --json && json_is files 1 && ! grep -q '"kind"' out &&
        exits 0 inspect "$model/model.safetensors" --json && ! grep -q '"kind"' out
}
check "a model's folder is told as before" not_adapters

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
