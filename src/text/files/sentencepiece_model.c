/* sentencepiece_model.c - a tokenizer.json from SentencePiece's model, as transformers 5 makes it.
 *
 *     class    model                                normalizer, pre_tokenizer
 *     Llama    BPE, bytes for unknown characters    Metaspace, which puts U+2581 in front of a text
 *     Gemma    BPE, bytes for unknown characters    spaces are U+2581; nothing is put in front
 *     T5       Unigram, with extra ids              the file's map; Metaspace for each word
 *     other    what the file says                   the file's map; spaces are U+2581
 *
 * The file has scores and no merges. BPE gets every way to make a token of two others, by id: ids are
 * in the order of training. Control and user-defined pieces become added tokens.
 *
 * Other: transformers does not read add_dummy_prefix, so a text begins without U+2581. This holds for
 * model types such as mistral and phi3 whatever class their files name. */
#include "text/base64.h"
#include "text/files/sentencepiece.h"
#include "text/files/tokenizer_builder.h"

#define LOW_LINE "\xe2\x96\x81" /* U+2581, SentencePiece's space */
#define SPACES_BACK "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" LOW_LINE "\"},\"content\":\" \"}"
#define SPACES_AWAY "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" LOW_LINE "\"}"

/* The special tokens of the file, for where the settings list none. */
static nbl_status read_specials(nbl__tokenizer_builder *b, const nbl__spm *spm, int64_t more)
{
    nbl__entry_list *list = &b->extra;
    int64_t count = more;
    for (int64_t i = 0; i < spm->count; i++)
        count += spm->pieces[i].type == NBL_SPM_CONTROL || spm->pieces[i].type == NBL_SPM_USER_DEFINED;
    if ((list->items = nbl__arena_alloc(b->arena, (size_t)count * sizeof *list->items)) == NULL)
        return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < spm->count; i++) {
        const nbl__spm_piece *piece = &spm->pieces[i];
        if (piece->type != NBL_SPM_CONTROL && piece->type != NBL_SPM_USER_DEFINED) continue;
        list->items[list->count] = nbl__special_entry(piece->text);
        list->items[list->count++].special = piece->type == NBL_SPM_CONTROL;
    }
    return NBL_OK;
}

