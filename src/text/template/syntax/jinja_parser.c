/* jinja_parser.c - parses the statements of a template; see jinja_ast.h.
 *
 * The parser is a recursive descent with one token of lookahead: p->current is the next token to
 * read, nbl__tpl_peek is the one behind it. Each statement is one function parse_NAME, found by
 * name in the table `statements`. It is called with the statement's name as the current token, and
 * returns with the end of the tag (BLOCK_END) as the current token. Expressions are in
 * jinja_expression.c.
 *
 * Errors have the text and the line that jinja2 reports. extends, include and import are errors
 * that name the statement, because a chat template has no other templates to load.
 *
 * Memory: nodes and lists are in the arena of the machine, which becomes the program's at the end.
 * So nothing is freed on failure. */
#include <stdarg.h>
#include <stdio.h>

#include "base/stack.h"
#include "text/template/syntax/jinja_ast.h"

/* ---- tokens ---- */

/* A syntax error at a token: sets the position, and records the message. */
nbl_status nbl__tpl_syntax(tpl_parser *p, const tpl_token *at, const char *format, ...)
{
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    p->vm->line = at->line;
    p->vm->column = at->column;
    return nbl__tpl_raise(p->vm, "%s", message);
}

/* The parser stays at the last token, which is TOKEN_END or TOKEN_ERROR. */
nbl_status nbl__tpl_advance(tpl_parser *p)
{
    if (p->at + 1 < p->tokens.count) p->at++;
    p->current = p->tokens.items[p->at];
    if (p->current.type == TOKEN_ERROR)
        return nbl__tpl_syntax(p, &p->current, "%.*s", (int)p->current.value.string->size,
                               p->current.value.string->bytes);
    return NBL_OK;
}

/* The token behind the current one; at the end the last token. */
const tpl_token *nbl__tpl_peek(const tpl_parser *p)
{
    return &p->tokens.items[p->at + 1 < p->tokens.count ? p->at + 1 : p->at];
}

/* Fails unless the current token has this type; else goes on to the next. */
nbl_status nbl__tpl_expect(tpl_parser *p, tpl_token_type type)
{
    if (p->current.type == type) return nbl__tpl_advance(p);
    tpl_token wanted = {.type = type, .value = tpl_none()};
    const char *name = type == TOKEN_NAME ? "name" : nbl__tpl_token_name(p->vm, &wanted);
    if (p->current.type == TOKEN_END)
        return nbl__tpl_syntax(p, &p->current, "unexpected end of template, expected '%s'.", name);
    return nbl__tpl_syntax(p, &p->current, "expected token '%s', got '%s'", name,
                           nbl__tpl_token_name(p->vm, &p->current));
}

nbl_status nbl__tpl_expect_name(tpl_parser *p, tpl_value *name)
{
    *name = p->current.value;
    return nbl__tpl_expect(p, TOKEN_NAME);
}

/* True if the current token is this name. Keywords of jinja2 are names. */
bool nbl__tpl_at_name(const tpl_parser *p, const char *name)
{
    return p->current.type == TOKEN_NAME && tpl_same(p->current.value.string, name);
}

nbl_status nbl__tpl_skip_name(tpl_parser *p, const char *name, bool *skipped)
{
    *skipped = nbl__tpl_at_name(p, name);
    return *skipped ? nbl__tpl_advance(p) : NBL_OK;
}

/* Makes a node without a slot. Nodes count as work, so the length of a template is limited by it
 * too. */
nbl_status nbl__tpl_node(tpl_parser *p, tpl_kind kind, const tpl_token *at, tpl_node **node)
{
    int line = at->line, column = at->column; /* *at may be overwritten */
    NBL_TRY(nbl__tpl_work(p->vm, 1));
    NBL_TRY(TPL_NEW(p->vm, *node, 1));
    (*node)->kind = (uint8_t)kind;
    (*node)->line = line;
    (*node)->column = column;
    (*node)->slot = -1;
    return NBL_OK;
}

