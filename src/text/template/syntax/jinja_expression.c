/* jinja_expression.c - parses expressions by recursive descent, with one function per level of
 * precedence.
 *
 * The levels, from weak to strong, are those of jinja2. They are not Python's where marked:
 *
 *     a if b else c      nbl__tpl_expression
 *     or                 parse_or
 *     and                parse_and
 *     not                parse_not
 *     == != < > in       parse_compare   chained: a < b < c
 *     + -                parse_math1
 *     ~                  parse_concat    1 ~ 2 + 3 is an error: "12" + 3
 *     * / // %           parse_math2
 *     **                 parse_pow       to the left: 2**3**2 is 64, in Python 512
 *     unary - +          parse_unary     stronger than **: -2**2 is 4, in Python -4
 *     .a [a] (a)         parse_postfix
 *     |filter is test    parse_unary     behind the sign: -1|abs is 1
 *
 * Each function leaves the token behind its expression as the current one. An operator's node has
 * the position at which its left operand begins; behind the first operator of a chain it is the
 * position of the token after the last operand, as in jinja2.
 *
 * Nesting is limited to TPL_MAX_PARSE, and by the stack of the thread (nbl__stack_left). */
#include "base/stack.h"
#include "text/template/syntax/jinja_ast.h"
#include "text/template/runtime/jinja_runtime.h"

static nbl_status parse_or(tpl_parser *p, tpl_node **node);
static nbl_status parse_unary(tpl_parser *p, bool with_filter, tpl_node **node);
static nbl_status parse_postfix(tpl_parser *p, tpl_node *node, tpl_node **result);

/* Makes a node with the two parts a and b. */
static nbl_status two(tpl_parser *p, tpl_kind kind, tpl_operator op, const tpl_token *at, tpl_node *a,
                      tpl_node *b, tpl_node **node)
{
    NBL_TRY(nbl__tpl_node(p, kind, at, node));
    (*node)->op = (uint8_t)op;
    (*node)->a = a;
    (*node)->b = b;
    return NBL_OK;
}

/* Parses a whole expression. `with_condition`: an inline if may follow, also several in a row: `a
 * if b if c else d` is (a if b) if c else d. */
nbl_status nbl__tpl_expression(tpl_parser *p, bool with_condition, tpl_node **result)
{
    if (++p->vm->depth > TPL_MAX_PARSE || nbl__stack_left() < TPL_STACK_RESERVE)
        return nbl__tpl_syntax(p, &p->current, "nested too deep");
    tpl_token at = p->current;
    tpl_node *node;
    NBL_TRY(parse_or(p, &node));
    for (bool more; with_condition;) {
        NBL_TRY(nbl__tpl_skip_name(p, "if", &more));
        if (!more) break;
        tpl_node *cond;
        NBL_TRY(nbl__tpl_node(p, NODE_COND, &at, &cond));
        cond->a = node;
        NBL_TRY(parse_or(p, &cond->b));
        NBL_TRY(nbl__tpl_skip_name(p, "else", &more));
        if (more) NBL_TRY(nbl__tpl_expression(p, true, &cond->c));
        node = cond;
        at = p->current;
    }
    p->vm->depth--;
    *result = node;
    return NBL_OK;
}

static nbl_status parse_compare(tpl_parser *p, tpl_node **node);

/* `not a`. Recursive, because `not not a` is allowed. */
static nbl_status parse_not(tpl_parser *p, tpl_node **node)
{
    if (!nbl__tpl_at_name(p, "not")) return parse_compare(p, node);
    if (++p->vm->depth > TPL_MAX_PARSE || nbl__stack_left() < TPL_STACK_RESERVE)
        return nbl__tpl_syntax(p, &p->current, "nested too deep");
    NBL_TRY(nbl__tpl_node(p, NODE_NOT, &p->current, node));
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(parse_not(p, &(*node)->a));
    p->vm->depth--;
    return NBL_OK;
}

/* `a and b`, grouped to the left. */
static nbl_status parse_and(tpl_parser *p, tpl_node **node)
{
    tpl_token at = p->current;
    NBL_TRY(parse_not(p, node));
    for (bool more;;) {
        tpl_node *right;
        NBL_TRY(nbl__tpl_skip_name(p, "and", &more));
        if (!more) return NBL_OK;
        NBL_TRY(parse_not(p, &right));
        NBL_TRY(two(p, NODE_AND, 0, &at, *node, right, node));
        at = p->current;
    }
}

