#!/usr/bin/env bash
# cli_test.sh - commands that run models, from outside: logits, generate, chat, eval, plan, export, train.
#
#     bash tests/cli_test.sh NIBBLE MAKE_CHECKPOINT [JSON_GET]
#
# tests/cli_support.sh says what a check is.
source "$(dirname "${BASH_SOURCE[0]}")/cli_support.sh"

# ---- models ----

echo '[[1, 2, 3, 9], [5, 6]]' >ids.json
echo '[[1, 256]]' >bad-ids.json
writes_logits() {
    exits 0 logits model --ids ids.json --out l1.safetensors --threads 1 &&
        exits 0 logits model --ids ids.json --out l2.safetensors --threads 3 && cmp l1.safetensors l2.safetensors
}
check "logits do not depend on the number of threads" writes_logits
refuses_ids() { exits 1 logits model --ids bad-ids.json --out l3.safetensors && grep -q 256 err && [[ ! -e l3.safetensors ]]; }
check "an id outside the vocabulary is refused and nothing is written" refuses_ids
# A target that exists, whatever it is, stays as it is; only an earlier result gives way, and only to --force.
spares_targets() {
    exits 0 logits model --ids ids.json --out spared.safetensors || return 1
    local adapter="$(dirname "$make_checkpoint")/make_adapter" target how
    "$adapter" model result-adapter --rank 2 || return 1
    ln -sf spared.safetensors spared-link; ln -sf nowhere spared-dangling
    ln -f model/model.safetensors spared-name; ln -f result-adapter/adapter_model.safetensors spared-adapter
    [[ -p spared-pipe ]] || mkfifo spared-pipe
    sha256sum ids.json spared.safetensors model/* result-adapter/* >spared.sums
    for target in model/model.safetensors model/config.json model ids.json result-adapter/adapter_model.safetensors \
        spared-name spared-adapter spared-link spared-dangling spared-pipe; do
        for how in "" --force; do
            exits 1 logits model --ids ids.json --out "$target" $how && says err "left untouched" || { echo "logits $target $how"; return 1; }
            exits 1 grads model --ids ids.json --labels ids.json --adapter result-adapter --out "$target" $how &&
                says err "left untouched" || { echo "grads $target $how"; return 1; }
        done
    done
    exits 1 logits model --ids ids.json --out spared.safetensors && says err "--force" || return 1
    sha256sum --quiet -c spared.sums && [[ -L spared-link && -L spared-dangling && -p spared-pipe && ! -e nowhere ]] || return 1
    exits 0 grads model --ids ids.json --labels ids.json --adapter result-adapter --out spared.safetensors --force &&
        ! sha256sum --status -c spared.sums && [[ -z $(ls -d ./*.partial-* 2>/dev/null) ]]
}
check "logits and grads replace nothing but their own earlier results" spares_targets
generates() {
    exits 0 generate model --ids ids.json --max-tokens 7 --json && json_is sequences.0.finish length && cp out first &&
        exits 0 generate model --ids ids.json --max-tokens 7 && cp out both && [[ $(wc -l <both) -eq 2 ]] &&
        [[ $(head -n 1 both | wc -w) -eq 7 ]]
}
check "generate continues every sequence" generates
same_seed() {
    exits 0 generate model --ids ids.json --max-tokens 9 --temperature 1 --seed 3 && cp out one &&
        exits 0 generate model --ids ids.json --max-tokens 9 --temperature 1 --seed 3 --threads 1 && cmp out one &&
        exits 0 generate model --ids ids.json --max-tokens 9 --temperature 1 --seed 4 && ! cmp -s out one
}
check "the seed decides what is sampled" same_seed
loads() { exits 0 generate model --ids ids.json --max-tokens 4 --load nf4 && exits 0 generate sharded --ids ids.json --max-tokens 4 --dtype f32; }
check "a model runs in 4 bits and from shards" loads
refuses_nan() { exits 1 generate broken-values --ids ids.json --max-tokens 2 && grep -q "not finite" err; }
check "no token is taken from logits that are not finite" refuses_nan
exports() {
    exits 0 export model model.gguf --type q8_0 --json && one_document && json_is type q8_0 &&
        exits 0 generate model.gguf --ids ids.json --max-tokens 3 && exits 1 export model model.gguf --type f16 &&
        says err "model.gguf: exists"
}
rm -f model/tokenizer.json # noise
check "export writes a model that runs, and never over another" exports
check "export without --type and --adapter is wrong usage" usage_error export model other.gguf
plans() { exits 0 plan model --tokens 64 --memory 1M --json && one_document && json_is casts "[]"; }
check "plan tells what a model takes" plans
plan_sizes() {
    exits 0 plan model --tokens 64 --json || return 1
    local least
    least=$("$json_get" out smallest_memory)
    exits 0 plan model --tokens 64 && grep -qE '^  total +[0-9.]+ [KMG]?B$' out && grep -qE '^ +[0-9.]+ [KMG]?B +[0-9]+ scratch' out &&
        says out "smallest memory: " "($least bytes)" && ! grep -qE '[0-9]{6}' <(grep -v "smallest memory" out)
}
plan_of_run() {
    for option in "--adapter a" "--dtype f32" "--load nf4"; do
        usage_hint "does not go with --train" plan model --train hub.yml $option || return 1
    done
    usage_hint "--set needs --train" plan model --set lora_r=2
}
check "plan refuses options that a run says itself" plan_of_run
check "plan tells sizes as people read them, and the smallest budget exactly" plan_sizes

carries_tokenizers() { # all files of the model's tokenizer, or all of the adapter's
    rm -rf carrier carrier-adapter carried && cp -r model carrier && "$(dirname "$make_checkpoint")/make_adapter" carrier carrier-adapter --rank 2 || return 1
    rm -f carrier/tokenizer.json
    for file in tokenizer.model vocab.json merges.txt; do echo "$file" >carrier/$file; done
    exits 0 merge carrier carrier-adapter carried && cmp carried/tokenizer.model carrier/tokenizer.model &&
        cmp carried/vocab.json carrier/vocab.json && cmp carried/merges.txt carrier/merges.txt || return 1
    echo '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}' >carrier-adapter/tokenizer.json && rm -rf carried
    exits 0 merge carrier carrier-adapter carried && cmp carried/tokenizer.json carrier-adapter/tokenizer.json && [[ ! -e carried/tokenizer.model ]] &&
        [[ ! -e carried/vocab.json ]] && rm -rf carried && exits 0 quantize carrier carried --format nf4 && cmp carried/tokenizer.model carrier/tokenizer.model
}
check "merge and quantize carry a tokenizer's files, of the adapter if it has one" carries_tokenizers

# A model that speaks: every id has a word, w0 is a special token, texts are words with blanks between them.
cp -r model speaker && cp -r large slow
speech=$(for ((i = 0; i < 1024; i++)); do printf '%s"w%d": %d' "${comma:-}" "$i" "$i"; comma=", "; done)
for folder in speaker slow; do
    cat >$folder/tokenizer.json <<JSON
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null, "post_processor": null,
 "added_tokens": [{"id": 0, "content": "w0", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "model": {"type": "WordLevel", "vocab": {$speech}, "unk_token": "w1"}}
JSON
    echo '{}' >$folder/tokenizer_config.json
    echo '{"eos_token_id": 0}' >$folder/generation_config.json
    printf '%s' '{% for m in messages %}{{ m.content }} w2 {% endfor %}' >$folder/chat_template.jinja
done
sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 40/' speaker/config.json
sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 100000/' slow/config.json
echo '[[1, 2, 3], [5, 6, 7]]' >two.json

stops() { # a stop string that lies across two tokens of the first sequence and is not in the second
    exits 0 generate speaker --ids two.json --max-tokens 12 --json || return 1
    local whole other words cut
    whole=$("$json_get" out sequences.0.text) other=$("$json_get" out sequences.1.text)
    read -ra words <<<"$whole"
    cut="${words[4]: -1} ${words[5]:0:2}"
    [[ $other != *"$cut"* ]] || { echo "'$cut' is in both"; return 1; }
    exits 0 generate speaker --ids two.json --max-tokens 12 --json --stop nowhere --stop "$cut" &&
        json_is sequences.0.finish stop && json_is sequences.0.text "${whole%%"$cut"*}" && json_is "sequences.0.ids.#" 6 &&
        json_is sequences.1.finish length && json_is sequences.1.text "$other" && json_is "sequences.1.ids.#" 12 &&
        exits 0 generate speaker --prompt "w1 w2 w3" --max-tokens 12 --stop "$cut" && [[ $(cat out; echo .) == "${whole%%"$cut"*}"$'\n.' ]]
}
check "--stop ends the sequence whose text contains it, and only that" stops
held_back() { # the last words could begin a stop string, but the tokens end
    exits 0 generate speaker --prompt "w1 w2 w3" --max-tokens 5 --json && local whole && whole=$("$json_get" out sequences.0.text) &&
        exits 0 generate speaker --prompt "w1 w2 w3" --max-tokens 5 --stop "${whole#w*w} and more" && [[ $(cat out) == "$whole" ]]
}
check "what could have been a stop string is printed in the end" held_back
check "an empty --stop is wrong usage" usage_error generate model --ids ids.json --stop ""
stop_needs_text() { exits 1 generate model --ids ids.json --stop x && one_error "nibble: generate: model/tokenizer.json"; }
check "--stop without a tokenizer is refused" stop_needs_text

chats() { # two turns; the second answer is what the whole conversation is continued with
    printf 'w5 w6\nw7\n' | "$nibble" chat speaker --max-tokens 3 --quiet >out 2>err || return 1
    [[ $(wc -l <out) -eq 2 ]] && silent err || return 1
    local first second
    first=$(sed -n 1p out) second=$(sed -n 2p out)
    exits 0 generate speaker --prompt "w5 w6 w2" --max-tokens 3 && [[ $(cat out) == "$first" ]] &&
        exits 0 generate speaker --prompt "w5 w6 w2 $first w2 w7 w2" --max-tokens 3 && [[ $(cat out) == "$second" ]] &&
        printf 'w5 w6\n/reset\n\nw7\n/quit\nw8\n' | "$nibble" chat speaker --max-tokens 3 --quiet --system w9 >out 2>err && [[ $(wc -l <out) -eq 2 ]] &&
        second=$(sed -n 2p out) && exits 0 generate speaker --prompt "w9 w2 w7 w2" --max-tokens 3 && [[ $(cat out) == "$second" ]]
}
check "chat answers every line with the conversation in mind, until /reset" chats
chat_json() {
    printf 'w5\n' | "$nibble" chat speaker --max-tokens 3 --json --system w9 >out 2>err && one_document && json_is "messages.#" 3 &&
        json_is messages.0.role system && json_is messages.1.content w5 && json_is messages.2.role assistant
}
check "chat --json is the conversation" chat_json
chat_empty() { # every word begins with a w
    printf 'w5\nw7\n' | "$nibble" chat speaker --max-tokens 3 --quiet --stop w >out 2>err && [[ $(wc -l <out) -eq 2 ]] && silent err
}
check "an answer that is empty is one, too" chat_empty
chat_full() { # 40 positions: the second turn does not fit, the third does
    printf 'w5\n%s\nw7\n' "$(printf 'w8 %.0s' {1..40})" | "$nibble" chat speaker --max-tokens 3 >out 2>err
    [[ $? -eq 1 ]] && [[ $(wc -l <out) -eq 2 ]] && says err "the model has 40 positions" "hint: /reset"
}
check "a conversation beyond the model's positions is refused and goes on" chat_full
chat_commands() {
    printf '/help\n/nonsense\n/w5 w6/\n' | "$nibble" chat speaker --max-tokens 3 >out 2>err
    [[ $? -eq 2 ]] && says err "/reset" "no command '/nonsense'" && [[ $(wc -l <out) -eq 1 ]]
}
check "chat has commands, and words with a slash are none" chat_commands
# GPT-OSS: the words that the model says first become <|channel|>, a channel's name and <|message|>. Words 250 and 251 are in prompts.
harmony_prompt='{% for m in messages %}<|start|> w5 {{ m.content }} <|end|> {% endfor %}<|start|> w8'
harmony_folder() { # CHANNEL; this detokenizer puts a space before each word
    local said
    rm -rf harmony && cp -r speaker harmony && printf '%s' "$harmony_prompt" >harmony/chat_template.jinja || return 1
    echo '[[250, 5, 7, 251, 250, 8]]' >prompt.json
    exits 0 generate harmony --ids prompt.json --max-tokens 8 --repetition-penalty 100 --json || return 1
    for i in {0..7}; do said[i]=$("$json_get" out "sequences.0.ids.$i"); done
    words=" w${said[3]} w${said[4]} w${said[5]} w${said[6]} w${said[7]}"
    local rename=""
    rename() { rename+="s/\"w$1\": $1\([,}]\)/\"$2\": $1\\1/;s/\(\"added_tokens\": \[\)/\1{\"id\": $1, \"content\": \"$2\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, /;"; }
    rename 250 "<|start|>" && rename 251 "<|end|>" && rename "${said[0]}" "<|channel|>" && rename "${said[2]}" "<|message|>"
    sed -i "s/\"w${said[1]}\": ${said[1]}\([,}]\)/\"$1\": ${said[1]}\\1/;$rename" harmony/tokenizer.json
}
harmony_answers() { # the answer alone is printed; thinking is a member of its own
    harmony_folder final && exits 0 generate harmony --chat w7 --max-tokens 8 --repetition-penalty 100 && [[ $(cat out) == "$words" ]] &&
        exits 0 generate harmony --chat w7 --max-tokens 8 --repetition-penalty 100 --json && json_is sequences.0.text "$words" && json_is sequences.0.thinking "" &&
        printf 'w7\n' | "$nibble" chat harmony --max-tokens 8 --repetition-penalty 100 --quiet >out 2>err && [[ $(cat out) == "$words" ]] &&
        harmony_folder analysis && exits 0 generate harmony --chat w7 --max-tokens 8 --repetition-penalty 100 --json && json_is sequences.0.text "" && json_is sequences.0.thinking "$words" &&
        exits 0 generate harmony --chat w7 --max-tokens 8 --repetition-penalty 100 && [[ $(cat out) == "" ]] &&
        printf 'w7\n' | "$nibble" chat harmony --max-tokens 8 --repetition-penalty 100 --json >out 2>err && json_is messages.1.content "" && json_is messages.1.thinking "$words"
}
check "chat and generate --chat take GPT-OSS's answer out of its channels" harmony_answers
no_template() { exits 1 chat speaker/../words2 </dev/null && one_error "nibble: chat: " && says err "no chat template" "hint: --template"; }
cp -r speaker words2 && rm words2/chat_template.jinja
check "chat without a template is refused with a hint" no_template
chat_template_given() { printf 'w5\n' | "$nibble" chat words2 --template speaker/chat_template.jinja --max-tokens 3 --quiet >out && [[ $(wc -l <out) -eq 1 ]]; }
check "chat takes a template from a file" chat_template_given

# ---- names on the hub ----
export HOME=$work
unset HF_HOME HF_HUB_CACHE XDG_CACHE_HOME
hub_hint() { # TEXT ARGUMENT...: exits with 1 and this hint
    local text=$1
    shift
    exits 1 "$@" </dev/null && one_error "nibble: $1: " && says err "hint: $text"
}
get_model="hf download some-org/Some-1.5B --local-dir Some-1.5B" get_data="hf download --repo-type dataset some-org/rows --local-dir rows"
echo '{"text": "a"}' >one.jsonl
printf 'base_model: some-org/Some-1.5B\nadapter: lora\nlora_r: 2\nlora_target_linear: true\nlearning_rate: 1e-3\nmax_steps: 1\nsequence_len: 32\noutput_dir: hub-out\ndatasets:\n  - path: some-org/rows\n    type: completion\n' >hub.yml
hub_names() {
    for line in "inspect some-org/Some-1.5B" "diff some-org/Some-1.5B model" "plan some-org/Some-1.5B" "quantize some-org/Some-1.5B out-folder --format nf4" "dequantize some-org/Some-1.5B out-folder" \
        "merge some-org/Some-1.5B model out-folder" "merge model some-org/Some-1.5B out-folder" "export some-org/Some-1.5B out.gguf --type f32" \
        "tokenize some-org/Some-1.5B --text a" "template some-org/Some-1.5B --messages ids.json" "logits some-org/Some-1.5B --ids ids.json --out o" \
        "generate some-org/Some-1.5B --prompt a" "generate model --ids ids.json --adapter some-org/Some-1.5B" "chat some-org/Some-1.5B" \
        "eval some-org/Some-1.5B --data one.jsonl" "data hub.yml" "train hub.yml" "plan some-org/Some-1.5B --train hub.yml"; do
        hub_hint "nibble reads local folders" $line && says err "$get_model" || return 1
    done
    hub_hint "nibble reads local .json" train hub.yml --set base_model=speaker && says err "$get_data"
}
check "a name on the hub is told how to get it" hub_names
hub_cached() {
    mkdir -p .cache/huggingface/hub/models--some-org--Some-1.5B/{refs,snapshots/0a1b} && printf 0a1b >.cache/huggingface/hub/models--some-org--Some-1.5B/refs/main
    hub_hint "nibble reads local folders; the hub's cache has a copy: $work/.cache/huggingface/hub/models--some-org--Some-1.5B/snapshots/0a1b" plan some-org/Some-1.5B
    local status=$?
    rm -rf .cache
    return $status
}
check "a copy in the hub's cache is named" hub_cached
no_hub_name() { # a folder that is there, a file, a path
    mkdir -p here && for path in here/model data/rows.jsonl ./some-org/name /some/name a/b/c name; do
        exits 1 plan $path && ! grep -q hint err || { echo "$path: $(cat err)"; return 1; }
    done
}
check "other paths that are missing get no such hint" no_hub_name

soon() { # CONDITION: waits for it, half a minute at most
    for _ in {1..600}; do eval "$1" 2>/dev/null && return; sleep 0.05; done
    return 1
}
chat_signals() { # stops an answer, then leaves at the prompt
    rm -f lines out && mkfifo lines
    "$nibble" chat slow --max-tokens 4000 --threads 1 <lines >out 2>err &
    local pid=$! status size
    exec 4>lines
    echo 'w5 w6' >&4
    soon 'test -s out'
    kill -INT "$pid"
    soon '[[ $(wc -l <out) -eq 1 ]]'
    size=$(wc -c <out)
    echo 'w7' >&4
    soon "[[ \$(wc -c <out) -gt $size ]]"
    kill -INT "$pid"
    soon '[[ $(wc -l <out) -eq 2 ]]'
    sleep 0.3 # from the end of the answer to the prompt
    kill -INT "$pid"
    soon "! kill -0 $pid" || kill -KILL "$pid"
    wait "$pid"
    status=$?
    exec 4>&-
    [[ $status -eq 130 && $(wc -l <out) -eq 2 && $(grep -c . out) -eq 2 ]] || { echo "exit $status, $(wc -l <out) answers: $(cat err)"; return 1; }
    [[ $(cat err) == "nibble: chat: interrupted" ]] || { cat err; return 1; }
}
check "SIGINT stops an answer, and at the prompt the conversation" chat_signals

printf '{"text": "w1 w2 w3 w9"}\n\n{"text": "w1 w2 w3 w9"}\n{"text": "w4"}\n{"text": ""}\n' >texts.jsonl
printf 'w1 w2 w3 w9' >text.txt
echo '[[1, 2, 3, 9]]' >four.json
evaluates() { # against the logits of the same tokens
    exits 0 logits speaker --ids four.json --out four.safetensors --dtype f32 || return 1
    local header wanted
    header=$(od -An -tu8 -N8 four.safetensors)
    wanted=$(od -An -v -w4 -tf4 -j $((header + 8)) four.safetensors | awk '
        { z[NR - 1] = $1 }
        END {
            split("1 2 3 9", id)
            for (t = 0; t < 3; t++) {
                sum = 0; best = 0
                for (v = 0; v < 256; v++) { sum += exp(z[t * 256 + v]); if (z[t * 256 + v] > z[t * 256 + best]) best = v }
                loss += log(sum) - z[t * 256 + id[t + 2]]; hits += best == id[t + 2]
            }
            printf "%.5f %.3f %.4f", loss / 3, exp(loss / 3), hits / 3
        }')
    for data in text.txt texts.jsonl; do
        exits 0 eval speaker --data $data --dtype f32 --json && one_document || return 1
        case $data in
            *.txt) silent err && json_is dropped 0 ;;
            *) says err "nibble: eval: 2 rows were dropped: 2 of fewer than two tokens" && json_is dropped 2 && json_is dropped_too_short 2 ;;
        esac || return 1
        local got
        got=$(printf '%.5f %.3f %.4f' "$("$json_get" out loss)" "$("$json_get" out perplexity)" "$("$json_get" out accuracy)")
        [[ $got == "$wanted" ]] || { echo "$data: '$got' instead of '$wanted'"; return 1; }
    done
    json_is tokens 6 && json_is sequences 2 && json_is truncated 0
}
check "eval is the loss of the logits, over all texts" evaluates
eval_rows() {
    printf '{"body": "%s"}\n' "$(printf 'w8 w3 %.0s' {1..30})" >long.jsonl && exits 0 eval speaker --data long.jsonl --field body --json &&
        json_is tokens 39 && json_is truncated 1 && says err "1 of 1 texts were cut to 40 tokens" &&
        exits 0 eval speaker --data long.jsonl --field body --json --max-tokens 9 && json_is tokens 8 &&
        printf '{"messages": [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6 w7"}]}\n' >chats.jsonl &&
        exits 0 eval speaker --data chats.jsonl --json --all && json_is tokens 4 && json_is all_tokens 4 && json_is counted all && cp out one &&
        exits 0 eval speaker --data chats.jsonl --json --all --threads 1 && cmp out one
}
check "eval takes fields and messages, and cuts what is too long" eval_rows
eval_limit() { exits 0 eval speaker --data text.txt --fail-above 1e9 --quiet && exits 1 eval speaker --data text.txt --fail-above 1.5 --json && one_document && json_is tokens 3 && says err "above 1.5"; }
check "--fail-above decides the exit status" eval_limit
eval_refuses() {
    printf '{"text": "w1 w2"}\n{"txt": "w1 w2"}\n' >bad.jsonl && exits 1 eval speaker --data bad.jsonl && one_error "nibble: eval: bad.jsonl:2: no text" &&
        printf '{"text": "w1 w2"}\nw1\n' >bad.jsonl && exits 1 eval speaker --data bad.jsonl --json && one_error "nibble: eval: bad.jsonl:2: " && one_document &&
        printf '{"text": "w1"}\n' >bad.jsonl && exits 1 eval speaker --data bad.jsonl && one_error "nibble: eval: bad.jsonl: no text of two" &&
        exits 1 eval speaker --data absent.jsonl && one_error "nibble: eval: absent.jsonl" && exits 2 eval speaker
}
check "eval names the row that is wrong" eval_refuses

# ---- train ----

printf '{"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}\n{"input_ids": [9, 3], "labels": [9, 3]}\n' >rows.jsonl
cat >run.yml <<'YAML'
base_model: speaker
datasets: [{path: rows.jsonl, type: pretokenized}]
learning_rate: 0.001
max_steps: 3
output_dir: trained
report: false
YAML
train_stopped() { # TERM as well as INT: the step is finished and saved, and the whole command goes on
    local signal pid status
    for signal in INT TERM; do
        rm -rf "a b"
        "$nibble" train run.yml --set "output_dir=a b" --set max_steps=100000000 --set save_steps=1000000 >out 2>err &
        pid=$!
        soon 'test -s "a b/metrics.jsonl"' && kill -$signal "$pid"
        wait "$pid"
        status=$?
        [[ $status -eq 130 ]] && says err "interrupted after step" "saved in a b/checkpoint-" \
            "hint: nibble train run.yml --set 'output_dir=a b' --set max_steps=100000000 --set save_steps=1000000 --resume goes on" || return 1
        [[ $(ls "a b") == *checkpoint-* ]] || return 1
    done
}
check "train stops after a step and repeats the options that go on" train_stopped
train_quiet_saves() { # of a whole model: its bytes have no line of their own
    exits 0 train run.yml --set save_steps=1 && ! grep -q '%' err && says err "saved trained/checkpoint-3"
}
check "train says what it saves, and nothing of the bytes" train_quiet_saves
train_best() { # the step of the result is named wherever one looks
    local best="--set output_dir=best --set adapter=lora --set lora_r=2 --set lora_target_linear=true --set val_set_size=1 --set eval_steps=1 --set learning_rate=1 --set lr_scheduler=constant --set max_steps=6"
    rm -rf best && exits 0 train run.yml $best --set load_best_model_at_end=true &&
        says err "step 1  evaluation loss" ", the best so far" && says out "the result is step " "'s, the best: evaluation loss " && grep -q '^# result: step [1-6] of 6, eval_loss .*, the best$' best/run.yml &&
        exits 0 train run.yml $best --set load_best_model_at_end=true --resume --json && one_document && says out '"result_step": ' '"best_eval_loss": ' &&
        exits 2 train run.yml --set load_best_model_at_end=true && says err "load_best_model_at_end needs val_set_size" &&
        exits 2 train run.yml $best --set metric_for_best_model=eval_accuracy && says err "metric_for_best_model: \"eval_accuracy\" is not allowed; allowed: eval_loss, loss"
}
check "train names the best step that the result is of" train_best
train_own_folder() {
    exits 2 train run.yml --set output_dir=speaker && one_error "nibble: train: run.yml: output_dir: speaker would take the place of base_model" &&
        [[ -f speaker/model.safetensors && ! -e speaker/earlier-1 ]]
}
check "train never writes into the folder of its model" train_own_folder

train_changed() { # each key that decides about bytes, beside --resume
    local change adapter="--set adapter=lora --set lora_r=2 --set lora_target_modules=[q_proj,v_proj] --set output_dir=changed"
    rm -rf changed && exits 0 train run.yml $adapter || return 1
    for change in lora_r=4 lora_alpha=4 lora_dropout=0.1 peft_use_rslora=true peft_use_dora=true lora_target_modules=[q_proj] \
        bnb_4bit_quant_type=fp4 load_in_4bit=true seed=43 learning_rate=0.002 bf16=true; do
        exits 2 train run.yml $adapter --set max_steps=4 --resume --set $change &&
            says err "changed/checkpoint-3: a key has changed since it was saved: ${change%%=*} was " "hint: set it back" || return 1
    done
    ! grep -q "max_steps: 4" changed/run.yml &&
        exits 2 train run.yml $adapter --resume --set seed=1 --set lora_r=4 --set learning_rate=1 && says err "keys have changed since it was saved: lora_r, seed, learning_rate" &&
        exits 2 train run.yml $adapter --resume --allow-changes --set lora_r=4 && says err "lora_r was 2, is 4" &&
        exits 2 train run.yml $adapter --allow-changes && says err "--allow-changes needs --resume" &&
        exits 0 train run.yml $adapter --resume --allow-changes --set max_steps=4 --set learning_rate=0.002 &&
        says changed/run.yml "learning_rate: 0.002" "# - step 3: learning_rate was 0.001, is 0.002"
}
check "a key that decides about bytes does not change in the middle of a run" train_changed
train_other_base() {
    rm -rf changed other && cp -r speaker other && exits 0 train run.yml --set base_model=other --set output_dir=changed &&
        exits 0 train run.yml --set output_dir=changed --resume --set max_steps=4 &&
        printf '\x01' | dd of=other/model.safetensors bs=1 seek=$(($(stat -c %s other/model.safetensors) - 1)) conv=notrunc status=none &&
        exits 2 train run.yml --set base_model=other --set output_dir=changed --resume --set max_steps=5 && says err "base_model was files with checksum"
}
check "a base model with other bytes is refused" train_other_base
train_edited_state() {
    rm -rf changed && exits 0 train run.yml --set output_dir=changed && sed -i 's/"step": 3/"step": 2/' changed/checkpoint-3/nibble_state.json &&
        exits 1 train run.yml --set output_dir=changed --set max_steps=4 --set resume_from_checkpoint=changed/checkpoint-3 && says err "nibble_state.json: damaged or edited" &&
        exits 0 train run.yml --set output_dir=changed --set max_steps=4 --resume && says err "changed/checkpoint-3 is skipped" "damaged or edited"
}
check "an edited state of a checkpoint is noticed" train_edited_state

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