/* Appends a node. The array doubles in the arena. */
nbl_status nbl__tpl_nodes_add(tpl_vm *vm, tpl_nodes *list, tpl_node *node)
{
    if (list->count == list->room) {
        int64_t room = list->room ? list->room * 2 : 4;
        tpl_node **items;
        NBL_TRY(TPL_NEW(vm, items, room));
        if (list->count) memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = node;
    return NBL_OK;
}

/* ---- bodies ---- */

/* The stack of end tags (p->ends) and the stack of open statements (p->tags) exist for messages
 * only. Both are full at 256 levels, which is an error. */
static nbl_status parse_statement(tpl_parser *p, tpl_node **node);

/* True if the current token is one of the end tags. */
static bool at_end_tag(const tpl_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (nbl__tpl_at_name(p, *ends)) return true;
    return false;
}

/* Raises jinja2's message for an unknown tag, or with `tag` NULL for the end of the template inside
 * a statement. The message lists the end tags that the innermost statement takes. */
static nbl_status fail_unknown(tpl_parser *p, const tpl_token *tag)
{
    char message[256] = "Unexpected end of template.";
    if (tag)
        snprintf(message, sizeof message, "Encountered unknown tag '%.64s'.",
                 nbl__tpl_token_name(p->vm, tag));
    const char *looking = p->end_count ? p->ends[p->end_count - 1] : NULL;
    const char *inner = p->tag_count ? p->tags[p->tag_count - 1] : NULL;
    return nbl__tpl_syntax(p, tag ? tag : &p->current, "%s%s%s%s%s%s%s", message,
                           looking ? " Jinja was looking for the following tags: " : "",
                           looking ? looking : "", looking ? "." : "",
                           inner ? " The innermost block that needs to be closed is '" : "",
                           inner ? inner : "", inner ? "'." : "");
}

/* Moves the collected data and printed expressions into one OUTPUT node at the end of the body.
 * jinja2 groups them in the same way. */
static nbl_status flush(tpl_parser *p, tpl_nodes *data, tpl_nodes *body)
{
    tpl_node *output;
    if (data->count == 0) return NBL_OK;
    tpl_token at = {.line = data->items[0]->line, .column = data->items[0]->column};
    NBL_TRY(nbl__tpl_node(p, NODE_OUTPUT, &at, &output));
    output->list = *data;
    *data = (tpl_nodes){0};
    return nbl__tpl_nodes_add(p->vm, body, output);
}

/* Parses statements up to one of the end tags, or to the end of the template if there are no end
 * tags. */
static nbl_status parse_body(tpl_parser *p, const char *const *ends, const char *names, tpl_nodes *body)
{
    tpl_nodes data = {0};
    tpl_node *node;
    if (++p->vm->depth > TPL_MAX_PARSE || p->end_count == 256 || nbl__stack_left() < TPL_STACK_RESERVE)
        return nbl__tpl_syntax(p, &p->current, "nested too deep");
    if (ends) p->ends[p->end_count++] = names;
    while (p->current.type != TOKEN_END) {
        if (p->current.type == TOKEN_DATA) {
            NBL_TRY(nbl__tpl_node(p, NODE_DATA, &p->current, &node));
            node->value = p->current.value;
            NBL_TRY(nbl__tpl_nodes_add(p->vm, &data, node));
            NBL_TRY(nbl__tpl_advance(p));
        } else if (p->current.type == TOKEN_VARIABLE_BEGIN) {
            NBL_TRY(nbl__tpl_advance(p));
            NBL_TRY(nbl__tpl_tuple(p, (tpl_tuple_rules){0}, &node));
            NBL_TRY(nbl__tpl_nodes_add(p->vm, &data, node));
            NBL_TRY(nbl__tpl_expect(p, TOKEN_VARIABLE_END));
        } else { /* TOKEN_BLOCK_BEGIN: the lexer makes no other token here */
            NBL_TRY(flush(p, &data, body));
            NBL_TRY(nbl__tpl_advance(p));
            if (ends && at_end_tag(p, ends)) break;
            NBL_TRY(parse_statement(p, &node));
            if (node) NBL_TRY(nbl__tpl_nodes_add(p->vm, body, node));
            NBL_TRY(nbl__tpl_expect(p, TOKEN_BLOCK_END));
        }
    }
    NBL_TRY(flush(p, &data, body));
    if (ends && p->current.type == TOKEN_END) return fail_unknown(p, NULL);
    if (ends) p->end_count--;
    p->vm->depth--;
    return NBL_OK;
}

/* Parses the body of a statement after its head; a colon may end the head, as in Python. The end
 * tag stays the current token, or is dropped. */
static nbl_status parse_block_body(tpl_parser *p, const char *const *ends, const char *names, bool drop,
                                   tpl_nodes *body)
{
    if (p->current.type == TOKEN_COLON) NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(nbl__tpl_expect(p, TOKEN_BLOCK_END));
    NBL_TRY(parse_body(p, ends, names, body));
    return drop ? nbl__tpl_advance(p) : NBL_OK;
}

/* The same for a statement with one end tag. The end tag is dropped. */
static nbl_status parse_to(tpl_parser *p, const char *end, const char *name, tpl_nodes *body)
{
    const char *const ends[] = {end, NULL};
    return parse_block_body(p, ends, name, true, body);
}

/* ---- targets ---- */

/* True if a node may stand left of '=': a name, an attribute of a namespace, or a tuple of
 * these. */
static bool assignable(const tpl_node *node)
{
    if (node->kind == NODE_NAME || node->kind == NODE_NSREF) return true;
    if (node->kind != NODE_TUPLE) return false;
    for (int64_t i = 0; i < node->list.count; i++)
        if (!assignable(node->list.items[i])) return false;
    return true;
}

/* Sets the flag of all names in a target: they are stored to. */
static void mark_stored(tpl_node *node)
{
    node->flag = true;
    for (int64_t i = 0; i < node->list.count; i++) mark_stored(node->list.items[i]);
}

/* Parses what a statement assigns to: `x`, `a, b`, `(a, (b, c))`, and with `namespaces` also
 * `ns.x`. */
static nbl_status parse_target(tpl_parser *p, bool namespaces, tpl_node **target)
{
    tpl_token at = p->current;
    NBL_TRY(nbl__tpl_tuple(p, (tpl_tuple_rules){.simplified = true, .namespaces = namespaces}, target));
    if (!assignable(*target)) {
        const char *what = (*target)->kind == NODE_CONST   ? "const"
                           : (*target)->kind == NODE_TUPLE ? "tuple"
                           : (*target)->kind == NODE_LIST  ? "list"
                           : (*target)->kind == NODE_DICT  ? "dict"
                                                           : "expression";
        at.line = (*target)->line;
        at.column = (*target)->column;
        return nbl__tpl_syntax(p, &at, "can't assign to '%s'", what);
    }
    mark_stored(*target);
    return NBL_OK;
}

/* Parses a single name that is assigned to: the name of a macro or of a parameter. */
static nbl_status parse_name_target(tpl_parser *p, tpl_node **target)
{
    NBL_TRY(nbl__tpl_node(p, NODE_NAME, &p->current, target));
    (*target)->flag = true;
    NBL_TRY(nbl__tpl_expect_name(p, &(*target)->value));
    static const char *const words[] = {"true", "false", "none", "True", "False", "None"};
    for (int i = 0; i < 6; i++)
        if (tpl_same((*target)->value.string, words[i])) {
            tpl_token at = {.line = (*target)->line, .column = (*target)->column};
            return nbl__tpl_syntax(p, &at, "can't assign to 'name'");
        }
    return NBL_OK;
}

/* ---- statements; the current token is their name ---- */

/* {% set a = b %}, or {% set a %}…{% endset %} with optional filters: {% set a|trim %}…{% endset
 * %}. */
static nbl_status parse_set(tpl_parser *p, tpl_node *node)
{
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(parse_target(p, true, &node->a));
    if (p->current.type == TOKEN_ASSIGN) {
        NBL_TRY(nbl__tpl_advance(p));
        node->kind = NODE_SET;
        return nbl__tpl_tuple(p, (tpl_tuple_rules){0}, &node->b);
    }
    node->kind = NODE_SET_BLOCK;
    NBL_TRY(nbl__tpl_filters(p, NULL, false, &node->b));
    return parse_to(p, "endset", "'endset'", &node->body);
}

/* {% for a in b if c recursive %}…{% else %}…{% endfor %}. The iterable is parsed without inline
 * conditions, because the word `if` begins the condition of the loop. */
static nbl_status parse_for(tpl_parser *p, tpl_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    bool present, finished;
    node->kind = NODE_FOR;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(parse_target(p, false, &node->a));
    NBL_TRY(nbl__tpl_skip_name(p, "in", &present));
    if (!present)
        return nbl__tpl_syntax(p, &p->current, "expected token 'in', got '%s'",
                               nbl__tpl_token_name(p->vm, &p->current));
    NBL_TRY(nbl__tpl_tuple(p, (tpl_tuple_rules){.no_condition = true}, &node->b));
    NBL_TRY(nbl__tpl_skip_name(p, "if", &present));
    if (present) NBL_TRY(nbl__tpl_expression(p, true, &node->c));
    NBL_TRY(nbl__tpl_skip_name(p, "recursive", &node->flag));
    NBL_TRY(parse_block_body(p, ends, "'endfor' or 'else'", false, &node->body));
    NBL_TRY(nbl__tpl_skip_name(p, "endfor", &finished));
    if (finished) return NBL_OK;
    NBL_TRY(nbl__tpl_advance(p));
    return parse_to(p, "endfor", "'endfor'", &node->otherwise);
}

/* {% if a %}…{% elif b %}…{% else %}…{% endif %}. Each elif becomes an IF node in the list of the
 * first one. Only the first node has the else branch. */
static nbl_status parse_if(tpl_parser *p, tpl_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tpl_node *branch = node;
    node->kind = NODE_IF;
    NBL_TRY(nbl__tpl_advance(p));
    for (bool more;;) {
        NBL_TRY(nbl__tpl_tuple(p, (tpl_tuple_rules){.no_condition = true}, &branch->a));
        NBL_TRY(parse_block_body(p, ends, "'elif' or 'else' or 'endif'", false, &branch->body));
        NBL_TRY(nbl__tpl_skip_name(p, "elif", &more));
        if (!more) break;
        NBL_TRY(nbl__tpl_node(p, NODE_IF, &p->current, &branch));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->list, branch));
    }
    bool otherwise;
    NBL_TRY(nbl__tpl_skip_name(p, "else", &otherwise));
    if (otherwise) return parse_to(p, "endif", "'endif'", &node->otherwise);
    return nbl__tpl_advance(p);
}

