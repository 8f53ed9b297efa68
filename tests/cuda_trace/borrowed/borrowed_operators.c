/* borrowed_operators.c - what kernels of a context on a borrowed stream get: the workspace of libraries, an order in the
 * stream, what forward leaves for backward, the address of a nested offset; and how their faults are told. */
#include "device/cuda/cuda.h"
#include "heard.h"

static void the_workspace_of_libraries_is_the_end_of_the_scratch(void **state)
{
    (void)state;
    setenv("NIBBLE_CUDA_TRACE_DEVICE", "sm_80", 1); /* where the layer's products are cuBLASLt's */
    nbl_context *borrowed = borrowing(NULL, NULL), *owner = plain_context();
    assert_ok(owner, nbl_context_use_cuda(owner, 0));
    nbl_linear a = *calls_layer();
    size_t with, without;
    unsigned long long address, bytes;
    assert_ok(borrowed, nbl_linear_scratch(borrowed, &a, true, &with));
    assert_ok(owner, nbl_linear_scratch(owner, &a, true, &without));
    assert_int_equal(with - without, (64 << 20) + 192);
    /* whatever multiple of 64 the scratch begins at */
    for (int shift = 0; shift < 256; shift += 64) {
        listen("");
        assert_ok(borrowed, calls_linear(borrowed, &a, true, calls_scratch() + shift));
        trace_listen(NULL);
        const char *at = strstr(heard.product, "workspace ");
        assert_true(at && sscanf(at, "workspace %llx %llu", &address, &bytes) == 2);
        assert_int_equal(bytes, 64 << 20);
        assert_int_equal(address % 256, 0);
        assert_true(address >= (uintptr_t)calls_scratch() + shift + without);
        assert_true(address + bytes <= (uintptr_t)calls_scratch() + shift + with);
    }
    /* The same algorithms: what the heuristic is asked is part of the line. */
    char theirs[256], ours[256];
    snprintf(theirs, sizeof theirs, "%s", heard.product);
    listen("");
    assert_ok(owner, calls_linear(owner, &a, true, calls_scratch()));
    trace_listen(NULL);
    snprintf(ours, sizeof ours, "%s", heard.product);
    *strstr(theirs, "workspace") = *strstr(ours, "workspace") = '\0';
    assert_string_equal(theirs, ours);
    assert_refused(borrowed, nbl_linear_backward(borrowed, &a, calls_scratch(), with - 64),
                   NBL_ERROR_ARGUMENT, "bytes of scratch");
    /* Rows without products ask for none. */
    a = *calls_row();
    assert_ok(borrowed, nbl_linear_scratch(borrowed, &a, false, &with));
    assert_true(with < 1 << 20);
    nbl_context_destroy(borrowed);
    nbl_context_destroy(owner);
    unsetenv("NIBBLE_CUDA_TRACE_DEVICE");
}

/* Weights are read ahead of the stream, but not those that the kernel before may have written. */
static void the_first_kernel_of_a_call_waits_for_the_stream(void **state)
{
    (void)state;
    nbl_context *borrowed = borrowing(NULL, NULL), *owner = plain_context();
    assert_ok(owner, nbl_context_use_cuda(owner, 0));
    for (int i = 0; i < 2; i++) {
        listen("");
        assert_ok(borrowed, calls_linear(borrowed, calls_row(), false, calls_scratch()));
        assert_int_equal(heard.enqueued, 1);
        assert_int_equal(heard.dependent, 0);
        listen("");
        assert_ok(owner, calls_linear(owner, calls_row(), false, calls_scratch()));
        assert_int_equal(heard.dependent, 1);
    }
    trace_listen(NULL);
    nbl_context_destroy(borrowed);
    nbl_context_destroy(owner);
}

