/* expert_stacks.c - makes the weight entries of a checkpoint: one per tensor, and one per stack of
 * experts, in whatever tensors its file has them. See language_model.h.
 *
 *     file                                      entry "model.layers.0.mlp.experts.gate_up_proj"
 *     experts.0.gate_proj.weight [I, H] ─┐
 *     experts.0.up_proj.weight   [I, H] ─┼─▶ [E, 2I, H], members: 2 E matrices where they are mapped
 *     experts.1.gate_proj.weight …      ─┘
 *     gate_up_projs.0.weight [2I, H] …  ───▶ [E, 2I, H], members: E matrices
 *     experts.gate_up_proj [E, 2I, H]   ───▶ itself
 *     gate_up_projs.0.bias [2I] …       ───▶ "…gate_up_proj_bias" [E, 2I], copied
 *
 * The tensors are visited twice: to count each stack's members, and to put them there. A tensor that does
 * not fit (an expert that is missing, too many, or of another shape) is named in m->misfits, which
 * nbl__model_check reports with all other misfits. */
#include "model/language_model.h"

#include "format/hf/expert_names.h"
#include "quant/weight.h"

enum { MAX_MISFITS = 64 }; /* lines in one error */

/* The stack that an entry is made of. */
typedef struct stack {
    struct nbl__weight_entry *entry;
    const char *like;     /* the file's name of one of its tensors */
    int64_t pieces;       /* members per expert: 1, or gate and up apart */
    int64_t found, count; /* members there are, and there should be */
    bool is_bias, broken;
    nbl_weight *members;     /* [count]; NULL while tensors are counted, and of an incomplete stack */
    const nbl_weight *first; /* of the members, in the file's order */
} stack;

typedef struct holder {
    nbl_model *m;
    nbl__expert_name *names; /* [tensors] of the checkpoint */
    int32_t *stack_of;       /* [tensors] index of its stack, or -1 */
    stack *stacks;
    int64_t stack_count;
    nbl__text misfits;
    int64_t misfit_count;
} holder;

/* True if the file may say one more thing about misfits. */
static bool may_say(holder *h)
{
    if (++h->misfit_count == MAX_MISFITS + 1) nbl__text_printf(&h->misfits, "; and more");
    return h->misfit_count <= MAX_MISFITS;
}

/* The shape of a member: of matrices [rows, columns], of biases [rows]. */
static void member_shape(const nbl__decoder *d, const stack *s, int64_t shape[2])
{
    bool is_down = strstr(s->entry->name, ".down_proj") != NULL;
    shape[0] = is_down ? d->hidden : 2 * d->expert_inner / s->pieces;
    shape[1] = is_down ? d->expert_inner : d->hidden;
}

/* ---- counting ---- */

/* Adds a tensor that is no part of a stack. */
static nbl_status hold_tensor(holder *h, int64_t i, const char *name)
{
    struct nbl__weight_entry *entry = nbl__model_add(h->m, name);
    entry->weight = h->m->checkpoint->tensors[i].weight;
    return NBL_OK;
}

/* Adds a tensor of a single expert: finds or makes the stack's entry. */
static nbl_status count_member(holder *h, int64_t i)
{
    const nbl__expert_name *name = &h->names[i];
    const nbl_tensor_info *info = &h->m->checkpoint->tensors[i];
    struct nbl__weight_entry *entry = nbl__model_find(h->m, name->name);
    int64_t at = entry ? entry->stack : -1;
    if (entry && at < 0) return hold_tensor(h, i, info->name); /* beside the whole stack: left over */
    if (entry == NULL) {
        at = h->stack_count++;
        entry = nbl__model_add(h->m, name->name);
        entry->stack = (int32_t)at;
        h->stacks[at] = (stack){.entry = entry,
                                .like = info->name,
                                .pieces = name->part == NBL_EXPERT_WHOLE ? 1 : 2,
                                .is_bias = nbl__ends_with(name->name, "_bias")};
        h->stacks[at].count = h->m->decoder.experts * h->stacks[at].pieces;
    }
    stack *s = &h->stacks[at];
    /* Gates and ups that alternate are stored in one tensor only. */
    bool half = name->part != NBL_EXPERT_WHOLE;
    bool fits = name->expert < h->m->decoder.experts && (s->pieces == 2) == half &&
                !(half && h->m->decoder.experts_interleaved);
    if (!fits) return hold_tensor(h, i, info->name); /* left over */
    s->found++;
    h->stack_of[i] = (int32_t)at;
    return NBL_OK;
}

