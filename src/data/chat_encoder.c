/* chat_encoder.c - nbl_chat_encoder: tokens and labels of conversation rows, as training would
 * make them. For evaluating a model's answers. The rules are those of a run whose only dataset
 * has the type chat_template and no further keys. */
#include "data/row_encoder.h"

struct nbl_chat_encoder {
    nbl__run_config config;
    nbl__dataset_config dataset;
    nbl__row_encoder encoder;
    nbl__labelled row;
};

nbl_status nbl_chat_encoder_open(nbl_model *model, nbl_tokenizer *tokenizer, nbl_chat_template *chat_template,
                                 nbl_chat_encoder **encoder)
{
    nbl_chat_encoder *e;
    nbl_context *ctx = tokenizer->ctx;
    *encoder = NULL;
    NBL_TRY(NBL_ALLOC(ctx, e, 1));
    const char *name = chat_template->model ? chat_template->model : "the chat template";
    e->config = (nbl__run_config){.file = name, .base_model = name};
    e->dataset = (nbl__dataset_config){.type = NBL_DATA_CHAT};
    e->row.ctx = ctx;
    nbl_status status = nbl__row_encoder_borrow(model, &e->config, tokenizer, chat_template, &e->encoder);
    if (status == NBL_OK) *encoder = e;
    else nbl_chat_encoder_close(e);
    return status;
}

void nbl_chat_encoder_close(nbl_chat_encoder *e)
{
    if (e == NULL) return;
    nbl_context *ctx = e->row.ctx;
    nbl__row_encoder_return(&e->encoder);
    nbl__labelled_free(&e->row);
    nbl__free(ctx, e, sizeof *e);
}

/* Writes tokens and labels of a row, given as JSON text, to e->row. */
static nbl_status encode(nbl_chat_encoder *e, nbl__arena *arena, nbl_string row)
{
    nbl_context *ctx = e->row.ctx;
    const nbl__json *object;
    nbl__example_text example_text;
    nbl_ids *lists;
    NBL_TRY(nbl__json_parse(arena, "the row", row.text, row.size, NBL_JSON_SERDE, &object));
    NBL_CHECK(ctx, object->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "the row is not an object");
    NBL_TRY(nbl__example_row(&e->encoder, &e->dataset, arena, object, &example_text));
    nbl_string *texts = nbl__arena_alloc(arena, (size_t)example_text.part_count * sizeof *texts);
    lists = nbl__arena_alloc(arena, (size_t)example_text.part_count * sizeof *lists);
    if (texts == NULL || lists == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < example_text.part_count; i++)
        texts[i] = (nbl_string){example_text.parts[i].text, example_text.parts[i].size};
    NBL_TRY(nbl_tokenizer_encode_batch(e->encoder.tokenizer, example_text.part_count, texts, 0, lists));
    nbl_status status = nbl__example_label(&e->encoder, &e->dataset, arena, &example_text, lists, &e->row);
    for (int64_t i = 0; i < example_text.part_count; i++) nbl_ids_free(ctx, &lists[i]);
    return status;
}

/* Copies a list for the caller, who frees it with nbl_ids_free. */
static nbl_status copy_ids(nbl_context *ctx, const int32_t *from, int64_t count, nbl_ids *to)
{
    NBL_TRY(NBL_ALLOC(ctx, to->ids, count));
    memcpy(to->ids, from, (size_t)count * sizeof *from);
    to->count = count;
    return NBL_OK;
}

nbl_status nbl_chat_encoder_row(nbl_chat_encoder *e, const char *where, nbl_string row, nbl_ids *ids,
                                nbl_ids *labels)
{
    nbl_context *ctx = e->row.ctx;
    *ids = *labels = (nbl_ids){NULL, 0};
    NBL_TRY(nbl__progress_poll(ctx, "reading the data"));
    nbl__arena arena = nbl__arena_make(ctx);
    nbl_status status = encode(e, &arena, row);
    if (status != NBL_OK) status = nbl__fail_within(ctx, status, "%s", where);
    nbl__arena_free(&arena);
    if (status != NBL_OK || e->row.count == 0) return status;
    status = copy_ids(ctx, e->row.ids, e->row.count, ids);
    if (status == NBL_OK) status = copy_ids(ctx, e->row.labels, e->row.count, labels);
    if (status != NBL_OK) nbl_ids_free(ctx, ids);
    return status;
}
