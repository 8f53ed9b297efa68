/* build_recurrent.c - the typed functions of recurrences. See build.h and build.c. */
#include "graph/build.h"
#include "ops/families.h"
#include "ops/recurrent/gated_delta.h"
#include "ops/recurrent/short_conv.h"

nbl__value nbl__build_short_conv(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                 nbl__value cu_seqlens, nbl__value state, nbl_dtype dtype)
{
    nbl__short_conv *a = nbl__graph_begin(g, &nbl__short_conv_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    nbl__graph_bind(g, &a->x, x);
    nbl__graph_bind(g, &a->w, w);
    nbl__graph_bind(g, &a->cu_seqlens, cu_seqlens);
    nbl__graph_bind(g, &a->state, state);
    return nbl__graph_end(g);
}

nbl__value nbl__build_short_conv_step(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                      nbl__value state, nbl_dtype dtype)
{
    nbl__short_conv_step *a = nbl__graph_begin(g, &nbl__short_conv_step_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->in_place = true;
    nbl__graph_bind(g, &a->x, x);
    nbl__graph_bind(g, &a->w, w);
    nbl__graph_bind(g, &a->state, state);
    return nbl__graph_end(g);
}

nbl__value nbl__build_gated_delta(nbl__graph *g, const char *name, const nbl__delta_values *x,
                                  nbl_dtype dtype)
{
    nbl__gated_delta *a = nbl__graph_begin(g, &nbl__gated_delta_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    nbl__graph_bind(g, &a->q, x->q);
    nbl__graph_bind(g, &a->k, x->k);
    nbl__graph_bind(g, &a->v, x->v);
    nbl__graph_bind(g, &a->a, x->a);
    nbl__graph_bind(g, &a->b, x->b);
    nbl__graph_bind(g, &a->a_log, x->a_log);
    nbl__graph_bind(g, &a->dt_bias, x->dt_bias);
    nbl__graph_bind(g, &a->cu_seqlens, x->cu_seqlens);
    nbl__graph_bind(g, &a->state, x->state);
    return nbl__graph_end(g);
}

nbl__value nbl__build_gated_delta_step(nbl__graph *g, const char *name, const nbl__delta_values *x,
                                       nbl_dtype dtype)
{
    nbl__gated_delta_step *a = nbl__graph_begin(g, &nbl__gated_delta_step_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->in_place = true;
    nbl__graph_bind(g, &a->q, x->q);
    nbl__graph_bind(g, &a->k, x->k);
    nbl__graph_bind(g, &a->v, x->v);
    nbl__graph_bind(g, &a->a, x->a);
    nbl__graph_bind(g, &a->b, x->b);
    nbl__graph_bind(g, &a->a_log, x->a_log);
    nbl__graph_bind(g, &a->dt_bias, x->dt_bias);
    nbl__graph_bind(g, &a->state, x->state);
    return nbl__graph_end(g);
}
