"""What a run leaves of tokenizer, template and special tokens is what transformers loads: AutoTokenizer on the adapter's folder, the whole model's
and the merged one renders the run's template, ends with its eos_token and encodes as the base's tokenizer does."""
import json, os, shutil, subprocess, sys, tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import AutoTokenizer, GenerationConfig, AutoConfig

ROOT = Path(__file__).resolve().parents[2]
NIBBLE = str(Path(os.environ.get("NIBBLE", ROOT / "build" / "nibble")).resolve())
MODEL = ROOT / "models" / "nibble-tiny"
OWN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
CHAT = [{"role": "user", "content": "What is 5 plus 5?"}, {"role": "assistant", "content": "5 + 5 = 10"}]


def nibble(*words):
    done = subprocess.run([NIBBLE, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"nibble {' '.join(map(str, words))}: {done.stderr}"
    return done.stdout


def run_file(folder, **keys):
    run = {"base_model": str(folder / "base"), "datasets": [{"path": str(folder / "chats.jsonl"), "type": "chat_template"}], "learning_rate": 1e-3,
           "max_steps": 1, "report": False, "adapter": "lora", "lora_target_linear": True, **keys}
    path = folder / "run.yml"
    path.write_text(json.dumps({k: v for k, v in run.items() if v is not None}))
    return path


def check(folder, want, eos, chat, whole):
    loaded, base = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(MODEL)
    text = loaded.apply_chat_template(CHAT, tokenize=False)
    assert text == want, (str(folder), text, want)
    assert loaded.eos_token == eos, (str(folder), loaded.eos_token)
    for sentence in ("What is 5 plus 5?", "Grüße, 日本語 🙂", want):
        assert loaded.encode(sentence) == base.encode(sentence), (str(folder), sentence)
    ours = json.loads(nibble("template", folder, "--messages", chat, "--json"))
    assert ours["text"] == text and ours["ids"] == loaded.encode(text, add_special_tokens=False), str(folder)
    ends = GenerationConfig.from_pretrained(folder).eos_token_id
    assert loaded.eos_token_id in (ends if isinstance(ends, list) else [ends]), (str(folder), ends)
    if whole: assert AutoConfig.from_pretrained(folder).eos_token_id == loaded.eos_token_id, str(folder)


def main():
    folder = Path(tempfile.mkdtemp())
    count = 0
    try:
        (folder / "chats.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
        (folder / "chat.json").write_text(json.dumps(CHAT))
        base = AutoTokenizer.from_pretrained(MODEL)
        chatml = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in CHAT)
        own = "".join(f"[{m['role']}]{m['content']}<|endoftext|>" for m in CHAT)
        cases = [("own", dict(chat_template=OWN, special_tokens={"eos_token": "<|endoftext|>"}), own, "<|endoftext|>"),
                 ("chatml", dict(chat_template="chatml"), chatml, "<|im_end|>"),
                 ("as it is", {}, base.apply_chat_template(CHAT, tokenize=False), "<|im_end|>")]
        # The same base with its template in tokenizer_config.json, as older folders have it, and one that names no tokenizer_class.
        for layout in ("new", "old", "bare"):
            shutil.rmtree(folder / "base", ignore_errors=True)
            shutil.copytree(MODEL, folder / "base")
            settings = json.loads((folder / "base/tokenizer_config.json").read_text())
            if layout == "old":
                settings["chat_template"] = (folder / "base/chat_template.jinja").read_text()
                (folder / "base/chat_template.jinja").unlink()
            if layout == "bare": del settings["tokenizer_class"]
            (folder / "base/tokenizer_config.json").write_text(json.dumps(settings, indent=2))
            for name, keys, want, eos in cases:
                for what in ("lora", "full", "merged"):
                    shutil.rmtree(folder / "out", ignore_errors=True)
                    full = dict(adapter=None, lora_target_linear=None) if what == "full" else {}
                    nibble("train", run_file(folder, output_dir=str(folder / "out"), **keys, **full), "--quiet")
                    result = folder / "out"
                    if what == "merged":
                        result = folder / "merged"
                        shutil.rmtree(result, ignore_errors=True)
                        nibble("merge", folder / "base", folder / "out", result)
                    check(result, want, eos, folder / "chat.json", what != "lora")
                    if what == "lora": check(folder / "out" / "checkpoint-1", want, eos, folder / "chat.json", False)
                    count += 1
    finally:
        shutil.rmtree(folder)
    print(f"{count} passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
