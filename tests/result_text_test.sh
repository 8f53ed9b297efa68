#!/usr/bin/env bash
# result_text_test.sh - tokenizer, chat template and special tokens: how the commands read them, and what a run and the
# commands after it leave of them.
#
#   tests/result_text_test.sh ROOT NIBBLE JSON_GET
#
# One line per check; the last line counts them.
set -u
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
export LC_ALL=C.UTF-8 TERM=xterm
root=$(realpath "$1") nibble=$(realpath "$2") json_get=$(realpath "$3")
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-result-text.XXXXXX") || exit 2
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
runs() { # nibble's streams are in the files out and err
    "$nibble" "$@" >out 2>err || { echo "nibble $*: exit $?: $(head -c 400 err)"; return 1; }
}
fails() { # STATUS ARGUMENT...
    local wanted=$1 got
    shift
    "$nibble" "$@" >out 2>err
    got=$?
    [[ $got -eq $wanted ]] || { echo "nibble $*: exit $got instead of $wanted: $(head -c 400 err)"; return 1; }
}
equal() { # WHAT FOUND EXPECTED
    [[ $2 == "$3" ]] || { echo "$1: found '$2', expected '$3'"; return 1; }
}
says() { # FILE TEXT...
    local file=$1
    shift
    for text in "$@"; do grep -qF -- "$text" "$file" || { echo "no '$text' in: $(head -c 600 "$file")"; return 1; }; done
}
get() { "$json_get" out "$1"; }

# ---- truncation and padding of tokenizer.json ----

# The same model, once with a tokenizer.json that cuts to 4 tokens and pads to 64.
cp -r "$model" limited
sed -i 's/"truncation": null/"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}/
s/"padding": null/"padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 509, "pad_type_id": 0, "pad_token": "<|endoftext|>"}/' limited/tokenizer.json
echo '[{"role": "user", "content": "Count from 3 to 8."}]' >chat.json
echo '{"messages": [{"role": "user", "content": "Count from 3 to 8."}, {"role": "assistant", "content": "3 4 5 6 7 8"}]}' >chats.jsonl
echo '{"text": "The opposite of hot is cold. The opposite of big is small."}' >texts.jsonl
cat >limits.yml <<YAML
base_model: BASE
datasets: [{path: chats.jsonl, type: chat_template}]
learning_rate: 0.001
adapter: lora
lora_target_linear: true
output_dir: limits-out
YAML

same_with_limits() { # COMMAND... with MODEL for the model: the same output for both folders
    runs "${@/#MODEL/$model}" && cp out whole && runs "${@/#MODEL/limited}" && cmp out whole
}
check "generate --prompt reads all of its prompt" same_with_limits generate MODEL --prompt "The opposite of hot is" --max-tokens 8
check "generate --chat reads all of its message" same_with_limits generate MODEL --chat "Count from 3 to 8."
check "template --json encodes all of its text" same_with_limits template MODEL --messages chat.json --json
check "eval of texts reads all of them" same_with_limits eval MODEL --data texts.jsonl --json
check "eval of chats reads all of them" same_with_limits eval MODEL --data chats.jsonl --json
chat_with_limits() {
    for folder in "$model" limited; do
        echo "Count from 3 to 8." | "$nibble" chat $folder --quiet >out 2>err || { cat err; return 1; }
        equal "$folder" "$(cat out)" "3 4 5 6 7 8" || return 1
    done
}
check "chat reads all of its line" chat_with_limits
data_with_limits() {
    sed "s#BASE#$model#" limits.yml >one.yml && sed "s#BASE#limited#" limits.yml >two.yml &&
        runs data one.yml --json && cp out whole && runs data two.yml --json && cmp out whole
}
check "training data are whole" data_with_limits
tokenize_with_limits() {
    runs tokenize limited --text "one two three four five six" --json && equal "ids" "$(get 'ids.#')" 64 &&
        equal "padding" "$(get ids.4)" 509 && runs tokenize "$model" --text "one two" --json && [[ $(get 'ids.#') -lt 64 ]]
}
check "tokenize alone cuts and pads, as the tokenizers library does" tokenize_with_limits

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
