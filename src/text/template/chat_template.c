/* chat_template.c - renders a chat: chooses the template, sets the variables that transformers
 * sets, runs the template, and reports errors.
 *
 *     nbl_chat (JSON texts) ─take_chat▶ values ─make_context▶ variables
 *     sources ─choose_source▶ source ─parse_source▶ program (kept for later renderings)
 *     program + variables ─run▶ text, spans  ─finish▶ nbl_rendering
 *
 * A rendering is a `job`. It has its own virtual machine (tpl_vm) with its own arena, which is
 * freed with the job. Only the text, the spans or the error are copied out. Errors in a template
 * begin with FILE:LINE:COLUMN.
 *
 * Threads: rendering parses a source at its first use, so one template is used by one thread at a
 * time. */
#include "text/template/chat_template.h"

#include <stdio.h>

#include "base/file/file.h"
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/named_templates.h"

/* ---- open and close ---- */

/* Makes a template without sources. */
static nbl_status new_template(nbl_context *ctx, nbl_chat_template **result)
{
    nbl_chat_template *t;
    *result = NULL;
    NBL_TRY(NBL_ALLOC(ctx, t, 1));
    t->ctx = ctx;
    t->arena = nbl__arena_make(ctx);
    *result = t;
    return NBL_OK;
}

void nbl_chat_template_close(nbl_chat_template *t)
{
    if (t == NULL) return;
    for (int i = 0; i < t->count; i++)
        if (t->sources[i].parsed) nbl__arena_free(&t->sources[i].program.arena);
    nbl_context *ctx = t->ctx;
    nbl__arena_free(&t->arena);
    nbl__free(ctx, t, sizeof *t);
}

/* Reads the adapter's folder. Its special tokens replace the model's tokens of the same name. If it
 * has templates, they replace all of the model's. `told`: log which template is used. */
