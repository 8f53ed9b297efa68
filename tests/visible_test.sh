#!/usr/bin/env bash
# What files and models say is shown as text: no name, message or generated text steers a terminal or hides a part of
# itself. Into a pipe the bytes of texts are kept.
#
#   tests/visible_test.sh ROOT NIBBLE MAKE_CHECKPOINT
#
# Needs `script` for a terminal, else it is skipped (status 77). The last line is `N passed, M failed`.
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
[ $# -eq 3 ] || { echo "usage: tests/visible_test.sh ROOT NIBBLE MAKE_CHECKPOINT" >&2; exit 2; }
command -v script >/dev/null || { echo "notice: skipped: no script command"; exit 77; }
root=$1 nibble=$2 make_checkpoint=$3
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
cd "$work"
export TERM=xterm NO_COLOR=1 LC_ALL=C.UTF-8

esc=$'\x1b' csi=$'\xc2\x9b' rlo=$'\xe2\x80\xae' isolate=$'\xe2\x81\xa6' mark=$'\xd8\x9c'
evil="e${esc}]0;owned${csi}31m${rlo}v${isolate}i${mark}l"
shown='e\x1b]0;owned\u009b31m\u202ev\u2066i\u061cl'

verdict() { # TITLE 0|1
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1: $(head -c 600 seen | cat -v)"; fi
}

# raw: is there still something in `seen` that steers a terminal? Our own clearing of a line is none.
raw() { sed "s/$esc\[[JK]//g; s/\r//g" seen | grep -qE "$esc|$csi|$rlo|$isolate|$mark"; }

# terminal TITLE TEXT COMMAND...: the command on a terminal shows TEXT and nothing that steers it.
terminal() {
    local title=$1 text=$2 bad=0 word line=
    shift 2
    for word in "$@"; do line+=" $(printf '%q' "$word")"; done
    SHELL=/bin/bash script -qec "$line" /dev/null </dev/null >seen 2>&1 || true
    raw && bad=1
    grep -qF -- "$text" seen || bad=1
    verdict "$title" $bad
}

# A model whose tokens, file names and config say it all.
"$make_checkpoint" "$evil" --vocab 64
{
    printf '{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{'
    for i in $(seq 0 63); do printf '%s"\\u001b[31m%d\\u009b\\u202e":%d' "$([ "$i" = 0 ] || echo ,)" "$i" "$i"; done
    printf '},"unk_token":"\\u001b[31m0\\u009b\\u202e"}}'
} >"$evil/tokenizer.json"
echo '{}' >"$evil/tokenizer_config.json"
printf '{{ messages[0].content }}%s' "$evil" >"$evil/chat_template.jinja"
echo '[{"role": "user", "content": "hi"}]' >messages.json
echo '[[1, 2]]' >ids.json
token='\x1b[31m'

terminal "inspect" "$shown" "$nibble" inspect "$evil"
terminal "inspect --json" 'no such e\\x1b]0;owned\\u009b31m' "$nibble" inspect "no such $evil" --json
terminal "no such folder" "$shown" "$nibble" inspect "no such $evil"
terminal "an unknown command" "$shown" "$nibble" "$evil"
terminal "an unknown option" "$shown" "$nibble" inspect "--$evil"
terminal "quantize" "out $shown" "$nibble" quantize "$evil" "out $evil" --format nf4
terminal "diff" "tensors" "$nibble" diff "$evil" "out $evil"
terminal "template" "hi$shown" "$nibble" template "$evil" --messages messages.json
terminal "template --json" 'owned\u009b31m\u202e' "$nibble" template "$evil" --messages messages.json --json
terminal "tokenize --decode" "$token" "$nibble" tokenize "$evil" --decode ids.json
terminal "generate" "$token" "$nibble" generate "$evil" --ids ids.json --max-tokens 3
terminal "generate, a stream" "$token" "$nibble" generate "$evil" --prompt x --max-tokens 3
terminal "generate --json" '\u009b\u202e' "$nibble" generate "$evil" --prompt x --max-tokens 3 --json

# Into a pipe the bytes are those of the model.
"$nibble" generate "$evil" --prompt x --max-tokens 3 >seen
bad=0
grep -q "$esc\[31m[0-9]*$csi$rlo" seen || bad=1
verdict "generate into a pipe" $bad
"$nibble" template "$evil" --messages messages.json >seen
bad=0
[ "$(cat seen)" = "hi$evil" ] || bad=1
verdict "template into a pipe" $bad

# A conversation.
printf 'hello\n/quit\n' >lines
SHELL=/bin/bash script -qec "$(printf '%q' "$nibble") chat $(printf '%q' "$evil") --max-tokens 3 <lines" /dev/null </dev/null >seen 2>&1 || true
bad=0
raw && bad=1
grep -qF -- "$token" seen || bad=1
verdict "chat" $bad

# A run: names of data, keys and values; its messages, its preview and its report.
cat >"$evil.jsonl" <<END
{"messages": [{"role": "user", "content": "One? ${rlo}x"}, {"role": "assistant", "content": "Two ${csi}31m"}]}
END
cat >run.yml <<END
base_model: $root/models/nibble-tiny
adapter: lora
lora_r: 4
lora_target_linear: true
datasets:
  - path: "e\x1b]0;owned\x9b31m\u202ev\u2066i\u061cl.jsonl"
    type: chat_template
sequence_len: 128
max_steps: 1
learning_rate: 1e-3
output_dir: "out\x1b\u202e"
END
terminal "data" 'u202ex' "$nibble" data run.yml
terminal "train" 'out\x1b\u202e' "$nibble" train run.yml --samples 1
cp "out$esc$rlo/report.html" seen
bad=0
raw && bad=1
grep -qF "${shown//\\/\\\\}.jsonl" seen || bad=1 # a backslash in JSON is two
verdict "report.html" $bad
echo "k$rlo: 1" >bad.yml
terminal "an unknown key" 'k\u202e' "$nibble" train bad.yml

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
