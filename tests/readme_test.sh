#!/usr/bin/env bash
# Runs the commands of README's tour, in order, as a reader types them: each line of the section "A tour" that begins
# with "nibble". Each must succeed, the tuned model must add, and the files that the tour names must be there. The example
# of docs/CONFIG.md must be a configuration.
#
#   tests/readme_test.sh ROOT NIBBLE
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
[ $# -eq 2 ] || { echo "usage: tests/readme_test.sh ROOT NIBBLE" >&2; exit 2; }
root=$(realpath "$1") nibble=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root/models" "$root/examples" .
nibble() { "$nibble" "$@"; }

count=0
while IFS= read -r line; do
    count=$((count + 1))
    if ! eval "$line" >out 2>err </dev/null; then
        echo "readme: '$line' fails: $(head -c 600 err)" >&2
        exit 1
    fi
    case $line in
    *--chat*) [ "$(cat out)" = "5 + 5 = 10" ] || { echo "readme: '$line' says '$(cat out)'" >&2; exit 1; } ;;
    esac
done < <(awk '/^## /{tour = $0 == "## A tour"} tour && /^    nibble /' "$root/README.md")
[ "$count" -ge 12 ] || { echo "readme: only $count commands found" >&2; exit 1; }
for file in sums-out/report.html sums-out/adapter_model.safetensors tiny-adds/model.safetensors tiny-adds.gguf Modelfile \
    tiny-nf4/model.safetensors; do
    [ -s "$file" ] || { echo "readme: the tour left no $file" >&2; exit 1; }
done
awk '/^    /{print substr($0, 5); found = 1; next} found {exit}' "$root/docs/CONFIG.md" >example.yml
nibble train example.yml --check >/dev/null 2>err || { echo "readme: the example of CONFIG: $(cat err)" >&2; exit 1; }
echo "readme: $count commands, passed"
