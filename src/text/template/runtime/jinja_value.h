/* jinja_value.h - the values of a chat template and the machine that holds them.
 *
 * A value is 16 bytes; what does not fit lies in the arena of the rendering and lives until it ends.
 * Lists, dictionaries and strings never change once they were made, as in jinja2's immutable sandbox;
 * namespaces, loops, iterators and cyclers are the exceptions. Semantics are those of Python 3.
 *
 * `tpl` is the prefix of the template language inside this library. Every function that can fail
 * returns a status; what went wrong stands in the machine (tpl_raise) until the rendering ends. */
#ifndef NBL_JINJA_VALUE_H
#define NBL_JINJA_VALUE_H

#include "base/arena.h"

typedef enum tpl_type {
    TPL_MISSING, /* no value at all: an argument that was not given, a variable before its set */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_BIG, /* an integer beyond 64 bits: can be printed and compared for equality, no more */
    TPL_FLOAT,
    TPL_STRING,
    TPL_LIST,
    TPL_TUPLE,
    TPL_DICT,
    TPL_VIEW, /* keys, values or items of a dictionary */
    TPL_RANGE,
    TPL_ITERATOR, /* consumed once: what map, select and the like give */
    TPL_FUNCTION,
    TPL_MACRO,
    TPL_NAMESPACE,
    TPL_LOOP,
    TPL_OBJECT /* cycler, joiner, self, a block */
} tpl_type;

typedef enum tpl_view { TPL_KEYS, TPL_VALUES, TPL_ITEMS } tpl_view;

typedef struct tpl_vm tpl_vm;
typedef struct tpl_string tpl_string;
typedef struct tpl_list tpl_list;
typedef struct tpl_dict tpl_dict;
typedef struct tpl_undefined tpl_undefined;
typedef struct tpl_range tpl_range;
typedef struct tpl_iterator tpl_iterator;
typedef struct tpl_function tpl_function;
typedef struct tpl_macro tpl_macro;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_object tpl_object;

typedef struct tpl_value {
    uint8_t type;
    uint8_t markup; /* of a string: it is safe HTML */
    uint8_t view;   /* of a view: tpl_view */
    union {
        int64_t integer; /* int, bool */
        double real;
        const tpl_string *string; /* string; big: its decimal digits */
        const tpl_list *list;     /* list, tuple */
        tpl_dict *dict;           /* dict, view, namespace */
        const tpl_undefined *undefined;
        const tpl_range *range;
        tpl_iterator *iterator;
        const tpl_function *function;
        const tpl_macro *macro;
        tpl_loop *loop;
        tpl_object *object;
        const void *pointer;
    };
} tpl_value;

struct tpl_string {
    const char *bytes; /* UTF-8, may hold zero bytes */
    size_t size;       /* in bytes */
    size_t length;     /* in characters */
};

struct tpl_list {
    tpl_value *items;
    int64_t count;
    bool group; /* a tuple of the filter groupby: has the attributes grouper and list */
};

typedef struct tpl_entry {
    tpl_value key, value;
    uint64_t hash;
} tpl_entry;

struct tpl_dict { /* in the order of insertion */
    tpl_entry *entries;
    int64_t count, room;
    int32_t *table; /* entry + 1 by hash, `slots` of them; NULL while there are few entries */
    int64_t slots;
};

struct tpl_undefined { /* what is said when it is used */
    const char *hint;  /* the whole message, or NULL */
    const char *owner; /* the type that lacks `name`; NULL: a variable */
    tpl_value name;
};

struct tpl_range {
    int64_t start, stop, step, count;
};

/* Gives the next item; *more is false at the end. */
typedef nbl_status (*tpl_next_fn)(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more);

struct tpl_iterator {
    tpl_next_fn next;
    const char *type; /* Python's name of it */
    tpl_value source;
    int64_t at, end, step;
    size_t offset; /* in the bytes of a string */
    void *state;   /* of the filters and loops that make iterators */
};

typedef struct tpl_keyword {
    tpl_value name; /* a string */
    tpl_value value;
} tpl_keyword;

