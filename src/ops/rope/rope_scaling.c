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
};

/* rope->kind from "rope_type", or from "type" in older configurations. Neither: the default. */
static nbl_status read_kind(nbl_context *ctx, const nbl__json *object, nbl__rope *rope)
{
    static const char *const kinds[] = {"default", "linear", "llama3", "yarn"};
    const nbl__json *value = nbl__json_get(object, "rope_type");
    if (value == NULL || value->type == NBL_JSON_NULL) value = nbl__json_get(object, "type");
    rope->kind = NBL_ROPE_DEFAULT;
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    NBL_CHECK(ctx, value->type == NBL_JSON_STRING, NBL_ERROR_FORMAT, "rope scaling: rope_type is not text");
    for (int i = 0; i < 4; i++) {
        if (strcmp(kinds[i], value->string) != 0) continue;
        rope->kind = (nbl__rope_kind)i;
        return NBL_OK;
    }
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED,
                     "rope scaling: rope_type \"%s\" is not default, linear, llama3 or yarn", value->string);
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

/* -1 if partial_rotary_factor is not in (0, 1]. */
int64_t nbl__rope_dim(const nbl__rope *rope, int64_t head_dim)
{
    if (rope->rotary_dim != 0) return rope->rotary_dim;
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

/* YaRN's factor: given, or the ratio of the context lengths. */
static double yarn_factor(const nbl__rope *r)
{
    return r->factor != 0 ? r->factor : (double)r->max_position_embeddings / original_length(r);
}

nbl_status nbl__rope_check(nbl_context *ctx, const char *op, const nbl__rope *r)
{
    NBL_CHECK(ctx, theta_of(r) > 0 && isfinite(theta_of(r)), NBL_ERROR_ARGUMENT,
              "%s: theta %g is not positive", op, (double)theta_of(r));
    if (r->kind == NBL_ROPE_LINEAR || r->kind == NBL_ROPE_LLAMA3)
        NBL_CHECK(ctx, r->factor > 0, NBL_ERROR_ARGUMENT, "%s: scaling without a positive factor", op);
    if (r->kind == NBL_ROPE_LLAMA3 || r->kind == NBL_ROPE_YARN)
        NBL_CHECK(ctx, original_length(r) > 0, NBL_ERROR_ARGUMENT,
                  "%s: scaling without original_max_position_embeddings", op);
    if (r->kind == NBL_ROPE_LLAMA3)
        NBL_CHECK(ctx, r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor, NBL_ERROR_ARGUMENT,
                  "%s: scaling with low_freq_factor %g and high_freq_factor %g", op, r->low_freq_factor,
                  r->high_freq_factor);
    if (r->kind == NBL_ROPE_YARN)
        NBL_CHECK(ctx,
                  yarn_factor(r) > 0 && theta_of(r) != 1 && r->beta_fast >= 0 && r->beta_slow >= 0 &&
                      (!r->has_attention_factor || r->attention_factor >= 0),
                  NBL_ERROR_ARGUMENT, "%s: scaling with factor %g, beta_fast %g, beta_slow %g", op,
                  yarn_factor(r), r->beta_fast, r->beta_slow);
    return NBL_OK;
}

/* Llama 3: with wave = 2π / f in tokens,
 *
 *   wave > length / low_freq_factor     f / factor
 *   wave < length / high_freq_factor    f
 *   between                             a linear mix of both, in length / wave */
static void scale_llama3(const nbl__rope *r, int64_t half, float *frequencies)
{
    float factor = (float)r->factor, low = (float)r->low_freq_factor, length = (float)original_length(r);
    float long_wave = (float)(original_length(r) / r->low_freq_factor);
    float short_wave = (float)(original_length(r) / r->high_freq_factor);
    float span = (float)(r->high_freq_factor - r->low_freq_factor);
    for (int64_t i = 0; i < half; i++) {
        float f = frequencies[i], wave = 1 / f * (float)(2 * M_PI);
        if (wave > long_wave) f = f / factor;
        if (!(wave < short_wave) && !(wave > long_wave)) {
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
        frequencies[i] = 1 / ((float)yarn_factor(r) * power) * (1 - keep) + 1 / power * keep;
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
    double factor = yarn_factor(r);
    if (r->has_attention_factor) return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return yarn_magnitude(factor, r->mscale) / yarn_magnitude(factor, r->mscale_all_dim);
    return yarn_magnitude(factor, 1);
}

void nbl__rope_frequencies(const nbl__rope *rope, int64_t dim, float *frequencies, float *attention_scaling)
{
    for (int64_t i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;
        float power = (float)pow((double)theta_of(rope), (double)exponent);
        frequencies[i] = rope->kind == NBL_ROPE_YARN ? power : 1 / power;
        if (rope->kind == NBL_ROPE_LINEAR) frequencies[i] /= (float)rope->factor;
    }
    if (rope->kind == NBL_ROPE_LLAMA3) scale_llama3(rope, dim / 2, frequencies);
    if (rope->kind == NBL_ROPE_YARN) scale_yarn(rope, dim, frequencies);
    *attention_scaling = rope->kind == NBL_ROPE_YARN ? (float)yarn_attention(rope) : 1;
}
