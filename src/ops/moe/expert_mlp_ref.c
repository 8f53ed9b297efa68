/* expert_mlp_ref.c - expert_mlp and expert_mlp_backward: the oracle. Scalar, f64 sums, one sorted row at a time, never
 * optimized. The matrices of one expert are dequantized as a whole. Sums over rows and tokens are f64 in scratch. */
#include <math.h>

#include "ops/moe/expert_mlp.h"
#include "ops/elementwise/elementwise.h"
#include "ops/moe/expert_order.h"
#include "ops/ref.h"

/* ---- scratch ---- */

/* f64 sums of the gradients of a layer's parameters; NULL: not wanted. */
typedef struct sums {
    double *bias, *a, *b, *w;
} sums;

/* A layer of one expert, and the vectors of one row. */
typedef struct layer {
    const nbl__expert_mlp *call;
    const nbl__expert_linear *l;
    int64_t expert, in, out, rank;
    double scale;
    float *w;            /* [out, in], whichever way it is stored */
    double *v, *z, *t;   /* [in], [out], [rank]: input, output, v·Aᵀ */
    double *dv, *dz, *u; /* [in], [out], [rank]: their gradients, u = s·dz·B */
    sums d;
} layer;

typedef struct scratch {
    layer first, second;
    double *gate, *up; /* [inner]; then their gradients */
    double *y, *dx;    /* [tokens, out], [tokens, in] */
    size_t used;
} scratch;

static double *sum_of(nbl__bump *bump, const nbl_tensor *gradient, bool backward)
{
    double *sum;
    if (!backward || gradient->rank == 0) return NULL;
    return NBL_BUMP_ALLOC(bump, sum, nbl__tensor_elements(gradient));
}

static layer cut_layer(nbl__bump *bump, const nbl__expert_mlp *a, const nbl__expert_linear *l, int64_t rank,
                       bool backward)
{
    layer y = {.call = a,
               .l = l,
               .in = nbl__expert_in(a, l),
               .out = nbl__expert_out(a, l),
               .rank = rank,
               .scale = (double)nbl__expert_scale(a, l)};
    NBL_BUMP_ALLOC(bump, y.w, y.in * y.out);
    NBL_BUMP_ALLOC(bump, y.v, y.in);
    NBL_BUMP_ALLOC(bump, y.z, y.out);
    NBL_BUMP_ALLOC(bump, y.t, y.rank);
    NBL_BUMP_ALLOC(bump, y.dv, y.in);
    NBL_BUMP_ALLOC(bump, y.dz, y.out);
    NBL_BUMP_ALLOC(bump, y.u, y.rank);
    y.d = (sums){sum_of(bump, &l->dbias, backward), sum_of(bump, &l->dlora_a, backward),
                 sum_of(bump, &l->dlora_b, backward), sum_of(bump, &l->dw, backward)};
    return y;
}

static scratch layout(const nbl__expert_mlp *a, bool backward, uint8_t *base)
{
    nbl__expert_sizes z = nbl__expert_sizes_of(a);
    nbl__bump bump = {base, 0};
    scratch s;
    s.first = cut_layer(&bump, a, &a->gate_up, z.rank, backward);
    s.second = cut_layer(&bump, a, &a->down, z.down_rank, backward);
    NBL_BUMP_ALLOC(&bump, s.gate, z.inner);
    NBL_BUMP_ALLOC(&bump, s.up, z.inner);
    NBL_BUMP_ALLOC(&bump, s.y, backward ? 0 : z.tokens * z.out);
    NBL_BUMP_ALLOC(&bump, s.dx, backward ? z.tokens * z.in : 0);
    s.used = bump.used;
    return s;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return layout(arguments, false, NULL).used;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return layout(arguments, true, NULL).used;
}

/* ---- a layer of one expert ---- */

/* Dequantizes the expert's matrix, rounded to the compute dtype. */
static void load(layer *y, int64_t expert)
{
    const nbl_weight *stack = &y->l->w;
    nbl_weight flat = nbl__stack_flat(stack);
    int64_t columns = stack->shape[2], first = 0;
    y->expert = expert;
    for (int64_t piece = 0; piece < nbl__stack_pieces(stack); piece++) {
        nbl__weight_rows rows = nbl__stack_rows(stack, &flat, expert, piece);
        for (int64_t i = 0; i < rows.rows * columns; i++) {
            uint32_t word;
            int64_t from = rows.first_row * columns + i, row = first + i / columns, column = i % columns;
            nbl__dequantize(NBL_ISA_SCALAR, rows.weight, from, from + 1, y->call->dtype, &word, false);
            nbl__to_f32(NBL_ISA_SCALAR, y->call->dtype, &word,
                        &y->w[y->call->transposed ? column * y->in + row : row * columns + column], 1);
        }
        first += rows.rows;
    }
}

