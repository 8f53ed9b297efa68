#!/usr/bin/env bash
# Installs the build into a temporary folder and uses it as a stranger would: a C program against the installed header,
# built with pkg-config (shared and static) and with CMake's find_package (both targets); the command with its man page
# and completions. Also looks into the shared library: only nbl_* is visible, nothing in it prints, exits or aborts.
#
#   tests/install_test.sh BUILD_DIR [BUILD_TYPE]      (Release: not even assertions may abort)
set -euo pipefail
build=$(cd "$1" && pwd)
type=${2:-Release}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "install: $*" >&2
    exit 1
}

# ---- install: first below a DESTDIR, then move the tree, as a package would ----
DESTDIR="$work/destdir" cmake --install "$build" --prefix /opt/nibble >"$work/log" || { cat "$work/log"; fail "cmake --install failed"; }
prefix="$work/moved"
mv "$work/destdir/opt/nibble" "$prefix"
libdir=$(cd "$(dirname "$(find "$prefix" -name libnibble.a)")" && pwd)
for file in include/nibble.h share/doc/nibble/LICENSE share/nibble/models/nibble-tiny/model.safetensors \
    share/nibble/examples/train/sums.yml; do
    [ -s "$prefix/$file" ] || fail "$file is missing"
done
if grep -rlE "$work|nibble_objects|$build" "$libdir/cmake" "$libdir/pkgconfig"; then
    fail "these files name the build or the object library"
fi

# ---- a program ----
cat >"$work/use.c" <<'C'
#include <nibble.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    nbl_context *ctx = NULL;
    nbl_status status = nbl_context_create(NULL, &ctx);
    if (status != NBL_OK) {
        fprintf(stderr, "%s\n", nbl_status_text(status));
        return 1;
    }
    printf("nibble %s, %d threads, %s\n", nbl_version(), nbl_threads(ctx), nbl_isa_name(ctx));
    int same = strcmp(nbl_version(), NBL_VERSION_STRING) == 0 && nbl_threads(ctx) > 0;
    nbl_context_destroy(ctx);
    return !same;
}
C

