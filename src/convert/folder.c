/* folder.c - the steps of a conversion that all share: open, begin, copy companion files, commit.
 * See convert.h.
 *
 * A companion file is any file of the source folder that is neither weights nor config.json:
 * tokenizer, templates, README, licence. The result is written to a temporary folder, verified, and
 * renamed at the end. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/convert.h"

static const uint64_t default_shard_size = 5000000000u; /* as transformers chose for years */

/* Opens the source and counts its bytes. v->rights become those that all weight files share. */
nbl_status nbl__conversion_open(nbl_context *ctx, const char *in, nbl__conversion *v)
{
    *v = (nbl__conversion){.ctx = ctx, .rights = 0666};
    NBL_TRY(nbl_checkpoint_open(ctx, in, NBL_OPEN_STRICT, &v->checkpoint));
    NBL_CHECK(ctx, v->checkpoint->is_folder, NBL_ERROR_ARGUMENT,
              "%s: a file; a folder in Hugging Face layout is needed", in);
    NBL_CHECK(ctx, v->checkpoint->config.root, NBL_ERROR_NOT_FOUND, "%s/config.json: no such file", in);
    v->report.tensors = v->checkpoint->tensor_count;
    for (int i = 0; i < v->checkpoint->file_count; i++) {
        v->report.bytes_in += v->checkpoint->files[i].size;
        v->rights &= nbl__file_rights(&v->checkpoint->files[i]);
    }
    return nbl__safetensors_writer_create(ctx, &v->writer);
}

void nbl__conversion_close(nbl__conversion *v)
{
    nbl__safetensors_writer_free(v->writer);
    nbl__output_abort(v->output);
    nbl_checkpoint_close(v->checkpoint);
    *v = (nbl__conversion){0};
}

/* ---- companion files ---- */

/* True unless the file has weights (of any framework), is an index of weights, config.json or
 * hidden. */
static bool is_companion(const char *name)
{
    static const char *const weights[] = {".safetensors", ".safetensors.index.json",
                                          ".bin",         ".bin.index.json",
                                          ".pt",          ".pth",
                                          ".h5",          ".msgpack",
                                          ".onnx",        ".onnx_data",
                                          ".gguf",        ".ckpt"};
    if (name[0] == '.' || strcmp(name, "config.json") == 0) return false;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (nbl__ends_with(name, weights[i])) return false;
    return true;
}

static const char *const template_folder = "additional_chat_templates";

/* True if the source has a folder of additional chat templates that is to be copied. */
static bool has_templates(const nbl__conversion *v)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", v->checkpoint->path, template_folder);
    return v->text == NULL && nbl__is_folder(path);
}

/* Checks one companion. Other folders of the source (`onnx`, `original`) are not copied, with a
 * warning. */
static nbl_status check_companion(nbl_context *ctx, const char *folder, const char *name)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!nbl__is_folder(path) || nbl__is_text_file(name)) return nbl__file_inside(ctx, folder, path);
    if (strcmp(name, template_folder) != 0)
        nbl__log(ctx, NBL_LOG_WARNING, "%s is not a file and is not copied", path);
    return NBL_OK;
}

nbl_status nbl__companions_check(nbl_context *ctx, const char *folder)
{
    DIR *list = opendir(folder);
    if (list == NULL) return nbl__fail_errno(ctx, errno, "%s", folder);
    nbl_status status = NBL_OK;
    for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));)
        if (is_companion(entry->d_name)) status = check_companion(ctx, folder, entry->d_name);
    closedir(list);
    return status == NBL_OK ? nbl__text_files_check(ctx, folder) : status;
}

typedef nbl_status (*visit_fn)(nbl__conversion *v, const char *name, const char *path, uint64_t size,
                               void *argument);

