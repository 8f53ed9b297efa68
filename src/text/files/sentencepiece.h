/* sentencepiece.h - reads SentencePiece's model file, a protobuf message (sentencepiece_model.proto).
 *
 *     ModelProto        1 pieces (repeated)   2 trainer_spec   3 normalizer_spec
 *     SentencePiece     1 piece, text         2 score, f32     3 type
 *     TrainerSpec       3 model_type   35 byte_fallback   40 unk_id   41 bos_id   42 eos_id
 *                       45 unk_piece   46 bos_piece   47 eos_piece
 *     NormalizerSpec    2 precompiled_charsmap
 *
 * The file is not trusted: every length is checked against what contains it. Other fields are
 * skipped. As protobuf has it, the last value of a field counts, and parts of a message that is
 * there twice are merged. */
#ifndef NBL_SENTENCEPIECE_H
#define NBL_SENTENCEPIECE_H

#include "base/arena.h"
#include "text/vocab/vocab_model.h"

/* Values of `type`. */
typedef enum nbl__spm_type {
    NBL_SPM_NORMAL = 1,
    NBL_SPM_UNKNOWN = 2,
    NBL_SPM_CONTROL = 3,
    NBL_SPM_USER_DEFINED = 4,
    NBL_SPM_UNUSED = 5,
    NBL_SPM_BYTE = 6
} nbl__spm_type;

typedef struct nbl__spm_piece {
    nbl__slice text; /* valid UTF-8, in the file's memory */
    float score;
    int64_t type;
} nbl__spm_piece;

typedef struct nbl__spm {
    nbl__spm_piece *pieces; /* by id */
    int64_t count;
    int64_t model_type; /* 1: Unigram, 2: BPE */
    int64_t unk_id, bos_id, eos_id;
    bool byte_fallback;
    nbl__slice unk, bos, eos; /* texts of these tokens */
    nbl__slice charsmap;      /* the normalizer's map; size 0: none */
} nbl__spm;

/* Reads a file's bytes, which *spm borrows. The pieces are in the arena. NBL_ERROR_FORMAT: no such
 * message. */
nbl_status nbl__spm_read(nbl__arena *arena, const char *where, const char *bytes, size_t size, nbl__spm *spm);

#endif
