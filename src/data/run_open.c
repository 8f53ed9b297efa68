/* run_open.c - opens and closes nbl_run, the public handle of a configuration and what is opened
 * for it. See run.h. */
#include "run/run.h"

#include "data/data.h"
#include "device/device.h"

nbl_status nbl_run_open(nbl_context *ctx, const char *path, const char *const *overrides, int64_t count,
                        nbl_run **run)
{
    NBL_CHECK(ctx, run != NULL, NBL_ERROR_ARGUMENT, "opening a run: run is NULL");
    *run = NULL;
    NBL_CHECK(ctx, path != NULL && count >= 0 && (overrides != NULL || count == 0), NBL_ERROR_ARGUMENT,
              "opening a run: path or overrides are NULL");
    for (int64_t i = 0; i < count; i++)
        NBL_CHECK(ctx, overrides[i] != NULL, NBL_ERROR_ARGUMENT,
                  "opening a run: override %" PRId64 " is NULL", i);
    NBL_TRY(nbl__check_models(ctx));
    nbl_run *made;
    NBL_TRY(NBL_ALLOC(ctx, made, 1));
    made->ctx = ctx;
    made->arena = nbl__arena_make(ctx);
    made->preview = nbl__arena_make(ctx);
    nbl_status status = nbl__run_config_read(&made->arena, path, overrides, count, &made->config);
    made->info = (nbl_run_info){.base_model = made->config.base_model,
                                .output_dir = made->config.output_dir,
                                .adapter = !made->config.full,
                                .report = made->config.report,
                                .threads = (int)made->config.threads,
                                .mergeable = status == NBL_OK && nbl__run_mergeable(&made->config)};
    if (status == NBL_OK) nbl_device_kind_parse(made->config.device, &made->info.device);
    if (status == NBL_OK) *run = made;
    else nbl_run_close(made);
    return status;
}

const nbl_run_info *nbl_run_get_info(const nbl_run *run)
{
    return &run->info;
}

void nbl_run_close(nbl_run *run)
{
    if (run == NULL) return;
    nbl_context *ctx = run->ctx;
    nbl__data_close(run->data);
    nbl_tokenizer_close(run->tokenizer);
    nbl__arena_free(&run->preview);
    nbl__arena_free(&run->arena);
    nbl__free(ctx, run, sizeof *run);
}
