/* text_part.h - the text model inside the checkpoint of a vision-language model.
 *
 *     config.json    {"model_type": "gemma3", "text_config": {…}, "vision_config": {…}}
 *     names          model.language_model.layers.0.mlp.up_proj.weight      of the text model
 *                    language_model.model.layers.0.mlp.up_proj.weight      the same, as older versions save it
 *                    vision_tower.…, multi_modal_projector.…, mtp.…        of other parts
 *
 * nibble computes with the text model alone, under the names that a text model's own folder has:
 * "model.layers.0.mlp.up_proj.weight". Tensors of other parts are copied by conversions and used
 * by nothing. A name of neither kind stays as it is, so that it is refused with that name. */
#ifndef NBL_TEXT_PART_H
#define NBL_TEXT_PART_H

#include "base/json/json.h"

/* A type of model whose files have more than a text model. */
typedef struct nbl__text_part {
    const char *model_type; /* of config.json */
    /* model_type of a text_config without one; NULL: config.json itself describes the text model */
    const char *text_type;
    bool tied; /* tie_word_embeddings of a config.json without that key */
    /* What modules of the text model begin with, instead of "model.", in the class that transformers
     * makes of the folder to generate text; NULL: "model.". New adapters have these names. */
    const char *prefix;
} nbl__text_part;

/* The row of this config; NULL: its files have a text model alone. */
const nbl__text_part *nbl__text_part_of(const nbl__json *config);
/* The text model's config: text_config of such a config, else the config itself. */
const nbl__json *nbl__text_config(const nbl__json *config);
/* True if a tensor of such a checkpoint belongs to another part than the text model. */
bool nbl__text_part_is_other(const char *stored);
/* The text model's name of a stored tensor or module: the same memory, or new in the arena. NULL if
 * memory has run out. */
const char *nbl__text_name(nbl__arena *arena, const char *stored);
/* The prefix (nbl__text_part) of the class that names a module or tensor so, a constant; NULL: that
 * of a text model. */
const char *nbl__text_prefix(const char *stored);
/* The opposite: `name` with `prefix` in place of "model.", in `memory` if it differs. NULL: it is
 * longer than that. */
const char *nbl__text_spell(const char *prefix, const char *name, char *memory, size_t size);
/* Modules of other parts as transformers' patterns of modules that are not quantized; NULL ends the
 * list. */
extern const char *const nbl__text_part_others[];

#endif