# ---- pkg-config ----
export PKG_CONFIG_PATH="$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
version=$(sed -n 's/.*NBL_VERSION_STRING "\(.*\)"/\1/p' "$prefix/include/nibble.h")
[ "$(pkg-config --modversion nibble)" = "$version" ] || fail "nibble.pc has another version than nibble.h"
read -ra shared <<<"$(pkg-config --cflags --libs nibble)"
read -ra static <<<"$(pkg-config --static --cflags --libs nibble)"
"${CC:-cc}" -Wall -Wextra -Werror -pedantic "$work/use.c" -o "$work/use_shared" "${shared[@]}"
LD_LIBRARY_PATH=$libdir "$work/use_shared" || fail "the program with the shared library failed"
LD_LIBRARY_PATH=$libdir ldd "$work/use_shared" | grep "$libdir/libnibble.so" >/dev/null || fail "the shared library was not used"
soname=$(readelf -d "$libdir/libnibble.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = "libnibble.so.${version%.*}" ] || fail "the soname is $soname: before 1.0 it has the minor version"
# Without the .so beside it, -lnibble can only mean the archive.
mkdir "$work/hidden"
mv "$libdir"/libnibble.so* "$work/hidden"
"${CC:-cc}" "$work/use.c" -o "$work/use_static" "${static[@]}"
mv "$work/hidden"/* "$libdir"
"$work/use_static" || fail "the program with the static library failed"

# ---- CMake ----
mkdir "$work/consumer"
cp "$work/use.c" "$work/consumer"
cat >"$work/consumer/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(nibble ${version%.*} REQUIRED COMPONENTS static)
add_executable(use_shared use.c)
target_link_libraries(use_shared PRIVATE nibble::nibble)
add_executable(use_static use.c)
target_link_libraries(use_static PRIVATE nibble::nibble_static)
CMAKE
{ cmake -S "$work/consumer" -B "$work/consumer/build" -DCMAKE_PREFIX_PATH="$prefix" &&
    cmake --build "$work/consumer/build"; } >"$work/log" 2>&1 || { cat "$work/log"; fail "the CMake consumer does not build"; }
for kind in shared static; do
    "$work/consumer/build/use_$kind" || fail "the CMake consumer ($kind) failed"
done
ldd "$work/consumer/build/use_static" | grep libnibble >/dev/null && fail "nibble::nibble_static gave the shared library"

# ---- the header in C++, and README's example ----
if command -v "${CXX:-g++}" >/dev/null; then
    cat >"$work/use.cc" <<'CXX'
#include <nibble.h>
int main()
{
    nbl_train_options how;
    NBL_OPTIONS_INIT(how);
    nbl_train_summary summary;
    NBL_RESULT_INIT(summary);
#if __cplusplus >= 202002L
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = NBL_COMPUTE_BF16};
    return options.struct_size == 0 || how.struct_size == 0 || nbl_version() == nullptr;
#else
    return how.struct_size == 0 || nbl_version() == nullptr;
#endif
}
CXX
    for standard in 11 17 20; do
        "${CXX:-g++}" -std=c++$standard -fsyntax-only -Wall -Wextra -Wno-missing-field-initializers -Werror -pedantic \
            -I"$prefix/include" "$work/use.cc" ||
            fail "the header does not compile as C++$standard"
    done
fi
{
    echo '#include <stdio.h>'
    awk '/^```c$/{on = 1; next} /^```$/{on = 0} on && /^#include/' "$root/README.md"
    echo 'int main(void)'
    echo '{'
    awk '/^```c$/{on = 1; next} /^```$/{on = 0} on && !/^#include/' "$root/README.md"
    echo '}'
} >"$work/readme.c"
grep -q nbl_ "$work/readme.c" || fail "README has no example in C"
"${CC:-cc}" -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" "$work/readme.c" || fail "README's example in C does not compile"

# ---- what the shared library shows and calls ----
nm -D --defined-only "$libdir/libnibble.so" | awk '{print $NF}' >"$work/symbols"
grep -qx nbl_version "$work/symbols" || fail "nbl_version is not exported"
if grep -vxE 'nbl_[a-z][a-z0-9_]*' "$work/symbols"; then fail "these symbols should be hidden"; fi
# Everything that the header declares is there.
sed -n 's/^NBL_API.*[ *]\(nbl_[a-z0-9_]*\)(.*/\1/p' "$prefix/include/nibble.h" | sort -u >"$work/declared"
[ -s "$work/declared" ] || fail "no declarations found in nibble.h"
if sort -u "$work/symbols" | comm -23 "$work/declared" - | grep .; then fail "these functions are declared but not exported"; fi
forbidden='_?_?(v?f?d?printf|puts|fputs|putchar|putc|fputc|perror|exit|_exit|_Exit|quick_exit|abort|stdout|stderr)(_chk)?'
[ "$type" != Release ] || forbidden="($forbidden|__assert_fail)"
if nm -D -u "$libdir/libnibble.so" | awk '{sub(/@.*/, "", $NF); print $NF}' | grep -xE "$forbidden"; then
    fail "the library prints, exits or aborts: it calls these"
fi

# ---- the command ----
if [ -x "$build/nibble" ]; then
    [ "$("$prefix/bin/nibble" --version | grep -cF "$version")" -ge 1 ] || fail "nibble --version does not say $version"
    grep -q '^\.TH' "$prefix/share/man/man1/nibble.1" || fail "the man page is not one"
    if command -v man >/dev/null; then
        warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "$prefix/share/man/man1/nibble.1" 2>&1 >/dev/null)
        [ -z "$warnings" ] || fail "the man page has faults: $warnings"
    fi
    bash -n "$prefix/share/bash-completion/completions/nibble" || fail "the bash completion does not parse"
    grep -q '^#compdef nibble' "$prefix/share/zsh/site-functions/_nibble" || fail "the zsh completion is not one"
    grep -q 'complete .*-c nibble' "$prefix/share/fish/vendor_completions.d/nibble.fish" || fail "the fish completion is not one"
fi
echo "install: header, libraries, pkg-config, CMake package and command work from an installed tree"
