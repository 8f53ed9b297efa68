/* resume.c - saves, finds, verifies and loads checkpoints. See resume.h for the files.
 *
 * nibble_state.json is written last, because it holds the checksums of all other files:
 *
 *     {
 *       "version": 3,
 *       "step": 120, ...                              the fields of resume_state.c
 *       "keys": {"KEY": "VALUE", ...},                run/run_changes.h
 *       "history": ["step 60: ...", ...],
 *       "files": {"NAME": [SIZE, "CHECKSUM"], ...},
 *       "checksum": "CHECKSUM"                        of all bytes before this member
 *     }
 *
 * Checksums are nbl__hash, written as 16 hexadecimal digits. */
#include "train/resume.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "base/hash.h"
#include "train/best.h"
#include "run/fingerprint.h"
#include "train/output_dir.h"
#include "train/resume_state.h"

static const char *const state_name = "nibble_state.json";
enum { STATE_VERSION = 3, STATE_LIMIT = 16 << 20, TRAINER_STATE_LIMIT = 1 << 30 };

/* ---- saving ---- */

/* The member "files": size and checksum of every file of the folder. */
static nbl_status print_files(nbl__text *out, nbl__arena *arena, const char *folder)
{
    DIR *list = opendir(folder);
    if (list == NULL) return nbl__fail_errno(out->ctx, errno, "%s", folder);
    nbl_status status = NBL_OK;
    nbl__text_printf(out, ",\n  \"files\": {");
    int count = 0;
    for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));) {
        const char *path = nbl__arena_printf(arena, "%s/%s", folder, entry->d_name);
        uint64_t size = 0, hash = 0;
        if (path == NULL) status = NBL_ERROR_MEMORY;
        else if (nbl__is_folder(path)) continue;
        else status = nbl__fingerprint_file(out->ctx, path, &size, &hash);
        nbl__text_printf(out, "%s\n    ", count++ ? "," : "");
        nbl__text_json(out, entry->d_name);
        nbl__text_printf(out, ": [%" PRIu64 ", \"%016" PRIx64 "\"]", size, hash);
    }
    closedir(list);
    nbl__text_printf(out, "\n  }");
    return status;
}

/* Writes trainer_state.json, then nibble_state.json with the checksums of all files so far. */
static nbl_status put_states(const nbl__run_parts *p, nbl__output *output, nbl__arena *arena, nbl__text *text)
{
    nbl__trainer_state_print(text, p);
    NBL_TRY(text->status);
    NBL_TRY(nbl__output_put(output, "trainer_state.json", text->text, text->size));
    text->size = 0;
    nbl__text_printf(text, "{\n  \"version\": %d,\n", STATE_VERSION);
    nbl__run_state_print(text, p->state);
    nbl__text_printf(text, ",\n  \"keys\": ");
    nbl__run_values_print(text, p->values);
    nbl__text_printf(text, ",\n  \"history\": [");
    for (int64_t i = 0; i < p->history->count; i++) {
        nbl__text_printf(text, "%s\n    ", i ? "," : "");
        nbl__text_json(text, p->history->items[i]);
    }
    nbl__text_printf(text, "]");
    NBL_TRY(print_files(text, arena, output->partial));
    NBL_TRY(text->status);
    nbl__state_seal(text);
    NBL_TRY(text->status);
    return nbl__output_put(output, state_name, text->text, text->size);
}

/* nbl__add_files_fn of a checkpoint: adds to a result what only a checkpoint has. user:
 * nbl__run_parts. */
static nbl_status put_more(void *user, nbl__output *output)
{
    const nbl__run_parts *p = user;
    nbl__arena arena = nbl__arena_make(output->ctx);
    nbl__text text = {.ctx = output->ctx};
    nbl_status status = nbl__optimizer_put(p->optimizer, output);
    if (status == NBL_OK) status = put_states(p, output, &arena, &text);
    nbl__text_free(&text);
    nbl__arena_free(&arena);
    return status;
}

/* ---- the checkpoints of a folder ---- */

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The steps of all checkpoint-N in output_dir, ascending, in the arena. A missing folder has
 * none. */
