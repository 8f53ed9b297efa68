/* fuzz_gguf.c - a whole .gguf file: head, values, decoding, and the model that it may be. Whatever opens must
 * be readable without touching a byte outside the file, and a model's config must parse. */
#include "format/gguf/gguf_model.h"
#include "fuzz.h"

enum { MAX = 1 << 14 };
static float out[MAX];

static void read_values(const nbl__gguf *gguf)
{
    for (int64_t i = 0; i < gguf->entry_count; i++) {
        const nbl__gguf_entry *entry = &gguf->entries[i];
        MUST(nbl__gguf_find(gguf, entry->key) == entry);
        for (int64_t k = -1; k <= entry->count && k < 64; k++) {
            double number;
            int64_t integer;
            const char *text;
            size_t length;
            (void)nbl__gguf_number(entry, k, &number);
            (void)nbl__gguf_integer(entry, k, &integer);
            if (nbl__gguf_string(entry, k, &text, &length) && length) {
                volatile char last = text[length - 1];
                (void)last;
            }
        }
    }
}

static void dequantize(nbl_isa isa, const nbl__gguf_tensor *tensor)
{
    nbl__ggml_layout layout;
    MUST(nbl__ggml_layout_of(tensor->type, &layout));
    if (!nbl__ggml_is_decodable(tensor->type)) return;
    int64_t n = nbl__min_i64(tensor->elements, MAX) / layout.values * layout.values;
    const uint8_t *last = tensor->data + tensor->bytes - n / layout.values * layout.bytes;
    nbl__ggml_dequantize(NBL_ISA_SCALAR, tensor->type, tensor->data, n, NBL_DTYPE_F32, out);
    nbl__ggml_dequantize(isa, tensor->type, last, n, NBL_DTYPE_BF16, out);
}

/* A file that is looked at opens whenever its header can be read; what opens strictly has no problem of the reader. */
static void look(nbl_context *ctx, const uint8_t *data, size_t size, bool opens)
{
    nbl__gguf *gguf;
    if (nbl__gguf_inspect_file(ctx, "fuzz.gguf", data, size, &gguf) != NBL_OK) {
        MUST(!opens);
        return;
    }
    MUST((gguf->found.count == 0) == opens);
    for (int64_t i = 0; i < gguf->tensor_count; i++) {
        const nbl__gguf_tensor *tensor = &gguf->tensors[i];
        MUST(tensor->data == NULL || tensor->data + tensor->bytes <= data + size);
    }
    MUST(nbl__gguf_model_check(gguf) == NBL_OK);
    nbl__gguf_close(gguf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl__gguf *gguf;
    nbl__gguf_model *model;
    nbl_status status = nbl__gguf_parse(ctx, "fuzz.gguf", data, size, &gguf);
    look(ctx, data, size, status == NBL_OK);
    if (status != NBL_OK) return 0;
    read_values(gguf);
    for (int64_t i = 0; i < gguf->tensor_count; i++) {
        MUST(nbl__gguf_tensor_find(gguf, gguf->tensors[i].name) == &gguf->tensors[i]);
        dequantize(nbl__isa(ctx), &gguf->tensors[i]);
    }
    if (nbl__gguf_model_of(ctx, gguf, &model) != NBL_OK) return 0;
    MUST(model->config.root != NULL);
    for (int64_t i = 0; i < model->weight_count; i++) {
        const nbl__gguf_weight *weight = &model->weights[i];
        MUST(nbl__gguf_weight_find(model, weight->name) == weight);
        if (weight->columns > MAX) continue;
        int64_t rows = nbl__min_i64(weight->rows, MAX / weight->columns);
        MUST(nbl__gguf_weight_rows(ctx, weight, weight->rows - rows, weight->rows, NBL_DTYPE_F32, out) ==
             NBL_OK);
    }
    nbl__gguf_model_close(model);
    return 0;
}
