/* optimizer.c - collects trained tensors, runs AdamW, saves and loads the moments. See optimizer.h.
 *
 * Layout of the moments of one tensor, each part rounded up to 64 bytes:
 *
 *     32 bits   | m f32[n] | v f32[n] |
 *      8 bits   | m u8[n]  | v u8[n]  | m_absmax f32[n/256] | v_absmax f32[n/256] |
 *
 * Tensors follow each other in the graph's order. nbl__moment_bytes computes the same sum. */
#include "train/optimizer.h"

#include "device/device_memory.h"

enum { SCALE_BLOCK = 256 }; /* elements per scale of 8-bit moments, as in bitsandbytes */

/* True if `part` occurs in the name at the end of one of its dot-separated components. */
static bool has_part(const char *name, const char *part)
{
    size_t n = strlen(part);
    for (const char *at = name; (at = strstr(at, part)); at++)
        if (at[n] == '\0' || at[n] == '.') return true;
    return false;
}

/* transformers' rule: every tensor decays except biases and norms. transformers tells these by their
 * names, so names decide here too, and not the roles of weights. */
static bool decays(const char *name)
{
    return strstr(name, "bias") == NULL && strstr(name, "layernorm") == NULL &&
           strstr(name, "rmsnorm") == NULL && strncmp(name, "norm.", 5) != 0 && !has_part(name, ".norm") &&
           !has_part(name, "_norm");
}

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Takes the moments of one tensor from `cut`, in the layout of the file head. */
static void cut_moments(nbl__bump *bump, nbl__trained *t)
{
    int64_t n = nbl__tensor_elements(&t->adam.p), blocks = nbl__ceil_div(n, SCALE_BLOCK);
    nbl_dtype dtype = t->bits == 8 ? NBL_DTYPE_U8 : NBL_DTYPE_F32;
    size_t bytes = round_up((size_t)n * (size_t)t->bits / 8);
    t->adam.m = t->adam.v = t->adam.p;
    t->adam.m.dtype = t->adam.v.dtype = dtype;
    t->adam.m.data = nbl__bump_alloc(bump, bytes);
    t->adam.v.data = nbl__bump_alloc(bump, bytes);
    if (t->bits != 8) return;
    t->adam.m_absmax = nbl_vector(NBL_DTYPE_F32, blocks, nbl__bump_alloc(bump, round_up((size_t)blocks * 4)));
    t->adam.v_absmax = nbl_vector(NBL_DTYPE_F32, blocks, nbl__bump_alloc(bump, round_up((size_t)blocks * 4)));
}

static bool is_trained(const nbl__value_info *info)
{
    return info->trained && info->gradient;
}

static nbl__trained describe(const nbl__value_info *info, bool adam8bit)
{
    nbl__trained t = {.name = info->name, .decays = decays(info->name), .adam.p = info->tensor};
    t.bits = nbl__moment_bits(info, adam8bit ? 8 : 32);
    return t;
}

/* Counts the trained tensors, allocates everything for them, then connects each with its memory. */
static nbl_status open_tensors(nbl__session *s, bool adam8bit, nbl__optimizer *o)
{
    for (nbl__value v = 1; v <= s->graph.value_count; v++) o->count += is_trained(&s->graph.values[v]);
    NBL_CHECK(o->ctx, o->count > 0, NBL_ERROR_ARGUMENT, "nothing is trained");
    o->tensors = nbl__arena_alloc(&o->arena, (size_t)o->count * sizeof *o->tensors);
    o->gradients = nbl__arena_alloc(&o->arena, (size_t)o->count * sizeof *o->gradients);
    o->group = nbl__arena_alloc(&o->arena, (size_t)o->count * sizeof *o->group);
    if (o->tensors == NULL || o->gradients == NULL || o->group == NULL) return NBL_ERROR_MEMORY;
    o->moment_bytes = (size_t)nbl__moment_bytes(&s->graph, adam8bit ? 8 : 32);
    o->moments = nbl__memory_alloc(o->ctx, o->moment_bytes);
    o->clipping = nbl__memory_alloc(o->ctx, sizeof *o->clipping);
    if (o->moments == NULL || o->clipping == NULL) return NBL_ERROR_MEMORY;
    nbl__bump bump = {o->moments, 0};
    int64_t i = 0;
    for (nbl__value v = 1; v <= s->graph.value_count; v++) {
        const nbl__value_info *info = &s->graph.values[v];
        if (!is_trained(info)) continue;
        nbl__trained *t = &o->tensors[i];
        *t = describe(info, adam8bit);
        cut_moments(&bump, t);
        t->adam.p.data = nbl__plan_address(&s->plan, v);
        t->adam.g = s->graph.values[info->gradient].tensor;
        t->adam.g.data = nbl__plan_address(&s->plan, info->gradient);
        o->gradients[i++] = t->adam.g;
    }
    return NBL_OK;
}

