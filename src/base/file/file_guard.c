/* file_guard.c - the SIGBUS handler and its table of mappings. See file_guard.h.
 *
 * Besides lock-free atomics the handler calls mmap, and for other addresses the previous
 * handler. */
#define _GNU_SOURCE
#include "base/file/file_guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

/* The handler reads slots while other threads claim and release them. A slot matches only if
 * begin <= address < end. `end` is set last and cleared first, and `begin` is read again after
 * `end`, so both belong to the same mapping. */
typedef struct slot {
    atomic_uintptr_t begin, end, fault; /* begin 0: free; fault 0: none */
} slot;

enum { SLOTS = 4096 };
static slot slots[SLOTS];
static atomic_int installed, hits;
static uintptr_t page;
static struct sigaction before;

/* The address is in no guarded mapping: calls the handler that was installed before. */
static void pass_on(int number, siginfo_t *info, void *state)
{
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, state);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);
    else signal(number, SIG_DFL); /* the instruction runs again, and ends the process */
}

static void on_bus(int number, siginfo_t *info, void *state)
{
    int kept = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &slots[i];
        uintptr_t begin = atomic_load(&s->begin), end = atomic_load(&s->end);
        if (begin == 0 || at < begin || at >= end || atomic_load(&s->begin) != begin) continue;
        uintptr_t first = at / page * page, none = 0;
        void *zeros = mmap((void *)first, (end - first + page - 1) / page * page, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeros == MAP_FAILED) break;
        if (atomic_compare_exchange_strong(&s->fault, &none, at)) atomic_fetch_add(&hits, 1);
        errno = kept;
        return;
    }
    errno = kept;
    pass_on(number, info, state);
}

nbl_status nbl_guard_mapped_files(void)
{
    int none = 0;
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!atomic_compare_exchange_strong(&installed, &none, 1)) return NBL_OK;
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &before) == 0) return NBL_OK;
    atomic_store(&installed, 0);
    return NBL_ERROR_IO;
}

int nbl__guard_open(const void *data, uint64_t size)
{
    if (!atomic_load(&installed)) return -1;
    for (int i = 0; i < SLOTS; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&slots[i].begin, &none, (uintptr_t)data)) continue;
        atomic_store(&slots[i].fault, 0);
        atomic_store(&slots[i].end, (uintptr_t)data + size);
        return i;
    }
    return -1;
}

void nbl__guard_close(int number)
{
    if (number < 0) return;
    atomic_store(&slots[number].end, 0);
    atomic_store(&slots[number].begin, 0);
}

bool nbl__guard_was_hit(int number, uint64_t *offset)
{
    uintptr_t fault = number < 0 ? 0 : atomic_load(&slots[number].fault);
    if (fault) *offset = fault - atomic_load(&slots[number].begin);
    return fault != 0;
}

int nbl__guard_hits(void)
{
    return atomic_load(&hits);
}
