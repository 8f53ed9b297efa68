/* jinja_value.h - the values of a chat template, and the virtual machine (tpl_vm) that runs it.
 *
 * Memory: a value has 16 bytes. Everything larger is in the arena of the rendering. Nothing is
 * freed before the rendering ends, so pointers in values are always valid.
 *
 * Semantics: those of Python 3 and jinja2's immutable sandbox. Lists, dictionaries and strings do
 * not change after they are made. Namespaces, loops, iterators, cyclers and joiners do.
 *
 * Errors: each function that can fail returns a status. The machine keeps the message of the first
 * failure (nbl__tpl_raise) until the rendering ends.
 *
 * Limits: templates and messages are not trusted. Memory, work, depth and output are counted and
 * bounded (TPL_MAX_*).
 *
 * Threads: a machine is used by one thread. Names inside the library begin with tpl_ or
 * nbl__tpl_. */
#ifndef NBL_JINJA_VALUE_H
#define NBL_JINJA_VALUE_H

#include "base/arena.h"
#include "base/utf8.h"

typedef enum tpl_type {
    TPL_MISSING,   /* no value: an argument that was not given, a variable before its set */
    TPL_UNDEFINED, /* jinja2's Undefined: prints nothing, most other uses are errors */
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_BIG, /* an integer beyond 64 bits: it can be printed, negated and compared for equality */
    TPL_FLOAT,
    TPL_STRING,
    TPL_LIST,
    TPL_TUPLE,
    TPL_DICT,
    TPL_VIEW, /* keys, values or items of a dictionary */
    TPL_RANGE,
    TPL_ITERATOR, /* can be consumed once: the result of map, select and similar filters */
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
    uint8_t markup; /* strings: safe HTML (Markup), not escaped again */
    uint8_t view;   /* views: a tpl_view */
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
    const char *bytes; /* valid UTF-8; may contain zero bytes */
    size_t size;       /* in bytes */
    size_t length;     /* in characters */
};

struct tpl_list {
    tpl_value *items;
    int64_t count;
    bool group; /* a tuple made by groupby: it has the attributes grouper and list */
};

typedef struct tpl_entry {
    tpl_value key, value;
    uint64_t hash;
} tpl_entry;

struct tpl_dict { /* entries in the order of insertion, and a hash table */
    tpl_entry *entries;
    int64_t count, room;
    int32_t *table; /* hash -> entry + 1; NULL up to TPL_SMALL_DICT entries */
    int64_t slots;  /* size of `table` */
};

struct tpl_undefined { /* data for the message when the value is used */
    const char *hint;  /* the whole message, or NULL */
    const char *owner; /* type of the object that lacks `name`; NULL: `name` is a variable */
    tpl_value name;
};

struct tpl_range {
    int64_t start, stop, step, count;
};

/* Stores the next item; *more is false at the end. */
typedef nbl_status (*tpl_next_fn)(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more);

struct tpl_iterator {
    tpl_next_fn next;
    const char *type;      /* Python's name of the type, such as "list_iterator" */
    tpl_value source;      /* the value that is iterated over */
    int64_t at, end, step; /* index of the next item; where and how it goes on */
    size_t offset;         /* strings: byte offset of character `at` */
    void *state;           /* of filters and loops that make iterators */
};

typedef struct tpl_keyword {
    tpl_value name; /* a string */
    tpl_value value;
} tpl_keyword;

/* The arguments of a call. */
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
    tpl_value self;    /* methods: the object */
    const char *owner; /* type of self; NULL: a plain function */
};

typedef enum tpl_object_kind { TPL_CYCLER, TPL_JOINER, TPL_SELF, TPL_BLOCK } tpl_object_kind;

struct tpl_object {
    tpl_object_kind kind;
    tpl_value value; /* cycler: its items; joiner: the separator; block: its name */
    int64_t at;      /* cycler: index of the current item; joiner: 1 after its first use; block: its index */
};

/* ---- the machine ---- */

/* Text under construction, in the arena. */
typedef struct tpl_text {
    char *bytes;
    size_t size, room, length; /* length: in characters */
} tpl_text;

/* A span of the rendered text that a generation block made. */
typedef struct tpl_span {
    int64_t start, end;
} tpl_span;

