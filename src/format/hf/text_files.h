/* text_files.h - copies and edits the small files about text: tokenizer, chat template, special
 * tokens.
 *
 *     tokenizer.json, tekken.json, tokenizer.model, tiktoken.model,
 *     vocab.json, merges.txt, added_tokens.json                               copied; `alone`: only
 *                                                                             the first and the last
 *     tokenizer_config.json, special_tokens_map.json, generation_config.json  copied with edits
 *     chat_template.jinja, chat_template.json, additional_chat_templates/     copied, or one new template
 *
 * A result folder gets these files with the changes of the run. So transformers' AutoTokenizer can
 * load an adapter's folder, and a model that is merged or exported later has the template and the
 * tokens that it was trained with. */
#ifndef NBL_TEXT_FILES_H
#define NBL_TEXT_FILES_H

#include "base/file/output.h"
#include "format/hf/config.h"

enum { NBL_MAX_SPECIAL_TOKENS = 4, NBL_MAX_TURN_ENDS = 64 };

/* The changes to apply. */
typedef struct nbl__text_changes {
    nbl_string chat_template; /* replaces all templates of the source; text NULL: copy those */
    struct nbl__special_token {
        const char *name, *text; /* "eos_token", "<|im_end|>" */
        int64_t id;              /* -1: unknown */
    } tokens[NBL_MAX_SPECIAL_TOKENS];
    int token_count;
    /* Ids besides eos_token that end a turn; added to eos_token_id in generation_config.json. */
    int64_t turn_ends[NBL_MAX_TURN_ENDS];
    int turn_end_count;
} nbl__text_changes;

/* The source of the files. */
typedef struct nbl__text_source {
    const char *folder; /* of the model; a path that is no folder has no files */
    /* Folder of an adapter; NULL: none. Each of its files replaces the model's; if it has any
     * template, all templates are its. */
    const char *adapter;
    bool alone; /* the result has no config.json, so tokenizer_config.json must name a tokenizer_class */
    nbl__text_changes changes;
} nbl__text_source;

/* True for tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json and
 * the like. */
bool nbl__is_text_file(const char *name);
/* Checks that config.json and all text files lie in the folder; a link that leads out of it is an
 * error (nbl__file_inside). Call it before the work. A path that is no folder passes. */
nbl_status nbl__text_files_check(nbl_context *ctx, const char *folder);
/* The permission bits that all text files of the folder have in common, for a file that is made of
 * them. */
unsigned nbl__text_files_rights(const char *folder);
/* *has: the folder has a chat template of its own, in any of the four forms. */
nbl_status nbl__has_template(nbl_context *ctx, const char *folder, bool *has);
/* Writes the files of the source, with its changes, to the output. */
nbl_status nbl__text_files_put(nbl__output *output, const nbl__text_source *source);

/* Makes the edits with which config.json names the ids of changed special tokens.
 *
 * root        the parsed file
 * ends        its eos_token_id so far; NULL: none
 * generation  the file is generation_config.json, which also gets the ends of turns
 * edits       room for NBL_MAX_SPECIAL_TOKENS; their text lives in the arena
 *
 * Returns the number of edits; -1: out of memory. */
int nbl__text_config_edits(nbl__arena *arena, const nbl__text_changes *changes, const nbl__json *root,
                           const nbl__json *ends, bool generation, nbl__config_edit *edits);

#endif
