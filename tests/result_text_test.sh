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

# ---- what a run leaves, and who takes it ----

# A run with a template and special tokens of its own.
cat >own.yml <<YAML
base_model: $model
datasets: [{path: chats.jsonl, type: chat_template}]
chat_template: "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
special_tokens: {eos_token: "<|endoftext|>", pad_token: "<|im_start|>"}
learning_rate: 0.001
max_steps: 2
save_steps: 1
adapter: lora
lora_target_linear: true
output_dir: own
report: false
YAML
printf '%s' "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}" >own.jinja
trained_text() { # FOLDER: the files of the run's text
    local folder=$1
    cmp "$folder/chat_template.jinja" own.jinja && cmp "$folder/tokenizer.json" "$model/tokenizer.json" || return 1
    equal "$folder: eos_token" "$("$json_get" "$folder/tokenizer_config.json" eos_token)" "<|endoftext|>" &&
        equal "$folder: pad_token" "$("$json_get" "$folder/tokenizer_config.json" pad_token)" "<|im_start|>" &&
        equal "$folder: pad_token_id" "$("$json_get" "$folder/generation_config.json" pad_token_id)" 510 &&
        equal "$folder: tokenizer_class" "$("$json_get" "$folder/tokenizer_config.json" tokenizer_class)" PreTrainedTokenizerFast
}
config_ids() { # FOLDER: those of config.json
    equal "$1: eos_token_id" "$("$json_get" "$1/config.json" eos_token_id)" 509 &&
        equal "$1: pad_token_id" "$("$json_get" "$1/config.json" pad_token_id)" 510
}
adapter_text() { runs train own.yml --quiet && trained_text own && trained_text own/checkpoint-1 && trained_text own/checkpoint-2; }
check "an adapter's folder and its checkpoints carry tokenizer, template and special tokens" adapter_text
full_text() { runs train own.yml --quiet --set adapter= --set lora_target_linear= --set output_dir=full && trained_text full && config_ids full && trained_text full/checkpoint-1; }
check "a whole model carries them, and config.json their ids" full_text
plain_text() { # a run that changes nothing leaves the base's files
    runs train own.yml --quiet --set chat_template=tokenizer_default --set special_tokens= --set output_dir=plain || return 1
    for file in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json; do cmp "plain/$file" "$model/$file" || return 1; done
}
check "a run without a template of its own leaves the base's files" plain_text
turn_ends() { # eot_tokens end generation with the result, also with what is made of it
    printf '%s' '{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_start|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}' >turns.jinja
    sed '/^chat_template:/d;/^special_tokens:/d' own.yml >turns.yml && printf 'chat_template: jinja\nchat_template_jinja: turns.jinja\neot_tokens: ["<|im_start|>"]\n' >>turns.yml
    runs train turns.yml --quiet --set output_dir=turns && runs merge "$model" turns merged-turns && runs train turns.yml --quiet --set adapter= --set lora_target_linear= --set output_dir=turns-full || return 1
    for folder in turns turns/checkpoint-1 merged-turns turns-full; do
        equal "$folder" "$(tr -d ' \n' <$folder/generation_config.json | grep -o '"eos_token_id":\[[^]]*]')" '"eos_token_id":[511,509,510]' || return 1
    done
    cp -r "$model" unsaid && rm unsaid/generation_config.json && runs train turns.yml --quiet --set base_model=unsaid --set output_dir=turns-unsaid &&
        equal "without a generation_config.json" "$(tr -d ' \n' <turns-unsaid/generation_config.json)" '{"eos_token_id":[511,510]}'
}
check "eot_tokens are among the ends of generation_config.json" turn_ends
again() { # a second run into the same folder sets them aside with the rest
    cp -r plain twice && runs train own.yml --quiet --set output_dir=twice && trained_text twice && cmp twice/earlier-1/chat_template.jinja "$model/chat_template.jinja"
}
check "what an earlier run left of them is set aside" again