static void a_fault_fails_the_next_call_once(void **state)
{
    (void)state;
    nbl_context *ctx = borrowing(NULL, NULL);
    nbl__cuda_fault *fault = nbl__cuda_of(ctx)->fault;
    for (const operation *op = operations; op->name; op++) {
        run(ctx, op);
        fault->kind = NBL_CUDA_FAULT_LABEL; /* the kernel is not through with it */
        run(ctx, op);
        fault->value = 12345;
        run(ctx, op);
        fault->index = 7;
        listen("");
        assert_refused(ctx, op->run(ctx, calls_scratch()), NBL_ERROR_ARGUMENT,
                       "labels: 12345 at index 7 is not in the vocabulary");
        trace_listen(NULL);
        assert_int_equal(heard.enqueued, 0);
        assert_string_not_equal(nbl_error_hint(ctx), "");
        run(ctx, op);
    }
    nbl_context_destroy(ctx);
}

static void forward_leaves_masks_and_t_for_backward(void **state)
{
    (void)state;
    static const char *const devices[] = {"sm_90", "sm_80"};
    for (int i = 0; i < 2; i++) {
        setenv("NIBBLE_CUDA_TRACE_DEVICE", devices[i], 1);
        nbl_context *ctx = borrowing(NULL, NULL);
        nbl_linear a = *calls_layer();
        size_t bytes;
        assert_ok(ctx, nbl_linear_saved(ctx, &a, &bytes));
        /* t: RANK columns padded to 16, of 2 bytes; a bit of mask for each column */
        assert_int_equal(bytes, TOKENS * 16 * 2 + TOKENS * IN / 8);
        int launches[2];
        for (int saves = 0; saves < 2; saves++) {
            a.saved = saves ? calls_scratch() + SCRATCH_BYTES - (1 << 20) : NULL;
            a.saved_bytes = saves ? bytes : 0;
            listen("");
            assert_ok(ctx, calls_linear(ctx, &a, false, calls_scratch()));
            assert_int_equal(heard.masks, 1);
            nbl_linear b = a;
            b.y = (nbl_tensor){0}; /* backward has no y */
            listen("");
            assert_ok(ctx, calls_linear(ctx, &b, true, calls_scratch()));
            trace_listen(NULL);
            assert_int_equal(heard.masks, !saves);
            launches[saves] = heard.enqueued;
        }
        assert_true(launches[1] <= launches[0] - 2); /* neither masks nor t again */
        a.saved_bytes = bytes - 64;
        assert_refused(ctx, calls_linear(ctx, &a, false, calls_scratch()), NBL_ERROR_ARGUMENT, "saved has");
        /* What forward does not leave, backward does not read. */
        a.w = (nbl_weight){.format = NBL_FORMAT_INT8,
                           .rank = 2,
                           .shape = {OUT, IN},
                           .data = a.w.data,
                           .scales = a.w.nested_table};
        assert_ok(ctx, nbl_linear_saved(ctx, &a, &bytes));
        assert_int_equal(bytes, 0);
        a.saved_bytes = 1 << 20;
        a.y = (nbl_tensor){0};
        listen("");
        assert_ok(ctx, calls_linear(ctx, &a, true, calls_scratch()));
        trace_listen(NULL);
        assert_int_equal(heard.masks, 1);
        nbl_context_destroy(ctx);
    }
    unsetenv("NIBBLE_CUDA_TRACE_DEVICE");
}

/* Runs a call whose kernel reads a nested scale. Its arguments have the address of the offset, or the number. */
static void expect_offset(nbl_context *ctx, const char *kernel,
                          nbl_status (*call)(nbl_context *, const nbl_weight *))
{
    nbl_weight w = calls_layer()->w;
    const float *at = w.nested_offset_at;
    for (int given = 0; given < 2; given++) {
        w.nested_offset_at = given ? at : NULL;
        w.nested_offset = 0.25f;
        listen("");
        uint64_t bytes = (uintptr_t)at;
        for (int i = 0; i < 8; i++) sprintf(heard.address + 2 * i, "%02x", (unsigned)(bytes >> 8 * i & 255));
        assert_ok(ctx, call(ctx, &w));
        trace_listen(NULL);
        if (strstr(heard.kernel, kernel) == NULL) fail_msg("%s instead of %s", heard.kernel, kernel);
        if (heard.with_address != given)
            fail_msg("%s: the address is in %d arguments", kernel, heard.with_address);
    }
}

