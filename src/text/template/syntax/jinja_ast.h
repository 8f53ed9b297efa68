/* jinja_ast.h - a parsed template: tokens, nodes and scopes.
 *
 *     text ──lexer──▶ tokens ──parser──▶ nodes ──scope──▶ nodes with slots ──run──▶ text
 *
 *     jinja_lexer.c       tokens, white space
 *     jinja_parser.c      statements
 *     jinja_expression.c  expressions
 *     jinja_scope.c       names to slots, with the symbol tables of jinja_symbols.c
 *     jinja_constant.c    constant folding
 *
 * Example: the nodes of {{ a.b[0]|trim }}
 *
 *     OUTPUT
 *       FILTER "trim"
 *         a: GETITEM
 *              a: GETATTR "b"
 *                   a: NAME "a"
 *              b: CONST 0
 *
 * Variables are resolved to slots before the template runs, as jinja2's compiler does. A slot is an
 * index into a frame. There is one frame per call of the template, a macro, a call block, a
 * recursive loop or a block. Each scope has a list of the slots to fill on entry.
 *
 * Memory: everything is in the arena of the program. */
#ifndef NBL_JINJA_AST_H
#define NBL_JINJA_AST_H

#include "text/template/runtime/jinja_value.h"

typedef enum tpl_token_type {
    TOKEN_END,
    TOKEN_ERROR, /* an error of the lexer, raised when the parser reaches it */
    TOKEN_DATA,  /* text outside of tags */
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
    tpl_value value;  /* the text of data and names, the value of strings and numbers, or a message */
} tpl_token;

typedef struct tpl_tokens {
    tpl_token *items;
    int64_t count, room;
} tpl_tokens;

/* Splits a text into tokens. Errors of the template become TOKEN_ERROR. */
nbl_status nbl__tpl_lex(tpl_vm *vm, const char *text, size_t size, tpl_tokens *tokens);
/* Returns the name of a token for messages, such as "'}'". */
const char *nbl__tpl_token_name(tpl_vm *vm, const tpl_token *token);

/* Kinds of nodes. The comments name the fields of tpl_node that a kind uses. */
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
    NODE_CONCAT,  /* list, joined as text; flag: nothing is marked as safe HTML */
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

/* How a slot gets its value when its scope is entered. PARAMETER: the caller has set it. RESOLVE:
 * from the variables of the template. ALIAS: from a slot of an outer scope. UNDEFINED: it has none
 * yet. */
typedef enum tpl_load_action { LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED } tpl_load_action;

typedef struct tpl_load {
    tpl_load_action action;
    int slot;
    int from, hops; /* ALIAS: the outer slot, and the number of frames up to it */
    tpl_value name;
} tpl_load;

typedef struct tpl_scope {
    tpl_load *loads;
    int count;
} tpl_scope;

typedef enum tpl_special { SPECIAL_CALLER, SPECIAL_KWARGS, SPECIAL_VARARGS, SPECIAL_COUNT } tpl_special;

/* A function: code with a frame of its own per call. */
typedef struct tpl_body {
    int slots;                  /* size of the frame */
    int *parameters;            /* slots, one per parameter of a macro */
    int special[SPECIAL_COUNT]; /* slots; -1: not used by the body */
    bool explicit_caller;       /* a parameter has the name "caller" */
} tpl_body;

struct tpl_node {
    uint8_t kind, op;
    bool flag;
    bool extended;    /* a loop whose body uses `loop` */
    int line, column; /* in the template, from 1 */
    tpl_value value;
    tpl_node *a, *b, *c;
    tpl_nodes list, defaults, body, otherwise;
    tpl_nodes args, keywords; /* of calls, filters and tests */
    tpl_node *dyn_args, *dyn_kwargs;
    int slot, hops;          /* of a name; of the variable `loop` of a loop */
    tpl_scope scope;         /* of the body */
    tpl_scope other, test;   /* of a loop's else branch and of its condition */
    tpl_body *function;      /* set if the node runs in a frame of its own */
    tpl_node *test_target;   /* a loop with a condition: copy of the target for the condition */
    tpl_body *test_function; /* the function of the condition */
    bool exported;           /* a set or macro at the top level: visible in blocks */
    const void *callee;      /* the tpl_filter of a filter or test; NULL: unknown name */
};