modelfile() { # Ollama's file of merged, full and adapter: the run's template with its default system prompt and tools
    cat >tools.jinja <<'JINJA'
{% if messages[0].role != 'system' %}<|im_start|>system
You are Nib.{% if tools %} Tools:{% for t in tools %} {{ t | tojson }}{% endfor %}{% endif %}<|endoftext|>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.role == 'system' and tools %} Tools:{% for t in tools %} {{ t | tojson }}{% endfor %}{% endif %}<|endoftext|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
JINJA
    sed '/^chat_template:/d' own.yml >tools.yml && printf 'chat_template: jinja\nchat_template_jinja: tools.jinja\n' >>tools.yml
    runs train tools.yml --quiet --set output_dir=tools && runs train tools.yml --quiet --set adapter= --set lora_target_linear= --set output_dir=tools-full && runs merge "$model" tools tools-merged || return 1
    mkdir m1 m2 m3 m4
    runs export tools-merged m1/x.gguf --type q8_0 --ollama && runs export tools-full m2/x.gguf --type q8_0 --ollama && runs export "$model" m3/x.gguf --type q8_0 --adapter tools --ollama &&
        runs export "$model" m4/x.gguf --adapter tools --ollama && cmp m1/Modelfile m2/Modelfile && cmp m1/Modelfile m3/Modelfile || return 1
    for folder in m1 m4; do
        says $folder/Modelfile 'SYSTEM """You are Nib."""' '{{ if $.Tools }} Tools: {{ range $i, $tool := $.Tools }}' '{{ if eq .Role "user" }}<|im_start|>user' 'PARAMETER stop "<|endoftext|>"' || return 1
    done
    says m4/Modelfile "ADAPTER ./x.gguf" && cp -r "$model" odd && printf '%s' '{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}' >odd/chat_template.jinja && mkdir m5 &&
        runs export odd m5/x.gguf --type q8_0 --ollama && says err "warning: Modelfile: the chat template cannot be written in Ollama's language" && ! grep -q TEMPLATE m5/Modelfile
}
check "a Modelfile keeps the run's template, its default system prompt and tools" modelfile

# What the adapter's template makes of a message, answered by the base with the adapter.
wanted=$("$nibble" generate "$model" --adapter own --prompt "[user]Count from 3 to 8.<|endoftext|>[assistant]" --max-tokens 6 --quiet 2>/dev/null)
adapted() { # the adapter's template is used, and said to be
    runs generate "$model" --adapter own --chat "Count from 3 to 8." --max-tokens 6 && equal answer "$(cat out)" "$wanted" &&
        equal "what it says" "$(cat err)" "nibble: generate: the chat template is the adapter's: own/chat_template.jinja" &&
        runs generate "$model" --adapter own --chat "Count from 3 to 8." --max-tokens 6 --quiet && equal quiet "$(cat err)" ""
}
check "generate --adapter uses the adapter's template and says so" adapted
chat_adapted() {
    echo "Count from 3 to 8." | "$nibble" chat "$model" --adapter own --max-tokens 6 >out 2>err && equal answer "$(cat out)" "$wanted" &&
        says err "the chat template is the adapter's: own/chat_template.jinja"
}
check "chat does so" chat_adapted
eval_adapted() {
    runs eval "$model" --adapter own --data chats.jsonl --json --all && says err "the chat template is the adapter's: own/chat_template.jinja" && cp out one &&
        printf '%s\n' '{"text": "[user]Count from 3 to 8.<|endoftext|>[assistant]3 4 5 6 7 8<|endoftext|>"}' >rendered.jsonl &&
        runs eval "$model" --adapter own --data rendered.jsonl --json && cmp out one
}
check "eval does so" eval_adapted
eval_answers() { # the tokens that training counts; what is dropped is told by its reason
    printf '%s\n' '{"messages": [{"role": "user", "content": "Hello there"}]}' '{"messages": [{"role": "user", "content": "Count from 3 to 8."}, {"role": "assistant", "content": "3 4 5 6 7 8"}, {"role": "user", "content": "And so on, and so on, and so on?"}, {"role": "assistant", "content": "9"}]}' >more.jsonl
    cat chats.jsonl more.jsonl >all.jsonl
    runs data own.yml --json --set datasets.0.path=all.jsonl && trained=$(get trained_tokens) && runs eval "$model" --adapter own --data all.jsonl --json &&
        equal tokens "$(get tokens)" "$trained" && equal counted "$(get counted)" answers && equal sequences "$(get sequences)" 2 && equal dropped "$(get dropped).$(get dropped_unanswered)" 1.1 &&
        says err "1 row was dropped: 1 without an answer" && tokens=$(get tokens) all=$(get all_tokens) && [[ $tokens -lt $all ]] &&
        runs eval "$model" --adapter own --data all.jsonl && says out "over the answers: $tokens of the $all tokens of 2 conversations" &&
        runs eval "$model" --adapter own --data all.jsonl --all && says out "over all " " tokens of 3 conversations" || return 1
    # Cut: the first answer of each is judged, or none.
    runs eval "$model" --data all.jsonl --max-tokens 35 --json && equal cut "$(get truncated).$(get sequences).$(get dropped_too_long)" 1.2.0 && says err "1 of 2 conversations were cut to 35 tokens" &&
        fails 1 eval "$model" --data all.jsonl --max-tokens 9 && says err "all.jsonl: nothing to count: 3 rows were dropped: 1 without an answer, 2 whose answers begin after the first 9 tokens" "--all counts every token" &&
        printf '%s\n' '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant"}]}' >broken.jsonl && fails 1 eval "$model" --data broken.jsonl && says err 'nibble: eval: broken.jsonl:1: message 2: "content" is missing'
}
check "eval of conversations counts the answers, as training does" eval_answers
given_template() { # before the adapter's; --system is the first message
    printf '%s' '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}' >given.jinja
    runs generate "$model" --adapter own --prompt "<system>Be brief.<user>Hi" --max-tokens 4 && cp out one &&
        runs generate "$model" --adapter own --chat Hi --system "Be brief." --template given.jinja --max-tokens 4 && cmp out one && equal "what it says" "$(cat err)" "" &&
        fails 2 generate "$model" --prompt Hi --system x && fails 2 generate "$model" --prompt Hi --template given.jinja
}
check "generate takes --template and --system" given_template
ends() { # the adapter's eos ends an answer, whoever saved the folder
    echo '[[72, 101]]' >start.json
    runs generate "$model" --adapter own --ids start.json --max-tokens 1 --json && local next && next=$(get sequences.0.ids.0) || return 1
    echo "[[$next]]" >next.json && local word && word=$("$nibble" tokenize "$model" --decode next.json) || return 1
    cp -r own other && rm other/generation_config.json && sed -i "s/\"eos_token\": [^,]*/\"eos_token\": \"$word\"/" other/tokenizer_config.json || return 1
    runs generate "$model" --adapter other --ids start.json --max-tokens 4 --json && equal "$word" "$(get sequences.0.finish)" stop
}
check "an answer ends at the eos_token of the adapter's folder" ends

