"""Stand-ins for PEFT's LoRA layers over bitsandbytes. Their names are those of PEFT.

PEFT casts x to the dtype of A and B for their product, and rounds it to the dtype of the base's output before
it adds the two. A fused layer computes all in the base's compute dtype, with f32 sums, and rounds once.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import bnb
from peft.tuners.lora.dora import DoraLinearLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import Tensor, nn

from ._fused import COMPUTE, Part, norm_of
from ._layers import Fused, forget, is_bypassable

HOOKED = "its base layer, A, B or dropout has hooks or a patched forward"


class FusedLora(Fused):
    """One active adapter, LoRA or DoRA, over a fused base layer."""

    def nibble_prepare(self: Any, x: Tensor) -> None:
        base = self._modules["base_layer"]
        if isinstance(base, Fused):
            base.nibble_prepare(x)

    def nibble_part(self: Any, x: Tensor) -> Part | str:
        base: Any = self._modules["base_layer"]
        adapters = self._modules["lora_A"]._modules
        if not isinstance(base, Fused):
            return f"its base layer, a {type(base).__name__}, is not fused"
        if not is_bypassable(base):
            return HOOKED
        known = [] if self._disable_adapters or self.merged_adapters else self.active_adapters
        known = [name for name in known if name in adapters]
        if self._disable_adapters and self.merged_adapters:
            return "a merged adapter is disabled: PEFT unmerges it"
        if len(known) > 1:
            return "several adapters are active"
        part: Part | str = base.nibble_part(x)
        if known and not isinstance(part, str):
            adapted: Part | str = self._nibble_adapted(x, part, known[0])
            return adapted
        return part

    def _nibble_adapted(self: Any, x: Tensor, part: Part, name: str) -> Part | str:
        modules = self._modules  # attributes of a module cost more than entries of its dicts
        a, b = modules["lora_A"]._modules[name], modules["lora_B"]._modules[name]
        dropout = modules["lora_dropout"]._modules[name]
        if type(a) is not nn.Linear or type(b) is not nn.Linear:
            return f"A is a {type(a).__name__}, B a {type(b).__name__}, not Linear"
        of_a, of_b = a._parameters, b._parameters
        a_weight, b_weight = of_a.get("weight"), of_b.get("weight")
        if (
            a_weight is None
            or b_weight is None
            or of_a.get("bias") is not None
            or of_b.get("bias") is not None
        ):
            return "A or B is not a plain matrix, or has a bias: lora_bias"
        if type(dropout) not in (nn.Identity, nn.Dropout):
            return f"its dropout is a {type(dropout).__name__}"
        if not (is_bypassable(a) and is_bypassable(b) and is_bypassable(dropout)):
            return HOOKED
        reason: str | None = self._nibble_reason(x, part, a_weight, b_weight)
        if reason is not None:
            return reason
        p = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
        if p >= 1:
            return f"dropout is {p}"
        scale = self.scaling[name]
        if not isinstance(scale, (float, int)):
            return f"its scaling is a {type(scale).__name__}"  # PEFT's compiled hotswapping
        part = part._replace(lora_a=a_weight, lora_b=b_weight, scale=float(scale), dropout=p)
        variant = self.lora_variant.get(name)
        if variant is None:
            return part
        dora: Part | str = self._nibble_dora(part, name, variant)
        return dora

    def _nibble_reason(self: Any, x: Tensor, part: Part, a: Tensor, b: Tensor) -> str | None:
        """Why these matrices cannot be handed in."""
        device, rank = part.weight[0].device, a.shape[0]
        if a.dtype not in COMPUTE or b.dtype not in COMPUTE:
            return f"A is {a.dtype}, B is {b.dtype}"
        if a.shape[1] != self.in_features or tuple(b.shape) != (self.out_features, rank):
            return f"A is {list(a.shape)}, B is {list(b.shape)}"  # sharded
        if a.device != device or b.device != device:
            return f"A is on {a.device}, B on {b.device}, the weight on {device}"
        autocast = torch.is_autocast_enabled(device.type)
        if not getattr(self, "cast_input_dtype_enabled", True) and not autocast and x.dtype != a.dtype:
            return "PEFT's cast of the input is disabled"
        if autocast and x.dtype not in (torch.float32, torch.get_autocast_dtype(device.type)):
            return f"x is {x.dtype} under autocast to {torch.get_autocast_dtype(device.type)}"
        return None

    def _nibble_dora(self: Any, part: Part, name: str, variant: Any) -> Part | str:
        if type(variant) is not DoraLinearVariant:
            return f"its variant is {type(variant).__name__}"
        dora = self.lora_magnitude_vector[name]
        if type(dora) is not DoraLinearLayer or not is_bypassable(dora) or dora.fan_in_fan_out:
            return f"its magnitude is a {type(dora).__name__}, or has hooks"
        magnitude = dora.weight
        if magnitude.device != part.weight[0].device or magnitude.dtype not in COMPUTE:
            return f"its magnitude is {magnitude.dtype} on {magnitude.device}"
        return part._replace(magnitude=magnitude)

    def nibble_ready(self: Any, part: Part) -> Part:
        return part if part.magnitude is None else part._replace(norm=self._nibble_norm(part))

    def _nibble_norm(self: Any, part: Part) -> Tensor:
        """DoRA's norm: once for all calls of inference, once for each call of training.

        Some optimizers write parameters without a sign in their version counters. So in training nothing
        tells that a norm is still valid.
        """
        a: Any = part.lora_a
        b: Any = part.lora_b
        if torch.compiler.is_compiling() or self.training or torch.is_grad_enabled() or a.is_inference():
            return norm_of(part)
        tensors = (a, b, part.weight[0])
        key = (part.scale, part.dtype, *((tensor.data_ptr(), tensor._version) for tensor in tensors))
        kept = self.__dict__.get("nibble_norm")
        if kept is not None and kept[0] == key:
            norm: Tensor = kept[1]
            return norm
        made = norm_of(part)
        # With the tensors kept, nothing else gets their addresses.
        self.__dict__["nibble_norm"] = (key, made, tensors)
        return made

    def train(self: Any, mode: bool = True) -> Any:
        forget(self)
        return super().train(mode)


class Linear4bit(FusedLora, bnb.Linear4bit):
    nibble_original = bnb.Linear4bit


class Linear8bitLt(FusedLora, bnb.Linear8bitLt):
    nibble_original = bnb.Linear8bitLt


STAND_INS: dict[type[Any], type[Any]] = {
    bnb.Linear4bit: Linear4bit,
    bnb.Linear8bitLt: Linear8bitLt,
}
