/* dnn.c - see dnn.h. */
#include "ops/cuda/dnn.h"

nbl_status nbl__dnn_open(nbl__cuda *cuda, struct nbl__dnn **dnn)
{
    (void)cuda;
    *dnn = NULL;
    return NBL_OK;
}

void nbl__dnn_close(nbl__cuda *cuda, struct nbl__dnn *dnn)
{
    (void)cuda, (void)dnn;
}
