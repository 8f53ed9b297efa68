"""Fused stand-ins for bitsandbytes' linear layers and PEFT's LoRA layers.

A module gets a stand-in by `module.__class__ = ...`. A stand-in subclasses the class it stands for and has
its name. It overrides forward alone. Parameters, state dicts, merging and adapters stay the original's
business. A call that is not fused runs the original forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._fused import COMPUTE, Part, compute, device_reason, fourbit_weight, int8_threshold, int8_weight

# What a stand-in keeps in the module's __dict__. It is neither copied nor pickled.
KEPT = ("nibble_weight", "nibble_norm")


# A stand-in is a module by the class it stands for.
if TYPE_CHECKING:
    _Module = nn.Module
else:
    _Module = object


class Fused(_Module):
    """What all stand-ins have."""

    nibble_original: type[nn.Module] = nn.Module  # the class that this one stands for

    def nibble_prepare(self, x: Tensor) -> None:
        """What the original forward changes in the module before it computes."""

    def nibble_part(self, x: Tensor) -> Part | str:
        """This call as a Part, or why it is not fused."""
        raise NotImplementedError

    def nibble_ready(self, part: Part) -> Part:
        """The Part with what takes computing."""
        return part

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        scope = kwargs.pop("nibble_scope", None)
        if not args and not kwargs:
            if scope is not None:
                shared: Tensor | None = scope.output(self, x)
                if shared is not None:
                    return shared
            self.nibble_prepare(x)
            part = self.nibble_part(x)
            if not isinstance(part, str):
                return compute(x, self.nibble_ready(part))
        y: Tensor = super().forward(x, *args, **kwargs)
        return y

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        forget(self)
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in KEPT}


def forget(module: Any) -> None:
    for key in KEPT:
        module.__dict__.pop(key, None)


def cast_bias(module: Any, dtype: torch.dtype) -> None:
    """bitsandbytes changes the dtype of the bias for good."""
    bias = module._parameters["bias"]
    if bias is not None and bias.dtype != dtype:
        bias.data = bias.data.to(dtype)


# ---- hooks ----


def is_bypassable(module: nn.Module) -> bool:
    """True if a call runs nothing but the original forward: no hooks, no patched forward."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or ("forward" in module.__dict__ and not _is_placement_hook(module))
    )


def _is_placement_hook(module: nn.Module) -> bool:
    """Hugging Face's accelerate moves inputs to the module's device. Where they are there it does nothing."""
    hook = getattr(module, "_hf_hook", None)
    return type(hook).__name__ == "AlignDevicesHook" and not getattr(hook, "offload", True)


# ---- bitsandbytes ----


class FusedLinear4bit(Fused):
    """bitsandbytes.nn.Linear4bit. x is cast to its compute_dtype, y back to the dtype of x."""

    def nibble_prepare(self: Any, x: Tensor) -> None:
        if not self.compute_type_is_set:
            self.set_compute_type(x)
            self.compute_type_is_set = True
        cast_bias(self, x.dtype if self.compute_dtype is None else self.compute_dtype)

    def nibble_part(self: Any, x: Tensor) -> Part | str:
        dtype = x.dtype if self.compute_dtype is None else self.compute_dtype
        if dtype not in COMPUTE:
            return f"the compute dtype is {dtype}, not float32, float16 or bfloat16"
        weight = fourbit_weight(self)
        if isinstance(weight, str):
            return weight
        return device_reason(x, weight) or Part(dtype, x.dtype, weight, self._parameters["bias"])


class FusedLinear8bitLt(Fused):
    """bitsandbytes.nn.Linear8bitLt with int8 weights. It computes in the dtype of x."""

    def nibble_prepare(self: Any, x: Tensor) -> None:
        # On a CPU, PEFT's DoRA moves the weight, and bitsandbytes forgets its SCB. That of `state` is valid.
        if self.weight.CB is not None and self.weight.SCB is not None:
            self.init_8bit_state()
        cast_bias(self, x.dtype)

    def nibble_part(self: Any, x: Tensor) -> Part | str:
        weight = int8_weight(self)
        if isinstance(weight, str):
            return weight
        dtype = x.dtype
        device = x.device.type
        if device == "cpu" and self.training and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)  # there bitsandbytes calls torch's linear
        if dtype not in COMPUTE:
            return f"x is {dtype}, not float32, float16 or bfloat16"
        threshold = int8_threshold(self, x)
        return device_reason(x, weight) or Part(dtype, dtype, weight, self.bias, threshold=threshold)