/* Writes the normalizer's map as a step. */
static void put_charsmap(nbl__tokenizer_builder *b, const nbl__spm *spm)
{
    nbl__text_printf(b->out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    nbl__base64_add(b->out, spm->charsmap.text, spm->charsmap.size);
    nbl__text_printf(b->out, "\"}");
}

/* ---- BPE ---- */

/* Adds the pieces to b->vocab. Files of models leave pieces for later use, which added_tokens_decoder
 * names: `gone` marks those whose text it replaces, so that no merge makes them. */
static nbl_status read_vocab(nbl__tokenizer_builder *b, const nbl__spm *spm, const nbl__vocab *known,
                             bool *gone)
{
    const nbl__entry_list *decoder = &b->settings.decoder;
    NBL_TRY(nbl__builder_open(b, spm->count));
    for (int64_t i = 0, next = 0; i < spm->count; i++) {
        nbl__slice text = spm->pieces[i].text;
        while (next < decoder->count && decoder->items[next].id < i) next++;
        if (gone && next < decoder->count && decoder->items[next].id == i) {
            nbl__slice now = decoder->items[next].text;
            gone[i] = nbl__vocab_find(known, now.text, now.size) < 0 &&
                      nbl__vocab_find(known, text.text, text.size) == i;
            if (gone[i]) text = now;
        }
        nbl__vocab_add(&b->vocab, text.text, text.size, (int32_t)i);
    }
    return NBL_OK;
}

/* Writes the model. `known` gets the pieces as the file has them, of which merges are made. */
static nbl_status put_bpe(nbl__tokenizer_builder *b, const nbl__spm *spm, nbl__vocab *known)
{
    bool *gone = NULL;
    NBL_TRY(nbl__vocab_open(b->ctx, known, (size_t)spm->count));
    for (int64_t i = 0; i < spm->count; i++)
        nbl__vocab_add(known, spm->pieces[i].text.text, spm->pieces[i].text.size, (int32_t)i);
    if (b->class == NBL_TOKENIZER_OTHER && b->settings.decoder.count) {
        gone = nbl__arena_alloc(b->arena, (size_t)spm->count * sizeof *gone);
        if (gone == NULL) return NBL_ERROR_MEMORY;
    }
    NBL_TRY(read_vocab(b, spm, known, gone));
    bool other = b->class == NBL_TOKENIZER_OTHER;
    nbl__slice unknown = other ? spm->unk : b->settings.roles[NBL_ROLE_UNK].text;
    nbl__text_printf(b->out,
                     "{\"type\":\"BPE\",\"dropout\":null,\"continuing_subword_prefix\":null,"
                     "\"end_of_word_suffix\":null,\"fuse_unk\":true,\"ignore_merges\":false,"
                     "\"byte_fallback\":%s,\"unk_token\":",
                     !other || spm->byte_fallback ? "true" : "false");
    if (b->class == NBL_TOKENIZER_LLAMA || unknown.text == NULL) nbl__text_printf(b->out, "null");
    else nbl__builder_put_string(b, unknown);
    nbl__text_printf(b->out, ",\"vocab\":");
    nbl__builder_put_vocab(b);
    NBL_TRY(nbl__builder_put_merges(b, known, NBL_MERGES_BY_LEFT, gone));
    nbl__text_add(b->out, "}", 1);
    return NBL_OK;
}

/* ---- Unigram ---- */

static void put_score(nbl__tokenizer_builder *b, int64_t id, nbl__slice text, double score)
{
    nbl__text_printf(b->out, "%s[", id ? "," : "");
    nbl__builder_put_string(b, text);
    nbl__text_add(b->out, ",", 1);
    nbl__text_real(b->out, score);
    nbl__text_add(b->out, "]", 1);
}

/* Writes the model, with `more` extra ids: <extra_id_0> is the last. */
static nbl_status put_unigram(nbl__tokenizer_builder *b, const nbl__spm *spm, int64_t more)
{
    bool t5 = b->class == NBL_TOKENIZER_T5;
    NBL_TRY(nbl__builder_open(b, spm->count + more));
    nbl__text_printf(b->out, "{\"type\":\"Unigram\",\"unk_id\":%" PRId64 ",\"byte_fallback\":%s,\"vocab\":[",
                     t5 ? 2 : spm->unk_id, !t5 && spm->byte_fallback ? "true" : "false");
    for (int64_t i = 0; i < spm->count; i++) {
        nbl__slice text = spm->pieces[i].text;
        nbl__vocab_add(&b->vocab, text.text, text.size, (int32_t)i);
        put_score(b, i, text, (double)spm->pieces[i].score);
    }
    for (int64_t i = 0; i < more; i++) {
        const char *name = nbl__arena_printf(b->arena, "<extra_id_%" PRId64 ">", more - 1 - i);
        if (name == NULL) return NBL_ERROR_MEMORY;
        nbl__slice text = {name, strlen(name)};
        nbl__vocab_add(&b->vocab, text.text, text.size, (int32_t)(spm->count + i));
        put_score(b, spm->count + i, text, 0);
        b->extra.items[b->extra.count++] = nbl__special_entry(text);
    }
    nbl__text_printf(b->out, "]}");
    b->size = spm->count + more;
    return NBL_OK;
}

/* ---- the parts around the model ---- */

static void put_llama_parts(nbl__tokenizer_builder *b)
{
    const nbl__json *prefix = nbl__json_get(b->settings.config, "add_prefix_space");
    bool adds = prefix == NULL || prefix->type != NBL_JSON_FALSE,
         legacy = nbl__settings_flag(&b->settings, "legacy", false);
    nbl__text_printf(
        b->out,
        ",\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" LOW_LINE
        "\",\"prepend_scheme\":\"%s\",\"split\":false},\"decoder\":{\"type\":\"Sequence\","
        "\"decoders\":[" SPACES_BACK ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]}",
        !adds    ? "never"
        : legacy ? "always"
                 : "first",
        adds ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
}

