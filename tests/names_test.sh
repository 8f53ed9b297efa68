#!/usr/bin/env bash
# Checks the words of the source tree against docs/NAMING.md:
#
#   words    no identifier of a C or CUDA file contains a word of the glossary's column "not", unless it is listed under
#            "Exceptions"
#   folders  no folder holds more than 25 source files
#   length   no source file has more than 600 lines, except include/nibble.h, which is one header by intention
#   types    a type nbl__NAME is defined once in src/
#   guards   the include guard of a header of src/ and cli/ is made of the file's name: NBL_FILE_NAME_H, CLI_FILE_NAME_H
#
# A source file is one of C or CUDA (.c .h .inc .cu .cuh) or a table of operator cases (.cases). The rule of length
# holds for shell scripts (.sh), too, and both rules of size for the Python files (.py .pyi) in python/.
#
#   tests/names_test.sh [ROOT]      (default: the repository this script lies in)
#
# Then it tests itself: in a copy of the tree it breaks each rule once and expects a complaint.
set -euo pipefail
code_of=$(cat "$(dirname "${BASH_SOURCE[0]}")/code_of.awk") # the function code_of
root=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}" && pwd)
max_files=25
max_lines=600

# Prints one line per broken rule in the tree $1; fails if there is one.
check() (
    cd "$1"
    mapfile -t files < <(find src include cli tools tests bench fuzz examples python -type f \
        \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cases' \) | sort)
    mapfile -t scripts < <(find python -type f \( -name '*.py' -o -name '*.pyi' \) | sort)
    printf '%s\n' "${files[@]%/*}" "${scripts[@]%/*}" | sort | uniq -c | awk -v max=$max_files '
            $1 > max { print $2 ": " $1 " source files; at most " max ": two folders?"; bad = 1 }
            END { exit bad }' || bad=1
    while read -r lines file; do
        [[ $file == total || $lines -le $max_lines ]] || { echo "$file: more than $max_lines lines: two files?"; bad=1; }
    done < <(find src cli tools tests bench fuzz examples python \
        \( -name '*.sh' -o -path 'python/*.py' -o -path 'python/*.pyi' \) -exec wc -l {} +)
    awk -v max=$max_lines "$code_of"'
        # Column "not" of the glossary, then the exceptions: words in backquotes.
        FILENAME == "docs/NAMING.md" {
            if (/^## /) part = $2
            if (part == "Glossary" && split($0, cell, "|") > 3) collect(cell[3], word)
            if (part == "Exceptions") collect($0, exception)
            next
        }
        function collect(text, into) {
            while (match(text, /`[^`]+`/)) {
                into[substr(text, RSTART + 1, RLENGTH - 2)]
                text = substr(text, RSTART + RLENGTH)
            }
        }
        FNR == 1 { in_comment = 0 }
        FILENAME ~ /^src\// && match($0, /^(typedef )?(struct|enum|union) nbl__[a-z0-9_]+ \{/) {
            name = $0
            sub(/^(typedef )?(struct|enum|union) /, "", name)
            sub(/ .*/, "", name)
            if (name in type) { print FILENAME ":" FNR ": " name " is defined twice; also in " type[name]; bad = 1 }
            type[name] = FILENAME ":" FNR
        }
        FILENAME ~ /^(src|cli)\/.*\.(h|cuh)$/ && /^#ifndef / && !(FILENAME in guarded) {
            guarded[FILENAME]
            name = FILENAME
            sub(/.*\//, "", name)
            gsub(/[^A-Za-z0-9]/, "_", name)
            name = (FILENAME ~ /^cli/ ? "CLI_" : "NBL_") toupper(name)
            if ($2 != name) { print FILENAME ":" FNR ": include guard " $2 ": expected " name; bad = 1 }
        }
        FNR == max + 1 && FILENAME != "include/nibble.h" { print FILENAME ": more than " max " lines: two files?"; bad = 1 }
        {
            code = code_of($0)
            while (match(code, /[A-Za-z_][A-Za-z0-9_]*/)) {
                name = substr(code, RSTART, RLENGTH)
                code = substr(code, RSTART + RLENGTH)
                if (name in known) continue
                known[name]
                if (name in exception) continue
                n = split(tolower(name), part_of_name, "_")
                for (i = 1; i <= n; i++)
                    if (part_of_name[i] in word) {
                        print FILENAME ":" FNR ": " name ": \"" part_of_name[i] "\" is in the column \"not\" of docs/NAMING.md"
                        bad = 1
                    }
            }
        }
        END { exit bad }' docs/NAMING.md "${files[@]}" || bad=1
    [ -z "${bad:-}" ]
)

if ! check "$root"; then
    echo "names: the tree breaks its rules" >&2
    exit 1
fi

# ---- the test of this test ----
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# Copies the tree, writes standard input to the file $1 of the copy and expects a complaint that contains $2; with an
# empty $2 it expects none.
expect() {
    local said
    rm -rf "$scratch/tree"
    mkdir "$scratch/tree"
    for folder in src include cli tools tests bench fuzz examples python docs; do
        mkdir "$scratch/tree/$folder"
    done
    cp "$root/docs/NAMING.md" "$scratch/tree/docs"
    mkdir -p "$(dirname "$scratch/tree/$1")"
    cat >"$scratch/tree/$1"
    if [ -n "${3:-}" ]; then for i in $(seq "$3"); do : >"$(dirname "$scratch/tree/$1")/more$i.c"; done; fi
    if said=$(check "$scratch/tree"); then
        [ -z "$2" ] || { echo "names: self-test: $1 was let through; expected: $2" >&2; failures=1; }
    elif [ -z "$2" ] || [[ $said != *"$2"* ]]; then
        echo "names: self-test: $1: expected '$2', was told: $said" >&2
        failures=1
    fi
}

expect src/base/planted.c 'b_turned: "turned"' <<<'int b_turned;'
expect tests/planted.c '"most"' <<<'enum { MOST = 3 };'
expect cli/planted.c "" <<<'/* turned */ int in_place; // most
const char *s = "turned \" most"; int almost, replaced;'
expect src/base/planted.c "nbl__planted is defined twice" <<<'struct nbl__planted {
};
typedef struct nbl__planted { /* planted twice */
} nbl__planted;'
expect cli/planted.h "expected CLI_PLANTED_H" <<<'#ifndef NBL_PLANTED_H'
expect src/base/planted.cuh "" <<<'#ifndef NBL_PLANTED_CUH'
expect src/base/planted.c "more than 600 lines" < <(for _ in {1..601}; do echo; done)
expect tools/cuda/planted.cu "more than 600 lines" < <(for _ in {1..601}; do echo; done)
expect tests/planted.sh "more than 600 lines" < <(for _ in {1..601}; do echo; done)
expect python/nibble_torch/planted.py "more than 600 lines" < <(for _ in {1..601}; do echo; done)
expect python/csrc/planted.c '"most"' <<<'enum { MOST = 3 };'
expect include/nibble.h "" < <(for _ in {1..601}; do echo; done)
expect src/base/planted.c "26 source files" 25 <<<'int planted;'
expect cli/planted.c "cli: 26 source files" 25 <<<'int planted;'
expect tests/ops/planted.c "" 24 <<<'int planted;'
[ $failures = 0 ] || exit 1
echo "names: passed"
