/* best.c - counts evaluations, carries the best checkpoint over to a resumed run. See best.h. */
#include "train/best.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "train/output_dir.h"

bool nbl__best_count(nbl__run_state *s, bool greater_is_better, double loss)
{
    bool better = isfinite(loss) && (!isfinite(s->best_eval) ||
                                     (greater_is_better ? loss > s->best_eval : loss < s->best_eval));
    if (!better) {
        s->evals_without_gain++;
        return false;
    }
    s->best_eval = loss;
    s->best_step = s->step;
    s->best_state = 0; /* nbl__checkpoint_save sets it */
    s->evals_without_gain = 0;
    return true;
}

/* Fails unless the folder is the whole checkpoint that best_state identifies. */
static nbl_status check(nbl_context *ctx, const char *folder, const nbl__run_state *s)
{
    uint64_t found;
    NBL_CHECK(ctx, s->best_state != 0, NBL_ERROR_NOT_FOUND, "%s: the step was not saved", folder);
    NBL_TRY(nbl__checkpoint_identity(ctx, folder, &found));
    NBL_CHECK(ctx, found == s->best_state, NBL_ERROR_FORMAT,
              "%s: another checkpoint than the one that was saved: nibble_state.json has checksum %016" PRIx64
              " instead of %016" PRIx64,
              folder, found, s->best_state);
    return nbl__checkpoint_verify(ctx, folder);
}

/* ---- resuming ---- */

/* Copies all files of a folder, not its subfolders. */
static nbl_status copy_files(nbl__output *output, const char *from)
{
    DIR *list = opendir(from);
    if (list == NULL) return nbl__fail_errno(output->ctx, errno, "%s", from);
    nbl_status status = NBL_OK;
    for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));) {
        const char *source = nbl__arena_printf(&output->arena, "%s/%s", from, entry->d_name);
        if (source == NULL) status = NBL_ERROR_MEMORY;
        else if (!nbl__is_folder(source)) status = nbl__output_copy(output, entry->d_name, source);
    }
    closedir(list);
    return status;
}

static nbl_status copy_checkpoint(nbl_context *ctx, const char *from, const char *to)
{
    nbl__output *output;
    NBL_TRY(nbl__remove_folder(ctx, to));
    NBL_TRY(nbl__output_begin(ctx, to, 0, &output));
    nbl_status status = copy_files(output, from);
    if (status == NBL_OK) return nbl__output_commit(output);
    nbl__output_abort(output);
    return status;
}

static bool same_folder(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* *from: the folder of the best checkpoint. Either `resumed` itself, whose state could not
 * contain its own checksum: best_state is set now. Or a sibling of `resumed`, which is verified. */
static nbl_status find(nbl__arena *arena, const char *resumed, nbl__run_state *s, const char **from)
{
    *from = resumed;
    if (s->best_step == s->step) return nbl__checkpoint_identity(arena->ctx, resumed, &s->best_state);
    *from = nbl__arena_printf(arena, "%s/../checkpoint-%" PRId64, resumed, s->best_step);
    return *from ? check(arena->ctx, *from, s) : NBL_ERROR_MEMORY;
}

/* Warns with the last error, then continues without a best step. evals_without_gain stays. */
static void forget(nbl_context *ctx, nbl__run_state *s)
{
    nbl__log(ctx, NBL_LOG_WARNING,
             "step %" PRId64 " was the best so far, but its checkpoint cannot be used: %s; the best of the "
             "evaluations from here on is kept",
             s->best_step, nbl_error_message(ctx));
    s->best_eval = INFINITY;
    s->best_step = 0;
    s->best_state = 0;
}

/* Copies the best checkpoint to output_dir, unless it is there already. */
static nbl_status take_along(nbl__arena *arena, const nbl__run_config *c, const char *resumed,
                             const char *from, int64_t step)
{
    const char *beside = nbl__arena_printf(arena, "%s/..", resumed),
               *to = nbl__checkpoint_folder(arena, c->output_dir, step);
    if (beside == NULL || to == NULL) return NBL_ERROR_MEMORY;
    if (same_folder(beside, c->output_dir) || same_folder(from, to)) return NBL_OK;
    return copy_checkpoint(arena->ctx, from, to);
}

nbl_status nbl__best_resume(nbl_context *ctx, const nbl__run_config *c, const char *resumed,
                            nbl__run_state *s)
{
    if (!nbl__best_is_kept(c) || s->best_step == 0) return NBL_OK;
    nbl__arena arena = nbl__arena_make(ctx);
    const char *from;
    nbl_status status = find(&arena, resumed, s, &from);
    if (status == NBL_OK) status = take_along(&arena, c, resumed, from, s->best_step);
    else if (status != NBL_ERROR_MEMORY && status != NBL_ERROR_CANCELLED) {
        forget(ctx, s);
        status = NBL_OK;
    }
    nbl__arena_free(&arena);
    return status;
}

/* ---- result ---- */

nbl_status nbl__best_load(nbl__optimizer *o, const nbl__peft *peft, const nbl__run_config *c,
                          const nbl__run_state *s)
{
    nbl__arena arena = nbl__arena_make(o->ctx);
    const char *folder = nbl__checkpoint_folder(&arena, c->output_dir, s->best_step);
    nbl_status status = folder ? check(o->ctx, folder, s) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) status = nbl__result_load(o, folder, peft);
    if (status == NBL_ERROR_FORMAT || status == NBL_ERROR_NOT_FOUND)
        nbl__hint(o->ctx, status, "nibble train %s --resume goes on from the newest checkpoint that is whole",
                  c->file);
    nbl__arena_free(&arena);
    return status;
}
