/* replay_main.c - runs a fuzz target over files, without libFuzzer.
 *
 *     replay_NAME FOLDER|FILE...
 *
 * Linked with one fuzz/fuzz_NAME.c. Every regular file named, or directly in a folder named, is fed to the
 * target once in memory of exactly its size, so that a sanitizer sees a read past its end. The empty input is
 * always tried first. A folder that does not exist holds nothing. A defect shows itself as a crash or a
 * failed assertion. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static int replay_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(size ? size : 1);
    int ok = file != NULL && data != NULL && fread(data, 1, size, file) == size;
    if (file) fclose(file);
    if (ok) LLVMFuzzerTestOneInput(data, size);
    else fprintf(stderr, "%s: cannot read\n", path);
    free(data);
    return ok;
}

/* Files replayed, or -1. */
static long replay_path(const char *path, int depth)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno == ENOENT && depth == 0) return 0;
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    if (S_ISREG(info.st_mode)) return replay_file(path, (size_t)info.st_size) ? 1 : -1;
    if (!S_ISDIR(info.st_mode) || depth > 0) return 0;

    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    long done = 0;
    for (int i = 0; i < count; i++) {
        char full[4096];
        int length = snprintf(full, sizeof full, "%s/%s", path, entries[i]->d_name);
        if (done >= 0 && entries[i]->d_name[0] != '.') {
            long one = length < (int)sizeof full ? replay_path(full, depth + 1) : -1;
            done = one < 0 ? -1 : done + one;
        }
        free(entries[i]);
    }
    free(entries);
    return done;
}

int main(int argc, char **argv)
{
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    long total = 0;
    for (int i = 1; i < argc; i++) {
        long done = replay_path(argv[i], 0);
        if (done < 0) return 1;
        total += done;
    }
    printf("%ld inputs replayed\n", total);
    return 0;
}
