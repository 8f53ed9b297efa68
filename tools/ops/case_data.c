/* case_data.c - memory with red zones, and the values of a case's tensors and weights.
 *
 *   generators of floats     normal (the default), positive, zero, huge (1e4 times normal: its
 *                            square overflows f16), outliers (some columns far above LLM.int8's
 *                            threshold), tiny, times-N (N times normal), broken (NaN, infinities)
 *   generators of integers   random-N (below N), masked-N (the same with some -100), range (0, 1,
 *                            2, …), packed (several ranges), constant-N, or a list [0,5,5,40];
 *                            routed, routed-one
 *   generator of u8          codes
 *
 * N may be a named number. A random value depends on seed, slot and index alone, so a tensor has
 * the same values on any machine and in any order of filling. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/philox.h"
#include "case.h"
#include "ops/families.h"
#include "ops/moe/expert_order.h"

/* ---- memory ---- */

struct case_block {
    case_block *next;
    uint8_t *base; /* zone, skew, data, zone */
    size_t begin, bytes, total;
};

enum { PATTERN = 0xa5, POISON = 0xff };

/* The data begins `skew` bytes behind an address aligned to 64, so misaligned tensors can be
 * tested. The data holds 0xff (NaN) until it is filled. */
void *case_alloc(case_memory *memory, size_t bytes, size_t skew)
{
    size_t total = (CASE_ZONE + skew + bytes + CASE_ZONE + 63) / 64 * 64;
    case_block *block = malloc(sizeof *block);
    uint8_t *base = aligned_alloc(64, total);
    if (block == NULL || base == NULL) {
        fprintf(stderr, "nibble: ops: out of memory\n");
        exit(1);
    }
    *block = (case_block){memory->first, base, CASE_ZONE + skew, bytes, total};
    memory->first = block;
    memset(base, PATTERN, total);
    memset(base + block->begin, POISON, bytes);
    return base + block->begin;
}

bool case_zones_intact(const case_memory *memory)
{
    for (const case_block *block = memory->first; block; block = block->next) {
        for (size_t i = 0; i < block->begin; i++)
            if (block->base[i] != PATTERN) return false;
        for (size_t i = block->begin + block->bytes; i < block->total; i++)
            if (block->base[i] != PATTERN) return false;
    }
    return true;
}

size_t case_size(const case_memory *memory)
{
    size_t bytes = 0;
    for (const case_block *block = memory->first; block; block = block->next) bytes += block->bytes;
    return bytes;
}

/* Order matters: two blocks that are exchanged give another sum. */
uint64_t case_checksum(const case_memory *memory)
{
    uint64_t sum = 0;
    for (const case_block *block = memory->first; block; block = block->next) {
        const uint8_t *data = block->base + block->begin;
        uint64_t word = 0;
        for (size_t i = 0; i < block->bytes; i += 8) {
            memcpy(&word, data + i, block->bytes - i < 8 ? block->bytes - i : 8);
            sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
            sum ^= sum >> 29;
        }
    }
    return sum;
}

void case_free(case_memory *memory)
{
    while (memory->first) {
        case_block *block = memory->first;
        memory->first = block->next;
        free(block->base);
        free(block);
    }
}

/* ---- values ---- */

bool case_is_float(nbl_dtype dtype)
{
    return nbl__is_compute(dtype) || dtype == NBL_DTYPE_F64;
}

size_t case_bytes(const nbl_tensor *tensor)
{
    return (size_t)nbl__tensor_elements(tensor) * (size_t)nbl__dtype_bits(tensor->dtype) / 8;
}

/* Four random words for an element: Philox with the slot's name and the index as the counter. */
static void random_words(uint64_t seed, const char *slot, int64_t index, uint32_t words[4])
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = slot; *c; c++) hash = (hash ^ (uint32_t)*c) * 16777619u;
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)((uint64_t)index >> 32), hash, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    nbl__philox(counter, key, words);
}