static nbl_status dequantize_plain(nbl_context *ctx, const nbl_weight *w)
{
    return nbl_dequantize(ctx, w, 0, OUT, NBL_DTYPE_BF16, false, calls_scratch());
}

static nbl_status dequantize_unaligned(nbl_context *ctx, const nbl_weight *w)
{
    return nbl_dequantize(ctx, w, 0, OUT, NBL_DTYPE_BF16, false, calls_scratch() + 2);
}

static nbl_status dequantize_transposed(nbl_context *ctx, const nbl_weight *w)
{
    return nbl_dequantize(ctx, w, 0, OUT, NBL_DTYPE_F16, true, calls_scratch());
}

/* A few rows of x, without adapter. */
static nbl_status some_rows(nbl_context *ctx, const nbl_weight *w, nbl_dtype dtype, int64_t rows,
                            int64_t columns)
{
    nbl_linear a = *calls_layer();
    a.lora_a = a.lora_b = (nbl_tensor){0};
    a.dtype = a.x.dtype = a.y.dtype = dtype;
    a.x.shape[0] = a.y.shape[0] = rows;
    a.w = *w;
    a.x.shape[1] = a.w.shape[1] = columns;
    return calls_linear(ctx, &a, false, calls_scratch());
}

static nbl_status one_row(nbl_context *ctx, const nbl_weight *w)
{
    return some_rows(ctx, w, NBL_DTYPE_BF16, 1, IN);
}

static nbl_status three_rows(nbl_context *ctx, const nbl_weight *w)
{
    return some_rows(ctx, w, NBL_DTYPE_BF16, 3, IN);
}

static nbl_status three_rows_of_f32(nbl_context *ctx, const nbl_weight *w)
{
    return some_rows(ctx, w, NBL_DTYPE_F32, 3, IN);
}

static nbl_status ragged_rows(nbl_context *ctx, const nbl_weight *w)
{
    return some_rows(ctx, w, NBL_DTYPE_BF16, 3, IN - 8);
}

static nbl_status norms(nbl_context *ctx, const nbl_weight *w)
{
    const nbl_linear *a = calls_layer();
    nbl_dora_norm call = {NBL_DTYPE_BF16, *w, a->lora_a, a->lora_b, 2, {0}, {0}, {0}};
    call.norm = nbl_vector(NBL_DTYPE_F32, OUT, calls_scratch());
    return nbl_dora_norm_forward(ctx, &call, NULL, 0);
}

static void kernels_get_the_address_of_the_nested_offset(void **state)
{
    (void)state;
    nbl_context *ctx = borrowing(NULL, NULL);
    expect_offset(ctx, "dequantize_tiles", dequantize_plain);
    expect_offset(ctx, "dequantize_any", dequantize_unaligned);
    expect_offset(ctx, "dequantize_transposed", dequantize_transposed);
    expect_offset(ctx, "gemv_one", one_row);
    expect_offset(ctx, "gemv_ring", three_rows);
    expect_offset(ctx, "gemv_ring_f32", three_rows_of_f32);
    expect_offset(ctx, "gemv_plain", ragged_rows);
    expect_offset(ctx, "norms", norms);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_workspace_of_libraries_is_the_end_of_the_scratch),
        cmocka_unit_test(the_first_kernel_of_a_call_waits_for_the_stream),
        cmocka_unit_test(a_fault_fails_the_next_call_once),
        cmocka_unit_test(forward_leaves_masks_and_t_for_backward),
        cmocka_unit_test(kernels_get_the_address_of_the_nested_offset),
    };
    return cmocka_run_group_tests(tests, calls_setup, calls_teardown);
}