/* (a, b=1): the parameters of a macro or call block. The defaults belong to the last parameters:
 * defaults.items[k] is that of parameter list.count - defaults.count + k. */
static nbl_status parse_signature(tpl_parser *p, tpl_node *node)
{
    NBL_TRY(nbl__tpl_expect(p, TOKEN_LPAREN));
    while (p->current.type != TOKEN_RPAREN) {
        tpl_node *parameter, *fallback;
        if (node->list.count) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        NBL_TRY(parse_name_target(p, &parameter));
        if (p->current.type == TOKEN_ASSIGN) {
            NBL_TRY(nbl__tpl_advance(p));
            NBL_TRY(nbl__tpl_expression(p, true, &fallback));
            NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->defaults, fallback));
        } else if (node->defaults.count) {
            return nbl__tpl_syntax(p, &p->current, "non-default argument follows default argument");
        }
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->list, parameter));
    }
    return nbl__tpl_expect(p, TOKEN_RPAREN);
}

/* {% macro f(a, b=1) %}…{% endmacro %}. */
static nbl_status parse_macro(tpl_parser *p, tpl_node *node)
{
    tpl_node *name;
    node->kind = NODE_MACRO;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(parse_name_target(p, &name));
    node->value = name->value;
    NBL_TRY(parse_signature(p, node));
    return parse_to(p, "endmacro", "'endmacro'", &node->body);
}

