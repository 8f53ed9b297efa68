/* case_routing.c - how the tokens of a case are routed to experts.
 *
 * The text names E experts, J of them per token, and T tokens. Each token draws its J distinct experts at random, from
 * the seed alone; with routed-one all tokens go to experts E - J … E - 1, and the others have no rows. The slots
 * offsets, pairs and rows are those that expert_order makes of the slot experts. */
#include <stdlib.h>

#include "case.h"
#include "ops/families.h"
#include "ops/moe/expert_order.h"

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
        int64_t other = i + (int64_t)(case_uniform(seed, "experts", token * top_k + i) *
                                      (double)(experts - i));
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
