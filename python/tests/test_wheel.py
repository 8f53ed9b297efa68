"""The wheel as a user gets it: what lies in it, what it asks of a machine, and how it fails where torch is missing.

`make test-python` installs it and names it in NIBBLE_WHEEL.
"""

from __future__ import annotations

import ast
import ctypes
import email.message
import email.parser
import importlib.metadata
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

ROOT = Path(__file__).resolve().parents[2]
WHEEL = Path(os.environ.get("NIBBLE_WHEEL", ""))
LIBRARY = "nibble_torch/lib/libnibble_torch.so"
# glibc's own parts, which are all in libc.so.6 since 2.34. The loader is asked for thread-local memory.
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

pytestmark = pytest.mark.skipif("NIBBLE_WHEEL" not in os.environ, reason="make test-python makes the wheel")


def header_version() -> str:
    found = re.search(r'NBL_VERSION_STRING "([0-9.]+)"', (ROOT / "include/nibble.h").read_text())
    assert found
    return found[1]


def glibc_of_tag() -> tuple[int, int]:
    found = re.fullmatch(r"nibble_torch-[0-9.]+-py3-none-manylinux_(\d+)_(\d+)_(x86_64|aarch64)\.whl", WHEEL.name)
    assert found, f"{WHEEL.name}: one wheel for all versions of Python, with a tag of manylinux"
    return int(found[1]), int(found[2])


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture(params=["library", "command"])
def program(request: pytest.FixtureRequest, unpacked: Path) -> Path:
    return unpacked / LIBRARY if request.param == "library" else command_in(unpacked)


def command_in(unpacked: Path) -> Path:
    return unpacked / f"nibble_torch-{header_version()}.data/scripts/nibble"


def has_cuda() -> bool:
    command = Path(sysconfig.get_path("scripts")) / "nibble"
    said = subprocess.run([command, "doctor", "--quiet"], capture_output=True, text=True, check=True).stdout
    return bool(re.search(r"^cuda +built in", said, re.MULTILINE))


def metadata_in(unpacked: Path, name: str) -> email.message.Message:
    text = (unpacked / f"nibble_torch-{header_version()}.dist-info" / name).read_text()
    return email.parser.Parser().parsestr(text)


def dynamic_entries(program: Path, tag: str) -> list[str]:
    with program.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if isinstance(section, DynamicSection):
                entries = section.iter_tags(tag)
                return [getattr(entry, tag[3:].lower(), str(entry.entry.d_val)) for entry in entries]
    raise AssertionError(f"{program} has no dynamic section")


def dynamic_symbols(program: Path) -> Iterator[tuple[str, bool, bool]]:
    """Name, is it defined here, is it weak."""
    with program.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(section, SymbolTableSection)
        for symbol in section.iter_symbols():
            if symbol.name:
                yield symbol.name, symbol["st_shndx"] != "SHN_UNDEF", symbol["st_info"]["bind"] == "STB_WEAK"


def required_versions(program: Path) -> dict[str, set[str]]:
    """The symbol versions asked of each library."""
    with program.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        assert isinstance(section, GNUVerNeedSection)
        return {str(need.name): {str(v.name) for v in versions} for need, versions in section.iter_versions()}


def run_python(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


# ---- what lies in it ----


def test_the_installed_package_is_tested_and_not_the_source_tree() -> None:
    import nibble_torch

    assert Path(sysconfig.get_path("platlib")) in Path(nibble_torch.__file__).parents


def test_the_wheel_holds_the_package_the_library_the_command_and_the_licences(unpacked: Path) -> None:
    version = header_version()
    sources = ROOT / "python"
    folders = [sources / name for name in ("nibble_torch", "nibble_bitsandbytes")]
    modules = {path for folder in folders for kind in ("*.py", "*.pyi", "py.typed") for path in folder.rglob(kind)}
    expected = {str(path.relative_to(sources)) for path in modules}
    for path in modules:
        assert (unpacked / path.relative_to(sources)).read_bytes() == path.read_bytes(), path
    licences = ["LICENSE", "LICENSE.libpcre2.txt", "LICENSE.libutf8proc.txt", "LICENSE.libyaml.txt"]
    if has_cuda():
        licences.append("LICENSE.cuda.txt")
    info = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", *(f"licenses/{name}" for name in licences))
    expected |= {f"nibble_torch-{version}.dist-info/{name}" for name in info}
    expected |= {LIBRARY, f"nibble_torch-{version}.data/scripts/nibble"}
    assert {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()} == expected
    assert {"nibble_torch/py.typed", "nibble_bitsandbytes/py.typed"} <= expected
    licence = unpacked / f"nibble_torch-{version}.dist-info/licenses/LICENSE"
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_metadata_name_version_requirements_and_entry_point(unpacked: Path) -> None:
    metadata = metadata_in(unpacked, "METADATA")
    assert metadata["Name"] == "nibble-torch"
    assert metadata["Version"] == header_version()
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("Requires-Dist") == ["torch>=2.9"]
    assert metadata.get_payload() == (ROOT / "python/README.md").read_text()
    entries = importlib.metadata.distribution("nibble-torch").entry_points
    assert [(entry.group, entry.name, entry.value) for entry in entries] == [
        ("bitsandbytes.backends", "nibble", "nibble_bitsandbytes:register")
    ]


def test_the_tag_inside_is_the_tag_of_the_name(unpacked: Path) -> None:
    glibc_of_tag()
    wheel = metadata_in(unpacked, "WHEEL")
    assert wheel["Root-Is-Purelib"] == "false"
    assert wheel.get_all("Tag") == ["-".join(WHEEL.stem.split("-")[2:])]


def test_every_module_parses_as_python_3_10(unpacked: Path) -> None:
    for path in unpacked.glob("nibble_*/**/*.py"):
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 10))