struct tpl_vm {
    nbl_context *ctx;
    nbl__arena arena;
    size_t memory;    /* bytes allocated so far */
    uint64_t steps;   /* work done so far */
    uint64_t polled;  /* value of `steps` when the progress callback was last called */
    int depth;        /* nested evaluations */
    int line, column; /* of the node that runs */
    bool autoescape;  /* output is escaped as HTML */
    bool folding;     /* a constant is being evaluated at compile time: jinja_constant.c */
    int flow;         /* a tpl_flow: TPL_BREAK or TPL_CONTINUE until the loop is reached */
    tpl_text *out;    /* the text that output is appended to */
    tpl_text text;    /* the rendered text, without the texts of blocks that are still collected */
    tpl_span *spans;
    int64_t span_count, span_room;
    tpl_dict *context;   /* globals and the caller's variables */
    tpl_dict *variables; /* set at the top level of the template */
    const struct tpl_program *program;
    /* the failure */
    nbl_status status;
    const tpl_string *own; /* the message of raise_exception, unchanged; NULL: see `message` */
    char message[768];
};

enum {
    TPL_MAX_MEMORY = 320 << 20,   /* bytes allocated by one rendering; nothing is freed meanwhile */
    TPL_MAX_STEPS = 40000000,     /* a step: a node evaluated, an item visited, or 16 bytes read */
    TPL_POLL_STEPS = 1 << 18,     /* steps between calls of the progress callback: some milliseconds */
    TPL_STACK_RESERVE = 96 << 10, /* bytes of the thread's stack that must stay free */
    TPL_MAX_OUTPUT = 64 << 20,    /* bytes of one text */
    TPL_MAX_DEPTH = 2000,         /* nested evaluations */
    TPL_MAX_NESTING = 450,        /* levels of a value that is printed, compared or read */
    TPL_SMALL_DICT = 8            /* up to this many entries a dictionary is searched linearly */
};

/* Records a failure at the current line and column. Only the first failure of a rendering is
 * kept. */
__attribute__((format(printf, 2, 3))) nbl_status nbl__tpl_raise(tpl_vm *vm, const char *format, ...);
/* The same for what jinja2 supports and nibble does not, and for exceeded limits. */
__attribute__((format(printf, 2, 3))) nbl_status nbl__tpl_refuse(tpl_vm *vm, const char *format, ...);
/* Records the failure of using an undefined value. */
nbl_status nbl__tpl_raise_undefined(tpl_vm *vm, tpl_value undefined);
/* Counts work. Fails beyond TPL_MAX_STEPS, and when the progress callback asks to stop. */
nbl_status nbl__tpl_work(tpl_vm *vm, uint64_t steps);
/* Counts the reading of text. Each operation counts the bytes that it reads, so that no loop over
 * long texts is free. */
static inline nbl_status tpl_read(tpl_vm *vm, size_t bytes)
{
    return nbl__tpl_work(vm, bytes / 16);
}
/* The same where every character is looked up in a table of properties. */
static inline nbl_status tpl_read_characters(tpl_vm *vm, size_t bytes)
{
    return nbl__tpl_work(vm, bytes / 4);
}
/* Enters one level of evaluation. The caller does --vm->depth when it leaves. Fails beyond
 * TPL_MAX_DEPTH, and when the thread's stack runs low. */
nbl_status nbl__tpl_enter(tpl_vm *vm);

/* Records that memory has run out. */
nbl_status nbl__tpl_no_memory(tpl_vm *vm);
/* Allocates zeroed memory in the arena. Returns NULL after recording a failure. */
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

/* Makes a string. The bytes are borrowed and must live as long as the rendering. */
nbl_status nbl__tpl_string(tpl_vm *vm, const char *bytes, size_t size, tpl_value *result);
/* The same with a copy of the bytes. */
nbl_status nbl__tpl_string_copy(tpl_vm *vm, const char *bytes, size_t size, tpl_value *result);
nbl_status nbl__tpl_cstring(tpl_vm *vm, const char *text, tpl_value *result); /* text is not copied */
/* Makes a list or tuple of `count` items. The caller fills in *items. */
nbl_status nbl__tpl_list(tpl_vm *vm, tpl_type type, int64_t count, tpl_value *result, tpl_value **items);
nbl_status nbl__tpl_pair(tpl_vm *vm, tpl_value a, tpl_value b, tpl_value *result);
nbl_status nbl__tpl_undefined(tpl_vm *vm, const char *hint, const char *owner, tpl_value name,
                              tpl_value *result);
