/* rope_scaling.c - the frequencies of rotary position embedding: read from a model's
 * configuration, and computed in the steps of transformers' modeling_rope_utils, in f32 where that
 * uses f32.
 *
 * All steps but one give the bits of transformers. The exception is the power: theirs depends on
 * the machine (Sleef or libm, by the index in the vector). Here it is correctly rounded, and
 * differs from theirs by a unit or two at most. */
#include <math.h>

#include "ops/rope/rope.h"

/* ---- reading ---- */

typedef struct number_key {
    const char *name;
    size_t offset; /* of a double in nbl__rope */
} number_key;

static const number_key number_keys[] = {
    {"factor", offsetof(nbl__rope, factor)},
    {"low_freq_factor", offsetof(nbl__rope, low_freq_factor)},
    {"high_freq_factor", offsetof(nbl__rope, high_freq_factor)},
    {"original_max_position_embeddings", offsetof(nbl__rope, original_max_position_embeddings)},
    {"beta_fast", offsetof(nbl__rope, beta_fast)},
    {"beta_slow", offsetof(nbl__rope, beta_slow)},
    {"attention_factor", offsetof(nbl__rope, attention_factor)},
    {"mscale", offsetof(nbl__rope, mscale)},
    {"mscale_all_dim", offsetof(nbl__rope, mscale_all_dim)},
    {"partial_rotary_factor", offsetof(nbl__rope, partial_rotary_factor)},
    {"llama_4_scaling_beta", offsetof(nbl__rope, query_beta)},
};

/* rope->kind from "rope_type", or from "type" in older configurations. Neither: the default. */
static nbl_status read_kind(nbl_context *ctx, const nbl__json *object, nbl__rope *rope)
{
    static const char *const kinds[NBL_ROPE_NONE] = {"default", "linear",   "llama3",      "yarn",
                                                     "dynamic", "longrope", "proportional"};
    const nbl__json *value = nbl__json_get(object, "rope_type");
    if (value == NULL || value->type == NBL_JSON_NULL) value = nbl__json_get(object, "type");
    rope->kind = NBL_ROPE_DEFAULT;
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    NBL_CHECK(ctx, value->type == NBL_JSON_STRING, NBL_ERROR_FORMAT, "rope scaling: rope_type is not text");
    if (strcmp(value->string, "su") == 0) { /* longrope's first name */
        rope->kind = NBL_ROPE_LONGROPE;
        return NBL_OK;
    }
    for (int i = 0; i < NBL_ROPE_NONE; i++) {
        if (strcmp(kinds[i], value->string) != 0) continue;
        rope->kind = (nbl__rope_kind)i;
        return NBL_OK;
    }
    return nbl__fail(
        ctx, NBL_ERROR_UNSUPPORTED,
        "rope scaling: rope_type \"%s\" is not default, linear, llama3, yarn, dynamic, longrope or "
        "proportional",
        value->string);
}

/* A list of positive numbers, which stays where it is. */
static nbl_status read_factors(nbl_context *ctx, const nbl__json *list, const nbl__json **factors)
{
    bool positive = list->type == NBL_JSON_ARRAY;
    for (int64_t i = 0; positive && i < list->count; i++) {
        double number = 0;
        positive = nbl__json_number(&list->items[i], &number) && (float)number > 0 && isfinite((float)number);
    }
    NBL_CHECK(ctx, positive, NBL_ERROR_FORMAT, "rope scaling: %s is not a list of positive numbers",
              list->key);
    *factors = list;
    return NBL_OK;
}

/* Reads one key of the object. A key that is not known is an error, because it could change the
 * frequencies. */
