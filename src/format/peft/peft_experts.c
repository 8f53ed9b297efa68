/* peft_experts.c - adapters of stacks of experts: whose tensors are whose, files of transformers 4, and
 * what names of target_modules mean for models whose experts once were linear layers. See peft.h.
 *
 *     transformers 4   one pair per expert and projection     ….experts.3.gate_proj.lora_A.weight
 *     transformers 5   one pair per stack of all experts      ….experts.base_layer.lora_A.weight
 *
 * PEFT converts files and settings of the first kind while it loads them. So does this file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "format/peft/peft.h"

static const char gate_up[] = "gate_up_proj", down[] = "down_proj", inner[] = ".base_layer";

static nbl_status bad_module(const nbl__peft *p, const char *path, const char *what)
{
    return nbl__fail(p->ctx, NBL_ERROR_FORMAT, "%s: module \"%s\": %s", p->folder, path, what);
}

/* ---- names ---- */

nbl_status nbl__peft_name_experts(nbl__peft *p, nbl__peft_module *m)
{
    if (p->rules == NULL || p->settings.parameters.count == 0 || m->is_embedding) return NBL_OK;
    bool is_inner = nbl__ends_with(m->path, inner), targeted = false;
    /* A name such as "down_proj" would fit behind every path: a module that is chosen itself is no stack. */
    if (!is_inner) NBL_TRY(nbl__peft_targets(p->rules, m->path, NBL_PEFT_LINEAR, &targeted));
    if (targeted) return NBL_OK;
    int length = (int)(strlen(m->path) - (is_inner ? strlen(inner) : 0));
    const char *first = nbl__arena_printf(&p->arena, "%.*s.%s", length, m->path, gate_up);
    const char *last = nbl__arena_printf(&p->arena, "%.*s.%s", length, m->path, down);
    if (first == NULL || last == NULL) return NBL_ERROR_MEMORY;
    bool has_first = nbl__peft_targets_parameter(p->rules, first);
    bool has_last = nbl__peft_targets_parameter(p->rules, last);
    if (is_inner ? has_first && has_last : has_first || has_last)
        m->path = is_inner || !has_last ? first : last;
    return NBL_OK;
}

nbl_status nbl__peft_stem_experts(nbl__peft *p)
{
    for (int64_t i = 0; i < p->module_count; i++) {
        nbl__peft_module *m = &p->modules[i];
        if (m->experts == 0) continue;
        const char *name = nbl__peft_last_name(m->path);
        int length = (int)(name - m->path) - 1;
        /* gate_up_proj is the inner one if down_proj is adapted. */
        const char *other = nbl__arena_printf(&p->arena, "%.*s.%s", length, m->path, down);
        if (other == NULL) return NBL_ERROR_MEMORY;
        bool is_inner = strcmp(name, gate_up) == 0 && nbl__peft_find(p, other);
        m->stem = nbl__arena_printf(&p->arena, "%.*s%s", length, m->path, is_inner ? inner : "");
        if (m->stem == NULL) return NBL_ERROR_MEMORY;
    }
    return NBL_OK;
}

/* ---- files with a module per expert ---- */

/* Names of the three projections, in both spellings. */
enum { GATE, UP, DOWN, PROJECTIONS };
static const char *const projections[PROJECTIONS][2] = {
    [GATE] = {"gate_proj", "w1"}, [UP] = {"up_proj", "w3"}, [DOWN] = {"down_proj", "w2"}};

/* Splits "PREFIX.experts.3.gate_proj". *length: of "PREFIX.experts". */
static bool is_single(const char *path, int *length, int64_t *expert, int *projection)
{
    static const char word[] = ".experts.";
    const char *at = strstr(path, word);
    if (at == NULL) return false;
    const char *digits = at + strlen(word), *end = digits;
    for (*expert = 0; *end >= '0' && *end <= '9'; end++) {
        if (end - digits > 8) return false;
        *expert = *expert * 10 + (*end - '0');
    }
    if (end == digits || *end != '.' || (*digits == '0' && end - digits > 1)) return false;
    for (*projection = 0; *projection < PROJECTIONS; ++*projection)
        for (int i = 0; i < 2; i++)
            if (strcmp(end + 1, projections[*projection][i]) == 0) {
                *length = (int)(digits - 1 - path);
                return true;
            }
    return false;
}

/* The modules of one layer's experts, by projection and expert. */
typedef struct layer {
    const char *prefix; /* "model.layers.0.mlp.experts", `length` bytes */
    int length;
    int64_t experts; /* the largest index, plus 1 */
    const nbl__peft_module **of[PROJECTIONS];
} layer;

