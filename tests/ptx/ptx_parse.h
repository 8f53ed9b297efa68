/* ptx_parse.h - what the text of a kernel is read with. Internal to tests/ptx. */
#ifndef NIBBLE_PTX_PARSE_H
#define NIBBLE_PTX_PARSE_H

#include "ptx_code.h"

/* The address of dynamic shared memory, which is known once all of the kernel was read. */
#define PTX_DYNAMIC UINT64_MAX

enum { PTX_NAME = 512, PTX_OPERANDS = 8, PTX_PARTS = 8, PTX_SYMBOLS = 1024 };

/* A name of the kernel: registers (`count` of them, the last digits of a name are its number), or a variable. */
typedef struct ptx_symbol {
    char *name;
    uint32_t scope;
    bool is_register, numbered;
    ptx_class class;
    uint32_t slot, count; /* of registers */
    ptx_space space;      /* of a variable */
    uint64_t address;
    uint32_t bytes;
} ptx_symbol;

typedef struct ptx_label {
    char *name;
    uint32_t scope, at;
} ptx_label;

/* An instruction that goes to a label. */
typedef struct ptx_jump {
    char *name;
    uint32_t scope, instruction;
} ptx_jump;

/* A function that was called: its code follows that of the kernel. */
typedef struct ptx_function {
    char *name;
    const char *at;                                            /* its text, from the name on */
    uint32_t entry;                                            /* its first instruction */
    uint32_t result, parameters[4], sizes[4], parameter_count; /* in local memory */
    uint32_t back;                                             /* the register with the return address */
    bool done;
} ptx_function;

typedef struct ptx_operand {
    enum { PTX_IS_NOTHING, PTX_IS_REGISTER, PTX_IS_VALUE, PTX_IS_VECTOR, PTX_IS_NAME } what;
    bool memory, negated, sink, reads; /* reads: it is no result */
    ptx_class class;
    uint32_t slot;
    uint64_t value;  /* also the address of a variable */
    ptx_space space; /* of a variable, or PTX_GENERIC */
    bool variable;
    int64_t offset;
    struct ptx_operand *second; /* of d|p */
    uint32_t parts, slots[PTX_PARTS];
    ptx_class classes[PTX_PARTS];
    char name[PTX_NAME];
} ptx_operand;

typedef struct ptx_parser {
    ptx_module *module;
    ptx_code *code;
    const char *at, *text; /* text: where the instruction begins */
    ptx_symbol *symbols;
    uint32_t symbol_count;
    ptx_label *labels;
    uint32_t label_count, label_capacity;
    ptx_jump *jumps;
    uint32_t jump_count, jump_capacity;
    ptx_function functions[8];
    uint32_t function_count;
    ptx_function *function; /* whose text is read; NULL: the kernel's */
    uint32_t scope, scope_count, parents[4096];
    uint32_t word_bytes; /* used in the file */
    bool *placed;        /* by variable of the module: it has a place in shared memory */
    uint64_t *places;
    bool failed;
    char *why;
} ptx_parser;

/* ---- ptx_parse.c ---- */

void ptx_wrong(ptx_parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint32_t ptx_new_slot(ptx_parser *p, ptx_class class);
/* A register that always has the value. */
uint32_t ptx_constant_slot(ptx_parser *p, ptx_class class, uint64_t value);
/* The register that holds where dynamic shared memory begins. */
uint32_t ptx_dynamic_slot(ptx_parser *p, ptx_class class);
uint32_t ptx_more(ptx_parser *p, uint32_t value);
ptx_instruction *ptx_emit(ptx_parser *p, ptx_operation operation);
void ptx_jump_to(ptx_parser *p, const char *label);
ptx_symbol *ptx_find_symbol(ptx_parser *p, const char *name);

/* ---- ptx_operand.c ---- */

void ptx_skip(ptx_parser *p);
bool ptx_take(ptx_parser *p, char c);
/* A name, or nothing. */
bool ptx_word(ptx_parser *p, char name[PTX_NAME]);
bool ptx_read_operand(ptx_parser *p, ptx_operand *o);
/* The register that the operand is, or that has its value. */
uint32_t ptx_slot_of(ptx_parser *p, const ptx_operand *o, ptx_class class);
int64_t ptx_integer(ptx_parser *p);

/* ---- ptx_decode.c ---- */

void ptx_decode(ptx_parser *p, const char *name, ptx_operand *operands, uint32_t count);

/* ---- ptx_call.c: a call with its (results), name, (arguments) ---- */

void ptx_decode_call(ptx_parser *p);

#endif
