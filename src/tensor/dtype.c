/* dtype.c - names and sizes of element types and storage formats.
 *
 * An element type has three names: nibble's ("bf16"), that of safetensors files ("BF16") and that
 * of PyTorch ("bfloat16", for compute dtypes only). A storage format says how a weight is packed.
 *
 * The table of element types is NBL_DTYPE_TABLE of nibble.h, so that a type is declared once. */
#include "tensor/dtype.h"

static const struct row {
    const char *name, *file_name;
    int bits;
} table[NBL_DTYPE_COUNT] = {
#define ROW(NAME, name, file, bits) {name, file, bits},
    NBL_DTYPE_TABLE(ROW)
#undef ROW
};

/* in the order of nbl_dtype */
static const char *const torch_names[] = {"float32", "float16", "bfloat16"};
static const char *const format_names[] = {"dense", "nf4", "fp4", "int8", "mxfp4"};
enum { FORMATS = sizeof format_names / sizeof *format_names };

const char *nbl_dtype_name(nbl_dtype dtype)
{
    return (unsigned)dtype < NBL_DTYPE_COUNT ? table[dtype].name : "unknown";
}

bool nbl_dtype_parse(const char *name, nbl_dtype *dtype)
{
    for (int i = 0; name && i < NBL_DTYPE_COUNT; i++) {
        if (strcmp(name, table[i].name) != 0) continue;
        *dtype = (nbl_dtype)i;
        return true;
    }
    return false;
}

const char *nbl_format_name(nbl_format format)
{
    return (unsigned)format < FORMATS ? format_names[format] : "unknown";
}

bool nbl_format_parse(const char *name, nbl_format *format)
{
    for (int i = 0; name && i < FORMATS; i++) {
        if (strcmp(name, format_names[i]) != 0) continue;
        *format = (nbl_format)i;
        return true;
    }
    return false;
}

/* ---- compute dtypes in options ---- */

nbl_dtype nbl__dtype_chosen(nbl_compute_dtype chosen, nbl_dtype fallback)
{
    return chosen == NBL_COMPUTE_DEFAULT ? fallback : (nbl_dtype)(chosen - NBL_COMPUTE_F32);
}

nbl_compute_dtype nbl__dtype_choice(nbl_dtype dtype)
{
    return (nbl_compute_dtype)(NBL_COMPUTE_F32 + dtype);
}

bool nbl__compute_dtype_valid(nbl_compute_dtype dtype)
{
    return dtype == NBL_COMPUTE_DEFAULT || (dtype >= NBL_COMPUTE_F32 && dtype <= NBL_COMPUTE_BF16);
}

const char *nbl_compute_dtype_name(nbl_compute_dtype dtype)
{
    if (dtype == NBL_COMPUTE_DEFAULT) return "default";
    return nbl__compute_dtype_valid(dtype) ? table[nbl__dtype_chosen(dtype, NBL_DTYPE_F32)].name : "unknown";
}

bool nbl_compute_dtype_parse(const char *name, nbl_compute_dtype *dtype)
{
    nbl_dtype found;
    bool is_default = name && strcmp(name, "default") == 0;
    if (!is_default && !(nbl_dtype_parse(name, &found) && nbl__is_compute(found))) return false;
    *dtype = is_default ? NBL_COMPUTE_DEFAULT : nbl__dtype_choice(found);
    return true;
}

/* ---- sizes and other names ---- */

/* The caller has a valid dtype. */
int nbl__dtype_bits(nbl_dtype dtype)
{
    return table[dtype].bits;
}

const char *nbl__dtype_file_name(nbl_dtype dtype)
{
    return table[dtype].file_name;
}

bool nbl__dtype_from_file_name(const char *name, nbl_dtype *dtype)
{
    for (int i = 0; i < NBL_DTYPE_COUNT; i++) {
        if (strcmp(name, table[i].file_name) != 0) continue;
        *dtype = (nbl_dtype)i;
        return true;
    }
    return false;
}

const char *nbl__dtype_torch_name(nbl_dtype dtype)
{
    return nbl__is_compute(dtype) ? torch_names[dtype] : "unknown";
}

/* config.json may have either form: "torch.bfloat16" or "bfloat16". */
bool nbl__dtype_from_torch_name(const char *name, nbl_dtype *dtype)
{
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, torch_names[i]) != 0) continue;
        *dtype = (nbl_dtype)i;
        return true;
    }
    return false;
}

/* Packed types have less than 8 bits: an odd number of 4-bit elements is no whole number of
 * bytes. */
bool nbl__dtype_bytes(nbl_dtype dtype, uint64_t n, uint64_t *bytes)
{
    uint64_t bits;
    if (!nbl__mul_u64(n, (uint64_t)table[dtype].bits, &bits) || bits % 8 != 0) return false;
    *bytes = bits / 8;
    return true;
}
