/* blas.c - see blas.h. */
#include "ops/cuda/blas.h"

nbl_status nbl__blas_open(nbl__cuda *cuda, struct nbl__blas **blas)
{
    (void)cuda;
    *blas = NULL;
    return NBL_OK;
}

void nbl__blas_close(nbl__cuda *cuda, struct nbl__blas *blas)
{
    (void)cuda, (void)blas;
}
