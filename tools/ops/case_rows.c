/* case_rows.c - tensors that lie in wider rows (nbl_tensor.row_stride), as the word `wider` asks.
 *
 *     before a row:  half of the elements that it is wider by     NaN, as case_alloc leaves them
 *     the row                                                     the tensor's own
 *     behind it:     the other half                               NaN */
#include <stdio.h>

#include "case.h"

enum { POISON = 0xff };

/* The number behind "SLOT:" in the list, -1: it is not there, -2: it is no number. */
static int64_t wider_in(const char *list, const char *slot)
{
    size_t n = strlen(slot);
    for (const char *at = list; at; at = strchr(at, ','), at += at != NULL) {
        double number;
        char text[32];
        if (strncmp(at, slot, n) != 0 || at[n] != ':') continue;
        snprintf(text, sizeof text, "%.*s", (int)strcspn(at + n + 1, ","), at + n + 1);
        return case_number("", text, &number) && number > 0 ? (int64_t)number : -2;
    }
    return -1;
}

int64_t case_wider(const char *text, const char *slot)
{
    char list[CASE_TEXT];
    return case_word(text, "wider", list) ? nbl__max_i64(wider_in(list, slot), 0) : 0;
}

bool case_wider_known(const nbl__family *family, const char *text)
{
    char list[CASE_TEXT];
    int parts = 1, found = 0;
    if (!case_word(text, "wider", list)) return true;
    for (const char *at = list; *at; at++) parts += *at == ',';
    for (const nbl__slot *slot = family->slots; slot->name; slot++)
        found += slot->strided && wider_in(list, slot->name) > 0;
    return parts == found;
}

static size_t element_of(const nbl_tensor *tensor)
{
    return (size_t)nbl__dtype_bits(tensor->dtype) / 8;
}

/* Copies the rows between two tensors of one shape. */
static void copy_rows(const nbl_tensor *to, const nbl_tensor *from)
{
    size_t element = element_of(to), bytes = (size_t)nbl__row_elements(to) * element;
    for (int64_t r = 0; bytes > 0 && r < to->shape[0]; r++)
        memcpy((uint8_t *)to->data + (size_t)(r * nbl__row_stride(to)) * element,
               (const uint8_t *)from->data + (size_t)(r * nbl__row_stride(from)) * element, bytes);
}

void case_spread(case_memory *memory, nbl_tensor *tensor, int64_t more, size_t skew)
{
    nbl_tensor dense = *tensor;
    tensor->row_stride = nbl__row_elements(tensor) + more;
    size_t element = element_of(tensor), bytes = (size_t)(tensor->shape[0] * tensor->row_stride) * element;
    tensor->data = (uint8_t *)case_alloc(memory, bytes, skew) + (bytes ? (size_t)(more / 2) * element : 0);
    copy_rows(tensor, &dense);
}

bool case_gather(case_memory *memory, nbl_tensor *tensor)
{
    nbl_tensor rows = *tensor;
    size_t element = element_of(tensor), gap = (size_t)(rows.row_stride - nbl__row_elements(&rows)) * element;
    bool intact = true;
    for (int64_t r = 0; r < rows.shape[0]; r++) {
        const uint8_t *from = (const uint8_t *)rows.data + (size_t)(r * rows.row_stride) * element;
        const uint8_t *end = from + (size_t)nbl__row_elements(&rows) * element;
        size_t before = r == 0 ? gap / element / 2 * element : 0;
        size_t behind = r + 1 == rows.shape[0] ? gap - gap / element / 2 * element : gap;
        for (size_t i = 0; i < before; i++) intact = intact && (from - before)[i] == POISON;
        for (size_t i = 0; i < behind; i++) intact = intact && end[i] == POISON;
    }
    tensor->row_stride = 0;
    tensor->data = case_alloc(memory, case_bytes(tensor), element);
    copy_rows(tensor, &rows);
    return intact;
}
