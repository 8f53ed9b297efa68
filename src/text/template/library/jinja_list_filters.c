/* jinja_list_filters.c - filters of sequences that compute their result at once: sort, groupby,
 * first, last, sum, join and others.
 *
 * An attribute path (jinja_path.h) selects the part of an item that counts:
 * users|sort(attribute='age'). A key is computed once per item, before the sorting. */
#include "text/template/runtime/jinja_path.h"

/* ---- attributes by path: "a.b.0" ---- */

/* Adds one part of a path. Digits are an index: "a.0" is item.a[0]. */
static nbl_status add_part(tpl_vm *vm, tpl_items *parts, const char *begin, const char *end)
{
    tpl_value part;
    bool digits = end > begin, good;
    NBL_TRY(nbl__tpl_string(vm, begin, (size_t)(end - begin), &part));
    for (const char *s = begin; s < end; s++) digits &= *s >= '0' && *s <= '9';
    if (digits) NBL_TRY(nbl__tpl_parse_int(vm, part.string, 10, &part, &good));
    return nbl__tpl_push(vm, parts, part);
}

/* Splits "a.b.0" at its dots. A key that is no text, such as 0, is a path of one part. */
nbl_status nbl__tpl_make_path(tpl_vm *vm, tpl_value attribute, bool fold, tpl_path *p)
{
    tpl_items parts = {0};
    *p = (tpl_path){.fallback = tpl_missing(), .fold = fold};
    if (attribute.type == TPL_STRING) {
        const char *at = attribute.string->bytes, *end = at + attribute.string->size;
        for (const char *dot;; at = dot + 1) {
            for (dot = at; dot < end && *dot != '.';) dot++;
            NBL_TRY(add_part(vm, &parts, at, dot));
            if (dot == end) break;
        }
    } else if (attribute.type != TPL_MISSING && attribute.type != TPL_NONE) {
        NBL_TRY(nbl__tpl_push(vm, &parts, attribute));
    }
    p->parts = parts.items;
    p->count = parts.count;
    return NBL_OK;
}

/* Follows the path with item['a'], which also finds attributes. After an undefined part the
 * fallback is used for the rest of the path. */
nbl_status nbl__tpl_follow(tpl_vm *vm, const tpl_path *p, tpl_value item, tpl_value *result)
{
    for (int64_t i = 0; i < p->count; i++) {
        NBL_TRY(nbl__tpl_work(vm, 1));
        NBL_TRY(nbl__tpl_getitem(vm, item, p->parts[i], &item));
        if (item.type == TPL_UNDEFINED && p->fallback.type != TPL_MISSING) item = p->fallback;
    }
    if (p->fold && item.type == TPL_STRING) NBL_TRY(nbl__tpl_change_case(vm, CASE_LOWER, item, &item));
    *result = item;
    return NBL_OK;
}

/* ---- sorting ---- */

/* Merge sort: stable. The comparison may fail. */
static nbl_status merge_sort(tpl_vm *vm, const tpl_value *keys, int64_t *order, int64_t *spare, int64_t count,
                             bool reverse)
{
    if (count < 2) return NBL_OK;
    int64_t half = count / 2, i = 0, k = half, at = 0;
    NBL_TRY(merge_sort(vm, keys, order, spare, half, reverse));
    NBL_TRY(merge_sort(vm, keys, order + half, spare, count - half, reverse));
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)count));
    while (i < half && k < count) {
        bool later; /* the right item comes first */
        if (reverse) NBL_TRY(nbl__tpl_compare(vm, TPL_LT, keys[order[i]], keys[order[k]], &later));
        else NBL_TRY(nbl__tpl_compare(vm, TPL_LT, keys[order[k]], keys[order[i]], &later));
        spare[at++] = later ? order[k++] : order[i++];
    }
    while (i < half) spare[at++] = order[i++];
    while (k < count) spare[at++] = order[k++];
    memcpy(order, spare, (size_t)count * sizeof *order);
    return NBL_OK;
}