merged() {
    runs merge "$model" own merged && trained_text merged && config_ids merged && says err "tokenizer and chat template are the adapter's: own" &&
        [[ -s merged/MODEL.md ]] && runs generate merged --chat "Count from 3 to 8." --max-tokens 6
}
check "merge takes tokenizer and template from the adapter and says so" merged
merged_plain() { # an adapter without them
    mkdir bare && cp own/adapter_* bare && runs merge "$model" bare merged-bare && equal "what it says" "$(cat err)" "" &&
        cmp merged-bare/chat_template.jinja "$model/chat_template.jinja" && cmp merged-bare/tokenizer_config.json "$model/tokenizer_config.json"
}
check "merge with an adapter that has none keeps the base's" merged_plain
exported() {
    runs export "$model" own.gguf --adapter own --type f16 && says err "tokenizer and chat template are the adapter's: own" &&
        runs template own.gguf --messages chat.json && equal template "$(cat out)" "[user]Count from 3 to 8.<|endoftext|>" &&
        runs export merged merged.gguf --type f16 && runs template merged.gguf --messages chat.json && equal template "$(cat out)" "[user]Count from 3 to 8.<|endoftext|>"
}
check "export takes the template from the adapter and says so" exported
too_large() { # a tokenizer with a token that the model has no row for
    cp -r own large && sed -i 's/"added_tokens": \[/"added_tokens": [{"id": 512, "content": "<new>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},/' large/tokenizer.json
    runs generate "$model" --adapter large --chat "Count from 3 to 8." --max-tokens 6 && equal answer "$(cat out)" "$wanted" &&
        says err "large/tokenizer.json has 513 tokens, the model has 512 rows" "the chat template is the adapter's: large/chat_template.jinja" &&
        runs merge "$model" large merged-large && says err "large/tokenizer.json has 513 tokens" && cmp merged-large/tokenizer.json "$model/tokenizer.json" &&
        cmp merged-large/chat_template.jinja own.jinja
}
check "an adapter's tokenizer with more tokens than the model is told and not used" too_large

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
