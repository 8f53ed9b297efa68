/* jinja_scope.c - resolves the names of a template to slots, before the template runs.
 *
 * The rules are those of jinja2's compiler:
 * * A scope (loop, macro, with, set block, …) that stores a name has a variable of its own. The
 * variable starts with the value of the outer variable.
 * * The branches of an `if` share the scope around them.
 * * A name that no scope stores is looked up in the variables of the template when its scope is
 * entered.
 *
 * Example: the loop has its own x, so the last line prints 1.
 *
 *     {% set x = 1 %}           slot 0 = x     UNDEFINED on entry, then set
 *     {% for y in z %}          slot 1 = z     RESOLVE on entry of the template
 *                               slot 2 = y     PARAMETER of the loop
 *       {% set x = y %}         slot 3 = x     ALIAS of slot 0 on entry of each pass
 *     {% endfor %}
 *     {{ x }}                   slot 0
 *
 * A slot belongs to the function in which its scope is. A function inside reaches the slot over a
 * number of frames (`hops`). Each scope is visited twice: analyze() collects the names of a scope,
 * compile() writes slots into the nodes. Both passes visit the parts of a node in jinja2's order,
 * because the order decides which error of a template is reported. The work is counted, so hostile
 * templates reach a limit. */
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/syntax/jinja_symbols.h"

/* What compile() knows about the code around a node; jinja2's Frame. It is passed by value: a
 * change holds for the parts of a node only. */
typedef struct frame {
    tpl_symbols *symbols;
    bool toplevel, soft, in_loop;
    bool folds; /* inside an operator, call, filter, …: jinja2 folds constants here */
} frame;

typedef struct compiler {
    tpl_vm *vm;
    tpl_program *program;
    bool escape_unknown; /* inside an autoescape block whose argument is not a constant */
} compiler;

/* ---- the names of one scope; inner scopes are not entered ---- */

/* Records the names that a node reads and stores in its own scope. Of a statement with a scope of
 * its own only the head is visited: {% for a in b %} reads b here, and stores a in the scope of the
 * loop. `as_parameter`: names are parameters, which the caller of the scope sets. */
static nbl_status analyze(compiler *c, tpl_symbols *s, const tpl_node *node, bool as_parameter);

static nbl_status analyze_all(compiler *c, tpl_symbols *s, const tpl_nodes *nodes, bool as_parameter)
{
    for (int64_t i = 0; i < nodes->count; i++) NBL_TRY(analyze(c, s, nodes->items[i], as_parameter));
    return NBL_OK;
}

/* The body, the list of elifs and the else branch are the three branches. Each starts from the same
 * symbols, so a name that one branch stores is not known in the others. */
static nbl_status analyze_if(compiler *c, tpl_symbols *s, const tpl_node *node)
{
    tpl_symbols branches[3];
    const tpl_nodes *bodies[3] = {&node->body, &node->list, &node->otherwise};
    NBL_TRY(analyze(c, s, node->a, false));
    for (int i = 0; i < 3; i++) {
        NBL_TRY(nbl__tpl_copy_symbols(c->vm, s, &branches[i]));
        NBL_TRY(analyze_all(c, &branches[i], bodies[i], false));
    }
    return nbl__tpl_join_branches(c->vm, s, branches, 3);
}

