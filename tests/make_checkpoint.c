/* make_checkpoint.c - writes a random checkpoint of Llama's shape, for tests and demonstrations.
 *
 * The folder has what a published one has: config.json, generation_config.json, tokenizer files
 * (noise) and model.safetensors, or several shards and their index. The same options give the same
 * bytes. Weights are drawn from one pool of normal noise, read from another place for every few
 * kilobytes, so that writing gigabytes costs little more than the disk does. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
    "Usage: make_checkpoint OUT [options]\n"
    "\n"
    "Writes folder OUT with a random checkpoint of Llama's shape.\n"
    "\n"
    "  --dtype DTYPE      f32, f16 or bf16 (default: bf16)\n"
    "  --layers N         (default: 2)\n"
    "  --hidden N         size of the hidden state, a multiple of 8 (default: 64)\n"
    "  --intermediate N   inner size of the MLP (default: 176)\n"
    "  --vocab N          size of the vocabulary (default: 256)\n"
    "  --size SIZE        choose the four sizes above for about this many bytes: 4G, 200M; those\n"
    "                     given as well are kept\n"
    "  --shards N         number of weight files (default: 1)\n"
    "  --seed N           another seed, other weights (default: 0)\n"
    "  --tied             no lm_head: it shares the embedding\n"
    "  --nan              one NaN and one infinity in the first up_proj\n"
    "  --help\n";

typedef enum { F32, F16, BF16 } dtype;

typedef struct options {
    const char *out;
    dtype dtype;
    int64_t layers, hidden, intermediate, vocab, shards;
    uint64_t seed, size;
    bool tied, nan;
} options;

typedef struct tensor {
    char name[96];
    int64_t rows, columns; /* columns 0: a vector */
    bool norm;             /* around 1 instead of 0 */
    uint64_t bytes;
    int shard;
} tensor;

static _Noreturn void __attribute__((format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("make_checkpoint: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (memory == NULL) fail("out of memory");
    return memory;
}

/* ---- random numbers ---- */

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Nearly normal: the sum of twelve uniform numbers, of standard deviation 1. */
static float next_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(next_random(state) >> 11) * 0x1p-53;
    return (float)sum;
}

/* Values here are normal numbers of f16 or flushed to zero: rounding is all that is needed. */
static uint16_t to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x38800000u) return (uint16_t)sign;
    magnitude += 0xfffu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static size_t width_of(dtype type)
{
    return type == F32 ? 4 : 2;
}

static void encode(dtype type, float value, unsigned char *to)
{
    uint16_t half = type == F16 ? to_f16(value) : to_bf16(value);
    if (type == F32) memcpy(to, &value, 4);
    else memcpy(to, &half, 2);
}

enum { POOL = 1 << 20, CHUNK = 1 << 14 }; /* elements */

typedef struct noise {
    dtype type;
    uint64_t state;
    unsigned char *weights, *norms; /* POOL elements each */
} noise;

static noise make_noise(const options *o)
{
    noise n = {.type = o->dtype, .state = o->seed ^ 0x6e6962626c65u};
    size_t width = width_of(o->dtype);
    n.weights = allocate(POOL * width);
    n.norms = allocate(POOL * width);
    for (size_t i = 0; i < POOL; i++) {
        float value = next_normal(&n.state);
        encode(o->dtype, 0.03f * value, n.weights + i * width);
        encode(o->dtype, 1 + 0.03f * value, n.norms + i * width);
    }
    return n;
}

/* ---- the model ---- */

static int64_t head_size(int64_t hidden)
{
    for (int64_t size = 128; size > 8; size /= 2)
        if (hidden % size == 0 && hidden / size >= 4) return size;
    return 8;
}

static int64_t key_heads(int64_t heads)
{
    return heads % 4 == 0 ? heads / 4 : heads;
}

static void add_tensor(const options *o, tensor *t, int64_t rows, int64_t columns, bool norm,
                       const char *format, ...) __attribute__((format(printf, 6, 7)));

static void add_tensor(const options *o, tensor *t, int64_t rows, int64_t columns, bool norm,
                       const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->name, sizeof t->name, format, arguments);
    va_end(arguments);
    t->rows = rows;
    t->columns = columns;
    t->norm = norm;
    t->bytes = (uint64_t)rows * (uint64_t)(columns ? columns : 1) * width_of(o->dtype);
}

