#!/usr/bin/env bash
# Checks that the library compiles with its asserts. Releases have none, so a stale name in one is seen by nobody until
# somebody makes a Debug build. Only the front end of the compiler runs: seconds.
#
#   tests/asserts_test.sh SOURCE_DIR GENERATED_DIR      (CC: the compiler)
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: tests/asserts_test.sh SOURCE_DIR GENERATED_DIR" >&2; exit 2; }
cd "$1"
flags=(-std=c17 -fsyntax-only -Wall -Wextra -Werror -UNDEBUG -DNBL_ASSERT_SLOW -DNBL_BUILD -D_DEFAULT_SOURCE
    -D_POSIX_C_SOURCE=200809L -Iinclude -Isrc "-I$2")

# Without CUDA's own headers the files of that backend cannot be read.
mapfile -t sources < <(find src -name '*.c' ! -path '*/cuda/*' ! -name '*_cuda.c' | sort)
[ "${#sources[@]}" -gt 100 ] || { echo "asserts: only ${#sources[@]} sources in $1/src" >&2; exit 1; }
printf '%s\0' "${sources[@]}" | xargs -0 -P 2 -n 16 "${CC:-cc}" "${flags[@]}"

# The test itself: a name that does not exist must be found.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include <assert.h>\nint f(int a);\nint f(int a)\n{\n    assert(a && stale);\n    return a;\n}\n' >"$work/stale.c"
if "${CC:-cc}" "${flags[@]}" "$work/stale.c" 2>/dev/null; then echo "asserts: a stale name in an assert was not found" >&2; exit 1; fi
echo "asserts: passed"