/* Adds up sizes before the work, and checks that the file can be read. */
static nbl_status count_companion(nbl__conversion *v, const char *name, const char *path, uint64_t size,
                                  void *total)
{
    (void)name;
    if (access(path, R_OK) != 0) return nbl__fail_errno(v->ctx, errno, "%s", path);
    *(uint64_t *)total += size;
    return NBL_OK;
}

/* Visits the companion files of a folder within the source; "" is the source itself. Follows links,
 * which nbl__companions_check has checked. */
static nbl_status visit_companions(nbl__conversion *v, const char *folder, visit_fn visit, void *argument)
{
    char at[4096], name[1024], path[8192];
    snprintf(at, sizeof at, "%s%s%s", v->checkpoint->path, folder[0] ? "/" : "", folder);
    DIR *list = opendir(at);
    if (list == NULL) return nbl__fail_errno(v->ctx, errno, "%s", at);
    nbl_status status = NBL_OK;
    errno = 0;
    for (struct dirent *entry; status == NBL_OK && (entry = readdir(list)); errno = 0) {
        struct stat info;
        if (!is_companion(entry->d_name)) continue;
        if (v->text && (nbl__is_text_file(entry->d_name) || strcmp(entry->d_name, template_folder) == 0))
            continue;
        snprintf(name, sizeof name, "%s%s%s", folder, folder[0] ? "/" : "", entry->d_name);
        snprintf(path, sizeof path, "%s/%s", v->checkpoint->path, name);
        if (stat(path, &info) != 0) status = nbl__fail_errno(v->ctx, errno, "%s", path);
        else if (S_ISREG(info.st_mode)) status = visit(v, name, path, (uint64_t)info.st_size, argument);
    }
    if (status == NBL_OK && errno) status = nbl__fail_errno(v->ctx, errno, "%s", at);
    closedir(list);
    return status;
}

/* Copies one companion file. */
static nbl_status copy_companion(nbl__conversion *v, const char *name, const char *path, uint64_t size,
                                 void *unused)
{
    (void)size, (void)unused;
    return nbl__output_copy(v->output, name, path);
}

/* ---- the frame ---- */

/* Fixes the layout and begins the output. Everything that can be checked without writing comes
 * first: the companion files, and the room on the disk (nbl__output_begin). */
nbl_status nbl__conversion_begin(nbl__conversion *v, const char *out, uint64_t shard_size)
{
    NBL_TRY(nbl__safetensors_writer_layout(v->writer, shard_size ? shard_size : default_shard_size,
                                           &v->report.bytes_out, &v->report.files));
    uint64_t needed = v->report.bytes_out + v->checkpoint->config.size;
    NBL_TRY(nbl__companions_check(v->ctx, v->checkpoint->path));
    if (v->text && v->text->adapter) NBL_TRY(nbl__text_files_check(v->ctx, v->text->adapter));
    NBL_TRY(visit_companions(v, "", count_companion, &needed));
    if (has_templates(v)) NBL_TRY(visit_companions(v, template_folder, count_companion, &needed));
    NBL_TRY(nbl__output_begin(v->ctx, out, needed, &v->output));
    nbl__output_narrow(v->output, v->checkpoint->path);
    v->output->rights = v->rights;
    nbl__progress_begin(v->ctx, v->checkpoint->summary.bytes);
    return nbl__progress_poll(v->ctx, "");
}

/* Opens the finished folder before it gets its final name: checks headers, quant states, index and
 * config. */
static nbl_status verify(nbl__conversion *v)
{
    nbl_checkpoint *written;
    nbl_status status = nbl_checkpoint_open(v->ctx, v->output->partial, NBL_OPEN_STRICT, &written);
    nbl_checkpoint_close(written);
    return status;
}

