/* test_ptx.c - the interpreter of kernels: what instructions mean, how threads part and meet, and what is an error. */
#include "support.h"

#include "ptx/ptx.h"

enum { WORDS = 1024 };
#define MEMORY 0x200000000000u

static uint32_t memory[WORDS];
static char why[PTX_WHY];

static bool find_memory(uint64_t address, ptx_range *range)
{
    if (address - MEMORY >= sizeof memory) return false;
    *range = (ptx_range){MEMORY, sizeof memory, (char *)memory};
    return true;
}

/* Runs a kernel with this body: %rd1 is the address of the memory, %r1 the thread, %rd3 the address of its word. */
static bool run_shaped(const char *before, const char *body, unsigned blocks, unsigned threads,
                       size_t dynamic)
{
    static char text[16384];
    const uint64_t address = MEMORY;
    void *const arguments[] = {(void *)(uintptr_t)&address};
    const ptx_shape shape = {{blocks, 1, 1}, {threads, 1, 1}, dynamic};
    snprintf(
        text, sizeof text,
        ".version 9.0\n.target sm_80\n.address_size 64\n%s\n.visible .entry k(\n.param .u64 k_param_0\n)\n{\n"
        ".reg .pred %%p<16>;\n.reg .b16 %%rs<16>;\n.reg .b32 %%r<64>;\n.reg .f32 %%f<32>;\n.reg .b64 "
        "%%rd<32>;\n"
        ".reg .f64 %%fd<8>;\n"
        "ld.param.u64 %%rd1, [k_param_0];\ncvta.to.global.u64 %%rd1, %%rd1;\nmov.u32 %%r1, %%tid.x;\n"
        "mul.wide.u32 %%rd2, %%r1, 4;\nadd.s64 %%rd3, %%rd1, %%rd2;\n%s\nret;\n}\n",
        before, body);
    why[0] = '\0';
    ptx_module *m = ptx_module_read(text);
    assert_non_null(m);
    ptx_launch *launch = ptx_launch_new(m, "k", &shape, arguments, why);
    bool good = launch && ptx_launch_run(launch, find_memory, why);
    ptx_launch_free(launch);
    ptx_module_close(m);
    return good;
}

static void run(const char *body, unsigned threads)
{
    bool good = run_shaped("", body, 1, threads, 0);
    if (!good) print_error("%s\n", why);
    assert_true(good);
}

static void refused(const char *body, unsigned threads, const char *reason)
{
    assert_false(run_shaped("", body, 1, threads, 0));
    if (strstr(why, reason) == NULL) print_error("%s\n", why);
    assert_non_null(strstr(why, reason));
}

