"""Stand-ins for the linear layers of bitsandbytes. Their names are those of bitsandbytes."""

from __future__ import annotations

from typing import Any

from bitsandbytes.nn import modules as bnb

from ._layers import FusedLinear4bit, FusedLinear8bitLt


class Linear4bit(FusedLinear4bit, bnb.Linear4bit):  # type: ignore[misc]
    nibble_original = bnb.Linear4bit


class LinearNF4(FusedLinear4bit, bnb.LinearNF4):  # type: ignore[misc]
    nibble_original = bnb.LinearNF4


class LinearFP4(FusedLinear4bit, bnb.LinearFP4):  # type: ignore[misc]
    nibble_original = bnb.LinearFP4


class Linear8bitLt(FusedLinear8bitLt, bnb.Linear8bitLt):  # type: ignore[misc]
    nibble_original = bnb.Linear8bitLt


STAND_INS: dict[type[Any], type[Any]] = {
    bnb.Linear4bit: Linear4bit,
    bnb.LinearNF4: LinearNF4,
    bnb.LinearFP4: LinearFP4,
    bnb.Linear8bitLt: Linear8bitLt,
}
