"""models/nibble-tiny, the model that comes along, in transformers: the same tokens, chats, logits and answers."""

import json
import sys
from pathlib import Path

import torch
from common import check, main, tensors_of
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "nibble-tiny"
QUESTIONS = ["What is 5 plus 5?", "Count from 3 to 9.", "What is the opposite of hot?", "Spell apple.", "Who are you?",
             "Where does a fish live?", "Repeat: blue house 12", "Ärger mit Ünïcode 日本語 🙂"]


def any_texts(room, count):
    """Of all kinds of characters, with words, digits and special tokens among them."""
    pieces = ["What is", " 5", " plus ", "123", "\n", "  ", "\t", "it's", "WE'LL", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "é", "ß", "Ж", "日本",
              "🙂", "\u0301", "\u00a0", "…", "x", "?!", ".", "²", "٣", "\r\n", "\u200d"]
    for _ in range(count):
        yield "".join(room.random.choice(pieces) if room.random.random() < 0.7 else chr(room.random.randrange(1, 0xd800))
                      for _ in range(room.random.randrange(1, 12)))


@check
def texts_have_the_same_ids_and_come_back(room):
    theirs = AutoTokenizer.from_pretrained(MODEL)
    rows = [json.loads(line) for line in (ROOT / "examples/train/sums.jsonl").read_text().splitlines()]
    texts = [m["content"] for row in rows[::50] for m in row["messages"]] + QUESTIONS + list(any_texts(room, 400))
    (room.folder / "texts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    ours, _ = room.json("tokenize", MODEL, "--lines", room.folder / "texts.jsonl")
    (room.folder / "ids.json").write_text(json.dumps(ours["ids"]))
    back, _ = room.json("tokenize", MODEL, "--decode", room.folder / "ids.json")
    for text, ids, again in zip(texts, ours["ids"], back["texts"], strict=True):
        expected = theirs(text)["input_ids"]
        room.expect(ids == expected, f"{text!r}: {ids} instead of {expected}")
        room.expect(again == text == theirs.decode(expected), f"{text!r} came back as {again!r}")


@check
def chats_have_the_same_text_and_ids(room):
    theirs = AutoTokenizer.from_pretrained(MODEL)
    for question in QUESTIONS:
        for more in ([], [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}]):
            messages = [{"role": "user", "content": question}, *more]
            (room.folder / "messages.json").write_text(json.dumps(messages))
            ours, _ = room.json("template", MODEL, "--messages", room.folder / "messages.json", "--generation-prompt")
            text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            room.expect(ours["text"] == text, f"{ours['text']!r} instead of {text!r}")
            room.expect(ours["ids"] == theirs(text, add_special_tokens=False)["input_ids"], f"{question!r}: other ids")


@check
def logits_and_answers_are_the_same(room):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    chats = [tokenizer(tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True),
                       add_special_tokens=False)["input_ids"] for q in QUESTIONS]
    (room.folder / "ids.json").write_text(json.dumps(chats))
    room.nibble("logits", MODEL, "--ids", room.folder / "ids.json", "--dtype", "f32", "--out", room.folder / "logits.safetensors")
    ours = tensors_of(room.folder / "logits.safetensors")
    answers, _ = room.json("generate", MODEL, "--ids", room.folder / "ids.json", "--dtype", "f32", "--max-tokens", 32)
    for i, ids in enumerate(chats):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
            new = model.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)[0, len(ids):].tolist()
        off = ((ours[f"logits.{i}"] - expected).norm() / expected.norm()).item()
        room.expect(off < 1e-5, f"{QUESTIONS[i]!r}: the logits are off by {off:.1e} of their norm")
        ends = model.generation_config.eos_token_id
        while new and new[-1] in ends:
            new.pop()
        room.expect(answers["sequences"][i]["ids"] == new, f"{QUESTIONS[i]!r}: another answer")


if __name__ == "__main__":
    sys.exit(main())
