/* llama.c - Llama 2, 3, 3.1, 3.2, SmolLM2, TinyLlama: the plain decoder, without optional parts.
 *
 * attention_bias puts biases on q, k, v and o; mlp_bias on gate, up and down. */
#include "arch/arch.h"

static nbl_status read_llama(nbl__keys *k, nbl__decoder *d)
{
    int64_t pretraining_tp;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_flag_or(k, "mlp_bias", false, &d->mlp_bias));
    d->o_bias = d->qkv_bias;
    /* read and ignored: it changes only the order of summation */
    NBL_TRY(nbl__key_size_or(k, "pretraining_tp", 1, &pretraining_tp));
    return NBL_OK;
}

const nbl__arch nbl__llama = {"llama", read_llama};