/* Fills `list` (room for 9 * layers + 3) and returns how many there are. */
static int64_t list_tensors(const options *o, tensor *list)
{
    int64_t n = 0, hidden = o->hidden, inner = o->intermediate;
    int64_t head = head_size(hidden), keys = key_heads(hidden / head) * head;
    add_tensor(o, &list[n++], o->vocab, hidden, false, "model.embed_tokens.weight");
    for (int i = 0; i < (int)o->layers; i++) {
        add_tensor(o, &list[n++], hidden, 0, true, "model.layers.%d.input_layernorm.weight", i);
        add_tensor(o, &list[n++], hidden, hidden, false, "model.layers.%d.self_attn.q_proj.weight", i);
        add_tensor(o, &list[n++], keys, hidden, false, "model.layers.%d.self_attn.k_proj.weight", i);
        add_tensor(o, &list[n++], keys, hidden, false, "model.layers.%d.self_attn.v_proj.weight", i);
        add_tensor(o, &list[n++], hidden, hidden, false, "model.layers.%d.self_attn.o_proj.weight", i);
        add_tensor(o, &list[n++], hidden, 0, true, "model.layers.%d.post_attention_layernorm.weight", i);
        add_tensor(o, &list[n++], inner, hidden, false, "model.layers.%d.mlp.gate_proj.weight", i);
        add_tensor(o, &list[n++], inner, hidden, false, "model.layers.%d.mlp.up_proj.weight", i);
        add_tensor(o, &list[n++], hidden, inner, false, "model.layers.%d.mlp.down_proj.weight", i);
    }
    add_tensor(o, &list[n++], hidden, 0, true, "model.norm.weight");
    if (!o->tied) add_tensor(o, &list[n++], o->vocab, hidden, false, "lm_head.weight");
    return n;
}

/* ---- files ---- */

static FILE *create(const options *o, const char *name)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", o->out, name) >= (int)sizeof path) fail("%s: too long", o->out);
    FILE *file = fopen(path, "wbx");
    if (file == NULL) fail("%s: %s", path, strerror(errno));
    return file;
}

static void finish(FILE *file, const char *name)
{
    int failed = ferror(file);
    if (fclose(file) != 0 || failed) fail("%s: %s", name, strerror(errno));
}

static void write_text(const options *o, const char *name, const char *text)
{
    FILE *file = create(o, name);
    fputs(text, file);
    finish(file, name);
}

static void write_config(const options *o)
{
    static const char *const torch[] = {"float32", "float16", "bfloat16"};
    int64_t head = head_size(o->hidden);
    FILE *file = create(o, "config.json");
    fprintf(file,
            "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
            "  \"hidden_size\": %" PRId64 ",\n  \"intermediate_size\": %" PRId64 ",\n"
            "  \"num_hidden_layers\": %" PRId64 ",\n  \"num_attention_heads\": %" PRId64 ",\n"
            "  \"num_key_value_heads\": %" PRId64 ",\n  \"head_dim\": %" PRId64
            ",\n  \"vocab_size\": %" PRId64 ",\n"
            "  \"max_position_embeddings\": 2048,\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": 1e-05,\n"
            "  \"rope_theta\": 10000.0,\n  \"attention_bias\": false,\n  \"mlp_bias\": false,\n"
            "  \"bos_token_id\": 1,\n  \"eos_token_id\": 2,\n  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"%s\"\n}\n",
            o->hidden, o->intermediate, o->layers, o->hidden / head, key_heads(o->hidden / head), head,
            o->vocab, o->tied ? "true" : "false", torch[o->dtype]);
    finish(file, "config.json");
}

static void write_companions(const options *o)
{
    char text[256];
    uint64_t state = o->seed + 1;
    write_text(o, "generation_config.json", "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2\n}\n");
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "{\"marker\": %" PRIu64 ", \"text\": \"\xc3\xa9 \xe6\xbc\xa2\"}\n",
                 next_random(&state) >> 12);
        write_text(o, i ? "tokenizer_config.json" : "tokenizer.json", text);
    }
}

