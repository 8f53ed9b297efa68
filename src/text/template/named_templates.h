/* named_templates.h - chat templates under the names that axolotl gives them.
 *
 * The templates are written for nibble, from descriptions of the formats. For messages whose
 * content is text they render what axolotl's template of the same name renders;
 * tests/oracle/test_axolotl.py compares the two. */
#ifndef NBL_NAMED_TEMPLATES_H
#define NBL_NAMED_TEMPLATES_H

#include "base/base.h"

/* Returns the text of a template, or NULL for an unknown name. */
const char *nbl__named_template(const char *name);
/* "tokenizer_default_fallback_NAME" stands for the model's own template, or for NAME if the model
 * has none. Returns NAME, or NULL if `name` does not begin so. */
const char *nbl__template_fallback(const char *name);
/* Returns all names, sorted, separated by ", ". */
const char *nbl__named_template_names(void);

#endif
