/* graph.c - building a graph: values, nodes, names. See graph.h.
 *
 * Values, nodes and steps are growing arrays owned by the graph; pointers into them are invalid
 * after the next addition. Names, arguments and bindings are in the graph's arena and never
 * move. */
#include "graph/graph.h"

#include <stdio.h>

void nbl__graph_open(nbl_context *ctx, nbl__graph *g)
{
    memset(g, 0, sizeof *g);
    g->ctx = ctx;
    g->arena = nbl__arena_make(ctx);
    g->layer = -1;
}

void nbl__graph_close(nbl__graph *g)
{
    nbl__free(g->ctx, g->values, (size_t)g->value_room * sizeof *g->values);
    nbl__free(g->ctx, g->nodes, (size_t)g->node_room * sizeof *g->nodes);
    nbl__free(g->ctx, g->steps, (size_t)g->step_room * sizeof *g->steps);
    nbl__arena_free(&g->arena);
}

nbl_status nbl__graph_status(const nbl__graph *g)
{
    return g->status;
}

/* Later failures are consequences of the first, so only the first is kept. */
bool nbl__graph_failed(nbl__graph *g, nbl_status status)
{
    if (g->status == NBL_OK) g->status = status;
    return g->status != NBL_OK;
}

/* Makes room for one more element, by doubling. The array moves when it grows. */
static bool grow(nbl__graph *g, void **array, int count, int *room, size_t size)
{
    assert(count >= 0 && (*room == 0 || count <= *room));
    if (count < *room) return true;
    int wanted = *room ? *room * 2 : 256;
    void *larger = nbl__alloc_array(g->ctx, (size_t)wanted, size);
    if (larger == NULL) return !nbl__graph_failed(g, NBL_ERROR_MEMORY);
    if (*array) memcpy(larger, *array, (size_t)count * size);
    nbl__free(g->ctx, *array, (size_t)*room * size);
    *array = larger;
    *room = wanted;
    return true;
}

void nbl__graph_set_layer(nbl__graph *g, int layer)
{
    g->layer = layer;
}

void nbl__graph_set_scope(nbl__graph *g, const char *scope)
{
    g->scope = scope ? nbl__arena_strdup(&g->arena, scope) : NULL;
    if (scope && g->scope == NULL) nbl__graph_failed(g, NBL_ERROR_MEMORY);
}

/* The name in the arena; NULL if memory has run out. */
static const char *copy_name(nbl__graph *g, const char *name)
{
    const char *text = nbl__arena_strdup(&g->arena, name);
    if (text == NULL) nbl__graph_failed(g, NBL_ERROR_MEMORY);
    return text;
}

/* ---- values ---- */

nbl__value nbl__graph_new(nbl__graph *g, nbl__kind kind, const char *name)
{
    /* values[0] stays unused: 0 means "no value" */
    if (g->status != NBL_OK) return 0;
    if (name == NULL) return nbl__graph_failed(g, NBL_ERROR_MEMORY), 0; /* it was made in the arena */
    if (!grow(g, (void **)&g->values, g->value_count + 1, &g->value_room, sizeof *g->values)) return 0;
    nbl__value value = ++g->value_count;
    g->values[value] = (nbl__value_info){.name = name, .kind = kind, .producer = -1};
    return value;
}

/* Shape and dtype are fixed here; rows change later only through nbl__plan_infer. */
nbl__value nbl__graph_value(nbl__graph *g, nbl__kind kind, const char *name, nbl_dtype dtype, int rank,
                            const int64_t *shape)
{
    nbl__value value = nbl__graph_new(g, kind, copy_name(g, name));
    if (value == 0) return 0;
    assert(rank >= 0 && rank <= NBL_MAX_RANK);
    nbl_tensor *t = &g->values[value].tensor;
    *t = (nbl_tensor){.dtype = dtype, .rank = rank};
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    return value;
}

nbl__value nbl__graph_weight(nbl__graph *g, const char *name, const nbl_weight *weight)
{
    nbl__value value = nbl__graph_new(g, NBL_KIND_WEIGHT, copy_name(g, name));
    if (value == 0) return 0;
    g->values[value].weight = *weight;
    return value;
}

