"""`nibble eval` of conversations against transformers: loss, perplexity and accuracy over the tokens that an assistant's turn would be trained on.
The labels are made here from the rendered text: contents of the assistant and the token behind each, or what {% generation %} marks."""
import json
import math
import shutil
import sys
from pathlib import Path

import torch
from common import check, main
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "nibble-tiny"
MARKED = ("{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}{%- if message['role'] == 'assistant' %}{% generation %}"
          "{{- message['content'] + '<|im_end|>' }}{% endgeneration %}{%- else %}{{- message['content'] + '<|im_end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}")
WORDS = "What is 5 plus 12? count from 3 to 9 the opposite of hot is cold blue house Yes and 42".split()


def chats(room, count):
    def text():
        return " ".join(room.random.choice(WORDS) for _ in range(room.random.randrange(1, 9)))

    for _ in range(count):
        start = [{"role": "system", "content": text()}] if room.random.random() < 0.3 else []
        turns = [{"role": role, "content": text()} for _ in range(room.random.randrange(1, 4)) for role in ("user", "assistant")]
        yield start + turns[:len(turns) - (room.random.random() < 0.2)]


def labels_of(tokenizer, messages):
    """Ids and labels of the model's own template: contents of the assistant and the end of the turn behind each."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    trained, at = [], 0
    for message in messages:
        begin = text.index(message["role"] + "\n" + message["content"], at) + len(message["role"]) + 1
        at = begin + len(message["content"]) + len("<|im_end|>")
        if message["role"] == "assistant":
            trained.append((begin, at))
    ids = encoded["input_ids"]
    return ids, [i if any(a <= begin and end <= b for a, b in trained) else -100 for i, (begin, end) in zip(ids, encoded["offset_mapping"])]


def marked_labels_of(tokenizer, messages):
    done = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return done["input_ids"], [i if m else -100 for i, m in zip(done["input_ids"], done["assistant_masks"])]


def judged(model, sequences):
    """Sum of losses, tokens and hits over the labels that are set."""
    total = hits = count = 0
    for ids, labels in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1].double()
        wanted = torch.tensor(labels[1:])
        kept = wanted != -100
        total += torch.nn.functional.cross_entropy(logits[kept], wanted[kept], reduction="sum").item() if kept.any() else 0
        hits += (logits[kept].argmax(-1) == wanted[kept]).sum().item()
        count += kept.sum().item()
    return total, hits, count


def compare(room, folder, model, sequences, words, what):
    """eval of the room's chats against the sequences that count something."""
    kept = [(ids, labels) for ids, labels in sequences if any(i != -100 for i in labels[1:])]
    total, hits, count = judged(model, kept)
    found, _ = room.json("eval", folder, "--data", room.folder / "chats.jsonl", "--dtype", "f32", *words)
    room.expect(found["tokens"] == count, f"{what}: {found['tokens']} tokens instead of {count}")
    room.expect(found["all_tokens"] == sum(len(ids) - 1 for ids, _ in kept), f"{what}: {found['all_tokens']} tokens in all")
    room.expect(found["dropped_unanswered"] == found["dropped"] == len(sequences) - len(kept), f"{what}: {found['dropped']} rows dropped")
    room.expect(abs(found["loss"] - total / count) < 1e-5 * max(1, total / count), f"{what}: loss {found['loss']} instead of {total / count}")
    room.expect(abs(found["perplexity"] - math.exp(found["loss"])) < 1e-9 * found["perplexity"], f"{what}: perplexity {found['perplexity']}")
    room.expect(abs(found["accuracy"] * count - hits) < 1.5, f"{what}: {found['accuracy'] * count} hits instead of {hits}")


@check
def answers_are_counted_as_training_would(room):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    rows = [[{"role": "user", "content": "Hi"}], *chats(room, 40)]
    (room.folder / "chats.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    sequences = [labels_of(tokenizer, row) for row in rows]
    compare(room, MODEL, model, sequences, [], "own template")
    compare(room, MODEL, model, [(ids, ids) for ids, _ in sequences], ["--all"], "--all")
    # What the trainer sees of the same file is the same.
    run = {"base_model": str(MODEL), "datasets": [{"path": str(room.folder / "chats.jsonl"), "type": "chat_template", "roles_to_train": ["assistant"]}],
           "learning_rate": 1e-3, "adapter": "lora", "lora_target_linear": True}
    (room.folder / "run.yml").write_text(json.dumps(run))
    told, _ = room.json("data", room.folder / "run.yml", "--preview", 0)
    room.expect(told["trained_tokens"] == sum(i != -100 for _, labels in sequences for i in labels[1:]), f"data trains {told['trained_tokens']} tokens")

    marked = room.folder / "marked"
    shutil.copytree(MODEL, marked)
    (marked / "chat_template.jinja").write_text(MARKED)
    tokenizer = AutoTokenizer.from_pretrained(marked)
    compare(room, marked, model, [marked_labels_of(tokenizer, row) for row in rows], [], "{% generation %}")


@check
def an_adapter_is_judged_with_its_own_template(room):
    rows = list(chats(room, 12))
    (room.folder / "chats.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    (room.folder / "marked.jinja").write_text(MARKED.replace("<|im_end|>", "<|endoftext|>"))
    run = {"base_model": str(MODEL), "datasets": [{"path": str(room.folder / "chats.jsonl"), "type": "chat_template"}], "chat_template": "jinja",
           "chat_template_jinja": str(room.folder / "marked.jinja"), "special_tokens": {"eos_token": "<|endoftext|>"}, "learning_rate": 1e-2, "max_steps": 3,
           "adapter": "lora", "lora_target_linear": True, "report": False, "output_dir": str(room.folder / "lora")}
    (room.folder / "run.yml").write_text(json.dumps(run))
    room.nibble("train", room.folder / "run.yml", "--quiet")
    tokenizer = AutoTokenizer.from_pretrained(room.folder / "lora")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), room.folder / "lora").eval()
    compare(room, MODEL, model, [marked_labels_of(tokenizer, row) for row in rows], ["--adapter", room.folder / "lora"], "adapter")


if __name__ == "__main__":
    sys.exit(main())