/* Sorts indices (`order`), then moves items and keys. So a comparison reads keys only. */
nbl_status nbl__tpl_sort(tpl_vm *vm, tpl_value *items, tpl_value *keys, int64_t count, bool reverse)
{
    int64_t *order, *spare;
    tpl_value *sorted, *sorted_keys;
    NBL_TRY(TPL_NEW(vm, order, count));
    NBL_TRY(TPL_NEW(vm, spare, count));
    NBL_TRY(TPL_NEW(vm, sorted, count));
    NBL_TRY(TPL_NEW(vm, sorted_keys, count));
    for (int64_t i = 0; i < count; i++) order[i] = i;
    NBL_TRY(merge_sort(vm, keys, order, spare, count, reverse));
    for (int64_t i = 0; i < count; i++) sorted[i] = items[order[i]], sorted_keys[i] = keys[order[i]];
    if (count) memcpy(items, sorted, (size_t)count * sizeof *items);
    if (count) memcpy(keys, sorted_keys, (size_t)count * sizeof *keys);
    return NBL_OK;
}

/* x|sort(attribute='a,b'): the key of an item is the list of its parts, compared from the first
 * on. */
static nbl_status filter_sort(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[3], *keys;
    bool reverse = false, sensitive = false;
    tpl_items items = {0};
    tpl_path paths[16];
    int count = 0;
    NBL_TRY(nbl__tpl_bind(vm, "sort", args, "reverse case_sensitive attribute", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[0], &reverse));
    NBL_TRY(nbl__tpl_want_truth(vm, a[1], &sensitive));
    if (a[2].type == TPL_STRING) { /* several attributes, separated by commas */
        const char *at = a[2].string->bytes, *end = at + a[2].string->size;
        for (const char *comma;; at = comma + 1) {
            tpl_value one;
            for (comma = at; comma < end && *comma != ',';) comma++;
            if (count == 16) return nbl__tpl_refuse(vm, "sorting by more than 16 attributes");
            NBL_TRY(nbl__tpl_string(vm, at, (size_t)(comma - at), &one));
            NBL_TRY(nbl__tpl_make_path(vm, one, !sensitive, &paths[count++]));
            if (comma == end) break;
        }
    } else {
        NBL_TRY(nbl__tpl_make_path(vm, a[2], !sensitive, &paths[count++]));
    }
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    NBL_TRY(TPL_NEW(vm, keys, items.count));
    for (int64_t i = 0; i < items.count; i++) {
        tpl_value *parts;
        NBL_TRY(nbl__tpl_list(vm, TPL_LIST, count, &keys[i], &parts));
        for (int k = 0; k < count; k++) NBL_TRY(nbl__tpl_follow(vm, &paths[k], items.items[i], &parts[k]));
    }
    NBL_TRY(nbl__tpl_sort(vm, items.items, keys, items.count, reverse));
    return nbl__tpl_finish(vm, &items, TPL_LIST, result);
}

/* d|dictsort: the pairs of a dictionary, sorted by key or by value. */
static nbl_status filter_dictsort(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[3], *keys;
    bool sensitive = false, reverse = false, by_value = false;
    tpl_items items = {0};
    tpl_path fold = {.fallback = tpl_missing()};
    NBL_TRY(nbl__tpl_bind(vm, "dictsort", args, "case_sensitive by reverse", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[0], &sensitive));
    NBL_TRY(nbl__tpl_want_truth(vm, a[2], &reverse));
    if (a[1].type != TPL_MISSING) {
        by_value = a[1].type == TPL_STRING && tpl_same(a[1].string, "value");
        if (!by_value && !(a[1].type == TPL_STRING && tpl_same(a[1].string, "key")))
            return nbl__tpl_raise(vm, "You can only sort by either \"key\" or \"value\"");
    }
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type != TPL_DICT)
        return nbl__tpl_raise(vm, "AttributeError: '%s' object has no attribute 'items'",
                              nbl__tpl_type_name(v));
    fold.fold = !sensitive;
    NBL_TRY(TPL_NEW(vm, keys, v.dict->count));
    for (int64_t i = 0; i < v.dict->count; i++) {
        tpl_value pair;
        const tpl_entry *entry = &v.dict->entries[i];
        NBL_TRY(nbl__tpl_pair(vm, entry->key, entry->value, &pair));
        NBL_TRY(nbl__tpl_push(vm, &items, pair));
        NBL_TRY(nbl__tpl_follow(vm, &fold, by_value ? entry->value : entry->key, &keys[i]));
    }
    NBL_TRY(nbl__tpl_sort(vm, items.items, keys, items.count, reverse));
    return nbl__tpl_finish(vm, &items, TPL_LIST, result);
}