/* ---- members ---- */

static int64_t index_of(const stack *s, const nbl__expert_name *name)
{
    return name->expert * s->pieces + (name->part == NBL_EXPERT_UP);
}

/* Names the members that the file lacks. `seen`: [s->count]. */
static nbl_status list_missing(holder *h, stack *s, const bool *seen)
{
    int64_t shape[2];
    member_shape(&h->m->decoder, s, shape);
    for (int64_t k = 0; k < s->count; k++) {
        if (seen[k]) continue;
        nbl__expert_part part = s->pieces == 1 ? NBL_EXPERT_WHOLE : k % 2 ? NBL_EXPERT_UP : NBL_EXPERT_GATE;
        if (!may_say(h)) return NBL_OK;
        const char *name = nbl__expert_name_of(&h->m->arena, s->like, k / s->pieces, part);
        if (name == NULL) return NBL_ERROR_MEMORY;
        nbl__text_printf(&h->misfits, "; no \"%s\" %s", name,
                         nbl__show_shape(s->is_bias ? 1 : 2, shape).text);
    }
    return NBL_OK;
}

/* Members that are missing, or that the file has twice under different names. */
static nbl_status find_gaps(holder *h, stack *s)
{
    const nbl_checkpoint *c = h->m->checkpoint;
    /* So many experts that most are missing: a list of them says nothing, and its memory would be the
     * file's choice. */
    if (s->count / 16 > c->tensor_count) {
        s->broken = true;
        if (may_say(h))
            nbl__text_printf(&h->misfits, "; \"%s\" has %" PRId64 " tensors of %" PRId64, s->entry->name,
                             s->found, s->count);
        return NBL_OK;
    }
    bool *seen, twice = false;
    NBL_TRY(NBL_ALLOC(h->m->ctx, seen, s->count));
    for (int64_t i = 0; i < c->tensor_count; i++) {
        if (h->stack_of[i] != s - h->stacks) continue;
        bool *at = &seen[index_of(s, &h->names[i])];
        if (*at && may_say(h)) nbl__text_printf(&h->misfits, "; \"%s\" is there twice", c->tensors[i].name);
        twice |= *at;
        *at = true;
    }
    s->broken |= twice;
    for (int64_t k = 0; k < s->count; k++) s->broken |= !seen[k];
    nbl_status status = list_missing(h, s, seen);
    nbl__free(h->m->ctx, seen, (size_t)s->count * sizeof *seen);
    return status;
}

/* Checks a member and puts it into its stack, unless that is incomplete. */
static void put_member(holder *h, int64_t i)
{
    stack *s = &h->stacks[h->stack_of[i]];
    const nbl_tensor_info *info = &h->m->checkpoint->tensors[i];
    const nbl_weight *w = &info->weight;
    int64_t shape[2], at = index_of(s, &h->names[i]);
    int rank = s->is_bias ? 1 : 2;
    member_shape(&h->m->decoder, s, shape);
    bool fits = w->rank == rank && w->shape[0] == shape[0] && (s->is_bias || w->shape[1] == shape[1]);
    if (!fits && may_say(h))
        nbl__text_printf(&h->misfits, "; \"%s\" is %s instead of %s", info->name,
                         nbl__show_shape(w->rank, w->shape).text, nbl__show_shape(rank, shape).text);
    if (s->members) s->members[at] = *w;
    if (s->first == NULL) s->first = w;
    const nbl_weight *like = s->first;
    bool alike = w->format == like->format && w->dtype == like->dtype && w->block == like->block &&
                 !w->nested_scales == !like->nested_scales;
    alike &= !s->is_bias || w->format == NBL_FORMAT_DENSE;
    if (!alike && may_say(h))
        nbl__text_printf(&h->misfits, "; \"%s\" is %s of %s, which other experts are not", info->name,
                         nbl_format_name(w->format), nbl_dtype_name(w->dtype));
    s->broken |= !fits || !alike;
}

/* Copies the members of a bias into one matrix. */
static nbl_status join_bias(holder *h, stack *s)
{
    struct nbl__weight_entry *entry = s->entry;
    const nbl_weight *first = &s->members[0];
    size_t bytes = (size_t)first->shape[0] * nbl__size_of(first->dtype);
    entry->bytes = bytes * (size_t)s->count;
    entry->memory = nbl__alloc(h->m->ctx, entry->bytes);
    if (entry->memory == NULL) return NBL_ERROR_MEMORY;
    for (int64_t k = 0; k < s->count; k++)
        memcpy((uint8_t *)entry->memory + (size_t)k * bytes, s->members[k].data, bytes);
    entry->weight = (nbl_weight){.format = NBL_FORMAT_DENSE,
                                 .dtype = first->dtype,
                                 .rank = 2,
                                 .shape = {s->count, first->shape[0]},
                                 .data = entry->memory};
    return NBL_OK;
}