nbl_status nbl__tpl_function(tpl_vm *vm, const char *name, tpl_call_fn call, const char *owner,
                             tpl_value self, tpl_value *result);
/* Returns Python's type(value).__name__: "str", "int", … */
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
/* Sets an entry. Fails if the key cannot be hashed. */
nbl_status nbl__tpl_dict_set(tpl_vm *vm, tpl_dict *dict, tpl_value key, tpl_value value);
nbl_status nbl__tpl_dict_find(tpl_vm *vm, const tpl_dict *dict, tpl_value key, tpl_entry **entry);
/* Returns the entry whose key is this text, or NULL. */
tpl_entry *nbl__tpl_dict_get(const tpl_dict *dict, const char *key, size_t size);
/* Sets all entries of another dictionary. */
nbl_status nbl__tpl_dict_merge(tpl_vm *vm, tpl_dict *dict, const tpl_dict *more);
nbl_status nbl__tpl_hash(tpl_vm *vm, tpl_value v, uint64_t *hash);

/* ---- what Python asks of every value ---- */

nbl_status nbl__tpl_truth(tpl_vm *vm, tpl_value v, bool *truth);
nbl_status nbl__tpl_equal(tpl_vm *vm, tpl_value a, tpl_value b, bool *equal);
typedef enum tpl_order { TPL_LT, TPL_LE, TPL_GT, TPL_GE } tpl_order;
nbl_status nbl__tpl_compare(tpl_vm *vm, tpl_order order, tpl_value a, tpl_value b, bool *result);
nbl_status nbl__tpl_contains(tpl_vm *vm, tpl_value container, tpl_value item, bool *result);
/* len(); returns false if the value has no length. */
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
/* Makes a string of a text, without a copy. The text must not grow afterwards. */
nbl_status nbl__tpl_take(tpl_vm *vm, const tpl_text *text, tpl_value *result);
/* str(v). A string is returned itself, without the flag `markup`. */
nbl_status nbl__tpl_str(tpl_vm *vm, tpl_value v, tpl_value *result);
/* The same, but the flag `markup` is kept. */
nbl_status nbl__tpl_soft_str(tpl_vm *vm, tpl_value v, tpl_value *result);
/* Returns str(v) as safe HTML: escaped, unless it is safe already. */
nbl_status nbl__tpl_escape(tpl_vm *vm, tpl_value v, tpl_value *result);
/* Returns a short printable form of a value, for messages. */
const char *nbl__tpl_shown(tpl_vm *vm, tpl_value v);

/* Returns the character at `text`, which is valid UTF-8. Sets *size to its length in bytes. */
static inline uint32_t tpl_char(const char *text, int *size)
{
    uint32_t code;
    *size = nbl__char_get(text, &code);
    return code;
}
/* Returns the byte offset of character `at`, 0 to string->length. */
size_t nbl__tpl_offset(const tpl_string *string, int64_t at);
static inline bool tpl_same(const tpl_string *string, const char *text)
{
    return string->size == strlen(text) && memcmp(string->bytes, text, string->size) == 0;
}

/* ---- iteration ---- */

/* iter(v). Fails if the value is not iterable. iter() of an iterator is the iterator itself. */
nbl_status nbl__tpl_iterate(tpl_vm *vm, tpl_value v, tpl_iterator **iterator);
bool nbl__tpl_is_iterable(tpl_value v);
nbl_status nbl__tpl_next(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more);
/* Appends all items of an iterable to *items. */
nbl_status nbl__tpl_collect(tpl_vm *vm, tpl_value v, tpl_items *items);
/* reversed(v). *reversible is false where Python raises TypeError. */
nbl_status nbl__tpl_reversed(tpl_vm *vm, tpl_value v, tpl_value *result, bool *reversible);

#endif
