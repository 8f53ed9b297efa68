/* replay_main.c - runs a fuzz target over inputs, without libFuzzer.
 *
 *     replay_NAME ARCHIVE.tar|FILE...
 *
 * Linked with one fuzz/fuzz_NAME.c. An archive (ustar, as scripts/fuzz-corpus packs it) holds one input per regular
 * file; any other file is one input. Each input lies in memory of exactly its size, so that a sanitizer sees a read
 * past its end. The empty input is always tried first. A defect shows itself as a crash or a failed assertion. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { BLOCK = 512 }; /* of a tar archive: a header, then the file's bytes, padded */

/* The next `size` bytes of the file as one input; false: it ends before. */
static int replay(FILE *file, size_t size)
{
    uint8_t *data = malloc(size ? size : 1);
    int ok = data != NULL && fread(data, 1, size, file) == size;
    if (ok) LLVMFuzzerTestOneInput(data, size);
    free(data);
    return ok;
}

/* Inputs replayed, or -1. The archive ends with a block of zeros. */
static long replay_archive(FILE *file)
{
    char header[BLOCK];
    for (long done = 0;; done++) {
        if (fread(header, 1, BLOCK, file) != BLOCK) return -1;
        if (header[0] == '\0') return done;
        char octal[13] = {
            0}; /* header: name 100, mode 8, uid 8, gid 8, size 12, … type at 156, "ustar" at 257 */
        memcpy(octal, header + 124, 12);
        size_t size = strtoul(octal, NULL, 8), padding = (BLOCK - size % BLOCK) % BLOCK;
        if (memcmp(header + 257, "ustar", 5) != 0 || header[156] != '0' || !replay(file, size)) return -1;
        if (fseek(file, (long)padding, SEEK_CUR) != 0) return -1;
    }
}

static long replay_path(const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t length = strlen(path);
    long done = -1, size;
    if (file == NULL) {
        perror(path);
        return -1;
    }
    if (length > 4 && strcmp(path + length - 4, ".tar") == 0) done = replay_archive(file);
    else if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0)
        done = replay(file, (size_t)size) ? 1 : -1;
    fclose(file);
    if (done < 0) fprintf(stderr, "%s: cannot read\n", path);
    return done;
}

int main(int argc, char **argv)
{
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    long total = 0;
    for (int i = 1; i < argc; i++) {
        long done = replay_path(argv[i]);
        if (done < 0) return 1;
        total += done;
    }
    printf("%ld inputs replayed\n", total);
    return 0;
}
