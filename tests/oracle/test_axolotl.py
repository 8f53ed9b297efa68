"""nibble data against axolotl's own strategy for chats (0.18.0): ids and labels, over templates, masks, tool calls and kinds of tokenizers.

axolotl is not among the requirements. The test runs where it can be imported, e.g. with AXOLOTL=/path/to/axolotl/src (its sources; its package
`axolotl` needs colorama and addict beside what is installed here), and says so where it cannot.
"""

import copy
import json
import logging
import os
import sys

from common import check, main

sys.path.insert(0, os.environ.get("AXOLOTL", ""))
try:
    from axolotl.prompt_strategies.chat_template import ChatTemplatePrompter, ChatTemplateStrategy
except ImportError as why:
    print(f"skipped: axolotl cannot be imported ({why}); AXOLOTL=FOLDER names its sources")
    sys.exit(0)

if hasattr(ChatTemplateStrategy, "_find_turn_from_text"):
    print("skipped: this axolotl finds turns by characters; docs/DATA.md follows 0.18.0, which finds them by tokens")
    sys.exit(0)

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
                               "chat_template_jinja": template, "learning_rate": 1e-3, "sequence_len": 4096, "output_dir": str(room.folder / "out"), **keys}))
    found, _ = room.json("data", run, "--preview", 100)
    prompter = ChatTemplatePrompter(tokenizer, chat_template=template, max_length=4096)
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


if __name__ == "__main__":
    sys.exit(main())
