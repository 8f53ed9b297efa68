"""nibble train against a plain loop of transformers, PEFT and bitsandbytes: twenty steps from one adapter, loss by loss, and the adapters they end
with; what it leaves, loaded by PEFT and transformers.

The shapes keep every row of a weight a multiple of the block: on CPUs with AVX-512 bitsandbytes decodes others wrongly.
"""

import json
import sys

import torch
from common import check, main, tensors_of
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import (AutoModelForCausalLM, BitsAndBytesConfig, EarlyStoppingCallback, LlamaConfig, Qwen3Config, Trainer,
                          TrainingArguments)

STEPS, IGNORED = 20, -100
SHAPE = dict(vocab_size=160, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, initializer_range=0.1, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
QUANTISED = {"nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                       bnb_4bit_compute_dtype=torch.float32),
             "int8": BitsAndBytesConfig(load_in_8bit=True)}
# How the base is stored, and what the run says about it.
STORED = {"f32": {}, "bf16": {}, "nf4": dict(load_in_4bit=True, adapter="qlora"), "int8": dict(load_in_8bit=True)}


def make_base(room, name, architecture, stored):
    folder = room.folder / f"{name}-base"
    torch.manual_seed(room.random.randrange(1 << 30))
    config = LlamaConfig(**SHAPE) if architecture == "llama" else Qwen3Config(**SHAPE, head_dim=16)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16 if stored == "bf16" else torch.float32)
    model.config.dtype = model.dtype
    model.save_pretrained(folder)
    if stored in QUANTISED:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=QUANTISED[stored])
        for file in folder.glob("*.safetensors"):
            file.unlink()
        model.save_pretrained(folder)
    return folder


def make_adapter(room, folder, base, **lora):
    """An adapter in which nothing is at its initial value, so that every gradient counts."""
    torch.manual_seed(room.random.randrange(1 << 30))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
                           LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **lora))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            p.mul_(1 + 0.1 * torch.randn_like(p)) if "magnitude" in name else p.add_(0.05 * torch.randn_like(p))
    model.save_pretrained(folder)
    return folder


def make_rows(room):
    rows = []
    for i in range(9):
        ids = [room.random.randrange(SHAPE["vocab_size"]) for _ in range(room.random.randint(5, 30))]
        masked = i % 3
        rows.append({"input_ids": ids, "labels": [IGNORED] * masked + ids[masked:]})
    return rows


def batch_of(rows):
    width = max(len(r["input_ids"]) for r in rows)
    pad = lambda values, filler: values + [filler] * (width - len(values))
    return dict(input_ids=torch.tensor([pad(r["input_ids"], 0) for r in rows]), labels=torch.tensor([pad(r["labels"], IGNORED) for r in rows]),
                attention_mask=torch.tensor([pad([1] * len(r["input_ids"]), 0) for r in rows]))


