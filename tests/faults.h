/* faults.h - a job of the library with one allocation or one write after the other failing. */
#ifndef NBL_TEST_FAULTS_H
#define NBL_TEST_FAULTS_H

#include "support.h"

#include "base/alloc.h"
#include "base/base.h"

typedef nbl_status (*faulty_job)(nbl_context *ctx, int number);

/* Every failure is told as NBL_ERROR_MEMORY, leaks nothing and leaves `entries` in the folder; the first run without
 * one succeeds. The context's own first allocation is not at stake. */
static inline void each_allocation_fails(faulty_job job, int number, const char *folder, int entries)
{
    for (int64_t n = 2;; n++) {
        nbl__counter counter = {.fail_at = n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
        nbl_status status = job(ctx, number);
        bool done = counter.calls < n;
        if (done) assert_ok(ctx, status);
        else assert_int_equal(status, NBL_ERROR_MEMORY);
        nbl_context_destroy(ctx);
        assert_int_equal(counter.live, 0);
        if (done) return;
        assert_int_equal(entries_in(folder), entries);
    }
}

/* The same for writes and NBL_ERROR_IO, on one thread and on two; there are more than `least` of them. */
static inline void each_write_fails(faulty_job job, int number, const char *folder, int entries, int64_t min)
{
    for (int64_t n = 1;; n++) {
        nbl_context *ctx = new_context_with(n % 2 ? 1 : 2);
        nbl__inject_write(ctx, n);
        nbl_status status = job(ctx, number);
        bool done = nbl__write_count(ctx) < n;
        if (done) assert_ok(ctx, status);
        else assert_int_equal(status, NBL_ERROR_IO);
        nbl_context_destroy(ctx);
        if (done) {
            assert_true(n > min);
            return;
        }
        assert_int_equal(entries_in(folder), entries);
    }
}

#endif
