/* named_templates.c - the texts of the named templates; see named_templates.h.
 *
 * The templates are put together from macros and string literals. There is no white space between
 * tags, or '-' strips it. So a template prints only the texts that stand in it.
 *
 *     chatml = EACH "{{ '<|im_start|>' + … }}" END ANSWER_NEXT("'<|im_start|>assistant\\n'")
 *       ─▶ {%- for message in messages -%}{{ … }}{%- endfor -%}
 *          {%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%} */
#include "text/template/named_templates.h"

/* Sets the template's variable `said`: the content of a message as one text. Content may be a list
 * of parts with "text". */
#define SAID                                                                                                 \
    "{%- set said = message.content if message.content is string else message.content | default([], true)"   \
    " | selectattr('text', 'defined') | map(attribute='text') | join('') -%}"
/* A loop over the messages. */
#define EACH "{%- for message in messages -%}"
#define END "{%- endfor -%}"
/* What opens the model's answer; `text` is an expression of Jinja. */
#define ANSWER_NEXT(text) "{%- if add_generation_prompt -%}{{ " text " }}{%- endif -%}"
#define BOS "{{ bos_token }}"

/* ---- one line per turn ---- */

static const char chatml[] = EACH
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}" END ANSWER_NEXT(
        "'<|im_start|>assistant\\n'");

static const char llama3[] = EACH
    "{%- if loop.first -%}{{ bos_token }}{%- endif -%}" SAID
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + said | trim + '<|eot_id|>' }}" END
        ANSWER_NEXT("'<|start_header_id|>assistant<|end_header_id|>\\n\\n'");

static const char phi_3[] = BOS EACH
    "{%- set user = message.role == 'user' -%}"
    "{%- if user or message.role in ['system', 'assistant'] -%}"
    "{{ '<|user|>\\n' if user else '<|system|>\\n' if message.role == 'system' else '' }}"
    "{{ message.content + '<|end|>\\n' + ('<|assistant|>\\n' if user else '') }}{%- endif -%}" END;

static const char phi_35[] = EACH
    "{%- if message.role in ['user', 'assistant'] or (message.role == 'system' and message.content) -%}"
    "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{%- endif -%}" END ANSWER_NEXT(
        "'<|assistant|>\\n'");

static const char deepseek_v2[] = BOS EACH
    "{%- if message.role == 'user' -%}{{ '<｜User｜>' + message.content }}"
    "{%- elif message.role == 'assistant' -%}{{ '<｜Assistant｜>' + message.content + eos_token }}"
    "{%- elif message.role == 'system' -%}{{ message.content + '\\n\\n' }}{%- endif -%}" END ANSWER_NEXT(
        "'<｜Assistant｜>'");

static const char exaone[] = EACH
    "{%- if loop.first and message.role != 'system' -%}{{ '[|system|][|endofturn|]\\n' }}{%- endif -%}"
    "{{ '[|' + message.role + '|]' + message.content"
    " + ('\\n' if message.role == 'user' else '[|endofturn|]\\n') }}" END ANSWER_NEXT("'[|assistant|]'");

static const char alpaca[] = BOS EACH
    "{%- if not loop.first -%}{{ '\\n\\n' }}{%- endif -%}"
    "{%- if message.role == 'system' and loop.first -%}{{ message.content }}"
    "{%- elif message.role == 'user' -%}{{ '### Instruction:\\n' + message.content }}"
    "{%- elif message.role == 'assistant' -%}{{ '### Response:\\n' + message.content + eos_token }}"
    "{%- endif -%}" END ANSWER_NEXT("'\\n\\n### Response:\\n'");

/* ---- gemma: user and model take turns ---- */

#define TAKE_TURNS                                                                                           \
    "{%- if (message.role == 'user') == (loop.index0 is odd) -%}"                                            \
    "{{ raise_exception('user and assistant must take turns') }}{%- endif -%}"
#define TRIMMED                                                                                              \
    "{%- if message.content is string -%}{{ message.content | trim }}{%- else -%}"                           \
    "{%- for part in message.content | selectattr('text', 'defined') -%}{{ part.text | trim }}{%- endfor "   \
    "-%}"                                                                                                    \
    "{%- endif -%}"
#define GEMMA_TURN(before)                                                                                   \
    TAKE_TURNS                                                                                               \
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n'" before       \
    " }}" TRIMMED "{{ '<end_of_turn>\\n' }}"

static const char gemma[] = BOS
    "{%- if messages[0].role == 'system' -%}"
    "{{ raise_exception('this template has no system role') }}{%- endif -%}" EACH GEMMA_TURN("")
        END ANSWER_NEXT("'<start_of_turn>model\\n'");