static nbl_status read_adapter(nbl_chat_template *t, const char *adapter, bool told)
{
    nbl_chat_template before = *t;
    t->sources = NULL;
    t->count = t->room = 0;
    t->model = nbl__arena_strdup(&t->arena, adapter);
    if (t->model == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = nbl__chat_read_model(t);
    t->model = before.model;
    if (status != NBL_OK) return status;
    if (t->count && told)
        nbl__log(t->ctx, NBL_LOG_INFO, "the chat template is the adapter's: %s", t->sources[0].file);
    if (t->count) return NBL_OK;
    t->sources = before.sources;
    t->count = before.count;
    t->room = before.room;
    return NBL_OK;
}

/* Reads the model's templates and tokens, then the adapter's. A `file` replaces all templates: an
 * existing file, or the name of a built-in template. */
static nbl_status open_template(nbl_chat_template *t, const char *model, const char *adapter,
                                const char *file)
{
    t->model = nbl__arena_strdup(&t->arena, model);
    if (t->model == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__chat_read_model(t));
    if (adapter && nbl__is_folder(adapter)) NBL_TRY(read_adapter(t, adapter, file == NULL));
    if (file == NULL) return NBL_OK;
    t->count = 0;
    const char *text = nbl__exists(file) ? NULL : nbl__named_template(file);
    if (text == NULL) return nbl__chat_read_file(t, file, "default");
    return nbl__chat_add_source(t, "default", nbl__arena_strdup(&t->arena, file),
                                (nbl_string){text, strlen(text)});
}

/* The model's files are read even if `file` is given: they have the special tokens. */
nbl_status nbl_chat_template_open_adapted(nbl_context *ctx, const char *model, const char *adapter,
                                          const char *file, nbl_chat_template **result)
{
    NBL_CHECK(ctx, model && result, NBL_ERROR_ARGUMENT, "nbl_chat_template_open: an argument is NULL");
    NBL_TRY(new_template(ctx, result));
    nbl_status status = open_template(*result, model, adapter, file);
    if (status == NBL_OK) return NBL_OK;
    nbl_chat_template_close(*result);
    *result = NULL;
    return status;
}

nbl_status nbl_chat_template_open(nbl_context *ctx, const char *model, const char *file,
                                  nbl_chat_template **result)
{
    return nbl_chat_template_open_adapted(ctx, model, NULL, file, result);
}

int64_t nbl_chat_template_count(const nbl_chat_template *t)
{
    return t->count;
}

nbl_status nbl_chat_template_parse(nbl_context *ctx, const char *name, nbl_string text,
                                   nbl_chat_template **result)
{
    NBL_CHECK(ctx, name && text.text && result, NBL_ERROR_ARGUMENT,
              "nbl_chat_template_parse: an argument is NULL");
    NBL_TRY(new_template(ctx, result));
    nbl_chat_template *t = *result;
    char *copy = nbl__arena_alloc(&t->arena, text.size + 1);
    const char *file = nbl__arena_strdup(&t->arena, name);
    nbl_status status = NBL_ERROR_MEMORY;
    if (copy && file) {
        if (text.size) memcpy(copy, text.text, text.size);
        status = nbl__chat_add_source(t, "default", file, (nbl_string){copy, text.size});
    }
    if (status == NBL_OK) return NBL_OK;
    nbl_chat_template_close(t);
    *result = NULL;
    return status;
}

/* ---- one rendering ---- */

/* One rendering, from the request to the result. */
typedef struct job {
    nbl_chat_template *t;
    tpl_vm vm;
    tpl_value messages, tools, documents;
    tpl_dict *variables;
    bool generation_prompt;
    nbl__chat_source own; /* the template that a line of a batch brings along */
    const char *file;     /* of the template that runs; NULL: an error is not in a template */
} job;

/* Checks that messages is a list of objects. Templates look for a message's reasoning under
 * different names, so the first of reasoning_content, thinking and reasoning is copied to
 * `thinking`, unless that is set, and to `reasoning_content`. */
static nbl_status take_messages(job *j, tpl_value messages)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    tpl_vm *vm = &j->vm;
    tpl_value *items, thinking, content;
    if (messages.type != TPL_LIST) return nbl__tpl_raise(vm, "messages: not a list of objects");
    NBL_TRY(nbl__tpl_list(vm, TPL_LIST, messages.list->count, &j->messages, &items));
    NBL_TRY(nbl__tpl_cstring(vm, "thinking", &thinking));
    NBL_TRY(nbl__tpl_cstring(vm, "reasoning_content", &content));
    for (int64_t i = 0; i < messages.list->count; i++) {
        tpl_value message = items[i] = messages.list->items[i], thought = tpl_missing();
        if (message.type != TPL_DICT)
            return nbl__tpl_raise(vm, "messages: entry %" PRId64 " is not an object", i);
        for (int k = 0; k < 3 && thought.type == TPL_MISSING; k++) {
            const tpl_entry *entry = nbl__tpl_dict_get(message.dict, names[k], strlen(names[k]));
            if (entry && entry->value.type != TPL_NONE) thought = entry->value;
        }
        if (thought.type == TPL_MISSING) continue;
        NBL_TRY(nbl__tpl_dict(vm, &items[i].dict));
        NBL_TRY(nbl__tpl_dict_set(vm, items[i].dict, thinking, thought));
        NBL_TRY(nbl__tpl_dict_merge(vm, items[i].dict, message.dict));
        NBL_TRY(nbl__tpl_dict_set(vm, items[i].dict, content, thought));
    }
    return NBL_OK;
}

/* Checks that `value` is a list of objects, or none, and stores it in *kept. */
static nbl_status take_objects(job *j, const char *what, tpl_value value, tpl_value *kept)
{
    *kept = value;
    if (value.type == TPL_NONE) return NBL_OK;
    if (value.type != TPL_LIST) return nbl__tpl_raise(&j->vm, "%s: not a list of objects", what);
    for (int64_t i = 0; i < value.list->count; i++)
        if (value.list->items[i].type != TPL_DICT)
            return nbl__tpl_raise(&j->vm, "%s: entry %" PRId64 " is not an object", what, i);
    return NBL_OK;
}

/* Sets a variable of the request. The reserved names are those that the request sets in other
 * ways. */
