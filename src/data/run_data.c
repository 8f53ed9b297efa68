/* run_data.c - the data of a run in the public interface: counts, and previews of examples as
 * text. */
#include "arch/arch.h"
#include "format/hf/config.h"
#include "format/hf/text_part.h"
#include "format/gguf/gguf_model.h"
#include "data/data_parts.h"
#include "run/run.h"
#include "text/files/tokenizer_files.h"

/* vocab_size of a config.json, from 1; of a model with several parts, that of text_config, or the
 * architecture's default. */
static nbl_status vocabulary_in(nbl_context *ctx, const char *where, const nbl__json *config,
                                int64_t *vocabulary)
{
    const nbl__json *value = nbl__config_find(config, "vocab_size");
    if (value == NULL && nbl__text_part_of(config)) {
        nbl__decoder d;
        NBL_TRY(nbl__decoder_read(ctx, where, config, &d));
        *vocabulary = d.vocabulary;
        return NBL_OK;
    }
    NBL_CHECK(ctx, nbl__json_natural(value, vocabulary) && *vocabulary >= 1 && *vocabulary <= INT32_MAX,
              NBL_ERROR_FORMAT, "%s: vocab_size is %s", where, value ? "not a sensible number" : "missing");
    return NBL_OK;
}

/* Warns if sequence_len exceeds max_position_embeddings. That is possible, but the model was not
 * trained there. */
static void warn_of_positions(nbl_context *ctx, const nbl__run_config *c, const nbl__json *config)
{
    int64_t positions;
    const nbl__json *value = nbl__config_find(config, "max_position_embeddings");
    if (!nbl__json_natural(value, &positions) || c->sequence_len <= positions) return;
    nbl__log(ctx, NBL_LOG_WARNING,
             "%s: sequence_len %" PRId64 " is beyond the %" PRId64
             " positions that %s was made for (max_position_embeddings)",
             c->file, c->sequence_len, positions, c->base_model);
}

nbl_status nbl__run_vocabulary(nbl_context *ctx, const nbl__run_config *c, int64_t *vocabulary)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__gguf_model *gguf = NULL;
    nbl__config config;
    const nbl__json *root = NULL;
    const char *model = c->base_model, *path = nbl__arena_printf(&arena, "%s/config.json", model);
    nbl_status status = NBL_ERROR_MEMORY;
    if (path && nbl__ends_with(model, ".gguf")) {
        path = model;
        status = nbl__gguf_model_open(ctx, model, &gguf);
        if (status == NBL_OK) root = gguf->config.root;
    } else if (path) {
        status = nbl__config_read(&arena, path, &config);
        if (status == NBL_OK) root = config.root;
    }
    if (status == NBL_OK) status = vocabulary_in(ctx, path, root, vocabulary);
    if (status == NBL_OK) warn_of_positions(ctx, c, root);
    nbl__gguf_model_close(gguf);
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__run_open_data(nbl_run *run)
{
    int64_t vocabulary;
    if (run->data) return NBL_OK;
    NBL_TRY(nbl__run_vocabulary(run->ctx, &run->config, &vocabulary));
    return nbl__data_open(run->ctx, &run->config, vocabulary, &run->data);
}

nbl_status nbl_run_data(nbl_run *run, nbl_data_summary *summary)
{
    NBL_CHECK(run->ctx, summary != NULL, NBL_ERROR_ARGUMENT, "nbl_run_data: summary is NULL");
    NBL_TRY(NBL_RESULT_BEGIN(run->ctx, nbl_data_summary, summary));
    NBL_TRY(nbl__run_open_data(run));
    nbl__data_counts counts = nbl__data_count(run->data);
    nbl_data_summary found = {.examples = counts.examples,
                              .tokens = counts.tokens,
                              .trained_tokens = counts.trained_tokens,
                              .truncated = counts.truncated,
                              .dropped = counts.dropped,
                              .validation = run->data->validation_count,
                              .too_long = counts.too_long,
                              .bad = counts.bad,
                              .untrained = counts.untrained,
                              .too_short = counts.too_short,
                              .duplicates = counts.duplicates};
    NBL_RESULT_PUT(nbl_data_summary, summary, &found);
    return NBL_OK;
}