static const char gemma3[] = BOS
    "{%- set opening = namespace(text='') -%}{%- set rest = messages -%}"
    "{%- if messages[0].role == 'system' -%}{%- set message = messages[0] -%}" SAID
    "{%- set opening.text = said + '\\n\\n' -%}{%- set rest = messages[1:] -%}{%- endif -%}"
    "{%- for message in rest -%}" GEMMA_TURN(" + (opening.text if loop.first else '')")
        END ANSWER_NEXT("'<start_of_turn>model\\n'");

/* ---- mistral: [INST] … [/INST] ---- */

/* Splits the messages: `system` is the text of a system message at the begin, or none; `rest` is
 * the messages behind it. */
#define SYSTEM_APART                                                                                         \
    "{%- set rest = messages -%}{%- set system = none -%}"                                                   \
    "{%- if messages[0].role == 'system' -%}{%- set message = messages[0] -%}" SAID                          \
    "{%- set system = said + '\\n\\n' -%}{%- set rest = messages[1:] -%}{%- endif -%}"

static const char mistral_v1[] = SYSTEM_APART BOS
    "{%- for message in rest -%}" TAKE_TURNS SAID "{%- if message.role == 'user' -%}"
    "{{ ' [INST] ' + (system if loop.first and system is not none else '') + said + ' [/INST]' }}"
    "{%- elif message.role == 'assistant' -%}{{ ' ' + said + eos_token }}"
    "{%- else -%}{{ raise_exception('roles are system, user and assistant') }}{%- endif -%}" END;

/* `gap`: what stands behind an opening tag; `answer`: an assistant's text. The system text stands
 * in the last message. */
#define MISTRAL_TOOLS(gap, answer)                                                                           \
    SYSTEM_APART                                                                                             \
    "{%- set tools = tools | default(none) -%}"                                                              \
    "{%- set asked = rest | selectattr('role', 'equalto', 'user') | list -%}"                                \
    "{%- set talk = namespace(turns=0) -%}"                                                                  \
    "{%- for message in rest -%}"                                                                            \
    "{%- if message.role not in ['tool', 'tool_results'] and message.tool_calls | default(none) is none -%}" \
    "{%- if (message.role == 'user') == (talk.turns is odd) -%}"                                             \
    "{{ raise_exception('user and assistant must take turns') }}{%- endif -%}"                               \
    "{%- set talk.turns = talk.turns + 1 -%}{%- endif -%}{%- endfor -%}" BOS                                 \
    "{%- for message in rest -%}" SAID "{%- if message.role == 'user' -%}"                                   \
    "{%- if tools is not none and message == asked[-1] -%}{{ '[AVAILABLE_TOOLS]" gap "[' }}"                 \
    "{%- for tool in tools -%}{{ '{\"type\": \"function\", \"function\": {' }}"                              \
    "{%- for key, value in tool.function.items() if key != 'return' -%}"                                     \
    "{{ '\"' + key + '\": ' + ('\"' + value + '\"' if value is string else value | tojson)"                  \
    " + (', ' if not loop.last else '') }}{%- endfor -%}"                                                    \
    "{{ '}}' + (', ' if not loop.last else ']') }}{%- endfor -%}{{ '[/AVAILABLE_TOOLS]' }}{%- endif -%}"     \
    "{{ '[INST]" gap "' + (system if loop.last and system is not none else '') + said + '[/INST]' }}"        \
    "{%- elif message.tool_calls | default(none) is not none -%}{{ '[TOOL_CALLS]" gap "[' }}"                \
    "{%- for call in message.tool_calls -%}"                                                                 \
    "{%- if call.id is undefined or call.id | length != 9 -%}"                                               \
    "{{ raise_exception('the id of a tool call has 9 characters') }}{%- endif -%}"                           \
    "{{ (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}'"                                    \
    " + (', ' if not loop.last else ']' + eos_token) }}{%- endfor -%}"                                       \
    "{%- elif message.role == 'assistant' -%}{{ " answer " + eos_token }}"                                   \
    "{%- elif message.role in ['tool', 'tool_results'] -%}"                                                  \
    "{%- if message.tool_call_id is undefined or message.tool_call_id | length != 9 -%}"                     \
    "{{ raise_exception('the id of a tool call has 9 characters') }}{%- endif -%}"                           \
    "{%- set result = message.content.content if message.content.content is defined else message.content "   \
    "-%}"                                                                                                    \
    "{{ '[TOOL_RESULTS]" gap "{\"content\": ' + result | string + ', \"call_id\": \"'"                       \
    " + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}"                                                      \
    "{%- else -%}{{ raise_exception('roles are system, user, assistant and tool') }}{%- endif -%}" END

static const char mistral_v2v3[] = MISTRAL_TOOLS(" ", "' ' + said | trim");
static const char mistral_v3_tekken[] = MISTRAL_TOOLS("", "said");

/* ---- qwen: chatml with tools ---- */

