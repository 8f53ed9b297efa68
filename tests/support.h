/* support.h - what the unit tests share: contexts, temporary folders, file comparison. */
#ifndef NBL_TEST_SUPPORT_H
#define NBL_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nibble.h"

#ifdef TEST_ECHO /* the programs that are linked with device/echo.c */
void echo_install(nbl_context *ctx);
#endif

/* On the device that NIBBLE_TEST_DEVICE names, if it does; where there is none, the program is skipped. */
static inline nbl_context *new_context_with(int threads)
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = threads};
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    const char *device = getenv("NIBBLE_TEST_DEVICE");
    if (device && strcmp(device, "cuda") == 0 && nbl_context_use_cuda(ctx, 0) != NBL_OK) {
        printf("skipped: %s\n", nbl_error_message(ctx));
        exit(77);
    }
#ifdef TEST_ECHO
    if (device && strcmp(device, "echo") == 0) echo_install(ctx);
#endif
    return ctx;
}

static inline nbl_context *new_context(void)
{
    return new_context_with(2);
}

/* With NIBBLE_ISA set to `isa`; NULL: as the environment has it. */
static inline nbl_context *context_of(const char *isa, int threads)
{
    if (isa) setenv("NIBBLE_ISA", isa, 1);
    nbl_context *ctx = new_context_with(threads);
    unsetenv("NIBBLE_ISA");
    return ctx;
}

/* A status that must be OK; shows the message when it is not. */
#define assert_ok(ctx, call)                                                                                 \
    do {                                                                                                     \
        nbl_status status_ = (call);                                                                         \
        if (status_ != NBL_OK) fail_msg("%s: %s", nbl_status_name(status_), nbl_error_message(ctx));         \
    } while (0)

static inline void make_temp(char folder[64])
{
    strcpy(folder, "/tmp/nibble-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

/* folder/name in one of a few rotating buffers: good for the duration of an expression. */
static inline const char *in_folder(const char *folder, const char *name)
{
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    assert_true(snprintf(path, sizeof paths[0], "%s/%s", folder, name) < (int)sizeof paths[0]);
    return path;
}

static inline void write_file(const char *folder, const char *name, const void *data, size_t size)
{
    FILE *file = fopen(in_folder(folder, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* The bytes of a file; free them. */
static inline uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("cannot open %s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size + 1);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

static inline void assert_file_equals(const char *path, const void *data, size_t size)
{
    size_t own;
    uint8_t *bytes = read_file(path, &own);
    assert_int_equal(own, size);
    assert_memory_equal(bytes, data, size);
    free(bytes);
}

static inline void assert_same_file(const char *a, const char *b)
{
    size_t size;
    uint8_t *bytes = read_file(a, &size);
    assert_file_equals(b, bytes, size);
    free(bytes);
}

static inline int entries_in(const char *folder)
{
    DIR *list = opendir(folder);
    assert_non_null(list);
    int count = -2;
    while (readdir(list)) count++;
    closedir(list);
    return count;
}

static inline void remove_tree(const char *path)
{
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char inner[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner) continue;
        if (unlink(inner) != 0) remove_tree(inner);
    }
    if (list) closedir(list);
    rmdir(path);
}

#endif