/* `a or b`, grouped to the left. */
static nbl_status parse_or(tpl_parser *p, tpl_node **node)
{
    tpl_token at = p->current;
    NBL_TRY(parse_and(p, node));
    for (bool more;;) {
        tpl_node *right;
        NBL_TRY(nbl__tpl_skip_name(p, "or", &more));
        if (!more) return NBL_OK;
        NBL_TRY(parse_and(p, &right));
        NBL_TRY(two(p, NODE_OR, 0, &at, *node, right, node));
        at = p->current;
    }
}

/* One level of binary operators that group to the left: tokens[i] makes operators[i]. */
typedef struct level {
    tpl_token_type tokens[4];
    tpl_operator operators[4];
    int count;
} level;

/* `a ** b`, grouped to the left as in jinja2. */
static nbl_status parse_pow(tpl_parser *p, tpl_node **node)
{
    tpl_token at = p->current;
    NBL_TRY(parse_unary(p, true, node));
    while (p->current.type == TOKEN_POW) {
        tpl_node *right;
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(parse_unary(p, true, &right));
        NBL_TRY(two(p, NODE_BINARY, OP_POW, &at, *node, right, node));
        at = p->current;
    }
    return NBL_OK;
}

/* The index of a token in a level's operators; -1: it is none of them. */
static int find_operator(const level *rules, tpl_token_type type)
{
    for (int i = 0; i < rules->count; i++)
        if (rules->tokens[i] == type) return i;
    return -1;
}

/* * / // %, grouped to the left. */
static nbl_status parse_math2(tpl_parser *p, tpl_node **node)
{
    static const level rules = {
        {TOKEN_MUL, TOKEN_DIV, TOKEN_FLOORDIV, TOKEN_MOD}, {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD}, 4};
    tpl_token at = p->current;
    NBL_TRY(parse_pow(p, node));
    for (int i; (i = find_operator(&rules, p->current.type)) >= 0;) {
        tpl_node *right;
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(parse_pow(p, &right));
        NBL_TRY(two(p, NODE_BINARY, rules.operators[i], &at, *node, right, node));
        at = p->current;
    }
    return NBL_OK;
}

/* All operands of a chain of ~ are in one node: a ~ b ~ c joins three texts at once. */
static nbl_status parse_concat(tpl_parser *p, tpl_node **node)
{
    tpl_token at = p->current;
    NBL_TRY(parse_math2(p, node));
    if (p->current.type != TOKEN_TILDE) return NBL_OK;
    tpl_node *concat, *next;
    NBL_TRY(nbl__tpl_node(p, NODE_CONCAT, &at, &concat));
    NBL_TRY(nbl__tpl_nodes_add(p->vm, &concat->list, *node));
    while (p->current.type == TOKEN_TILDE) {
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(parse_math2(p, &next));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &concat->list, next));
    }
    *node = concat;
    return NBL_OK;
}

/* + -, grouped to the left. */
static nbl_status parse_math1(tpl_parser *p, tpl_node **node)
{
    static const level rules = {{TOKEN_ADD, TOKEN_SUB}, {OP_ADD, OP_SUB}, 2};
    tpl_token at = p->current;
    NBL_TRY(parse_concat(p, node));
    for (int i; (i = find_operator(&rules, p->current.type)) >= 0;) {
        tpl_node *right;
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(parse_concat(p, &right));
        NBL_TRY(two(p, NODE_BINARY, rules.operators[i], &at, *node, right, node));
        at = p->current;
    }
    return NBL_OK;
}

/* True if a comparison operator stands here. *words is the number of its tokens: 2 for `not in`. */
static bool comparison(const tpl_parser *p, tpl_operator *op, int *words)
{
    *words = 1;
    switch (p->current.type) {
    case TOKEN_EQ: *op = OP_EQ; return true;
    case TOKEN_NE: *op = OP_NE; return true;
    case TOKEN_LT: *op = OP_LT; return true;
    case TOKEN_LE: *op = OP_LE; return true;
    case TOKEN_GT: *op = OP_GT; return true;
    case TOKEN_GE: *op = OP_GE; return true;
    default: break;
    }
    if (nbl__tpl_at_name(p, "in")) return *op = OP_IN, true;
    const tpl_token *next = nbl__tpl_peek(p);
    *op = OP_NOT_IN;
    *words = 2;
    return nbl__tpl_at_name(p, "not") && next->type == TOKEN_NAME && tpl_same(next->value.string, "in");
}

/* Parses a chain of comparisons into one node. a < b <= c has `a` as its first operand and two
 * OPERANDs, (< b) and (<= c). Python evaluates b once. */