double case_uniform(uint64_t seed, const char *slot, int64_t index)
{
    uint32_t words[4];
    random_words(seed, slot, index, words);
    return (double)words[0] * 0x1p-32;
}

/* Close to normal, and never far out: the sum of four uniform values. */
static double normal(uint64_t seed, const char *slot, int64_t index)
{
    uint32_t words[4];
    random_words(seed, slot, index, words);
    double sum = (double)words[0] + (double)words[1] + (double)words[2] + (double)words[3];
    return (sum * 0x1p-32 - 2) * sqrt(3);
}

/* One value of a generator of floats. False: there is no such generator. */
static bool float_value(const char *generator, uint64_t seed, const char *slot, int64_t i, int64_t columns,
                        double *value)
{
    double plain = normal(seed, slot, i);
    if (*generator == 0 || strcmp(generator, "normal") == 0) *value = plain;
    else if (strcmp(generator, "positive") == 0) *value = 0.5 + case_uniform(seed, slot, i);
    else if (strcmp(generator, "zero") == 0) *value = 0;
    else if (strcmp(generator, "huge") == 0) *value = plain * 1e4;
    else if (strcmp(generator, "tiny") == 0) *value = plain * 1e-3;
    else if (strcmp(generator, "broken") == 0)
        *value = i % 11 == 4 ? (double)INFINITY : i % 13 == 6 ? (double)NAN : plain;
    else if (strncmp(generator, "times-", 6) == 0) *value = plain * atof(generator + 6);
    else if (strcmp(generator, "outliers") == 0) *value = i % columns % 7 == 3 ? plain * 20 : plain;
    else return false;
    return true;
}