/* The expert's elements of bias, A and B. */
static double bias_at(const layer *y, int64_t n)
{
    return nbl__has_data(&y->l->bias) ? nbl__ref_get(&y->l->bias, y->expert * y->out + n) : 0;
}

static int64_t index_a(const layer *y, int64_t j, int64_t k)
{
    return (y->expert * y->rank + j) * y->in + k;
}

static int64_t index_b(const layer *y, int64_t n, int64_t j)
{
    int64_t experts = y->l->w.shape[0];
    return n * y->rank * experts + j * experts + y->expert;
}

/* z = v·Wᵀ + s·t·Bᵀ + bias, t = v·Aᵀ. */
static void apply(const layer *y)
{
    for (int64_t j = 0; j < y->rank; j++) {
        y->t[j] = 0;
        for (int64_t k = 0; k < y->in; k++)
            y->t[j] += y->v[k] * nbl__ref_get(&y->l->lora_a, index_a(y, j, k));
    }
    for (int64_t n = 0; n < y->out; n++) {
        double sum = 0, delta = 0;
        for (int64_t k = 0; k < y->in; k++) sum += y->v[k] * (double)y->w[n * y->in + k];
        for (int64_t j = 0; j < y->rank; j++)
            delta += y->t[j] * nbl__ref_get(&y->l->lora_b, index_b(y, n, j));
        y->z[n] = sum + y->scale * delta + bias_at(y, n);
    }
}

/* dv = dz·W + u·A, u = s·dz·B. */
static void differentiate(const layer *y)
{
    for (int64_t j = 0; j < y->rank; j++) {
        double sum = 0;
        for (int64_t n = 0; n < y->out; n++) sum += y->dz[n] * nbl__ref_get(&y->l->lora_b, index_b(y, n, j));
        y->u[j] = y->scale * sum;
    }
    for (int64_t k = 0; k < y->in; k++) {
        y->dv[k] = 0;
        for (int64_t n = 0; n < y->out; n++) y->dv[k] += y->dz[n] * (double)y->w[n * y->in + k];
        for (int64_t j = 0; j < y->rank; j++)
            y->dv[k] += y->u[j] * nbl__ref_get(&y->l->lora_a, index_a(y, j, k));
    }
}

/* Adds a row's part to the gradients of the parameters: those of dz and u, both times `weight`. */
static void add_gradients(const layer *y, double weight)
{
    bool transposed = y->call->transposed;
    for (int64_t n = 0; y->d.bias && n < y->out; n++) y->d.bias[y->expert * y->out + n] += weight * y->dz[n];
    for (int64_t j = 0; j < y->rank; j++) {
        for (int64_t k = 0; y->d.a && k < y->in; k++) y->d.a[index_a(y, j, k)] += weight * y->u[j] * y->v[k];
        for (int64_t n = 0; y->d.b && n < y->out; n++)
            y->d.b[index_b(y, n, j)] += y->scale * weight * y->dz[n] * y->t[j];
    }
    for (int64_t n = 0; y->d.w && n < y->out; n++)
        for (int64_t k = 0; k < y->in; k++)
            y->d.w[y->expert * y->out * y->in + (transposed ? k * y->out + n : n * y->in + k)] += weight *
                                                                                                  y->dz[n] *
                                                                                                  y->v[k];
}

/* ---- the activation ---- */

static nbl_tensor vector(double *values, int64_t n)
{
    return (nbl_tensor){.dtype = NBL_DTYPE_F64, .rank = 1, .shape = {n}, .data = values};
}

/* Where gate i and up i are among the outputs of gate_up. */
static int64_t gate_index(const nbl__expert_mlp *a, int64_t i)
{
    return a->interleaved ? 2 * i : i;
}

static int64_t up_index(const nbl__expert_mlp *a, int64_t inner, int64_t i)
{
    return a->interleaved ? 2 * i + 1 : inner + i;
}