/* x|min and x|max: the first of several equal items. */
static nbl_status extreme(tpl_vm *vm, tpl_value v, const tpl_args *args, bool largest, tpl_value *result)
{
    tpl_value a[2], key, best_key = tpl_none();
    bool sensitive = false, better;
    tpl_items items = {0};
    tpl_path p;
    NBL_TRY(nbl__tpl_bind(vm, largest ? "max" : "min", args, "case_sensitive attribute", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[0], &sensitive));
    NBL_TRY(nbl__tpl_make_path(vm, a[1], !sensitive, &p));
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    if (items.count == 0)
        return nbl__tpl_undefined(vm, "No aggregated item, sequence was empty.", NULL, tpl_none(), result);
    for (int64_t i = 0; i < items.count; i++) {
        NBL_TRY(nbl__tpl_follow(vm, &p, items.items[i], &key));
        better = i == 0;
        if (i) NBL_TRY(nbl__tpl_compare(vm, largest ? TPL_GT : TPL_LT, key, best_key, &better));
        if (better) best_key = key, *result = items.items[i];
    }
    return NBL_OK;
}

static nbl_status filter_min(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return extreme(vm, v, args, false, result);
}

static nbl_status filter_max(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return extreme(vm, v, args, true, result);
}

/* x|groupby('a'): sorts by the attribute, then makes a pair (value, items) of each run of equal
 * keys. The pair also has the attributes grouper and list. Keys are compared without case; the
 * value of a group is that of its first item, unchanged. */
static nbl_status filter_groupby(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[3], *keys;
    bool sensitive = false, same;
    tpl_items items = {0}, groups = {0};
    tpl_path p, real;
    NBL_TRY(nbl__tpl_bind(vm, "groupby", args, "attribute default case_sensitive", 1, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[2], &sensitive));
    NBL_TRY(nbl__tpl_make_path(vm, a[0], !sensitive, &p));
    if (a[1].type != TPL_NONE) p.fallback = a[1];
    real = p;
    real.fold = false;
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    NBL_TRY(TPL_NEW(vm, keys, items.count));
    for (int64_t i = 0; i < items.count; i++) NBL_TRY(nbl__tpl_follow(vm, &p, items.items[i], &keys[i]));
    NBL_TRY(nbl__tpl_sort(vm, items.items, keys, items.count, false));
    for (int64_t i = 0; i < items.count;) {
        tpl_items members = {0};
        tpl_value key, list, group;
        int64_t first = i;
        for (same = true; i < items.count; i++) {
            NBL_TRY(nbl__tpl_equal(vm, keys[i], keys[first], &same));
            if (!same) break;
            NBL_TRY(nbl__tpl_push(vm, &members, items.items[i]));
        }
        if (i == first)
            NBL_TRY(nbl__tpl_push(vm, &members,
                                  items.items[i++])); /* NaN is not equal to itself: a group of one */
        NBL_TRY(nbl__tpl_follow(vm, sensitive ? &p : &real, items.items[first], &key));
        NBL_TRY(nbl__tpl_finish(vm, &members, TPL_LIST, &list));
        NBL_TRY(nbl__tpl_pair(vm, key, list, &group));
        /* nbl__tpl_pair made a plain tuple: copy it with the mark */
        tpl_list *named;
        NBL_TRY(TPL_NEW(vm, named, 1));
        *named = *group.list;
        named->group = true;
        group.list = named;
        NBL_TRY(nbl__tpl_push(vm, &groups, group));
    }
    return nbl__tpl_finish(vm, &groups, TPL_LIST, result);
}

/* ---- ends, sums, joins ---- */