def reference(base, adapter, rows):
    """Losses of twenty steps, two rows each in order, and what was trained."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter, is_trainable=True).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.1)
    batches = [rows[i:i + 2] for i in range(0, len(rows), 2)]
    losses = []
    for step in range(STEPS):
        loss = model(**batch_of(batches[step % len(batches)])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {k: v.detach().float() for k, v in get_peft_model_state_dict(model).items()}


def run_of(room, name, base, start, rows, **keys):
    data, run, out = (room.folder / f"{name}{end}" for end in (".jsonl", ".yml", "-out"))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = dict(base_model=str(base), datasets=[dict(path=str(data), type="pretokenized")], output_dir=str(out), adapter="lora", lora_r=4, lora_alpha=8,
                  lora_target_linear=True, lora_model_dir=str(start), sequence_len=64, micro_batch_size=2, max_steps=STEPS, learning_rate=5e-3,
                  lr_scheduler="constant", weight_decay=0.1, bf16=False, shuffle_merged_datasets=False, curriculum_sampling=True, save_steps=1000)
    run.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in (values | keys).items()))
    room.nibble("train", run)
    return out


def difference(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12)).item()


def twenty_steps(room, architecture, stored, **lora):
    name = f"{architecture}-{stored}"
    base = make_base(room, name, architecture, stored)
    # PEFT's DoRA over bitsandbytes' 8-bit layer fails on a CPU at the second step: the judge then gets the decoded weights.
    judge = base
    if stored == "int8" and lora:
        judge = room.folder / f"{name}-decoded"
        room.nibble("dequantize", base, judge, "--dtype", "f32")
    adapter, rows = make_adapter(room, room.folder / f"{name}-start", judge, **lora), make_rows(room)
    want, want_tensors = reference(judge, adapter, rows)
    out = run_of(room, name, base, adapter, rows, peft_use_dora=bool(lora), **STORED[stored])
    got = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    worst = max(abs(a - b) for a, b in zip(got, want, strict=True))
    room.expect(worst <= 1e-4, f"{name}: a loss differs by {worst:.1e}")
    tensors = tensors_of(out / "adapter_model.safetensors")
    room.expect(set(tensors) == set(want_tensors), f"{name}: other tensors: {sorted(set(tensors) ^ set(want_tensors))[:4]}")
    far = max(difference(tensors[k].float(), want_tensors[k]) for k in want_tensors)
    room.expect(far <= 1e-3, f"{name}: a tensor of the adapter differs by {far:.1e}")
    room.notes.append(f"{name}: losses within {worst:.0e}, adapters within {far:.0e}")


@check
def twenty_steps_of_lora_on_llama(room):
    for stored in STORED:
        twenty_steps(room, "llama", stored)


@check
def twenty_steps_of_dora_on_llama(room):
    for stored in STORED:
        twenty_steps(room, "llama", stored, use_dora=True)


@check
def twenty_steps_of_lora_on_qwen3(room):
    for stored in STORED:
        twenty_steps(room, "qwen3", stored)


@check
def twenty_steps_of_dora_on_qwen3(room):
    for stored in STORED:
        twenty_steps(room, "qwen3", stored, use_dora=True)


@check
def twenty_steps_of_dora_on_phi3(room):
    for stored in STORED:
        twenty_steps(room, "phi3", stored, use_dora=True)


@check
def a_whole_model_that_was_trained_loads_in_transformers(room):
    base, rows = make_base(room, "whole", "llama", "bf16"), make_rows(room)
    out = run_of(room, "whole", base, None, rows, adapter=None, lora_r=None, lora_alpha=None, lora_target_linear=None, lora_model_dir=None,
                 learning_rate=1e-3)
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    room.expect(model.dtype == torch.bfloat16, f"it is {model.dtype}")
    with torch.no_grad():
        before, after = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32)(**batch_of(rows)).loss.item() for f in (base, out))
    room.expect(after < 0.8 * before, f"its loss is {after:.3f} instead of {before:.3f}")


# ---- the best step ----

class Told(Trainer):
    """transformers' Trainer around a model of one weight; its evaluations are told."""

    def __init__(self, folder, losses, patience, greater):
        steps = len(losses)
        data = [{"x": torch.ones(1)} for _ in range(4 * steps)]
        super().__init__(model=Line(), train_dataset=data, eval_dataset=data[:1], args=TrainingArguments(
            str(folder), max_steps=steps, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True,
            greater_is_better=greater or None, report_to="none", use_cpu=True, disable_tqdm=True, logging_strategy="no"),
            callbacks=[EarlyStoppingCallback(patience)] if patience else [])
        self.losses = losses

    def evaluate(self, *_, **__):
        metrics = {"eval_loss": self.losses[self.state.global_step - 1]}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x=None, **_):
        return {"loss": (self.weight * x).sum()}


@check
def the_best_step_and_the_early_end_are_transformers(room):
    """The evaluations of runs that overshoot, told to transformers' Trainer: it ends after the same step and takes the same one."""
    base, rows = make_base(room, "best", "llama", "f32"), make_rows(room)
    adapter = make_adapter(room, room.folder / "best-start", base)
    ends = []
    for turn in range(8):
        patience, greater = turn % 4, turn == 7
        out = run_of(room, f"best-{turn}", base, adapter, rows, learning_rate=room.random.choice([0.01, 0.03, 0.1]), seed=turn, val_set_size=2,
                     eval_steps=1, save_steps=1, max_steps=12, load_best_model_at_end=True, early_stopping_patience=patience, greater_is_better=greater)
        losses = [r["eval_loss"] for r in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "eval_loss" in r]
        ours = json.loads((out / f"checkpoint-{len(losses)}/trainer_state.json").read_text())
        theirs = Told(room.folder / f"told-{turn}", losses + [losses[-1]] * (12 - len(losses)), patience, greater)
        theirs.train()
        room.expect(theirs.state.global_step == len(losses), f"{turn}: the run ends after step {len(losses)}, theirs after {theirs.state.global_step}")
        room.expect(theirs.state.best_global_step == ours["best_global_step"] and theirs.state.best_metric == ours["best_metric"],
                    f"{turn}: the best is {ours['best_global_step']}, theirs {theirs.state.best_global_step}: {losses}")
        best = tensors_of(out / f"checkpoint-{theirs.state.best_global_step}/adapter_model.safetensors")
        result = tensors_of(out / "adapter_model.safetensors")
        room.expect(all(torch.equal(best[k], result[k]) for k in best) and best.keys() == result.keys(), f"{turn}: the result is another step's")
        ends.append(f"{ours['best_global_step']}/{len(losses)}")
    room.notes.append(f"best step / last step: {', '.join(ends)}")


if __name__ == "__main__":
    sys.exit(main())
