"""Tiny models of transformers with random weights, packed by bitsandbytes, with PEFT's adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 128


@pytest.fixture(autouse=True, scope="session")
def stock_bitsandbytes() -> Iterator[None]:
    """The yardstick is bitsandbytes with its own kernels, even where nibble's backend is installed."""
    from nibble_torch import bitsandbytes

    registered = bitsandbytes.status().registered
    bitsandbytes.unregister()
    yield
    if registered:
        bitsandbytes.register()


def dense(
    kind: str = "llama",
    *,
    layers: int = 2,
    bias: bool = False,
    deviation: float = 0.02,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """`deviation` is that of the weights. With biases and 0.02, gradients of q and k are little but noise."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "attention_bias": bias,
        "initializer_range": deviation,
        "tie_word_embeddings": False,
        "use_cache": False,
    }
    model: Any
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**common, head_dim=16))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model.to(dtype)


def fourbit(
    linear: nn.Linear, compute: torch.dtype | None, nested: bool, quant: str, block: int, storage: torch.dtype
) -> Any:
    made = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=compute,
        compress_statistics=nested,
        quant_type=quant,
        quant_storage=storage,
    )
    made.weight = bnb.nn.Params4bit(
        linear.weight.data,
        requires_grad=False,
        compress_statistics=nested,
        quant_type=quant,
        quant_storage=storage,
        blocksize=block,
        module=made,
    )
    return made


def eightbit(linear: nn.Linear) -> Any:
    made = bnb.nn.Linear8bitLt(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        has_fp16_weights=False,
        threshold=6.0,
    )
    made.weight = bnb.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
    return made


def base(
    kind: str = "llama",
    bits: int = 4,
    *,
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype | None = None,
    nested: bool = True,
    quant: str = "nf4",
    block: int = 64,
    storage: torch.dtype = torch.uint8,
    **options: Any,
) -> Any:
    """A frozen model in training mode. All its linear layers but lm_head are packed."""
    model = dense(kind, dtype=dtype, **options)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and name != "lm_head":
                packed = (
                    fourbit(child, compute or dtype, nested, quant, block, storage)
                    if bits == 4
                    else eightbit(child)
                )
                packed.bias = child.bias
                setattr(parent, name, packed.to("cpu"))
    model.requires_grad_(False)
    setattr(model, f"is_loaded_in_{bits}bit", True)
    return model.train()


def adapt(model: PreTrainedModel, name: str = "default", **options: Any) -> PeftModel:
    """Adds an adapter that is not at its start: B is random, and magnitudes are away from the norms."""
    settings: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "lora_dropout": 0.0}
    torch.manual_seed(1)
    peft = get_peft_model(model, LoraConfig(**(settings | options)), adapter_name=name)
    shake(peft, name)
    return peft.train()


def shake(peft: nn.Module, name: str = "default", seed: int = 2) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, parameter in peft.named_parameters():
            if f"lora_B.{name}." in key:
                parameter.normal_(0, 0.02)
            if f"lora_magnitude_vector.{name}." in key:
                parameter.mul_(torch.rand_like(parameter) + 0.5)


def tokens(count: int = 24, batch: int = 2, seed: int = 3) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(seed))


def step(model: nn.Module, ids: Tensor | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, logits and every gradient."""
    ids = tokens() if ids is None else ids
    model.zero_grad()
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    gradients = {
        name.replace("_orig_mod.", ""): parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return output.loss.detach(), output.logits.detach(), gradients


def logits(model: nn.Module, ids: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(input_ids=tokens() if ids is None else ids).logits
    return result


def distance(a: Tensor, b: Tensor) -> float:
    """The relative norm of the difference."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def worst(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys() and a
    return max(distance(a[key], b[key]) for key in a)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Calls of nibble's operators inside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: dict[str, int] = {}

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.namespace == "nibble":
                name = function._opname
                counts[name] = counts.get(name, 0) + 1
            return function(*args, **(kwargs or {}))

    with Counter():
        yield counts