static nbl_status analyze(compiler *c, tpl_symbols *s, const tpl_node *node, bool as_parameter)
{
    if (node == NULL) return NBL_OK;
    NBL_TRY(nbl__tpl_enter(c->vm));
    nbl_status status = NBL_OK;
    switch ((tpl_kind)node->kind) {
    case NODE_NAME:
        if (as_parameter) status = nbl__tpl_symbol_parameter(c->vm, s, node->value.string);
        else
            status = node->flag ? nbl__tpl_symbol_stored(c->vm, s, node->value.string)
                                : nbl__tpl_symbol_used(c->vm, s, node->value.string);
        break;
    case NODE_NSREF: status = nbl__tpl_symbol_used(c->vm, s, node->value.string); break;
    case NODE_IF: status = analyze_if(c, s, node); break;
    case NODE_MACRO: status = nbl__tpl_symbol_stored(c->vm, s, node->value.string); break;
    case NODE_SET:
        /* the value is read before the target is stored: {% set x = x + 1 %} */
        NBL_TRY(analyze(c, s, node->b, as_parameter));
        status = analyze(c, s, node->a, as_parameter);
        break;
    case NODE_FOR: status = analyze(c, s, node->b, as_parameter); break;
    case NODE_CALL_BLOCK:
    case NODE_FILTER_BLOCK:
    case NODE_SET_BLOCK: status = analyze(c, s, node->a, as_parameter); break;
    case NODE_WITH: status = analyze_all(c, s, &node->defaults, false); break;
    case NODE_AUTOESCAPE:
    case NODE_GENERATION:
    case NODE_BLOCK: break;
    default:
        NBL_TRY(analyze(c, s, node->a, as_parameter));
        NBL_TRY(analyze(c, s, node->b, as_parameter));
        NBL_TRY(analyze(c, s, node->c, as_parameter));
        NBL_TRY(analyze_all(c, s, &node->list, as_parameter));
        NBL_TRY(analyze_all(c, s, &node->args, as_parameter));
        NBL_TRY(analyze_all(c, s, &node->keywords, as_parameter));
        NBL_TRY(analyze(c, s, node->dyn_args, as_parameter));
        status = analyze(c, s, node->dyn_kwargs, as_parameter);
    }
    c->vm->depth--;
    return status;
}

/* ---- names used before they are stored, anywhere below ---- */

/* Looks for names without regard to scopes, as jinja2's UndeclaredNameVisitor does. */
typedef struct search {
    tpl_vm *vm;
    const char *const *names;
    int count;
    unsigned open, found; /* bit i: names[i] was not stored yet; it was used before it was stored */
} search;

static nbl_status find_names(search *f, const tpl_node *node);

static nbl_status find_in_all(search *f, const tpl_nodes *nodes)
{
    for (int64_t i = 0; i < nodes->count; i++) NBL_TRY(find_names(f, nodes->items[i]));
    return NBL_OK;
}

/* Visits a node and everything below. The order of the parts is the order of the fields of jinja2's
 * nodes, in which "used before it is stored" is meant: that of a conditional expression is test,
 * first, second. */
static nbl_status find_names(search *f, const tpl_node *node)
{
    if (node == NULL || node->kind == NODE_BLOCK) return NBL_OK;
    NBL_TRY(nbl__tpl_enter(f->vm));
    if (node->kind == NODE_NAME)
        for (int i = 0; i < f->count; i++) {
            if (!tpl_same(node->value.string, f->names[i])) continue;
            if (!node->flag && f->open & 1u << i) f->found |= 1u << i;
            else f->open &= ~(1u << i);
        }
    if (node->kind == NODE_FILTER_BLOCK) NBL_TRY(find_in_all(f, &node->body));
    NBL_TRY(find_names(f, node->kind == NODE_COND ? node->b : node->a));
    NBL_TRY(find_names(f, node->kind == NODE_COND ? node->a : node->b));
    if (node->kind != NODE_FOR) NBL_TRY(find_names(f, node->c));
    if (node->kind == NODE_IF) NBL_TRY(find_in_all(f, &node->body));
    NBL_TRY(find_in_all(f, &node->list));
    NBL_TRY(find_in_all(f, &node->defaults));
    NBL_TRY(find_in_all(f, &node->args));
    NBL_TRY(find_in_all(f, &node->keywords));
    NBL_TRY(find_names(f, node->dyn_args));
    NBL_TRY(find_names(f, node->dyn_kwargs));
    if (node->kind != NODE_IF && node->kind != NODE_FILTER_BLOCK) NBL_TRY(find_in_all(f, &node->body));
    NBL_TRY(find_in_all(f, &node->otherwise));
    if (node->kind == NODE_FOR) NBL_TRY(find_names(f, node->c));
    f->vm->depth--;
    return NBL_OK;
}

