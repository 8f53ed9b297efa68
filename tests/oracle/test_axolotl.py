"""nibble against axolotl: ids and labels of chats over templates, masks, tool calls and kinds of tokenizers; the texts of its named templates;
its learning rates; which examples are dropped as too short or seen before.

axolotl is not among the requirements. The test runs where it can be imported, e.g. with AXOLOTL=/path/to/axolotl/src (its sources; its package
`axolotl` needs colorama and addict beside what is installed here), and says so where it cannot.
"""

import copy
import importlib.util
import json
import logging
import os
import pathlib
import sys
import types

from common import check, main

sys.path.insert(0, os.environ.get("AXOLOTL", ""))
try:
    from axolotl.prompt_strategies.chat_template import ChatTemplatePrompter, ChatTemplateStrategy
except ImportError as why:
    print(f"skipped: axolotl cannot be imported ({why}); AXOLOTL=FOLDER names its sources")
    print("0 passed, 0 failed")
    sys.exit(0)

from axolotl.utils import schedulers
from axolotl.utils.chat_templates import get_chat_template
from datasets import Dataset

if hasattr(ChatTemplateStrategy, "_find_turn_from_text"):
    print("skipped: this axolotl finds turns by characters; docs/DATA.md follows 0.18.0, which finds them by tokens")
    print("0 passed, 0 failed")
    sys.exit(0)

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

logging.disable(logging.CRITICAL)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
WORDS = ["hello", "the", "answer", " answer", "is", " is", " the", "um", "mm", "[[", "]]", "\n\n", " hello"]
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}",
    "phi": "{{ bos_token }}{% for m in messages %}{{ '<|' + (m.role if m.role in ['user', 'assistant'] else 'system') + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ eos_token }}",
    "inst": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}",
    "bare": "{% for m in messages %}{{ '### ' + m.role + ': ' + m.content | trim + eos_token + '\n' }}{% endfor %}",
    "upper": "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content | upper + '<|im_end|>' }}{% endfor %}",
    "calls": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
             "{% if message.content is defined %}{{ message.content }}{% endif %}{% if message.tool_calls %}{% for c in message.tool_calls %}"
             "{{ '<call>' + c.function.name + (c.function.arguments | tojson) }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}",
}
CALL = [{"type": "function", "id": None, "function": {"name": "f", "arguments": "{\"a\": [1, 2.50], \"b\": null}"}}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": None, "parameters": "{\"type\": \"object\"}"}}]


# axolotl.utils.data imports telemetry and compiled samplers; its filters need none of that.
sys.modules["axolotl.utils.samplers"] = sys.modules["axolotl.utils.samplers.utils"] = types.SimpleNamespace(get_dataset_lengths=None, MultipackBatchSampler=None)
spec = importlib.util.spec_from_file_location("filters", pathlib.Path(schedulers.__file__).parent / "data" / "utils.py")
filters = importlib.util.module_from_spec(spec)
spec.loader.exec_module(filters)

NAMED = ["alpaca", "chatml", "deepseek_v2", "exaone", "gemma", "gemma3", "llama3", "mistral_v1", "mistral_v2v3", "mistral_v3_tekken", "phi_3", "phi_35",
         "qwen3", "qwen_25"]


class Strategy(ChatTemplateStrategy):
    """A turn that is not found (an empty one) has no end. axolotl looks for it from index -1 on and, where one of the first three tokens of the
    text is an end token, trains that: the end of another turn. docs/DATA.md names the difference."""

    def find_first_eos_token(self, input_ids, start_idx):
        return -1 if start_idx < 0 else super().find_first_eos_token(input_ids, start_idx)

    def find_first_eot_token(self, input_ids, start_idx):
        return -1 if start_idx < 0 else super().find_first_eot_token(input_ids, start_idx)