nbl_status nbl__optimizer_open(nbl__session *s, bool adam8bit, nbl__optimizer *o)
{
    *o = (nbl__optimizer){.ctx = s->model->ctx, .arena = nbl__arena_make(s->model->ctx)};
    nbl_status status = open_tensors(s, adam8bit, o);
    if (status != NBL_OK) nbl__optimizer_close(o);
    return status;
}

void nbl__optimizer_close(nbl__optimizer *o)
{
    if (o->ctx == NULL) return;
    nbl__memory_free(o->ctx, o->moments, o->moment_bytes);
    nbl__memory_free(o->ctx, o->clipping, sizeof *o->clipping);
    nbl__arena_free(&o->arena);
    *o = (nbl__optimizer){0};
}

nbl_status nbl__optimizer_norm(nbl__optimizer *o, double max_norm, nbl__clipping *clipping)
{
    NBL_TRY(nbl__grad_norm_enqueue(o->ctx, o->gradients, o->count, max_norm, o->clipping));
    return nbl__memory_read_async(o->ctx, clipping, o->clipping, sizeof *clipping);
}

nbl_status nbl__optimizer_step(nbl__optimizer *o, const nbl__run_config *config, double lr, double grad_scale,
                               int64_t step)
{
    /* Learning rate and step are arguments of these launches, which no captured graph contains. So
     * their change at every step prevents no replay.
     *
     * An AdamW call has one weight decay and one number of bits: up to four calls. Bit 0 of
     * kind: decay; bit 1: 8-bit moments. */
    for (int kind = 0; kind < 4; kind++) {
        nbl_adamw call = {.tensors = o->group,
                          .lr = lr,
                          .beta1 = config->beta1,
                          .beta2 = config->beta2,
                          .eps = config->epsilon,
                          .weight_decay = kind & 1 ? config->weight_decay : 0,
                          .grad_scale = grad_scale,
                          .step = step,
                          .bits = kind & 2 ? 8 : 32,
                          .grad_factor = &o->clipping->factor};
        for (int64_t i = 0; i < o->count; i++) {
            const nbl__trained *t = &o->tensors[i];
            if (t->decays == (kind & 1) && t->bits == call.bits) o->group[call.count++] = t->adam;
        }
        if (call.count) NBL_TRY(nbl_adamw_step(o->ctx, &call));
    }
    return NBL_OK;
}

/* ---- files ---- */

/* The parts of one tensor's moments, in the order of part_names. Returns how many there are: 2
 * or 4. */
static int parts_of(nbl__trained *t, nbl_tensor *parts[4])
{
    parts[0] = &t->adam.m;
    parts[1] = &t->adam.v;
    parts[2] = &t->adam.m_absmax;
    parts[3] = &t->adam.v_absmax;
    return t->bits == 8 ? 4 : 2;
}
static const char *const part_names[] = {"m", "v", "m.absmax", "v.absmax"};

static size_t bytes_of(const nbl_tensor *t)
{
    return (size_t)nbl__tensor_elements(t) * (t->dtype == NBL_DTYPE_U8 ? 1 : sizeof(float));
}