int nbl__conversion_dtype(const nbl__conversion *v, nbl_dtype dtype, char text[32], nbl__config_edit edits[2])
{
    /* The key is "dtype" in transformers 5 and "torch_dtype" in 4. A config with neither gets the
     * older one, which both versions read. */
    const nbl__json *root = v->checkpoint->config.root;
    bool has_new = nbl__json_get(root, "dtype"), has_old = nbl__json_get(root, "torch_dtype");
    int count = 0;
    snprintf(text, 32, "\"%s\"", nbl__dtype_torch_name(dtype));
    if (has_new) edits[count++] = (nbl__config_edit){"dtype", text};
    if (has_old || !has_new) edits[count++] = (nbl__config_edit){"torch_dtype", text};
    return count;
}

/* Finishes the folder under its temporary name; config.json comes last. */
nbl_status nbl__conversion_finish(nbl__conversion *v, const nbl__config_edit *edits, int count)
{
    /* All weights were read: check that no source file changed meanwhile. */
    NBL_TRY(nbl__files_check(v->ctx));
    NBL_TRY(nbl__safetensors_writer_finish(v->writer, v->output, &v->report.bytes_out));
    v->output->rights = 0666;
    NBL_TRY(visit_companions(v, "", copy_companion, NULL));
    if (has_templates(v)) {
        NBL_TRY(nbl__output_subfolder(v->output, template_folder));
        NBL_TRY(visit_companions(v, template_folder, copy_companion, NULL));
    }
    if (v->text) NBL_TRY(nbl__text_files_put(v->output, v->text));
    /* config.json keeps the permissions of the source's. */
    nbl__text text = {.ctx = v->ctx};
    nbl_status status = nbl__config_apply(v->ctx, &v->checkpoint->config, edits, count, &text);
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", v->checkpoint->path);
    v->output->rights = nbl__path_rights(path);
    if (status == NBL_OK) status = nbl__output_put(v->output, "config.json", text.text, text.size);
    v->output->rights = 0666;
    nbl__text_free(&text);
    NBL_TRY(status);
    return verify(v);
}

nbl_status nbl__conversion_commit(nbl__conversion *v, const nbl__config_edit *edits, int count,
                                  nbl__folder_check check, void *user)
{
    NBL_TRY(nbl__conversion_finish(v, edits, count));
    if (check) NBL_TRY(check(user, v->output->partial));
    NBL_TRY(nbl__progress_poll(v->ctx, "")); /* last chance to cancel */
    nbl__output *output = v->output;
    v->output = NULL;
    return nbl__output_commit(output);
}

/* ---- copies ---- */

/* A tensor that is not changed is copied as bytes; its values are still scanned for NaN and
 * infinities. */
nbl_status nbl__declare_copy(nbl__conversion *v, int64_t group, const nbl_tensor_info *t, int64_t *number)
{
    assert(t->weight.format == NBL_FORMAT_DENSE);
    return nbl__safetensors_writer_declare(v->writer, group, t->name, t->weight.dtype, t->rank, t->shape,
                                           number);
}

/* The copy goes in pieces, so that progress is shown and pages are dropped while it runs. */
nbl_status nbl__write_copy(nbl__conversion *v, const nbl_tensor_info *t, int64_t number)
{
    enum { PIECE = 8 << 20 };
    const uint8_t *data = t->weight.data;
    nbl__non_finite found = {0};
    size_t value = nbl__is_compute(t->weight.dtype) ? nbl__size_of(t->weight.dtype) : 0;
    for (uint64_t at = 0; at < t->bytes; at += PIECE) {
        size_t size = (size_t)nbl__min_i64(PIECE, (int64_t)(t->bytes - at));
        if (value)
            nbl__non_finite_scan(&found, nbl__isa(v->ctx), t->weight.dtype, data + at,
                                 (int64_t)(size / value), (int64_t)(at / value));
        NBL_TRY(nbl__safetensors_writer_write(v->writer, number, data + at, size, at));
        nbl__checkpoint_drop(v->checkpoint, data + at, size);
        nbl__progress_add(v->ctx, size);
        NBL_TRY(nbl__progress_poll(v->ctx, t->name));
    }
    return nbl__non_finite_report(v, t->name, &found, "are not finite");
}