/* {% call(a, b) macro(x) %}…{% endcall %}: calls macro(x); the body becomes its variable `caller`,
 * a macro with the parameters a and b. */
static nbl_status parse_call_block(tpl_parser *p, tpl_node *node)
{
    tpl_token at = p->current;
    node->kind = NODE_CALL_BLOCK;
    NBL_TRY(nbl__tpl_advance(p));
    if (p->current.type == TOKEN_LPAREN) NBL_TRY(parse_signature(p, node));
    NBL_TRY(nbl__tpl_expression(p, true, &node->a));
    if (node->a->kind != NODE_CALL) return nbl__tpl_syntax(p, &at, "expected call");
    return parse_to(p, "endcall", "'endcall'", &node->body);
}

/* {% filter upper|trim %}…{% endfilter %}: the first filter stands without a bar. */
static nbl_status parse_filter_block(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_FILTER_BLOCK;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(nbl__tpl_filters(p, NULL, true, &node->a));
    return parse_to(p, "endfilter", "'endfilter'", &node->body);
}

/* {% generation %}…{% endgeneration %}: an extension of transformers. It marks the text of the
 * assistant; the spans of this text become training masks. */
static nbl_status parse_generation(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_GENERATION;
    NBL_TRY(nbl__tpl_advance(p));
    return parse_to(p, "endgeneration", "'endgeneration'", &node->body);
}

