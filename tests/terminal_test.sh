#!/usr/bin/env bash
# The command on a terminal (tests/pty_run.c): the live line keeps within the terminal's width, also while that changes, and
# says what is done; lines of a chat are edited, remembered and given up; the terminal is left as it was.
#
#   tests/terminal_test.sh BUILD_DIR
set -euo pipefail
export CUDA_VISIBLE_DEVICES= TERM=xterm
unset EDITRC NO_COLOR
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export HOME=$work
nibble=$build/nibble pty=$build/tests/pty_run model=$root/models/nibble-tiny

fail() { echo "terminal_test: $*"; tail -c 3000 log | cat -v; cat err; exit 1; }
# on CODE COLUMNS COMMAND...: what is typed comes from standard input, what is seen goes to log.
on() {
    local wanted=$1 columns=$2 code=0
    shift 2
    "$pty" "$columns" 24 "$@" >log 2>err || code=$?
    [ $code = "$wanted" ] || fail "exit status $code, not $wanted: $*"
    [ ! -s err ] || fail "$*"
}
says() { for text in "$@"; do grep -aqF -- "$text" log || fail "'$text' was not said"; done; }
silent() { for text in "$@"; do ! grep -aqF -- "$text" log || fail "'$text' was said"; done; }

# ---- the live line ----
train=("$nibble" train "$root/examples/train/sums.yml" --set base_model="$model"
    --set datasets.0.path="$root/examples/train/sums.jsonl" --set val_set_size=0.2 --set micro_batch_size=8)
on 0 100 "${train[@]}" --set max_steps=4 --set save_steps=2 --set eval_steps=2 --set output_dir=run </dev/null
says "reading data" "opening the model" "planning" "writing samples" "step 1/4  epoch" "evaluating 0/" "saving checkpoint-2  step 2/4" \
    "saved run/checkpoint-2" "saving the adapter" "writing report"
on 0 10 "${train[@]}" --set max_steps=2 --set output_dir=narrow </dev/null
says "writin..."
on 0 300 "${train[@]}" --set max_steps=2 --set output_dir=wide </dev/null
printf '%s\n' "expect step " "size 60 24" "expect loss" "pause 200" "size 12 24" "pause 200" "expect step " "size 300 10" "pause 200" \
    "expect memory" "size 10 5" "pause 400" "send \\x03" "expect stopping after this step" |
    on 130 120 "${train[@]}" --set max_steps=100000 --set output_dir=resized
TERM=dumb on 0 40 "${train[@]}" --set max_steps=2 --set output_dir=dumb </dev/null
silent "writing samples" $'\e'

# Names of wide characters: 2 columns each.
name=$(printf '重み%.0s' $(seq 40))
size=150000000
header='{"'$name'.1":{"dtype":"BF16","shape":['$((size / 2))'],"data_offsets":[0,'$size']},"'$name'.2":{"dtype":"BF16","shape":['$((size / 2))'],"data_offsets":['$size','$((2 * size))']}}'
length=$(printf %s "$header" | wc -c)
{ printf "\\x$(printf %02x $((length & 255)))\\x$(printf %02x $((length >> 8)))\0\0\0\0\0\0"; printf %s "$header"; } >big.safetensors
truncate -s $((length + 8 + 2 * size)) big.safetensors
for columns in 31 80; do on 0 $columns "$nibble" diff big.safetensors big.safetensors </dev/null; done
says "重み" "..."

# ---- lines of a chat ----
chat="'$nibble' chat '$model' --json --max-tokens 2"
turns() { "$build/json_get" out.json "messages.$1.content"; }
has_turn() { [ "$(turns "$1")" = "$2" ] || fail "turn $1 is '$(turns "$1")', not '$2'"; }
printf '%s\n' "expect > " "send one\\r" "expect > " "send two\\r" "expect > " "send \\x04" |
    TERM=dumb on 0 80 bash -c "$chat >out.json"
has_turn 0 one
has_turn 2 two
printf 'one\ntwo\n' | "$nibble" chat "$model" --json --quiet --max-tokens 2 >out.json
has_turn 2 two
if ! "$nibble" --json doctor | grep -q libedit; then
    echo "terminal_test: passed; built without libedit, so line editing was not tested"
    exit 0
fi

prompt='expect \e[?2004h> ' # the mark of a line that is edited
long=$(printf 'word %.0s' $(seq 40))
{
    printf '%s\n' "$prompt" "send ab\\e[Dx\\r" "$prompt" # left, insert
    printf '%s\n' "send \\xe6\\x97\\xa5\\xe6\\x9c\\xac\\xf0\\x9f\\x98\\x80\\x7f\\xff!\\r" "$prompt"
    printf '%s\n' "send \\e[A\\e[A\\x05y\\r" "$prompt"     # up, up: "axb"
    printf '%s\n' "send dropped" "expect dropped" "send \\x03" "expect ^C" "$prompt"
    printf '%s\n' "send \\e[200~a\\rb\\tc\\x07\\e[201~d\\r" "$prompt"
    printf '%s\n' "size 20 10" "send $long" "pause 100" "size 50 10" "send $long\\r" "$prompt" "send /quit\\r"
} | on 0 80 bash -c "$chat --history turns >out.json"
has_turn 0 axb
has_turn 2 "日本!"
has_turn 4 axby
has_turn 6 $'a\nb\tcd'
has_turn 8 "$long$long"
[ "$(wc -l <turns)" = 6 ] && [ "$(sed -n 4p turns)" = '"a\nb\tcd"' ] || fail "the history is $(cat turns)"
[ "$(stat -c %a turns)" = 600 ] || fail "others can read the history"
printf '%s\n' "$prompt" "send \\e[A\\e[A\\e[A\\r" "$prompt" "send \\x04" | on 0 80 bash -c "$chat --history turns >out.json"
has_turn 0 $'a\nb\tcd'

# A line that is very long, in one go.
printf '%s\n' "$prompt" "send $(printf '0123456789%.0s' $(seq 1000))" "pause 200" "send \\x15short\\r" "$prompt" "send \\x04" |
    on 0 80 bash -c "$chat >out.json"
has_turn 0 short

# Ways to leave; the terminal has its echo again (pty_run looks).
printf '%s\n' "$prompt" "send \\x03" "expect interrupted" | on 130 80 "$nibble" chat "$model"
for signal in TERM HUP; do
    rm -f pid log
    (
        until [ -s pid ] && grep -aqs typed log; do sleep 0.1; done
        kill -$signal "$(cat pid)"
    ) &
    printf '%s\n' "$prompt" "send typed" "expect interrupted" |
        on 130 80 bash -c "echo \$\$ >pid; exec '$nibble' chat '$model'"
    wait
done
: >theirs && echo 'no history' >theirs
on 1 80 "$nibble" chat "$model" --history theirs </dev/null
says "line 1 is not a JSON string"
on 2 80 "$nibble" chat "$model" --history . </dev/null
on 2 80 "$nibble" chat "$model" --history /dev/null </dev/null
[ "$(cat theirs)" = 'no history' ] || fail "a file that is no history was written"
echo "terminal_test: passed"
