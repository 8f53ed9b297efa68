#!/usr/bin/env bash
# That `nibble-ops check` sees what is wrong: a golden file that passes, then with one thing in its header changed at a time.
#
#     golden_test.sh NIBBLE_OPS FILE
set -euo pipefail
ops=$1 golden=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

# expect EXIT TEXT NAME: the check of $folder/NAME ends so, and its first line says so.
expect() {
    local status=0 said
    said=$("$ops" check "$folder/$3" 2>&1) || status=$?
    if [ "$status" != "$1" ] || [[ ${said%%$'\n'*} != *"$2"* ]]; then
        echo "golden_test: $3: exit status $status, said: $said"
        bad=1
    fi
}

# changed NAME FROM TO: a copy with a text of the header replaced by another of the same length.
changed() {
    LC_ALL=C sed "s/$2/$3/g" "$golden" >"$folder/$1"
    if cmp -s "$golden" "$folder/$1"; then echo "golden_test: $1: nothing to change"; bad=1; fi
}

cp "$golden" "$folder/good"
expect 0 "ok " good
changed limit '"rel\\": 3e-06' '"rel\\": 0e-06'
expect 1 "over 0" limit
changed measure '"rel\\": 3e-06' '"rex\\": 3e-06'
expect 1 "not understood" measure
changed unbound '"bounds": ' '"bouncs": '
expect 1 'no metadata "bounds"' unbound
changed name '"expect\.y"' '"expect.q"'
expect 1 "q is not produced" name
changed input '"expect\.y"' '"expekt.y"'
expect 1 'unknown tensor "expekt.y"' input
changed operator '"op": "linear"' '"op": "linaer"'
expect 1 '"linaer"' operator
printf 'no file' >"$folder/short"
expect 1 "short" short

# Words that name nothing are refused: a test of nothing would pass, and a misspelt row would force nothing.
for command in "test --op ^linear_backward$" "grad --op no_such_family"; do
    if said=$("$ops" $command 2>&1) || [[ $said != *"matches no operator family"* ]]; then
        echo "golden_test: $command: $said" >&2
        bad=1
    fi
done
if said=$(NIBBLE_IMPL=avx22 "$ops" run "$folder/good" "$folder/forced" 2>&1) || [[ $said != *'"avx22"'* ]]; then
    echo "golden_test: NIBBLE_IMPL=avx22: $said" >&2
    bad=1
fi

# `nibble-ops run` replaces an earlier result of its own and nothing else, least of all what it reads.
refused() { # TARGET
    local said
    if said=$("$ops" run "$folder/good" "$1" 2>&1) || [[ $said != *"$1"*"left untouched"* ]]; then
        echo "golden_test: run good $1 was not refused: $said"
        bad=1
    fi
}
refused "$folder/good"
ln "$folder/good" "$folder/good-too"
refused "$folder/good-too"
refused "$folder/short"
ln -s out "$folder/link"
refused "$folder/link"
mkfifo "$folder/pipe"
refused "$folder/pipe"
cmp "$golden" "$folder/good" && cmp <(printf 'no file') "$folder/short" && [ ! -e "$folder/out" ] || bad=1
"$ops" run "$folder/good" "$folder/out" && "$ops" run "$folder/good" "$folder/out" || bad=1
refused "$folder/link"
exit $bad