/* Sets bit i of *found if names[i] is used before it is stored. */
static nbl_status find_undeclared(compiler *c, const tpl_nodes *body, const char *const *names, int count,
                                  unsigned *found)
{
    search f = {c->vm, names, count, (1u << count) - 1, 0};
    NBL_TRY(find_in_all(&f, body));
    *found = f.found;
    return NBL_OK;
}

/* ---- scopes into nodes ---- */

/* Copies the slots to fill on entry into the node that opens the scope. */
static nbl_status keep_scope(compiler *c, const tpl_symbols *s, tpl_scope *scope)
{
    NBL_TRY(TPL_NEW(c->vm, scope->loads, s->load_count));
    scope->count = s->load_count;
    for (int i = 0; i < s->load_count; i++) {
        const tpl_symbol_load *load = &s->loads[i];
        tpl_load *kept = &scope->loads[i];
        *kept = (tpl_load){.action = load->action, .slot = load->slot, .name = tpl_of_string(load->name)};
        if (load->action != LOAD_ALIAS) continue;
        kept->from = load->from.slot;
        kept->hops = s->owner->depth - load->from.owner->depth;
    }
    return NBL_OK;
}

/* The symbols of a scope inside `outer`: in the same function, or with `owner` in a new one. */
static tpl_symbols inner_symbols(tpl_symbols *outer, tpl_owner *owner)
{
    return (tpl_symbols){.parent = outer, .level = outer->level + 1, .owner = owner ? owner : outer->owner};
}

/* Begins a function inside `parent`: a frame of its own, without slots yet. */
static nbl_status new_function(compiler *c, tpl_owner *parent, tpl_owner *made)
{
    *made = (tpl_owner){.parent = parent, .depth = parent ? parent->depth + 1 : 0};
    NBL_TRY(TPL_NEW(c->vm, made->body, 1));
    for (int i = 0; i < SPECIAL_COUNT; i++) made->body->special[i] = -1;
    return NBL_OK;
}

static nbl_status compile(compiler *c, frame f, tpl_node *node);

static nbl_status compile_all(compiler *c, frame f, const tpl_nodes *nodes)
{
    for (int64_t i = 0; i < nodes->count; i++) NBL_TRY(compile(c, f, nodes->items[i]));
    return NBL_OK;
}

/* Sets the position for the error message that the caller raises. */
static nbl_status complain(compiler *c, const tpl_node *node)
{
    c->vm->line = node->line;
    c->vm->column = node->column;
    return NBL_OK;
}

/* Finds the slot of a name, and the number of frames up to it. */
static nbl_status resolve_name(compiler *c, frame f, const tpl_node *node, const tpl_string *name, int *slot,
                               int *hops)
{
    const tpl_ref *found = nbl__tpl_find_ref(f.symbols, name);
    if (found == NULL) {
        NBL_TRY(complain(c, node));
        return nbl__tpl_raise(c->vm,
                              "Tried to resolve a name to a reference that was unknown to the frame ('%.*s')",
                              (int)name->size, name->bytes);
    }
    *slot = found->slot;
    *hops = f.symbols->owner->depth - found->owner->depth;
    return NBL_OK;
}

static nbl_status check_loop_name(compiler *c, const tpl_node *node);

static nbl_status check_loop_names(compiler *c, const tpl_nodes *nodes)
{
    for (int64_t i = 0; i < nodes->count; i++) NBL_TRY(check_loop_name(c, nodes->items[i]));
    return NBL_OK;
}

/* Fails if anything inside a loop stores to `loop`. Parameters of macros do not count. */
static nbl_status check_loop_name(compiler *c, const tpl_node *node)
{
    if (node == NULL) return NBL_OK;
    NBL_TRY(nbl__tpl_enter(c->vm));
    if (node->kind == NODE_NAME && node->flag && tpl_same(node->value.string, "loop")) {
        NBL_TRY(complain(c, node));
        return nbl__tpl_raise(c->vm, "Can't assign to special loop variable in for-loop target");
    }
    bool target = node->kind == NODE_FOR || node->kind == NODE_SET || node->kind == NODE_SET_BLOCK;
    if (target || node->kind == NODE_TUPLE) NBL_TRY(check_loop_name(c, node->a));
    if (node->kind == NODE_TUPLE || node->kind == NODE_IF) NBL_TRY(check_loop_names(c, &node->list));
    NBL_TRY(check_loop_names(c, &node->body));
    NBL_TRY(check_loop_names(c, &node->otherwise));
    c->vm->depth--;
    return NBL_OK;
}

