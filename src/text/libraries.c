/* libraries.c - the table behind nbl_library_get: the libraries nibble is linked with.
 *
 * One row per library: its name, what it is used for, and a function that asks the library for its
 * version. The version is that of the shared library loaded now, not that of the header. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <utf8proc.h>

#include "base/base.h"

static void pcre2_version(char *text, size_t size)
{
    char own[64]; /* pcre2_config(…, NULL) returns the size needed; versions take about 24 bytes */
    int needed = pcre2_config(PCRE2_CONFIG_VERSION, NULL);
    if (needed <= 0 || (size_t)needed > sizeof own || pcre2_config(PCRE2_CONFIG_VERSION, own) < 0)
        own[0] = '\0';
    snprintf(text, size, "%s", own);
}

static void utf8proc_own_version(char *text, size_t size)
{
    snprintf(text, size, "%s (Unicode %s)", utf8proc_version(), utf8proc_unicode_version());
}

static const struct {
    const char *name, *enables;
    void (*version)(char *text, size_t size);
} libraries[] = {
    {"PCRE2", "the patterns of tokenizers, --skip and adapters", pcre2_version},
    {"utf8proc", "normal forms and letter case of Unicode text", utf8proc_own_version},
};

bool nbl_library_get(int64_t index, nbl_library *result)
{
    nbl_library library = {0};
    if (index < 0 || index >= (int64_t)(sizeof libraries / sizeof *libraries) || result == NULL) return false;
    if (NBL_RESULT_BEGIN(NULL, nbl_library, result) != NBL_OK) return false;
    library.name = libraries[index].name;
    library.enables = libraries[index].enables;
    libraries[index].version(library.version, sizeof library.version);
    NBL_RESULT_PUT(nbl_library, result, &library);
    return true;
}
