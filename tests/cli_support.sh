# cli_support.sh - what the tests of the command line share; sourced by cli_test.sh and cli_usage_test.sh with their
# arguments NIBBLE MAKE_CHECKPOINT [JSON_GET]. JSON_GET lies beside MAKE_CHECKPOINT unless told otherwise.
#
# One line per check; the last line counts them. A check is a function that returns 0 when all is well and otherwise
# says what is not. Checks run in an empty folder that holds the models made below.
set -u
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
export LC_ALL=C TERM=xterm
unset NO_COLOR NIBBLE_ISA

if [[ $# -lt 2 || $# -gt 3 ]]; then
    echo "usage: ${0##*/} NIBBLE MAKE_CHECKPOINT [JSON_GET]" >&2
    exit 2
fi
nibble=$(realpath "$1") make_checkpoint=$(realpath "$2") json_get=$(realpath "${3:-$(dirname "$2")/json_get}")
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-cli-test.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2

passed=0 failed=0

# check SENTENCE FUNCTION [ARGUMENT...]
check() {
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

skip() { echo "skip  $1: $2"; }

# ---- what checks are made of ----

# Runs nibble; its streams are in the files out and err. Succeeds when the exit status is the wanted one.
exits() {
    local wanted=$1 got
    shift
    "$nibble" "$@" >out 2>err
    got=$?
    [[ $got -eq $wanted ]] && return 0
    echo "nibble $*: exit $got instead of $wanted, said: $(head -c 400 err)"
    return 1
}

# The error on standard error: one line with the right opening, and at most a hint.
one_error() {
    local opening=$1 lines
    lines=$(wc -l <err)
    [[ $(head -n 1 err) == "$opening"* ]] || { echo "does not open with '$opening': $(cat err)"; return 1; }
    [[ $lines -le 2 ]] || { echo "$lines lines of error: $(cat err)"; return 1; }
    [[ $lines -eq 1 || $(tail -n 1 err) == "hint: "* ]] || { echo "the second line is no hint: $(cat err)"; return 1; }
}

says() { # FILE TEXT...: every text is in the file
    local file=$1 text
    shift
    for text; do
        grep -qF -- "$text" "$file" || { echo "$file does not say '$text': $(head -c 600 "$file")"; return 1; }
    done
}

silent() { # FILE: it is empty
    [[ ! -s $1 ]] || { echo "$1 is not empty: $(head -c 300 "$1")"; return 1; }
}

json_is() { # PATH VALUE, of the document on standard output
    local got
    got=$("$json_get" out "$1") || { echo "no $1 in: $(head -c 300 out)"; return 1; }
    [[ $got == "$2" ]] || { echo "$1 is $got instead of $2"; return 1; }
}

one_document() { "$json_get" out || { echo "standard output is not one JSON document: $(head -c 300 out)"; return 1; }; }

absent() {
    local path
    for path; do
        [[ ! -e $path && ! -L $path ]] || { echo "$path was left"; return 1; }
    done
}

empty_folder() { [[ -z $(ls -A "$1") ]] || { echo "left in $1: $(ls -A "$1")"; return 1; }; }

# Wrong usage, with and without --json. The opening may name the command.
usage_error() {
    exits 2 "$@" && one_error "nibble: " && silent out &&
        exits 2 --json "$@" && one_error "nibble: " && one_document && json_is error.code NBL_ERROR_ARGUMENT &&
        "$json_get" out error.message >message && says err "$(cat message)"
}

usage_hint() { # HINT ARGUMENT...
    local hint=$1
    shift
    usage_error "$@" && says err "$hint"
}

# A failure, with and without --json; nothing may appear under the name "out-folder".
refused() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    exits 1 "$@" && one_error "nibble: $1: " && says err "$text" && silent out && absent out-folder &&
        exits 1 "$@" --json && one_error "nibble: $1: " && one_document && json_is error.code "$code" && absent out-folder
}

"$make_checkpoint" model --dtype bf16 --seed 1 || exit 2
"$make_checkpoint" sharded --dtype bf16 --seed 1 --shards 3 || exit 2
"$make_checkpoint" other --dtype bf16 --seed 2 || exit 2
"$make_checkpoint" broken-values --dtype f16 --nan || exit 2
"$make_checkpoint" many --layers 300 --hidden 8 --intermediate 8 --vocab 8 || exit 2
"$make_checkpoint" large --layers 4 --hidden 1024 --intermediate 2816 --vocab 1024 --shards 2 || exit 2
