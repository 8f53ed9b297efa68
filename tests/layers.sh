#!/usr/bin/env bash
# Checks the rules of the source tree that a compiler does not see:
#
#   layers   a file under src/LAYER includes only files of its own or of lower layers (the list below), the public
#            header and the system; cli/ includes only the public header, its own files and the system, and
#            cli/json.c also base/, for the one reader and writer of JSON; python/csrc only the public header, its own
#            files and the system
#   names    no two files under src/ have the same name
#   silence  nothing under src/ and python/csrc prints, exits or aborts
#   devices  the word cuda is in no identifier and no #include of src/, except in src/device/cuda, in the CUDA
#            implementations of operators (src/ops: cuda/, *.cu, *.cuh, *_cuda.c, *_cuda.h) and where src/run calls
#            functions of the public header for `device: auto`
#
#   tests/layers.sh [ROOT]      (default: the repository this script lies in)
#
# Then it tests itself: in a copy of the tree it breaks each rule once and expects to be told so.
set -euo pipefail
layers="base tensor quant format device=ops graph arch text model infer run data report convert train dist"
code_of=$(cat "$(dirname "${BASH_SOURCE[0]}")/code_of.awk") # the function code_of
root=${1:-$(dirname "${BASH_SOURCE[0]}")/..}

# Prints one line per broken rule in the tree $1; fails if there is one.
check() (
    cd "$1"
    shopt -s globstar nullglob
    files=()
    for file in src/** include/** cli/** python/csrc/**; do
        case $file in *.c | *.h | *.inc | *.cu | *.cuh) files+=("$file") ;; esac
    done
    [ ${#files[@]} -gt 0 ] || { echo "no sources in $1"; exit 1; }

    for file in "${files[@]}"; do
        case $file in src/*) echo "${file##*/} $file" ;; esac
    done | sort | awk '
        $1 == name { print $2 ": the same name as " path; bad = 1 }
        { name = $1; path = $2 }
        END { exit bad }' || bad=1

    awk -v layers="$layers" "$code_of"'
        function complain(text) { print FILENAME ":" FNR ": " text; bad = 1 }

        # Does this file belong to a backend?
        function is_backend(file) {
            return file ~ /^src\/device\/cuda\// || (file ~ /^src\/ops\// && file ~ /\/cuda\/|\.cuh?$|_cuda\.[ch]$/)
        }

        # `code` without what may name a device.
        function nameless(code) {
            if (layer == "run") gsub(/nbl_cuda_[a-z_]*/, "", code)
            return tolower(code)
        }

        function check_include(name, quoted,    first) {
            if (top == "src" && !is_backend(FILENAME) && tolower(name) ~ /cuda/)
                complain("only a backend may name a device: " name)
            first = index(name, "/") ? substr(name, 1, index(name, "/") - 1) : ""
            if (name == "nibble.h") return
            if (top == "cli") {
                sub(/^cli\//, "", name)
                if (FILENAME == "cli/json.c" && first == "base") return
                if (quoted ? !("cli/" name in exists) : first in rank) complain("cli/ may not include " name)
            } else if (top == "python") {
                if (quoted ? !(folder "/" name in exists) : first in rank) complain("python/csrc may not include " name)
            } else if (top == "include") {
                if (quoted) complain("the public header may not include " name)
            } else if (first in rank) {
                if (rank[first] > rank[layer]) complain(layer " is below " first " and may not include " name)
            } else if (quoted && (first != "" || !(folder "/" name in exists))) {
                complain("includes " name ", which is in no layer")
            }
        }

        BEGIN {
            n = split(layers, order, " ")
            for (i = 1; i <= n; i++) {
                m = split(order[i], same, "=") # layers of the same height
                for (k = 1; k <= m; k++) rank[same[k]] = i
            }
            for (i = 1; i < ARGC; i++) exists[ARGV[i]]
        }
        FNR == 1 {
            in_comment = 0
            n = split(FILENAME, part, "/")
            top = part[1]
            layer = part[2]
            folder = FILENAME
            sub(/\/[^\/]*$/, "", folder)
            if (top == "src" && (n < 3 || !(layer in rank))) complain("lies in no layer")
        }
        !in_comment && /^[ \t]*#[ \t]*include[ \t]*["<]/ {
            name = $0
            quoted = match(name, /^[ \t]*#[ \t]*include[ \t]*"/)
            sub(/^[^"<]*["<]/, "", name)
            sub(/[">].*/, "", name)
            check_include(name, quoted)
        }
        {
            code = code_of($0)
            if (top == "src" && !is_backend(FILENAME) && nameless(code) ~ /cuda/)
                complain("only a backend may name a device: " $0)
            if ((top == "src" || top == "python") &&
                code ~ /(^|[^A-Za-z0-9_.>])((v?printf|puts|putchar|perror|_?exit|_Exit|quick_exit|abort)[ \t]*\(|(stdout|stderr)([^A-Za-z0-9_]|$))/)
                complain("the library does not print, exit or abort: " $0)
        }
        END { exit bad }' "${files[@]}" || bad=1
    [ -z "${bad:-}" ]
)

if ! check "$root"; then
    echo "layers: the tree breaks its rules" >&2
    exit 1
fi

# ---- the test of this test ----
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# Copies a part of the tree, writes standard input to the file $1 of the copy and expects a complaint that contains $2; with an
# empty $2 it expects none.
expect() {
    local said
    rm -rf "$scratch/tree"
    mkdir "$scratch/tree"
    mkdir "$scratch/tree/src"
    cp -R "$root/include" "$scratch/tree"
    cp -R "$root/src/base" "$scratch/tree/src" # a layer is enough: rules are about names
    mkdir -p "$(dirname "$scratch/tree/$1")"
    cat >"$scratch/tree/$1"
    if said=$(check "$scratch/tree"); then
        [ -z "$2" ] || { echo "layers: self-test: $1 was let through; expected: $2" >&2; failures=1; }
    elif [ -z "$2" ] || [[ $said != *"$2"* ]]; then
        echo "layers: self-test: $1: expected '$2', was told: $said" >&2
        failures=1
    fi
}

expect src/base/planted.c "base is below quant" <<<'#include "quant/quant.h"'
expect src/quant/planted.h "quant is below format" <<<'  #  include <format/safetensors.h>'
expect src/ops/norm/planted.c "ops is below graph" <<<'#include "graph/plan.h"'
expect src/base/planted.c "in no layer" <<<'#include "../quant/quant.h"'
expect src/planted.c "lies in no layer" <<<'int planted;'
expect cli/planted.c "cli/ may not include" <<<'#include "base/base.h"'
expect cli/json.c "cli/ may not include" <<<'#include "format/hf/config.h"'
expect python/csrc/planted.c "python/csrc may not include" <<<'#include "base/base.h"'
expect python/csrc/planted.c "does not print" <<<'void f(void) { abort(); }'
expect python/csrc/planted.c "" <<<'#include <nibble.h>'
expect src/format/base.h "the same name as" <<<'int planted;'
expect src/base/planted.c "does not print" <<<'void f(void) { printf("x"); }'
expect src/base/planted.c "does not print" <<<'void f(void) { fputs("x", stderr); }'
expect src/base/planted.c "does not print" <<<'void f(void) { /* no */ exit (1); }'
expect src/base/planted.c "does not print" <<<'void f(void) { if (f) abort(); }'
expect src/graph/planted.c "only a backend" <<<'#include "device/cuda/cuda.h"'
expect src/ops/planted.c "only a backend" <<<'void f(void) { nbl__cuda_wait(0, ""); }'
expect src/train/planted.c "only a backend" <<<'bool f(void) { return nbl_cuda_usable(NULL); }'
expect src/model/planted.h "only a backend" <<<'enum { NBL_CUDA_THING };'
expect src/run/planted.c "only a backend" <<<'void f(void) { nbl__cuda_wait(0, ""); }'
expect src/run/planted.c "" <<<'bool f(void) { return nbl_cuda_usable(NULL); } // cuda'
expect src/ops/norm/planted.cu "" <<<'void f(void) { cudaFree(0); }'
expect src/ops/norm/planted_cuda.h "" <<<'#include "device/cuda/cuda.h"'
expect src/dist/planted.c "" <<'C'
/* printf("x"); #include "nowhere.h"
   exit(1); stderr */
#include "base/base.h"
#include "nibble.h"
#include <stdio.h>
// abort();
const char *planted = "exit(1) \" abort() // stderr";
__attribute__((format(printf, 1, 2))) void planted_exit(const char *format, ...);
static void f(char *p) { char q = '"'; snprintf(p, 1, "%c", q); nbl__output_abort(0); planted_exit("stdout"); }
C

[ "$failures" -eq 0 ] && echo "layers: the tree keeps its rules; ${SECONDS} s with the self-test"
exit "$failures"
