"""The Modelfile of `export --ollama`: its TEMPLATE, run as Ollama runs it, writes what transformers' apply_chat_template writes, with tools, tool calls
and the default system prompt. Ollama's language is Go's text/template; what the Modelfile uses of it is interpreted here."""
import json
import re
import shutil
import sys
from pathlib import Path

from common import check, main
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "nibble-tiny"

QWEN = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
SMOL = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
ZEPHYR = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
QUOTED = ("{% if messages[0].role != 'system' %}START {{ '{{' }} \"\"\" {% endif %}{% for m in messages %}{{ '{' }}\"role\": \"{{ m.role }}\"\"{{ m.content }}\"{{ '}}{' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '{' }}\"role\": \"assistant\"\"{% endif %}")
ALONE = ("{% if tools and messages[0].role != 'system' %}<sys>{% for t in tools %}{{ t.function | tojson }}{% if not loop.last %}; {% endif %}{% endfor %}</sys>{% endif %}"
         "{% for m in messages %}{% if m.role == 'system' %}<sys>{{ m.content }}{% if tools %} with {% for t in tools %}{{ t.function | tojson }}{% if not loop.last %}; {% endif %}{% endfor %}.{% endif %}</sys>"
         "{% elif m.role == 'tool' %}<result>{{ m.content }}</result>{% elif m.tool_calls %}<me>{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}</me>"
         "{% else %}<{{ 'me' if m.role == 'assistant' else 'you' }}>{{ m.content }}</{{ 'me' if m.role == 'assistant' else 'you' }}>{% endif %}{% endfor %}{% if add_generation_prompt %}<me>{% endif %}")
TAGGED = "{% for m in messages %}[{{ loop.index }}] {{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[{{ messages | length + 1 }}] assistant: {% endif %}"
JOINED = ("{% for m in messages %}{% if m.role == 'user' %}[INST] {% if loop.index0 == 1 and messages[0].role == 'system' %}<<SYS>>{{ messages[0].content }}<</SYS>> {% endif %}"
          "{{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}")
