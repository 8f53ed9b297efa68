/* jinja_lazy_filters.c - the filters that return iterators: map, select, reject, unique, batch and
 * others.
 *
 * An item is computed when the iteration reaches it. So an error occurs as late as in Python, or
 * never: {{ [1]|map('nosuch') is defined }} is no error.
 *
 * Each filter makes an iterator with a `lazy` as its state:
 *
 *     make_lazy()   stores the arguments
 *     begin()       runs at the first item: reads the arguments, begins the iteration of the source
 *     next_lazy()   gives the next item; iterator->at is 1 after the end
 *
 * map and select take any arguments (*args in Python), so these are interpreted in begin(), not
 * before: in jinja2 the filters are generators, whose code runs when the first item is asked for. */
#include "text/template/runtime/jinja_path.h"

typedef enum lazy_kind { LAZY_MAP, LAZY_SELECT, LAZY_UNIQUE, LAZY_BATCH, LAZY_SLICE, LAZY_ITEMS } lazy_kind;

/* The state of one iterator. Which fields are used depends on the kind. */
typedef struct lazy {
    lazy_kind kind;
    tpl_args args;
    bool reject, by_attribute; /* select, reject, selectattr, rejectattr */
    tpl_path path;
    tpl_value fill; /* batch, slice: the value that fills the last group */
    tpl_value held; /* batch: an item that was taken before its row; MISSING: none */
    int64_t count;
    tpl_iterator *items; /* NULL: the iteration has not begun */
    tpl_value name;      /* name of the filter or test; MISSING: none */
    tpl_dict *seen;
    tpl_items all;
    int64_t at, offset;
} lazy;

/* Splits the arguments of select and reject ([test, arguments…]) and of selectattr and rejectattr
 * ([attribute, test, arguments…]). Without a test the truth of the value counts. */
static nbl_status begin_select(tpl_vm *vm, lazy *z)
{
    int64_t first = z->by_attribute;
    z->path = (tpl_path){.fallback = tpl_missing()};
    if (z->by_attribute && z->args.count == 0)
        return nbl__tpl_raise(vm, "Missing parameter for attribute name");
    if (z->by_attribute) NBL_TRY(nbl__tpl_make_path(vm, z->args.items[0], false, &z->path));
    z->name = z->args.count > first ? z->args.items[first] : tpl_missing();
    int64_t used = nbl__min_i64(z->args.count, first + 1);
    z->args.items += used;
    z->args.count -= used;
    return NBL_OK;
}

/* map('filter', arguments…), or map(attribute='a.b', default=x). */
static nbl_status begin_map(tpl_vm *vm, lazy *z)
{
    tpl_value a[2];
    static const tpl_string attribute = {"attribute", 9, 9};
    bool by_attribute = false;
    for (int64_t i = 0; i < z->args.keyword_count; i++) {
        const tpl_string *name = z->args.keywords[i].name.string;
        by_attribute |= name->size == attribute.size &&
                        memcmp(name->bytes, attribute.bytes, attribute.size) == 0;
    }
    z->name = tpl_missing();
    if (z->args.count == 0 && by_attribute) {
        NBL_TRY(nbl__tpl_bind(vm, "map", &z->args, "attribute default", 0, a));
        NBL_TRY(nbl__tpl_make_path(vm, a[0], false, &z->path));
        if (a[1].type != TPL_NONE) z->path.fallback = a[1];
        return NBL_OK;
    }
    if (z->args.count == 0) return nbl__tpl_raise(vm, "map requires a filter argument");
    z->name = z->args.items[0];
    z->args.items++;
    z->args.count--;
    return NBL_OK;
}

/* Filters and tests are named by a text; anything else is an unknown name. */
static nbl_status check_name(tpl_vm *vm, tpl_value name, const char *what)
{
    if (name.type == TPL_STRING) return NBL_OK;
    return nbl__tpl_raise(vm, "No %s named %s.", what, nbl__tpl_shown(vm, name));
}

/* A follow of an empty path gives the item itself, so select and selectattr share this code. */
/* True if an item is to be kept: its test, inverted for reject. */
static nbl_status passes(tpl_vm *vm, lazy *z, tpl_value item, bool *result)
{
    NBL_TRY(nbl__tpl_follow(vm, &z->path, item, &item));
    if (z->name.type == TPL_MISSING) {
        NBL_TRY(nbl__tpl_truth(vm, item, result));
    } else {
        NBL_TRY(check_name(vm, z->name, "test"));
        NBL_TRY(nbl__tpl_apply_test(vm, z->name.string, item, &z->args, result));
    }
    *result = *result != z->reject;
    return NBL_OK;
}

