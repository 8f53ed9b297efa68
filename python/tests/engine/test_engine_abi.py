"""The declarations in nibble_torch.engine._abi are those of include/nibble.h, as a C compiler reads it."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from engine_common import REPOSITORY

from nibble_torch import engine
from nibble_torch.engine import _abi
from nibble_torch.engine._abi import abi, lib
from nibble_torch.engine._cdecl import Interface

HEADER = REPOSITORY / "include/nibble.h"
SOURCES = Path(engine.__file__).parent
# Functions of sections 1 to 12 that are not declared, and why.
LEFT_OUT = {
    "nbl_options_init": "abi.options does it",
    "nbl_context_use_cuda_stream": "for operators, section 14",
    "nbl_context_set_stream": "for operators, section 14",
}
# Functions that are declared and not called.
UNCALLED = {
    "nbl_status_name": "errors.Status has the names",
    "nbl_chat_template_open": "nbl_chat_template_open_adapted without an adapter",
}
# The struct behind each dataclass, and its fields that the dataclass leaves out or makes something else of.
RECORDS: dict[type, tuple[str, str]] = {
    engine.AdapterSummary: ("nbl_adapter_summary", ""),
    engine.AdapterTensor: ("nbl_adapter_tensor", "rank"),
    engine.Arenas: ("nbl_plan_arenas", ""),
    engine.CheckpointSummary: ("nbl_checkpoint_summary", ""),
    engine.ConvertReport: ("nbl_convert_report", ""),
    engine.CudaDevice: ("nbl_cuda_device", ""),
    engine.DataSummary: ("nbl_data_summary", ""),
    engine.Evaluation: ("nbl_evaluation", ""),
    engine.ExportReport: ("nbl_export_report", ""),
    engine.Generated: ("nbl_generated", ""),
    engine.GgufEntry: ("nbl_gguf_entry", ""),
    engine.GgufSpecial: ("nbl_gguf_special", ""),
    engine.GgufSummary: ("nbl_gguf_summary", ""),
    engine.GgufTensor: ("nbl_gguf_tensor", "rank"),
    engine.IsaLevel: ("nbl_isa_level", ""),
    engine.Library: ("nbl_library", ""),
    engine.MergeReport: ("nbl_merge_report", ""),
    engine.PlanSummary: ("nbl_model_plan_summary", ""),
    engine.PlannedCast: ("nbl_planned_cast", ""),
    engine.PlannedOp: ("nbl_planned_op", ""),
    engine.PlannedValue: ("nbl_planned_value", "rank"),
    engine.Preview: ("nbl_preview", "count part_count"),
    engine.PreviewPart: ("nbl_preview_part", ""),
    engine.Progress: ("nbl_progress", ""),
    engine.RunInfo: ("nbl_run_info", ""),
    engine.TensorDiff: ("nbl_tensor_diff", ""),
    engine.TensorInfo: ("nbl_tensor_info", "rank"),
    engine.TrainEvent: ("nbl_train_event", ""),
    engine.TrainSummary: ("nbl_train_summary", ""),
    engine.Weight: (
        "nbl_weight",
        "rank given data scales scale_codes nested_scales "
        "nested_table nested_block nested_offset nested_offset_at members member_count",
    ),
}
# Fields that a dataclass adds.
ADDED: dict[type, set[str]] = {engine.TrainSummary: {"stopped"}}


def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def sections() -> str:
    """The text of sections 1 to 12, without comments."""
    text = HEADER.read_text()
    begin, end = text.index("/* ---- 1. "), text.index("/* ---- 13. ")
    return re.sub(r"/\*.*?\*/", " ", text[begin:end], flags=re.DOTALL)


def program(interface: Interface) -> str:
    """A C program that fails to compile if a type differs, and prints sizes, offsets and constants."""
    lines = ["#include <stdio.h>", '#include "nibble.h"']
    lines += [f"{prototype};" for prototype in interface.prototypes]  # a second declaration must be the same
    prints: list[str] = []
    for name, fields in interface.fields.items():
        prints.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, kind in fields.items():
            member = f"(({name} *)0)->{field}"
            lines.append(
                f'_Static_assert(__builtin_types_compatible_p({kind}, __typeof__({member})), "{member}");'
            )
            prints.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    for enum, constants in interface.enums.items():
        prints.append(f'printf("{enum} %zu\\n", sizeof({enum}));')
        prints += [f'printf("{constant} %d\\n", (int){constant});' for constant in constants]
    return "\n".join([*lines, "int main(void) {", *prints, "return 0; }", ""])


def layout(interface: Interface) -> dict[str, int]:
    """What the program prints, as ctypes has it."""
    numbers: dict[str, int] = {}
    for name, struct in interface.structs.items():
        numbers[name] = ctypes.sizeof(struct)
        for field in interface.fields[name]:
            numbers[f"{name}.{field}"] = getattr(struct, field).offset
    for enum, constants in interface.enums.items():
        numbers[enum] = ctypes.sizeof(ctypes.c_int)
        numbers |= constants
    return numbers


def compiled(interface: Interface, folder: Path) -> dict[str, int]:
    (folder / "abi.c").write_text(program(interface))
    build = [compiler(), "-std=c17", f"-I{HEADER.parent}", "abi.c", "-o", "abi"]
    made = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    printed = subprocess.run([folder / "abi"], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in map(str.split, printed.splitlines())}


def test_structs_constants_and_functions_are_those_of_the_header(tmp_path: Path) -> None:
    assert layout(abi) == compiled(abi, tmp_path)


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("int64_t tokens, hits;", "int64_t hits, tokens;"),  # offsets
        ("double loss_sum;", "uint64_t loss_sum;"),  # the type of a field of the same size
        ("NBL_LOG_INFO, NBL_LOG_DEBUG", "NBL_LOG_DEBUG, NBL_LOG_INFO"),  # constants
        ("int64_t nbl_model_vocabulary", "int nbl_model_vocabulary"),  # a result
        ("int64_t index, nbl_preview *preview", "int index, nbl_preview *preview"),  # an argument
        ("(*event)(void *user, ", "(*event)("),  # a callback
    ],
)
def test_a_difference_to_the_header_is_found(found: str, instead: str, tmp_path: Path) -> None:
    assert found in _abi.TEXT
    other = Interface(_abi.TEXT.replace(found, instead))
    try:
        same = layout(other) == compiled(other, tmp_path)
    except AssertionError as error:
        assert "error:" in str(error)  # of the compiler
        same = False
    assert not same


def test_nothing_of_the_header_is_missing() -> None:
    text = sections()
    functions = set(re.findall(r"NBL_API[^;(]*?\b(nbl_\w+)\(", text))
    structs = set(re.findall(r"typedef struct (nbl_\w+)", text))
    callbacks = set(re.findall(r"typedef [\w ]+\(\*(nbl_\w+)\)", text))
    assert functions == set(abi.functions) | set(LEFT_OUT)
    assert structs == set(abi.structs) | set(abi.opaque)
    assert callbacks == set(abi.callbacks)


def test_no_constant_of_the_header_is_missing() -> None:
    """Constants come from macros, so that the preprocessor has to read them."""
    text = subprocess.run([compiler(), "-E", "-P", HEADER], capture_output=True, text=True, check=True).stdout
    after = text.index("typedef enum nbl_activation")  # section 14
    enums = re.findall(r"typedef (enum nbl_\w+ *\{[^}]*\}) *nbl_\w+;", text[:after])
    assert Interface("".join(f"{enum};" for enum in enums)).enums == abi.enums


def test_every_function_is_called() -> None:
    text = "".join(path.read_text() for path in SOURCES.glob("*.py") if path.name != "_abi.py")
    called = set(re.findall(r"\blib\.(nbl_\w+)", text))
    by_enum = {name for name in abi.functions if re.fullmatch(r"(\w+)_(name|parse)", name)}
    assert set(abi.functions) - called - by_enum == set(UNCALLED) - by_enum


def test_words_are_those_of_the_library() -> None:
    from nibble_torch.engine._records import number_of, word_of

    for enum, constants in abi.enums.items():
        for number in constants.values():
            word = word_of(enum, number)
            if hasattr(lib, f"{enum}_parse") and word != "unknown":
                found = ctypes.c_int(-1)
                assert (
                    getattr(lib, f"{enum}_parse")(word.encode(), ctypes.byref(found))
                    and found.value == number
                )
                assert number_of(enum, word, "argument") == number
    with pytest.raises(
        engine.ArgumentError, match="format is 'nf3'; it must be one of dense, nf4, fp4, int8, mxfp4"
    ):
        number_of("nbl_format", "nf3", "format")


def test_every_status_has_an_exception() -> None:
    assert {f"NBL_{status.name}": status for status in engine.Status} == abi.enums["nbl_status"]
    for status in list(engine.Status)[1:]:
        from nibble_torch.engine.errors import error_of

        assert error_of(status, "message", "hint").status is status
        assert lib.nbl_status_name(status).decode() == f"NBL_{status.name}"


def test_dataclasses_have_the_fields_of_their_structs() -> None:
    for record, (struct, left_out) in RECORDS.items():
        fields = {field.name.rstrip("_") for field in dataclasses.fields(record)}
        want = set(abi.fields[struct]) - {"struct_size", *left_out.split()}
        assert fields == want | ADDED.get(record, set()), record