/* {% with a=1, b=2 %}…{% endwith %}: list[i] is the target of the value defaults[i]. */
static nbl_status parse_with(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_WITH;
    NBL_TRY(nbl__tpl_advance(p));
    while (p->current.type != TOKEN_BLOCK_END) {
        tpl_node *target, *value;
        if (node->list.count) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        NBL_TRY(parse_target(p, false, &target));
        NBL_TRY(nbl__tpl_expect(p, TOKEN_ASSIGN));
        NBL_TRY(nbl__tpl_expression(p, true, &value));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->list, target));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->defaults, value));
    }
    return parse_to(p, "endwith", "'endwith'", &node->body);
}

/* {% autoescape true %}…{% endautoescape %}; the value may be any expression. */
static nbl_status parse_autoescape(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_AUTOESCAPE;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(nbl__tpl_expression(p, true, &node->a));
    return parse_to(p, "endautoescape", "'endautoescape'", &node->body);
}

/* {% block name scoped %}…{% endblock name %}. Without inheritance a block is printed where it
 * stands. The name behind endblock is optional, and dropped if it is the right one. */
static nbl_status parse_block(tpl_parser *p, tpl_node *node)
{
    bool required, named;
    node->kind = NODE_BLOCK;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(nbl__tpl_expect_name(p, &node->value));
    NBL_TRY(nbl__tpl_skip_name(p, "scoped", &node->flag));
    NBL_TRY(nbl__tpl_skip_name(p, "required", &required));
    if (required)
        return nbl__tpl_syntax(p, &p->current, "a required block is never filled in a chat template");
    if (p->current.type == TOKEN_SUB)
        return nbl__tpl_syntax(p, &p->current,
                               "Block names in Jinja have to be valid Python identifiers and may not "
                               "contain hyphens, use an underscore instead.");
    NBL_TRY(parse_to(p, "endblock", "'endblock'", &node->body));
    named = p->current.type == TOKEN_NAME && p->current.value.string->size == node->value.string->size &&
            memcmp(p->current.value.string->bytes, node->value.string->bytes, node->value.string->size) == 0;
    return named ? nbl__tpl_advance(p) : NBL_OK;
}