/* Takes up to `count` items as a list; the last list is filled up with `fill`. */
static nbl_status next_batch(tpl_vm *vm, lazy *z, tpl_value *item, bool *more)
{
    tpl_items row = {0};
    tpl_value one;
    if (z->at++ == 0 && z->count == 0) { /* jinja2 gives the empty row before it adds the first item */
        NBL_TRY(nbl__tpl_next(vm, z->items, &z->held, more));
        return *more ? nbl__tpl_finish(vm, &row, TPL_LIST, item) : NBL_OK;
    }
    if (z->held.type != TPL_MISSING) NBL_TRY(nbl__tpl_push(vm, &row, z->held));
    z->held = tpl_missing();
    while (*more && (z->count <= 0 ? true : row.count < z->count)) {
        NBL_TRY(nbl__tpl_next(vm, z->items, &one, more));
        if (!*more) break;
        NBL_TRY(nbl__tpl_push(vm, &row, one));
    }
    *more = row.count > 0;
    if (!*more) return NBL_OK;
    while (z->fill.type != TPL_MISSING && row.count < z->count) NBL_TRY(nbl__tpl_push(vm, &row, z->fill));
    return nbl__tpl_finish(vm, &row, TPL_LIST, item);
}

/* Cuts the items into `count` lists. The first `extra` lists have one item more; the others get
 * `fill` at the end: [1, 2, 3, 4, 5]|slice(3) is [1, 2], [3, 4], [5]. */
static nbl_status next_slice(tpl_vm *vm, lazy *z, tpl_value *item, bool *more)
{
    tpl_items row = {0};
    *more = z->at < z->count;
    if (!*more) return NBL_OK;
    int64_t size = z->all.count / z->count, extra = z->all.count % z->count;
    int64_t start = z->offset + z->at * size;
    if (z->at < extra) z->offset++;
    int64_t end = z->offset + (z->at + 1) * size;
    for (int64_t i = start; i < end; i++) NBL_TRY(nbl__tpl_push(vm, &row, z->all.items[i]));
    if (z->fill.type != TPL_MISSING && z->at >= extra) NBL_TRY(nbl__tpl_push(vm, &row, z->fill));
    z->at++;
    return nbl__tpl_finish(vm, &row, TPL_LIST, item);
}

/* Prepares the iteration. *empty: there is nothing to iterate. jinja2's map and select test the
 * truth of the source first, so none has no items there. */
static nbl_status begin(tpl_vm *vm, lazy *z, tpl_value source, bool *empty)
{
    bool truth = true;
    if (z->kind == LAZY_MAP || z->kind == LAZY_SELECT) NBL_TRY(nbl__tpl_truth(vm, source, &truth));
    *empty = !truth || (z->kind == LAZY_ITEMS && source.type == TPL_UNDEFINED);
    if (*empty) return NBL_OK;
    if (z->kind == LAZY_MAP) NBL_TRY(begin_map(vm, z));
    if (z->kind == LAZY_SELECT) NBL_TRY(begin_select(vm, z));
    if (z->kind == LAZY_UNIQUE) NBL_TRY(nbl__tpl_dict(vm, &z->seen));
    if (z->kind == LAZY_ITEMS) {
        if (source.type != TPL_DICT)
            return nbl__tpl_raise(vm, "TypeError: Can only get item pairs from a mapping.");
        source = (tpl_value){.type = TPL_VIEW, .view = TPL_ITEMS, .dict = source.dict};
    }
    if (z->kind == LAZY_SLICE) {
        NBL_TRY(nbl__tpl_collect(vm, source, &z->all));
        if (z->count == 0) return nbl__tpl_raise(vm, "ZeroDivisionError: integer division or modulo by zero");
    }
    return nbl__tpl_iterate(vm, source, &z->items);
}

/* The first item of each key. Keys are compared without case, if the filter is called so
 * (path.fold). */
static nbl_status next_unique(tpl_vm *vm, lazy *z, tpl_value *item, bool *more)
{
    for (tpl_entry *entry;;) {
        tpl_value key;
        NBL_TRY(nbl__tpl_next(vm, z->items, item, more));
        if (!*more) return NBL_OK;
        NBL_TRY(nbl__tpl_follow(vm, &z->path, *item, &key));
        NBL_TRY(nbl__tpl_dict_find(vm, z->seen, key, &entry));
        if (entry) continue;
        return nbl__tpl_dict_set(vm, z->seen, key, tpl_none());
    }
}

/* Gives the next item of any kind. After the end it stays at the end. */
static nbl_status next_lazy(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more)
{
    lazy *z = iterator->state;
    bool keep = false, empty = false;
    *more = true;
    if (iterator->at) return *more = false, NBL_OK;
    if (z->items == NULL) NBL_TRY(begin(vm, z, iterator->source, &empty));
    if (empty) return iterator->at = 1, *more = false, NBL_OK;
    switch (z->kind) {
    case LAZY_BATCH: NBL_TRY(next_batch(vm, z, item, more)); break;
    case LAZY_SLICE: NBL_TRY(next_slice(vm, z, item, more)); break;
    case LAZY_UNIQUE: NBL_TRY(next_unique(vm, z, item, more)); break;
    case LAZY_ITEMS: NBL_TRY(nbl__tpl_next(vm, z->items, item, more)); break;
    case LAZY_MAP:
        NBL_TRY(nbl__tpl_next(vm, z->items, item, more));
        if (!*more) break;
        if (z->name.type == TPL_MISSING) {
            NBL_TRY(nbl__tpl_follow(vm, &z->path, *item, item));
        } else {
            tpl_args args = z->args;
            NBL_TRY(check_name(vm, z->name, "filter"));
            NBL_TRY(nbl__tpl_apply_filter(vm, z->name.string, *item, &args, item));
        }
        break;
    case LAZY_SELECT:
        while (*more && !keep) {
            NBL_TRY(nbl__tpl_next(vm, z->items, item, more));
            if (*more) NBL_TRY(passes(vm, z, *item, &keep));
        }
        break;
    }
    if (!*more) iterator->at = 1;
    return NBL_OK;
}

