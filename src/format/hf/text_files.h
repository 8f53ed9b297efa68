/* text_files.h - the small files that say how a model reads and writes text: tokenizer, chat template, special tokens.
 *
 * A result carries them with what the run changed: transformers' AutoTokenizer loads the folder of an adapter, and the
 * model that is merged or exported later uses the template and the tokens it was trained with. */
#ifndef NBL_TEXT_FILES_H
#define NBL_TEXT_FILES_H

#include "base/file/output.h"
#include "format/hf/config.h"

enum { NBL_MAX_SPECIAL_TOKENS = 4, NBL_MAX_TURN_ENDS = 64 };

/* What is written differently than it is found. */
typedef struct nbl__text_changes {
    nbl_string chat_template; /* the only template of the result; text NULL: those of the files */
    struct nbl__special_token {
        const char *name, *text; /* "eos_token", "<|im_end|>" */
        int64_t id;              /* -1: not known */
    } tokens[NBL_MAX_SPECIAL_TOKENS];
    int token_count;
    int64_t turn_ends
        [NBL_MAX_TURN_ENDS]; /* ids that end a turn beside eos_token: generation_config.json gets them */
    int turn_end_count;
} nbl__text_changes;

/* Where the files come from. */
typedef struct nbl__text_source {
    const char *folder; /* of a model; a path that is no folder has no files */
    const char
        *adapter; /* its files, and its templates when it has any, take the place of the folder's; or NULL */
    bool alone;   /* the result has no config.json: tokenizer_config.json must name a tokenizer_class */
    nbl__text_changes changes;
} nbl__text_source;

/* tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json, … */
bool nbl__is_text_file(const char *name);
/* Refuses links that lead out of the folder (nbl__file_inside), in config.json and all of those files, before the work.
 * A path that is no folder has none. */
nbl_status nbl__text_files_check(nbl_context *ctx, const char *folder);
/* What a file made of those of the folder may allow. */
unsigned nbl__text_files_rights(const char *folder);
/* Has the folder a chat template of its own? */
nbl_status nbl__has_template(nbl_context *ctx, const char *folder, bool *has);
/* Writes the files into the output. */
nbl_status nbl__text_files_put(nbl__output *output, const nbl__text_source *source);

/* The edits that make config.json (or generation_config.json, `generation`) name the ids of changed special tokens: at
 * most NBL_MAX_SPECIAL_TOKENS; their text is the arena's. `ends`: the eos_token_id so far; it is NULL if there is none.
 * Returns how many, -1: no memory. */
int nbl__text_config_edits(nbl__arena *arena, const nbl__text_changes *changes, const nbl__json *root,
                           const nbl__json *ends, bool generation, nbl__config_edit *edits);

#endif