/* {% print a, b %} prints the same as {{ a }}{{ b }}. */
static nbl_status parse_print(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_OUTPUT;
    NBL_TRY(nbl__tpl_advance(p));
    while (p->current.type != TOKEN_BLOCK_END) {
        tpl_node *item;
        if (node->list.count) NBL_TRY(nbl__tpl_expect(p, TOKEN_COMMA));
        NBL_TRY(nbl__tpl_expression(p, true, &item));
        NBL_TRY(nbl__tpl_nodes_add(p->vm, &node->list, item));
    }
    return NBL_OK;
}

/* {% break %} and {% continue %}: extensions of jinja2 that transformers loads. */
static nbl_status parse_break(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_BREAK;
    return nbl__tpl_advance(p);
}

static nbl_status parse_continue(tpl_parser *p, tpl_node *node)
{
    node->kind = NODE_CONTINUE;
    return nbl__tpl_advance(p);
}

static const struct {
    const char *name;
    nbl_status (*parse)(tpl_parser *p, tpl_node *node); /* NULL: the statement is an error */
} statements[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
    {"block", parse_block},
    {"autoescape", parse_autoescape},
    {"print", parse_print},
    {"include", NULL},
    {"extends", NULL},
    {"import", NULL},
    {"from", NULL},
};

/* Parses one statement. The node is made as an OUTPUT; the function of the statement sets its
 * kind. */
static nbl_status parse_statement(tpl_parser *p, tpl_node **node)
{
    tpl_token at = p->current;
    if (at.type != TOKEN_NAME) return nbl__tpl_syntax(p, &at, "tag name expected");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!tpl_same(at.value.string, statements[i].name)) continue;
        if (statements[i].parse == NULL) {
            p->vm->line = at.line;
            p->vm->column = at.column;
            return nbl__tpl_refuse(p->vm, "{%% %s %%}: a chat template cannot use other templates",
                                   statements[i].name);
        }
        if (p->tag_count == 256) return nbl__tpl_syntax(p, &at, "nested too deep");
        p->tags[p->tag_count++] = statements[i].name;
        NBL_TRY(nbl__tpl_node(p, NODE_OUTPUT, &at, node));
        NBL_TRY(statements[i].parse(p, *node));
        p->tag_count--;
        return NBL_OK;
    }
    return fail_unknown(p, &at);
}

/* Lexes, parses and resolves names. On success the program owns the machine's arena, and the
 * machine gets a new one. On failure vm->message and the position say why. */
nbl_status nbl__tpl_parse(tpl_vm *vm, const char *text, size_t size, tpl_program *program)
{
    enum { MAX_TEXT = 4 << 20 };
    tpl_parser *p;
    *program = (tpl_program){.ctx = vm->ctx};
    vm->line = vm->column = 1;
    if (size > MAX_TEXT) return nbl__tpl_refuse(vm, "the template is longer than %d MiB", MAX_TEXT >> 20);
    NBL_TRY(TPL_NEW(vm, p, 1));
    p->vm = vm;
    NBL_TRY(nbl__tpl_lex(vm, text, size, &p->tokens));
    /* advance() then makes item 0 the current token */
    p->at = -1;
    NBL_TRY(nbl__tpl_advance(p));
    NBL_TRY(parse_body(p, NULL, NULL, &program->body));
    NBL_TRY(nbl__tpl_resolve(vm, program));
    program->arena = vm->arena;
    program->memory = vm->memory;
    vm->arena = nbl__arena_make(vm->ctx);
    return NBL_OK;
}