void nbl__graph_pin(nbl__graph *g, nbl__value value)
{
    assert(value >= 0 && value <= g->value_count);
    if (g->status == NBL_OK && value) g->values[value].pinned = true;
}

/* Appends a node with empty arguments and bindings; -1 after a failure. */
static int new_node(nbl__graph *g, const nbl__family *family, const char *name, int slots)
{
    if (g->status != NBL_OK) return -1;
    if (name == NULL) return nbl__graph_failed(g, NBL_ERROR_MEMORY), -1; /* it was made in the arena */
    if (!grow(g, (void **)&g->nodes, g->node_count, &g->node_room, sizeof *g->nodes)) return -1;
    nbl__node node = {.name = name, .family = family, .layer = g->layer, .scope = g->scope};
    node.arguments = nbl__arena_alloc(&g->arena, family ? family->size : 1);
    node.bound = nbl__arena_alloc(&g->arena, (size_t)slots * sizeof *node.bound);
    if (node.arguments == NULL || node.bound == NULL) return nbl__graph_failed(g, NBL_ERROR_MEMORY), -1;
    g->nodes[g->node_count] = node;
    return g->node_count++;
}

/* A new view of `value` with its tensor; the caller sets the shape. A view of strided columns is a
 * view of what these are columns of. 0 after a failure. */
static nbl__value new_view(nbl__graph *g, nbl__value value)
{
    int node = new_node(g, NULL, g->values[value].name, 2);
    /* A view is a node without family, so that autodiff visits it in order; it needs no step. */
    nbl__value view = node < 0 ? 0 : nbl__graph_new(g, NBL_KIND_ACTIVATION, g->values[value].name);
    if (view == 0) return 0;
    const nbl__value_info *from = &g->values[value];
    nbl__value_info *to = &g->values[view];
    /* A parameter's gradient is one f32 value that its users add to; a view has no value of its
     * own for it. */
    if (from->trained) {
        nbl__graph_failed(g, nbl__fail(g->ctx, NBL_ERROR_UNSUPPORTED,
                                       "no gradient can reach the trained parameter %s: it is used as a view",
                                       from->name));
        return 0;
    }
    to->tensor = from->tensor;
    to->alias = from->tensor.row_stride ? from->alias : value;
    to->offset = from->tensor.row_stride ? from->offset : 0;
    to->differentiable = from->differentiable;
    to->producer = node;
    g->nodes[node].bound[0] = to->alias;
    g->nodes[node].bound[1] = view;
    return view;
}

nbl__value nbl__graph_view(nbl__graph *g, nbl__value value, int64_t a, int64_t b)
{
    if (g->status != NBL_OK || value == 0) return 0;
    nbl__value view = new_view(g, value);
    if (view == 0) return 0;
    const nbl_tensor *from = &g->values[value].tensor;
    nbl_tensor *t = &g->values[view].tensor;
    int64_t inner = a * (b ? b : 1), rows = inner ? nbl__tensor_elements(from) / inner : 0;
    *t = (nbl_tensor){
        .dtype = from->dtype, .rank = b ? 3 : 2, .shape = {rows, a, b}, .row_stride = from->row_stride};
    /* The elements must divide into whole rows. Rows that lie in wider ones stay as they are. */
    if (nbl__tensor_elements(t) != nbl__tensor_elements(from) ||
        (from->row_stride && inner != nbl__row_elements(from))) {
        nbl__graph_failed(
            g, nbl__fail(g->ctx, NBL_ERROR_SHAPE, "%s %s cannot be seen as rows of %" PRId64 " x %" PRId64,
                         g->values[value].name, nbl__show_shape(from->rank, from->shape).text, a, b));
        return 0;
    }
    return view;
}