/* Copies a loop's target, which has other slots in the condition than in the body. */
static nbl_status clone_target(compiler *c, const tpl_node *node, tpl_node **copy)
{
    NBL_TRY(TPL_NEW(c->vm, *copy, 1));
    **copy = *node;
    NBL_TRY(TPL_NEW(c->vm, (*copy)->list.items, node->list.count));
    for (int64_t i = 0; i < node->list.count; i++)
        NBL_TRY(clone_target(c, node->list.items[i], &(*copy)->list.items[i]));
    return NBL_OK;
}

/* True if a block inside these statements is `scoped`: it may use `loop`, so the loop must have
 * it. */
static nbl_status has_scoped_block(compiler *c, const tpl_nodes *nodes, bool *found)
{
    NBL_TRY(nbl__tpl_enter(c->vm));
    for (int64_t i = 0; i < nodes->count && !*found; i++) {
        const tpl_node *node = nodes->items[i];
        *found |= node->kind == NODE_BLOCK && node->flag;
        NBL_TRY(has_scoped_block(c, &node->body, found));
        if (node->kind == NODE_IF) NBL_TRY(has_scoped_block(c, &node->list, found));
        NBL_TRY(has_scoped_block(c, &node->otherwise, found));
    }
    c->vm->depth--;
    return NBL_OK;
}

/* Compiles a loop. Body, condition and else branch are scopes of their own. A condition is a
 * function, because it runs while the iterator advances. A recursive loop is a function too,
 * because loop(…) calls it.
 *
 * Only a loop that uses the variable `loop` has it (`extended`), as in jinja2. */
static nbl_status compile_for(compiler *c, frame f, tpl_node *node)
{
    static const char *const names[] = {"loop"};
    static const tpl_string loop_name = {"loop", 4, 4};
    unsigned found;
    bool scoped = false;
    tpl_owner own, test;
    if (node->flag) {
        NBL_TRY(new_function(c, f.symbols->owner, &own));
        node->function = own.body;
    }
    tpl_symbols body = inner_symbols(f.symbols, node->flag ? &own : NULL);
    tpl_symbols otherwise = inner_symbols(f.symbols, node->flag ? &own : NULL);
    NBL_TRY(find_undeclared(c, &node->body, names, 1, &found));
    NBL_TRY(has_scoped_block(c, &node->body, &scoped));
    node->extended = node->flag || found || scoped;
    if (node->extended) {
        NBL_TRY(nbl__tpl_symbol_parameter(c->vm, &body, &loop_name));
        NBL_TRY(nbl__tpl_slot_of(c->vm, body.owner, body.level, &loop_name, &node->slot));
    }
    NBL_TRY(analyze(c, &body, node->a, true));
    NBL_TRY(analyze_all(c, &body, &node->body, false));
    NBL_TRY(analyze_all(c, &otherwise, &node->otherwise, false));
    NBL_TRY(check_loop_name(c, node));
    if (node->c) {
        NBL_TRY(new_function(c, f.symbols->owner, &test));
        node->test_function = test.body;
        tpl_symbols condition = inner_symbols(f.symbols, &test);
        NBL_TRY(clone_target(c, node->a, &node->test_target));
        NBL_TRY(analyze(c, &condition, node->test_target, true));
        NBL_TRY(analyze(c, &condition, node->c, false));
        NBL_TRY(keep_scope(c, &condition, &node->test));
        NBL_TRY(compile(c, (frame){.symbols = &condition}, node->test_target));
        NBL_TRY(compile(c, (frame){.symbols = &condition}, node->c));
    }
    NBL_TRY(keep_scope(c, &body, &node->scope));
    NBL_TRY(compile(c, (frame){.symbols = &body}, node->a));
    NBL_TRY(compile(c, f, node->b));
    NBL_TRY(compile_all(c, (frame){.symbols = &body, .in_loop = true}, &node->body));
    NBL_TRY(keep_scope(c, &otherwise, &node->other));
    return compile_all(c, (frame){.symbols = &otherwise, .in_loop = f.in_loop && !node->flag},
                       &node->otherwise);
}