typedef struct tpl_args {
    tpl_value *items;
    int64_t count;
    tpl_keyword *keywords;
    int64_t keyword_count;
} tpl_args;

typedef nbl_status (*tpl_call_fn)(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result);

struct tpl_function {
    const char *name;
    tpl_call_fn call;
    tpl_value self;    /* of a method */
    const char *owner; /* type of self; NULL: a plain function */
};

typedef enum tpl_object_kind { TPL_CYCLER, TPL_JOINER, TPL_SELF, TPL_BLOCK } tpl_object_kind;

struct tpl_object {
    tpl_object_kind kind;
    tpl_value value; /* items of a cycler, separator of a joiner, name of a block */
    int64_t at;      /* position of a cycler; whether a joiner was used */
};

/* ---- the machine ---- */

/* Growing text in the arena. */
typedef struct tpl_text {
    char *bytes;
    size_t size, room, length; /* length: in characters */
} tpl_text;

typedef struct tpl_span {
    int64_t start, end;
} tpl_span;

struct tpl_vm {
    nbl_context *ctx;
    nbl__arena arena;
    size_t memory;   /* bytes taken so far */
    uint64_t steps;  /* work done so far */
    uint64_t polled; /* steps when the caller was last asked whether to go on */
    int depth;       /* of nested evaluation */
    int line, column;
    bool autoescape;
    bool folding;  /* the value of a constant is looked for: jinja_constant.c */
    int flow;      /* tpl_flow: a break or continue is on its way */
    tpl_text *out; /* where output goes now */
    tpl_text text; /* the rendered text; what is in a buffer is not yet there */
    tpl_span *spans;
    int64_t span_count, span_room;
    tpl_dict *context;   /* variables handed in, over the globals */
    tpl_dict *variables; /* set at the top level of the template */
    const struct tpl_program *program;
    /* the failure */
    nbl_status status;
    const tpl_string *own; /* the message of raise_exception, as it is */
    char message[768];
};

enum {
    TPL_MAX_MEMORY = 320 << 20,   /* bytes of one rendering, with everything that was thrown away */
    TPL_MAX_STEPS = 40000000,     /* nodes evaluated, items visited, 16 bytes read */
    TPL_POLL_STEPS = 1 << 18,     /* some milliseconds: the caller is asked whether to go on */
    TPL_STACK_RESERVE = 96 << 10, /* bytes of the thread's stack that an evaluation leaves */
    TPL_MAX_OUTPUT = 64 << 20,    /* bytes of a text */
    TPL_MAX_DEPTH = 2000,         /* nested evaluations */
    TPL_MAX_NESTING = 450,        /* of a value that is printed, compared or read */
    TPL_SMALL_DICT = 8            /* entries that are searched one by one */
};

/* Records a failure at the current place. A status other than FORMAT is kept as it is. */
__attribute__((format(printf, 2, 3))) nbl_status nbl__tpl_raise(tpl_vm *vm, const char *format, ...);
/* What jinja2 can do and this library cannot, or will not: limits. */
__attribute__((format(printf, 2, 3))) nbl_status nbl__tpl_refuse(tpl_vm *vm, const char *format, ...);
/* The failure that using an undefined value is. */
nbl_status nbl__tpl_raise_undefined(tpl_vm *vm, tpl_value undefined);
/* Counts work; fails when it becomes too much, and when the progress callback asks to stop. */
nbl_status nbl__tpl_work(tpl_vm *vm, uint64_t steps);
/* Counts the reading of text. Every operation counts what it reads, also if it allocates nothing. */
static inline nbl_status tpl_read(tpl_vm *vm, size_t bytes)
{
    return nbl__tpl_work(vm, bytes / 16);
}
/* The same where every character is looked up in a table of properties. */
static inline nbl_status tpl_read_characters(tpl_vm *vm, size_t bytes)
{
    return nbl__tpl_work(vm, bytes / 4);
}
nbl_status nbl__tpl_enter(tpl_vm *vm); /* one level deeper; --vm->depth on the way back */

/* NULL after a recorded failure. */
void *nbl__tpl_alloc(tpl_vm *vm, size_t size);
#define TPL_NEW(vm, pointer, count)                                                                          \
    (((pointer) = nbl__tpl_alloc_array((vm), (size_t)(count), sizeof *(pointer))) ? NBL_OK : (vm)->status)
