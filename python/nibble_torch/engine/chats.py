"""Chats: from messages to the text and the tokens that a model was trained on."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch

from ._abi import abi, lib
from ._arrays import Path, path_of, string, take_ids, utf8
from ._core import Owned
from ._records import string_of
from .context import Context
from .errors import ArgumentError, error_of
from .models import Model
from .text import Tokenizer

Message = Mapping[str, object]


@dataclass(frozen=True)
class Rendering:
    """A rendered chat. `spans`: what {% generation %} covers, [start, end) in characters."""

    text: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ChatRow:
    """Tokens of a chat, i32. A label is the token's id, or -100 where nothing is trained."""

    ids: torch.Tensor
    labels: torch.Tensor


class ChatTemplate(Owned):
    """The chat templates and special tokens of a model.

    model    a folder or a .gguf file
    adapter  a folder whose templates and special tokens replace the model's
    file     a template that is used instead, or the name of a built-in one

    >>> template = ChatTemplate("models/nibble-tiny")
    >>> template.render([{"role": "user", "content": "Hi"}], generation_prompt=True).text
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """

    def __init__(
        self,
        model: Path,
        *,
        adapter: Path | None = None,
        file: Path | None = None,
        context: Context | None = None,
    ) -> None:
        context = context or Context()
        paths = path_of(model), path_of(adapter), path_of(file)
        self._open(context, lib.nbl_chat_template_open_adapted, *paths)

    @classmethod
    def parse(cls, text: str, *, name: str = "chat template", context: Context | None = None) -> ChatTemplate:
        """One template from its text, without a model and special tokens. `name` begins error messages."""
        made = cls.__new__(cls)
        made._open(context or Context(), lib.nbl_chat_template_parse, utf8(name), string(text))
        return made

    def _open(self, context: Context, function: Any, *arguments: Any) -> None:
        self.context = context
        arguments = (context.handle, *arguments)
        self._own(context.session.open("chat template", lib.nbl_chat_template_close, function, *arguments))

    def __len__(self) -> int:
        """How many templates there are. Without one rendering fails."""
        count: int = self.session.read(lib.nbl_chat_template_count, self.handle)
        return count

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        generation_prompt: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> Rendering:
        """Renders a chat, as transformers does. `variables` replace special tokens."""
        named = [(utf8(name), string(_json(value))) for name, value in (variables or {}).items()]
        chat = abi.options(
            "nbl_chat",
            messages=string(_json(messages)),
            tools=string(None if tools is None else _json(tools)),
            variables=abi.array("nbl_chat_variable", named),
            variable_count=len(named),
            generation_prompt=generation_prompt,
        )
        return self._rendering(lib.nbl_chat_template_render, byref(chat))

    def render_line(self, line: Mapping[str, object], *, where: str = "chat") -> Rendering:
        """Renders an object with the keys "messages", "tools", "generation_prompt", "set", "template".

        where  begins error messages

        >>> template = ChatTemplate.parse("{{ messages[0].content }}")
        >>> template.render_line({"messages": [{"content": "Hi"}]}).text
        'Hi'
        """
        return self._rendering(lib.nbl_chat_template_render_line, utf8(where), string(_json(line)))

    def _rendering(self, function: Any, *arguments: Any) -> Rendering:
        handle = self.session.open("rendering", lib.nbl_rendering_free, function, self.handle, *arguments)
        start, end = ctypes.c_int64(), ctypes.c_int64()
        spans: list[tuple[int, int]] = []
        try:
            with self.session.work(handle) as (rendering,):
                problem = lib.nbl_rendering_error(rendering)
                if problem.text:
                    raise error_of(abi.enums["nbl_status"]["NBL_ERROR_FORMAT"], string_of(problem))
                while lib.nbl_rendering_span(rendering, len(spans), byref(start), byref(end)):
                    spans.append((start.value, end.value))
                return Rendering(string_of(lib.nbl_rendering_text(rendering)), tuple(spans))
        finally:
            handle.close()


class ChatEncoder(Owned):
    """Turns chats into tokens and labels as training does: the answers of the assistant are trained.

    The three parts must be of one context. Closing one of them closes the encoder.

    >>> model = Model("models/nibble-tiny")
    >>> template = ChatTemplate("models/nibble-tiny", context=model.context)
    >>> encoder = ChatEncoder(model, model.tokenizer(), template)
    >>> messages = [{"role": "user", "content": "3 + 4"}, {"role": "assistant", "content": "7"}]
    >>> row = encoder.row({"messages": messages})
    >>> model.evaluate([row.ids], [row.labels]).tokens
    2
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        parts = model.handle, tokenizer.handle, template.handle
        if any(part.session is not model.session for part in parts):
            raise ArgumentError("model, tokenizer and template must be of one context")
        kind = "chat encoder", lib.nbl_chat_encoder_close, lib.nbl_chat_encoder_open
        self._own(model.session.open(*kind, *parts, borrows=parts))
        self.context = model.context
        self._parts = model, tokenizer, template  # or they would be closed when nobody else has them

    def row(self, row: Mapping[str, object], *, where: str = "row") -> ChatRow:
        """Encodes an object with "messages", and "tools" or not. `where` begins error messages."""
        ids, labels = abi.structs["nbl_ids"](), abi.structs["nbl_ids"]()
        given = utf8(where), string(_json(row))
        self.session.call(lib.nbl_chat_encoder_row, self.handle, *given, byref(ids), byref(labels))
        context = self.context.handle
        return ChatRow(take_ids(self.session, context, ids), take_ids(self.session, context, labels))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