static nbl_status list_steps(nbl__arena *arena, const char *output_dir, int64_t **steps, int64_t *count)
{
    *steps = NULL;
    *count = 0;
    DIR *list = opendir(output_dir);
    if (list == NULL) return errno == ENOENT ? NBL_OK : nbl__fail_errno(arena->ctx, errno, "%s", output_dir);
    int64_t room = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        const char *digits = entry->d_name + strlen("checkpoint-");
        if (strncmp(entry->d_name, "checkpoint-", strlen("checkpoint-")) != 0) continue;
        size_t n = strspn(digits, "0123456789");
        if (n == 0 || n > 18 || digits[n] != '\0') continue;
        if (*count == room) {
            int64_t *more = nbl__arena_alloc(arena, (size_t)(room = 2 * room + 64) * sizeof *more);
            if (more && *count) memcpy(more, *steps, (size_t)*count * sizeof *more);
            *steps = more;
        }
        if (*steps == NULL) break;
        (*steps)[(*count)++] = strtoll(digits, NULL, 10);
    }
    closedir(list);
    if (room && *steps == NULL) return NBL_ERROR_MEMORY;
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, by_number);
    return NBL_OK;
}

const char *nbl__checkpoint_folder(nbl__arena *arena, const char *output_dir, int64_t step)
{
    return nbl__arena_printf(arena, "%s/checkpoint-%" PRId64, output_dir, step);
}

/* Removes one old checkpoint. If that fails, the run goes on. The warning appears once per
 * checkpoint, though removal is tried again at every save: steps only grow, so unremoved->last
 * tells which ones were reported. */
static nbl_status remove_one(nbl__arena *arena, const nbl__run_parts *p, int64_t step)
{
    const char *folder = nbl__checkpoint_folder(arena, p->config->output_dir, step);
    nbl_status status = folder ? nbl__remove_folder(arena->ctx, folder) : NBL_ERROR_MEMORY;
    if (status == NBL_OK || status == NBL_ERROR_MEMORY) return status;
    if (p->stale_checkpoints->count == 0 || p->stale_checkpoints->last < step) {
        nbl__log(arena->ctx, NBL_LOG_WARNING,
                 "%s is beyond save_total_limit, but cannot be removed: %s; the run goes on", folder,
                 nbl_error_message(arena->ctx));
        p->stale_checkpoints->count++;
        p->stale_checkpoints->last = step;
    }
    return NBL_OK;
}

/* Removes the checkpoints with the lowest steps until save_total_limit are left. Never removed:
 * the best one, the one just saved, and those with higher steps. Higher steps exist if an
 * earlier run got further than the checkpoint that this run resumed from. load_best without
 * saving by interval implies a limit of 1. A limit of 1 becomes 2 when the best is not the one
 * just saved. */
static nbl_status remove_oldest(nbl__arena *arena, const nbl__run_parts *p)
{
    const nbl__run_config *c = p->config;
    int64_t *steps, count, saved = p->state->step, limit = c->save_total_limit;
    int64_t best = nbl__best_is_kept(c) ? p->state->best_step : 0;
    if (limit <= 0 && c->load_best && c->save_strategy == NBL_STRATEGY_NO) limit = 1;
    if (limit <= 0) return NBL_OK;
    limit = nbl__max_i64(limit, best > 0 && best != saved ? 2 : 1);
    NBL_TRY(list_steps(arena, c->output_dir, &steps, &count));
    for (int64_t i = 0, left = count; i < count && steps[i] < saved && left > limit; i++) {
        if (steps[i] == best) continue;
        NBL_TRY(remove_one(arena, p, steps[i]));
        left--;
    }
    return NBL_OK;
}

