/* bindings_train.c - the operators of a training step whose tensors are lists: adamw (a list of one
 * here) and grad_norm. They work in place; a file's outputs are copies of its inputs, changed. */
#include "ops/optimizer/adamw.h"
#include "ops/families.h"
#include "ops/optimizer/grad_norm.h"
#include "run.h"

#include <stdio.h>

/* An output that starts as a copy of an input. */
static nbl_status copy_to_output(run *r, const char *name, nbl_tensor *tensor)
{
    const void *from = tensor->data;
    uint64_t bytes;
    NBL_TRY(run_output(r, name, tensor));
    nbl__dtype_bytes(tensor->dtype, (uint64_t)nbl__tensor_elements(tensor), &bytes);
    if (bytes) memcpy(tensor->data, from, bytes);
    return NBL_OK;
}

/* An output that starts as zeros. */
static nbl_status zero_output(run *r, const char *name, nbl_tensor *tensor)
{
    uint64_t bytes;
    NBL_TRY(run_output(r, name, tensor));
    nbl__dtype_bytes(tensor->dtype, (uint64_t)nbl__tensor_elements(tensor), &bytes);
    memset(tensor->data, 0, bytes);
    return NBL_OK;
}

/* Moments in 8 bits: all of them, or none, which is how they start. */
static nbl_status new_moments(run *r, nbl__adamw_tensor *t)
{
    int64_t blocks = nbl__ceil_div(nbl__tensor_elements(&t->p), NBL_ADAMW_BLOCK);
    t->m = t->v = t->p;
    t->m.dtype = t->v.dtype = NBL_DTYPE_U8;
    nbl__output_vector(&t->m_absmax, NBL_DTYPE_F32, 1, blocks, 0);
    nbl__output_vector(&t->v_absmax, NBL_DTYPE_F32, 1, blocks, 0);
    NBL_TRY(zero_output(r, "m", &t->m));
    NBL_TRY(zero_output(r, "m.absmax", &t->m_absmax));
    NBL_TRY(zero_output(r, "v", &t->v));
    return zero_output(r, "v.absmax", &t->v_absmax);
}

/* Reads the moments, two tensors or with 8 bits four. Without any, 8-bit moments start as zeros. */
static nbl_status read_moments(run *r, int bits, nbl__adamw_tensor *t)
{
    const struct {
        const char *name;
        nbl_tensor *tensor;
    } parts[] = {{"m", &t->m}, {"v", &t->v}, {"m.absmax", &t->m_absmax}, {"v.absmax", &t->v_absmax}};
    int count = bits == 8 ? 4 : 2, found = 0;
    for (int i = 0; i < count; i++) found += run_has(r, parts[i].name);
    if (bits == 8 && found == 0) return new_moments(r, t);
    for (int i = 0; i < count; i++) {
        NBL_TRY(run_tensor(r, parts[i].name, parts[i].tensor));
        NBL_TRY(copy_to_output(r, parts[i].name, parts[i].tensor));
    }
    return NBL_OK;
}

/* The defaults are those of torch.optim.AdamW. */
nbl_status bind_adamw(run *r)
{
    nbl__adamw_tensor t = {0};
    nbl__adamw a = {.tensors = &t, .count = 1};
    double step, bits;
    NBL_TRY(run_number(r, "lr", 1e-3, &a.lr));
    NBL_TRY(run_number(r, "beta1", 0.9, &a.beta1));
    NBL_TRY(run_number(r, "beta2", 0.999, &a.beta2));
    NBL_TRY(run_number(r, "eps", 1e-8, &a.eps));
    NBL_TRY(run_number(r, "weight_decay", 1e-2, &a.weight_decay));
    NBL_TRY(run_number(r, "grad_scale", 1, &a.grad_scale));
    NBL_TRY(run_integer(r, "step", 1, 1, &step));
    NBL_TRY(run_integer(r, "bits", 32, 8, &bits));
    NBL_CHECK(r->ctx, bits == 32 || bits == 8, NBL_ERROR_ARGUMENT, "adamw: attribute bits is %g, not 32 or 8",
              bits);
    a.step = (int64_t)step;
    a.bits = (int)bits;
    NBL_TRY(run_tensor(r, "p", &t.p));
    NBL_TRY(run_tensor(r, "g", &t.g));
    NBL_TRY(copy_to_output(r, "p", &t.p));
    NBL_TRY(read_moments(r, a.bits, &t));
    NBL_TRY(nbl__adamw_family.forward.infer(r->ctx, &a));
    return run_op(r, &nbl__adamw_family, &nbl__adamw_family.forward, &a);
}

/* grad_norm of the tensors g0, g1, …; with max_norm it scales them in place. */
nbl_status bind_grad_norm(run *r)
{
    nbl__grad_norm a = {0};
    nbl_tensor *gradients = nbl__arena_alloc(&r->arena, (size_t)(r->stored_count + 1) * sizeof *gradients);
    char name[32];
    if (gradients == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(run_number(r, "max_norm", 0, &a.max_norm));
    for (; snprintf(name, sizeof name, "g%" PRId64, a.count), run_has(r, name); a.count++) {
        NBL_TRY(run_tensor(r, name, &gradients[a.count]));
        NBL_TRY(copy_to_output(r, name, &gradients[a.count]));
    }
    NBL_CHECK(r->ctx, a.count > 0, NBL_ERROR_NOT_FOUND, "grad_norm: no tensor \"g0\"");
    a.gradients = gradients;
    NBL_TRY(nbl__grad_norm_family.forward.infer(r->ctx, &a));
    NBL_TRY(run_output(r, "norm", &a.norm));
    return run_op(r, &nbl__grad_norm_family, &nbl__grad_norm_family.forward, &a);
}
