"""Makes ctypes of C declarations: as much of C as include/nibble.h uses.

    struct name { type a, *b, c[8]; type (*callback)(type x); };
    struct name;                                 an opaque type: pointers to it are void pointers
    enum name { A, B = 100, C };
    typedef type (*name)(type x);                a callback
    type name(type x, type y);                   a function

A pointer is a c_void_p if it points to void, to an opaque type or to memory that may hold zero bytes
(nbl_string). It is a c_char_p if it points to a constant text, and POINTER(T) otherwise.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Any

SCALARS: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
INTEGERS = {"int", "int32_t", "int64_t", "uint8_t", "uint64_t", "size_t"}
# Structs whose texts have a size and may hold zero bytes.
SIZED_TEXTS = {"nbl_string"}


class Interface:
    """What a text declares, by name and in the order of the text."""

    def __init__(self, text: str) -> None:
        self.structs: dict[str, type[ctypes.Structure]] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.callbacks: dict[str, Any] = {}
        self.functions: dict[str, tuple[Any, list[Any]]] = {}
        self.opaque: list[str] = []
        # The C type of each field of each struct: fields["nbl_ids"]["count"] is "int64_t".
        self.fields: dict[str, dict[str, str]] = {}
        self._kinds: dict[str, dict[str, Any]] = {}
        # Callbacks and functions as C, for the test that compiles them together with the header.
        self.prototypes: list[str] = []
        for statement in _statements(text):
            self._declare(statement)

    def options(self, name: str, **values: object) -> Any:
        """A struct with these fields, and with its struct_size if it has one. All else is zero."""
        made: Any = self.structs[name]()
        fields = self.fields[name]
        if "struct_size" in fields:
            made.struct_size = ctypes.sizeof(made)
        for field, value in values.items():
            if field not in fields:
                raise AttributeError(f"{name} has no field {field}")
            if fields[field] in INTEGERS:
                _check(field, self._kinds[name][field], value)
            setattr(made, field, value)
        return made

    def array(self, name: str, items: Sequence[Any]) -> Any:
        """An array of structs. An item is a struct, or a tuple of its first fields."""
        kind: Any = self.structs[name]
        return (kind * len(items))(*items)

    def callback(self, struct: str, field: str) -> Any:
        """The ctypes type of a callback that is a field of a struct."""
        return self._kinds[struct][field]

    def _declare(self, statement: str) -> None:
        head, _, rest = statement.partition(" ")
        if head == "enum":
            self._declare_enum(rest)
        elif head == "struct":
            self._declare_struct(rest)
        elif head == "typedef":
            self.prototypes.append(statement)
            name, kind, _ = self._function_pointer(rest)
            self.callbacks[name] = kind
        else:
            self.prototypes.append(statement)
            match = re.fullmatch(r"(.+?)(\w+) ?\((.*)\)", statement)
            assert match, statement
            result, name, parameters = match.groups()
            kinds = [_checked(kind) for kind in self._parameters(parameters)]
            self.functions[name] = (self._type(result)[0], kinds)

    def _declare_enum(self, text: str) -> None:
        name, _, body = text.partition("{")
        values: dict[str, int] = {}
        following = 0
        for entry in body.rstrip("}, ").split(","):
            constant, _, value = (part.strip() for part in entry.partition("="))
            values[constant] = int(value) if value else following
            following = values[constant] + 1
        self.enums[name.strip()] = values

    def _declare_struct(self, text: str) -> None:
        name, brace, body = (part.strip() for part in text.partition("{"))
        if not brace:
            self.opaque.append(name)
            return
        members: dict[str, Any] = {}
        self.fields[name] = {}
        for declaration in body.rstrip("} ").split(";"):
            if declaration.strip():
                for field, kind, spelled in self._members(declaration.strip()):
                    if name in SIZED_TEXTS and kind is ctypes.c_char_p:
                        kind = ctypes.c_void_p
                    members[field] = kind
                    self.fields[name][field] = spelled
        self._kinds[name] = members
        self.structs[name] = type(name, (ctypes.Structure,), {"_fields_": list(members.items())})

    def _members(self, declaration: str) -> Iterator[tuple[str, Any, str]]:
        """Name, ctypes type and C type of each field of `int64_t a, b;` and the like."""
        if "(*" in declaration:
            yield self._function_pointer(declaration)
            return
        match = re.fullmatch(r"((?:const )?\w+) ?(.*)", declaration)
        assert match, declaration
        base, names = match.groups()
        for part in names.split(","):
            declarator = re.fullmatch(r" ?(\**)(\w+)(?:\[(\d+)\])?", part)
            assert declarator, part
            stars, field, count = declarator.groups()
            kind, spelled = self._type(base + stars)
            if count:
                kind, spelled = kind * int(count), f"{spelled}[{count}]"
            yield field, kind, spelled

    def _function_pointer(self, declaration: str) -> tuple[str, Any, str]:
        match = re.fullmatch(r"(.+?) ?\(\*(\w+)\)\((.*)\)", declaration)
        assert match, declaration
        result, name, parameters = match.groups()
        kind = ctypes.CFUNCTYPE(self._type(result)[0], *self._parameters(parameters))
        return name, kind, f"{result} (*)({parameters})"

    def _parameters(self, text: str) -> list[Any]:
        """The types of `int a, const char *b`. Without a name every parameter ends with its type."""
        if text == "void":
            return []
        return [self._type(re.sub(r"\w+$", "", part.strip()))[0] for part in text.split(",")]

    def _type(self, text: str) -> tuple[Any, str]:
        """The ctypes type of a C type, and the C type in one spelling."""
        spelled = re.sub(r" ?(\*) ?", r"\1", text).strip()
        stars = spelled.count("*")
        constant = spelled.startswith("const ")
        base = spelled.removeprefix("const ").replace("const", "").replace("*", "").strip()
        kind = self._base(base)
        for level in range(stars):
            if kind is None or kind is ctypes.c_void_p and level == 0:
                kind = ctypes.c_void_p
            elif kind is ctypes.c_char:
                kind = ctypes.c_char_p if constant else ctypes.c_void_p
            elif level > 0 and kind is not ctypes.c_char_p:
                kind = ctypes.POINTER(ctypes.c_void_p)
            else:
                kind = ctypes.POINTER(kind)
        return kind, spelled

    def _base(self, name: str) -> Any:
        if name in SCALARS:
            return SCALARS[name]
        if name in self.enums:
            return ctypes.c_int
        if name in self.structs:
            return self.structs[name]
        if name in self.callbacks:
            return self.callbacks[name]
        # A struct may point to others of its kind: while its fields are read, it is as an opaque one.
        assert name in self.opaque or name in self.fields, f"{name} is not declared"
        return None


def _check(what: str, kind: Any, value: Any) -> None:
    """Refuses an integer that the type cannot hold: ctypes would cut it."""
    if kind(value).value != value:
        raise OverflowError(f"{what} is {value}, which does not fit {8 * ctypes.sizeof(kind)} bits")


def _checked(kind: Any) -> Any:
    """The type of an argument. An integer is refused if it does not fit."""
    if kind not in [SCALARS[name] for name in INTEGERS]:
        return kind

    class Integer(kind):  # type: ignore[misc]
        @classmethod
        def from_param(cls, value: Any) -> Any:
            plain = getattr(value, "value", value)  # of a ctypes integer
            _check("an argument", kind, plain)
            return kind(plain)

    return Integer


def _statements(text: str) -> Iterator[str]:
    """The declarations of a text, each on one line, without comments and semicolons."""
    text = " ".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).split())
    depth = begin = 0
    for at, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == ";" and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
