/* lora_step.c - trains a LoRA adapter on a 4-bit weight, with nothing but libnibble.
 *
 * The frozen weight is quantized to NF4. A second, slightly different layer plays the teacher; the adapter
 * learns the difference: forward, gradient of the squared error, backward, AdamW.
 *
 *     cc lora_step.c $(pkg-config --cflags --libs nibble) -lm -o lora_step && ./lora_step */
#include <math.h>
#include <nibble.h>
#include <stdio.h>
#include <stdlib.h>

enum { IN = 256, OUT = 192, RANK = 8, TOKENS = 64, STEPS = 60 };

static float noise(void) /* roughly normal */
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)rand() / (float)RAND_MAX - 0.5f;
    return sum * 1.7f;
}

static void fill(float *values, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) values[i] = noise() * scale;
}

static int check(nbl_context *ctx, nbl_status status)
{
    if (status != NBL_OK) fprintf(stderr, "lora_step: %s\n", nbl_error_message(ctx));
    return status != NBL_OK;
}

int main(void)
{
    nbl_context *ctx;
    if (nbl_context_create(NULL, &ctx) != NBL_OK) return 1;

    /* The frozen weight in 4 bits. */
    static float dense[OUT * IN];
    fill(dense, OUT * IN, 0.06f);
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4, .block = 64};
    nbl_quantized_sizes sizes;
    nbl_weight w;
    int64_t shape[] = {OUT, IN};
    if (check(ctx, nbl_quantize_sizes(ctx, &how, 2, shape, &sizes))) return 1;
    nbl_quantized_parts parts = {.data = malloc(sizes.data), .scales = malloc(sizes.scales)};
    if (check(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, dense, &parts, &w))) return 1;

    /* A as PEFT draws it, B zero; the teacher is the same layer with another adapter. */
    static float a[RANK * IN], b[OUT * RANK], teacher_a[RANK * IN], teacher_b[OUT * RANK], x[TOKENS * IN];
    static float y[TOKENS * OUT], target[TOKENS * OUT], dy[TOKENS * OUT], da[RANK * IN], db[OUT * RANK];
    static float moments[4][OUT * RANK + RANK * IN];
    fill(a, RANK * IN, 0.06f), fill(teacher_a, RANK * IN, 0.06f), fill(teacher_b, OUT * RANK, 0.3f),
        fill(x, TOKENS * IN, 1);
    nbl_linear layer = {
        .dtype = NBL_DTYPE_F32,
        .x = nbl_matrix(NBL_DTYPE_F32, TOKENS, IN, x),
        .w = w,
        .lora_a = nbl_matrix(NBL_DTYPE_F32, RANK, IN, teacher_a),
        .lora_b = nbl_matrix(NBL_DTYPE_F32, OUT, RANK, teacher_b),
        .scale = 2,
        .y = nbl_matrix(NBL_DTYPE_F32, TOKENS, OUT, target),
        .dy = nbl_matrix(NBL_DTYPE_F32, TOKENS, OUT, dy),
        .dlora_a = nbl_matrix(NBL_DTYPE_F32, RANK, IN, da),
        .dlora_b = nbl_matrix(NBL_DTYPE_F32, OUT, RANK, db),
    };
    size_t forward, backward;
    if (check(ctx, nbl_linear_scratch(ctx, &layer, 0, &forward))) return 1;
    if (check(ctx, nbl_linear_scratch(ctx, &layer, 1, &backward))) return 1;
    size_t bytes = forward > backward ? forward : backward;
    void *scratch = aligned_alloc(64, bytes);
    if (check(ctx, nbl_linear_forward(ctx, &layer, scratch, bytes))) return 1;
    layer.lora_a.data = a, layer.lora_b.data = b, layer.y.data = y;

    nbl_adamw_tensor trained[] = {{.p = layer.lora_a, .g = layer.dlora_a},
                                  {.p = layer.lora_b, .g = layer.dlora_b}};
    for (int i = 0; i < 2; i++) {
        trained[i].m = trained[i].v = trained[i].p;
        trained[i].m.data = moments[2 * i], trained[i].v.data = moments[2 * i + 1];
    }
    double first = 0, loss = 0;
    for (int step = 1; step <= STEPS; step++) {
        if (check(ctx, nbl_linear_forward(ctx, &layer, scratch, bytes))) return 1;
        loss = 0;
        for (int i = 0; i < TOKENS * OUT; i++) {
            dy[i] = y[i] - target[i];
            loss += 0.5 * (double)dy[i] * (double)dy[i] / TOKENS;
        }
        if (step == 1) first = loss;
        if (step % 20 == 0) printf("step %2d  loss %.4f\n", step, loss);
        if (check(ctx, nbl_linear_backward(ctx, &layer, scratch, bytes))) return 1;
        nbl_adamw update = {.tensors = trained,
                            .count = 2,
                            .lr = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .grad_scale = 1.0 / TOKENS,
                            .step = step,
                            .bits = 32};
        if (check(ctx, nbl_adamw_step(ctx, &update))) return 1;
    }
    free(scratch), free(parts.data), free(parts.scales);
    nbl_context_destroy(ctx);
    return loss < 0.1 * first ? 0 : 1;
}