# name, template, the default system prompt, tools, whether frames are found
CASES = [("own", None, None, False, True), ("qwen", QWEN, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", True, True),
         ("smol", SMOL, "You are a helpful AI assistant named SmolLM", False, True), ("zephyr", ZEPHYR, None, False, True), ("quoted", QUOTED, None, False, True),
         ("alone", ALONE, None, True, True), ("tagged", TAGGED, None, False, False), ("joined", JOINED, None, False, False)]
TOOLS = [{"type": "function", "function": {"name": name, "description": "does " + name, "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}}}
         for name in ("add", "look_up")]


class Shown(dict):
    """An object that prints as JSON, as Ollama's do."""
    def __str__(self):
        return json.dumps(self, ensure_ascii=False)


def go_value(expression, dot, root, names):
    """A path (.A.B, $.A, $x.A, .), a string, a number, or (index PATH n).FIELD."""
    indexed = re.fullmatch(r"\(index (\S+) (\d+)\)\.(\w+)", expression)
    if indexed: return go_value(indexed[1], dot, root, names)[int(indexed[2])].get(indexed[3], "")
    if expression[0] in "\"`": return expression[1:-1]
    if expression.startswith("$"): value, path = (root, expression[1:]) if expression[1:2] in (".", "") else (names[expression.split(".")[0]], expression[len(expression.split(".")[0]):])
    else: value, path = dot, expression
    for part in [p for p in path.split(".") if p]: value = value.get(part)
    return value


def go_true(expression, dot, root, names):
    words = re.findall(r"\(index \S+ \d+\)\.\w+|\"[^\"]*\"|\S+", expression)
    if words[0] in ("eq", "ne"): return (go_value(words[1], dot, root, names) == go_value(words[2], dot, root, names)) == (words[0] == "eq")
    return bool(go_value(words[0], dot, root, names))


def go_parse(tokens, at=0):
    """A list of nodes up to else or end."""
    nodes = []
    while at < len(tokens):
        kind, text = tokens[at]
        if kind == "text": nodes.append(("text", text)); at += 1
        elif text == "end" or text.startswith("else"): return nodes, at
        elif text.startswith(("if ", "range ")):
            branches, head = [], text
            while True:
                inner, at = go_parse(tokens, at + 1)
                branches.append((head, inner))
                head = tokens[at][1]
                if head == "end": break
                head = head.removeprefix("else").strip()
            nodes.append(("branch", branches)); at += 1
        else: nodes.append(("show", text)); at += 1
    return nodes, at


def go_run(nodes, dot, root, names):
    out = ""
    for kind, what in nodes:
        if kind == "text": out += what
        elif kind == "show": out += str(go_value(what, dot, root, names))
        elif what[0][0].startswith("range "):
            loop = re.fullmatch(r"range (?:(\$\w+), (\$\w+) := )?(\S+)", what[0][0])
            for i, item in enumerate(go_value(loop[3], dot, root, names) or []):
                out += go_run(what[0][1], item, root, {**names, loop[1]: i, loop[2]: item} if loop[1] else names)
        else:
            for head, inner in what:
                if head == "" or go_true(head.removeprefix("if "), dot, root, names):
                    out += go_run(inner, dot, root, names)
                    break
    return out


def go(template, messages, tools):
    parts = re.split(r"\{\{(.*?)\}\}", template, flags=re.S) # an action ends at the first }}, a string in it has none
    tokens = [("action", p.strip()) if i % 2 else ("text", p) for i, p in enumerate(parts) if i % 2 or p]
    nodes, at = go_parse(tokens)
    assert at == len(tokens), tokens[at:]
    def call(c): return {"Function": {"Name": c["function"]["name"], "Arguments": Shown(c["function"]["arguments"])}}
    class Tool(Shown):
        def get(self, key): return Shown(self["function"]) if key == "Function" else None
    data = {"Messages": [{"Role": m["role"], "Content": m.get("content", ""), "ToolCalls": [call(c) for c in m.get("tool_calls", [])]} for m in messages],
            "Tools": [Tool(t) for t in tools or []]}
    return go_run(nodes, data, data, {})


def conversations(room, tools):
    def text(): return " ".join(room.random.choice(["Hi", "there", "12", "what is", "{x}", "blue\nhouse", "\"quoted\""]) for _ in range(room.random.randrange(1, 5)))
    for _ in range(12):
        messages = [{"role": "system", "content": text()}] if room.random.random() < 0.5 else []
        for turn in range(room.random.randrange(1, 4)):
            messages.append({"role": "user", "content": text()})
            if tools and room.random.random() < 0.6:
                calls = [{"type": "function", "function": {"name": room.random.choice(["add", "look_up"]), "arguments": {"x": text(), "n": 3}}} for _ in range(room.random.randrange(1, 3))]
                messages += [{"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "name": "add", "content": text()}]
            messages.append({"role": "assistant", "content": text()})
        yield messages + [{"role": "user", "content": text()}]


@check
def the_template_of_a_modelfile_writes_what_the_chat_template_writes(room):
    for name, template, default, tooled, known in CASES:
        base = room.folder / name
        shutil.copytree(MODEL, base)
        if template: (base / "chat_template.jinja").write_text(template)
        (room.folder / f"{name}-out").mkdir()
        done = room.call("export", base, room.folder / f"{name}-out" / "m.gguf", "--type", "q8_0", "--ollama")
        room.expect(done.returncode == 0 and ("cannot be written in Ollama's language" in done.stderr) == (not known), f"{name}: {done.stderr}")
        text = (room.folder / f"{name}-out" / "Modelfile").read_text()
        found = re.search(r'TEMPLATE """(.*?)"""\n', text, flags=re.S)
        system = re.search(r'SYSTEM """(.*?)"""\n', text, flags=re.S)
        room.expect((system[1] if system else None) == default, f"{name}: SYSTEM is {system and system[1]!r} instead of {default!r}")
        room.expect('PARAMETER stop "<|im_end|>"' in text, f"{name}: no stop")
        if not known:
            room.expect(found is None, f"{name}: {text}")
            continue
        room.expect(found is not None and (".Tools" in found[1]) == tooled, f"{name}: {text}")
        tokenizer = AutoTokenizer.from_pretrained(base)
        for messages in conversations(room, tooled):
            for tools in ([None, TOOLS, TOOLS[:1]] if tooled else [None]):
                if tools is None and any(m["role"] == "tool" for m in messages): continue
                expected = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
                given = messages if messages[0]["role"] == "system" or default is None else [{"role": "system", "content": default}, *messages]
                ours = go(found[1], [dict(m, content=m["content"].strip()) if name == "zephyr" else m for m in given], tools)
                room.expect(ours == expected, f"{name}: {ours!r}\n instead of {expected!r}")


if __name__ == "__main__":
    sys.exit(main())