/* Makes the iterator. Nothing is checked and nothing is read yet, not even the arguments. */
static nbl_status make_lazy(tpl_vm *vm, lazy_kind kind, tpl_value source, const tpl_args *args,
                            tpl_value *result, lazy **z)
{
    tpl_iterator *iterator;
    NBL_TRY(TPL_NEW(vm, iterator, 1));
    NBL_TRY(TPL_NEW(vm, *z, 1));
    (*z)->kind = kind;
    (*z)->args = *args;
    (*z)->path.fallback = tpl_missing();
    iterator->next = next_lazy;
    iterator->type = "generator";
    iterator->source = source;
    iterator->state = *z;
    *result = (tpl_value){.type = TPL_ITERATOR, .iterator = iterator};
    return NBL_OK;
}

/* map and items: x|map('upper'), x|map(attribute='a'), d|items. */
static nbl_status filter_map(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    lazy *z;
    return make_lazy(vm, LAZY_MAP, v, args, result, &z);
}

static nbl_status filter_items(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    lazy *z;
    NBL_TRY(nbl__tpl_bind(vm, "items", args, "", 0, NULL));
    return make_lazy(vm, LAZY_ITEMS, v, args, result, &z);
}

/* select, reject, selectattr and rejectattr are one kind with two switches. */
static nbl_status choose(tpl_vm *vm, tpl_value v, const tpl_args *args, bool reject, bool by_attribute,
                         tpl_value *result)
{
    lazy *z;
    NBL_TRY(make_lazy(vm, LAZY_SELECT, v, args, result, &z));
    z->reject = reject;
    z->by_attribute = by_attribute;
    return NBL_OK;
}

/* x|select('odd'), and its inverse reject; x|selectattr('a', 'odd'), and rejectattr. */
static nbl_status filter_select(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return choose(vm, v, args, false, false, result);
}

static nbl_status filter_reject(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return choose(vm, v, args, true, false, result);
}

static nbl_status filter_selectattr(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return choose(vm, v, args, false, true, result);
}

static nbl_status filter_rejectattr(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return choose(vm, v, args, true, true, result);
}

/* x|unique(case_sensitive, attribute): keys are hashed, so they must be hashable. */
static nbl_status filter_unique(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2];
    bool sensitive = false;
    lazy *z;
    NBL_TRY(nbl__tpl_bind(vm, "unique", args, "case_sensitive attribute", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[0], &sensitive));
    NBL_TRY(make_lazy(vm, LAZY_UNIQUE, v, args, result, &z));
    return nbl__tpl_make_path(vm, a[1], !sensitive, &z->path);
}

/* x|batch(n, fill) and x|slice(n, fill). Their arguments are bound at once, as Python binds those of
 * a generator function. */
static nbl_status portions(tpl_vm *vm, lazy_kind kind, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2];
    lazy *z;
    NBL_TRY(nbl__tpl_bind(vm, kind == LAZY_BATCH ? "batch" : "slice", args,
                          kind == LAZY_BATCH ? "linecount fill_with" : "slices fill_with", 1, a));
    NBL_TRY(make_lazy(vm, kind, v, args, result, &z));
    NBL_TRY(nbl__tpl_want_int(vm, a[0], &z->count));
    if (z->count > TPL_MAX_STEPS) return nbl__tpl_refuse(vm, "portions of more than %d items", TPL_MAX_STEPS);
    z->fill = a[1].type == TPL_NONE ? tpl_missing() : a[1];
    return NBL_OK;
}

/* [1, 2, 3]|batch(2) is [1, 2], [3]: groups of n items. */
static nbl_status filter_batch(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return portions(vm, LAZY_BATCH, v, args, result);
}

/* [1, 2, 3]|slice(2) is [1, 2], [3]: n groups. */
static nbl_status filter_slice(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return portions(vm, LAZY_SLICE, v, args, result);
}

const tpl_filter nbl__tpl_lazy_filters[] = {
    {"items", filter_items},           {"map", filter_map},
    {"select", filter_select},         {"reject", filter_reject},
    {"selectattr", filter_selectattr}, {"rejectattr", filter_rejectattr},
    {"unique", filter_unique},         {"batch", filter_batch},
    {"slice", filter_slice},           {NULL, NULL},
};
