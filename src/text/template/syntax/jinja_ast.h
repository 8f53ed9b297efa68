/* jinja_ast.h - a parsed template: tokens, nodes, scopes.
 *
 *     text --lexer--> tokens --parser--> nodes --scope--> nodes whose names are slots --run--> text
 *
 * Names are resolved before anything runs, as jinja2's compiler does it: every scope lists what to
 * load on entry, every name is a slot of an activation (one per call of the template, a macro, a call
 * block, a recursive loop or a block). All of it lies in the arena of the program. */
#ifndef NBL_JINJA_AST_H
#define NBL_JINJA_AST_H

#include "text/template/runtime/jinja_value.h"

typedef enum tpl_token_type {
    TOKEN_END,
    TOKEN_ERROR, /* the lexer's complaint, raised when the parser gets there */
    TOKEN_DATA,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_NUMBER, /* integer or float */
    TOKEN_ADD,
    TOKEN_SUB,
    TOKEN_MUL,
    TOKEN_DIV,
    TOKEN_FLOORDIV,
    TOKEN_MOD,
    TOKEN_POW,
    TOKEN_TILDE,
    TOKEN_LBRACKET,
    TOKEN_RBRACKET,
    TOKEN_LPAREN,
    TOKEN_RPAREN,
    TOKEN_LBRACE,
    TOKEN_RBRACE,
    TOKEN_EQ,
    TOKEN_NE,
    TOKEN_GT,
    TOKEN_GE,
    TOKEN_LT,
    TOKEN_LE,
    TOKEN_ASSIGN,
    TOKEN_DOT,
    TOKEN_COLON,
    TOKEN_PIPE,
    TOKEN_COMMA,
    TOKEN_SEMICOLON
} tpl_token_type;

typedef struct tpl_token {
    tpl_token_type type;
    int line, column; /* from 1; columns are characters */
    tpl_value value;  /* data, names, strings, numbers, the message of an error */
} tpl_token;

typedef struct tpl_tokens {
    tpl_token *items;
    int64_t count, room;
} tpl_tokens;

nbl_status nbl__tpl_lex(tpl_vm *vm, const char *text, size_t size, tpl_tokens *tokens);
/* "'}'" and the like, for messages. */
const char *nbl__tpl_token_name(tpl_vm *vm, const tpl_token *token);

typedef enum tpl_kind {
    NODE_CONST,   /* value */
    NODE_DATA,    /* value: text of the template */
    NODE_NAME,    /* value: its name; slot, hops */
    NODE_NSREF,   /* value: name of the namespace, slot, hops; a: CONST, the attribute */
    NODE_TUPLE,   /* list */
    NODE_LIST,    /* list */
    NODE_DICT,    /* list: key, value, key, … */
    NODE_COND,    /* a if b else c (or NULL) */
    NODE_FILTER,  /* a (NULL: the text of a block) | value(args) */
    NODE_TEST,    /* a is value(args) */
    NODE_CALL,    /* a(args) */
    NODE_GETITEM, /* a[b] */
    NODE_GETATTR, /* a.value */
    NODE_SLICE,   /* a:b:c, each may be NULL */
    NODE_CONCAT,  /* list, joined; flag: as plain text */
    NODE_COMPARE, /* a, then list: OPERAND */
    NODE_OPERAND, /* op a */
    NODE_BINARY,  /* a op b */
    NODE_AND,
    NODE_OR,
    NODE_NOT,
    NODE_NEG,
    NODE_POS,
    NODE_KEYWORD, /* value=a */

    NODE_OUTPUT,       /* list */
    NODE_IF,           /* a, body; list: IF of each elif; otherwise */
    NODE_FOR,          /* a target, b iterable, c condition or NULL; body, otherwise; flag: recursive */
    NODE_MACRO,        /* value name, list: NAME of each parameter, defaults, body */
    NODE_CALL_BLOCK,   /* a: CALL; otherwise as a macro */
    NODE_GENERATION,   /* body */
    NODE_FILTER_BLOCK, /* a: FILTER, body */
    NODE_SET,          /* a target, b */
    NODE_SET_BLOCK,    /* a target, b: FILTER or NULL, body */
    NODE_WITH,         /* list: targets, defaults: values, body */
    NODE_AUTOESCAPE,   /* a, body */
    NODE_BLOCK,        /* value name, body, flag: scoped */
    NODE_BREAK,
    NODE_CONTINUE
} tpl_kind;

typedef enum tpl_operator {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
} tpl_operator;

typedef struct tpl_node tpl_node;

typedef struct tpl_nodes {
    tpl_node **items;
    int64_t count, room;
} tpl_nodes;

/* What a scope does on entry: each slot gets a value. */
typedef enum tpl_load_action { LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED } tpl_load_action;

typedef struct tpl_load {
    tpl_load_action action;
    int slot;
    int from, hops; /* ALIAS: the slot of an outer scope */
    tpl_value name;
} tpl_load;