static nbl_status parse_compare(tpl_parser *p, tpl_node **node)
{
    tpl_operator op;
    tpl_node *compare = NULL;
    tpl_token at = p->current;
    NBL_TRY(parse_math1(p, node));
    for (int words; comparison(p, &op, &words);) {
        tpl_node *operand;
        if (compare == NULL) {
            NBL_TRY(nbl__tpl_node(p, NODE_COMPARE, &at, &compare));
            compare->a = *node;
        }
        NBL_TRY(nbl__tpl_node(p, NODE_OPERAND, &p->current, &operand));
        operand->op = (uint8_t)op;
        while (words--) NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(parse_math1(p, &operand->a));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &compare->list, operand));
    }
    if (compare) *node = compare;
    return NBL_OK;
}

/* ---- values ---- */

/* [a, b]; a comma may stand behind the last item. */
static nbl_status parse_list(tpl_parser *p, tpl_node **node)
{
    tpl_node *item;
    NBL_TRY(nbl__tpl_node(p, NODE_LIST, &p->current, node));
    NBL_TRY(nbl__tpl_advance(p));
    while (p->current.type != TOKEN_RBRACKET) {
        if ((*node)->list.count) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        if (p->current.type == TOKEN_RBRACKET) break;
        NBL_TRY(nbl__tpl_expression(p, true, &item));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &(*node)->list, item));
    }
    return nbl__tpl_expect(p, TOKEN_RBRACKET);
}

/* {a: b, c: d}; the list of the node has key, value, key, value. */
static nbl_status parse_dict(tpl_parser *p, tpl_node **node)
{
    tpl_node *item;
    NBL_TRY(nbl__tpl_node(p, NODE_DICT, &p->current, node));
    NBL_TRY(nbl__tpl_advance(p));
    while (p->current.type != TOKEN_RBRACE) {
        if ((*node)->list.count) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        if (p->current.type == TOKEN_RBRACE) break;
        NBL_TRY(nbl__tpl_expression(p, true, &item));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &(*node)->list, item));
        NBL_TRY(nbl__tpl_expect(p, TOKEN_COLON));
        NBL_TRY(nbl__tpl_expression(p, true, &item));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &(*node)->list, item));
    }
    return nbl__tpl_expect(p, TOKEN_RBRACE);
}

/* Parses a string. Strings that follow each other are one: 'a' 'b' is 'ab'. */
static nbl_status parse_string(tpl_parser *p, tpl_node **node)
{
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_node(p, NODE_CONST, &p->current, node));
    (*node)->value = p->current.value;
    NBL_TRY(nbl__tpl_advance(p));
    if (p->current.type != TOKEN_STRING) return NBL_OK;
    NBL_TRY(nbl__tpl_add_string(p->vm, &text, (*node)->value.string));
    while (p->current.type == TOKEN_STRING) {
        NBL_TRY(nbl__tpl_add_string(p->vm, &text, p->current.value.string));
        NBL_TRY(nbl__tpl_advance(p));
    }
    return nbl__tpl_take(p->vm, &text, &(*node)->value);
}

/* Parses a name or one of the words true, false and none, also with a capital. With `namespaces`
 * the name may be ns.x, as the target of a set. */
static nbl_status parse_word(tpl_parser *p, bool namespaces, tpl_node **node)
{
    static const struct {
        const char *name;
        tpl_value value;
    } words[] = {{"true", {.type = TPL_BOOL, .integer = 1}},
                 {"True", {.type = TPL_BOOL, .integer = 1}},
                 {"false", {.type = TPL_BOOL, .integer = 0}},
                 {"False", {.type = TPL_BOOL, .integer = 0}},
                 {"none", {.type = TPL_NONE}},
                 {"None", {.type = TPL_NONE}}};
    NBL_TRY(nbl__tpl_node(p, NODE_NAME, &p->current, node));
    (*node)->value = p->current.value;
    NBL_TRY(nbl__tpl_advance(p));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (tpl_same((*node)->value.string, words[i].name)) {
            (*node)->kind = NODE_CONST;
            (*node)->value = words[i].value;
            return NBL_OK;
        }
    if (!namespaces || p->current.type != TOKEN_DOT) return NBL_OK;
    NBL_TRY(nbl__tpl_advance(p));
    (*node)->kind = NODE_NSREF;
    NBL_TRY(nbl__tpl_node(p, NODE_CONST, &p->current, &(*node)->a));
    return nbl__tpl_expect_name(p, &(*node)->a->value);
}

