/* json_write.h - writes JSON: strings, numbers, separators and indentation.
 *
 * The one writer of JSON: of the library's files, of the filter tojson, and of the command's
 * output. It hands its bytes to a function, so it serves texts with a budget and streams alike, and
 * needs no memory itself.
 *
 *     nbl__json_open(w, '{');
 *     nbl__json_key(w, "ids", 3);
 *     nbl__json_open(w, '[');
 *     nbl__json_item(w), nbl__json_integer(w, 1);
 *     nbl__json_item(w), nbl__json_integer(w, 2);
 *     nbl__json_close(w, ']');
 *     nbl__json_close(w, '}');
 */
#ifndef NBL_JSON_WRITE_H
#define NBL_JSON_WRITE_H

#include "base/json/json.h"

typedef struct nbl__json_style {
    const char *indent; /* text of one level of indentation; NULL: all in one line */
    size_t indent_size;
    nbl_string item, key; /* separators after an item and after a key */
    bool ascii;           /* only ASCII: other characters are \u escapes */
    bool no_nulls;        /* members that are null are left out */
    bool jansson;         /* as jansson: \u escapes have capitals, reals 17 digits */
} nbl__json_style;

/* Python's json.dumps(ensure_ascii=False), in one line. */
extern const nbl__json_style nbl__json_style_line;

typedef struct nbl__json_writer {
    /* Takes the next bytes. A failure ends the writing. */
    nbl_status (*add)(void *to, const char *bytes, size_t size);
    void *to;
    const nbl__json_style *style;
    int level;   /* open arrays and objects */
    bool filled; /* the innermost of them has an item */
} nbl__json_writer;

/* A writer that appends to a text. */
nbl__json_writer nbl__json_to_text(nbl__text *text, const nbl__json_style *style);

nbl_status nbl__json_open(nbl__json_writer *w, char bracket);
nbl_status nbl__json_close(nbl__json_writer *w, char bracket);
/* Begins an item of an array. The caller writes its value next. */
nbl_status nbl__json_item(nbl__json_writer *w);
/* Begins a member of an object. */
nbl_status nbl__json_key(nbl__json_writer *w, const char *key, size_t size);

/* Writes a string. `text` is valid UTF-8; other bytes are copied, or escaped if the style is ASCII. */
nbl_status nbl__json_string(nbl__json_writer *w, const char *text, size_t size);
nbl_status nbl__json_integer(nbl__json_writer *w, int64_t value);
nbl_status nbl__json_real(nbl__json_writer *w, double value);     /* NaN and infinities become null */
nbl_status nbl__json_word(nbl__json_writer *w, const char *word); /* null, true, digits */
/* Writes a whole value. It recurses as deep as the value is. */
nbl_status nbl__json_write(nbl__json_writer *w, const nbl__json *value);

#endif
