"""Scripts of transformers' Trainer and TRL's SFTTrainer, with one line more; DistributedDataParallel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nibble_torch
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from tiny_models import (
    counted,
    dense,
    distance,
    logits,
    stock_bitsandbytes,  # noqa: F401
)

STEPS = 20
TEXTS = [
    f"the {a} {b} sees the {c}" for a in ("old", "new", "red") for b in ("cat", "dog") for c in ("sun", "sea")
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama and its tokenizer, one token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in TEXTS for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    path = tmp_path_factory.mktemp("checkpoint")
    dense().save_pretrained(path)
    fast.save_pretrained(path)
    return path


def load(checkpoint: Path, bits: int = 4) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    if bits == 4:
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    else:
        quantization = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, quantization_config=quantization, device_map="cpu", dtype=torch.float32
    )
    return model, AutoTokenizer.from_pretrained(checkpoint)


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", **options)


def arguments(output: Path) -> dict[str, Any]:
    return {
        "output_dir": str(output),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "seed": 1,
        "gradient_checkpointing": True,
    }


def losses_of(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def sft(checkpoint: Path, output: Path, when: str, **options: Any) -> tuple[list[float], Any]:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    model, tokenizer = load(checkpoint)
    if when == "before":
        nibble_torch.accelerate(model)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**arguments(output), max_length=16),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        peft_config=lora(**options),
        processing_class=tokenizer,
    )
    if when == "after":
        nibble_torch.accelerate(trainer.model)
    return losses_of(trainer), trainer.model


def assert_same_losses(losses: list[float], fused: list[float]) -> None:
    assert len(losses) == len(fused) == STEPS
    assert losses[-1] < losses[0] - 0.5
    assert all(abs(b / a - 1) < 1e-3 for a, b in zip(losses, fused, strict=True)), (losses, fused)


@pytest.mark.slow
def test_sft_trainer(checkpoint: Path, tmp_path: Path) -> None:
    losses, _ = sft(checkpoint, tmp_path, "never")
    for when in ("before", "after"):
        fused, model = sft(checkpoint, tmp_path, when)
        assert_same_losses(losses, fused)
        with counted() as calls:
            logits(model.train())
        assert calls == {"linear": 4, "linear_group": 4}
    model.save_pretrained(tmp_path / "adapter")
    plain = PeftModel.from_pretrained(load(checkpoint)[0], tmp_path / "adapter").train()
    # SFTTrainer trains under autocast to bf16, and leaves the model's forward in it.
    assert distance(logits(plain), logits(model)) < 2e-2
    expected = logits(plain)
    nibble_torch.accelerate(plain)
    assert distance(logits(plain), expected) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "options"), [(8, {}), (4, {"use_dora": True})], ids=str)
def test_trainer(checkpoint: Path, tmp_path: Path, bits: int, options: dict[str, Any]) -> None:
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    def run(accelerated: bool) -> list[float]:
        torch.manual_seed(0)
        model, tokenizer = load(checkpoint, bits)
        model = get_peft_model(prepare_model_for_kbit_training(model), lora(**options))
        if accelerated:
            nibble_torch.accelerate(model)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**arguments(tmp_path)),
            train_dataset=[tokenizer(text + "<eos>") for text in TEXTS],
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        return losses_of(trainer)

    assert_same_losses(run(False), run(True))


RANKS = """
import os, sys
import torch, nibble_torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from tiny_models import adapt, base, tokens, worst

rank = 1 if os.fork() == 0 else 0  # before torch has threads; what is imported is imported once
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
ids = tokens(batch=4)

def model():
    made = adapt(base(layers=1), use_dora=True)
    nibble_torch.accelerate(made)
    return made

def gradients(module, ids, runs=None):
    runs = module if runs is None else runs
    runs(input_ids=ids, labels=ids).loss.backward()
    named = [(name, p) for name, p in module.named_parameters() if p.grad is not None]
    return {name.removeprefix("module."): p.grad.clone() for name, p in named}

alone = gradients(model(), ids)
for compiled in (False, True):
    parallel = DistributedDataParallel(model())
    assert all("rotary" in name for name, _ in parallel.named_buffers())
    runs = torch.compile(parallel, backend="aot_eager") if compiled else parallel
    error = worst(gradients(parallel, ids[2 * rank : 2 * rank + 2], runs), alone)
    assert error < 2e-6, error
sharded = adapt(base(layers=1, storage=torch.float32), use_dora=True)
nibble_torch.accelerate(sharded)
sharded = FullyShardedDataParallel(sharded, use_orig_params=True, device_id=torch.device("cpu"))
loss = sharded(input_ids=ids, labels=ids).loss
loss.backward()
assert abs(loss.item() - model()(input_ids=ids, labels=ids).loss.item()) < 1e-5
dist.destroy_process_group()
if rank == 0:
    assert os.wait()[1] == 0
    print("both ranks agree")
"""


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", RANKS, str(tmp_path / "meeting")]
    ran = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300)
    assert ran.stdout == "both ranks agree\n", ran.stderr