void *nbl__tpl_alloc_array(tpl_vm *vm, size_t count, size_t element);

/* ---- making values ---- */

static inline tpl_value tpl_missing(void)
{
    return (tpl_value){.type = TPL_MISSING};
}
static inline tpl_value tpl_none(void)
{
    return (tpl_value){.type = TPL_NONE};
}
static inline tpl_value tpl_bool(bool truth)
{
    return (tpl_value){.type = TPL_BOOL, .integer = truth};
}
static inline tpl_value tpl_int(int64_t integer)
{
    return (tpl_value){.type = TPL_INT, .integer = integer};
}
static inline tpl_value tpl_float(double real)
{
    return (tpl_value){.type = TPL_FLOAT, .real = real};
}
static inline tpl_value tpl_of_string(const tpl_string *string)
{
    return (tpl_value){.type = TPL_STRING, .string = string};
}
static inline bool tpl_is_integer(tpl_value v) /* also bool */
{
    return v.type == TPL_INT || v.type == TPL_BOOL;
}
static inline bool tpl_is_number(tpl_value v)
{
    return tpl_is_integer(v) || v.type == TPL_FLOAT;
}
static inline double tpl_as_double(tpl_value v)
{
    return v.type == TPL_FLOAT ? v.real : (double)v.integer;
}
static inline bool tpl_is_sequence(tpl_value v) /* list, tuple */
{
    return v.type == TPL_LIST || v.type == TPL_TUPLE;
}

/* A string of bytes that live as long as the rendering. */
nbl_status nbl__tpl_string(tpl_vm *vm, const char *bytes, size_t size, tpl_value *result);
/* The same with a copy of the bytes. */
nbl_status nbl__tpl_string_copy(tpl_vm *vm, const char *bytes, size_t size, tpl_value *result);
nbl_status nbl__tpl_cstring(tpl_vm *vm, const char *text, tpl_value *result); /* text is not copied */
/* `count` items in one list or tuple; the items are to be filled in. */
nbl_status nbl__tpl_list(tpl_vm *vm, tpl_type type, int64_t count, tpl_value *result, tpl_value **items);
nbl_status nbl__tpl_pair(tpl_vm *vm, tpl_value a, tpl_value b, tpl_value *result);
nbl_status nbl__tpl_undefined(tpl_vm *vm, const char *hint, const char *owner, tpl_value name,
                              tpl_value *result);
nbl_status nbl__tpl_function(tpl_vm *vm, const char *name, tpl_call_fn call, const char *owner,
                             tpl_value self, tpl_value *result);
/* "str", "int", … as type(value).__name__. */
const char *nbl__tpl_type_name(tpl_value v);

/* A list under construction. */
typedef struct tpl_items {
    tpl_value *items;
    int64_t count, room;
} tpl_items;
nbl_status nbl__tpl_push(tpl_vm *vm, tpl_items *list, tpl_value item);
nbl_status nbl__tpl_finish(tpl_vm *vm, const tpl_items *list, tpl_type type, tpl_value *result);

/* ---- dictionaries ---- */

nbl_status nbl__tpl_dict(tpl_vm *vm, tpl_dict **dict);
/* Fails when the key cannot be hashed. */
nbl_status nbl__tpl_dict_set(tpl_vm *vm, tpl_dict *dict, tpl_value key, tpl_value value);
nbl_status nbl__tpl_dict_find(tpl_vm *vm, const tpl_dict *dict, tpl_value key, tpl_entry **entry);
/* By a text; NULL: not there. Cannot fail. */
tpl_entry *nbl__tpl_dict_get(const tpl_dict *dict, const char *key, size_t size);
/* Adds all entries of another one. */
nbl_status nbl__tpl_dict_merge(tpl_vm *vm, tpl_dict *dict, const tpl_dict *more);
nbl_status nbl__tpl_hash(tpl_vm *vm, tpl_value v, uint64_t *hash);

/* ---- what Python asks of every value ---- */