static void put_gemma_parts(nbl__tokenizer_builder *b)
{
    nbl__text_printf(b->out,
                     ",\"normalizer\":" SPACES_AWAY
                     ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"
                     "\"MergedWithPrevious\",\"invert\":false},\"decoder\":{\"type\":\"Sequence\","
                     "\"decoders\":[" SPACES_BACK ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}");
}

static void put_t5_parts(nbl__tokenizer_builder *b, const nbl__spm *spm)
{
#define METASPACE                                                                                            \
    "{\"type\":\"Metaspace\",\"replacement\":\"" LOW_LINE "\",\"prepend_scheme\":\"always\",\"split\":true}"
    nbl__text_printf(b->out, ",\"normalizer\":");
    if (spm->charsmap.size) put_charsmap(b, spm);
    else nbl__text_printf(b->out, "null");
    nbl__text_printf(b->out, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                             "\"WhitespaceSplit\"}," METASPACE "]},\"decoder\":" METASPACE);
#undef METASPACE
}

static void put_other_parts(nbl__tokenizer_builder *b, const nbl__spm *spm)
{
    nbl__text_printf(b->out,
                     ",\"pre_tokenizer\":null,\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (spm->charsmap.size) {
        put_charsmap(b, spm);
        nbl__text_add(b->out, ",", 1);
    }
    nbl__text_printf(b->out,
                     SPACES_AWAY "]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" SPACES_BACK "%s]}",
                     spm->byte_fallback ? ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}" : "");
}

/* The roles of a class, or for others those of the file. */
static nbl_status set_roles(nbl__tokenizer_builder *b, const nbl__spm *spm)
{
    const struct {
        nbl__token_role role;
        int64_t id;
        nbl__slice text;
    } own[] = {{NBL_ROLE_BOS, spm->bos_id, spm->bos},
               {NBL_ROLE_EOS, spm->eos_id, spm->eos},
               {NBL_ROLE_UNK, spm->unk_id, spm->unk}};
    nbl__class_defaults(&b->settings, b->class);
    for (int i = 0; b->class == NBL_TOKENIZER_OTHER && i < 3; i++) {
        if (own[i].id < 0 || own[i].text.size == 0 || b->settings.role_is_set[own[i].role]) continue;
        b->settings.role_is_set[own[i].role] = true;
        b->settings.roles[own[i].role] = nbl__special_entry(own[i].text);
    }
    return NBL_OK;
}

nbl_status nbl__build_sentencepiece(nbl__tokenizer_builder *b, const char *text, size_t size)
{
    nbl__spm spm;
    nbl__vocab known = {.ctx = b->ctx};
    bool t5 = b->class == NBL_TOKENIZER_T5;
    const nbl__json *setting = nbl__json_get(b->settings.config, "extra_ids");
    int64_t more = t5 ? 100 : 0;
    NBL_CHECK(b->ctx, !t5 || setting == NULL || (nbl__json_natural(setting, &more) && more <= 1 << 16),
              NBL_ERROR_FORMAT, "%s: \"extra_ids\" is not a number up to 65536", b->where);
    NBL_TRY(nbl__spm_read(b->arena, b->where, text, size, &spm));
    NBL_CHECK(b->ctx, spm.count < INT32_MAX / 4, NBL_ERROR_UNSUPPORTED, "%s: too many pieces", b->where);
    if (b->class != NBL_TOKENIZER_LLAMA && b->class != NBL_TOKENIZER_GEMMA && !t5)
        b->class = NBL_TOKENIZER_OTHER; /* the classes of byte-level BPE */
    NBL_TRY(set_roles(b, &spm));
    NBL_TRY(read_specials(b, &spm, more));
    nbl__text_printf(b->out, "{\"version\":\"1.0\",\"model\":");
    bool unigram = t5 || (b->class == NBL_TOKENIZER_OTHER && spm.model_type == 1);
    nbl_status status = unigram ? put_unigram(b, &spm, more) : put_bpe(b, &spm, &known);
    nbl__vocab_close(&known);
    NBL_TRY(status);
    if (b->class == NBL_TOKENIZER_LLAMA) put_llama_parts(b);
    else if (b->class == NBL_TOKENIZER_GEMMA) put_gemma_parts(b);
    else if (t5) put_t5_parts(b, &spm);
    else put_other_parts(b, &spm);
    return nbl__builder_finish(b);
}