/* x|first: only the first item is computed. An empty x gives an undefined value. */
static nbl_status filter_first(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_iterator *iterator;
    bool more;
    NBL_TRY(nbl__tpl_bind(vm, "first", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_iterate(vm, v, &iterator));
    NBL_TRY(nbl__tpl_next(vm, iterator, result, &more));
    if (more) return NBL_OK;
    return nbl__tpl_undefined(vm, "No first item, sequence was empty.", NULL, tpl_none(), result);
}

/* The last item is the first one in reverse, so an iterator has none. */
static nbl_status filter_last(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value reversed;
    bool reversible, more;
    NBL_TRY(nbl__tpl_bind(vm, "last", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_reversed(vm, v, &reversed, &reversible));
    if (!reversible)
        return nbl__tpl_raise(vm, "TypeError: '%s' object is not reversible", nbl__tpl_type_name(v));
    NBL_TRY(nbl__tpl_next(vm, reversed.iterator, result, &more));
    if (more) return NBL_OK;
    return nbl__tpl_undefined(vm, "No last item, sequence was empty.", NULL, tpl_none(), result);
}

/* x|reverse: a text becomes a text, sequences an iterator, other iterables a list. */
static nbl_status filter_reverse(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    bool reversible;
    tpl_items items = {0};
    NBL_TRY(nbl__tpl_bind(vm, "reverse", args, "", 0, NULL));
    if (v.type == TPL_STRING) {
        tpl_value parts[3] = {tpl_none(), tpl_none(), tpl_int(-1)};
        return nbl__tpl_slice(vm, v, parts, result);
    }
    NBL_TRY(nbl__tpl_reversed(vm, v, result, &reversible));
    if (reversible) return NBL_OK;
    if (!nbl__tpl_is_iterable(v)) return nbl__tpl_raise(vm, "argument must be iterable");
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    for (int64_t i = 0, k = items.count - 1; i < k; i++, k--) {
        tpl_value swap = items.items[i];
        items.items[i] = items.items[k];
        items.items[k] = swap;
    }
    return nbl__tpl_finish(vm, &items, TPL_LIST, result);
}

/* x|list; the characters of a text are its items. */
static nbl_status filter_list(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_items items = {0};
    NBL_TRY(nbl__tpl_bind(vm, "list", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    return nbl__tpl_finish(vm, &items, TPL_LIST, result);
}

/* x|sum(attribute, start): start + item + item …, so `start` decides the type. */
static nbl_status filter_sum(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2], item;
    tpl_items items = {0};
    tpl_path p;
    NBL_TRY(nbl__tpl_bind(vm, "sum", args, "attribute start", 0, a));
    NBL_TRY(nbl__tpl_make_path(vm, a[0], false, &p));
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    *result = a[1].type == TPL_MISSING ? tpl_int(0) : a[1];
    if (result->type == TPL_STRING)
        return nbl__tpl_raise(vm, "TypeError: sum() can't sum strings [use ''.join(seq) instead]");
    for (int64_t i = 0; i < items.count; i++) {
        NBL_TRY(nbl__tpl_follow(vm, &p, items.items[i], &item));
        NBL_TRY(nbl__tpl_binary(vm, OP_ADD, *result, item, result));
    }
    return NBL_OK;
}

/* x|join(separator, attribute). Under autoescape, if one item is safe HTML, all others and the
 * separator are escaped. */
static nbl_status filter_join(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2], list, separator;
    tpl_items items = {0};
    tpl_path p;
    bool markup = false;
    NBL_TRY(nbl__tpl_bind(vm, "join", args, "d attribute", 0, a));
    NBL_TRY(nbl__tpl_make_path(vm, a[1], false, &p));
    if (a[0].type == TPL_MISSING) NBL_TRY(nbl__tpl_cstring(vm, "", &a[0]));
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    for (int64_t i = 0; i < items.count; i++) {
        NBL_TRY(nbl__tpl_follow(vm, &p, items.items[i], &items.items[i]));
        markup |= vm->autoescape && items.items[i].type == TPL_STRING && items.items[i].markup;
        if (vm->autoescape) NBL_TRY(nbl__tpl_soft_str(vm, items.items[i], &items.items[i]));
        else NBL_TRY(nbl__tpl_str(vm, items.items[i], &items.items[i]));
    }
    if (!vm->autoescape) NBL_TRY(nbl__tpl_str(vm, a[0], &separator));
    else if (markup) NBL_TRY(nbl__tpl_escape(vm, a[0], &separator));
    else NBL_TRY(nbl__tpl_soft_str(vm, a[0], &separator));
    NBL_TRY(nbl__tpl_finish(vm, &items, TPL_LIST, &list));
    return nbl__tpl_join(vm, separator, list, result);
}

const tpl_filter nbl__tpl_list_filters[] = {
    {"join", filter_join}, {"list", filter_list},         {"first", filter_first},     {"last", filter_last},
    {"sort", filter_sort}, {"dictsort", filter_dictsort}, {"min", filter_min},         {"max", filter_max},
    {"sum", filter_sum},   {"reverse", filter_reverse},   {"groupby", filter_groupby}, {NULL, NULL},
};
