/* tokenizer_settings.h - what the JSON files beside a tokenizer's file say: the class of the
 * tokenizer, its options and its special tokens.
 *
 *     config.json                model_type; tokenizer_class, if tokenizer_config.json has none
 *     tokenizer_config.json      tokenizer_class, options, roles such as bos_token, added_tokens_decoder
 *     special_tokens_map.json    roles, if tokenizer_config.json has no added_tokens_decoder
 *     added_tokens.json          added tokens, if tokenizer_config.json has no added_tokens_decoder
 *
 * All of it matters only where there is no tokenizer.json. */
#ifndef NBL_TOKENIZER_SETTINGS_H
#define NBL_TOKENIZER_SETTINGS_H

#include "base/json/json.h"
#include "text/vocab/vocab_model.h"

/* The classes of transformers that have parts of their own. */
typedef enum nbl__tokenizer_class {
    NBL_TOKENIZER_OTHER, /* any other: the parts come from the file alone */
    NBL_TOKENIZER_GPT2,
    NBL_TOKENIZER_CODEGEN,
    NBL_TOKENIZER_QWEN2,
    NBL_TOKENIZER_QWEN3_5,
    NBL_TOKENIZER_GPT_NEOX,
    NBL_TOKENIZER_COHERE,
    NBL_TOKENIZER_LLAMA,
    NBL_TOKENIZER_GEMMA,
    NBL_TOKENIZER_T5
} nbl__tokenizer_class;

/* Roles of special tokens, in transformers' order. */
typedef enum nbl__token_role {
    NBL_ROLE_BOS,
    NBL_ROLE_EOS,
    NBL_ROLE_UNK,
    NBL_ROLE_SEP,
    NBL_ROLE_PAD,
    NBL_ROLE_CLS,
    NBL_ROLE_MASK,
    NBL_ROLES
} nbl__token_role;

/* A token that is searched in the text, with the flags of tokenizer.json. */
typedef struct nbl__added_entry {
    nbl__slice text; /* size 0: there is none */
    bool single_word, lstrip, rstrip, normalized, special;
    int64_t id; /* in added_tokens_decoder; a number to sort by, not the id that the token gets */
} nbl__added_entry;

typedef struct nbl__entry_list {
    nbl__added_entry *items;
    int64_t count, room;
} nbl__entry_list;

typedef struct nbl__tokenizer_settings {
    nbl__tokenizer_class class;      /* for tekken.json and files *.model */
    nbl__tokenizer_class pair_class; /* for vocab.json with merges.txt */
    const char *class_name;          /* tokenizer_class as it is written; NULL: none */
    const nbl__json *config;         /* tokenizer_config.json, or NULL */
    nbl__added_entry roles[NBL_ROLES];
    bool role_is_set[NBL_ROLES]; /* a file has the role, if only as null: no default applies */
    nbl__entry_list decoder;     /* added_tokens_decoder or added_tokens.json, by id */
    nbl__entry_list named;       /* roles of the model's own, such as image_token */
    nbl__entry_list extra;       /* extra_special_tokens, or additional_special_tokens */
    bool has_extra;              /* a file has that list, if only an empty one */
} nbl__tokenizer_settings;

/* Reads the files of a folder. All memory is in the arena. */
nbl_status nbl__tokenizer_settings_read(nbl__arena *arena, const char *folder,
                                        nbl__tokenizer_settings *settings);

/* Sets the role if no file has it. NULL leaves it unset. */
void nbl__role_default(nbl__tokenizer_settings *settings, nbl__token_role role, const char *text);
/* Sets the roles that the class has by itself. */
void nbl__class_defaults(nbl__tokenizer_settings *settings, nbl__tokenizer_class class);
/* A special token, as transformers makes it of a text. */
nbl__added_entry nbl__special_entry(nbl__slice text);
bool nbl__same_text(nbl__slice a, nbl__slice b);
/* A member of tokenizer_config.json as a truth value: `missing` if there is none; null is false. */
bool nbl__settings_flag(const nbl__tokenizer_settings *settings, const char *key, bool missing);

#endif