# ---- what it asks of a machine ----


def test_the_library_needs_libc_libm_and_libtorch_cpu_alone(unpacked: Path) -> None:
    needed = set(dynamic_entries(unpacked / LIBRARY, "DT_NEEDED"))
    assert "libtorch_cpu.so" in needed
    assert needed <= GLIBC | LOADERS | {"libtorch_cpu.so"}


def test_the_command_needs_libc_and_libm_alone(unpacked: Path) -> None:
    assert set(dynamic_entries(command_in(unpacked), "DT_NEEDED")) <= GLIBC | LOADERS


def test_no_path_of_the_build_machine_is_searched(program: Path) -> None:
    assert dynamic_entries(program, "DT_RPATH") + dynamic_entries(program, "DT_RUNPATH") == []


def test_no_code_is_relocated_and_no_stack_executable(program: Path) -> None:
    assert dynamic_entries(program, "DT_TEXTREL") == []
    with program.open("rb") as file:
        stacks = [s for s in ELFFile(file).iter_segments() if s["p_type"] == "PT_GNU_STACK"]
    assert len(stacks) == 1 and not stacks[0]["p_flags"] & 1


def test_the_library_shows_what_the_public_header_declares_and_nothing_else(unpacked: Path) -> None:
    visible = {name for name, defined, _ in dynamic_symbols(unpacked / LIBRARY) if defined}
    header = (ROOT / "include/nibble.h").read_text()
    declared = set(re.findall(r"^NBL_API[^;(]*?\b(nbl_[a-z0-9_]+)\(", header, re.MULTILINE))
    assert len(declared) > 100
    assert declared - visible == set()
    assert {name for name in visible if not name.startswith("nbl_")} == set()


def test_no_glibc_newer_than_the_tag_says_is_asked_for(program: Path) -> None:
    for library, versions in required_versions(program).items():
        assert library in GLIBC | LOADERS
        for version in versions:
            found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
            assert found and (int(found[1]), int(found[2])) <= glibc_of_tag(), f"{library} {version}"


def test_libtorch_has_every_function_that_the_library_calls(unpacked: Path) -> None:
    import torch

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    with (unpacked / LIBRARY).open("rb") as file:
        versions = ELFFile(file).get_section_by_name(".gnu.version")
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(versions, GNUVerSymSection) and isinstance(symbols, SymbolTableSection)
        # A symbol without a version is none of glibc's.
        called = {
            symbol.name
            for number, symbol in enumerate(symbols.iter_symbols())
            if symbol["st_shndx"] == "SHN_UNDEF"
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
            and versions.get_symbol(number)["ndx"] == "VER_NDX_GLOBAL"
        }
    assert {"aoti_torch_get_data_ptr", "aoti_torch_library_impl"} <= called
    assert {name for name in called if not hasattr(library, name)} == set()