/* The tools as JSON, one per line, inside the text that explains them to Qwen. */
#define QWEN_TOOLS                                                                                           \
    "{{ '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n"               \
    "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}"               \
    "{%- for tool in tools -%}{{ '\\n' + tool | tojson }}{%- endfor -%}"                                     \
    "{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments "    \
    "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n"                                              \
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}"
/* A call of a tool as JSON. The call is the member `function` of its object, or the object
 * itself. */
#define QWEN_CALL                                                                                            \
    "{%- set call = call.function if call.function else call -%}"                                            \
    "{{ '<tool_call>\\n{\"name\": \"' + call.name + '\", \"arguments\": ' + " QWEN_ARGUMENTS                 \
    " + '}\\n</tool_call>' }}"
#define QWEN_ARGUMENTS "(call.arguments if strings and call.arguments is string else call.arguments | tojson)"
/* The result of a tool. Results that follow each other share one turn of the user. */
#define QWEN_RESULT                                                                                          \
    "{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}"             \
    "{{ '\\n<tool_response>\\n' + said + '\\n</tool_response>' }}"                                           \
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}"
#define QWEN_OPEN "'<|im_start|>' + message.role + '\\n'"

static const char qwen_25[] =
    "{%- set strings = false -%}{%- set message = messages[0] -%}"
    "{%- if message.role != 'system' -%}{%- set message = {'content': "
    "'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.'} -%}{%- endif -%}" SAID
    "{{ '<|im_start|>system\\n' + said }}"
    "{%- if tools -%}{{ '\\n\\n' }}" QWEN_TOOLS "{%- else -%}{{ '<|im_end|>\\n' }}{%- endif -%}" EACH SAID
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first)"
    " or (message.role == 'assistant' and not message.tool_calls) -%}"
    "{{ " QWEN_OPEN " + said + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' -%}{{ '<|im_start|>assistant' + ('\\n' + said if said else '') }}"
    "{%- for call in message.tool_calls -%}{{ '\\n' }}" QWEN_CALL "{%- endfor -%}{{ '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' -%}" QWEN_RESULT
    "{%- endif -%}" END ANSWER_NEXT("'<|im_start|>assistant\\n'");

/* Answers behind the last question keep their thoughts, the last answer even where it has none. */
static const char qwen3[] =
    "{%- set strings = true -%}{%- set message = messages[0] -%}" SAID
    "{%- if tools -%}{{ '<|im_start|>system\\n' + (said + '\\n\\n' if message.role == 'system' else '') "
    "}}" QWEN_TOOLS
    "{%- elif message.role == 'system' -%}{{ '<|im_start|>system\\n' + said + '<|im_end|>\\n' }}{%- endif -%}"
    "{%- set talk = namespace(question=messages | length - 1) -%}" EACH
    "{%- if message.role == 'user' and not (message.content is string"
    " and message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) -%}"
    "{%- set talk.question = loop.index0 -%}{%- endif -%}" END EACH SAID
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}"
    "{{ " QWEN_OPEN " + said + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' -%}{%- set thought = '' -%}"
    "{%- if message.reasoning_content is string -%}{%- set thought = message.reasoning_content -%}"
    "{%- elif '</think>' in said -%}"
    "{%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}"
    "{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}{{ " QWEN_OPEN " }}"
    "{%- if loop.index0 > talk.question and (loop.last or thought) -%}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}"
    "{%- else -%}{{ said }}{%- endif -%}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- if said or not loop.first -%}{{ '\\n' }}{%- endif -%}" QWEN_CALL
    "{%- endfor -%}{{ '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' -%}" QWEN_RESULT "{%- endif -%}" END ANSWER_NEXT(
        "'<|im_start|>assistant\\n<think>\\n\\n'"
        " + ('</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '')");

/* ---- names ---- */

/* Sorted by name; nbl__named_template_names repeats the names for messages. */
static const struct {
    const char *name, *text;
} named[] = {
    {"alpaca", alpaca},
    {"chatml", chatml},
    {"deepseek_v2", deepseek_v2},
    {"exaone", exaone},
    {"gemma", gemma},
    {"gemma3", gemma3},
    {"llama3", llama3},
    {"mistral_v1", mistral_v1},
    {"mistral_v2v3", mistral_v2v3},
    {"mistral_v3_tekken", mistral_v3_tekken},
    {"phi_3", phi_3},
    {"phi_35", phi_35},
    {"qwen3", qwen3},
    {"qwen_25", qwen_25},
};

const char *nbl__named_template(const char *name)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strcmp(named[i].name, name) == 0) return named[i].text;
    return NULL;
}

const char *nbl__template_fallback(const char *name)
{
    static const char prefix[] = "tokenizer_default_fallback_";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : NULL;
}

const char *nbl__named_template_names(void)
{
    return "alpaca, chatml, deepseek_v2, exaone, gemma, gemma3, llama3, mistral_v1, mistral_v2v3, "
           "mistral_v3_tekken, phi_3, phi_35, qwen3, qwen_25";
}