/* All experts of a projection must be there, and alike; or none. */
static nbl_status check_alike(const nbl__peft *p, const layer *l, int projection)
{
    const nbl__peft_module *like = NULL;
    for (int64_t e = 0; e < l->experts && like == NULL; e++) like = l->of[projection][e];
    if (like == NULL) return NBL_OK;
    if (like->magnitude || like->b_bias)
        return bad_module(p, like->path, "adapters of experts have neither DoRA nor lora_bias");
    for (int64_t e = 0; e < l->experts; e++) {
        const nbl__peft_module *m = l->of[projection][e];
        NBL_CHECK(p->ctx, m, NBL_ERROR_FORMAT,
                  "%s: module \"%.*s.%" PRId64 ".%s\": it has no tensors, but other experts have", p->folder,
                  l->length, l->prefix, e, projections[projection][0]);
        /* While inspecting, a wrong shape is listed and the module stays. */
        if (m->a->rank != 2 || m->b->rank != 2 || m->a->shape[0] != m->r || m->b->shape[1] != m->r ||
            m->a->shape[1] != m->in || m->b->shape[0] != m->out)
            return bad_module(p, m->path, "lora_A or lora_B does not have the rank of the settings");
        if (m->r != like->r || m->in != like->in || m->out != like->out || m->alpha < like->alpha ||
            m->alpha > like->alpha)
            return bad_module(p, m->path, "its sizes, rank or alpha are not those of the other experts");
    }
    return NBL_OK;
}

/* A new f32 tensor in the arena. */
static nbl__stored *new_tensor(nbl__peft *p, const nbl__stored *like, int64_t rows, int64_t columns,
                               float **values)
{
    nbl__stored *t = nbl__arena_alloc(&p->arena, sizeof *t);
    *values = nbl__arena_alloc(&p->arena, (size_t)(rows * columns) * sizeof **values);
    if (t == NULL || *values == NULL) return NULL;
    *t = (nbl__stored){.name = like->name,
                       .file = like->file,
                       .dtype = NBL_DTYPE_F32,
                       .rank = 2,
                       .shape = {rows, columns},
                       .elements = rows * columns,
                       .data = (const void *)*values,
                       .bytes = (uint64_t)(rows * columns) * sizeof **values};
    return t;
}

/* Makes the stack of `count` projections, gate and up or down, from their experts. */
static nbl_status join(nbl__peft *p, const layer *l, int first, int count, nbl__peft_module *to)
{
    const nbl__peft_module *like = l->of[first][0];
    nbl_isa isa = nbl__isa(p->ctx);
    int64_t r = like->r * count, out = like->out * count, in = like->in, experts = l->experts;
    float *a, *b, *line = nbl__arena_alloc(&p->arena, (size_t)like->r * sizeof *line);
    nbl__stored *a_tensor = new_tensor(p, like->a, experts * r, in, &a);
    nbl__stored *b_tensor = new_tensor(p, like->b, out, r * experts, &b);
    const char *name = count == 1 ? down : gate_up;
    *to = (nbl__peft_module){
        .experts = experts, .r = r, .in = in, .out = out, .a = a_tensor, .b = b_tensor, .halves = count == 2};
    to->path = nbl__arena_printf(&p->arena, "%.*s.%s", l->length, l->prefix, name);
    if (line == NULL || a_tensor == NULL || b_tensor == NULL || to->path == NULL) return NBL_ERROR_MEMORY;
    for (int64_t e = 0; e < experts; e++)
        for (int k = 0; k < count; k++) {
            const nbl__peft_module *m = l->of[first + k][e];
            nbl__to_f32(isa, m->a->dtype, m->a->data, a + (e * r + k * m->r) * in, m->r * in);
            for (int64_t o = 0; o < m->out; o++) {
                size_t at = (size_t)(o * m->r) * nbl__size_of(m->b->dtype);
                nbl__to_f32(isa, m->b->dtype, m->b->data + at, line, m->r);
                float *row = b + (k * m->out + o) * r * experts;
                for (int64_t j = 0; j < m->r; j++) row[(k * m->r + j) * experts + e] = line[j];
            }
        }
    /* PEFT doubles rank and alpha of the fused pair. */
    to->alpha = like->alpha * count;
    to->scale = to->alpha / (p->settings.rslora ? sqrt((double)r) : (double)r);
    return NBL_OK;
}