/* The clamped form: h, and the slopes of h in gate and up. At the limit itself the gradient passes. */
static double clamped(const nbl__expert_mlp *a, double gate, double up, double *in_gate, double *in_up)
{
    double limit = (double)a->limit, alpha = (double)a->alpha;
    double g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
    double s = 1 / (1 + exp(-alpha * g));
    *in_gate = gate > limit ? 0 : (u + 1) * s * (1 + alpha * g * (1 - s));
    *in_up = fabs(up) > limit ? 0 : g * s;
    return (u + 1) * g * s;
}

/* h, down's input, from the outputs of gate_up. */
static nbl_status activate(const nbl__call *call, const scratch *s)
{
    const nbl__expert_mlp *a = s->first.call;
    int64_t inner = s->second.in;
    double slopes[2];
    for (int64_t i = 0; i < inner; i++) {
        s->gate[i] = s->first.z[gate_index(a, i)];
        s->up[i] = s->first.z[up_index(a, inner, i)];
        if (a->limit > 0) s->second.v[i] = clamped(a, s->gate[i], s->up[i], &slopes[0], &slopes[1]);
    }
    if (a->limit > 0) return NBL_OK;
    nbl__gated gated = {.dtype = NBL_DTYPE_F64,
                        .act = a->act,
                        .gate = vector(s->gate, inner),
                        .up = vector(s->up, inner),
                        .h = vector(s->second.v, inner)};
    return nbl__gated_ref.run(call, &gated);
}

/* The gradient of gate_up's outputs, from that of h in `dh`. */
static nbl_status activate_backward(const nbl__call *call, const scratch *s, double *dh)
{
    const nbl__expert_mlp *a = s->first.call;
    int64_t inner = s->second.in;
    if (a->limit == 0) {
        nbl__gated gated = {.dtype = NBL_DTYPE_F64,
                            .act = a->act,
                            .gate = vector(s->gate, inner),
                            .up = vector(s->up, inner),
                            .dh = vector(dh, inner),
                            .dgate = vector(s->gate, inner),
                            .dup = vector(s->up, inner)};
        NBL_TRY(nbl__gated_backward_ref.run(call, &gated));
    }
    for (int64_t i = 0; i < inner; i++) {
        double slopes[2] = {0};
        if (a->limit > 0) {
            clamped(a, s->gate[i], s->up[i], &slopes[0], &slopes[1]);
            s->gate[i] = dh[i] * slopes[0];
            s->up[i] = dh[i] * slopes[1];
        }
        s->first.dz[gate_index(a, i)] = s->gate[i];
        s->first.dz[up_index(a, inner, i)] = s->up[i];
    }
    return NBL_OK;
}

/* ---- rows ---- */

/* The row's input, and gate_up's output and h. */
static nbl_status open_row(const nbl__call *call, const scratch *s, int64_t token, double weight)
{
    const nbl__expert_mlp *a = s->first.call;
    for (int64_t k = 0; k < s->first.in; k++)
        s->first.v[k] = nbl__ref_get(&a->x, token * s->first.in + k) * (a->scales_input ? weight : 1);
    apply(&s->first);
    return activate(call, s);
}

static nbl_status forward_row(const nbl__call *call, const scratch *s, int64_t row, int64_t token,
                              double weight)
{
    const nbl__expert_mlp *a = s->first.call;
    NBL_TRY(open_row(call, s, token, weight));
    for (int64_t n = 0; a->keep && n < s->first.out; n++)
        nbl__ref_set(&a->gate_up_out, row * s->first.out + n, s->first.z[n]);
    apply(&s->second);
    for (int64_t n = 0; n < s->second.out; n++)
        s->y[token * s->second.out + n] += (a->scales_input ? 1 : weight) * s->second.z[n];
    return NBL_OK;
}

/* See the formulas of expert_mlp.h; second.dv is q, and then dh. */
static nbl_status backward_row(const nbl__call *call, const scratch *s, int64_t pair, int64_t token,
                               double weight)
{
    const nbl__expert_mlp *a = s->first.call;
    const layer *first = &s->first, *second = &s->second;
    double dw = 0, output_weight = a->scales_input ? 1 : weight;
    NBL_TRY(open_row(call, s, token, weight));
    apply(second);
    for (int64_t n = 0; n < second->out; n++) second->dz[n] = nbl__ref_get(&a->dy, token * second->out + n);
    differentiate(second);
    add_gradients(second, output_weight);
    for (int64_t n = 0; n < second->out; n++) dw += bias_at(second, n) * second->dz[n];
    for (int64_t i = 0; i < second->in; i++) {
        dw += second->v[i] * second->dv[i];
        second->dv[i] *= output_weight;
    }
    NBL_TRY(activate_backward(call, s, second->dv));
    differentiate(first);
    add_gradients(first, 1);
    if (a->scales_input) dw = 0;
    for (int64_t k = 0; k < first->in; k++) {
        if (a->scales_input) dw += first->dv[k] * nbl__ref_get(&a->x, token * first->in + k);
        s->dx[token * first->in + k] += (a->scales_input ? weight : 1) * first->dv[k];
    }
    nbl__ref_set(&a->dweights, pair, dw);
    return NBL_OK;
}