bool case_is_integer(const char *generator)
{
    static const char *const names[] = {"random-", "masked-", "range", "packed", "constant-", "routed", "["};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(generator, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* Stores into int64 or int32. */
static void put_integer(nbl_tensor *tensor, int64_t i, int64_t value)
{
    if (tensor->dtype == NBL_DTYPE_I64) ((int64_t *)tensor->data)[i] = value;
    else ((int32_t *)tensor->data)[i] = (int32_t)value;
}

/* Fills a tensor from "[0,5,5,40]"; items may be named numbers. */
static bool integer_list(const char *text, const char *list, nbl_tensor *tensor)
{
    int64_t n = nbl__tensor_elements(tensor), i = 0;
    for (const char *at = list + 1; i < n; i++) {
        char item[32];
        double value;
        size_t length = strcspn(at, ",]");
        snprintf(item, sizeof item, "%.*s", (int)nbl__min_i64((int64_t)length, 31), at);
        if (!case_number(text, item, &value)) return false;
        put_integer(tensor, i, (int64_t)value);
        at += length + (at[length] == ',');
    }
    return true;
}

/* Fills a tensor by a generator of integers. */
static bool fill_integers(const char *text, const char *generator, uint64_t seed, const char *slot,
                          nbl_tensor *tensor)
{
    if (*generator == '[') return integer_list(text, generator, tensor);
    if (strncmp(generator, "routed", 6) == 0) return case_route(text, generator, seed, slot, tensor);
    const char *dash = strchr(generator, '-');
    double max = 1;
    if (dash && !case_number(text, dash + 1, &max)) return false;
    int64_t n = nbl__tensor_elements(tensor), run = nbl__max_i64(n / 3, 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t value = (int64_t)(case_uniform(seed, slot, i) * max);
        if (*generator == 'm' && i % 5 == 2) value = -100;
        if (strcmp(generator, "range") == 0) value = i;
        if (strcmp(generator, "packed") == 0) value = i % run;
        if (*generator == 'c') value = (int64_t)max;
        put_integer(tensor, i, value);
    }
    return true;
}

/* ---- routing to experts ----
 *
 * The text names E experts, J of them per token, and T tokens. Each token draws its J distinct experts at random, from
 * the seed alone; with routed-one all tokens go to experts E - J … E - 1, and the others have no rows. The slots
 * offsets, pairs and rows are those that expert_order makes of the slot experts. */

static bool named(const char *text, const char *name, int64_t *value)
{
    char word[CASE_TEXT];
    double number;
    if (!case_word(text, name, word) || !case_number(text, word, &number)) return false;
    *value = (int64_t)number;
    return true;
}

/* J distinct experts of E: a random order of all, cut off. */
static void draw(uint64_t seed, int64_t token, int64_t experts, int64_t top_k, bool one, int32_t *order,
                 int32_t *chosen)
{
    for (int64_t e = 0; e < experts; e++) order[e] = (int32_t)(one ? experts - 1 - e : e);
    for (int64_t i = 0; i < top_k; i++) {
        int64_t other = i +
                        (int64_t)(case_uniform(seed, "experts", token * top_k + i) * (double)(experts - i));
        if (!one) {
            int32_t kept = order[i];
            order[i] = order[other];
            order[other] = kept;
        }
        chosen[i] = order[i];
    }
}

bool case_route(const char *text, const char *generator, uint64_t seed, const char *slot, nbl_tensor *tensor)
{
    int64_t tokens, experts, top_k;
    if (tensor->dtype != NBL_DTYPE_I32 || !named(text, "T", &tokens) || !named(text, "E", &experts) ||
        !named(text, "J", &top_k) || top_k > experts)
        return false;
    size_t pairs = (size_t)(tokens * top_k);
    int32_t *memory = malloc((3 * pairs + 2 * (size_t)experts + 1) * sizeof *memory);
    if (memory == NULL) exit(1);
    int32_t *chosen = memory, *order = memory + 3 * pairs + experts + 1;
    for (int64_t t = 0; t < tokens; t++)
        draw(seed, t, experts, top_k, strcmp(generator, "routed-one") == 0, order, chosen + t * top_k);
    nbl__expert_order call = {.count = experts,
                              .experts = {NBL_DTYPE_I32, 2, {tokens, top_k}, chosen, 0},
                              .pairs = {NBL_DTYPE_I32, 1, {(int64_t)pairs}, memory + pairs, 0},
                              .rows = {NBL_DTYPE_I32, 1, {(int64_t)pairs}, memory + 2 * pairs, 0},
                              .offsets = {NBL_DTYPE_I32, 1, {experts + 1}, memory + 3 * pairs, 0}};
    nbl__call none = {.op = "expert_order"};
    bool good = nbl__expert_order_family.forward.impls[0]->run(&none, &call) == NBL_OK;
    const nbl_tensor *from = strcmp(slot, "experts") == 0   ? &call.experts
                             : strcmp(slot, "offsets") == 0 ? &call.offsets
                             : strcmp(slot, "pairs") == 0   ? &call.pairs
                                                            : &call.rows;
    good = good && nbl__tensor_elements(from) == nbl__tensor_elements(tensor);
    if (good) memcpy(tensor->data, from->data, case_bytes(tensor));
    free(memory);
    return good;
}

bool case_fill(const char *text, const char *generator, uint64_t seed, const char *slot, nbl_tensor *tensor)
{
    if (case_is_integer(generator)) {
        if (tensor->dtype != NBL_DTYPE_I32 && tensor->dtype != NBL_DTYPE_I64) return false;
        return fill_integers(text, generator, seed, slot, tensor);
    }
    int64_t n = nbl__tensor_elements(tensor);
    if (strcmp(generator, "codes") == 0 && tensor->dtype == NBL_DTYPE_U8) {
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)tensor->data)[i] = (uint8_t)(case_uniform(seed, slot, i) * 256);
        return true;
    }
    if (!nbl__is_compute(tensor->dtype)) return false;
    size_t size = nbl__size_of(tensor->dtype);
    for (int64_t i = 0; i < n; i++) {
        double value;
        if (!float_value(generator, seed, slot, i, nbl__max_i64(nbl__last(tensor), 1), &value)) return false;
        float rounded = (float)value;
        nbl__from_f32(NBL_ISA_SCALAR, &rounded, tensor->dtype, (uint8_t *)tensor->data + (size_t)i * size, 1);
    }
    return true;
}

