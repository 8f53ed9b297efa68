"""What the oracle tests share: a list of checks, calls of the command, the making of checkpoints, and the judges.

A check is a function with the decorator @check. It gets a Room: an empty folder, its own random numbers, and a list of
faults that it fills with `room.expect(condition, what is wrong)`; so one run shows everything that is wrong, not only the
first. Random numbers depend on the seed and on the check's name alone: a check that failed can be run again by itself,

    ORACLE_SEED=123 NIBBLE=build/nibble build/oracle/bin/python tests/oracle/test_foundations.py NAME...
"""

import json
import logging
import math
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

# Set before torch is imported. Compiling bitsandbytes' Python fallbacks would cost minutes and change nothing. Some
# virtual machines announce AMX and then stop torch's 16-bit products with an illegal instruction: no judge needs it.
os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONWARNINGS="ignore")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells which optional kernels it did not find

import torch
import transformers
from bitsandbytes import functional as bnb
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
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
        """Runs nibble. It may fail, but only in good order: a signal or a call that hangs ends the check."""
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
        """The document and the exit status of a call that may say no (diff) but must not fail."""
        done = self.call(*words, "--json")
        document = json.loads(done.stdout)
        if "error" in document:
            raise AssertionError(f"`nibble {' '.join(map(str, words))}`: {document['error']}")
        return document, done.returncode

    def remove(self, *names):
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)


# ---- making checkpoints ----