/* All rows of all experts in one direction. */
static nbl_status each_row(const nbl__call *call, scratch *s, bool backward)
{
    const nbl__expert_mlp *a = s->first.call;
    nbl__expert_sizes z = nbl__expert_sizes_of(a);
    const int32_t *offsets = a->offsets.data, *pairs = a->pairs.data;
    NBL_TRY(nbl__expert_order_check(call->ctx, call->op, &a->offsets, &a->pairs));
    NBL_TRY(nbl__check_stack_members(call->ctx, call->op, &a->gate_up.w));
    NBL_TRY(nbl__check_stack_members(call->ctx, call->op, &a->down.w));
    for (int64_t e = 0; e < z.experts; e++) {
        if (offsets[e] == offsets[e + 1]) continue;
        load(&s->first, e);
        load(&s->second, e);
        for (int64_t row = offsets[e]; row < offsets[e + 1]; row++) {
            int64_t pair = pairs[row], token = pair / z.top_k;
            double weight = nbl__ref_get(&a->weights, pair);
            NBL_TRY(backward ? backward_row(call, s, pair, token, weight)
                             : forward_row(call, s, row, token, weight));
        }
    }
    return NBL_OK;
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__expert_mlp *a = arguments;
    scratch s = layout(a, false, call->scratch);
    int64_t n = nbl__tensor_elements(&a->y);
    memset(s.y, 0, (size_t)n * sizeof *s.y);
    NBL_TRY(each_row(call, &s, false));
    for (int64_t i = 0; i < n; i++) nbl__ref_set(&a->y, i, s.y[i]);
    return NBL_OK;
}

/* The sums of a parameter's gradient: cleared before the rows, written after them. */
static void clear(double *sum, const nbl_tensor *gradient)
{
    if (sum) memset(sum, 0, (size_t)nbl__tensor_elements(gradient) * sizeof *sum);
}

static void put(const double *sum, const nbl_tensor *gradient, bool accumulate)
{
    for (int64_t i = 0; sum && i < nbl__tensor_elements(gradient); i++)
        nbl__ref_put(gradient, i, sum[i], accumulate);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__expert_mlp *a = arguments;
    scratch s = layout(a, true, call->scratch);
    layer *layers[] = {&s.first, &s.second};
    int64_t n = nbl__tensor_elements(&a->x);
    memset(s.dx, 0, (size_t)n * sizeof *s.dx);
    for (int i = 0; i < 2; i++) {
        clear(layers[i]->d.bias, &layers[i]->l->dbias);
        clear(layers[i]->d.a, &layers[i]->l->dlora_a);
        clear(layers[i]->d.b, &layers[i]->l->dlora_b);
        clear(layers[i]->d.w, &layers[i]->l->dw);
    }
    NBL_TRY(each_row(call, &s, true));
    for (int64_t i = 0; i < n; i++) nbl__ref_set(&a->dx, i, s.dx[i]);
    for (int i = 0; i < 2; i++) {
        put(layers[i]->d.bias, &layers[i]->l->dbias, a->accumulate);
        put(layers[i]->d.a, &layers[i]->l->dlora_a, a->accumulate);
        put(layers[i]->d.b, &layers[i]->l->dlora_b, a->accumulate);
        put(layers[i]->d.w, &layers[i]->l->dw, a->accumulate);
    }
    return NBL_OK;
}

const nbl__impl nbl__expert_mlp_ref = {"expert_mlp_ref", NBL_ISA_SCALAR, NULL, forward_scratch, run_forward};
const nbl__impl nbl__expert_mlp_backward_ref = {"expert_mlp_backward_ref", NBL_ISA_SCALAR, NULL,
                                                backward_scratch, run_backward};