/* Compiles a macro, or the body of a call block or generation block: a function with parameters.
 *
 * The variables caller, kwargs and varargs exist only if the body uses them. A macro that does not
 * use kwargs refuses unknown keywords. A parameter of one of these names takes its place. */
static nbl_status compile_macro(compiler *c, frame f, tpl_node *node)
{
    static const char *const names[] = {"caller", "kwargs", "varargs"};
    static const tpl_string name_strings[] = {{"caller", 6, 6}, {"kwargs", 6, 6}, {"varargs", 7, 7}};
    tpl_owner own;
    unsigned found;
    NBL_TRY(new_function(c, f.symbols->owner, &own));
    tpl_body *body = node->function = own.body;
    tpl_symbols s = inner_symbols(f.symbols, &own);
    NBL_TRY(analyze_all(c, &s, &node->list, true));
    NBL_TRY(analyze_all(c, &s, &node->defaults, false));
    NBL_TRY(analyze_all(c, &s, &node->body, false));
    NBL_TRY(find_undeclared(c, &node->body, names, SPECIAL_COUNT, &found));
    NBL_TRY(TPL_NEW(c->vm, body->parameters, node->list.count));
    for (int64_t i = 0; i < node->list.count; i++) {
        const tpl_string *name = node->list.items[i]->value.string;
        NBL_TRY(nbl__tpl_slot_of(c->vm, &own, s.level, name, &body->parameters[i]));
        if (tpl_same(name, "caller")) {
            body->explicit_caller = true;
            if (found & 1u << SPECIAL_CALLER && node->list.count - i > node->defaults.count) {
                NBL_TRY(complain(c, node));
                return nbl__tpl_raise(
                    c->vm, "When defining macros or call blocks the special \"caller\" argument must "
                           "be omitted or be given a default.");
            }
        }
        for (int special = SPECIAL_CALLER; special < SPECIAL_COUNT; special++)
            if (tpl_same(name, names[special])) found &= ~(1u << special);
    }
    for (int special = 0; special < SPECIAL_COUNT; special++) {
        if (!(found & 1u << special)) continue;
        NBL_TRY(nbl__tpl_symbol_parameter(c->vm, &s, &name_strings[special]));
        NBL_TRY(nbl__tpl_slot_of(c->vm, &own, s.level, &name_strings[special], &body->special[special]));
    }
    NBL_TRY(keep_scope(c, &s, &node->scope));
    NBL_TRY(compile_all(c, (frame){.symbols = &s}, &node->defaults));
    return compile_all(c, (frame){.symbols = &s}, &node->body);
}

/* Begins an autoescape block. If its argument is not a constant, nothing inside is folded. */
static nbl_status begin_autoescape(compiler *c, tpl_node *node)
{
    NBL_TRY(nbl__tpl_fold(c->vm, node, true));
    c->escape_unknown |= node->kind != NODE_CONST;
    return node->kind == NODE_CONST ? nbl__tpl_truth(c->vm, node->value, &c->vm->autoescape) : NBL_OK;
}

/* Compiles a with, filter, set or autoescape block: a scope in the same frame. The values of `with`
 * are read outside the scope, so {% with a=1, b=a %} takes the outer a. The flags of autoescape
 * hold for the body only. */