static void shard_name(const options *o, int shard, char *name, size_t size)
{
    if (o->shards == 1) snprintf(name, size, "model.safetensors");
    else snprintf(name, size, "model-%05d-of-%05d.safetensors", shard + 1, (int)o->shards);
}

static void write_values(FILE *file, noise *n, const tensor *t, bool broken)
{
    size_t width = width_of(n->type);
    uint64_t left = t->bytes / width;
    for (bool first = true; left; first = false) {
        size_t count = left < CHUNK ? (size_t)left : CHUNK;
        size_t at = (size_t)(next_random(&n->state) % (POOL - CHUNK + 1));
        const unsigned char *from = (t->norm ? n->norms : n->weights) + at * width;
        if (first && broken) {
            unsigned char *copy = allocate(count * width);
            memcpy(copy, from, count * width);
            static const uint32_t words[2][3] = {{0x7fc00000u, 0x7e00, 0x7fc0},
                                                 {0xff800000u, 0xfc00, 0xff80}};
            for (size_t i = 0; i < 2 && i < count; i++) memcpy(copy + i * width, &words[i][n->type], width);
            fwrite(copy, width, count, file);
            free(copy);
        } else if (fwrite(from, width, count, file) != count) {
            return; /* finish() reports it */
        }
        left -= count;
    }
}

static void write_shard(const options *o, const tensor *list, int64_t count, int shard, noise *n)
{
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    char *header = NULL, name[64];
    size_t length;
    FILE *text = open_memstream(&header, &length);
    if (text == NULL) fail("out of memory");
    uint64_t end = 0;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", text);
    for (int64_t i = 0; i < count; i++) {
        const tensor *t = &list[i];
        if (t->shard != shard) continue;
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name, dtypes[o->dtype], t->rows);
        if (t->columns) fprintf(text, ",%" PRId64, t->columns);
        fprintf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", end, end + t->bytes);
        end += t->bytes;
    }
    fputc('}', text);
    while (ftell(text) % 8 != 0) fputc(' ', text); /* weights start aligned */
    if (fclose(text) != 0) fail("out of memory");

    shard_name(o, shard, name, sizeof name);
    FILE *file = create(o, name);
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)length >> 8 * i);
    fwrite(size, 1, 8, file);
    fwrite(header, 1, length, file);
    for (int64_t i = 0; i < count; i++)
        if (list[i].shard == shard)
            write_values(file, n, &list[i],
                         o->nan && strcmp(list[i].name, "model.layers.0.mlp.up_proj.weight") == 0);
    finish(file, name);
    free(header);
}

static void write_index(const options *o, const tensor *list, int64_t count, uint64_t total)
{
    char name[64];
    FILE *file = create(o, "model.safetensors.index.json");
    fprintf(file, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {", total);
    for (int64_t i = 0; i < count; i++) {
        shard_name(o, list[i].shard, name, sizeof name);
        fprintf(file, "%s\n    \"%s\": \"%s\"", i ? "," : "", list[i].name, name);
    }
    fputs("\n  }\n}\n", file);
    finish(file, "model.safetensors.index.json");
}

/* ---- options ---- */

static uint64_t read_number(const char *option, const char *text, uint64_t minimum, uint64_t maximum)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value < minimum || value > maximum)
        fail("%s: '%s' is not a number from %" PRIu64 " to %" PRIu64, option, text, minimum, maximum);
    return value;
}

static uint64_t read_size(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end) : NULL;
    if (unit) value *= pow(1000, (double)(unit - units + 1));
    if (end == text || (*end && (unit == NULL || end[1])) || !(value >= 1 && value < 1e15))
        fail("--size: '%s' is not a size like 200M or 4G", text);
    return (uint64_t)value;
}

static uint64_t total_bytes(const options *o)
{
    tensor *list = allocate((size_t)(9 * o->layers + 3) * sizeof *list);
    int64_t count = list_tensors(o, list);
    uint64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += list[i].bytes;
    free(list);
    return total;
}