static void an_instruction_gives_the_bits_of_the_device(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t a, b, c, expected;
    } all[] = {
        {"add.s32 %r5, %r2, %r3", 0x7fffffff, 1, 0, 0x80000000},
        {"sub.s32 %r5, %r2, -3", 1, 0, 0, 4},
        {"mul.hi.s32 %r5, %r2, %r3", 0x80000000, 2, 0, 0xffffffff},
        {"mul.hi.u32 %r5, %r2, %r3", 0x80000000, 2, 0, 1},
        {"mad.lo.s32 %r5, %r2, %r3, %r4", 7, 6, 0xffffffff, 41},
        {"div.s32 %r5, %r2, %r3", 0xfffffff9, 2, 0, 0xfffffffd},
        {"rem.s32 %r5, %r2, %r3", 0xfffffff9, 2, 0, 0xffffffff},
        {"shl.b32 %r5, %r2, %r3", 1, 32, 0, 0},
        {"shr.s32 %r5, %r2, %r3", 0x80000000, 40, 0, 0xffffffff},
        {"shr.u32 %r5, %r2, %r3", 0x80000000, 31, 0, 1},
        {"min.s32 %r5, %r2, %r3", 0xffffffff, 1, 0, 0xffffffff},
        {"min.u32 %r5, %r2, %r3", 0xffffffff, 1, 0, 1},
        {"popc.b32 %r5, %r2", 0xf0f0, 0, 0, 8},
        {"clz.b32 %r5, %r2", 0, 0, 0, 32},
        {"bfe.u32 %r5, %r2, %r3, %r4", 0xabcd1234, 8, 12, 0xd12},
        {"bfe.s32 %r5, %r2, %r3, %r4", 0xabcd1234, 20, 12, 0xfffffabc},
        {"bfi.b32 %r5, %r2, %r3, 8, 4", 0xf, 0xffff0000, 0, 0xffff0f00},
        {"prmt.b32 %r5, %r2, %r3, 0x7610", 0x33221100, 0x77665544, 0, 0x77661100},
        {"prmt.b32 %r5, %r2, %r3, 0x8888", 0x00000080, 0, 0, 0xffffffff},
        {"lop3.b32 %r5, %r2, %r3, %r4, 0xca", 0xff00ff00, 0x12345678, 0x9abcdef0, 0x12bc56f0},
        {"shf.l.wrap.b32 %r5, %r2, %r3, %r4", 0x80000000, 1, 1, 3},
        {"dp4a.s32.s32 %r5, %r2, %r3, %r4", 0x01ff0203, 0x01010102, 10, 18},
        {"fma.rn.f32 %r5, %r2, %r3, %r4", 0x3f800001, 0x3f800001, 0xbf800002, 0x28800000},
        {"add.rn.f32 %r5, %r2, %r3", 0x7f800000, 0xff800000, 0, 0x7fffffff},
        {"max.f32 %r5, %r2, %r3", 0x7fc00000, 0x3f800000, 0, 0x3f800000},
        {"max.f32 %r5, %r2, %r3", 0x80000000, 0, 0, 0},
        {"min.f32 %r5, %r2, %r3", 0, 0x80000000, 0, 0x80000000},
        {"copysign.f32 %r5, %r2, %r3", 0x80000000, 0x3f800000, 0, 0xbf800000},
        {"ex2.approx.f32 %r5, %r2", 0x40400000, 0, 0, 0x41000000},
        {"ex2.approx.f32 %r5, %r2", 0xc3150000, 0, 0, 1},
        {"ex2.approx.ftz.f32 %r5, %r2", 0xc3150000, 0, 0, 0},
        {"rcp.approx.ftz.f32 %r5, %r2", 1, 0, 0, 0x7f800000},
        {"sqrt.rn.f32 %r5, %r2", 0x40000000, 0, 0, 0x3fb504f3},
        {"cvt.rzi.s32.f32 %r5, %r2", 0xc02ccccd, 0, 0, 0xfffffffe},
        {"cvt.rni.s32.f32 %r5, %r2", 0x40200000, 0, 0, 2},
        {"cvt.rzi.s32.f32 %r5, %r2", 0x7fc00000, 0, 0, 0},
        {"cvt.sat.f32.f32 %r5, %r2", 0x7fc00000, 0, 0, 0},
        {"cvt.rn.f16x2.f32 %r5, %r2, %r3", 0x3f800000, 0xc0000000, 0, 0x3c00c000},
        {"cvt.rn.bf16x2.f32 %r5, %r2, %r3", 0x3f808000, 0x3f818000, 0, 0x3f803f82},
        {"cvt.rn.f16.f32 %rs1, %r2; cvt.u32.u16 %r5, %rs1", 0x477ff000, 0, 0, 0x7c00},
        {"cvt.rn.f16.f32 %rs1, %r2; cvt.u32.u16 %r5, %rs1", 0x33000001, 0, 0, 1},
        {"cvt.rn.f16.f32 %rs1, %r2; cvt.u32.u16 %r5, %rs1", 0x33000000, 0, 0, 0},
        {"cvt.rn.f16.f32 %rs1, %r2; cvt.u32.u16 %r5, %rs1", 0xffc00001, 0, 0, 0x7fff},
        {"cvt.u16.u32 %rs1, %r2; cvt.f32.f16 %r5, %rs1", 0x0001, 0, 0, 0x33800000},
        {"cvt.u16.u32 %rs1, %r2; cvt.f32.f16 %r5, %rs1", 0xfc00, 0, 0, 0xff800000},
        {"cvt.u16.u32 %rs1, %r2; cvt.s32.s16 %r5, %rs1", 0x18000, 0, 0, 0xffff8000},
        {"mov.b32 {%rs1, %rs2}, %r2; mov.b32 %r5, {%rs2, %rs1}", 0x11112222, 0, 0, 0x22221111},
        {"add.cc.u32 %r6, %r2, %r3; addc.u32 %r5, %r4, 0", 0xffffffff, 1, 7, 8},
        {"mad.lo.cc.u32 %r6, %r2, %r3, %r4; madc.hi.u32 %r5, %r2, %r3, 0", 0x80000000, 2, 0, 1},
        {"setp.ltu.f32 %p1, %r2, %r3; selp.u32 %r5, 1, 0, %p1", 0x7fc00000, 0, 0, 1},
        {"setp.ne.f32 %p1, %r2, %r3; selp.u32 %r5, 1, 0, %p1", 0x7fc00000, 0, 0, 0},
        {"setp.lt.s32 %p1, %r2, %r3; not.pred %p1, %p1; selp.u32 %r5, 1, 0, %p1", 0xffffffff, 0, 0, 0},
        {"cvt.f64.f32 %fd1, %r2; div.rn.f64 %fd1, %fd1, 0d4008000000000000; cvt.rn.f32.f64 %r5, %fd1",
         0x3f800000, 0, 0, 0x3eaaaaab},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char body[512];
        memory[100] = all[i].a, memory[101] = all[i].b, memory[102] = all[i].c, memory[0] = 0xdead;
        snprintf(body, sizeof body,
                 "ld.global.u32 %%r2, [%%rd1+400]; ld.global.u32 %%r3, [%%rd1+404]; ld.global.u32 %%r4, "
                 "[%%rd1+408]; "
                 "mov.u32 %%r5, 0; %s; st.global.u32 [%%rd3], %%r5;",
                 all[i].text);
        run(body, 1);
        if (memory[0] != all[i].expected) print_error("%s: %08x\n", all[i].text, memory[0]);
        assert_int_equal(memory[0], all[i].expected);
    }
}

