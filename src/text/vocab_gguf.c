/* vocab_gguf.c - placeholder */
#include "text/tokenizer.h"
nbl_status nbl__tokenizer_read_gguf(nbl_tokenizer *t, const char *path)
{
    return nbl__fail(t->ctx, NBL_ERROR_UNSUPPORTED, "%s: no", path);
}
