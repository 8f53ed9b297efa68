/* jinja_operators.c - the operators + - * / // % ** and slices, with Python's rules.
 *
 *     int op int       int, but for / and for ** with a negative exponent: float
 *     float op number  float
 *     // and %         round towards minus infinity: -7 // 2 is -4, -7 % 2 is 1
 *     text % values    formatting (jinja_percent.c)
 *     list + list, text + text, tuple + tuple, sequence * int
 *
 * Integers have 64 bits. A result that needs more is an error, never a wrong number. An undefined
 * operand is an error that names it. */
#include <math.h>

#include "text/template/runtime/jinja_runtime.h"

/* Python's TypeError. signs[] has the arithmetic operators in the order of tpl_operator. */
static nbl_status wrong_types(tpl_vm *vm, tpl_operator op, tpl_value a, tpl_value b)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (a.type == TPL_BIG || b.type == TPL_BIG)
        return nbl__tpl_refuse(vm, "arithmetic with integers beyond 64 bits is not supported");
    return nbl__tpl_raise(vm, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'", signs[op],
                          nbl__tpl_type_name(a), nbl__tpl_type_name(b));
}

/* The failure of an integer result that needs more than 64 bits. */
static nbl_status too_large(tpl_vm *vm)
{
    return nbl__tpl_refuse(vm, "an integer beyond 64 bits: such arithmetic is not supported");
}

/* ---- numbers ---- */

/* base ** exponent by repeated squaring. The last square is not computed, because it could overflow
 * although the result does not. */
static nbl_status power(tpl_vm *vm, int64_t base, int64_t exponent, tpl_value *result)
{
    int64_t value = 1;
    if (exponent < 0) {
        if (base == 0)
            return nbl__tpl_raise(vm, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        return *result = tpl_float(pow((double)base, (double)exponent)), NBL_OK;
    }
    while (exponent) {
        if (exponent & 1 && __builtin_mul_overflow(value, base, &value)) return too_large(vm);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return too_large(vm);
    }
    return *result = tpl_int(value), NBL_OK;
}

/* a / b, rounded once, as in Python. A quotient in long double would be rounded twice, and long
 * double differs between architectures. So the quotient is computed as an integer of at least 56
 * bits. Its lowest bit is set if there is a remainder (a sticky bit). The conversion to double
 * rounds it. */
static double true_division(int64_t a, int64_t b)
{
    uint64_t over = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, under = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    double sign = (a < 0) != (b < 0) ? -1 : 1;
    if (over == 0) return 0 * sign;
    int shift = 56 + __builtin_clzll(over) - __builtin_clzll(under);
    if (shift < 0) shift = 0;
    unsigned __int128 wide = (unsigned __int128)over << shift;
    uint64_t bits = (uint64_t)(wide / under) | (wide % under != 0);
    return sign * ldexp((double)bits, -shift);
}

/* Integer arithmetic: each operation is checked for overflow by the compiler's builtins. */
static nbl_status integer_operation(tpl_vm *vm, tpl_operator op, int64_t a, int64_t b, tpl_value *result)
{
    int64_t value = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &value); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &value); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &value); break;
    case OP_DIV:
        if (b == 0) return nbl__tpl_raise(vm, "ZeroDivisionError: division by zero");
        return *result = tpl_float(true_division(a, b)), NBL_OK;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0) return nbl__tpl_raise(vm, "ZeroDivisionError: integer division or modulo by zero");
        /* INT64_MIN / -1 overflows: C leaves it undefined */
        if (b == -1) {
            if (op == OP_MOD) value = 0;
            else over = __builtin_sub_overflow((int64_t)0, a, &value);
            break;
        }
        value = op == OP_MOD ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0)) value += op == OP_MOD ? b : -1;
        break;
    default: return power(vm, a, b, result);
    }
    if (over) return too_large(vm);
    return *result = tpl_int(value), NBL_OK;
}

/* Quotient and rest of floats, step by step as CPython's float_divmod: the rest has the sign of b,
 * and the quotient is rounded to the integer next to div. */
static void float_divmod(double a, double b, double *quotient, double *rest)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) mod += b, div -= 1;
    } else {
        mod = copysign(0, b);
    }
    *rest = mod;
    if (div != 0) {
        *quotient = floor(div);
        if (div - *quotient > 0.5) *quotient += 1;
    } else {
        *quotient = copysign(0, a / b);
    }
}

/* Float arithmetic. Division by zero and an overflow of ** are errors in Python; other overflows
 * are inf. */