static void lanes_part_and_meet_again(void **state)
{
    (void)state;
    /* Lane l goes l times around; then all of them add up what they counted. */
    run("mov.u32 %r2, 0;\n"
        "$loop: setp.ge.u32 %p1, %r2, %r1;\n@%p1 bra $done;\nadd.u32 %r2, %r2, 1;\nbra.uni $loop;\n"
        "$done: mov.u32 %r3, %r2;\n"
        "shfl.sync.bfly.b32 %r4|%p2, %r3, 16, 31, -1; add.u32 %r3, %r3, %r4;\n"
        "shfl.sync.bfly.b32 %r4|%p2, %r3, 8, 31, -1; add.u32 %r3, %r3, %r4;\n"
        "shfl.sync.bfly.b32 %r4|%p2, %r3, 4, 31, -1; add.u32 %r3, %r3, %r4;\n"
        "shfl.sync.bfly.b32 %r4|%p2, %r3, 2, 31, -1; add.u32 %r3, %r3, %r4;\n"
        "shfl.sync.bfly.b32 %r4|%p2, %r3, 1, 31, -1; add.u32 %r3, %r3, %r4;\n"
        "st.global.u32 [%rd3], %r3;",
        32);
    for (int i = 0; i < 32; i++) assert_int_equal(memory[i], 31 * 32 / 2);
    /* Halves of the warp exchange at the same instruction. */
    run("and.b32 %r2, %r1, 16; setp.eq.u32 %p1, %r2, 0; selp.b32 %r3, 0xffff, 0xffff0000, %p1;\n"
        "shfl.sync.idx.b32 %r4, %r1, 3, 0x100f, %r3; st.global.u32 [%rd3], %r4;",
        32);
    for (int i = 0; i < 32; i++) assert_int_equal(memory[i], i / 16 * 16 + 3);
    run("setp.lt.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r2, %p1, -1; st.global.u32 [%rd3], %r2;", 20);
    for (int i = 0; i < 20; i++) assert_int_equal(memory[i], 31);
}

static void threads_of_a_block_meet_in_shared_memory(void **state)
{
    (void)state;
    assert_true(run_shaped(".extern .shared .align 16 .b8 dynamic[];",
                           ".shared .align 4 .b8 unused[12];\nmov.u32 %r2, dynamic;\nshl.b32 %r3, %r1, 2;\n"
                           "add.s32 %r4, %r2, %r3;\nst.shared.u32 [%r4], %r1;\nbar.sync 0;\n"
                           "mov.u32 %r5, 252;\nsub.s32 %r5, %r5, %r3;\nadd.s32 %r5, %r2, %r5;\n"
                           "ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd3], %r6;",
                           1, 64, 256));
    for (int i = 0; i < 64; i++) assert_int_equal(memory[i], 63 - i);
    /* What nobody wrote is NaN. */
    run(".shared .align 4 .b8 some[128]; mov.u32 %r2, some; ld.shared.u32 %r3, [%r2+4]; st.global.u32 "
        "[%rd3], %r3;",
        1);
    assert_int_equal(memory[0], 0xffffffff);
    /* The first 32 threads have left before the others come. */
    run("setp.lt.u32 %p1, %r1, 32;\n@%p1 ret;\nbar.sync 0;\nst.global.u32 [%rd3], 5;", 64);
    assert_int_equal(memory[40], 5);
    run("setp.eq.u32 %p1, %r1, 40;\nbar.red.or.pred %p2, 0, %p1;\nselp.u32 %r2, 1, 0, %p2;\n"
        "st.global.u32 [%rd3], %r2;",
        64);
    assert_int_equal(memory[0], 1);
}