nbl__value nbl__graph_columns(nbl__graph *g, nbl__value value, int64_t first, int64_t count)
{
    if (g->status != NBL_OK || value == 0) return 0;
    const nbl_tensor from = g->values[value].tensor;
    if (from.rank != 2 || first < 0 || count < 1 || count > from.shape[1] - first) {
        nbl__graph_failed(
            g, nbl__fail(g->ctx, NBL_ERROR_SHAPE, "%s %s has no %" PRId64 " columns from column %" PRId64,
                         g->values[value].name, nbl__show_shape(from.rank, from.shape).text, count, first));
        return 0;
    }
    if (count == from.shape[1]) return value;
    nbl__value view = new_view(g, value);
    if (view == 0) return 0;
    g->values[view].offset += first;
    g->values[view].tensor.shape[1] = count;
    g->values[view].tensor.row_stride = nbl__row_stride(&from);
    return view;
}

nbl__value nbl__graph_storage(const nbl__graph *g, nbl__value value)
{
    assert(value > 0 && value <= g->value_count);
    while (g->values[value].alias) {
        assert(g->values[value].alias < value); /* a view comes after what it views: no cycles */
        value = g->values[value].alias;
    }
    return value;
}

/* Updates the rows of a view from its source, whose rows nbl__plan_resize may have changed. */
static void refresh_view(nbl__graph *g, nbl__value value)
{
    nbl__value_info *view = &g->values[value];
    if (view->alias == 0) return;
    refresh_view(g, view->alias);
    int64_t row = nbl__row_stride(&view->tensor);
    view->tensor.shape[0] = row ? nbl__tensor_elements(&g->values[view->alias].tensor) / row : 0;
}

/* ---- nodes ---- */

void nbl__graph_add_step(nbl__graph *g, int node, bool backward)
{
    if (g->status != NBL_OK) return;
    assert(node >= 0 && node < g->node_count && g->nodes[node].family);
    if (!grow(g, (void **)&g->steps, g->step_count, &g->step_room, sizeof *g->steps)) return;
    g->steps[g->step_count++] = (nbl__step){node, backward};
}

nbl__shown_node nbl__show_node(const nbl__node *node)
{
    nbl__shown_node shown;
    const char *scope = node->scope ? node->scope : "";
    bool full = strncmp(node->name, scope, strlen(scope)) == 0;
    snprintf(shown.text, sizeof shown.text, "%s%s", full ? "" : scope, node->name);
    return shown;
}

void *nbl__node_attr(const nbl__node *node, const char *name)
{
    for (const nbl__attr *attr = node->family->attrs; attr->name; attr++)
        if (strcmp(attr->name, name) == 0) return (char *)node->arguments + attr->offset;
    return NULL;
}

nbl__value nbl__graph_seed_dropout(nbl__graph *g, int64_t layers)
{
    nbl__value seeds = 0;
    for (int i = 0; i < g->node_count && g->status == NBL_OK; i++) {
        const nbl__node *node = &g->nodes[i];
        const nbl__slot *slot = node->family ? nbl__slot_find(node->family, "seeds") : NULL;
        if (slot == NULL || *(float *)nbl__node_attr(node, "dropout") == 0) continue;
        if (seeds == 0) seeds = nbl__graph_value(g, NBL_KIND_INPUT, "seeds", NBL_DTYPE_I64, 1, &layers);
        node->bound[slot - node->family->slots] = seeds;
        *(int64_t *)nbl__node_attr(node, "seed_index") = node->layer;
    }
    return seeds;
}

/* The slot list of a family ends with a NULL name. */
static int slot_count(const nbl__family *family)
{
    int count = 0;
    while (family->slots[count].name) count++;
    return count;
}

void *nbl__graph_begin(nbl__graph *g, const nbl__family *family, const char *name)
{
    /* Reset attributes: a zeroed struct is not always the default. */
    int node = g->status == NBL_OK ? new_node(g, family, copy_name(g, name), slot_count(family)) : -1;
    /* After a failure the caller still writes attributes: give it memory of the largest
     * arguments struct. */
    if (node < 0) {
        size_t largest = 1;
        for (int i = 0; nbl__family_at(i); i++)
            if (nbl__family_at(i)->size > largest) largest = nbl__family_at(i)->size;
        return nbl__arena_alloc(&g->arena, largest);
    }
    nbl__attrs_reset(family, g->nodes[node].arguments);
    return g->nodes[node].arguments;
}

