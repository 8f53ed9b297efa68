"""accelerate(model): a model's linear layers compute with nibble. restore(model) undoes it.

    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=packed)
    model = get_peft_model(model, LoraConfig(...))
    print(nibble_torch.accelerate(model))

Modules stay where they are and keep their parameters. Only their class changes: see _layers.py and _group.py.
"""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ._group import Parent, groups_of, stand_in_of
from ._layers import Fused, forget


@dataclass(frozen=True)
class Left:
    """Layers of one kind that compute as before."""

    kind: str  # their class, such as lora.Linear4bit
    reason: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What accelerate found in a model."""

    fused: dict[str, int] = field(
        default_factory=dict
    )  # layers by class, base layers of adapters not counted
    groups: dict[str, int] = field(default_factory=dict)  # by the names of their members
    left: tuple[Left, ...] = ()

    @property
    def fused_count(self) -> int:
        return sum(self.fused.values())

    @property
    def left_count(self) -> int:
        return sum(len(left.names) for left in self.left)

    def __str__(self) -> str:
        def listed(counts: dict[str, int]) -> str:
            return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"

        lines = [f"fused: {listed(self.fused)}"]
        if self.groups:
            lines.append(
                "groups: " + ", ".join(f"{count} of {names}" for names, count in self.groups.items())
            )
        for left in self.left:
            names = ", ".join(left.names[:1]) + (", ..." if len(left.names) > 1 else "")
            lines.append(f"left: {len(left.names)} {left.kind} ({names}): {left.reason}")
        return "\n".join(lines)


def accelerate(model: nn.Module) -> Report:
    """Fuses what can be fused, in place. Calling it again is harmless, and fuses layers that are new.

    Call it before torch.compile, and before or after get_peft_model.
    """
    stand_ins = _stand_ins()
    for module in model.modules():
        _swap(module, stand_ins.get(type(module)))
    for module in model.modules():
        if not isinstance(module, Parent):
            groups = groups_of(module)
            if groups and _swap(module, stand_in_of(type(module))):
                module.__dict__["nibble_groups"] = groups
    _follow_peft()
    return _report(model)


def restore(model: nn.Module) -> int:
    """Gives every module its original class back. Returns how many there were."""
    count = 0
    for module in model.modules():
        original = getattr(type(module), "nibble_original", None)
        if original is not None:
            forget(module)
            module.__dict__.pop("nibble_groups", None)
            _set_class(module, original)
            count += 1
    return count


def _stand_ins() -> dict[type[nn.Module], type[nn.Module]]:
    """The stand-ins by the class that they stand for, of the packages that are installed."""
    found: dict[type[nn.Module], type[nn.Module]] = {}
    if importlib.util.find_spec("bitsandbytes"):
        from . import _layers_bnb

        found |= _layers_bnb.STAND_INS
        if _has_peft():
            from . import _layers_peft

            found |= _layers_peft.STAND_INS
    return found


def _has_peft() -> bool:
    """PEFT 0.16 or later. Before, layers kept their variants elsewhere."""
    if not importlib.util.find_spec("peft"):
        return False
    return importlib.util.find_spec("peft.tuners.lora.variants") is not None


def _swap(module: nn.Module, stand_in: type[nn.Module] | None) -> bool:
    """Gives a module its stand-in, unless its forward is patched."""
    if stand_in is None or ("forward" in module.__dict__ and _hooked_forward(module) is None):
        return False
    _set_class(module, stand_in)
    return True


def _hooked_forward(module: nn.Module) -> types.MethodType | None:
    """The class's forward, where Hugging Face's accelerate has wrapped it in a hook."""
    forward = module.__dict__.get("_old_forward")
    if isinstance(forward, types.MethodType) and forward.__func__ is type(module).forward:
        return forward
    return None


def _set_class(module: nn.Module, new: type[nn.Module]) -> None:
    hooked = _hooked_forward(module)
    module.__class__ = new
    if hooked is not None:
        module.__dict__["_old_forward"] = types.MethodType(new.forward, module)


# ---- layers that PEFT adds later ----


def _follow_peft() -> None:
    """PEFT wraps layers when adapters are added. Over a fused layer the wrapper is fused as well."""
    if not importlib.util.find_spec("bitsandbytes") or not _has_peft():
        return
    from peft.tuners.lora import LoraModel

    create: Any = LoraModel._create_new_module
    if getattr(create, "nibble_follows", False):
        return

    def create_new_module(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        if isinstance(getattr(made, "base_layer", None), Fused):
            _swap(made, _stand_ins().get(type(made)))
        return made

    setattr(create_new_module, "nibble_follows", True)
    setattr(LoraModel, "_create_new_module", staticmethod(create_new_module))


# ---- the report ----


def _layers(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Name, kind and module of all linear layers and LoRA layers, without what is inside LoRA layers."""
    inside: tuple[str, ...] = ()
    module: Any
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            inside = (*inside, name + ".")
            yield name, f"lora.{type(module).__name__}", module
        elif isinstance(module, nn.Linear):
            yield name, type(module).__name__, module


def _reason(module: Any) -> str | None:
    """Why a layer is left as it stands now."""
    if not isinstance(module, Fused):
        if "forward" in module.__dict__:
            return "its forward is patched"
        if type(module) is nn.Linear:
            return "it is not quantized"
        if type(getattr(module, "base_layer", None)) is nn.Linear:
            return "its base layer is not quantized"
        name = f"{type(module).__module__}.{type(module).__qualname__}"
        old = name.startswith("peft.") and not _has_peft()
        return f"{name} is not among the classes that are fused" + (", of PEFT 0.16 and later" if old else "")
    layer: Any = module
    base: Any = getattr(layer, "base_layer", layer)
    data = getattr(base.weight, "CB", None)
    if data is None:
        data = base.weight
    dtype = getattr(base, "compute_dtype", None) or torch.float32
    x = torch.empty(0, base.in_features, dtype=dtype, device=data.device)
    part = layer.nibble_part(x)
    return part if isinstance(part, str) else None


def _report(model: nn.Module) -> Report:
    fused: dict[str, int] = {}
    groups: dict[str, int] = {}
    left: dict[tuple[str, str], list[str]] = {}
    for name, kind, module in _layers(model):
        reason = _reason(module)
        if reason is None:
            fused[kind] = fused.get(kind, 0) + 1
        else:
            left.setdefault((kind, reason), []).append(name)
    for module in model.modules():
        for names in getattr(module, "nibble_groups", ()) if isinstance(module, Parent) else ():
            label = ", ".join(names)
            groups[label] = groups.get(label, 0) + 1
    kinds = tuple(Left(kind, reason, tuple(names)) for (kind, reason), names in left.items())
    return Report(fused, groups, kinds)
