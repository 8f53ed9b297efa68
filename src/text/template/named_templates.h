/* named_templates.h - chat templates by the names that axolotl gives them.
 *
 * Each is written for nibble from the format's description: it renders messages of texts as axolotl's template of that
 * name does, which tests/oracle/test_axolotl.py compares. */
#ifndef NBL_NAMED_TEMPLATES_H
#define NBL_NAMED_TEMPLATES_H

#include "base/base.h"

/* The template's text; NULL: no such name. */
const char *nbl__named_template(const char *name);
/* The name behind "tokenizer_default_fallback_", which stands for the model's own template or, where it has none, the
 * named one. NULL: no such text. */
const char *nbl__template_fallback(const char *name);
/* All names, sorted, between ", ". */
const char *nbl__named_template_names(void);

#endif