/* Sets the entry's weight. That of a broken stack has the right shape alone: its misfits are listed,
 * and nothing computes with it. */
static nbl_status finish(holder *h, stack *s)
{
    const nbl__decoder *d = &h->m->decoder;
    int64_t shape[2];
    member_shape(d, s, shape);
    bool whole = s->members && !s->broken;
    if (whole && s->is_bias) return join_bias(h, s);
    static const float stand_in; /* graphs look at pointers of stacks; nothing reads it */
    nbl_weight w = {.format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .data = &stand_in};
    if (whole) {
        const nbl_weight *like = &s->members[0];
        w = (nbl_weight){.format = like->format, .dtype = like->dtype, .block = like->block};
        w.members = s->members;
        w.member_count = s->count;
    }
    w.rank = s->is_bias ? 2 : 3;
    w.shape[0] = d->experts;
    w.shape[1] = shape[0] * s->pieces;
    if (!s->is_bias) w.shape[2] = shape[1];
    if (!s->is_bias && nbl__experts_transposed(d, &w)) w.shape[2] = w.shape[1], w.shape[1] = shape[1];
    s->entry->weight = w;
    return NBL_OK;
}

static nbl_status hold_all(holder *h)
{
    nbl_model *m = h->m;
    const nbl_checkpoint *c = m->checkpoint;
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const char *text = c->text_names[i];
        h->stack_of[i] = -1;
        if (text == NULL) continue; /* of another part than the text model */
        NBL_TRY(nbl__expert_name_read(&m->arena, text, &h->names[i]));
        /* Names that the file has twice, once by its own layout, stay apart. */
        bool taken = nbl__model_find(m, h->names[i].name) != NULL;
        if (m->decoder.experts > 0 && h->names[i].expert >= 0) NBL_TRY(count_member(h, i));
        else NBL_TRY(hold_tensor(h, i, taken ? text : h->names[i].name));
    }
    for (int64_t k = 0; k < h->stack_count; k++) {
        stack *s = &h->stacks[k];
        if (s->found != s->count) NBL_TRY(find_gaps(h, s));
        if (s->found != s->count) {
            s->broken = true;
            continue;
        }
        s->members = nbl__arena_alloc(&m->arena, (size_t)s->count * sizeof *s->members);
        if (s->members == NULL) return NBL_ERROR_MEMORY;
    }
    for (int64_t i = 0; i < c->tensor_count; i++)
        if (h->stack_of[i] >= 0) put_member(h, i);
    for (int64_t k = 0; k < h->stack_count; k++) {
        stack *s = &h->stacks[k];
        /* As many as there should be, but one twice and so another missing. */
        for (int64_t j = 0; s->members && j < s->count && !s->broken; j++)
            s->broken = s->members[j].rank == 0;
        if (s->members && s->broken) NBL_TRY(find_gaps(h, s));
        NBL_TRY(finish(h, s));
    }
    return h->misfits.status;
}

nbl_status nbl__model_hold_checkpoint(nbl_model *m)
{
    holder h = {.m = m, .misfits = {.ctx = m->ctx}};
    int64_t count = m->checkpoint->tensor_count;
    nbl_status status = NBL_OK;
    NBL_TRY(nbl__model_make_entries(m, count));
    NBL_TRY(NBL_ALLOC(m->ctx, h.names, count + 1));
    NBL_GO(NBL_ALLOC(m->ctx, h.stack_of, count + 1));
    NBL_GO(NBL_ALLOC(m->ctx, h.stacks, count + 1));
    NBL_GO(hold_all(&h));
    if (h.misfits.size) {
        m->misfits = nbl__arena_strdup(&m->arena, h.misfits.text);
        status = m->misfits ? NBL_OK : NBL_ERROR_MEMORY;
    }
done:
    nbl__text_free(&h.misfits);
    nbl__free(m->ctx, h.stacks, h.stacks ? (size_t)(count + 1) * sizeof *h.stacks : 0);
    nbl__free(m->ctx, h.stack_of, h.stack_of ? (size_t)(count + 1) * sizeof *h.stack_of : 0);
    nbl__free(m->ctx, h.names, (size_t)(count + 1) * sizeof *h.names);
    return status;
}