static nbl_status float_operation(tpl_vm *vm, tpl_operator op, double a, double b, tpl_value *result)
{
    double value = 0, rest;
    switch (op) {
    case OP_ADD: value = a + b; break;
    case OP_SUB: value = a - b; break;
    case OP_MUL: value = a * b; break;
    case OP_DIV:
        if (b == 0) return nbl__tpl_raise(vm, "ZeroDivisionError: float division by zero");
        value = a / b;
        break;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0) return nbl__tpl_raise(vm, "ZeroDivisionError: float floor division by zero");
        float_divmod(a, b, &value, &rest);
        if (op == OP_MOD) value = rest;
        break;
    default:
        if (a == 0 && b < 0)
            return nbl__tpl_raise(vm, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            return nbl__tpl_refuse(
                vm, "a negative number to a fractional power: complex numbers are not supported");
        value = pow(a, b);
        if (isinf(value) && isfinite(a) && isfinite(b))
            return nbl__tpl_raise(vm, "OverflowError: (34, 'Numerical result out of range')");
    }
    return *result = tpl_float(value), NBL_OK;
}

/* ---- sequences ---- */

/* list + list, tuple + tuple: a new sequence; neither operand changes. */
static nbl_status join_lists(tpl_vm *vm, tpl_value a, tpl_value b, tpl_value *result)
{
    tpl_value *items;
    NBL_TRY(nbl__tpl_list(vm, a.type, a.list->count + b.list->count, result, &items));
    if (a.list->count) memcpy(items, a.list->items, (size_t)a.list->count * sizeof *items);
    if (b.list->count) memcpy(items + a.list->count, b.list->items, (size_t)b.list->count * sizeof *items);
    return nbl__tpl_work(vm, (uint64_t)(a.list->count + b.list->count) / 8);
}

/* Text that is added to safe HTML is escaped. */
static nbl_status join_strings(tpl_vm *vm, tpl_value a, tpl_value b, tpl_value *result)
{
    tpl_text text = {0};
    bool markup = a.markup || b.markup;
    if (markup) {
        NBL_TRY(nbl__tpl_escape(vm, a, &a));
        NBL_TRY(nbl__tpl_escape(vm, b, &b));
    }
    NBL_TRY(nbl__tpl_add_string(vm, &text, a.string));
    NBL_TRY(nbl__tpl_add_string(vm, &text, b.string));
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = markup;
    return NBL_OK;
}

/* `a` several times in a row; a negative count is 0. The size is checked before any memory is
 * taken. */
static nbl_status repeat(tpl_vm *vm, tpl_value a, int64_t times, tpl_value *result)
{
    if (times < 0) times = 0;
    if (a.type == TPL_STRING) {
        char *bytes;
        size_t size = a.string->size;
        if (size && (uint64_t)times > TPL_MAX_OUTPUT / size)
            return nbl__tpl_refuse(vm, "a text becomes too long: more than %d MiB", TPL_MAX_OUTPUT >> 20);
        if (size == 0) times = 0;
        NBL_TRY(TPL_NEW(vm, bytes, size * (size_t)times));
        for (int64_t i = 0; i < times; i++) memcpy(bytes + (size_t)i * size, a.string->bytes, size);
        NBL_TRY(nbl__tpl_string(vm, bytes, size * (size_t)times, result));
        result->markup = a.markup;
        return NBL_OK;
    }
    tpl_value *items;
    int64_t count = a.list->count;
    if (count && times > TPL_MAX_STEPS / count)
        return nbl__tpl_refuse(vm, "a list becomes too long: more than %d items", TPL_MAX_STEPS);
    if (count == 0) times = 0;
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)(count * times) / 8));
    NBL_TRY(nbl__tpl_list(vm, a.type, count * times, result, &items));
    for (int64_t i = 0; i < times; i++)
        memcpy(items + i * count, a.list->items, (size_t)count * sizeof *items);
    return NBL_OK;
}

/* The order of the checks is Python's: numbers, `%` of a text (which takes anything), undefined
 * operands, then sequences. */