/* The slot of the last node whose tensor or weight lies at this address; NULL: none. */
static const nbl__slot *slot_at(const nbl__graph *g, const void *field)
{
    const nbl__node *node = &g->nodes[g->node_count - 1];
    int slot = nbl__slot_at(node->family, (size_t)((const char *)field - (const char *)node->arguments));
    return slot < 0 ? NULL : &node->family->slots[slot];
}

void nbl__graph_bind(nbl__graph *g, const void *field, nbl__value value)
{
    if (g->status != NBL_OK || value == 0) return;
    const nbl__node *node = &g->nodes[g->node_count - 1];
    const nbl__slot *slot = slot_at(g, field);
    if (slot == NULL)
        nbl__graph_failed(g, nbl__fail(g->ctx, NBL_ERROR_INTERNAL, "%s: %s has no slot at this field",
                                       node->name, node->family->name));
    else if (nbl__slot_is_weight(slot) && g->values[value].tensor.row_stride)
        nbl__graph_failed(g,
                          nbl__fail(g->ctx, NBL_ERROR_INTERNAL, "%s: %s is a view of columns, %s is a weight",
                                    node->name, g->values[value].name, slot->name));
    else {
        assert(value > 0 && value <= g->value_count);
        node->bound[slot - node->family->slots] = value; /* slots and bindings are parallel arrays */
    }
}

/* A dense nbl_weight over a tensor. */
static nbl_weight dense_weight(const nbl_tensor *t, const void *data)
{
    nbl_weight weight = {.format = NBL_FORMAT_DENSE, .dtype = t->dtype, .rank = t->rank, .data = data};
    memcpy(weight.shape, t->shape, sizeof weight.shape);
    return weight;
}

/* An address for a value before there is memory: kernels are chosen by alignment and overlap, too. */
static void *stand_in(const nbl__graph *g, nbl__value value)
{
    enum { ALIGNMENT = 256 };
    return (void *)((uintptr_t)nbl__graph_storage(g, value) * ALIGNMENT);
}

/* The same for the parts of a weight that are present. */
static void hide_addresses(nbl_weight *w, const void *address)
{
    if (w->data) w->data = address;
    if (w->scales) w->scales = address;
    if (w->scale_codes) w->scale_codes = address;
    if (w->nested_scales) w->nested_scales = address;
    if (w->nested_table) w->nested_table = address;
}

void nbl__node_fill(nbl__graph *g, const nbl__node *node, const nbl__value *bound, void *arguments,
                    nbl__address_fn address, void *user)
{
    for (const nbl__slot *slot = node->family->slots; slot->name; slot++) {
        nbl__value value = bound[slot - node->family->slots];
        void *field = (char *)arguments + slot->offset;
        if (nbl__slot_is_weight(slot)) {
            nbl_weight *weight = field;
            *weight = value ? g->values[value].weight : (nbl_weight){0};
            if (value && g->values[value].kind != NBL_KIND_WEIGHT)
                *weight = dense_weight(&g->values[value].tensor,
                                       address ? address(user, value) : stand_in(g, value));
            if (value && address == NULL) hide_addresses(weight, stand_in(g, value));
            continue;
        }
        nbl_tensor *tensor = field;
        assert(value >= 0 && value <= g->value_count);
        if (value) refresh_view(g, value);
        *tensor = value ? g->values[value].tensor : (nbl_tensor){0};
        if (value) tensor->data = address ? address(user, value) : stand_in(g, value);
    }
}

/* slot->instead names a slot that backward reads in place of this one, if it is bound. */
bool nbl__slot_is_saved(const nbl__family *family, const nbl__slot *slot, const nbl__value *bound)
{
    if (!slot->saved || slot->instead == NULL) return slot->saved;
    assert(nbl__slot_find(family, slot->instead));
    return bound[nbl__slot_find(family, slot->instead) - family->slots] == 0;
}

bool nbl__slot_is_read(const nbl__slot *slot)
{
    return slot->role == NBL_ROLE_INPUT || slot->role == NBL_ROLE_OPTIONAL || nbl__slot_is_weight(slot);
}