def make_tokenizer(room, kind, strip):
    folder = room.folder / f"{kind}-{strip}"
    if kind == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = [w.replace(" ", "Ġ").replace("\n", "Ċ") for w in WORDS]
    else:
        alphabet = ["▁"] + [f"<0x{b:02X}>" for b in range(256)] + [chr(c) for c in range(33, 127)]
        words = ["▁" + w.strip() for w in WORDS if w.strip()] + [w.strip() for w in WORDS if w.strip()]
    vocab = {t: i for i, t in enumerate(["<unk>"] + alphabet)}
    merges = []
    for word in words:  # every beginning of a word is a token
        for end in range(2, len(word) + 1):
            pair = (word[:end - 1], word[end - 1])
            if pair not in merges and all(p in vocab for p in pair):
                merges.append(pair)
                vocab.setdefault(word[:end], len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=kind != "bytes", fuse_unk=True))
    if kind == "bytes":
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(s, rstrip=strip and i > 3, normalized=False, special=True) for i, s in enumerate(SPECIAL)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>", unk_token="<unk>")
    fast.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(fast)}))
    return folder, fast


def make_rows(room, calls):
    texts = ["hello the answer", " hello", "\nhello\n", "", "the answer is (x)", "héllo 中文 🙂", "hello <|im_end|> the", "\t", "a"]
    rows = []
    for i in range(14):
        messages = [{"role": "system", "content": room.random.choice(texts)}] if i % 3 == 0 else []
        for _ in range(room.random.randint(1, 3)):
            messages.append({"role": "user", "content": room.random.choice(texts), "name": None})
            if calls and room.random.random() < 0.5:
                messages += [{"role": "assistant", "content": room.random.choice([None, "hello"]), "tool_calls": CALL}, {"role": "tool", "content": "1"}]
            answer = room.random.choice(texts)
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}, {"type": "text", "text": "the"}] if i % 4 == 1 else answer})
        messages[-1]["content"] = "hello the"  # something is trained
        rows.append({"messages": messages, **({"tools": TOOLS} if calls and i % 2 else {}), **({"system": "hello"} if i % 5 == 2 else {})})
    return rows


def compare(room, name, folder, tokenizer, template, rows, keys, dataset):
    data, run = room.folder / "rows.jsonl", room.folder / "run.yml"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    run.write_text(json.dumps({"base_model": str(folder), "datasets": [{"path": str(data), "type": "chat_template", **dataset}], "chat_template": "jinja",
                               **({} if "chat_template" in keys else {"chat_template_jinja": template}), "learning_rate": 1e-3, "sequence_len": 4096, "output_dir": str(room.folder / "out"), **keys}))
    found, _ = room.json("data", run, "--preview", 100)
    prompter = ChatTemplatePrompter(tokenizer, chat_template=template, max_length=4096, drop_system_message=dataset.get("drop_system_message", False))
    strategy = Strategy(prompter, tokenizer, keys.get("train_on_inputs", False), 4096, roles_to_train=dataset.get("roles_to_train", ["assistant"]),
                                    train_on_eos=dataset.get("train_on_eos", "turn"), train_on_eot=dataset.get("train_on_eot"), eot_tokens=keys.get("eot_tokens"))
    wanted = [strategy.tokenize_prompt(copy.deepcopy(r)) for r in rows]
    wanted = [w for w in wanted if any(l != -100 for l in w["labels"][1:])]
    if not room.expect(len(found["preview"]) == len(wanted), f"{name}: {len(found['preview'])} examples, axolotl has {len(wanted)}"):
        return
    for i, (ours, theirs) in enumerate(zip(found["preview"], wanted)):
        room.expect(ours["input_ids"] == list(theirs["input_ids"]), f"{name}: example {i}: other ids")
        room.expect(ours["labels"] == list(theirs["labels"]),
                    lambda: f"{name}: example {i}: labels\n  {show(tokenizer, ours)}\n  {show(tokenizer, theirs)}")


def show(tokenizer, example):
    tokens = tokenizer.convert_ids_to_tokens(example["input_ids"])
    return " ".join(f"[{t}]" if l != -100 else t for t, l in zip(tokens, example["labels"]))