static nbl_status read_key(nbl_context *ctx, const nbl__json *item, nbl__rope *rope)
{
    const char *key = item->key;
    double number = 0;
    bool is_number = nbl__json_number(item, &number) && isfinite(number);
    if (strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0) return NBL_OK;
    /* Of vision-language models: three positions per token, which are equal in text. */
    if (strcmp(key, "mrope_section") == 0 || strcmp(key, "mrope_interleaved") == 0) return NBL_OK;
    /* Ministral 3 repeats the configuration's; nobody reads it. */
    if (strcmp(key, "max_position_embeddings") == 0) return NBL_OK;
    if (strcmp(key, "truncate") == 0) {
        NBL_CHECK(ctx,
                  item->type == NBL_JSON_TRUE || item->type == NBL_JSON_FALSE || item->type == NBL_JSON_NULL,
                  NBL_ERROR_FORMAT, "rope scaling: truncate is not true or false");
        rope->keep_fractions = item->type != NBL_JSON_TRUE; /* null is false, as in Python */
        return NBL_OK;
    }
    if (strcmp(key, "rope_theta") == 0) {
        if (item->type == NBL_JSON_NULL) return NBL_OK;
        NBL_CHECK(ctx, is_number && (float)number > 0, NBL_ERROR_FORMAT,
                  "rope scaling: rope_theta is not a positive number");
        rope->rope_theta = (float)number;
        return NBL_OK;
    }
    if (strcmp(key, "short_factor") == 0 || strcmp(key, "long_factor") == 0) {
        if (item->type == NBL_JSON_NULL) return NBL_OK;
        return read_factors(ctx, item, key[0] == 's' ? &rope->short_factor : &rope->long_factor);
    }
    for (size_t i = 0; i < sizeof number_keys / sizeof *number_keys; i++) {
        if (strcmp(key, number_keys[i].name) != 0) continue;
        if (item->type == NBL_JSON_NULL) return NBL_OK;
        NBL_CHECK(ctx, is_number, NBL_ERROR_FORMAT, "rope scaling: %s is not a number", key);
        *(double *)(void *)((char *)rope + number_keys[i].offset) = number;
        if (strcmp(key, "attention_factor") == 0) rope->has_attention_factor = true;
        return NBL_OK;
    }
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "rope scaling: the key \"%s\" is not known", key);
}

nbl_status nbl__rope_read_scaling(nbl_context *ctx, const nbl__json *object, nbl__rope *rope)
{
    if (object == NULL || object->type == NBL_JSON_NULL) {
        rope->kind = NBL_ROPE_DEFAULT;
        return NBL_OK;
    }
    NBL_CHECK(ctx, object->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "rope scaling: not an object");
    NBL_TRY(read_kind(ctx, object, rope));
    for (int64_t i = 0; i < object->count; i++) NBL_TRY(read_key(ctx, &object->items[i], rope));
    return NBL_OK;
}

/* ---- frequencies ---- */

/* -1 if partial_rotary_factor is not in (0, 1]. `proportional` has angles for a whole head, some of
 * which are 0. */
int64_t nbl__rope_dim(const nbl__rope *rope, int64_t head_dim)
{
    if (rope->rotary_dim != 0) return rope->rotary_dim;
    if (rope->kind == NBL_ROPE_PROPORTIONAL) return head_dim;
    double part = rope->partial_rotary_factor != 0 ? rope->partial_rotary_factor : 1;
    return part > 0 && part <= 1 ? (int64_t)((double)head_dim * part) : -1;
}

/* The base of the frequencies. */
static float theta_of(const nbl__rope *r)
{
    return r->rope_theta != 0 ? r->rope_theta : r->theta;
}

/* The context length that the model was pretrained with. */
static double original_length(const nbl__rope *r)
{
    return r->original_max_position_embeddings != 0 ? r->original_max_position_embeddings
                                                    : (double)r->max_position_embeddings;
}

/* The factor of YaRN and longrope: given, or the ratio of the context lengths. */
static double length_factor(const nbl__rope *r)
{
    return r->factor != 0 ? r->factor : (double)r->max_position_embeddings / original_length(r);
}