static nbl_status compile_inner(compiler *c, frame f, tpl_node *node)
{
    tpl_symbols s = inner_symbols(f.symbols, NULL);
    frame inner = {.symbols = &s, .in_loop = f.in_loop};
    if (node->kind == NODE_WITH) NBL_TRY(analyze_all(c, &s, &node->list, true));
    if (node->kind == NODE_AUTOESCAPE) NBL_TRY(analyze(c, &s, node->a, false));
    NBL_TRY(analyze_all(c, &s, &node->body, false));
    if (node->kind == NODE_FILTER_BLOCK) NBL_TRY(analyze(c, &s, node->a, false));
    NBL_TRY(keep_scope(c, &s, &node->scope));
    NBL_TRY(compile_all(c, f, &node->defaults)); /* values of with */
    NBL_TRY(compile_all(c, inner, &node->list)); /* targets of with */
    bool escapes = c->vm->autoescape, unknown = c->escape_unknown;
    if (node->kind == NODE_AUTOESCAPE) NBL_TRY(begin_autoescape(c, node->a));
    NBL_TRY(compile_all(c, inner, &node->body));
    c->vm->autoescape = escapes, c->escape_unknown = unknown;
    if (node->kind == NODE_SET_BLOCK) {
        NBL_TRY(compile(c, f, node->a));
        return node->b ? compile(c, inner, node->b) : NBL_OK;
    }
    return node->a ? compile(c, inner, node->a) : NBL_OK;
}

/* True for the kinds that jinja2's compiler folds (its decorator optimizeconst). The range relies
 * on the order of tpl_kind. */
static bool is_folded(const tpl_node *node)
{
    return node->kind >= NODE_COND && node->kind <= NODE_POS && node->kind != NODE_OPERAND &&
           node->kind != NODE_SLICE;
}

/* Fails for an unknown filter or test. Inside an `if` or a conditional expression the failure comes
 * at run time, and only if the filter is reached. So a template may test for a filter before it
 * uses it. */
static nbl_status check_callee(compiler *c, frame f, tpl_node *node)
{
    const tpl_string *name = node->value.string;
    if (node->callee || f.soft) return NBL_OK;
    NBL_TRY(complain(c, node));
    return nbl__tpl_raise(c->vm, "No %s named '%.*s'.", node->kind == NODE_FILTER ? "filter" : "test",
                          (int)name->size, name->bytes);
}

/* Folds a node where jinja2 does: an expression that an output prints, and expressions with an
 * operator, call, filter and so on. A literal on its own, such as a list, is not folded. */
static nbl_status fold(compiler *c, frame f, tpl_node *node)
{
    if (c->escape_unknown) return NBL_OK;
    if (is_folded(node)) return f.folds ? NBL_OK : nbl__tpl_optimize(c->vm, node);
    for (int64_t i = 0; node->kind == NODE_OUTPUT && i < node->list.count; i++)
        NBL_TRY(nbl__tpl_fold(c->vm, node->list.items[i], true));
    return NBL_OK;
}

/* Writes the slots of one node and visits its parts. Kinds with a scope of their own return
 * early. */
static nbl_status compile_node(compiler *c, frame f, tpl_node *node)
{
    f.folds |= is_folded(node);
    frame soft = f;
    soft.soft = true;
    switch ((tpl_kind)node->kind) {
    case NODE_CONST: return NBL_OK; /* the parts of a folded expression are not checked */
    case NODE_NAME: return resolve_name(c, f, node, node->value.string, &node->slot, &node->hops);
    case NODE_NSREF: return resolve_name(c, f, node, node->value.string, &node->slot, &node->hops);
    case NODE_IF:
        NBL_TRY(compile(c, soft, node->a));
        NBL_TRY(compile_all(c, soft, &node->body));
        NBL_TRY(compile_all(c, soft, &node->list));
        return compile_all(c, soft, &node->otherwise);
    case NODE_FOR: return compile_for(c, f, node);
    case NODE_MACRO:
        node->exported = f.toplevel;
        NBL_TRY(compile_macro(c, f, node));
        return resolve_name(c, f, node, node->value.string, &node->slot, &node->hops);
    case NODE_CALL_BLOCK: NBL_TRY(compile_macro(c, f, node)); return compile(c, f, node->a);
    case NODE_GENERATION: return compile_macro(c, f, node);
    case NODE_SET_BLOCK: node->exported = f.toplevel; return compile_inner(c, f, node);
    case NODE_FILTER_BLOCK:
    case NODE_WITH:
    case NODE_AUTOESCAPE: return compile_inner(c, f, node);
    case NODE_BLOCK: return nbl__tpl_nodes_add(c->vm, &c->program->blocks, node);
    case NODE_BREAK:
    case NODE_CONTINUE:
        if (f.in_loop) return NBL_OK;
        NBL_TRY(complain(c, node));
        return nbl__tpl_raise(c->vm, "'%s' outside loop", node->kind == NODE_BREAK ? "break" : "continue");
    case NODE_SET: node->exported = f.toplevel; break;
    case NODE_FILTER:
    case NODE_TEST: NBL_TRY(check_callee(c, f, node)); break;
    case NODE_COND: f = soft; break;
    case NODE_CONCAT: node->flag = c->escape_unknown; break;
    default: break;
    }
    if (node->a) NBL_TRY(compile(c, f, node->a));
    if (node->b) NBL_TRY(compile(c, f, node->b));
    if (node->c) NBL_TRY(compile(c, f, node->c));
    NBL_TRY(compile_all(c, f, &node->list));
    NBL_TRY(compile_all(c, f, &node->args));
    NBL_TRY(compile_all(c, f, &node->keywords));
    if (node->dyn_args) NBL_TRY(compile(c, f, node->dyn_args));
    return node->dyn_kwargs ? compile(c, f, node->dyn_kwargs) : NBL_OK;
}

