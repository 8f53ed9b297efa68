"""Layers with one input, such as q, k and v, computed by one call.

The parent module's forward runs with a view of the module as `self`. In the view the members of a group
carry a scope that lives as long as the call. The first member that is called computes all outputs. Another
member takes its own if it is called with the same tensor. So there is nothing to clean up after an exception,
nothing that two threads share, and nothing that torch.compile or checkpointing sees as a side effect.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ._fused import can_group, compute_group
from ._layers import Fused, is_bypassable

# Children that have one input in every model known to have children of these names.
GROUPS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkvz", "in_proj_ba"),
)
# Arguments of attention whose keys and values come from elsewhere.
_CROSS = ("encoder_hidden_states", "key_value_states", "encoder_outputs", "cross")


class Scope:
    """One call of a parent: the outputs that the first member has computed and no other has taken."""

    def __init__(self, members: tuple[Any, ...]) -> None:
        self.members = members
        self.x: Tensor | None = None
        self.version = 0
        self.outputs: list[Tensor | None] | None = None
        self.alone = False

    def output(self, member: Any, x: Tensor) -> Tensor | None:
        """The member's output, or None: it computes alone."""
        if self.alone:
            return None
        outputs = self.outputs
        if outputs is None:
            outputs = self.outputs = self._compute(x)
            if outputs is None:
                self.alone = True
                return None
            self.x, self.version = x, _version(x)
        if x is not self.x or _version(x) != self.version:
            return None
        for i in range(len(self.members)):
            if self.members[i] is member:
                y = outputs[i]
                outputs[i] = None  # a second call computes again
                return y
        return None

    def _compute(self, x: Tensor) -> list[Tensor | None] | None:
        parts = []
        for member in self.members:
            if not is_bypassable(member):
                # Its hooks run when it is called, but its input may be another one by then.
                return None
            member.nibble_prepare(x)
            part = member.nibble_part(x)
            if isinstance(part, str):
                return None
            parts.append(part)
        if not can_group(parts):
            return None
        ready = [member.nibble_ready(part) for member, part in zip(self.members, parts)]
        return [*compute_group(x, ready)]

    def is_wasted(self) -> bool:
        """True if an output was computed that no member took."""
        return self.outputs is not None and any(y is not None for y in self.outputs)


def _version(x: Tensor) -> int:
    """What an in-place operation changes. Tensors of inference mode have none."""
    return 0 if torch.compiler.is_compiling() or x.is_inference() else x._version


class _Member:
    """A child in a view: a call hands the scope on."""

    def __init__(self, module: nn.Module, scope: Scope) -> None:
        self.__dict__["nibble_module"] = module
        self.__dict__["nibble_scope"] = scope

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["nibble_module"](*args, nibble_scope=self.__dict__["nibble_scope"], **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["nibble_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["nibble_module"], name, value)


class _View:
    """A parent in its own forward."""

    def __init__(self, module: nn.Module) -> None:
        self.__dict__["nibble_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["nibble_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["nibble_module"], name, value)


class Parent:
    """What the stand-in of a parent has, beside its forward."""

    nibble_original: type[nn.Module] = nn.Module
    nibble_groups: tuple[tuple[str, ...], ...] = ()

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        state = {key: value for key, value in self.__dict__.items()}
        return _rebuild, (self.nibble_original,), state


def _forward_of(original: type[nn.Module]) -> Any:
    """The forward of a parent's stand-in. It has the original's signature."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        view = _View(self)
        scopes = []
        for names in self.nibble_groups:
            members = tuple(self._modules.get(name) for name in names)
            if all(isinstance(member, Fused) for member in members):
                scope = Scope(members)
                scopes.append((names, scope))
                for name, member in zip(names, members):
                    view.__dict__[name] = _Member(member, scope)
        result = original.forward(view, *args, **kwargs)
        if not torch.compiler.is_compiling():
            for names, scope in scopes:
                if scope.is_wasted():
                    dissolve(self, names)
        return result

    return forward


def dissolve(parent: Any, names: tuple[str, ...]) -> None:
    """Ends a group whose members have different inputs after all."""
    parent.nibble_groups = tuple(group for group in parent.nibble_groups if group != names)


def _rebuild(original: type[nn.Module]) -> nn.Module:
    stand_in: Any = stand_in_of(original)
    return object.__new__(stand_in)  # type: ignore[no-any-return]


_stand_ins: dict[type[nn.Module], type[Any]] = {}


def stand_in_of(original: type[nn.Module]) -> type[Any]:
    """The stand-in of a parent's class. It has the same name."""
    made = _stand_ins.get(original)
    if made is None:
        members = {
            "nibble_original": original,
            "forward": _forward_of(original),
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
        }
        made = _stand_ins[original] = type(original.__name__, (Parent, original), members)
    return made


def groups_of(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    """The groups among the children of a module."""
    found = []
    for names in GROUPS:
        members = [module._modules.get(name) for name in names]
        if all(isinstance(member, Fused) for member in members) and _may_view(module):
            found.append(names)
    return tuple(found)


def _may_view(module: nn.Module) -> bool:
    """True if the module's forward can run with a view as self."""
    forward = inspect.unwrap(type(module).forward)
    if not inspect.isfunction(forward):
        return False
    if "__class__" in forward.__code__.co_freevars:
        return False  # super() needs the module itself
    return not any(word in name for name in inspect.signature(forward).parameters for word in _CROSS)