def test_auditwheel_has_nothing_to_add(tmp_path: Path) -> None:
    options = [f"--exclude={name}" for name in ("libtorch_cpu.so", "libtorch_cuda.so", "libcuda.so.1")]
    result = subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", *options, "--wheel-dir", str(tmp_path), str(WHEEL)],
        env={**os.environ, "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    # What needs nothing is not copied; what is, has the same files and the same name.
    for repaired in tmp_path.glob("*.whl"):
        assert repaired.name == WHEEL.name
        with zipfile.ZipFile(repaired) as new, zipfile.ZipFile(WHEEL) as old:
            assert sorted(new.namelist()) == sorted(old.namelist())


# ---- how it loads ----


def test_the_version_is_the_headers_in_the_metadata_the_library_and_the_command() -> None:
    import nibble_torch._library

    library = ctypes.CDLL(str(nibble_torch._library.PATH))
    library.nbl_version.restype = ctypes.c_char_p
    assert library.nbl_version().decode() == header_version()
    assert importlib.metadata.version("nibble-torch") == header_version()
    command = Path(sysconfig.get_path("scripts")) / "nibble"
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["nibble", header_version()]


def test_the_command_is_on_the_path_and_starts_no_python() -> None:
    command = Path(sysconfig.get_path("scripts")) / "nibble"
    assert command.stat().st_mode & stat.S_IXUSR
    assert command.read_bytes()[:4] == b"\x7fELF"
    # No torch, no Python, no libraries beside the system's.
    result = subprocess.run([command, "--version"], env={}, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_command_runs_with_the_libraries_that_are_linked_into_it() -> None:
    """PCRE2 splits the text, libyaml reads the run; utf8proc is asked for its version."""
    command = Path(sysconfig.get_path("scripts")) / "nibble"

    def run(*arguments: str) -> str:
        result = subprocess.run([command, *arguments], cwd=ROOT, env={}, capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    ids = run("tokenize", "models/nibble-tiny", "--text", "Größe 12!", "--quiet").split()
    assert ids == ["71", "114", "195", "182", "195", "159", "101", "32", "49", "50", "33"]
    plan = run("plan", "models/nibble-tiny", "--train", "examples/train/sums.yml", "--device", "cpu", "--json", "--quiet")
    assert json.loads(plan)
    assert {"PCRE2", "utf8proc"} <= set(run("doctor", "--device", "cpu", "--quiet").split())


TOKENIZE = """
import ctypes, sys, torch
from nibble_torch import _library

class Ids(ctypes.Structure):
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_int64)]

library = ctypes.CDLL(str(_library.PATH))
context, tokenizer, ids = ctypes.c_void_p(), ctypes.c_void_p(), Ids()
assert library.nbl_context_create(None, ctypes.byref(context)) == 0
assert library.nbl_tokenizer_open(context, sys.argv[1].encode(), ctypes.byref(tokenizer)) == 0
text = sys.argv[2].encode()
assert library.nbl_tokenizer_encode(
    tokenizer, text, ctypes.c_size_t(len(text)), ctypes.c_bool(True), ctypes.byref(ids)) == 0
print(*ids.ids[:ids.count])
"""


def test_the_library_runs_with_the_libraries_that_are_linked_into_it() -> None:
    """Its PCRE2 was compiled for executables: its compiler of patterns writes machine code that must find its way back."""
    arguments = [sys.executable, "-c", TOKENIZE, str(ROOT / "models/nibble-tiny"), "Größe 12!"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (0, "71 114 195 182 195 159 101 32 49 50 33\n"), result.stderr


def test_import_without_torch_says_so_in_a_sentence(unpacked: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(unpacked)!r})
try:
    import nibble_torch
except ImportError as error:
    print(error)
"""
    result = run_python(code, "-I", "-S")  # without site-packages, where torch is
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "nibble_torch needs PyTorch 2.9 or later, which is not installed: pip install torch\n"


def test_import_beside_an_older_torch_says_so_in_a_sentence(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('__version__ = "2.8.1+cpu"\n')
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(unpacked)!r}]
try:
    import nibble_torch
except ImportError as error:
    print(error)
"""
    result = run_python(code, "-I", "-S")
    assert (result.returncode, result.stderr) == (0, "")
    assert "PyTorch 2.9 or later, found 2.8.1+cpu" in result.stdout
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("damage", ["missing", "broken"])
def test_a_damaged_library_is_told_of_in_a_sentence(unpacked: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(unpacked / "nibble_torch", tmp_path / "nibble_torch")
    library = tmp_path / LIBRARY
    library.unlink()
    if damage == "broken":
        library.write_bytes(b"\x7fELF, but not much more")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
try:
    import nibble_torch
except ImportError as error:
    print(error)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert "pip install --force-reinstall nibble-torch" in result.stdout
    assert str(library) in result.stdout
    assert result.stdout.count("\n") == 1


LOAD_TWICE = """
import ctypes, shutil, sys, torch, nibble_torch
from nibble_torch import _library

w = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
packed = nibble_torch.quantize(w)
before = nibble_torch.dequantize(packed)
if sys.argv[1] == "the file":
    torch.ops.load_library(str(_library.PATH))
    _library.load()
else:
    shutil.copy(_library.PATH, sys.argv[2])
    torch.ops.load_library(sys.argv[2])
assert torch.equal(nibble_torch.dequantize(packed), before)
print("the same")
"""


@pytest.mark.parametrize("what", ["the file", "a copy"])
def test_loading_twice_is_harmless(what: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", LOAD_TWICE, what, str(tmp_path / "libcopy.so")]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (0, "the same\n"), result.stderr