static nbl_status set_variable(job *j, tpl_value name, tpl_value value)
{
    static const char *const reserved[] = {"messages",
                                           "tools",
                                           "add_generation_prompt",
                                           "conversations",
                                           "chat_template",
                                           "return_assistant_tokens_mask",
                                           "continue_final_message"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (tpl_same(name.string, reserved[i]))
            return nbl__tpl_raise(&j->vm, "the variable %s cannot be set: it has its own place in a request",
                                  reserved[i]);
    if (tpl_same(name.string, "documents")) return take_objects(j, "documents", value, &j->documents);
    return nbl__tpl_dict_set(&j->vm, j->variables, name, value);
}

/* Sets a variable of the template. */
static nbl_status put(job *j, const char *name, tpl_value value)
{
    tpl_value key;
    NBL_TRY(nbl__tpl_cstring(&j->vm, name, &key));
    return nbl__tpl_dict_set(&j->vm, j->vm.context, key, value);
}

/* Fills the variables of the template. Later ones replace earlier ones of the same name: globals,
 * special tokens, the caller's variables, and the four variables of every request. */
static nbl_status make_context(job *j)
{
    tpl_vm *vm = &j->vm;
    NBL_TRY(nbl__tpl_dict(vm, &vm->context));
    NBL_TRY(nbl__tpl_globals(vm, vm->context));
    for (int i = 0; i < j->t->token_count; i++) {
        tpl_value text;
        NBL_TRY(nbl__tpl_string(vm, j->t->tokens[i].text.text, j->t->tokens[i].text.size, &text));
        NBL_TRY(put(j, j->t->tokens[i].name, text));
    }
    NBL_TRY(nbl__tpl_dict_merge(vm, vm->context, j->variables));
    NBL_TRY(put(j, "messages", j->messages));
    NBL_TRY(put(j, "tools", j->tools));
    NBL_TRY(put(j, "documents", j->documents));
    return put(j, "add_generation_prompt", tpl_bool(j->generation_prompt));
}

/* Parses a source unless it is parsed already. The program gets its own arena, because it outlives
 * the job. */
static nbl_status parse_source(job *j, nbl__chat_source *source)
{
    if (source->parsed) return NBL_OK;
    tpl_vm *vm = nbl__alloc(j->t->ctx, sizeof *vm);
    if (vm == NULL) return j->vm.status = NBL_ERROR_MEMORY;
    *vm = (tpl_vm){.ctx = j->t->ctx, .arena = nbl__arena_make(j->t->ctx)};
    nbl_status status = nbl__tpl_parse(vm, source->text.text, source->text.size, &source->program);
    source->parsed = status == NBL_OK;
    if (status != NBL_OK) {
        j->vm.line = vm->line;
        j->vm.column = vm->column;
        j->vm.status = status;
        memcpy(j->vm.message, vm->message, sizeof vm->message);
    }
    nbl__arena_free(&vm->arena);
    nbl__free(j->t->ctx, vm, sizeof *vm);
    return status;
}

/* Chooses the template, as transformers does: the line's own, else "tool_use" if there are tools,
 * else "default". */
static nbl_status choose_source(job *j, nbl__chat_source **source)
{
    nbl_chat_template *t = j->t;
    *source = NULL;
    if (j->own.text.text) return *source = &j->own, NBL_OK;
    for (int i = 0; i < t->count; i++) {
        const char *name = t->sources[i].name;
        if (strcmp(name, "tool_use") == 0 && j->tools.type != TPL_NONE)
            return *source = &t->sources[i], NBL_OK;
        if (strcmp(name, "default") == 0) *source = &t->sources[i];
    }
    if (*source) return NBL_OK;
    if (t->count)
        return nbl__tpl_raise(&j->vm, "%s: several chat templates, none of them called default", t->model);
    return nbl__tpl_raise(&j->vm,
                          "%s: no chat template: neither chat_template.jinja nor chat_template in "
                          "tokenizer_config.json",
                          t->model ? t->model : "");
}

/* Chooses, parses and runs the template. From here on an error has the position in the template's
 * file. */
static nbl_status run_job(job *j)
{
    nbl__chat_source *source;
    NBL_TRY(choose_source(j, &source));
    j->file = source->file;
    NBL_TRY(parse_source(j, source));
    NBL_TRY(make_context(j));
    j->vm.line = j->vm.column = 1;
    return nbl__tpl_run(&j->vm, &source->program);
}

/* ---- results ---- */

void nbl_rendering_free(nbl_rendering *r)
{
    if (r == NULL) return;
    nbl_context *ctx = r->ctx;
    nbl__free(ctx, r->text, r->size + 1);
    nbl__free(ctx, r->spans, (size_t)r->span_count * sizeof *r->spans);
    nbl__free(ctx, r->error, r->error_size + 1);
    nbl__free(ctx, r, sizeof *r);
}

nbl_string nbl_rendering_text(const nbl_rendering *r)
{
    return (nbl_string){r->text, r->size};
}

nbl_string nbl_rendering_error(const nbl_rendering *r)
{
    return (nbl_string){r->error, r->error_size};
}

bool nbl_rendering_span(const nbl_rendering *r, int64_t index, int64_t *start, int64_t *end)
{
    if (index < 0 || index >= r->span_count) return false;
    *start = r->spans[index].start;
    *end = r->spans[index].end;
    return true;
}

/* Writes "FILE:LINE:COLUMN: " if the error is in a template, else an empty text. */
static void location_of(const job *j, char *location, size_t size)
{
    *location = '\0';
    if (j->file) snprintf(location, size, "%s:%d:%d: ", j->file, j->vm.line, j->vm.column);
}

/* Keeps the error's text: the whole message of raise_exception, or the machine's own. */
static nbl_status keep_error(const job *j, nbl_rendering *r)
{
    char location[600];
    location_of(j, location, sizeof location);
    size_t before = strlen(location), size = j->vm.own ? j->vm.own->size : strlen(j->vm.message);
    NBL_TRY(NBL_ALLOC(r->ctx, r->error, before + size + 1));
    r->error_size = before + size;
    memcpy(r->error, location, before);
    if (size) memcpy(r->error + before, j->vm.own ? j->vm.own->bytes : j->vm.message, size);
    return NBL_OK;
}

/* Copies the text and the spans of {% generation %} out of the machine. */
static nbl_status keep_text(const job *j, nbl_rendering *r)
{
    NBL_TRY(NBL_ALLOC(r->ctx, r->text, j->vm.text.size + 1));
    r->size = j->vm.text.size;
    if (r->size) memcpy(r->text, j->vm.text.bytes, r->size);
    NBL_TRY(NBL_ALLOC(r->ctx, r->spans, j->vm.span_count));
    r->span_count = j->vm.span_count;
    if (r->span_count) memcpy(r->spans, j->vm.spans, (size_t)r->span_count * sizeof *r->spans);
    return NBL_OK;
}

/* Reports the failure of a job to the context. */
static nbl_status report_failure(const job *j, nbl_status status)
{
    char location[600];
    if (status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED) return status;
    location_of(j, location, sizeof location);
    return nbl__fail(j->t->ctx, status, "%s%s", location, j->vm.message);
}

/* Makes the result of a job. If the job failed: `errors` makes a rendering with the error and
 * returns NBL_OK; otherwise the failure is returned. */
static nbl_status finish(job *j, nbl_status status, bool errors, nbl_rendering **result)
{
    nbl_rendering *r;
    bool own = status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED; /* not caused by the template */
    if (status != NBL_OK && (!errors || own)) return report_failure(j, status);
    NBL_TRY(NBL_ALLOC(j->t->ctx, r, 1));
    r->ctx = j->t->ctx;
    status = status == NBL_OK ? keep_text(j, r) : keep_error(j, r);
    if (status == NBL_OK) return *result = r, NBL_OK;
    nbl_rendering_free(r);
    return status;
}

/* Makes a job with an empty machine. */
static nbl_status new_job(nbl_chat_template *t, job **j)
{
    NBL_TRY(NBL_ALLOC(t->ctx, *j, 1));
    (*j)->t = t;
    (*j)->vm = (tpl_vm){.ctx = t->ctx, .arena = nbl__arena_make(t->ctx)};
    (*j)->tools = (*j)->documents = tpl_none();
    return NBL_OK;
}

static void free_job(job *j)
{
    nbl_context *ctx = j->t->ctx;
    if (j->own.parsed) nbl__arena_free(&j->own.program.arena);
    nbl__arena_free(&j->vm.arena);
    nbl__free(ctx, j, sizeof *j);
}

/* ---- requests ---- */

/* Reads the JSON of a request. A variable whose value is not JSON is a text: --set name=Anna. */
static nbl_status take_chat(job *j, const nbl_chat *chat)
{
    tpl_vm *vm = &j->vm;
    tpl_value value, name;
    NBL_TRY(nbl__tpl_dict(vm, &j->variables));
    NBL_TRY(nbl__tpl_from_json(vm, chat->messages_name ? chat->messages_name : "messages",
                               chat->messages.text, chat->messages.size, &value));
    NBL_TRY(take_messages(j, value));
    if (chat->tools.text) {
        const char *where = chat->tools_name ? chat->tools_name : "tools";
        NBL_TRY(nbl__tpl_from_json(vm, where, chat->tools.text, chat->tools.size, &value));
        NBL_TRY(take_objects(j, where, value, &j->tools));
    }
    j->generation_prompt = chat->generation_prompt != 0;
    for (int64_t i = 0; i < chat->variable_count; i++) {
        const nbl_chat_variable *v = &chat->variables[i];
        NBL_TRY(nbl__tpl_cstring(vm, v->name, &name));
        if (nbl__tpl_from_json(vm, "", v->value.text, v->value.size, &value) != NBL_OK) {
            if (vm->status != NBL_ERROR_FORMAT) return vm->status;
            vm->status = NBL_OK; /* a value that is not JSON is a string */
            tpl_value text;
            NBL_TRY(nbl__tpl_cstring(vm, "", &text));
            NBL_TRY(nbl__tpl_string(vm, v->value.text, v->value.size, &value));
        }
        NBL_TRY(set_variable(j, name, value));
    }
    return NBL_OK;
}

nbl_status nbl_chat_template_render(nbl_chat_template *t, const nbl_chat *chat, nbl_rendering **rendering)
{
    job *j;
    NBL_CHECK(t->ctx,
              chat && rendering && chat->messages.text && (chat->variables || chat->variable_count == 0),
              NBL_ERROR_ARGUMENT, "nbl_chat_template_render: an argument is NULL");
    *rendering = NULL;
    NBL_TRY(new_job(t, &j));
    nbl_status status = take_chat(j, chat);
    if (status == NBL_OK) status = run_job(j);
    status = finish(j, status, false, rendering);
    free_job(j);
    return status;
}

/* Reads the members of a line of a batch: messages, tools, generation_prompt, template and set. */
static nbl_status take_line(job *j, tpl_value line)
{
    tpl_vm *vm = &j->vm;
    tpl_value messages, *items;
    tpl_dict *members = line.dict;
    tpl_entry *entry;
    NBL_TRY(nbl__tpl_dict(vm, &j->variables));
    NBL_TRY(nbl__tpl_list(vm, TPL_LIST, 0, &messages, &items));
    if ((entry = nbl__tpl_dict_get(members, "messages", 8))) messages = entry->value;
    NBL_TRY(take_messages(j, messages));
    if ((entry = nbl__tpl_dict_get(members, "tools", 5)))
        NBL_TRY(take_objects(j, "tools", entry->value, &j->tools));
    if ((entry = nbl__tpl_dict_get(members, "generation_prompt", 17)))
        NBL_TRY(nbl__tpl_truth(vm, entry->value, &j->generation_prompt));
    if ((entry = nbl__tpl_dict_get(members, "template", 8)) && entry->value.type != TPL_NONE) {
        if (entry->value.type != TPL_STRING) return nbl__tpl_raise(vm, "template: not a text");
        j->own = (nbl__chat_source){.name = "default", .file = "template"};
        j->own.text = (nbl_string){entry->value.string->bytes, entry->value.string->size};
    }
    if ((entry = nbl__tpl_dict_get(members, "set", 3)) == NULL || entry->value.type == TPL_NONE)
        return NBL_OK;
    if (entry->value.type != TPL_DICT) return nbl__tpl_raise(vm, "set: not an object");
    for (int64_t i = 0; i < entry->value.dict->count; i++)
        NBL_TRY(set_variable(j, entry->value.dict->entries[i].key, entry->value.dict->entries[i].value));
    return NBL_OK;
}

/* A line that is no JSON object fails; everything that is wrong inside it becomes an error in its
 * rendering. */
nbl_status nbl_chat_template_render_line(nbl_chat_template *t, const char *where, nbl_string line,
                                         nbl_rendering **rendering)
{
    job *j;
    tpl_value value;
    NBL_CHECK(t->ctx, where && line.text && rendering, NBL_ERROR_ARGUMENT,
              "nbl_chat_template_render_line: an argument is NULL");
    *rendering = NULL;
    NBL_TRY(new_job(t, &j));
    nbl_status status = nbl__tpl_from_json(&j->vm, where, line.text, line.size, &value);
    if (status == NBL_OK && value.type != TPL_DICT)
        status = nbl__tpl_raise(&j->vm, "%s: JSON, but not an object", where);
    if (status != NBL_OK) {
        status = report_failure(j, status);
    } else {
        status = take_line(j, value);
        if (status == NBL_OK) status = run_job(j);
        status = finish(j, status, true, rendering);
    }
    free_job(j);
    return status;
}
