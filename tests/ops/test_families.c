/* test_families.c - what every family of ops/families.h must say about itself (ops.h). Graphs and
 * autodiff follow the slots and attributes blindly. */
#include "support.h"

#include "ops/families.h"

static void check_row(const nbl__op *op)
{
    const nbl__impl *const *last = op->impls;
    while (last[1]) last++;
    assert_int_equal((*last)->needs, NBL_ISA_SCALAR);
    assert_non_null(strstr((*last)->name, "_ref"));
}

static void every_operator_is_found_by_its_name_and_ends_in_a_reference(void **state)
{
    (void)state;
    int count = 0;
    for (; nbl__family_at(count); count++) {
        const nbl__family *family = nbl__family_at(count);
        assert_ptr_equal(nbl__family_find(family->name), family);
        check_row(&family->forward);
        if (family->backward.name) check_row(&family->backward);
    }
    assert_true(count >= 1);
    assert_null(nbl__family_find("no_such_op"));
}

static const nbl__attr *find_attr(const nbl__family *family, const char *name)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++)
        if (strcmp(attr->name, name) == 0) return attr;
    return NULL;
}

static void check_slot(const nbl__family *family, const nbl__slot *slot)
{
    assert_ptr_equal(&family->slots[nbl__slot_at(family, slot->offset)], slot);
    if (slot->of) assert_non_null(nbl__slot_find(family, slot->of));
    if (slot->also) assert_non_null(nbl__slot_find(family, slot->also));
    if (slot->instead) assert_non_null(nbl__slot_find(family, slot->instead));
    if (slot->when) {
        const nbl__attr *flag = find_attr(family, slot->when);
        assert_non_null(flag);
        assert_int_equal(flag->type, NBL_ATTR_FLAG);
    }
}

static void slots_name_slots_and_flags_of_their_family(void **state)
{
    (void)state;
    for (int i = 0; nbl__family_at(i); i++) {
        const nbl__family *family = nbl__family_at(i);
        for (const nbl__slot *slot = family->slots; slot->name; slot++) check_slot(family, slot);
        assert_int_equal(nbl__slot_at(family, family->size), -1);
    }
}

/* The attributes that graph/ finds by name have one type in all families. */
static void attributes_that_the_graph_sets_have_one_type(void **state)
{
    static const struct {
        const char *name;
        nbl__attr_type type;
    } known[] = {{"accumulate", NBL_ATTR_FLAG},
                 {"train_w", NBL_ATTR_FLAG},
                 {"early", NBL_ATTR_FLAG},
                 {"dropout", NBL_ATTR_FLOAT},
                 {"seed_index", NBL_ATTR_INT}};
    (void)state;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        int found = 0;
        for (int i = 0; nbl__family_at(i); i++) {
            const nbl__attr *attr = find_attr(nbl__family_at(i), known[k].name);
            if (attr == NULL) continue;
            assert_int_equal(attr->type, known[k].type);
            found++;
        }
        assert_true(found > 0);
    }
    /* Graphs bind seeds to a family with dropout, and tell it which of them is its layer's. */
    for (int i = 0; nbl__family_at(i); i++) {
        const nbl__family *family = nbl__family_at(i);
        bool seeds = nbl__slot_find(family, "seeds") != NULL;
        assert_int_equal(seeds, find_attr(family, "dropout") != NULL);
        assert_int_equal(seeds, find_attr(family, "seed_index") != NULL);
    }
}

/* A family without a cost would look free to plans. */
static void every_family_states_what_it_costs(void **state)
{
    (void)state;
    for (int i = 0; nbl__family_at(i); i++) {
        const nbl__cost *cost = &nbl__family_at(i)->cost;
        int stated = (cost->flops != NULL) + (cost->forward > 0) + cost->moves;
        if (stated != 1) fail_msg("%s states %d costs", nbl__family_at(i)->name, stated);
    }
}

/* The gradient of an input that may lie in wider rows may do so, too: autodiff relies on it. */
static void inputs_and_their_gradients_take_strides_alike(void **state)
{
    (void)state;
    for (int i = 0; nbl__family_at(i); i++) {
        const nbl__family *family = nbl__family_at(i);
        for (const nbl__slot *slot = family->slots; slot->name; slot++) {
            if (slot->role != NBL_ROLE_GRADIENT && slot->role != NBL_ROLE_COTANGENT) continue;
            const nbl__slot *of = nbl__slot_find(family, slot->of);
            if (nbl__slot_is_weight(of) || of->strided == 0) continue;
            assert_int_equal(slot->strided, of->strided);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_is_found_by_its_name_and_ends_in_a_reference),
        cmocka_unit_test(slots_name_slots_and_flags_of_their_family),
        cmocka_unit_test(attributes_that_the_graph_sets_have_one_type),
        cmocka_unit_test(every_family_states_what_it_costs),
        cmocka_unit_test(inputs_and_their_gradients_take_strides_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