/* The tokens after which queries grow. */
static double query_length(const nbl__rope *r)
{
    return r->query_length != 0 ? r->query_length : original_length(r);
}

nbl_status nbl__rope_check(nbl_context *ctx, const char *op, const nbl__rope *r)
{
    NBL_CHECK(ctx, theta_of(r) > 0 && isfinite(theta_of(r)), NBL_ERROR_ARGUMENT,
              "%s: theta %g is not positive", op, (double)theta_of(r));
    if (r->kind == NBL_ROPE_LINEAR || r->kind == NBL_ROPE_LLAMA3 || r->kind == NBL_ROPE_DYNAMIC)
        NBL_CHECK(ctx, r->factor > 0, NBL_ERROR_ARGUMENT, "%s: scaling without a positive factor", op);
    if (r->kind == NBL_ROPE_LLAMA3 || r->kind == NBL_ROPE_YARN || r->kind == NBL_ROPE_LONGROPE)
        NBL_CHECK(ctx, original_length(r) > 0, NBL_ERROR_ARGUMENT,
                  "%s: scaling without original_max_position_embeddings", op);
    if (r->kind == NBL_ROPE_LLAMA3)
        NBL_CHECK(ctx, r->low_freq_factor > 0 && r->high_freq_factor >= r->low_freq_factor, NBL_ERROR_ARGUMENT,
                  "%s: scaling with low_freq_factor %g and high_freq_factor %g", op, r->low_freq_factor,
                  r->high_freq_factor);
    if (r->kind == NBL_ROPE_YARN)
        NBL_CHECK(ctx,
                  length_factor(r) > 0 && theta_of(r) != 1 && r->beta_fast >= 0 && r->beta_slow >= 0 &&
                      (!r->has_attention_factor || r->attention_factor >= 0),
                  NBL_ERROR_ARGUMENT, "%s: scaling with factor %g, beta_fast %g, beta_slow %g", op,
                  length_factor(r), r->beta_fast, r->beta_slow);
    if (r->kind == NBL_ROPE_LONGROPE)
        NBL_CHECK(ctx,
                  length_factor(r) > 0 && original_length(r) > 1 &&
                      (!r->has_attention_factor || r->attention_factor >= 0),
                  NBL_ERROR_ARGUMENT, "%s: scaling with factor %g, original_max_position_embeddings %g", op,
                  length_factor(r), original_length(r));
    if (r->kind == NBL_ROPE_DYNAMIC)
        NBL_CHECK(ctx, r->factor >= 1 && r->max_position_embeddings > 0, NBL_ERROR_ARGUMENT,
                  "%s: dynamic scaling with factor %g, max_position_embeddings %" PRId64, op, r->factor,
                  r->max_position_embeddings);
    if (r->kind == NBL_ROPE_PROPORTIONAL)
        NBL_CHECK(ctx, r->factor >= 0 && r->partial_rotary_factor >= 0 && r->partial_rotary_factor <= 1,
                  NBL_ERROR_ARGUMENT, "%s: proportional scaling with factor %g, partial_rotary_factor %g", op,
                  r->factor, r->partial_rotary_factor);
    if (r->query_beta != 0)
        NBL_CHECK(ctx, r->query_beta > 0 && query_length(r) >= 1, NBL_ERROR_ARGUMENT,
                  "%s: queries scaled with beta %g over %g tokens", op, r->query_beta, query_length(r));
    return NBL_OK;
}

nbl_status nbl__rope_check_dim(nbl_context *ctx, const char *op, const nbl__rope *r, int64_t dim)
{
    if (r->kind == NBL_ROPE_DYNAMIC)
        NBL_CHECK(ctx, dim > 2, NBL_ERROR_ARGUMENT, "%s: dynamic scaling of %" PRId64 " dimensions", op, dim);
    if (r->kind != NBL_ROPE_LONGROPE) return NBL_OK;
    const nbl__json *lists[2] = {r->short_factor, r->long_factor};
    for (int i = 0; i < 2; i++) {
        int64_t count = lists[i] ? lists[i]->count : 0;
        NBL_CHECK(ctx, count == dim / 2, NBL_ERROR_SHAPE,
                  "%s: %s has %" PRId64 " numbers, not one for each of %" PRId64 " pairs", op,
                  i == 0 ? "short_factor" : "long_factor", count, dim / 2);
    }
    return NBL_OK;
}