/* Joins the experts of the layer that module `at` belongs to; removes them from the list. *next: the
 * first module behind them. */
static nbl_status join_layer(nbl__peft *p, int64_t at, nbl__peft_module *joined, int64_t *joined_count,
                             int64_t *next)
{
    layer l = {.prefix = p->modules[at].path};
    int64_t expert;
    int length, projection;
    bool whole = true;
    *next = at + 1;
    if (!is_single(l.prefix, &l.length, &expert, &projection)) return NBL_OK;
    /* Experts of a layer follow each other: the list is sorted by path. */
    int64_t end = at;
    for (; end < p->module_count; end++) {
        const nbl__peft_module *m = &p->modules[end];
        if (!is_single(m->path, &length, &expert, &projection) || length != l.length ||
            strncmp(m->path, l.prefix, (size_t)length) != 0)
            break;
        whole = whole && m->a && m->b && !m->is_embedding;
        l.experts = nbl__max_i64(l.experts, expert + 1);
    }
    *next = end;
    if (!whole) return NBL_OK; /* listed already */
    NBL_CHECK(p->ctx, l.experts <= end - at, NBL_ERROR_FORMAT,
              "%s: module \"%.*s\": adapters of %" PRId64 " experts, and the last is number %" PRId64,
              p->folder, l.length, l.prefix, end - at, l.experts - 1);
    for (int k = 0; k < PROJECTIONS; k++) {
        l.of[k] = nbl__arena_alloc(&p->arena, (size_t)l.experts * sizeof *l.of[k]);
        if (l.of[k] == NULL) return NBL_ERROR_MEMORY;
    }
    for (int64_t i = at; i < end; i++) {
        is_single(p->modules[i].path, &length, &expert, &projection);
        if (l.of[projection][expert])
            return bad_module(p, p->modules[i].path, "its expert is adapted twice, under two names");
        l.of[projection][expert] = &p->modules[i];
    }
    for (int k = 0; k < PROJECTIONS; k++) NBL_TRY(check_alike(p, &l, k));
    const nbl__peft_module *gate = l.of[GATE][0], *up = l.of[UP][0];
    if ((gate == NULL) != (up == NULL))
        return bad_module(p, gate ? gate->path : up->path,
                          "gate_proj and up_proj of experts are adapted together or not at all");
    if (gate && (gate->r != up->r || gate->out != up->out || gate->in != up->in || gate->alpha < up->alpha ||
                 gate->alpha > up->alpha))
        return bad_module(p, gate->path, "its rank or alpha is not that of up_proj");
    if (gate) NBL_TRY(join(p, &l, GATE, 2, &joined[(*joined_count)++]));
    if (l.of[DOWN][0]) NBL_TRY(join(p, &l, DOWN, 1, &joined[(*joined_count)++]));
    for (int64_t i = at; i < end; i++) p->modules[i].path = NULL;
    return NBL_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const nbl__peft_module *)a)->path, ((const nbl__peft_module *)b)->path);
}

nbl_status nbl__peft_join_experts(nbl__peft *p)
{
    nbl__peft_module *joined = nbl__arena_alloc(&p->arena, (size_t)(p->module_count + 1) * sizeof *joined);
    int64_t count = 0;
    if (joined == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < p->module_count;) NBL_TRY(join_layer(p, i, joined, &count, &i));
    if (count == 0) return NBL_OK;
    for (int64_t i = 0; i < p->module_count; i++)
        if (p->modules[i].path) joined[count++] = p->modules[i];
    p->modules = joined;
    p->module_count = count;
    qsort(p->modules, (size_t)count, sizeof *p->modules, by_path);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(p->modules[i - 1].path, p->modules[i].path) == 0)
            return bad_module(p, p->modules[i].path, "it is there twice, as a stack and as single experts");
    return nbl__peft_stem_experts(p);
}

/* ---- stacks that PEFT takes for another orientation ---- */

void nbl__peft_swap_matrix(const float *from, bool rows_first, int64_t experts, int64_t r, int64_t n,
                           float *to)
{
    for (int64_t e = 0; e < experts; e++)
        for (int64_t j = 0; j < r; j++)
            for (int64_t i = 0; i < n; i++) {
                int64_t row = (e * r + j) * n + i, column = i * r * experts + j * experts + e;
                if (rows_first) to[column] = from[row];
                else to[row] = from[column];
            }
}