/* A value without what may stand behind it: a word, a literal, a bracket. Any other token is an
 * error. */
nbl_status nbl__tpl_primary(tpl_parser *p, bool namespaces, tpl_node **node)
{
    switch (p->current.type) {
    case TOKEN_NAME: return parse_word(p, namespaces, node);
    case TOKEN_STRING: return parse_string(p, node);
    case TOKEN_NUMBER:
        NBL_TRY(nbl__tpl_node(p, NODE_CONST, &p->current, node));
        (*node)->value = p->current.value;
        return nbl__tpl_advance(p);
    case TOKEN_LPAREN:
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(nbl__tpl_tuple(p, (tpl_tuple_rules){.parentheses = true}, node));
        return nbl__tpl_expect(p, TOKEN_RPAREN);
    case TOKEN_LBRACKET: return parse_list(p, node);
    case TOKEN_LBRACE: return parse_dict(p, node);
    default:
        return nbl__tpl_syntax(p, &p->current, "unexpected '%s'", nbl__tpl_token_name(p->vm, &p->current));
    }
}

/* Parses a, b, c as a tuple; a single expression without a comma stays itself. A comma may stand
 * behind the last item: "a," is a tuple of one. Only inside parentheses may there be no item. */
nbl_status nbl__tpl_tuple(tpl_parser *p, tpl_tuple_rules rules, tpl_node **result)
{
    tpl_nodes items = {0};
    tpl_token at = p->current;
    bool tuple = false;
    for (;;) {
        tpl_token_type type = p->current.type;
        if (items.count) {
            NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
            type = p->current.type;
        }
        if (type == TOKEN_VARIABLE_END || type == TOKEN_BLOCK_END || type == TOKEN_RPAREN) break;
        tpl_node *item;
        if (rules.simplified) NBL_TRY(nbl__tpl_primary(p, rules.namespaces, &item));
        else NBL_TRY(nbl__tpl_expression(p, !rules.no_condition, &item));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &items, item));
        if (p->current.type != TOKEN_COMMA) break;
        tuple = true;
    }
    if (!tuple && items.count) return *result = items.items[0], NBL_OK;
    if (!tuple && !rules.parentheses)
        return nbl__tpl_syntax(p, &p->current, "Expected an expression, got '%s'",
                               nbl__tpl_token_name(p->vm, &p->current));
    NBL_TRY(nbl__tpl_node(p, NODE_TUPLE, &at, result));
    (*result)->list = items;
    return NBL_OK;
}

/* ---- behind a value ---- */

/* Parses one subscript: an expression, or a slice a:b:c in which each part may be left out. */
static nbl_status parse_subscribed(tpl_parser *p, tpl_node **node)
{
    tpl_node *parts[3] = {NULL, NULL, NULL};
    tpl_token at = p->current;
    if (p->current.type != TOKEN_COLON) {
        NBL_TRY(nbl__tpl_expression(p, true, node));
        if (p->current.type != TOKEN_COLON) return NBL_OK;
        parts[0] = *node;
    }
    for (int i = 1; i < 3 && p->current.type == TOKEN_COLON; i++) {
        NBL_TRY(nbl__tpl_advance(p));
        if (p->current.type != TOKEN_COLON && p->current.type != TOKEN_RBRACKET &&
            p->current.type != TOKEN_COMMA)
            NBL_TRY(nbl__tpl_expression(p, true, &parts[i]));
    }
    NBL_TRY(nbl__tpl_node(p, NODE_SLICE, &at, node));
    (*node)->a = parts[0];
    (*node)->b = parts[1];
    (*node)->c = parts[2];
    return NBL_OK;
}

/* .name, .0 or [a]; the current token is the dot or bracket. x.0 is x[0]. x[a, b] has a tuple as
 * its key. */