/* Folds a node, then compiles what is left. A folded node is a CONST, and its parts are not
 * visited. */
static nbl_status compile(compiler *c, frame f, tpl_node *node)
{
    NBL_TRY(nbl__tpl_enter(c->vm));
    NBL_TRY(fold(c, f, node));
    NBL_TRY(compile_node(c, f, node));
    c->vm->depth--;
    return NBL_OK;
}

/* Compiles a block: a function that sees only the variables set at the top level. */
static nbl_status compile_block(compiler *c, tpl_node *node)
{
    static const tpl_string names[] = {{"self", 4, 4}, {"super", 5, 5}};
    tpl_owner own;
    NBL_TRY(new_function(c, NULL, &own));
    node->function = own.body;
    tpl_symbols s = {.owner = &own};
    NBL_TRY(nbl__tpl_symbol_parameter(c->vm, &s, &names[0]));
    NBL_TRY(nbl__tpl_slot_of(c->vm, &own, 0, &names[0], &node->slot));
    NBL_TRY(nbl__tpl_symbol_parameter(c->vm, &s, &names[1]));
    NBL_TRY(analyze_all(c, &s, &node->body, false));
    NBL_TRY(keep_scope(c, &s, &node->scope));
    return compile_all(c, (frame){.symbols = &s}, &node->body);
}

/* Resolves the whole template, then its blocks. A block has no parent frame: it is compiled after
 * the body, in the order of appearance. */
nbl_status nbl__tpl_resolve(tpl_vm *vm, tpl_program *program)
{
    static const char *const names[] = {"self"};
    static const tpl_string self = {"self", 4, 4};
    compiler c = {.vm = vm, .program = program};
    unsigned found;
    tpl_owner own = {.body = &program->root};
    tpl_symbols s = {.owner = &own};
    vm->depth = 0;
    program->self_slot = -1;
    NBL_TRY(find_undeclared(&c, &program->body, names, 1, &found));
    if (found) {
        NBL_TRY(nbl__tpl_symbol_parameter(vm, &s, &self));
        NBL_TRY(nbl__tpl_slot_of(vm, &own, 0, &self, &program->self_slot));
    }
    NBL_TRY(analyze_all(&c, &s, &program->body, false));
    NBL_TRY(keep_scope(&c, &s, &program->scope));
    NBL_TRY(compile_all(&c, (frame){.symbols = &s, .toplevel = true}, &program->body));
    for (int64_t i = 0; i < program->blocks.count; i++) {
        const tpl_string *name = program->blocks.items[i]->value.string;
        for (int64_t k = 0; k < i; k++)
            if (nbl__tpl_same_name(program->blocks.items[k]->value.string, name)) {
                NBL_TRY(complain(&c, program->blocks.items[i]));
                return nbl__tpl_raise(vm, "block '%.*s' defined twice", (int)name->size, name->bytes);
            }
        NBL_TRY(compile_block(&c, program->blocks.items[i]));
    }
    return NBL_OK;
}
