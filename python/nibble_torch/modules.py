"""A linear layer over a packed weight, with an adapter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ._state import keys_of_weight, load_weight, save_weight
from .ops import dora_norm, linear
from .weight import Format, Weight

# The threshold that says: dequantize int8 weights.
DEQUANTIZED = -1.0


class Linear(nn.Module):
    """y = (x W' + scale (drop(x) A') B') * magnitude / |W + scale B A| + bias.

    weight         frozen, packed or dense. It is no parameter and no buffer: .to(dtype) does not cast its
                   scales, and DistributedDataParallel does not send it at every step. .to(device) moves it.
                   A state dict holds it with the keys of bitsandbytes' checkpoints
    bias           is kept as a parameter without gradient
    rank           of the adapter, LoRA; 0: none
    alpha          scale = alpha / rank, or alpha / sqrt(rank) with `rslora`
    dropout        of the adapter's input, in training
    dora           a trained magnitude for each row: DoRA
    adapter_dtype  of A, B and the magnitude
    compute_dtype  x is cast to it, and y back. Default: the dtype of x
    threshold      int8: see nibble_torch.linear. In training on a CPU the weight is dequantized, as in
                   bitsandbytes
    """

    lora_a: nn.Parameter | None
    lora_b: nn.Parameter | None
    magnitude: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: Weight,
        bias: Tensor | None = None,
        *,
        rank: int = 0,
        alpha: float = 16.0,
        dropout: float = 0.0,
        rslora: bool = False,
        dora: bool = False,
        adapter_dtype: torch.dtype = torch.float32,
        compute_dtype: torch.dtype | None = None,
        threshold: float = 0.0,
    ) -> None:
        super().__init__()
        if dora and rank == 0:
            raise ValueError("DoRA needs an adapter: a rank of 1 or more")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout {dropout} is not in [0, 1)")
        self.weight = weight
        self._norm: tuple[object, Tensor] | None = None
        self.out_features, self.in_features = weight.shape
        self.rank, self.dropout, self.threshold = rank, dropout, threshold
        self.scale = alpha / (math.sqrt(rank) if rslora else rank) if rank else 1.0
        self.compute_dtype = compute_dtype
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.lora_a = self.lora_b = self.magnitude = None
        if rank:
            device = weight.device
            self.lora_a = nn.Parameter(
                torch.empty(rank, self.in_features, dtype=adapter_dtype, device=device)
            )
            self.lora_b = nn.Parameter(
                torch.zeros(self.out_features, rank, dtype=adapter_dtype, device=device)
            )
            nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
            if dora:
                norm = dora_norm(weight, self.lora_a, self.lora_b, self.scale, torch.float32)
                self.magnitude = nn.Parameter(norm.to(adapter_dtype))

    @classmethod
    def from_bitsandbytes(cls, module: nn.Module, **options: Any) -> Linear:
        """The layer of a Linear4bit or a Linear8bitLt, whose weight and bias it shares."""
        weight: Any = module.weight
        if weight.dtype == torch.int8:
            state: Any = module.state
            scales = state.SCB if state.SCB is not None else weight.SCB
            options.setdefault("threshold", float(state.threshold))
            packed = Weight.from_bitsandbytes(weight, scales)
        else:
            packed = Weight.from_bitsandbytes(weight)
            options.setdefault("compute_dtype", getattr(module, "compute_dtype", None))
        bias = module.bias
        return cls(packed, bias if isinstance(bias, Tensor) else None, **options)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.compute_dtype or x.dtype
        bias, drops = self.bias, self.dropout if self.training and self.rank else 0.0
        if bias is not None and bias.dtype != torch.float32:
            bias = bias.to(dtype)  # type: ignore[assignment]
        seed = torch.randint(2**62, (1,), dtype=torch.int64, device=x.device) if drops else None
        norm = None if self.magnitude is None else self._dora_norm(dtype)
        threshold = self.threshold
        if self.weight.format == Format.INT8 and self.training and x.device.type == "cpu":
            threshold = DEQUANTIZED
        y = linear(
            x.to(dtype),
            self.weight,
            bias,
            self.lora_a,
            self.lora_b,
            self.magnitude,
            norm,
            scale=self.scale,
            dropout=drops,
            seed=seed,
            threshold=threshold,
        )
        return y.to(x.dtype)

    def _dora_norm(self, dtype: torch.dtype) -> Tensor:
        """DoRA's norm: once for each call of training, and once for all calls of inference.

        Some optimizers write parameters without a sign in their version counters. So training keeps no norm.
        """
        a, b = self.lora_a, self.lora_b
        assert a is not None and b is not None
        if torch.compiler.is_compiling() or self.training or torch.is_grad_enabled() or a.is_inference():
            return dora_norm(self.weight, a, b, self.scale, dtype)
        key = (dtype, self.scale, a.data_ptr(), a._version, b.data_ptr(), b._version)
        if self._norm is None or self._norm[0] != key:
            self._norm = (key, dora_norm(self.weight, a, b, self.scale, dtype))
        return self._norm[1]

    def train(self, mode: bool = True) -> Linear:
        self._norm = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_norm": None}  # a copy has parameters at other addresses

    def extra_repr(self) -> str:
        adapter = f", rank={self.rank}, scale={self.scale:g}" if self.rank else ""
        dora = ", dora" if self.magnitude is not None else ""
        return f"{self.weight!r}, bias={self.bias is not None}{adapter}{dora}"

    # ---- the weight moves and is saved with the module ----

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        self._norm = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.weight = self.weight.apply(fn)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update(save_weight(self.weight, prefix + "weight"))

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = set(keys_of_weight(state_dict, prefix + "weight"))
        rest = {key: value for key, value in state_dict.items() if key not in own}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        try:
            weight = load_weight(state_dict, prefix + "weight", self.weight)
        except (ValueError, KeyError) as error:
            error_msgs.append(f"{prefix}weight: {error}")
            return
        if weight is None:
            missing_keys.append(prefix + "weight")
        elif weight.shape != self.weight.shape:
            error_msgs.append(
                f"{prefix}weight is {list(weight.shape)}, this layer's is {list(self.weight.shape)}"
            )
        else:
            self._norm = None
            self.weight = weight.to(self.weight.device).apply(torch.clone)