nbl_status nbl__tpl_binary(tpl_vm *vm, tpl_operator op, tpl_value a, tpl_value b, tpl_value *result)
{
    if (tpl_is_integer(a) && tpl_is_integer(b))
        return integer_operation(vm, op, a.integer, b.integer, result);
    if (tpl_is_number(a) && tpl_is_number(b))
        return float_operation(vm, op, tpl_as_double(a), tpl_as_double(b), result);
    if (a.type == TPL_STRING && op == OP_MOD) return nbl__tpl_percent(vm, a, b, result);
    if (a.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, a);
    if (b.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, b);
    if (op == OP_ADD) {
        if (a.type == TPL_STRING && b.type == TPL_STRING) return join_strings(vm, a, b, result);
        if (tpl_is_sequence(a) && a.type == b.type) return join_lists(vm, a, b, result);
        if (a.type == TPL_STRING || tpl_is_sequence(a))
            return nbl__tpl_raise(vm, "TypeError: can only concatenate %s (not \"%s\") to %s",
                                  nbl__tpl_type_name(a), nbl__tpl_type_name(b), nbl__tpl_type_name(a));
    }
    if (op == OP_MUL) {
        bool left = a.type == TPL_STRING || tpl_is_sequence(a),
             right = b.type == TPL_STRING || tpl_is_sequence(b);
        if (left && tpl_is_integer(b)) return repeat(vm, a, b.integer, result);
        if (right && tpl_is_integer(a)) return repeat(vm, b, a.integer, result);
    }
    return wrong_types(vm, op, a, b);
}

static const char two_to_the_63[] = "9223372036854775808"; /* 2^63: in 64 bits only -2^63 exists */

/* Changes the sign of an integer beyond 64 bits, in its digits. */
static nbl_status negate_big(tpl_vm *vm, const tpl_string *digits, tpl_value *result)
{
    tpl_text text = {0};
    if (tpl_same(digits, two_to_the_63)) return *result = tpl_int(INT64_MIN), NBL_OK;
    bool minus = digits->bytes[0] == '-';
    if (!minus) NBL_TRY(tpl_add_c(vm, &text, "-"));
    NBL_TRY(nbl__tpl_add(vm, &text, digits->bytes + minus, digits->size - minus));
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->type = TPL_BIG;
    return NBL_OK;
}

/* +v or -v. +true is 1. -(-2^63) needs more than 64 bits and becomes a TPL_BIG. */
nbl_status nbl__tpl_unary(tpl_vm *vm, bool minus, tpl_value v, tpl_value *result)
{
    int64_t value;
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type == TPL_FLOAT) return *result = tpl_float(minus ? -v.real : v.real), NBL_OK;
    if (v.type == TPL_BIG) return minus ? negate_big(vm, v.string, result) : (*result = v, NBL_OK);
    if (!tpl_is_integer(v))
        return nbl__tpl_raise(vm, "TypeError: bad operand type for unary %c: '%s'", minus ? '-' : '+',
                              nbl__tpl_type_name(v));
    if (!minus) return *result = tpl_int(v.integer), NBL_OK;
    if (!__builtin_sub_overflow((int64_t)0, v.integer, &value)) return *result = tpl_int(value), NBL_OK;
    NBL_TRY(nbl__tpl_cstring(vm, two_to_the_63, result));
    result->type = TPL_BIG;
    return NBL_OK;
}

/* One comparison of a chain. `a in b` asks the container b. */
nbl_status nbl__tpl_compared(tpl_vm *vm, tpl_operator op, tpl_value a, tpl_value b, bool *result)
{
    switch (op) {
    case OP_EQ: return nbl__tpl_equal(vm, a, b, result);
    case OP_NE:
        NBL_TRY(nbl__tpl_equal(vm, a, b, result));
        *result = !*result;
        return NBL_OK;
    case OP_IN: return nbl__tpl_contains(vm, b, a, result);
    case OP_NOT_IN:
        NBL_TRY(nbl__tpl_contains(vm, b, a, result));
        *result = !*result;
        return NBL_OK;
    case OP_LT: return nbl__tpl_compare(vm, TPL_LT, a, b, result);
    case OP_LE: return nbl__tpl_compare(vm, TPL_LE, a, b, result);
    case OP_GT: return nbl__tpl_compare(vm, TPL_GT, a, b, result);
    default: return nbl__tpl_compare(vm, TPL_GE, a, b, result);
    }
}

/* ---- slices ---- */

/* The cost is that of two offsets: constant for ASCII, else linear in `last`. */
nbl_status nbl__tpl_substring(tpl_vm *vm, const tpl_string *s, int64_t first, int64_t last, tpl_value *result)
{
    if (last < first) last = first;
    if (s->size != s->length)
        NBL_TRY(nbl__tpl_work(vm, (uint64_t)last / 8)); /* not ASCII: finding an offset is linear */
    size_t begin = nbl__tpl_offset(s, first);
    tpl_string rest = {s->bytes + begin, s->size - begin, s->length - (size_t)first};
    return nbl__tpl_string(vm, s->bytes + begin, nbl__tpl_offset(&rest, last - first), result);
}