static nbl_status parse_subscript(tpl_parser *p, tpl_node *value, tpl_node **node)
{
    tpl_token at = p->current;
    NBL_TRY(nbl__tpl_node(p, NODE_GETITEM, &at, node));
    (*node)->a = value;
    NBL_TRY(nbl__tpl_advance(p));
    if (at.type == TOKEN_DOT) {
        tpl_token attribute = p->current;
        NBL_TRY(nbl__tpl_advance(p));
        if (attribute.type == TOKEN_NAME) {
            (*node)->kind = NODE_GETATTR;
            (*node)->value = attribute.value;
            return NBL_OK;
        }
        if (attribute.type != TOKEN_NUMBER || attribute.value.type == TPL_FLOAT)
            return nbl__tpl_syntax(p, &attribute, "expected name or number");
        NBL_TRY(nbl__tpl_node(p, NODE_CONST, &attribute, &(*node)->b));
        (*node)->b->value = attribute.value;
        return NBL_OK;
    }
    tpl_nodes args = {0};
    while (p->current.type != TOKEN_RBRACKET) {
        tpl_node *one;
        if (args.count) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        NBL_TRY(parse_subscribed(p, &one));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &args, one));
    }
    NBL_TRY(nbl__tpl_expect(p, TOKEN_RBRACKET));
    if (args.count == 1) return (*node)->b = args.items[0], NBL_OK;
    NBL_TRY(nbl__tpl_node(p, NODE_TUPLE, &at, &(*node)->b));
    (*node)->b->list = args;
    for (int64_t i = 0; i < args.count; i++)
        if (args.items[i]->kind == NODE_SLICE)
            return nbl__tpl_syntax(p, &at, "a slice among several subscripts is not supported");
    return NBL_OK;
}

/* Parses (a, b, *c, k=d, **e) into the fields of a call, filter or test. The order is fixed:
 * positional, then keywords and one *c in any order, then one **e. Everything else is jinja2's
 * "invalid syntax" at the opening bracket. */
static nbl_status parse_arguments(tpl_parser *p, tpl_node *node)
{
    tpl_token at = p->current;
    bool comma = false;
    NBL_TRY(nbl__tpl_expect(p, TOKEN_LPAREN));
    while (p->current.type != TOKEN_RPAREN) {
        if (comma) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        if (comma && p->current.type == TOKEN_RPAREN) break;
        bool good;
        tpl_node *one;
        if (p->current.type == TOKEN_MUL) {
            good = !node->dyn_args && !node->dyn_kwargs;
            NBL_TRY(nbl__tpl_advance(p));
            if (good) NBL_TRY(nbl__tpl_expression(p, true, &node->dyn_args));
        } else if (p->current.type == TOKEN_POW) {
            good = !node->dyn_kwargs;
            NBL_TRY(nbl__tpl_advance(p));
            if (good) NBL_TRY(nbl__tpl_expression(p, true, &node->dyn_kwargs));
        } else if (p->current.type == TOKEN_NAME && nbl__tpl_peek(p)->type == TOKEN_ASSIGN) {
            good = !node->dyn_kwargs;
            NBL_TRY(nbl__tpl_node(p, NODE_KEYWORD, &p->current, &one));
            one->value = p->current.value;
            NBL_TRY(nbl__tpl_advance(p));
            NBL_TRY(nbl__tpl_advance(p));
            if (good) NBL_TRY(nbl__tpl_expression(p, true, &one->a));
            NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->keywords, one));
        } else {
            good = !node->dyn_args && !node->dyn_kwargs && node->keywords.count == 0;
            if (good) NBL_TRY(nbl__tpl_expression(p, true, &one));
            if (good) NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->args, one));
        }
        if (!good) return nbl__tpl_syntax(p, &at, "invalid syntax for function call expression");
        comma = true;
    }
    return nbl__tpl_expect(p, TOKEN_RPAREN);
}

/* Parses a call of `value`; the current token is '('. */
static nbl_status parse_call(tpl_parser *p, tpl_node *value, tpl_node **node)
{
    NBL_TRY(nbl__tpl_node(p, NODE_CALL, &p->current, node));
    (*node)->a = value;
    return parse_arguments(p, *node);
}

/* Parses any number of subscripts and calls behind a value: a.b[0](x). */
static nbl_status parse_postfix(tpl_parser *p, tpl_node *node, tpl_node **result)
{
    for (;;) {
        tpl_token_type type = p->current.type;
        if (type == TOKEN_DOT || type == TOKEN_LBRACKET) NBL_TRY(parse_subscript(p, node, &node));
        else if (type == TOKEN_LPAREN) NBL_TRY(parse_call(p, node, &node));
        else return *result = node, NBL_OK;
    }
}

/* Parses a name that may have dots in it, as the names of filters and tests may. */
static nbl_status dotted_name(tpl_parser *p, tpl_value *name)
{
    NBL_TRY(nbl__tpl_expect_name(p, name));
    while (p->current.type == TOKEN_DOT) {
        tpl_text text = {0};
        tpl_value more;
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(nbl__tpl_expect_name(p, &more));
        NBL_TRY(nbl__tpl_add_string(p->vm, &text, name->string));
        NBL_TRY(tpl_add_c(p->vm, &text, "."));
        NBL_TRY(nbl__tpl_add_string(p->vm, &text, more.string));
        NBL_TRY(nbl__tpl_take(p->vm, &text, name));
    }
    return NBL_OK;
}