def sizes(room, wide=False):
    """Of a small model. Rows of no multiple of any block, or (wide) of 64."""
    hidden = 64 * room.random.choice([1, 2]) if wide else 4 * room.random.choice([14, 18, 22, 26])
    intermediate = 64 * room.random.choice([2, 3]) if wide else room.random.choice([134, 136, 177, 201])
    return dict(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=hidden // 4, vocab_size=room.random.choice([257, 331, 420]),
                max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def save_model(room, name, kind, dtype, tied=None, shard="5GB", wide=False, **options):
    """A folder that transformers saved: random weights, each tensor with its own spread."""
    tied = room.random.random() < 0.5 if tied is None else tied
    config = AutoConfig.for_model(kind, **sizes(room, wide), tie_word_embeddings=tied, **options)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data = room.normal(*parameter.shape) * 10 ** room.random.uniform(-2.5, -0.5)
    model.to(dtype).save_pretrained(room.folder / name, max_shard_size=shard)
    return room.folder / name


def four_bit(kind="nf4", nested=False, compute="bf16", **more):
    return dict(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested,
                bnb_4bit_compute_dtype=FLOATS[compute], **more)


def upstream_quantize(room, source, name, **settings):
    """What transformers + bitsandbytes make of a folder."""
    settings = BitsAndBytesConfig(**settings)
    model = AutoModelForCausalLM.from_pretrained(source, quantization_config=settings, device_map="cpu")
    model.save_pretrained(room.folder / name)
    return room.folder / name


def save_plain(room, name, tensors, kind="llama"):
    """A folder with these tensors and hardly any config."""
    folder = room.folder / name
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def save_packed(room, name, tensors, method="bitsandbytes"):
    """A folder with these tensors and a config that says they are packed."""
    folder = save_plain(room, name, tensors)
    settings = BitsAndBytesConfig(**four_bit()).to_dict() if method == "bitsandbytes" else {"quant_method": method}
    (folder / "config.json").write_text(json.dumps({"model_type": "some", "quantization_config": settings}))
    return folder


def add_state(tensors, name, packed, state):
    """A packed weight and its state under the names of a checkpoint."""
    tensors[name] = packed
    tensors.update({f"{name}.{entry}": value.clone() for entry, value in state.as_dict(packed=True).items()})


# ---- reading them ----

def files_of(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}


def config_of(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def tensors_of(path, prefix=""):
    """Tensors of a folder or of one file whose names begin so."""
    path = Path(path)
    tensors = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with safe_open(file, "pt") as opened:
            tensors.update({name: opened.get_tensor(name) for name in opened.keys() if name.startswith(prefix)})
    return tensors


def packed_names(tensors):
    return sorted(name.split(".quant_state.")[0] for name in tensors if ".quant_state.bitsandbytes__" in name)


def state_of(tensors, name):
    """bitsandbytes' own reading of the entries beside a packed weight."""
    entries = {k[len(name) + 1:]: v.clone() for k, v in tensors.items() if k.startswith(name + ".")}
    return bnb.QuantState.from_dict(entries, device=torch.device("cpu"))


def scales_of(state):
    return bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax


def upstream_decode(packed, state, dtype):
    """Through bitsandbytes' Python backend. Its AVX-512 kernel takes wrong scales when a row is no multiple of the block,
    and flushes subnormal bf16 values."""
    table = bnb.get_4bit_type(state.quant_type, device="cpu")
    count = math.prod(state.shape)
    flat = _dequantize_4bit_compute(raw(packed), scales_of(state), table, state.blocksize, (count,), dtype)
    return flat.reshape(state.shape)


# ---- comparing ----

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
    wrong = x != y
    if x.is_floating_point():
        wrong = (wrong & ~(x.isnan() & y.isnan())) | ((x == 0) & (torch.signbit(x) != torch.signbit(y)))
    at = wrong.nonzero().flatten()
    if len(at) == 0:
        return "nothing differs"
    return f"{len(at)} of {len(x)} differ, first at {at[0]}: {x[at[0]].item()!r} instead of {y[at[0]].item()!r}"


def how_texts_differ(ours, theirs):
    x, y = (text.decode(errors="replace").splitlines() for text in (ours, theirs))
    line = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
    return f"line {line + 1}: {x[line:line + 1]} instead of {y[line:line + 1]}"


def what_differs(ours, theirs):
    """Two folders file by file, weights tensor by tensor; empty when every byte is the same."""
    a, b = files_of(ours), files_of(theirs)
    if set(a) != set(b):
        return f"files {sorted(set(a) ^ set(b))} are in one folder only"
    for name in sorted(a):
        if a[name] == b[name]:
            continue
        if not name.endswith(".safetensors"):
            return f"{name}: {how_texts_differ(a[name], b[name])}"
        x, y = tensors_of(Path(ours) / name), tensors_of(Path(theirs) / name)
        if set(x) != set(y):
            return f"{name}: tensors {sorted(set(x) ^ set(y))[:4]} are in one file only"
        for tensor in x:
            if not (x[tensor].dtype == y[tensor].dtype and torch.equal(raw(x[tensor]), raw(y[tensor]))):
                return f"{name}: {tensor}: {how_different(x[tensor], y[tensor])}"
        return f"{name}: the same tensors in another layout"
    return ""


# ---- running ----

def run_one(function, seed, command):
    """Runs one check and prints how it went. Returns whether it is good, and its number of cases."""
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
    notes = "".join(f"; {note}" for note in room.notes)
    print(f"{'ok  ' if good else 'FAIL'} {function.__name__}: {room.cases} cases{notes} ({time.monotonic() - started:.1f} s)")
    for fault in room.faults[:SHOWN]:
        print("     " + fault.replace(folder + "/", "").strip().replace("\n", "\n     "))
    if len(room.faults) > SHOWN:
        print(f"     and {len(room.faults) - SHOWN} more")
    sys.stdout.flush()
    return good, room.cases


def main():
    command = os.environ.get("NIBBLE", "build/nibble")
    if not os.access(command, os.X_OK):
        print(f"no command {command}: set NIBBLE")
        return 2
    chosen = [c for c in CHECKS if not sys.argv[1:] or c.__name__ in sys.argv[1:]]
    unknown = set(sys.argv[1:]) - {c.__name__ for c in chosen}
    if unknown:
        print(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(c.__name__ for c in CHECKS)}")
        return 2
    seed = int(os.environ.get("ORACLE_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"seed {seed} (ORACLE_SEED={seed} repeats this run)", flush=True)
    begin = time.monotonic()
    results = [run_one(function, seed, command) for function in chosen]
    passed = sum(good for good, _ in results)
    print(f"{sum(cases for _, cases in results)} cases in {time.monotonic() - begin:.0f} s")
    print(f"{passed} passed, {len(results) - passed} failed")
    return 0 if passed == len(results) > 0 else 1