/* Reads one bound of a slice and clamps it to low … high. */
static nbl_status bound(tpl_vm *vm, tpl_value part, int64_t length, int64_t low, int64_t high, int64_t *value)
{
    if (part.type == TPL_NONE) return NBL_OK;
    if (part.type == TPL_BIG) return too_large(vm);
    if (!tpl_is_integer(part))
        return nbl__tpl_raise(
            vm, "TypeError: slice indices must be integers or None or have an __index__ method");
    int64_t at = part.integer < 0 ? part.integer + length : part.integer;
    *value = at < low ? low : at > high ? high : at;
    return NBL_OK;
}

/* Takes `count` items from `start` on, `step` apart. The bounds are already clamped, so every index
 * is valid. A range stays a range. */
static nbl_status take_every(tpl_vm *vm, tpl_value a, int64_t start, int64_t step, int64_t count,
                             tpl_value *result)
{
    if (a.type == TPL_RANGE) {
        tpl_range *range;
        NBL_TRY(TPL_NEW(vm, range, 1));
        range->start = a.range->start + start * a.range->step;
        range->step = step * a.range->step;
        range->count = count;
        range->stop = range->start + count * range->step;
        *result = (tpl_value){.type = TPL_RANGE, .range = range};
        return NBL_OK;
    }
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)count / 4));
    if (a.type == TPL_STRING) {
        tpl_text text = {0};
        if (step == 1) {
            NBL_TRY(nbl__tpl_substring(vm, a.string, start, start + count, result));
        } else {
            /* Characters have different sizes. So their offsets are computed first. */
            size_t *offsets, at = 0;
            NBL_TRY(TPL_NEW(vm, offsets, a.string->length + 1));
            NBL_TRY(nbl__tpl_work(vm, a.string->length / 4));
            for (size_t i = 0; i <= a.string->length; i++) {
                int size = 0;
                offsets[i] = at;
                if (at < a.string->size) tpl_char(a.string->bytes + at, &size);
                at += (size_t)size;
            }
            for (int64_t i = 0; i < count; i++) {
                size_t from = offsets[start + i * step], to = offsets[start + i * step + 1];
                NBL_TRY(nbl__tpl_add(vm, &text, a.string->bytes + from, to - from));
            }
            NBL_TRY(nbl__tpl_take(vm, &text, result));
        }
        result->markup = a.markup;
        return NBL_OK;
    }
    tpl_value *items;
    NBL_TRY(nbl__tpl_list(vm, a.type, count, result, &items));
    for (int64_t i = 0; i < count; i++) items[i] = a.list->items[start + i * step];
    return NBL_OK;
}

/* a[start:stop:step] as Python's slice.indices: a missing bound is an end of the sequence, in the
 * direction of the step; the others are clamped to the sequence. 'abc'[::-1] is 'cba', 'abc'[5:] is
 * ''. */
nbl_status nbl__tpl_slice(tpl_vm *vm, tpl_value a, const tpl_value parts[3], tpl_value *result)
{
    int64_t length, step = 1;
    if (a.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, a);
    if (a.type == TPL_DICT) return nbl__tpl_raise(vm, "TypeError: unhashable type: 'slice'");
    if (a.type != TPL_STRING && !tpl_is_sequence(a) && a.type != TPL_RANGE)
        return nbl__tpl_raise(vm, "TypeError: '%s' object is not subscriptable", nbl__tpl_type_name(a));
    nbl__tpl_length(a, &length);
    if (parts[2].type != TPL_NONE) {
        NBL_TRY(bound(vm, parts[2], 0, -INT32_MAX, INT32_MAX, &step));
        if (step == 0) return nbl__tpl_raise(vm, "ValueError: slice step cannot be zero");
    }
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
    int64_t start = step < 0 ? high : low, stop = step < 0 ? low : high;
    NBL_TRY(bound(vm, parts[0], length, low, high, &start));
    NBL_TRY(bound(vm, parts[1], length, low, high, &stop));
    int64_t count = step < 0 ? (start - stop - step - 1) / -step : (stop - start + step - 1) / step;
    if (step < 0 ? start <= stop : stop <= start) count = 0;
    return take_every(vm, a, start, step, count, result);
}
