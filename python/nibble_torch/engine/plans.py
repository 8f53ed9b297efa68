"""Plans: what computing takes, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._abi import lib
from ._core import Session
from ._records import record_of, records_of


@dataclass(frozen=True)
class Arenas:
    """Bytes by purpose."""

    weights: int
    adapters: int
    optimizer: int
    saved: int
    scratch: int
    kv: int
    device: int


@dataclass(frozen=True)
class PlanSummary:
    """The numbers of a plan: bytes, lengths of its lists, and what is recomputed to save memory."""

    arenas: Arenas
    total_bytes: int
    op_count: int
    cast_count: int
    value_count: int
    recompute: str
    recomputed_layers: int
    layers: int
    recompute_flops: float
    longest_sequence: int
    smallest_memory: int
    dequantized_weights: int
    dequantized_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class PlannedOp:
    """Operators of a step that share name, implementation and pass; `flops` and `bytes` are their sums.

    `pass_` is "prepare", "forward", "again", "backward" or "decode".
    """

    op: str
    impl: str
    pass_: str
    count: int
    flops: float
    bytes: float


@dataclass(frozen=True)
class PlannedCast:
    """A conversion between dtypes, and why it is made."""

    at: str
    from_: str
    to: str
    why: str


@dataclass(frozen=True)
class PlannedValue:
    """Values of a step that share arena, dtype, shape and size. `bytes` is the size of one of them.

    Scratch of operators has neither dtype nor shape.
    """

    name: str
    count: int
    arena: str
    dtype: str | None
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What a step takes: memory by purpose, operators, casts and the largest values.

    >>> from nibble_torch.engine import Model
    >>> with Model("models/nibble-tiny", plan_only=True) as model:
    ...     plan = model.plan(tokens=512)
    >>> plan.total_bytes == sum(vars(plan.arenas).values())
    True
    >>> sorted({op.pass_ for op in plan.ops})
    ['decode', 'forward']
    """

    summary: PlanSummary
    ops: tuple[PlannedOp, ...]
    casts: tuple[PlannedCast, ...]
    values: tuple[PlannedValue, ...]

    @property
    def arenas(self) -> Arenas:
        """Bytes by purpose."""
        return self.summary.arenas

    @property
    def total_bytes(self) -> int:
        """Bytes of all arenas together."""
        return self.summary.total_bytes


def make_plan(session: Session, function: Any, *arguments: Any) -> Plan:
    """A plan of the library, copied and freed."""
    handle = session.open("plan", lib.nbl_model_plan_free, function, *arguments)
    try:
        with session.work(handle) as (plan,):
            return Plan(
                summary=record_of(PlanSummary, lib.nbl_model_plan_get_summary(plan).contents),
                ops=records_of(PlannedOp, lib.nbl_model_plan_get_op, plan),
                casts=records_of(PlannedCast, lib.nbl_model_plan_get_cast, plan),
                values=records_of(PlannedValue, lib.nbl_model_plan_get_value, plan),
            )
    finally:
        handle.close()