/* Declares all tensors of the file, then writes their data in the same order. */
static nbl_status put_moments(nbl__optimizer *o, nbl__safetensors_writer *writer, nbl__arena *arena,
                              nbl__output *output)
{
    nbl_tensor *parts[4];
    int64_t number = 0;
    uint64_t bytes;
    int files;
    for (int64_t i = 0; i < o->count; i++)
        for (int k = 0, n = parts_of(&o->tensors[i], parts); k < n; k++) {
            const char *name = nbl__arena_printf(arena, "%s.%s", o->tensors[i].name, part_names[k]);
            if (name == NULL) return NBL_ERROR_MEMORY;
            NBL_TRY(nbl__safetensors_writer_declare(writer, 0, name, parts[k]->dtype, parts[k]->rank,
                                                    parts[k]->shape, &number));
        }
    NBL_TRY(nbl__safetensors_writer_layout(writer, UINT64_MAX, &bytes, &files));
    NBL_TRY(nbl__safetensors_writer_begin_group(writer, output, 0));
    number = 0;
    for (int64_t i = 0; i < o->count; i++)
        for (int k = 0, n = parts_of(&o->tensors[i], parts); k < n; k++, number++) {
            void *host;
            NBL_TRY(nbl__memory_map_host(o->ctx, parts[k]->data, bytes_of(parts[k]), true, &host));
            NBL_TRY(nbl__safetensors_writer_write_all(writer, number, host));
        }
    return nbl__safetensors_writer_finish(writer, output, &bytes);
}

nbl_status nbl__optimizer_put(nbl__optimizer *o, nbl__output *output)
{
    nbl__arena arena = nbl__arena_make(o->ctx);
    nbl__safetensors_writer *writer;
    nbl_status status = nbl__safetensors_writer_create(o->ctx, &writer);
    if (status == NBL_OK) {
        nbl__safetensors_writer_name(writer, "optimizer");
        status = put_moments(o, writer, &arena, output);
        nbl__safetensors_writer_free(writer);
    }
    nbl__arena_free(&arena);
    return status;
}

/* The stored tensor "name.part", or NULL. */
static const nbl__stored *find(const nbl__stored *stored, int64_t count, const char *name, const char *part)
{
    size_t n = strlen(name);
    for (int64_t i = 0; i < count; i++)
        if (strncmp(stored[i].name, name, n) == 0 && stored[i].name[n] == '.' &&
            strcmp(stored[i].name + n + 1, part) == 0)
            return &stored[i];
    return NULL;
}

/* Copies every stored moment into the optimizer. The file must hold exactly the run's moments. */
static nbl_status load_moments(nbl__optimizer *o, const char *path, const nbl__file *file,
                               const nbl__stored *stored, int64_t count)
{
    nbl_tensor *parts[4];
    int64_t used = 0;
    for (int64_t i = 0; i < o->count; i++)
        for (int k = 0, n = parts_of(&o->tensors[i], parts); k < n; k++, used++) {
            const nbl__stored *t = find(stored, count, o->tensors[i].name, part_names[k]);
            NBL_CHECK(o->ctx, t, NBL_ERROR_FORMAT, "%s: no \"%s.%s\" (another optimizer or other modules?)",
                      path, o->tensors[i].name, part_names[k]);
            NBL_CHECK(o->ctx, t->dtype == parts[k]->dtype && t->elements == nbl__tensor_elements(parts[k]),
                      NBL_ERROR_SHAPE, "%s: \"%s\" is %s %s, the run has %s %s", path, t->name,
                      nbl_dtype_name(t->dtype), nbl__show_shape(t->rank, t->shape).text,
                      nbl_dtype_name(parts[k]->dtype), nbl__show_shape(parts[k]->rank, parts[k]->shape).text);
            NBL_TRY(nbl__progress_poll(o->ctx, t->name));
            NBL_TRY(nbl__memory_write(o->ctx, parts[k]->data, t->data, t->bytes));
            nbl__file_drop(file, t->data, t->bytes);
        }
    NBL_CHECK(o->ctx, used == count, NBL_ERROR_FORMAT,
              "%s: moments of %" PRId64 " tensors that the run does not train", path, count - used);
    return NBL_OK;
}

nbl_status nbl__optimizer_load(nbl__optimizer *o, const char *folder)
{
    nbl__arena arena = nbl__arena_make(o->ctx);
    nbl__file file = {0};
    nbl__stored *stored;
    int64_t count;
    const char *path = nbl__arena_printf(&arena, "%s/optimizer.safetensors", folder);
    nbl_status status = path ? nbl__file_map(o->ctx, path, &file) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) {
        status = nbl__safetensors_parse(&arena, path, file.data, file.size, &stored, &count);
        if (status == NBL_OK) status = load_moments(o, path, &file, stored, count);
        nbl__file_unmap(&file);
    }
    nbl__arena_free(&arena);
    return status;
}
