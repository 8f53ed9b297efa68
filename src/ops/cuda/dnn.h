/* dnn.h - fused attention on the device by cuDNN's graph interface, which is loaded when a device is opened. */
#ifndef NBL_CUDA_DNN_H
#define NBL_CUDA_DNN_H

#include "ops/cuda/cuda.h"

/* Loads the library and makes a handle; without the library *dnn is NULL and that is no failure. */
nbl_status nbl__dnn_open(nbl__cuda *cuda, struct nbl__dnn **dnn);
void nbl__dnn_close(nbl__cuda *cuda, struct nbl__dnn *dnn);

#endif