typedef struct tpl_program {
    nbl_context *ctx;
    nbl__arena arena;
    size_t memory;
    tpl_nodes body;
    tpl_scope scope;
    tpl_body root;
    int self_slot;    /* slot of `self`; -1: the template does not use it */
    tpl_nodes blocks; /* all NODE_BLOCK */
} tpl_program;

/* Parses and resolves a template. The arena of `vm` becomes the program's. On failure `vm` has the
 * message, line and column. */
nbl_status nbl__tpl_parse(tpl_vm *vm, const char *text, size_t size, tpl_program *program);
/* Resolves names to slots and folds constants. In jinja_scope.c. */
nbl_status nbl__tpl_resolve(tpl_vm *vm, tpl_program *program);

/* ---- jinja_constant.c ---- */

/* True if jinja2 may fold this kind of node. The parts of the node are not considered. */
bool nbl__tpl_may_fold(const tpl_node *node);
/* Replaces a constant expression by its value, if jinja2 does so. `printed`: the node is a whole
 * expression of an output, so any value will do. */
nbl_status nbl__tpl_fold(tpl_vm *vm, tpl_node *node, bool printed);
/* Folds the constant parts of an expression, innermost first. */
nbl_status nbl__tpl_optimize(tpl_vm *vm, tpl_node *node);

/* ---- between the files of the parser ---- */

typedef struct tpl_parser {
    tpl_vm *vm;
    tpl_tokens tokens;
    int64_t at;
    tpl_token current;
    const char *tags[256]; /* open statements, innermost last; for messages */
    const char *ends[256]; /* the end tags of each, such as "'endif' or 'else'" */
    int tag_count, end_count;
} tpl_parser;

enum { TPL_MAX_PARSE = 200 }; /* nested brackets and statements */

nbl_status nbl__tpl_advance(tpl_parser *p);
nbl_status nbl__tpl_expect(tpl_parser *p, tpl_token_type type);
nbl_status nbl__tpl_expect_name(tpl_parser *p, tpl_value *name);
const tpl_token *nbl__tpl_peek(const tpl_parser *p); /* returns the token after the current one */
bool nbl__tpl_at_name(const tpl_parser *p, const char *name);
nbl_status nbl__tpl_skip_name(tpl_parser *p, const char *name, bool *skipped);
nbl_status nbl__tpl_node(tpl_parser *p, tpl_kind kind, const tpl_token *at, tpl_node **node);
nbl_status nbl__tpl_nodes_add(tpl_vm *vm, tpl_nodes *list, tpl_node *node);
/* Records a syntax error at a token. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__tpl_syntax(tpl_parser *p, const tpl_token *at,
                                                                 const char *format, ...);

nbl_status nbl__tpl_expression(tpl_parser *p, bool with_condition, tpl_node **node);
/* Options of nbl__tpl_tuple. */
typedef struct tpl_tuple_rules {
    bool simplified;   /* only names and literals, as in the target of a loop */
    bool no_condition; /* no inline if */
    bool parentheses;  /* () is an empty tuple */
    bool namespaces;   /* ns.x may be a target */
} tpl_tuple_rules;
nbl_status nbl__tpl_tuple(tpl_parser *p, tpl_tuple_rules rules, tpl_node **node);
nbl_status nbl__tpl_primary(tpl_parser *p, bool namespaces, tpl_node **node);
/* Parses any number of `|name(args)`. `inline_first`: the first filter has no bar. */
nbl_status nbl__tpl_filters(tpl_parser *p, tpl_node *input, bool inline_first, tpl_node **node);

#endif
