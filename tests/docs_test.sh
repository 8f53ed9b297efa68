#!/usr/bin/env bash
# Checks the documents against the tree:
#
#   links     every relative link of every .md file leads to a file, and its #anchor to a heading
#   paths     every file named in backquotes (`src/ops/ops.h`, `ops/ops.h`, `src/ops/*/*.cases`) exists
#   archs     docs/ARCH-HOWTO.md has a row for every architecture of src/arch/archs.h and for no other, and README's
#             comparison names each
#   gguf      docs/FORMATS.md has a row for every GGUF architecture of src/format/gguf/gguf_config.c, and the help of
#             `export` names its model_type
#   cases     tools/ops/case_table.c includes the cases of every operator family, except kv_write and take_rows
#   families  docs/OPERATORS.md has a row for every operator family of src/ops/families.h and for no other, and names
#             every attribute of theirs
#   pictures  every figure in docs/images/speed.json stands in docs/PERFORMANCE.md; where there is a python3, the
#             pictures are those that scripts/make-pictures draws
#   demo      the headings of README's demo are those of scripts/demo
#
# The keys of docs/CONFIG.md are compared by tests/train/test_run_config.c, README's commands by tests/readme_test.sh.
#
#   tests/docs_test.sh [ROOT]      (default: the repository this script lies in)
#
# Then it tests itself: in a copy of the tree it breaks each rule once and expects a complaint.
set -euo pipefail
root=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}" && pwd)

# The lines of a document without code blocks, indented or fenced.
prose() {
    awk '/^ *```/ { fenced = !fenced; next } !fenced && !/^    [^ ]/ && !/^    *\$/' "$1"
}

# The anchors of a document, as GitHub makes them of its headings.
anchors() {
    awk '/^ *```/ { fenced = !fenced; next } !fenced' "$1" | sed -n 's/^##* *//p' |
        sed -e 's/\[\([^]]*\)\]([^)]*)/\1/g' | tr '[:upper:]' '[:lower:]' | sed -e 's/[^a-z0-9 _-]//g' -e 's/ /-/g'
}