nbl_status nbl__checkpoint_identity(nbl_context *ctx, const char *folder, uint64_t *hash)
{
    nbl__arena arena = nbl__arena_make(ctx);
    uint64_t size;
    const char *path = nbl__arena_printf(&arena, "%s/%s", folder, state_name);
    nbl_status status = path ? nbl__fingerprint_file(ctx, path, &size, hash) : NBL_ERROR_MEMORY;
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__checkpoint_save(const nbl__run_parts *p)
{
    nbl__arena arena = nbl__arena_make(p->session->model->ctx);
    const char *folder = nbl__checkpoint_folder(&arena, p->config->output_dir, p->state->step);
    nbl_status status = folder ? nbl__remove_folder(arena.ctx, folder) : NBL_ERROR_MEMORY;
    if (status == NBL_OK)
        status = nbl__result_write(p->session, p->optimizer, p->config, NBL_DTYPE_F32, folder, put_more,
                                   (void *)(uintptr_t)p);
    if (status == NBL_OK && p->state->best_step == p->state->step && p->state->step > 0)
        status = nbl__checkpoint_identity(arena.ctx, folder, &p->state->best_state);
    if (status == NBL_OK) status = remove_oldest(&arena, p);
    nbl__arena_free(&arena);
    return status;
}

/* ---- finding and checking ---- */

static nbl_status read_json(nbl__arena *arena, const char *path, size_t limit, const nbl__json **root)
{
    char *text;
    size_t size = 0;
    NBL_TRY(nbl__file_read(arena->ctx, path, limit, &text, &size));
    nbl_status status = nbl__json_parse(arena, path, text, size, NBL_JSON_STRICT, root);
    nbl__free(arena->ctx, text, size + 1);
    return status;
}

/* Parses nibble_state.json and checks its version, then its checksum: version 1 has no checksum.
 * Older versions are NBL_ERROR_UNSUPPORTED. Version 1 lacks the keys and the model of its run,
 * version 2 lacks the best step. */
static nbl_status parse_state(nbl__arena *arena, const char *path, const char *text, size_t size,
                              const nbl__json **root)
{
    int64_t version = 0;
    NBL_TRY(nbl__json_parse(arena, path, text, size, NBL_JSON_STRICT, root));
    bool known = nbl__json_natural(nbl__json_get(*root, "version"), &version);
    if (known && version > 0 && version < STATE_VERSION)
        return nbl__hint(arena->ctx,
                         nbl__fail(arena->ctx, NBL_ERROR_UNSUPPORTED,
                                   "%s: version %" PRId64 ": an older nibble wrote it, and it does not tell "
                                   "all of what a run needs to go on",
                                   path, version),
                         "end the run with that nibble, or begin anew without --resume");
    NBL_CHECK(arena->ctx, known && version == STATE_VERSION, NBL_ERROR_UNSUPPORTED,
              "%s: version %" PRId64 " instead of %d", path, version, STATE_VERSION);
    return nbl__state_check_seal(arena->ctx, path, text, size);
}

/* Reads and checks folder/nibble_state.json. *path: its path, for messages. */
static nbl_status read_state(nbl__arena *arena, const char *folder, const char **path, const nbl__json **root)
{
    char *text;
    size_t size = 0;
    *path = nbl__arena_printf(arena, "%s/%s", folder, state_name);
    if (*path == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__file_read(arena->ctx, *path, STATE_LIMIT, &text, &size));
    nbl_status status = parse_state(arena, *path, text, size, root);
    nbl__free(arena->ctx, text, size + 1);
    return status;
}

/* Compares every file with the size and checksum in nibble_state.json. A name with '/' is an
 * error: it would lead out of the folder. Files that are not listed are ignored. */
static nbl_status verify(nbl__arena *arena, const char *folder)
{
    const nbl__json *root, *files;
    const char *path;
    nbl__run_state state;
    NBL_TRY(read_state(arena, folder, &path, &root));
    NBL_TRY(nbl__run_state_read(arena->ctx, path, root, &state));
    files = nbl__json_get(root, "files");
    NBL_CHECK(arena->ctx, nbl__json_is(files, NBL_JSON_OBJECT) && files->count > 0, NBL_ERROR_FORMAT,
              "%s: no files", path);
    for (int64_t i = 0; i < files->count; i++) {
        const nbl__json *it = &files->items[i];
        uint64_t hash = 0, found_size, found_hash;
        int64_t size = 0;
        bool good = nbl__json_is(it, NBL_JSON_ARRAY) && it->count == 2 && strchr(it->key, '/') == NULL &&
                    nbl__json_natural(&it->items[0], &size) && nbl__json_is(&it->items[1], NBL_JSON_STRING) &&
                    nbl__hash_parse(it->items[1].string, &hash);
        NBL_CHECK(arena->ctx, good, NBL_ERROR_FORMAT, "%s: files: no size and checksum of \"%s\"", path,
                  it->key);
        const char *file = nbl__arena_printf(arena, "%s/%s", folder, it->key);
        if (file == NULL) return NBL_ERROR_MEMORY;
        NBL_TRY(nbl__fingerprint_file(arena->ctx, file, &found_size, &found_hash));
        NBL_CHECK(arena->ctx, found_size == (uint64_t)size && found_hash == hash, NBL_ERROR_FORMAT,
                  "%s: damaged: %" PRIu64 " bytes, checksum %016" PRIx64 "; %" PRId64 " and %016" PRIx64
                  " were written",
                  file, found_size, found_hash, size, hash);
    }
    return NBL_OK;
}

nbl_status nbl__checkpoint_verify(nbl_context *ctx, const char *folder)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl_status status = verify(&arena, folder);
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__checkpoint_latest(nbl__arena *arena, const char *output_dir, const char **folder)
{
    int64_t *steps, count;
    *folder = NULL;
    NBL_TRY(list_steps(arena, output_dir, &steps, &count));
    for (int64_t i = count - 1; i >= 0; i--) {
        const char *candidate = nbl__checkpoint_folder(arena, output_dir, steps[i]);
        if (candidate == NULL) return NBL_ERROR_MEMORY;
        nbl_status status = nbl__checkpoint_verify(arena->ctx, candidate);
        if (status == NBL_OK) {
            *folder = candidate;
            return NBL_OK;
        }
        /* NBL_ERROR_UNSUPPORTED: a checkpoint of another version. It may be whole, so it is not
         * skipped. */
        if (status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED || status == NBL_ERROR_UNSUPPORTED)
            return status;
        nbl__log(arena->ctx, NBL_LOG_WARNING, "%s is skipped: %s", candidate, nbl_error_message(arena->ctx));
    }
    return NBL_OK;
}

/* ---- changes since the checkpoint ---- */

/* Adds a fingerprint as one more key, which never may change. 0: there is none. */
static nbl_status add_fingerprint(nbl__arena *arena, nbl__run_values *values, const char *key, uint64_t hash)
{
    if (hash == 0) return NBL_OK;
    nbl__run_value value = {key, nbl__arena_printf(arena, "files with checksum %016" PRIx64, hash),
                            NBL_RESUME_NEVER};
    return nbl__run_values_add(arena, values, value);
}

/* Adds the fingerprints of base model and start adapter to the keys, so one comparison covers
 * all. */
static nbl_status add_fingerprints(nbl__arena *arena, nbl__run_values *values, const nbl__run_state *state)
{
    NBL_TRY(add_fingerprint(arena, values, "base_model", state->base));
    return add_fingerprint(arena, values, "lora_model_dir", state->start);
}

nbl_status nbl__checkpoint_check(nbl__arena *arena, const char *folder, const nbl__run_state *state,
                                 const nbl__run_values *values, bool allow, nbl__name_list *history,
                                 bool *changed)
{
    const nbl__json *root;
    const char *path, *change;
    nbl__run_state saved;
    nbl__run_values was, is = {0};
    NBL_TRY(read_state(arena, folder, &path, &root));
    NBL_TRY(nbl__run_state_read(arena->ctx, path, root, &saved));
    NBL_TRY(nbl__run_history_read(arena, path, nbl__json_get(root, "history"), history));
    NBL_TRY(nbl__run_values_read(arena, path, nbl__json_get(root, "keys"), &was));
    for (int64_t i = 0; i < values->count; i++) NBL_TRY(nbl__run_values_add(arena, &is, values->items[i]));
    NBL_TRY(add_fingerprints(arena, &was, &saved));
    NBL_TRY(add_fingerprints(arena, &is, state));
    NBL_TRY(nbl__run_values_compare(arena, folder, &was, &is, allow, &change));
    *changed = change != NULL;
    if (!*changed) return NBL_OK;
    nbl__log(arena->ctx, NBL_LOG_WARNING, "%s: going on with changes: %s", folder, change);
    return nbl__run_history_add(arena, history,
                                nbl__arena_printf(arena, "step %" PRId64 ": %s", saved.step, change));
}

/* ---- loading ---- */

/* True if the checkpoint and this run differ in fp16. The saved loss_scale then does not apply. */
static bool is_other_dtype(const nbl__run_parts *p, const nbl__json *root)
{
    const char *was = nbl__json_text(nbl__json_get(root, "keys"), "fp16"),
               *is = nbl__run_value_find(p->values, "fp16");
    return was && is && strcmp(was, is) != 0;
}

/* See nbl__checkpoint_load. p->state holds the new run's data identity and loss scale on entry. */
static nbl_status load(const nbl__run_parts *p, nbl__arena *arena, const char *folder)
{
    const nbl__json *root, *history;
    const char *path;
    uint64_t data = p->state->data;
    double scale = p->state->loss_scale;
    NBL_TRY(read_state(arena, folder, &path, &root));
    NBL_TRY(nbl__run_state_read(arena->ctx, path, root, p->state));
    if (is_other_dtype(p, root)) p->state->loss_scale = scale, p->state->good_steps = 0;
    if (p->state->data != data)
        return nbl__hint(arena->ctx,
                         nbl__fail(arena->ctx, NBL_ERROR_FORMAT, "%s: the run trained on other data", folder),
                         "files, tokenizer, template and the keys that choose rows must be as they were");
    path = nbl__arena_printf(arena, "%s/trainer_state.json", folder);
    if (path == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(read_json(arena, path, TRAINER_STATE_LIMIT, &history));
    NBL_TRY(nbl__records_restore(p->records, path, nbl__json_get(history, "log_history")));
    if (p->session->model->peft == NULL) NBL_TRY(nbl__result_load(p->optimizer, folder, NULL));
    return nbl__optimizer_load(p->optimizer, folder);
}

nbl_status nbl__checkpoint_load(const nbl__run_parts *p, const char *folder)
{
    nbl__arena arena = nbl__arena_make(p->session->model->ctx);
    nbl_status status = load(p, &arena, folder);
    nbl__arena_free(&arena);
    return status;
}
