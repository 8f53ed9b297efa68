"""Types: raw.pyi is the schemas, and programs that use the package are checked by mypy and pyright."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import nibble_torch
import pytest
import torch

STUB = Path(nibble_torch.__file__).with_name("raw.pyi")
TYPES = {"Tensor": "Tensor", "int": "int", "float": "float", "bool": "bool", "torch.dtype": "int"}

EXAMPLE = """
import torch
from nibble_torch import Format, Layer, Linear, Weight, cross_entropy, linear, linear_group, mlp, quantize, raw

weight: Weight = quantize(torch.randn(64, 96), Format.NF4, nested="grid")
x = torch.randn(5, 96)
y: torch.Tensor = linear(x, weight, scale=0.5)
q, k = linear_group(x, [Layer(weight), Layer(weight, scale=0.5)])
z: torch.Tensor = mlp(x, Layer(weight), Layer(weight), Layer(weight), "silu")
loss: torch.Tensor = cross_entropy(x, weight, torch.zeros(5, dtype=torch.int64), reduction="mean")
module: Linear = Linear(weight, rank=4, dora=True)
none = torch.empty(0)
out, saved = raw.linear(x, *weight.args, none, none, none, none, none, 1.0, 0.0, none, 0.0)
dense: torch.Tensor = raw.dequantize(*weight.args, torch.float32, False)
"""
MISTAKES = """
import torch
from nibble_torch import linear, quantize, raw

weight = quantize(torch.randn(64, 96))
linear(torch.randn(5, 96), weight, scale="half")
raw.dequantize(*weight.args, "float32", False)
a, b, c = raw.rmsnorm(weight.args[0], weight.args[0], weight.args[0], 1e-6, 0.0, 0)
"""


def test_the_stub_is_the_schemas() -> None:
    declared = {
        node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.FunctionDef)
    }
    registered = {
        name.removeprefix("nibble::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("nibble::") and not name.startswith("nibble::bnb_")
    }
    assert set(declared) == registered
    for name, node in declared.items():
        schema = getattr(torch.ops.nibble, name).default._schema
        stub = [(a.arg, TYPES[ast.unparse(a.annotation)]) for a in node.args.args if a.annotation]
        assert stub == [(a.name, str(a.type)) for a in schema.arguments], name
        result = (
            "Tensor" if len(schema.returns) == 1 else f"tuple[{', '.join(['Tensor'] * len(schema.returns))}]"
        )
        assert node.returns is not None and ast.unparse(node.returns) == result, name


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_programs_are_checked(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(EXAMPLE)
    bad.write_text(MISTAKES)
    package = str(Path(nibble_torch.__file__).parents[1])
    if checker == "mypy":
        config = tmp_path / "mypy.ini"
        lines = ["[mypy]", "strict = True", f"cache_dir = {tmp_path}/cache"]
        if "site-packages" not in package:  # a source tree; mypy finds an installed package itself
            lines.append(f"mypy_path = {package}")
        config.write_text("\n".join(lines))
        command = [sys.executable, "-m", "mypy", "--config-file", str(config)]
    else:
        settings = {"extraPaths": [package], "typeCheckingMode": "standard"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]

    def check(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    result = check(good)
    assert result.returncode == 0, result.stdout
    result = check(bad)
    assert result.returncode != 0
    for line in (6, 7, 8):
        assert f":{line}:" in result.stdout, result.stdout