/* ---- previews ---- */

/* *tokenizer: for showing examples as text; NULL: the model has none. Opened once per run. */
static nbl_status find_tokenizer(nbl_run *run, nbl_tokenizer **tokenizer)
{
    *tokenizer = run->data->encoder.tokenizer ? run->data->encoder.tokenizer : run->tokenizer;
    if (*tokenizer) return NBL_OK;
    const char *path;
    NBL_TRY(nbl__tokenizer_find(&run->preview, run->config.base_model, &path));
    if (path == NULL) return NBL_OK;
    NBL_TRY(nbl_tokenizer_open(run->ctx, path, &run->tokenizer));
    *tokenizer = run->tokenizer;
    return NBL_OK;
}

/* *text: the ids as text, in the memory of previews; without a tokenizer the ids as numbers. */
static nbl_status ids_to_text(nbl_run *run, nbl_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                              nbl_string *text)
{
    char *decoded, *copy;
    size_t size;
    if (tokenizer) {
        NBL_TRY(nbl_tokenizer_decode(tokenizer, ids, count, 0, &decoded, &size));
        copy = nbl__arena_alloc(&run->preview, size + 1);
        if (copy) memcpy(copy, decoded, size);
        nbl_text_free(run->ctx, decoded, size);
        *text = (nbl_string){copy, size};
        return copy ? NBL_OK : NBL_ERROR_MEMORY;
    }
    nbl__text list = {.ctx = run->ctx};
    for (int64_t i = 0; i < count; i++) nbl__text_printf(&list, "%d ", ids[i]);
    copy = list.status == NBL_OK ? nbl__arena_strdup(&run->preview, list.text) : NULL;
    *text = (nbl_string){copy, list.size};
    nbl__text_free(&list);
    return copy ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Splits an example into parts of consecutive tokens that are all trained or all not trained. */
static nbl_status show(nbl_run *run, const nbl__example *example, nbl_preview *preview)
{
    int64_t count = example->count, parts = 0;
    int32_t *ids = nbl__arena_alloc(&run->preview, (size_t)count * 2 * sizeof *ids), *labels = ids + count;
    nbl_preview_part *list = nbl__arena_alloc(&run->preview, (size_t)count * sizeof *list);
    nbl_tokenizer *tokenizer;
    if (ids == NULL || list == NULL) return NBL_ERROR_MEMORY;
    memcpy(ids, example->ids, (size_t)count * sizeof *ids);
    memcpy(labels, example->labels, (size_t)count * sizeof *labels);
    NBL_TRY(find_tokenizer(run, &tokenizer));
    for (int64_t begin = 0, end; begin < count; begin = end, parts++) {
        bool trained = labels[begin] != -100;
        for (end = begin + 1; end < count && (labels[end] != -100) == trained; end++) {}
        list[parts] = (nbl_preview_part){.tokens = end - begin, .trained = trained};
        NBL_TRY(ids_to_text(run, tokenizer, ids + begin, end - begin, &list[parts].text));
        if (trained) preview->trained_tokens += end - nbl__max_i64(begin, 1);
    }
    preview->ids = ids;
    preview->labels = labels;
    preview->count = count;
    preview->parts = list;
    preview->part_count = parts;
    return NBL_OK;
}

nbl_status nbl_run_preview(nbl_run *run, int64_t index, nbl_preview *preview)
{
    nbl__example example;
    nbl_preview made = {0};
    NBL_CHECK(run->ctx, preview != NULL, NBL_ERROR_ARGUMENT, "nbl_run_preview: preview is NULL");
    NBL_TRY(NBL_RESULT_BEGIN(run->ctx, nbl_preview, preview));
    NBL_TRY(nbl__run_open_data(run));
    NBL_TRY(nbl__data_example(run->data, index, &example));
    nbl__arena_free(&run->preview);
    NBL_TRY(show(run, &example, &made));
    NBL_RESULT_PUT(nbl_preview, preview, &made);
    return NBL_OK;
}
