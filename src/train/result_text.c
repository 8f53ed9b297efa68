/* result_text.c - collects the changes that a run makes to the base model's text files. See
 * result_text.h. */
#include "train/result_text.h"

#include "base/file/file.h"
#include "text/files/tokenizer_files.h"
#include "text/tokenizer/tokenizer.h"
#include "data/row_encoder.h"

/* Looks up the ids of special_tokens and eot_tokens in the base model's tokenizer. Without a
 * tokenizer ids stay -1 and there are no turn ends. */
static nbl_status find_ids(nbl_context *ctx, const nbl__run_config *config, nbl__text_changes *changes)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl_tokenizer *tokenizer = NULL;
    const char *path;
    nbl_status status = nbl__tokenizer_find(&arena, config->base_model, &path);
    if (path) status = nbl_tokenizer_open(ctx, path, &tokenizer);
    else if (status == NBL_OK && nbl__ends_with(config->base_model, ".gguf"))
        status = nbl_tokenizer_open(ctx, config->base_model, &tokenizer);
    for (int i = 0; tokenizer && i < changes->token_count; i++) {
        struct nbl__special_token *token = &changes->tokens[i];
        token->id = nbl_tokenizer_find(tokenizer, token->text, strlen(token->text));
    }
    const nbl__name_list *turns = &config->eot_tokens;
    for (int64_t i = 0; tokenizer && i < turns->count && changes->turn_end_count < NBL_MAX_TURN_ENDS; i++) {
        int32_t id = nbl_tokenizer_find(tokenizer, turns->items[i], strlen(turns->items[i]));
        if (id >= 0) changes->turn_ends[changes->turn_end_count++] = id;
    }
    nbl_tokenizer_close(tokenizer);
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__result_text(nbl_context *ctx, const nbl__run_config *config, nbl__text_source *source)
{
    const struct {
        const char *name, *text;
    } told[NBL_MAX_SPECIAL_TOKENS] = {{"bos_token", config->bos_token},
                                      {"eos_token", config->eos_token},
                                      {"pad_token", config->pad_token},
                                      {"unk_token", config->unk_token}};
    *source = (nbl__text_source){.folder = config->base_model, .alone = !config->full};
    nbl__text_changes *changes = &source->changes;
    NBL_TRY(nbl__run_template(ctx, config, &changes->chat_template));
    for (int i = 0; i < NBL_MAX_SPECIAL_TOKENS; i++)
        if (told[i].text)
            changes->tokens[changes->token_count++] = (struct nbl__special_token){told[i].name, told[i].text,
                                                                                  -1};
    return changes->token_count || config->eot_tokens.count ? find_ids(ctx, config, changes) : NBL_OK;
}
