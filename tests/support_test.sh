#!/usr/bin/env bash
# Compares the part of docs/NUMERICS.md that lists what operators accept with what they do accept.
#     support_test.sh NIBBLE_OPS NUMERICS.md [--update]
set -euo pipefail
ops=$1 document=$2 update=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$ops" support > "$folder/support"
awk -v text="$folder/support" '
    /^<!-- support: end -->/ { inside = 0; print "" }
    !inside { print }
    /^<!-- support: begin -->/ { inside = 1; while ((getline line < text) > 0) print line }' \
    "$document" > "$folder/document"
if [ "$update" = --update ]; then
    cp "$folder/document" "$document"
elif ! diff -u "$document" "$folder/document"; then
    echo "docs/NUMERICS.md does not say what operators accept; run: $0 $ops $document --update" >&2
    exit 1
fi
