"""A frozen weight, packed in 4 or 8 bits or dense, as the operators take it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor


class Format(enum.IntEnum):
    """How a weight is stored: nbl_format of nibble.h."""

    DENSE = 0
    NF4 = 1
    FP4 = 2
    INT8 = 3
    MXFP4 = 4


class Nested(enum.IntEnum):
    """Whether the scales of nf4 and fp4 are quantized to 8 bits themselves: nbl_nested of nibble.h."""

    NONE = 0
    NEAREST = 1  # as bitsandbytes on a GPU
    GRID = 2  # as bitsandbytes on a CPU


Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int, int, int, int]
PARTS = ("data", "scales", "codes", "nested", "table", "offset")


class Weight:
    """A matrix [rows, columns]. `args` are its arguments in every operator.

    A part that the format lacks is a tensor without elements. Scales, table and offset are float32. No method
    casts them. `dtype` is that of the weight before it was packed.
    """

    args: Arguments

    def __init__(
        self,
        data: Tensor,
        shape: tuple[int, int],
        format: Format,
        *,
        scales: Tensor | None = None,
        codes: Tensor | None = None,
        nested: Tensor | None = None,
        table: Tensor | None = None,
        offset: Tensor | None = None,
        block: int = 64,
        nested_block: int = 256,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        none = torch.empty(0, device=data.device)
        given = (data, scales, codes, nested, table, offset)
        parts = (none if part is None else part.detach() for part in given)
        numbers = (int(format), int(block), int(nested_block), int(shape[0]), int(shape[1]))
        self.args = cast("Arguments", (*parts, *numbers))
        self.dtype = dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.args[9:11])

    @property
    def format(self) -> Format:
        return Format(self.args[6])

    @property
    def device(self) -> torch.device:
        return self.args[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() * part.element_size() for part in self.parts().values())

    def parts(self) -> dict[str, Tensor]:
        """The tensors by name. Those without elements are absent."""
        return dict(zip(PARTS, self.args[:6], strict=True))

    def __repr__(self) -> str:
        nested = ", nested" if self.args[3].numel() else ""
        return f"Weight({self.format.name.lower()}{nested}, {list(self.shape)}, {self.device})"

    def apply(self, function: Callable[[Tensor], Tensor]) -> Weight:
        """A weight of the results of `function`, which must keep bytes: a copy to another device, a clone.

        Packed parts are handed to it as uint8. So a function that casts floating-point tensors does not
        change them.
        """

        def of(part: Tensor) -> Tensor:
            if self.format == Format.DENSE:
                return function(part)
            return function(part.view(torch.uint8)).view(part.dtype)

        other = object.__new__(Weight)
        other.args = cast("Arguments", (*(of(part) for part in self.args[:6]), *self.args[6:]))
        other.dtype = other.args[0].dtype if self.format == Format.DENSE else self.dtype
        return other

    def to(self, device: torch.device | str) -> Weight:
        """The weight on another device. It has no dtype to cast."""
        return self.apply(lambda part: part.to(device))

    def dequantize(self, dtype: torch.dtype | None = None, transpose: bool = False) -> Tensor:
        """The dense matrix, rounded once to `dtype` (default: the dtype before packing), or its transpose."""
        result: Tensor = torch.ops.nibble.dequantize(*self.args, dtype or self.dtype, transpose)
        return result

    # ---- where weights come from ----

    @classmethod
    def dense(cls, values: Tensor) -> Weight:
        """A weight that is not packed."""
        _check_matrix(values.shape)
        return cls(values.contiguous(), (values.shape[0], values.shape[1]), Format.DENSE, dtype=values.dtype)

    @classmethod
    def quantize(
        cls,
        values: Tensor,
        format: Format | str = Format.NF4,
        *,
        block: int = 64,
        nested: Nested | str = Nested.NONE,
    ) -> Weight:
        """Packs a matrix, on the CPU."""
        form = Format[format.upper()] if isinstance(format, str) else Format(format)
        nest = Nested[nested.upper()] if isinstance(nested, str) else Nested(nested)
        _check_matrix(values.shape)
        parts = torch.ops.nibble.quantize(values.detach().cpu(), int(form), block, int(nest))
        named = {name: part.to(values.device) for name, part in zip(PARTS, parts, strict=True)}
        shape = (values.shape[0], values.shape[1])
        return cls(named.pop("data"), shape, form, **named, block=block, dtype=values.dtype)

    @classmethod
    def from_bitsandbytes(cls, weight: Tensor, state: Any = None) -> Weight:
        """The weight of bitsandbytes' Linear4bit or Linear8bitLt, without a copy.

        `weight` is a Params4bit or an Int8Params. `state` is its QuantState, or the row maxima (SCB) of an
        int8 weight. Default: those that `weight` holds.
        """
        if weight.dtype == torch.int8:
            return cls._from_int8(weight, state)
        state = state if state is not None else getattr(weight, "quant_state", None)
        if state is None:
            raise ValueError(
                "the weight has no quant_state: move the module to its device first, which packs it"
            )
        if getattr(state, "packing_format_for_cpu", False):
            raise ValueError(
                "bitsandbytes has repacked this weight for its CPU kernels, with bf16 scales. "
                "Call model.train() before the first forward, or load the model again"
            )
        form = {"nf4": Format.NF4, "fp4": Format.FP4}.get(state.quant_type)
        if form is None:
            raise ValueError(f"quant_type {state.quant_type!r} is neither 'nf4' nor 'fp4'")
        _check_matrix(state.shape)
        shape = (state.shape[0], state.shape[1])
        if not state.nested:
            return cls(weight, shape, form, scales=state.absmax, block=state.blocksize, dtype=state.dtype)
        inner = state.state2
        return cls(
            weight,
            shape,
            form,
            codes=state.absmax,
            nested=inner.absmax,
            table=inner.code,
            offset=state.offset.float().reshape(1),
            block=state.blocksize,
            nested_block=inner.blocksize,
            dtype=state.dtype,
        )

    @classmethod
    def _from_int8(cls, weight: Tensor, scales: Tensor | None) -> Weight:
        scales = scales if scales is not None else getattr(weight, "SCB", None)
        if scales is None:
            raise ValueError("the int8 weight has no SCB, the maxima of its rows: hand them in as `state`")
        _check_matrix(weight.shape)
        return cls(
            weight, (weight.shape[0], weight.shape[1]), Format.INT8, scales=scales, dtype=torch.float16
        )


def _check_matrix(shape: Any) -> None:
    if len(shape) != 2:
        raise ValueError(
            f"a weight of a linear layer is a matrix [out, in], this one has the shape {list(shape)}"
        )