@check
def labels_are_axolotls(room):
    """Ids and labels of `nibble data` are those of axolotl's ChatTemplateStrategy."""
    masks = [({}, {}), ({"train_on_inputs": True}, {}), ({}, {"roles_to_train": ["user", "assistant"]})]
    masks += [({}, {"train_on_eos": e}) for e in ("all", "last", "none")]
    masks += [({"eot_tokens": ["<|end|>"]}, {"train_on_eos": e, "train_on_eot": t}) for e, t in (("turn", "all"), ("none", "turn"), ("last", "last"))]
    for kind in ("bytes", "pieces"):
        for strip in (False, True):
            folder, tokenizer = make_tokenizer(room, kind, strip)
            for name, template in TEMPLATES.items():
                rows = make_rows(room, name == "calls")
                for keys, dataset in masks:
                    if "eot_tokens" in keys and name != "phi":
                        continue
                    compare(room, f"{kind} {'rstrip ' if strip else ''}{name} {keys} {dataset}", folder, tokenizer, template, rows, keys, dataset)


def make_chat(random):
    """A conversation of texts: mostly turns in order, some with calls, some of any roles."""
    texts = ["hello", " a b ", "\nx\n", "", "é 中", "<think>\nhm\n</think>\n\nso", "<think></think>yes", "<tool_response>5</tool_response>", "a</think>b", "\n\nq"]
    messages = [{"role": "system", "content": random.choice(texts)}] if random.random() < 0.4 else []
    if random.random() < 0.3:
        return messages + [{"role": random.choice(["user", "assistant", "system", "tool"]), "content": random.choice(texts)} for _ in range(random.randint(1, 4))]
    for _ in range(random.randint(1, 4)):
        messages.append({"role": "user", "content": random.choice(texts)})
        if random.random() < 0.25:
            calls = [{"type": "function", "id": random.choice(["abcdefghi", "abcdefgh1", "x"]),
                      "function": {"name": "f", "arguments": random.choice([{"a": [1, 2.5]}, {}, '{"s": 1}'])}} for _ in range(random.randint(1, 2))]
            messages.append({"role": "assistant", "content": random.choice(["", "hm", None]), "tool_calls": calls})
            messages += [{"role": "tool", "content": random.choice(texts), "tool_call_id": random.choice([c["id"], "abcdefghi"])} for c in calls]
        thought = {"reasoning_content": random.choice(texts)} if random.random() < 0.2 else {}
        messages.append({"role": "assistant", "content": random.choice(texts), **thought})
    return messages if random.random() < 0.7 else messages[:-1]


@check
def named_templates_render_as_axolotls(room):
    """`--template NAME` gives the text of axolotl's template of that name, and refuses what that refuses."""
    tools = [{"type": "function", "function": {"name": "f", "description": "d \"q\"", "parameters": {"type": "object", "x": [1]}, "return": "no"}},
             {"type": "function", "function": {"name": "g"}}]
    folder, _ = make_tokenizer(room, "bytes", False)
    for name in NAMED:
        lines = []
        for _ in range(250):
            settings = {"enable_thinking": room.random.random() < 0.5} if room.random.random() < 0.2 else {}
            lines.append({"messages": make_chat(room.random), "generation_prompt": room.random.random() < 0.5, "set": settings,
                          **({"tools": tools} if room.random.random() < 0.3 else {})})
        (room.folder / "chats.jsonl").write_text("".join(json.dumps(l) + "\n" for l in lines))
        found, _ = room.json("template", folder, "--template", name, "--batch", room.folder / "chats.jsonl")
        rendered = 0
        for line, ours in zip(lines, found["results"], strict=True):
            try:
                wanted = render_jinja_template(conversations=[line["messages"]], tools=line.get("tools"), chat_template=get_chat_template(name),
                                               add_generation_prompt=line["generation_prompt"], bos_token="<s>", eos_token="<|im_end|>", **line["set"])[0][0]
                rendered += 1
            except Exception:
                wanted = None
            if wanted is None and name == "qwen_25":
                continue  # a call without content is a text here, and an error of Python there
            room.expect(ours.get("text") == wanted, lambda: f"{name}: {json.dumps(line)}:\n  {ours}\n  {wanted!r}")
        room.expect(rendered > 50, f"{name}: only {rendered} chats could be rendered")


@check
def labels_of_named_templates_are_axolotls(room):
    """Ids and labels with `chat_template: NAME`, and with a first system message dropped."""
    folder, tokenizer = make_tokenizer(room, "bytes", False)
    for name in NAMED:
        rows = [{"messages": [{"role": r, "content": c} for r, c in turns]} for turns in (
            [("user", "hello"), ("assistant", "the answer")], [("user", "is"), ("assistant", " x "), ("user", "the"), ("assistant", "um")],
            [("system", "hello"), ("user", "the"), ("assistant", "answer")])]
        compare(room, f"{name} dropped", folder, tokenizer, get_chat_template(name), rows, {"chat_template": name}, {"drop_system_message": True})
        if name != "gemma":
            compare(room, name, folder, tokenizer, get_chat_template(name), rows, {"chat_template": name}, {})


