"""Models: logits, gradients, generated tokens, and how well a model predicts."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch

from ._abi import abi, lib
from ._arrays import IdLists, Ids, Path, Sequences, copy_of, ids_of, ids_tensor, path_of
from ._core import Owned
from ._records import number_of, record_of
from .context import Context
from .plans import Plan, make_plan
from .text import Tokenizer

_CANCELLED = abi.enums["nbl_status"]["NBL_ERROR_CANCELLED"]


@dataclass(frozen=True)
class Gradients:
    """The mean loss over the trained tokens, in nats, their number, and a gradient per trained tensor."""

    loss: float
    trained: int
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Generated:
    """New tokens of one sequence, i32. `stopped`: an end token or the callback ended it, not max_tokens."""

    ids: torch.Tensor
    stopped: bool


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts: the sum of -log(probability) in nats, scored tokens, likeliest tokens."""

    loss_sum: float
    tokens: int
    hits: int

    @property
    def loss(self) -> float:
        """The mean loss in nats."""
        return self.loss_sum / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss)

    @property
    def accuracy(self) -> float:
        """The part of tokens that the model held likeliest."""
        return self.hits / self.tokens


class Model(Owned):
    """A model that computes: a Hugging Face folder or a .gguf file.

    dtype        of the computation: "f32", "f16", "bf16"; "default": the checkpoint's
    load         storage of linear layers in memory: "nf4", "fp4", "int8", "mxfp4"; "dense": as in the files
    load_nested  with nf4 and fp4: scales are quantized, too
    adapter      a folder as PEFT saves it
    plan_only    only plan() works, and weights are not read

    >>> with Model("models/nibble-tiny", dtype="f32") as model:
    ...     tokenizer = model.tokenizer()
    ...     prompt = tokenizer.encode("What is 3 plus")
    ...     logits = model.logits([prompt])[0]
    ...     answer = model.generate([prompt], max_tokens=4)[0]
    >>> logits.shape == (len(prompt), model.vocabulary)
    True
    >>> int(logits[-1].argmax()) == int(answer.ids[0])
    True
    """

    def __init__(
        self,
        path: Path,
        *,
        context: Context | None = None,
        dtype: str = "default",
        load: str = "dense",
        load_nested: bool = False,
        adapter: Path | None = None,
        plan_only: bool = False,
    ) -> None:
        self.context = context or Context()
        options = abi.options(
            "nbl_model_options",
            dtype=number_of("nbl_compute_dtype", dtype, "dtype"),
            load=number_of("nbl_format", load, "load"),
            load_nested=load_nested,
            adapter=path_of(adapter),
            plan_only=plan_only,
        )
        session = self.context.session
        kind = "model", lib.nbl_model_close, lib.nbl_model_open
        self._own(session.open(*kind, self.context.handle, path_of(path), byref(options)))
        self._vocabulary = int(session.read(lib.nbl_model_vocabulary, self.handle))
        self._max_positions = int(session.read(lib.nbl_model_max_positions, self.handle))

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has logits for."""
        return self._vocabulary

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence that the model was made for."""
        return self._max_positions

    def logits(self, sequences: Sequences) -> list[torch.Tensor]:
        """The logits of every position: f32 [tokens, vocabulary] for each sequence."""
        ids = IdLists(sequences, "sequences")
        made = [torch.empty(len(tensor), self.vocabulary) for tensor in ids.tensors]
        addresses = (ctypes.c_void_p * ids.count)(*[tensor.data_ptr() for tensor in made])
        self.session.call(lib.nbl_model_logits, self.handle, ids.lists, ids.count, addresses)
        return made

    def gradients(
        self, sequences: Sequences, labels: Sequences, *, pack: bool = False, dropout: bool = False
    ) -> Gradients:
        """One forward and backward pass: the loss, and the gradients of the adapter, f32, by PEFT's names.

        A label is what the model should predict before that token. Label -100 is not trained.

        pack     all sequences in one pass: the same results, but for the order of sums
        dropout  applies the adapter's lora_dropout, with masks of seed 0
        """
        tensors: dict[str, torch.Tensor] = {}

        def on_gradient(_user: object, name: bytes, gradient: Any) -> None:
            shape = tuple(gradient.contents.shape)[: gradient.contents.rank]
            # The library's memory is valid only during the call.
            tensors[name.decode()] = copy_of(gradient.contents.data, math.prod(shape), torch.float32).view(
                shape
            )

        receive = self.session.receiver(abi.callbacks["nbl_gradient_fn"], on_gradient, _CANCELLED)
        loss, trained = self._gradients(
            lib.nbl_model_gradients, sequences, labels, pack, dropout, receive, None
        )
        return Gradients(loss, trained, tensors)

    def write_logits(self, sequences: Sequences, path: Path, *, force: bool = False) -> None:
        """Writes logits.0, logits.1, ... into a .safetensors file. `force` replaces an earlier result."""
        ids = IdLists(sequences, "sequences")
        self.session.call(lib.nbl_model_write_logits, self.handle, ids.lists, ids.count, path_of(path), force)

    def write_gradients(
        self,
        sequences: Sequences,
        labels: Sequences,
        path: Path,
        *,
        pack: bool = False,
        dropout: bool = False,
        force: bool = False,
    ) -> tuple[float, int]:
        """The same as gradients, into a .safetensors file. Returns loss and trained tokens."""
        return self._gradients(
            lib.nbl_model_write_gradients, sequences, labels, pack, dropout, path_of(path), force
        )

    def _gradients(
        self, function: Any, sequences: Sequences, labels: Sequences, pack: bool, dropout: bool, *target: Any
    ) -> tuple[float, int]:
        ids = IdLists(sequences, "sequences")
        marks = IdLists(labels, "labels", ids.count)
        loss, trained = ctypes.c_double(), ctypes.c_int64()
        self.session.call(
            function,
            self.handle,
            ids.lists,
            marks.lists,
            ids.count,
            pack,
            dropout,
            *target,
            byref(loss),
            byref(trained),
        )
        return loss.value, trained.value

    def generate(
        self,
        prompts: Sequences,
        *,
        max_tokens: int,
        temperature: float = 0,
        top_k: int = 0,
        top_p: float = 0,
        min_p: float = 0,
        repetition_penalty: float = 0,
        seed: int = 0,
        ends: Ids | None = None,
        on_token: Callable[[int, int], bool | None] | None = None,
    ) -> list[Generated]:
        """Continues prompts in one batch.

        temperature  divides logits; 0: the likeliest token
        top_k, top_p, min_p, repetition_penalty    0: no limit
        seed         of the draws
        ends         tokens that end a sequence and are no part of it; None: those of eos_ids()
        on_token     is called with the index of the sequence and each new token. True ends that sequence. It
                     may use text streams, stop matchers and tokenizers of this context, and anything of other
                     contexts.

        >>> with Model("models/nibble-tiny") as model:
        ...     prompt = model.tokenizer().encode("What is 3 plus")
        ...     seen = []
        ...     one = model.generate([prompt], max_tokens=3, on_token=lambda sequence, id: seen.append(id))[0]
        >>> seen == one.ids.tolist()
        True
        """
        ids = IdLists(prompts, "prompts")
        stops = ids_tensor(self.eos_ids() if ends is None else ends, "ends")
        room_size = min(max(max_tokens, 0), 2**24)  # beyond its limits the library refuses max_tokens
        rooms = [torch.empty(room_size, dtype=torch.int32) for _ in ids.tensors]
        results = abi.array("nbl_generated", [(ids_of(room, 0), False) for room in rooms])

        def receive(_user: object, sequence: int, token: int) -> object:
            return on_token(sequence, token) if on_token else None

        options = abi.options(
            "nbl_generate_options",
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            ends=ids_of(stops).ids,
            end_count=len(stops),
            token=self.session.receiver(abi.callback("nbl_generate_options", "token"), receive, True),
        )
        self.session.call(lib.nbl_model_generate, self.handle, ids.lists, ids.count, byref(options), results)
        return [
            Generated(room[: result.ids.count], result.stopped)
            for room, result in zip(rooms, results, strict=True)
        ]

    def evaluate(
        self,
        sequences: Sequences,
        labels: Sequences | None = None,
        *,
        on_progress: Callable[[int, int], bool | None] | None = None,
    ) -> Evaluation:
        """Predicts the tokens of sequences. With labels only tokens count whose label is not -100.

        on_progress  is called after every pass with the tokens done and in all. True: a CancelledError

        >>> with Model("models/nibble-tiny") as model:
        ...     found = model.evaluate([model.tokenizer().encode("What is 3 plus 4?")])
        >>> found.tokens, found.perplexity > 1
        (8, True)
        """
        ids = IdLists(sequences, "sequences")
        marks = None if labels is None else IdLists(labels, "labels", ids.count)

        def receive(_user: object, done: int, total: int) -> object:
            return on_progress(done, total) if on_progress else None

        options = abi.options(
            "nbl_evaluate_options",
            progress=self.session.receiver(abi.callback("nbl_evaluate_options", "progress"), receive, True),
        )
        if marks:
            options.labels = marks.lists
        result = abi.options("nbl_evaluation")
        self.session.call(
            lib.nbl_model_evaluate, self.handle, ids.lists, ids.count, byref(options), byref(result)
        )
        return record_of(Evaluation, result)

    def plan(self, *, tokens: int, batch: int = 1, memory: int = 0) -> Plan:
        """What `batch` sequences of `tokens` tokens take: a training step with an adapter, else generation.

        memory  bytes that everything must keep within; 0: no limit. Too little is an OutOfMemoryError, whose
                message names the smallest amount.
        """
        return make_plan(self.session, lib.nbl_model_make_plan, self.handle, tokens, batch, memory)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the adapter's folder, else the model's own."""
        return Tokenizer.opened(self.context, lib.nbl_model_tokenizer, self.handle)

    def eos_ids(self) -> list[int]:
        """The tokens that end a sequence, as the model's files say.

        >>> Model("models/nibble-tiny").eos_ids()
        [511, 509]
        """
        count: int = self.session.read(lib.nbl_model_eos_ids, self.handle, None, 0)
        room = (ctypes.c_int32 * count)()
        self.session.read(lib.nbl_model_eos_ids, self.handle, room, count)
        return list(room)

    def adapter_eos_id(self, tokenizer: Tokenizer) -> int | None:
        """The token that the adapter was trained to end with."""
        found: int = self.session.read(lib.nbl_model_adapter_eos_id, self.handle, tokenizer.handle)
        return found if found >= 0 else None


def check_result(path: Path, *, force: bool = False, context: Context | None = None) -> None:
    """Raises if write_logits and write_gradients may not write to `path`. Before a model is opened."""
    context = context or Context()
    context.session.call(lib.nbl_result_check, context.handle, path_of(path), force)