/* A stored factor, which is A or B, as the other one. */
static nbl_status swap_stored(nbl__peft *p, const nbl__peft_module *m, const nbl__stored *from,
                              bool rows_first, const nbl__stored **to)
{
    int64_t wide = m->r * m->experts, n = from->shape[rows_first ? 1 : 0];
    float *values, *read = nbl__arena_alloc(&p->arena, (size_t)(wide * n) * sizeof *read);
    nbl__stored *made = new_tensor(p, from, rows_first ? n : wide, rows_first ? wide : n, &values);
    if (read == NULL || made == NULL) return NBL_ERROR_MEMORY;
    nbl__to_f32(nbl__isa(p->ctx), from->dtype, from->data, read, wide * n);
    nbl__peft_swap_matrix(read, rows_first, m->experts, m->r, n, values);
    *to = made;
    return NBL_OK;
}

nbl_status nbl__peft_swap_experts(nbl__peft *p, const char *model_type)
{
    bool swaps = model_type && (strcmp(model_type, "llama4_text") == 0 || strcmp(model_type, "llama4") == 0);
    bool alternates = model_type && strcmp(model_type, "gpt_oss") == 0;
    for (int64_t i = 0; i < p->module_count; i++) {
        nbl__peft_module *m = &p->modules[i];
        if (m->halves && alternates)
            return bad_module(p, m->path,
                              "gate_proj and up_proj apart do not fit gpt_oss, whose columns alternate");
        if (!swaps || m->experts == 0 || m->swapped) continue;
        m->swapped = true;
        if (nbl__peft_is_new(p) || m->a == NULL || m->b == NULL) continue;
        int64_t wide = m->r * m->experts;
        if (m->a->rank != 2 || m->b->rank != 2 || m->a->shape[0] != wide || m->b->shape[1] != wide)
            return bad_module(p, m->path, "lora_A or lora_B does not have the rank of the settings");
        const nbl__stored *a, *b;
        NBL_TRY(swap_stored(p, m, m->b, false, &a));
        NBL_TRY(swap_stored(p, m, m->a, true, &b));
        m->a = a, m->b = b;
        m->in = a->shape[1], m->out = b->shape[0];
    }
    return NBL_OK;
}

const nbl__peft_module *nbl__peft_find_parameter(const nbl__peft *p, const char *name)
{
    for (int64_t i = 0; i < p->module_count; i++) {
        size_t n = strlen(p->modules[i].stem);
        if (strncmp(p->modules[i].stem, name, n) == 0 && strncmp(name + n, ".lora_", 6) == 0)
            return &p->modules[i];
    }
    return NULL;
}

nbl_status nbl__peft_file_tensor(nbl__arena *arena, const nbl__peft *p, const char **name, nbl_tensor *t)
{
    const nbl__peft_module *m = p ? nbl__peft_find_parameter(p, *name) : NULL;
    if (m == NULL || !m->swapped) return NBL_OK;
    bool is_a = nbl__ends_with(*name, ".lora_A.weight");
    int64_t wide = m->r * m->experts, n = t->shape[is_a ? 1 : 0];
    float *values = nbl__arena_alloc(arena, (size_t)(wide * n) * sizeof *values);
    *name = nbl__arena_printf(arena, "%s.lora_%c.weight", m->stem, is_a ? 'B' : 'A');
    if (values == NULL || *name == NULL) return NBL_ERROR_MEMORY;
    nbl__peft_swap_matrix(t->data, is_a, m->experts, m->r, n, values);
    t->shape[0] = is_a ? n : wide;
    t->shape[1] = is_a ? wide : n;
    t->data = values;
    return NBL_OK;
}

/* ---- settings of a new adapter ---- */

/* The parameter that a linear layer of transformers 4 became. */
typedef struct renamed {
    const char *module, *parameter;
} renamed;

static const renamed of_qwen[] = {
    {"gate", "gate.weight"}, {"gate_proj", gate_up}, {"up_proj", gate_up}, {"down_proj", down}};
static const renamed of_mixtral[] = {{"gate", "gate.weight"}, {"w1", gate_up}, {"w3", gate_up}, {"w2", down}};
enum { RENAMED = 4 };

/* The table of a model; NULL: PEFT rewrites nothing, so names of modules are those of transformers 5. */
static const renamed *table_of(const char *model_type)
{
    if (strcmp(model_type, "qwen3_moe") == 0 || strcmp(model_type, "qwen3_next") == 0) return of_qwen;
    return strcmp(model_type, "mixtral") == 0 ? of_mixtral : NULL;
}