/* Llama 3: with wave = 2π / f in tokens,
 *
 *   wave > length / low_freq_factor     f / factor
 *   wave < length / high_freq_factor    f
 *   between                             a linear mix of both, in length / wave; none if the factors
 *                                       are equal (Llama 4) */
static void scale_llama3(const nbl__rope *r, int64_t half, float *frequencies)
{
    float factor = (float)r->factor, low = (float)r->low_freq_factor, length = (float)original_length(r);
    float long_wave = (float)(original_length(r) / r->low_freq_factor);
    float short_wave = (float)(original_length(r) / r->high_freq_factor);
    float span = (float)(r->high_freq_factor - r->low_freq_factor);
    for (int64_t i = 0; i < half; i++) {
        float f = frequencies[i], wave = 1 / f * (float)(2 * M_PI);
        if (wave > long_wave) f = f / factor;
        if (!(wave < short_wave) && !(wave > long_wave) && span > 0) {
            float smooth = (1 / wave * length - low) / span;
            f = (1 - smooth) * f / factor + smooth * f;
        }
        frequencies[i] = f;
    }
}

/* YaRN: the dimension that makes `rotations` full rotations over the original context length. It is
 * real; scale_yarn rounds it. */
static double rotation_dim(const nbl__rope *r, int64_t dim, double rotations)
{
    return (double)dim * log(original_length(r) / (rotations * 2 * M_PI)) / (2 * log((double)theta_of(r)));
}

/* YaRN: dimensions with many rotations over the original length keep their frequency
 * (extrapolation), those with few have it divided by the factor (interpolation), and a ramp over
 * the dimensions lies between. `frequencies` holds theta^(2i/dim) on entry. */
static void scale_yarn(const nbl__rope *r, int64_t dim, float *frequencies)
{
    double low = rotation_dim(r, dim, r->beta_fast != 0 ? r->beta_fast : 32);
    double high = rotation_dim(r, dim, r->beta_slow != 0 ? r->beta_slow : 1);
    if (!r->keep_fractions) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < (double)(dim - 1) ? high : (double)(dim - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < dim / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        float power = frequencies[i];
        frequencies[i] = 1 / ((float)length_factor(r) * power) * (1 - keep) + 1 / power * keep;
    }
}

/* The growth of attention logits that YaRN compensates: 0.1·mscale·log(factor) + 1. */
static double yarn_magnitude(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The factor of cos and sin. */
static double yarn_attention(const nbl__rope *r)
{
    double factor = length_factor(r);
    if (r->has_attention_factor) return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return yarn_magnitude(factor, r->mscale) / yarn_magnitude(factor, r->mscale_all_dim);
    return yarn_magnitude(factor, 1);
}

static double longrope_attention(const nbl__rope *r)
{
    double factor = length_factor(r);
    if (r->has_attention_factor) return r->attention_factor;
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original_length(r)));
}

/* ---- lengths ---- */

bool nbl__rope_has_lengths(const nbl__rope *r)
{
    return r->kind == NBL_ROPE_DYNAMIC || r->kind == NBL_ROPE_LONGROPE;
}

int64_t nbl__rope_length_class(const nbl__rope *r, int64_t length)
{
    if (r->kind == NBL_ROPE_DYNAMIC) return nbl__max_i64(length, r->max_position_embeddings);
    /* Any length beyond the original one will do; 0 is below all. */
    return r->kind == NBL_ROPE_LONGROPE && (double)length > original_length(r) ? INT32_MAX : 0;
}