static void blocks_add_to_one_word(void **state)
{
    (void)state;
    memory[0] = 0;
    assert_true(run_shaped("", "red.global.add.u32 [%rd1], 1;", 3, 50, 0));
    assert_int_equal(memory[0], 150);
    run("atom.global.cas.b32 %r2, [%rd1], 150, 7; atom.global.max.s32 %r2, [%rd1], %r1;", 20);
    assert_int_equal(memory[0], 19);
}

static void a_copy_is_there_when_it_was_waited_for(void **state)
{
    (void)state;
    memory[500] = 77;
    run(".shared .align 16 .b8 to[16]; mov.u32 %r2, to; add.s64 %rd4, %rd1, 2000;\n"
        "cp.async.cg.shared.global [%r2], [%rd4], 16; cp.async.commit_group;\n"
        "ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd1], %r3;\n"
        "cp.async.wait_group 1; ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd1+4], %r3;\n"
        "cp.async.wait_group 0; ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd1+8], %r3;",
        1);
    assert_int_equal(memory[0], 0xffffffff);
    assert_int_equal(memory[1], 0xffffffff);
    assert_int_equal(memory[2], 77);
}

static void a_function_returns_to_where_it_was_called(void **state)
{
    (void)state;
    const char *function = ".func (.param .b32 back) twice(.param .b32 twice_param_0)\n{\n.reg .b32 %r<3>;\n"
                           ".reg .pred %p<2>;\nld.param.b32 %r1, [twice_param_0];\nsetp.eq.u32 %p1, %r1, 3;\n"
                           "@%p1 ret;\nadd.s32 %r2, %r1, %r1;\nst.param.b32 [back+0], %r2;\nret;\n}\n";
    const char *call = "{ .param .b32 param0; st.param.b32 [param0+0], %r1; .param .b32 retval0;\n"
                       "call.uni (retval0), twice, (param0); ld.param.b32 %r2, [retval0+0]; }\n";
    char body[2048];
    snprintf(body, sizeof body,
             "%s mov.u32 %%r5, %%r2; add.s32 %%r1, %%r1, 1; %s add.s32 %%r5, %%r5, %%r2; st.global.u32 "
             "[%%rd3], %%r5;",
             call, call);
    assert_true(run_shaped(function, body, 1, 2, 0));
    assert_int_equal(memory[0], 2);
    assert_int_equal(memory[1], 6);
}

static void what_a_kernel_may_not_do_is_named(void **state)
{
    (void)state;
    refused("ld.global.u32 %r2, [%rd3+4096];", 32,
            "thread 0,0,0: 4 bytes at 0x200000001000 lie in no allocation");
    refused("ld.global.v2.u32 {%r2, %r3}, [%rd1+4092];", 1, "is not a multiple of 8");
    refused("st.global.u32 [%rd3+4092], %r1;", 3, "thread 1,0,0: 4 bytes");
    refused("mov.u32 %r2, 0; ld.shared.u32 %r3, [%r2];", 1, "outside of shared memory");
    refused("setp.lt.u32 %p1, %r1, 32;\n@%p1 bar.sync 1, 64;", 64, "32 of 64 threads have come to barrier 1");
    refused("setp.lt.u32 %p1, %r1, 8;\n@%p1 shfl.sync.bfly.b32 %r2, %r1, 16, 31, 0xff;", 32, "takes no part");
    refused("setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $a;\nbra.uni $b;\n$a: shfl.sync.bfly.b32 %r2, %r1, 1, 31, "
            "-1;\nbra.uni $c;\n"
            "$b: bar.warp.sync -1;\n$c: mov.u32 %r2, 0;",
            32, "waits for ever");
    refused("wgmma.fence.sync.aligned;", 32, "is not known here, at instruction");
    refused("frobnicate.b32 %r2, %r1;", 1, "frobnicate.b32 %r2, %r1");
    refused("bra $nowhere;", 1, "no label $nowhere");
    refused("trap;", 1, "stops itself");
    /* It is an error where it runs, not where it stands. */
    run("setp.eq.u32 %p1, %r1, 99;\n@%p1 wgmma.fence.sync.aligned;", 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_instruction_gives_the_bits_of_the_device),
        cmocka_unit_test(lanes_part_and_meet_again),
        cmocka_unit_test(threads_of_a_block_meet_in_shared_memory),
        cmocka_unit_test(blocks_add_to_one_word),
        cmocka_unit_test(a_copy_is_there_when_it_was_waited_for),
        cmocka_unit_test(a_function_returns_to_where_it_was_called),
        cmocka_unit_test(what_a_kernel_may_not_do_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