/* True if `name` is `last`, or ends in it as a component. */
static bool ends_in(const char *name, const char *last)
{
    size_t n = strlen(name), length = strlen(last);
    return nbl__ends_with(name, last) && (n == length || name[n - length - 1] == '.');
}

/* Adds a name to a list once. The list has room. */
static void add_name(const char **names, int64_t *count, const char *name)
{
    for (int64_t i = 0; i < *count; i++)
        if (strcmp(names[i], name) == 0) return;
    names[(*count)++] = name;
}

/* "all-linear" as a list: the last names of all linear layers, and those of transformers 4's. */
static nbl_status list_all(nbl__arena *arena, const renamed *table, const nbl__peft_target *targets,
                           int64_t count, nbl__peft_settings *s)
{
    const char **names = nbl__arena_alloc(arena, (size_t)(count + RENAMED) * sizeof *names);
    int64_t n = 0;
    if (names == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        if (targets[i].kind == NBL_PEFT_LINEAR) add_name(names, &n, nbl__peft_last_name(targets[i].path));
    for (int i = 0; i < RENAMED; i++) add_name(names, &n, table[i].module);
    s->target.list = (nbl__peft_list){names, n};
    s->all_linear = false;
    return NBL_OK;
}

/* Appends {key, value} to a list of patterns. */
static nbl_status add_pattern(nbl__arena *arena, const nbl__peft_pattern **patterns, int64_t *count,
                              double value)
{
    nbl__peft_pattern *list = nbl__arena_alloc(arena, (size_t)(*count + 1) * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    if (*count) memcpy(list, *patterns, (size_t)*count * sizeof *list);
    list[*count] = (nbl__peft_pattern){".*\\.gate_up_proj", value};
    *patterns = list;
    ++*count;
    return NBL_OK;
}

nbl_status nbl__peft_rewrite_experts(nbl__arena *arena, const char *where, const char *model_type,
                                     const nbl__peft_target *targets, int64_t count, nbl__peft_settings *s)
{
    const renamed *table = table_of(model_type);
    if (table == NULL || (!s->all_linear && s->target.list.count == 0)) return NBL_OK;
    if (s->all_linear) NBL_TRY(list_all(arena, table, targets, count, s));
    int64_t asked = s->target.list.count, modules = 0, parameters = 0;
    const char **kept = nbl__arena_alloc(arena, (size_t)asked * sizeof *kept);
    const char **added = nbl__arena_alloc(arena, (size_t)(s->parameters.count + RENAMED) * sizeof *added);
    if (kept == NULL || added == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < s->parameters.count; i++) added[parameters++] = s->parameters.names[i];
    bool halves[2] = {false, false}, changed = false; /* gate, up */
    for (int64_t i = 0; i < asked; i++) {
        const char *name = s->target.list.names[i];
        const renamed *row = NULL;
        for (int k = 0; k < RENAMED && row == NULL; k++)
            if (ends_in(name, table[k].module)) row = &table[k];
        if (row == NULL) {
            kept[modules++] = name;
            continue;
        }
        changed = true;
        add_name(added, &parameters, row->parameter);
        if (row == &table[1] || row == &table[2]) halves[row - &table[1]] = true;
    }
    if (!changed) return NBL_OK;
    NBL_CHECK(arena->ctx, halves[0] == halves[1], NBL_ERROR_UNSUPPORTED,
              "%s: lora_target_modules has \"%s\" without \"%s\": experts have them in one parameter, %s",
              where, table[halves[0] ? 1 : 2].module, table[halves[0] ? 2 : 1].module, gate_up);
    for (int64_t i = 0; i < count; i++)
        for (int k = 1; k < RENAMED; k++)
            if (targets[i].kind == NBL_PEFT_LINEAR && ends_in(targets[i].path, table[k].module)) {
                nbl__log(arena->ctx, NBL_LOG_WARNING,
                         "%s: \"%s\" and its like are not adapted: \"%s\" means the experts here, as in PEFT",
                         where, targets[i].path, table[k].module);
                i = count - 1;
                break;
            }
    s->target.list = (nbl__peft_list){kept, modules};
    s->parameters = (nbl__peft_list){added, parameters};
    if (!halves[0]) return NBL_OK;
    NBL_TRY(add_pattern(arena, &s->rank_pattern, &s->rank_pattern_count, 2 * (double)s->r));
    return add_pattern(arena, &s->alpha_pattern, &s->alpha_pattern_count, 2 * s->alpha);
}
