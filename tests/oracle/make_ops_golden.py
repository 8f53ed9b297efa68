"""Makes tests/data/ops/*.safetensors: what torch, PEFT, bitsandbytes and transformers compute, for `nibble-ops check`.

    python tests/oracle/make_ops_golden.py [FOLDER] [--seed N] [--only TEXT]

Needs the libraries of requirements.txt, on the CPU; the test `golden` needs none of them. The makers are in tests/oracle/ops, with
the reason of every bound. The committed files have seed 0: the same seed gives the same bytes on the same libraries.
"""
import argparse
from pathlib import Path

from ops import MAKERS, make

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "data/ops")
options.add_argument("--seed", type=int, default=0)
options.add_argument("--only", default="")
options = options.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)
total = 0
for name in MAKERS:
    if options.only not in name:
        continue
    data = make(name, options.seed).bytes()
    (options.folder / f"{name}.safetensors").write_bytes(data)
    total += len(data)
for file in options.folder.glob("*.safetensors"):
    if not options.only and file.stem not in MAKERS:
        file.unlink()
print(f"{len(list(options.folder.glob('*.safetensors')))} files, {total} bytes made")