nbl_status nbl__tpl_truth(tpl_vm *vm, tpl_value v, bool *truth);
nbl_status nbl__tpl_equal(tpl_vm *vm, tpl_value a, tpl_value b, bool *equal);
typedef enum tpl_order { TPL_LT, TPL_LE, TPL_GT, TPL_GE } tpl_order;
nbl_status nbl__tpl_compare(tpl_vm *vm, tpl_order order, tpl_value a, tpl_value b, bool *result);
nbl_status nbl__tpl_contains(tpl_vm *vm, tpl_value container, tpl_value item, bool *result);
/* len(); false when the value has none. */
bool nbl__tpl_length(tpl_value v, int64_t *length);
bool nbl__tpl_identical(tpl_value a, tpl_value b); /* `is` */

/* ---- text ---- */

nbl_status nbl__tpl_add(tpl_vm *vm, tpl_text *text, const char *bytes, size_t size);
nbl_status nbl__tpl_add_string(tpl_vm *vm, tpl_text *text, const tpl_string *string);
static inline nbl_status tpl_add_c(tpl_vm *vm, tpl_text *text, const char *s)
{
    return nbl__tpl_add(vm, text, s, strlen(s));
}
nbl_status nbl__tpl_add_char(tpl_vm *vm, tpl_text *text, uint32_t code);
/* str(v) and repr(v), appended. */
nbl_status nbl__tpl_add_str(tpl_vm *vm, tpl_text *text, tpl_value v);
nbl_status nbl__tpl_add_repr(tpl_vm *vm, tpl_text *text, tpl_value v);
nbl_status nbl__tpl_add_escaped(tpl_vm *vm, tpl_text *text, const tpl_string *string); /* HTML */
/* What was collected, as a string; the text may grow no more. */
nbl_status nbl__tpl_take(tpl_vm *vm, const tpl_text *text, tpl_value *result);
/* str(v): the string itself, without its mark, or its text. */
nbl_status nbl__tpl_str(tpl_vm *vm, tpl_value v, tpl_value *result);
/* The same, but safe HTML stays marked. */
nbl_status nbl__tpl_soft_str(tpl_vm *vm, tpl_value v, tpl_value *result);
/* The value as safe HTML. */
nbl_status nbl__tpl_escape(tpl_vm *vm, tpl_value v, tpl_value *result);
/* Python's repr of a float: the shortest digits that give it back. At most 32 bytes. */
int nbl__tpl_float_repr(double real, char text[40]);
/* A printable form of a value for messages: short. */
const char *nbl__tpl_shown(tpl_vm *vm, tpl_value v);

/* The character at s, which is valid UTF-8; *size is its length in bytes. */
static inline uint32_t tpl_char(const char *text, int *size)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return *size = 1, s[0];
    if (s[0] < 0xe0) return *size = 2, (uint32_t)(s[0] & 31) << 6 | (s[1] & 63);
    if (s[0] < 0xf0) return *size = 3, (uint32_t)(s[0] & 15) << 12 | (uint32_t)(s[1] & 63) << 6 | (s[2] & 63);
    *size = 4;
    return (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 63) << 12 | (uint32_t)(s[2] & 63) << 6 |
           (s[3] & 63);
}
/* Byte offset of a character; `at` is from 0 to the length. */
size_t nbl__tpl_offset(const tpl_string *string, int64_t at);
static inline bool tpl_same(const tpl_string *string, const char *text)
{
    return string->size == strlen(text) && memcmp(string->bytes, text, string->size) == 0;
}

/* ---- iteration ---- */

/* iter(v): fails when the value cannot be iterated over. An iterator gives itself. */
nbl_status nbl__tpl_iterate(tpl_vm *vm, tpl_value v, tpl_iterator **iterator);
bool nbl__tpl_is_iterable(tpl_value v);
nbl_status nbl__tpl_next(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more);
/* All items, as a list. */
nbl_status nbl__tpl_collect(tpl_vm *vm, tpl_value v, tpl_items *items);
/* reversed(v), or TypeError: *reversible is false. */
nbl_status nbl__tpl_reversed(tpl_vm *vm, tpl_value v, tpl_value *result, bool *reversible);

#endif
