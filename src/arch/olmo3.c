/* olmo3.c - OLMo 3: OLMo 2's layer. Three of four layers slide (all but 3, 7, 11, …). Full layers have a
 * rope of their own, which alone is scaled (YaRN); that of sliding layers is plain. */
#include "arch/parts.h"

static bool three_of_four(const nbl__decoder *d, int64_t layer)
{
    (void)d;
    return (layer + 1) % 4 != 0;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    /* An older file's rope_theta and rope_scaling are of full layers alone. */
    d->rope.theta = 500000;
    d->local_rope.theta = 500000;
    NBL_TRY(nbl__olmo_keys(k, d));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    return nbl__keys_layer_types(k, d, three_of_four);
}

const nbl__arch nbl__olmo3 = {"olmo3", read_keys, nbl__olmo_layer};