/* Checks that all required slots are bound, and infers the forward operator. */
static bool infer_node(nbl__graph *g, const nbl__node *node)
{
    if (g->status != NBL_OK) return false;
    const nbl__slot *slots = node->family->slots;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        bool needed = slot->role == NBL_ROLE_INPUT || slot->role == NBL_ROLE_WEIGHT;
        if (!needed || node->bound[slot - slots]) continue;
        nbl__graph_failed(
            g, nbl__fail(g->ctx, NBL_ERROR_INTERNAL, "%s: %s was not bound", node->name, slot->name));
        return false;
    }
    /* Infer needs dtypes and shapes only, so data pointers are dummies. */
    nbl__node_fill(g, node, node->bound, node->arguments, NULL, NULL);
    if (!nbl__graph_failed(g, nbl__infer(g->ctx, node->family, false, node->arguments))) return true;
    nbl__hint(g->ctx, g->status, "in %s", nbl__show_node(node).text);
    return false;
}

/* True if the node reads a trained parameter or a value that depends on one. */
static bool depends_on_trained(const nbl__graph *g, const nbl__node *node)
{
    const nbl__slot *slots = node->family->slots;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        nbl__value value = node->bound[slot - slots];
        if (value && nbl__slot_is_read(slot) && (g->values[value].differentiable || g->values[value].trained))
            return true;
    }
    return false;
}

nbl__value nbl__graph_end(nbl__graph *g)
{
    int index = g->node_count - 1;
    if (g->status != NBL_OK) return 0;
    assert(index >= 0 && g->nodes[index].family);
    /* a copy, because adding values may move g->values; node.bound still points to the node's
     * array */
    nbl__node node = g->nodes[index];
    if (!infer_node(g, &node)) return 0;
    const nbl__slot *slots = node.family->slots;
    /* Outputs are differentiable if an input is; saved values and integers never are. */
    bool differentiable = depends_on_trained(g, &node);
    nbl__value first = 0;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_OUTPUT && slot->role != NBL_ROLE_SAVED) continue;
        nbl_tensor made = *nbl__slot_tensor(slot, node.arguments);
        /* rank 0: infer says that these arguments do not produce this output */
        if (made.rank == 0) continue;
        const char *name = first ? nbl__arena_printf(&g->arena, "%s.%s", node.name, slot->name) : node.name;
        nbl__value value = nbl__graph_new(g, NBL_KIND_ACTIVATION, name);
        if (value == 0) return 0;
        nbl__value_info *info = &g->values[value];
        info->tensor = made;
        info->tensor.data = NULL;
        info->producer = index;
        info->differentiable = differentiable && slot->role == NBL_ROLE_OUTPUT && nbl__is_compute(made.dtype);
        node.bound[slot - slots] = value;
        if (first == 0) first = value;
    }
    nbl__graph_add_step(g, index, false);
    return first;
}

void nbl__graph_end_prepare(nbl__graph *g)
{
    if (g->status != NBL_OK) return;
    nbl__node *node = &g->nodes[g->node_count - 1];
    node->prepares = true;
    if (!infer_node(g, node)) return;
    for (const nbl__slot *slot = node->family->slots; slot->name; slot++) {
        nbl__value value = node->bound[slot - node->family->slots];
        if (value == 0 || slot->role != NBL_ROLE_OUTPUT) continue;
        const nbl_tensor *made = nbl__slot_tensor(slot, node->arguments), *kept = &g->values[value].tensor;
        /* The destination was created before the node; it must fit what infer computed. */
        bool same = g->values[value].kind == NBL_KIND_PREPARED && made->dtype == kept->dtype &&
                    nbl__tensor_elements(made) == nbl__tensor_elements(kept);
        if (!same)
            nbl__graph_failed(g, nbl__fail(g->ctx, NBL_ERROR_INTERNAL, "%s: %s is not what it prepares",
                                           node->name, g->values[value].name));
    }
}

nbl__value nbl__graph_output(nbl__graph *g, const void *field)
{
    if (g->status != NBL_OK) return 0;
    const nbl__node *node = &g->nodes[g->node_count - 1];
    const nbl__slot *found = slot_at(g, field);
    return found ? node->bound[found - node->family->slots] : 0;
}
