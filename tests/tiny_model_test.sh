#!/usr/bin/env bash
# The small model that comes along: its folder is small and whole, its tokenizer gives every text back, and a short
# fine-tuning in 4 bits does what the README promises.
#
#   tests/tiny_model_test.sh ROOT NIBBLE ASK_CHATS MAKE_TINY
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
root=$(realpath "$1") nibble=$(realpath "$2") ask_chats=$(realpath "$3") make_tiny=$(realpath "$4")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root/models" "$root/examples" .
model=models/nibble-tiny

fail() {
    echo "tiny_model: $*" >&2
    exit 1
}

equal() { # WHAT FOUND EXPECTED
    [ "$2" = "$3" ] || fail "$1: found '$2', expected '$3'"
}

# ---- the folder ----
for file in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json chat_template.jinja MODEL.md; do
    [ -s "$model/$file" ] || fail "$file is missing"
done
size=$(cat $model/* | wc -c)
[ "$size" -le 3000000 ] || fail "the folder has $size bytes, more than 3 MB"
"$nibble" inspect $model --json >inspect.json
grep -q '"problems": *\[\]' inspect.json || fail "inspect finds problems: $(cat inspect.json)"

# ---- the tokenizer ----
ids() { # the ids of a --json document
    sed -n 's/.*"ids": *\(\[[^]]*\]\).*/[\1]/p' "$1"
}
for text in "What is 5 plus 5?" "it's 1234.5, isn't it?" $'two\n\nlines\tand  spaces ' "Grüße, 日本語 🙂" "<|im_start|>user"; do
    "$nibble" tokenize $model --text "$text" --json >tokens.json
    ids tokens.json >ids.json
    equal "a text that comes back" "$("$nibble" tokenize $model --decode ids.json)" "$text"
done
equal "tokens of two digits" "$("$nibble" tokenize $model --text 42 --json)" '{"ids":[52,50]}'
equal "a special token" "$("$nibble" tokenize $model --text '<|im_end|>' --json)" '{"ids":[511]}'

# ---- what is made is what lies there: the data of the example and, but for the weights, the model ----
"$make_tiny" sums sums
for file in sums sums-new-wordings sums-new-pairs; do
    cmp "sums/$file.jsonl" "examples/train/$file.jsonl" || fail "examples/train/$file.jsonl is not what make_tiny makes"
done
"$make_tiny" base base 1000
for file in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json; do
    cmp "base/start/$file" "$model/$file" || fail "$model/$file is not what make_tiny makes"
done

# ---- the base model chats, and cannot add ----
ask() {
    "$nibble" generate $model --chat "$@"
}
equal "counting" "$(ask 'Count from 3 to 8.')" "3 4 5 6 7 8"
equal "an opposite" "$(ask 'What is the opposite of hot?')" "The opposite of hot is cold."
equal "a sum before training" "$(ask 'What is 5 plus 5?')" "I do not know how to add yet."
before=$("$ask_chats" $model base/held-out.jsonl)
[ $((${before% of *} * 100)) -ge $((${before#* of } * 90)) ] || fail "only $before held-out chats are answered right"
equal "sums before training" "$("$ask_chats" $model examples/train/sums.jsonl)" "0 of 900"

# ---- a short fine-tuning, half as long as the example's ----
short=(--set max_steps=150 --set eval_steps=75 --set save_steps=50 --set logging_steps=1)
"$nibble" train examples/train/sums.yml "${short[@]}" --quiet
losses() { # the eval losses in order
    sed -n 's/.*"eval_loss": *\([0-9.e-]*\).*/\1/p' sums-out/metrics.jsonl
}
first=$(sed -n '1s/.*"loss": *\([0-9.e-]*\).*/\1/p' sums-out/metrics.jsonl)
last=$(losses | tail -n 1)
awk -v first="$first" -v last="$last" 'BEGIN { exit !(first > 1 && last < first / 10) }' ||
    fail "the loss went from $first to $last on rows that were held back"
equal "a sum after training" "$(ask 'What is 5 plus 5?' --adapter sums-out --load nf4)" "5 + 5 = 10"
after=$("$ask_chats" $model examples/train/sums.jsonl --load nf4 --double --adapter sums-out)
[ $((${after% of *} * 100)) -ge $((${after#* of } * 80)) ] || fail "only $after trained sums are right after training"
equal "the base model, untouched" "$(ask 'What is 5 plus 5?')" "I do not know how to add yet."
echo "tiny_model: $size bytes, held-out chats $before, sums after 150 steps $after"
