"""What the oracle tests share: a list of checks, calls of the command, and small helpers for folders and tensors.

A check is a function with the decorator @check. It gets a Room: an empty folder, its own random numbers, and a list of
faults that it fills with `room.expect(condition, what is wrong)`; so one run shows everything that is wrong, not only the
first. Random numbers depend on the seed and on the check's name alone: a check that failed can be run again by itself,

    ORACLE_SEED=123 NIBBLE=build/nibble build/oracle/bin/python tests/oracle/test_foundations.py NAME...
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path

# Set before torch is imported. Compiling bitsandbytes' Python fallbacks would cost minutes and change nothing. Some virtual
# machines announce AMX and then stop torch's 16-bit products with an illegal instruction: no judge here needs it.
os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONWARNINGS="ignore")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from safetensors import safe_open

CHECKS = []
SHOWN = 6  # faults of one check that are printed
CALL_SECONDS = 120


def check(function):
    CHECKS.append(function)
    return function


class Room:
    def __init__(self, name, seed, folder, command):
        self.folder, self.command, self.faults, self.cases, self.notes = folder, command, [], 0, []
        self.random = random.Random(f"{seed}/{name}")
        self.noise = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))

    def expect(self, condition, fault):
        """One case; the fault is a text, or a function that makes one. Returns whether the case is good."""
        self.cases += 1
        if not condition:
            self.faults.append(fault() if callable(fault) else fault)
        return bool(condition)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.noise)

    def bytes(self, *shape):
        return torch.randint(0, 256, shape, generator=self.noise, dtype=torch.uint8)

    def call(self, *words, isa=None):
        """Runs nibble, whatever its exit status. A signal or a call that hangs is always a fault."""
        environment = {**os.environ, **({"NIBBLE_ISA": isa} if isa else {})}
        words = [str(w) for w in words]
        done = subprocess.run([self.command, *words], capture_output=True, text=True, env=environment, timeout=CALL_SECONDS)
        if done.returncode not in (0, 1):
            raise AssertionError(f"`nibble {' '.join(words)}` gave exit status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def nibble(self, *words, isa=None):
        """Runs nibble, which must succeed."""
        done = self.call(*words, "--quiet", isa=isa)
        if done.returncode != 0:
            raise AssertionError(f"`nibble {' '.join(map(str, words))}` failed: {done.stderr.strip()[-300:]}")
        return done

    def json(self, *words):
        """The document of a call that may say no (diff) but must not fail."""
        done = self.call(*words, "--json")
        document = json.loads(done.stdout)
        if "error" in document:
            raise AssertionError(f"`nibble {' '.join(map(str, words))}`: {document['error']}")
        return document, done.returncode

    def remove(self, *names):
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)


# ---- folders and tensors ----

def files_of(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}


def tensors_of(path):
    """All tensors of a folder or of one file."""
    path = Path(path)
    tensors = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with safe_open(file, "pt") as opened:
            tensors.update({name: opened.get_tensor(name) for name in opened.keys()})
    return tensors


def config_of(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(a, b, zeros=True):
    """Same dtype, shape and bits, any NaN equal to any other; without `zeros`, +0 equals -0 too."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if torch.equal(raw(a), raw(b)):
        return True
    if not a.is_floating_point():
        return False
    nan = a.isnan() & b.isnan()
    signs = torch.signbit(a) == torch.signbit(b) if zeros else torch.ones_like(nan)
    return bool((nan | ((a == b) & signs)).all())


def how_different(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
    x, y = a.reshape(-1), b.reshape(-1)
    if x.is_floating_point():
        wrong = ((x != y) & ~(x.isnan() & y.isnan())) | ((x == 0) & (torch.signbit(x) != torch.signbit(y)))
    else:
        wrong = x != y
    at = wrong.nonzero().flatten()
    if len(at) == 0:
        return "nothing differs"
    return f"{len(at)} of {len(x)} differ, first at {at[0]}: {x[at[0]].item()!r} instead of {y[at[0]].item()!r}"


def what_differs(ours, theirs):
    """Two folders file by file, weights tensor by tensor; empty when every byte is the same."""
    a, b = files_of(ours), files_of(theirs)
    if set(a) != set(b):
        return f"files {sorted(set(a) ^ set(b))} are in one folder only"
    for name in sorted(a):
        if a[name] == b[name]:
            continue
        if not name.endswith(".safetensors"):
            x, y = a[name].decode(errors="replace").splitlines(), b[name].decode(errors="replace").splitlines()
            line = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            return f"{name} differs in line {line + 1}: {x[line:line + 1]} instead of {y[line:line + 1]}"
        x, y = tensors_of(Path(ours) / name), tensors_of(Path(theirs) / name)
        if set(x) != set(y):
            return f"{name}: tensors {sorted(set(x) ^ set(y))[:4]} are in one file only"
        for tensor in x:
            if not (x[tensor].dtype == y[tensor].dtype and torch.equal(raw(x[tensor]), raw(y[tensor]))):
                return f"{name}: {tensor}: {how_different(x[tensor], y[tensor])}"
        return f"{name}: the same tensors in another layout"
    return ""


# ---- running ----

def main():
    command = os.environ.get("NIBBLE", "build/nibble")
    if not os.access(command, os.X_OK):
        print(f"no command {command}: set NIBBLE")
        return 2
    seed = int(os.environ.get("ORACLE_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"seed {seed} (ORACLE_SEED={seed} repeats this run)", flush=True)
    chosen = [c for c in CHECKS if not sys.argv[1:] or c.__name__ in sys.argv[1:]]
    unknown = set(sys.argv[1:]) - {c.__name__ for c in chosen}
    if unknown:
        print(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(c.__name__ for c in CHECKS)}")
        return 2
    passed = failed = cases = 0
    begin = time.monotonic()
    for function in chosen:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="nibble-oracle-") as folder:
            room = Room(function.__name__, seed, Path(folder), os.path.abspath(command))
            try:
                function(room)
            except AssertionError as error:
                room.faults.append(str(error))
            except Exception:
                room.faults.append(traceback.format_exc(limit=-4))
        good = not room.faults and room.cases > 0
        passed, failed, cases = passed + good, failed + (not good), cases + room.cases
        told = "".join(f"; {note}" for note in room.notes)
        print(f"{'ok  ' if good else 'FAIL'} {function.__name__}: {room.cases} cases{told} ({time.monotonic() - started:.1f} s)", flush=True)
        for fault in room.faults[:SHOWN]:
            print("     " + fault.replace(folder + "/", "").strip().replace("\n", "\n     "), flush=True)
        if len(room.faults) > SHOWN:
            print(f"     and {len(room.faults) - SHOWN} more", flush=True)
    print(f"{cases} cases in {time.monotonic() - begin:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1