double nbl__rope_query_scale(const nbl__rope *r, int64_t position)
{
    if (r->query_beta == 0) return 1;
    return 1 + r->query_beta * log1p(floor(((double)position + r->query_shift) / query_length(r)));
}

/* The base of the frequencies for a sequence of this length. `dynamic` grows it, so that the lowest
 * frequency fits the length. */
static float theta_for(const nbl__rope *r, int64_t dim, int64_t length)
{
    if (r->kind != NBL_ROPE_DYNAMIC) return theta_of(r);
    double ratio = (double)nbl__rope_length_class(r, length) / (double)r->max_position_embeddings;
    return (float)((double)theta_of(r) *
                   pow(r->factor * ratio - (r->factor - 1), (double)dim / (double)(dim - 2)));
}

/* longrope's divisor of frequency i. */
static float divisor(const nbl__rope *r, int64_t length, int64_t i)
{
    double number = 1;
    bool longer = nbl__rope_length_class(r, length) > 0;
    nbl__json_number(&(longer ? r->long_factor : r->short_factor)->items[i], &number);
    return (float)number;
}

/* How many pairs `proportional` rotates. */
static int64_t proportional_pairs(const nbl__rope *r, int64_t dim)
{
    double part = r->partial_rotary_factor != 0 ? r->partial_rotary_factor : 1;
    return (int64_t)floor(part * (double)dim / 2);
}

void nbl__rope_frequencies(const nbl__rope *rope, int64_t dim, int64_t length, float *frequencies,
                           float *attention_scaling)
{
    double theta = (double)theta_for(rope, dim, length);
    for (int64_t i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;
        float power = (float)pow(theta, (double)exponent);
        frequencies[i] = rope->kind == NBL_ROPE_YARN ? power : 1 / power;
        if (rope->kind == NBL_ROPE_LINEAR) frequencies[i] /= (float)rope->factor;
        if (rope->kind == NBL_ROPE_LONGROPE) frequencies[i] = 1 / (divisor(rope, length, i) * power);
        if (rope->kind == NBL_ROPE_PROPORTIONAL && rope->factor != 0) frequencies[i] /= (float)rope->factor;
        if (rope->kind == NBL_ROPE_PROPORTIONAL && i >= proportional_pairs(rope, dim)) frequencies[i] = 0;
        if (rope->kind == NBL_ROPE_NONE) frequencies[i] = 0;
    }
    if (rope->kind == NBL_ROPE_LLAMA3) scale_llama3(rope, dim / 2, frequencies);
    if (rope->kind == NBL_ROPE_YARN) scale_yarn(rope, dim, frequencies);
    *attention_scaling = rope->kind == NBL_ROPE_YARN       ? (float)yarn_attention(rope)
                         : rope->kind == NBL_ROPE_LONGROPE ? (float)longrope_attention(rope)
                                                           : 1;
}

/* Sequences that follow each other in one class are one run. */
bool nbl__rope_next_run(const nbl__rope_table *a, nbl__rope_run *run)
{
    int64_t tokens = nbl__tensor_elements(&a->positions);
    const int32_t *positions = a->positions.data, *starts = a->cu_seqlens.data;
    run->first = run->end;
    if (!nbl__rope_has_lengths(&a->rope)) {
        run->end = tokens;
        return run->first < tokens;
    }
    /* Without cu_seqlens, sequence s is token s. */
    int64_t sequences = starts ? a->cu_seqlens.shape[0] - 1 : tokens;
    for (; run->sequence < sequences; run->sequence++) {
        int64_t end = starts ? starts[run->sequence + 1] : run->sequence + 1;
        if (end == run->end) continue; /* an empty sequence */
        int64_t length = nbl__rope_length_class(&a->rope, (int64_t)positions[end - 1] + 1);
        if (run->end > run->first && length != run->length) return true;
        run->length = length;
        run->end = end;
    }
    return run->end > run->first;
}