# Prints one line per broken rule in the tree $1; fails if there is one.
check() (
    cd "$1"
    bad=
    complain() {
        echo "$*"
        bad=1
    }
    mapfile -t documents < <(find . \( -name build -o -name .git \) -prune -o -name '*.md' -print | sed 's|^\./||' | sort)
    for document in "${documents[@]}"; do
        folder=$(dirname "$document")
        while read -r link; do
            case $link in *://* | mailto:*) continue ;; esac
            file=${link%%#*} anchor=
            case $link in *#*) anchor=${link#*#} ;; esac
            target=$folder/$file
            [ -n "$file" ] || target=$document
            if [ ! -e "$target" ]; then
                complain "$document: the link $link leads to no file"
            elif [ -n "$anchor" ] && ! anchors "$target" | grep -qxF -- "$anchor"; then
                complain "$document: $file has no heading for #$anchor"
            fi
        done < <(prose "$document" | grep -oE '\]\([^) ]+\)' | sed -e 's/^](//' -e 's/)$//' || true)
        # A name counts as a path if it has a slash, ends like a source file and begins with a folder of the tree.
        # NAME stands for any name.
        while read -r path; do
            path=${path//NAME/*}
            top=${path%%/*}
            if [ -d "$top" ]; then found=$path; elif [ -d "src/$top" ]; then found=src/$path; else continue; fi
            compgen -G "$found" >/dev/null || complain "$document: \`$path\` does not exist"
        done < <(prose "$document" | grep -oE '`[A-Za-z0-9_*.-]+(/[A-Za-z0-9_*.-]+)+\.(c|h|cu|cuh|inc|cases|sh|py|md|yml|cmake|txt|awk)`' |
            tr -d '\140' || true)
    done
    rows=$(grep -c '^| `[a-z0-9_]*\.c` | `[a-z0-9_]*` |' docs/ARCH-HOWTO.md || true) archs=0
    compared=$(grep '^| model architectures |' README.md | cut -d'|' -f3 | tr '[:upper:]' '[:lower:]')
    for arch in $(sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' src/arch/archs.h); do
        archs=$((archs + 1))
        type=$(sed -n "s/^const nbl__arch nbl__$arch = {\"\([a-z0-9_]*\)\".*/\1/p" "src/arch/$arch.c" 2>/dev/null || true)
        grep -q "^| \`$arch.c\` | \`$type\` |" docs/ARCH-HOWTO.md ||
            complain "docs/ARCH-HOWTO.md has no row for the architecture $arch with the model_type '$type'"
        # "qwen3" is in "Qwen 2 and 3", "qwen3_moe" in "Qwen 2-MoE and 3-MoE".
        name=${arch%%[0-9]*} number=${arch#"${arch%%[0-9]*}"}
        # Of "qwen3_5" it is "Qwen 3.5": one character stands for "_".
        name=${name//_/?} number=${number//_/?}
        [[ $compared == *$name*$number* ]] || complain "README.md: the row of model architectures has no $arch"
    done
    [ "$rows" = "$archs" ] || complain "docs/ARCH-HOWTO.md has $rows architectures, src/arch/archs.h has $archs"
    for family in $(sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' src/ops/families.h); do
        grep -q "^| \`$family\` |" docs/OPERATORS.md || complain "docs/OPERATORS.md has no row for the family $family"
    done
    while read -r arch type; do
        grep -q "^|.*\`$arch\`.*| .* | .* |" docs/FORMATS.md || complain "docs/FORMATS.md has no row for the GGUF architecture $arch"
        # The help is a text of several literals.
        tr -d '"\n' <cli/commands/export.c | grep -qE "MODEL is[^.]*\b$type\b" || complain "the help of export does not name $type"
    done < <(sed -n 's/^ *\[NBL_GGUF_[A-Z0-9]*\] = {"\([a-z0-9]*\)", "\([a-z0-9_]*\)".*/\1 \2/p' src/format/gguf/gguf_config.c)
    # kv_write and take_rows: tests/ops/test_ops_cache.c and tools/cuda/cuda_attention.c, because their rows are data.
    for family in $(sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' src/ops/families.h); do
        grep -q "/$family\.cases\"" tools/ops/case_table.c || [[ $family == kv_write || $family == take_rows ]] ||
            complain "tools/ops/case_table.c has no cases of the family $family"
    done
    # nibble-ops has two operations that are no families.
    for row in $(awk '/^\| op \|/ { table = 1 } /^$/ { table = 0 } table' docs/OPERATORS.md |
        sed -n 's/^| `\([a-z0-9_]*\)` |.*/\1/p'); do
        grep -q "^ *X($row)" src/ops/families.h || [[ $row == dequantize || $row == quantize ]] ||
            complain "docs/OPERATORS.md has a row for $row, which is no family"
    done
    for attr in $(grep -rhoE 'NBL_ATTR(_OF_WORDS)?\([^"]*"[a-z0-9_.]+"' src/ops --include='*.c' |
        sed 's/.*"\(.*\)"/\1/' | sort -u); do
        grep -qF "\`$attr\`" docs/OPERATORS.md || complain "docs/OPERATORS.md does not name the attribute $attr"
    done
    while read -r figure; do
        # Of nibble's own memory a table has the number alone.
        grep -qF -e "$figure" -e "| ${figure% GiB} |" docs/PERFORMANCE.md || complain "docs/images/speed.json: $figure is not in docs/PERFORMANCE.md"
    done < <(grep -oE '"(shown|memory)": "[^"]*"' docs/images/speed.json | sed 's/.*: "\(.*\)"/\1/' | sort -u)
    if command -v python3 >/dev/null; then
        drawn=$(mktemp -d)
        scripts/make-pictures "$drawn"
        for picture in speed.svg report.svg; do
            cmp -s "$drawn/$picture" docs/images/$picture ||
                complain "docs/images/$picture is not what scripts/make-pictures draws of the data"
        done
        rm -rf "$drawn"
    fi
    while read -r heading; do
        grep -qF -- "$heading" scripts/demo || complain "README.md: scripts/demo has no heading \"$heading\""
    done < <(sed -n 's/^    \([1-9]\. .*\)/\1/p' README.md)
    [ -z "$bad" ]
)

if ! check "$root"; then
    echo "docs: the documents break their rules" >&2
    exit 1
fi

# ---- the test of this test ----
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
tree=$scratch/tree

mkdir "$tree"
(cd "$root" && tar -cf - --exclude=./build --exclude=./.git --exclude=./fuzz/corpus --exclude=./tests/data .) | tar -xf - -C "$tree"

# Puts a line at the end of the file $1 of a copy of the tree and expects a complaint that contains $2.
expect() {
    local said
    printf '%s\n' "$3" >>"$tree/$1"
    if said=$(check "$tree"); then
        [ -z "$2" ] || { echo "docs: self-test: $1 was let through; expected: $2" >&2; failures=1; }
    elif [ -z "$2" ] || [[ $said != *"$2"* ]]; then
        echo "docs: self-test: $1: expected '$2', was told: $said" >&2
        failures=1
    fi
    cp "$root/$1" "$tree/$1"
}

expect docs/DATA.md "docs/DATA.md: the link NONE.md leads to no file" '[none](NONE.md)'
expect docs/DATA.md "TRAINING.md has no heading for #none" '[none](TRAINING.md#none)'
expect docs/DATA.md "" '    [none](NONE.md)'
expect docs/DATA.md '`ops/none.c` does not exist' '`ops/none.c`'
expect docs/DATA.md "" '`a/none.c` and `src/ops/*/*.cases`'
expect src/arch/archs.h "no row for the architecture planted" 'X(planted)'
archs=$(grep -c '^ *X(' "$root/src/arch/archs.h")
expect docs/ARCH-HOWTO.md "has $((archs + 1)) architectures, src/arch/archs.h has $archs" '| `planted.c` | `planted` | |'
expect src/ops/families.h "no row for the family planted" 'X(planted)'
expect src/arch/archs.h "the row of model architectures has no llama9" 'X(llama9)'
expect src/ops/families.h "has no cases of the family planted" 'X(planted)'
expect src/format/gguf/gguf_config.c "no row for the GGUF architecture planted" '[NBL_GGUF_P] = {"planted", "llama", "L"},'
expect src/format/gguf/gguf_config.c "help of export does not name planted" '[NBL_GGUF_P] = {"llama", "planted", "L"},'
expect src/ops/norm/rmsnorm.c "does not name the attribute planted" 'NBL_ATTR(nbl__rmsnorm, eps, "planted", FLOAT, 0)'
sed -i 's/^| `add` |/| `planted` | | | |\n&/' "$tree/docs/OPERATORS.md"
expect docs/DATA.md "has a row for planted, which is no family" ""
cp "$root/docs/OPERATORS.md" "$tree/docs/OPERATORS.md"
expect docs/images/speed.json "123.4k is not in docs/PERFORMANCE.md" '"shown": "123.4k"' 2>/dev/null
expect README.md 'scripts/demo has no heading "9. None"' '    9. None'
[ $failures = 0 ] || exit 1
echo "docs: passed"