/* ---- weights ---- */

const char *const case_stores[] = {"f32", "f16",        "bf16", "nf4",   "nf4-nested",
                                   "fp4", "fp4-nested", "int8", "mxfp4", NULL};

/* Quantizes dense values into guarded memory. Codes lie at an odd address: an operator may expect
 * no alignment of them. */
static nbl_status quantized(nbl_context *ctx, case_memory *memory, const nbl_quantize_options *options,
                            nbl_dtype dtype, const int64_t shape[2], const void *values, nbl_weight *weight)
{
    nbl_quantized_sizes sizes;
    NBL_TRY(nbl_quantize_sizes(ctx, options, 2, shape, &sizes));
    /* Codes at an odd address: nothing promises more. */
    nbl_quantized_parts parts = {.data = case_alloc(memory, sizes.data, 1),
                                 .scales = case_alloc(memory, sizes.scales, 4),
                                 .scale_codes = case_alloc(memory, sizes.scale_codes, 1),
                                 .nested_scales = case_alloc(memory, sizes.nested_scales, 4)};
    return nbl_quantize(ctx, options, dtype, 2, shape, values, &parts, weight);
}

case_status case_weight(nbl_context *ctx, case_memory *memory, const char *store, int64_t rows,
                        int64_t columns, uint64_t seed, const char *slot, nbl_weight *weight,
                        char why[CASE_TEXT])
{
    int64_t shape[2] = {rows, columns};
    size_t name = strcspn(store, "/@");
    const char *block = strchr(store, '/'), *state = strchr(store, '@');
    bool nested = name > 7 && strncmp(store + name - 7, "-nested", 7) == 0;
    char format[32] = "";
    nbl_dtype dense = NBL_DTYPE_F32, remembered = NBL_DTYPE_BF16;
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .block = block ? atoi(block + 1) : 0,
                                    .nested = nested};
    if (name < sizeof format) snprintf(format, sizeof format, "%.*s", (int)(nested ? name - 7 : name), store);
    bool packed = nbl_format_parse(format, &options.format) && options.format != NBL_FORMAT_DENSE;
    if ((!packed && !nbl_dtype_parse(format, &dense)) ||
        (state && !nbl_dtype_parse(state + 1, &remembered))) {
        snprintf(why, CASE_TEXT, "%.100s is no way to store a weight", store);
        return CASE_BAD;
    }
    nbl_tensor values = {.dtype = dense, .rank = 2, .shape = {rows, columns}};
    size_t size = nbl__size_of(dense);
    values.data = case_alloc(memory, case_bytes(&values), size);
    float scale = (float)(1 / sqrt((double)nbl__max_i64(columns, 1)));
    for (int64_t i = 0; i < rows * columns; i++) {
        float value = (float)normal(seed, slot, i) * scale;
        nbl__from_f32(NBL_ISA_SCALAR, &value, dense, (uint8_t *)values.data + (size_t)i * size, 1);
    }
    *weight = (nbl_weight){.format = NBL_FORMAT_DENSE, .dtype = dense, .rank = 2, .data = values.data};
    memcpy(weight->shape, shape, sizeof shape);
    if (!packed) return CASE_READY;
    if (quantized(ctx, memory, &options, dense, shape, values.data, weight) != NBL_OK) {
        snprintf(why, CASE_TEXT, "%.900s", nbl_error_message(ctx));
        return CASE_SKIP; /* the shape does not fit the format */
    }
    weight->dtype = remembered;
    return CASE_READY;
}
