/* fuzz_convert.c - a whole folder through the commands: its weight file is the input. Whatever is
 * quantized or dequantized must open again, and a decoded folder must equal the packed one it came from
 * (in f32, where nothing is rounded). */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

static char root[64];

static void write_file(const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/in/%s", root, name);
    FILE *file = fopen(path, "wb");
    MUST(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

static const char *at(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void remove_folder(const char *path)
{
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char file[512];
        snprintf(file, sizeof file, "%.200s/%.255s", path, entry->d_name);
        unlink(file);
    }
    if (list) closedir(list);
    rmdir(path);
}

static void clean_up(void)
{
    remove_folder(at("in"));
    rmdir(root);
}

static void set_up(void)
{
    strcpy(root, access("/dev/shm", W_OK) == 0 ? "/dev/shm/nibble-fuzz-XXXXXX" : "/tmp/nibble-fuzz-XXXXXX");
    MUST(mkdtemp(root) && mkdir(at("in"), 0700) == 0);
    atexit(clean_up);
}

static void must_open(nbl_context *ctx, const char *path)
{
    nbl_checkpoint *checkpoint;
    MUST(nbl_checkpoint_open(ctx, path, NBL_OPEN_STRICT, &checkpoint) == NBL_OK);
    nbl_checkpoint_close(checkpoint);
}

static void must_equal(nbl_context *ctx, const char *a, const char *b)
{
    nbl_diff *diff;
    MUST(nbl_checkpoint_diff(ctx, a, b, &diff) == NBL_OK);
    MUST(nbl_diff_equal(diff));
    nbl_diff_free(diff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const configs[] = {
        "{\"model_type\": \"llama\"}", "{\"model_type\": \"gpt_oss\"}",
        "{\"model_type\": \"gpt_oss\", \"quantization_config\": {\"quant_method\": \"mxfp4\"}}",
        "{\"model_type\": \"llama\", \"quantization_config\": {\"load_in_8bit\": true}}"};
    nbl_context *ctx = fuzz_context();
    if (root[0] == '\0') set_up();
    if (size < 1) return 0;
    unsigned choice = data[0];
    const char *config = configs[choice % 4];
    write_file("config.json", config, strlen(config));
    write_file("model.safetensors", data + 1, size - 1);

    nbl_dequantize_options plain = {NBL_OPTIONS(nbl_dequantize_options), .dtype = NBL_COMPUTE_F32};
    if (nbl_checkpoint_dequantize(ctx, at("in"), at("plain"), &plain, NULL) == NBL_OK)
        must_equal(ctx, at("in"), at("plain"));
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options),
                                .format = (nbl_format)(NBL_FORMAT_NF4 + choice / 4 % 4),
                                .block = 32 << choice / 16 % 8};
    how.nested = (how.format == NBL_FORMAT_NF4 || how.format == NBL_FORMAT_FP4) && choice / 128;
    how.shard_size = 100;
    if (nbl_checkpoint_quantize(ctx, at("in"), at("packed"), &how, NULL) == NBL_OK)
        must_open(ctx, at("packed"));
    remove_folder(at("plain"));
    remove_folder(at("packed"));
    return 0;
}