typedef struct tpl_scope {
    tpl_load *loads;
    int count;
} tpl_scope;

typedef enum tpl_special { SPECIAL_CALLER, SPECIAL_KWARGS, SPECIAL_VARARGS, SPECIAL_COUNT } tpl_special;

/* What is compiled into a function of its own: one activation per call. */
typedef struct tpl_body {
    int slots;
    int *parameters;            /* slots, one per parameter of a macro */
    int special[SPECIAL_COUNT]; /* slots; -1: not used by the body */
    bool explicit_caller;       /* a parameter is called caller */
} tpl_body;

struct tpl_node {
    uint8_t kind, op;
    bool flag;
    bool extended; /* a loop whose body uses `loop` */
    int line, column;
    tpl_value value;
    tpl_node *a, *b, *c;
    tpl_nodes list, defaults, body, otherwise;
    tpl_nodes args, keywords; /* of calls, filters and tests */
    tpl_node *dyn_args, *dyn_kwargs;
    int slot, hops;          /* names; the loop variable of a loop */
    tpl_scope scope;         /* of the body */
    tpl_scope other, test;   /* of the else branch and of the condition of a loop */
    tpl_body *function;      /* what runs in an activation of its own */
    tpl_node *test_target;   /* the target of a loop once more, for its condition ... */
    tpl_body *test_function; /* ... which has an activation of its own, too */
    bool exported;           /* set or macro at the top level: seen by blocks */
    const void *callee;      /* row of the table of filters or tests; NULL: unknown name */
};

typedef struct tpl_program {
    nbl_context *ctx;
    nbl__arena arena;
    size_t memory;
    tpl_nodes body;
    tpl_scope scope;
    tpl_body root;
    int self_slot;    /* -1: `self` is not used */
    tpl_nodes blocks; /* BLOCK */
} tpl_program;

/* Parses and resolves a template. `vm` lends its arena, which then belongs to the program; on failure
 * the message and the place are in it. */
nbl_status nbl__tpl_parse(tpl_vm *vm, const char *text, size_t size, tpl_program *program);
nbl_status nbl__tpl_resolve(tpl_vm *vm, tpl_program *program); /* jinja_scope.c */

/* jinja_constant.c */
bool nbl__tpl_may_fold(const tpl_node *node); /* as far as it itself goes, not its parts */
/* Makes a node that jinja2 would fold its value; `printed`: all of what an output prints. */
nbl_status nbl__tpl_fold(tpl_vm *vm, tpl_node *node, bool printed);
/* Folds what can be in an expression, from its innermost parts on. */
nbl_status nbl__tpl_optimize(tpl_vm *vm, tpl_node *node);

/* ---- between the files of the parser ---- */

typedef struct tpl_parser {
    tpl_vm *vm;
    tpl_tokens tokens;
    int64_t at;
    tpl_token current;
    const char *tags[256]; /* open statements, innermost last */
    const char *ends[256]; /* what each of them waits for: "'endif' or 'else'" */
    int tag_count, end_count;
} tpl_parser;

enum { TPL_MAX_PARSE = 200 }; /* nested brackets and statements */

nbl_status nbl__tpl_advance(tpl_parser *p);
nbl_status nbl__tpl_expect(tpl_parser *p, tpl_token_type type);
nbl_status nbl__tpl_expect_name(tpl_parser *p, tpl_value *name);
const tpl_token *nbl__tpl_look(const tpl_parser *p); /* the token after the current one */
bool nbl__tpl_at_name(const tpl_parser *p, const char *name);
nbl_status nbl__tpl_skip_name(tpl_parser *p, const char *name, bool *skipped);
nbl_status nbl__tpl_node(tpl_parser *p, tpl_kind kind, const tpl_token *at, tpl_node **node);
nbl_status nbl__tpl_nodes_add(tpl_vm *vm, tpl_nodes *list, tpl_node *node);
/* A syntax error at a token. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__tpl_syntax(tpl_parser *p, const tpl_token *at,
                                                                 const char *format, ...);

nbl_status nbl__tpl_expression(tpl_parser *p, bool with_condition, tpl_node **node);
typedef struct tpl_tuple_rules {
    bool simplified;   /* only names and literals, as in the target of a loop */
    bool no_condition; /* no inline if */
    bool parentheses;  /* () is an empty tuple */
    bool namespaces;   /* ns.x may be a target */
} tpl_tuple_rules;
nbl_status nbl__tpl_tuple(tpl_parser *p, tpl_tuple_rules rules, tpl_node **node);
nbl_status nbl__tpl_primary(tpl_parser *p, bool namespaces, tpl_node **node);
/* `|name(args)`, any number; `inline_first`: the first one without its bar. */
nbl_status nbl__tpl_filters(tpl_parser *p, tpl_node *input, bool inline_first, tpl_node **node);

#endif