/* Parses |a|b behind `input`. inline_first: the first filter stands without a bar ({% filter a %}).
 * callee is NULL for an unknown name; jinja_scope.c reports it. */
nbl_status nbl__tpl_filters(tpl_parser *p, tpl_node *input, bool inline_first, tpl_node **result)
{
    while (p->current.type == TOKEN_PIPE || inline_first) {
        tpl_node *node;
        if (!inline_first) NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(nbl__tpl_node(p, NODE_FILTER, &p->current, &node));
        NBL_TRY(dotted_name(p, &node->value));
        node->callee = nbl__tpl_find_filter(node->value.string);
        if (p->current.type == TOKEN_LPAREN) NBL_TRY(parse_arguments(p, node));
        node->a = input;
        input = node;
        inline_first = false;
    }
    *result = input;
    return NBL_OK;
}

/* True if an argument without brackets may follow the name of a test: `x is divisibleby 3`. The
 * words else, or and and go on with the expression around the test. */
static bool begins_test_argument(const tpl_parser *p)
{
    switch (p->current.type) {
    case TOKEN_NAME:
        return !nbl__tpl_at_name(p, "else") && !nbl__tpl_at_name(p, "or") && !nbl__tpl_at_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_NUMBER:
    case TOKEN_LBRACKET:
    case TOKEN_LBRACE: return true;
    default: return false;
    }
}

/* Parses `is name`, `is not name`, with arguments in brackets or one without. The argument is a
 * primary with subscripts and calls: `x is sameas a.b` takes a.b, and `x is divisibleby 3 + 1` is
 * (x is divisibleby 3) + 1. `is not` becomes a NOT around the test. */
static nbl_status parse_test(tpl_parser *p, tpl_node *value, tpl_node **result)
{
    tpl_token at = p->current;
    tpl_node *node, *argument;
    bool negated;
    NBL_TRY(nbl__tpl_node(p, NODE_TEST, &at, &node));
    node->a = value;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(nbl__tpl_skip_name(p, "not", &negated));
    NBL_TRY(dotted_name(p, &node->value));
    node->callee = nbl__tpl_find_test(node->value.string);
    if (p->current.type == TOKEN_LPAREN) {
        NBL_TRY(parse_arguments(p, node));
    } else if (begins_test_argument(p)) {
        if (nbl__tpl_at_name(p, "is"))
            return nbl__tpl_syntax(p, &p->current, "You cannot chain multiple tests with is");
        NBL_TRY(nbl__tpl_primary(p, false, &argument));
        NBL_TRY(parse_postfix(p, argument, &argument));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->args, argument));
    }
    *result = node;
    if (!negated) return NBL_OK;
    NBL_TRY(nbl__tpl_node(p, NODE_NOT, &at, result));
    (*result)->a = node;
    return NBL_OK;
}

/* Parses signs, a value, what stands behind it, and with `with_filter` its filters and tests. The
 * operand of a sign is parsed without filters, so filters apply to the signed value. */
static nbl_status parse_unary(tpl_parser *p, bool with_filter, tpl_node **result)
{
    tpl_node *node;
    tpl_token_type type = p->current.type;
    if (type == TOKEN_SUB || type == TOKEN_ADD) {
        if (++p->vm->depth > TPL_MAX_PARSE || nbl__stack_left() < TPL_STACK_RESERVE)
            return nbl__tpl_syntax(p, &p->current, "nested too deep");
        NBL_TRY(nbl__tpl_node(p, type == TOKEN_SUB ? NODE_NEG : NODE_POS, &p->current, &node));
        NBL_TRY(nbl__tpl_advance(p));
        NBL_TRY(parse_unary(p, false, &node->a));
        p->vm->depth--;
    } else {
        NBL_TRY(nbl__tpl_primary(p, false, &node));
    }
    NBL_TRY(parse_postfix(p, node, &node));
    while (with_filter) {
        if (p->current.type == TOKEN_PIPE) NBL_TRY(nbl__tpl_filters(p, node, false, &node));
        else if (nbl__tpl_at_name(p, "is")) NBL_TRY(parse_test(p, node, &node));
        else if (p->current.type == TOKEN_LPAREN) NBL_TRY(parse_call(p, node, &node));
        else break;
    }
    *result = node;
    return NBL_OK;
}