/* Sizes of a model that has about o->size bytes, for those that were not given. */
static void choose_sizes(options *o)
{
    if (o->size == 0) {
        if (!o->hidden) o->hidden = 64;
        if (!o->intermediate) o->intermediate = 176;
        if (!o->vocab) o->vocab = 256;
        if (!o->layers) o->layers = 2;
        return;
    }
    if (!o->hidden)
        o->hidden = o->size >= 1000000000  ? 2048
                    : o->size >= 100000000 ? 1024
                    : o->size >= 4000000   ? 256
                                           : 64;
    if (!o->intermediate) o->intermediate = o->hidden * 11 / 4;
    if (!o->vocab) o->vocab = o->size >= 1000000000 ? 32000 : o->size >= 100000000 ? 4096 : 256;
    if (o->layers) return;
    o->layers = 1;
    uint64_t one = total_bytes(o);
    o->layers = 2;
    uint64_t layer = total_bytes(o) - one;
    uint64_t more = o->size > one ? (o->size - one + layer / 2) / layer : 0;
    o->layers = 1 + (int64_t)(more > 9999 ? 9999 : more);
}

static options read_options(int count, char **words)
{
    options o = {.dtype = BF16, .shards = 1};
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        if (strcmp(word, "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        }
        if (strcmp(word, "--tied") == 0) o.tied = true;
        else if (strcmp(word, "--nan") == 0) o.nan = true;
        else if (word[0] != '-' && o.out == NULL) o.out = word;
        else if (word[0] != '-' || i + 1 == count) fail("'%s': see --help", word);
        else {
            const char *value = words[++i];
            if (strcmp(word, "--dtype") == 0) {
                if (strcmp(value, "f32") == 0) o.dtype = F32;
                else if (strcmp(value, "f16") == 0) o.dtype = F16;
                else if (strcmp(value, "bf16") == 0) o.dtype = BF16;
                else fail("--dtype: '%s' is not f32, f16 or bf16", value);
            } else if (strcmp(word, "--layers") == 0) o.layers = (int64_t)read_number(word, value, 1, 10000);
            else if (strcmp(word, "--hidden") == 0) o.hidden = (int64_t)read_number(word, value, 8, 1 << 20);
            else if (strcmp(word, "--intermediate") == 0)
                o.intermediate = (int64_t)read_number(word, value, 1, 1 << 20);
            else if (strcmp(word, "--vocab") == 0) o.vocab = (int64_t)read_number(word, value, 1, 1 << 22);
            else if (strcmp(word, "--shards") == 0) o.shards = (int64_t)read_number(word, value, 1, 99999);
            else if (strcmp(word, "--seed") == 0) o.seed = read_number(word, value, 0, UINT64_MAX);
            else if (strcmp(word, "--size") == 0) o.size = read_size(value);
            else fail("there is no option %s; see --help", word);
        }
    }
    if (o.out == NULL) fail("which folder? see --help");
    choose_sizes(&o);
    if (o.hidden % 8 != 0) fail("--hidden: %" PRId64 " is not a multiple of 8", o.hidden);
    return o;
}

int main(int count, char **words)
{
    options o = read_options(count, words);
    tensor *list = allocate((size_t)(9 * o.layers + 3) * sizeof *list);
    int64_t tensors = list_tensors(&o, list);
    if (o.shards > tensors) fail("--shards: there are only %" PRId64 " tensors", tensors);
    uint64_t total = 0, before = 0;
    for (int64_t i = 0; i < tensors; i++) total += list[i].bytes;
    /* Shards of about the same size, and none of them empty. */
    for (int64_t i = 0, shard = 0; i < tensors; i++) {
        int64_t due = (int64_t)((double)before / (double)total * (double)o.shards);
        if (i > 0 && shard + 1 < o.shards && (due > shard || tensors - i < o.shards - shard)) shard++;
        list[i].shard = (int)shard;
        before += list[i].bytes;
    }
    if (mkdir(o.out, 0777) != 0) fail("%s: %s", o.out, strerror(errno));
    noise n = make_noise(&o);
    write_config(&o);
    write_companions(&o);
    for (int shard = 0; shard < o.shards; shard++) write_shard(&o, list, tensors, shard, &n);
    if (o.shards > 1) write_index(&o, list, tensors, total);
    free(n.weights);
    free(n.norms);
    free(list);
    return 0;
}
