"""The operators against the upstream libraries: the committed golden files, and new ones from other random numbers.

    NIBBLE=build/nibble NIBBLE_OPS=build/nibble-ops build/oracle/bin/python tests/oracle/test_operators.py [NAME...]
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from common import CALL_SECONDS, check, main, raw
from ops import MAKERS, make

import torch
from safetensors import safe_open

COMMITTED = Path(__file__).parents[1] / "data/ops"


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def within(ours, theirs, bound):
    """The measures of tools/ops/check.c."""
    a, b = ours.double().flatten(), theirs.double().flatten()
    apart = (a - b).nan_to_num(nan=math.inf)
    measures = {"rel": (apart.norm() / b.norm().clamp_min(1e-30)).item(), "abs": apart.abs().max().item(),
                "share": (a != b).double().mean().item(), "cos": torch.nn.functional.cosine_similarity(a, b, dim=0).item()}
    return all(measures[m] >= limit if m == "cos" else measures[m] <= limit for m, limit in bound.items())


@check
def committed_values_are_what_upstream_computes(room):
    """Makes every committed file again. A difference is a change of an upstream library, or of a maker."""
    room.expect({f.stem for f in COMMITTED.glob("*.safetensors")} == set(MAKERS),
                "the files in tests/data/ops and the makers differ: run tests/oracle/make_ops_golden.py")
    for name in MAKERS:
        path = room.folder / "again.safetensors"
        path.write_bytes(make(name).bytes())
        (now, now_about), (then, then_about) = read(path), read(COMMITTED / f"{name}.safetensors")
        if not room.expect(set(now) == set(then) and now_about == then_about, f"{name}: other tensors, attributes or bounds"):
            continue
        bounds = json.loads(now_about["bounds"])
        for tensor in now:
            a, b = now[tensor], then[tensor]
            same = a.dtype == b.dtype and a.shape == b.shape
            result = tensor.removeprefix("expect.")
            if "expect." + result in now:  # a result, or what upstream made of it in earlier steps: its last bit is the processor's
                same = same and within(a, b, bounds[result])
            else:
                same = same and torch.equal(raw(a), raw(b))
            room.expect(same, f"{name}: {tensor} is not what was committed")


@check
def new_values_agree(room):
    """The same calls with other numbers, through nibble-ops check."""
    seed = room.random.randrange(1 << 31)
    files = []
    for name in MAKERS:
        files.append(room.folder / f"{name}.safetensors")
        files[-1].write_bytes(make(name, seed).bytes())
    done = subprocess.run([os.environ.get("NIBBLE_OPS", "build/nibble-ops"), "check", *map(str, files)], capture_output=True, text=True,
                          timeout=CALL_SECONDS)
    lines = done.stdout.splitlines()
    room.expect(done.returncode in (0, 1) and len(lines) == len(files) + 1, f"exit status {done.returncode}: {done.stderr[-300:]}")
    for line in lines[:-1]:
        room.expect(line.startswith("ok "), line)
    room.notes.append(f"numbers from seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
