"""Text to ids and back, and text while it is generated."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from typing import Any

import torch

from ._abi import abi, lib
from ._arrays import Ids, Path, ids_of, ids_tensor, path_of, string, strings, take_ids, utf8
from ._core import Owned
from ._records import string_of
from .context import Context


class Tokenizer(Owned):
    """Turns text into the ids that a model reads, and ids into text.

    path  a folder with a tokenizer, a tokenizer's file, or a .gguf file with a vocabulary

    >>> tokenizer = Tokenizer("models/nibble-tiny")
    >>> ids = tokenizer.encode("What is 3 plus 4?")
    >>> ids.dtype, tokenizer.decode(ids)
    (torch.int32, 'What is 3 plus 4?')
    """

    def __init__(self, path: Path, *, context: Context | None = None) -> None:
        context = context or Context()
        self._open(context, lib.nbl_tokenizer_open, context.handle, path_of(path))

    @classmethod
    def parse(cls, text: str, *, name: str = "tokenizer.json", context: Context | None = None) -> Tokenizer:
        """A tokenizer from the text of a tokenizer.json. `name` begins error messages."""
        context, data = context or Context(), text.encode()
        return cls.opened(context, lib.nbl_tokenizer_parse, context.handle, utf8(name), data, len(data))

    @classmethod
    def opened(cls, context: Context, function: Any, *arguments: Any) -> Tokenizer:
        """The tokenizer that a function of the library opens. For this package."""
        made = cls.__new__(cls)
        made._open(context, function, *arguments)
        return made

    def _open(self, context: Context, function: Any, *arguments: Any) -> None:
        self.context = context
        self._own(context.session.open("tokenizer", lib.nbl_tokenizer_close, function, *arguments))

    def encode(self, text: str, *, special: bool = True) -> torch.Tensor:
        """The ids of a text, i32. `special`: with the tokens that the model puts around a text."""
        data, ids = text.encode(), abi.structs["nbl_ids"]()
        self.session.call(lib.nbl_tokenizer_encode, self.handle, data, len(data), special, byref(ids))
        return take_ids(self.session, self.context.handle, ids)

    def encode_batch(self, texts: Sequence[str], *, special: bool = True) -> list[torch.Tensor]:
        """The same for many texts, on all threads of the context.

        >>> tokenizer = Tokenizer("models/nibble-tiny")
        >>> [tokenizer.decode(ids) for ids in tokenizer.encode_batch(["3", "plus 4"])]
        ['3', 'plus 4']
        """
        lists = abi.array("nbl_ids", [()] * len(texts))
        arguments = self.handle, len(texts), strings(texts), special, lists
        self.session.call(lib.nbl_tokenizer_encode_batch, *arguments)
        return [take_ids(self.session, self.context.handle, ids) for ids in lists]

    def decode(self, ids: Ids, *, skip_special: bool = False) -> str:
        """The text of ids. Bytes that are no character become U+FFFD. skip_special: no special tokens."""
        tensor = ids_tensor(ids, "ids")
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        given = ids_of(tensor).ids, len(tensor), skip_special
        self.session.call(lib.nbl_tokenizer_decode, self.handle, *given, byref(text), byref(size))
        try:
            return ctypes.string_at(text.value or 0, size.value).decode()
        finally:
            self.session.read(lib.nbl_text_free, self.context.handle, text, size)

    def find(self, text: str) -> int | None:
        """The id of the token with this text.

        >>> Tokenizer("models/nibble-tiny").find("<|im_end|>")
        511
        """
        data = text.encode()
        found: int = self.session.read(lib.nbl_tokenizer_find, self.handle, data, len(data))
        return found if found >= 0 else None

    def token(self, id: int) -> str | None:
        """The text of a token, or None if there is no such token."""
        with self.session.work(self.handle, text=True) as (tokenizer,):
            text = lib.nbl_tokenizer_token(tokenizer, id)
            return string_of(text) if text.text else None

    def __len__(self) -> int:
        """How many tokens there are."""
        count: int = self.session.read(lib.nbl_tokenizer_size, self.handle)
        return count

    def set_truncation_and_padding(self, on: bool) -> None:
        """Whether encoding applies `truncation` and `padding` of tokenizer.json. Off after opening."""
        self.session.read(lib.nbl_tokenizer_set_truncation_and_padding, self.handle, on)

    def stream(self, *, skip_special: bool = False) -> TextStream:
        """Text while ids come one by one."""
        return TextStream(self, skip_special=skip_special)


class TextStream(Owned):
    """Text while ids come one by one, as in the on_token of Model.generate. Closing the tokenizer closes it.

    >>> tokenizer = Tokenizer("models/nibble-tiny")
    >>> stream = tokenizer.stream()
    >>> "".join([stream.push(int(id)) for id in tokenizer.encode("3 plus 4")]) + stream.finish()
    '3 plus 4'
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self.tokenizer = tokenizer
        source = tokenizer.handle
        kind = "text stream", lib.nbl_text_stream_close, lib.nbl_text_stream_open
        self._own(tokenizer.session.open(*kind, source, skip_special, borrows=(source,)))

    def push(self, id: int) -> str:
        """Adds an id. The text that is new, or "" when more ids are needed."""
        return self._text(lib.nbl_text_stream_push, id)

    def finish(self) -> str:
        """What was held back. The stream is then as after opening."""
        return self._text(lib.nbl_text_stream_finish)

    def _text(self, function: Any, *arguments: Any) -> str:
        text = abi.structs["nbl_string"]()
        found: str = self.session.call(
            function, self.handle, *arguments, byref(text), result=lambda: string_of(text)
        )
        return found


class StopMatcher(Owned):
    """Finds stop strings in a text that comes in pieces. What could be the beginning of one is held back.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("the E"), matcher.push("ND of it")
    (('the ', False), ('', True))
    """

    def __init__(self, texts: Sequence[str], *, context: Context | None = None) -> None:
        self.context = context or Context()
        session = self.context.session
        kind = "stop matcher", lib.nbl_stop_matcher_close, lib.nbl_stop_matcher_open
        self._own(session.open(*kind, self.context.handle, strings(texts), len(texts)))

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next piece. Returns the text before a stop string, and whether one was found."""
        shown, stopped = abi.structs["nbl_string"](), ctypes.c_bool()
        given = string(text), byref(shown), byref(stopped)
        before: str = self.session.call(
            lib.nbl_stop_matcher_push, self.handle, *given, result=lambda: string_of(shown)
        )
        return before, stopped.value

    def finish(self) -> str:
        """What was held back and is text. The matcher is then as after opening."""
        with self.session.work(self.handle, text=True) as (matcher,):
            return string_of(lib.nbl_stop_matcher_finish(matcher))