@check
def learning_rates_are_axolotls(room):
    """The factors of a run's learning rates are those of axolotl's schedules."""
    data = room.folder / "rows.jsonl"
    data.write_text(json.dumps({"input_ids": [5, 6, 7], "labels": [5, 6, 7]}) + "\n")
    for warmup, least, constant in ((3, 0.1, 0), (0, 0.25, 0.5), (4, 1.0, 0), (2, 0.1, 0.8), (5, 0, 0), (3, 0.3, 0.1)):
        out = room.folder / f"out-{warmup}-{least}"
        run = room.folder / "run.yml"
        shape = {"cosine_min_lr_ratio": least, "cosine_constant_lr_ratio": constant} if least else {"lr_quadratic_warmup": True}
        run.write_text(json.dumps({"base_model": "models/nibble-tiny", "datasets": [{"path": str(data)}], "learning_rate": 1.0, "warmup_steps": warmup, "adapter": "lora",
                                   "lora_r": 1, "lora_target_modules": ["q_proj"], "max_steps": 12, "max_grad_norm": 1e-6, "sequence_len": 16, "output_dir": str(out),
                                   "save_strategy": "no", "device": "cpu", **shape}))
        done = room.call("train", run)
        if not room.expect(done.returncode == 0, f"train: {done.stderr[-300:]}"):
            return
        rates = [json.loads(l)["learning_rate"] for l in (out / "metrics.jsonl").read_text().splitlines() if "learning_rate" in l]
        common = {"num_warmup_steps": warmup, "num_training_steps": 12}
        for step, rate in enumerate(rates):
            if least == 0:
                wanted = schedulers._get_cosine_schedule_with_quadratic_warmup_lr_lambda(step, num_cycles=0.5, **common)
            elif constant:
                wanted = schedulers._get_cosine_schedule_with_warmup_decay_constant_lr_lambda(step, constant_lr_ratio=constant, min_lr_ratio=least, num_cycles=0.5, **common)
            else:
                wanted = schedulers._get_cosine_schedule_with_min_lr_lambda(step, min_lr_ratio=least, **common)
            room.expect(abs(rate - wanted) < 1e-6, f"warm-up {warmup}, {shape}: step {step} has {rate}, axolotl {wanted}")
        room.expect(len(rates) == 12, f"{len(rates)} learning rates")


@check
def dropped_examples_are_axolotls(room):
    """What min_sample_len and dataset_exact_deduplication leave is what axolotl's filters leave."""
    rows = []
    for _ in range(300):
        ids = [room.random.randint(3, 5) for _ in range(room.random.randint(1, 5))]
        rows.append({"input_ids": ids, "labels": [i if room.random.random() < 0.7 else -100 for i in ids]})
    rows = [r for r in rows if any(l != -100 for l in r["labels"][1:])]
    data, run = room.folder / "rows.jsonl", room.folder / "run.yml"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for least, equal in ((0, True), (3, False), (4, True)):
        run.write_text(json.dumps({"base_model": "models/nibble-tiny", "datasets": [{"path": str(data)}], "learning_rate": 1.0, "sequence_len": 16, "min_sample_len": least,
                                   "dataset_exact_deduplication": equal, "output_dir": str(room.folder / "out")}))
        found, _ = room.json("data", run, "--preview", 1000)
        wanted = Dataset.from_list(rows).filter(lambda r: filters.filter_sequences_by_length(r, sequence_len=16, min_sequence_len=least), batched=True)
        if equal:
            wanted, _ = filters.deduplicate_and_log_datasets(dataset=wanted)
        ours = [{"input_ids": p["input_ids"], "labels": p["labels"]} for p in found["preview"]]
        room.expect(ours == list(wanted), f"{least}, {equal}: {len(ours)} examples, axolotl has {len(wanted)}")


if __name__ == "__main__":
    sys.exit(main())
