"""What reads and writes folders: quantize, dequantize, diff, merge, export, inspect."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from engine_common import TINY, adapter_bytes, enter, sums

from nibble_torch.engine import (
    ArgumentError,
    Context,
    ExistsError,
    Model,
    NibbleError,
    Progress,
    dequantize,
    diff,
    export,
    inspect_adapter,
    inspect_checkpoint,
    inspect_gguf,
    merge,
    quantize,
)

MATRICES = 28  # of the four layers: q, k, v, o, gate, up, down


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


@pytest.fixture
def adapter() -> str:
    sums("adapter", max_steps=2, load_in_4bit=False, adapter="lora").train(samples=-1)
    return "adapter"


def test_quantizing_and_the_way_back() -> None:
    seen: list[Progress] = []
    with Context(progress=seen.append) as context:
        report = quantize(TINY, "nf4", format="nf4", block=128, nested="nearest", skip="mlp", context=context)
    assert (report.converted, report.files, report.non_finite) == (MATRICES - 12, 1, 0)
    assert report.bytes_out < report.bytes_in and seen
    summary = inspect_checkpoint("nf4").summary
    assert (summary.quantization, summary.block, summary.nested) == ("nf4", 128, True)
    back = dequantize("nf4", "back", dtype="bf16")
    assert back.converted == report.converted
    found = diff(TINY, "back", tolerance=0.2)
    assert (found.equal, found.within, found.missing_in_a, found.missing_in_b) == (False, True, (), ())
    assert sorted({one.equal for one in found.tensors if "mlp" in one.name}) == [True]
    assert all(0.9 < one.cosine <= 1.0001 and one.max_abs >= 0 for one in found.tensors)
    assert not diff(TINY, "back").within
    with pytest.raises(ExistsError, match="nf4"):
        quantize(TINY, "nf4", format="nf4")
    with pytest.raises(ArgumentError, match="block"):
        quantize(TINY, "other", format="nf4", block=48)
    with pytest.raises(ArgumentError, match="nested is 'yes'; it must be one of none, nearest, grid"):
        quantize(TINY, "other", format="nf4", nested="yes")


def test_diff_names_what_is_missing() -> None:
    Path("small").mkdir()
    config = json.loads(Path(TINY, "config.json").read_text())
    Path("small/config.json").write_text(json.dumps(config))
    header = {"model.norm.weight": {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}}
    text = json.dumps(header).encode()
    Path("small/model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(128))
    found = diff(TINY, "small")
    assert len(found.missing_in_b) == inspect_checkpoint(TINY).summary.tensors - 1 and not found.missing_in_a
    (norm,) = found.tensors
    assert (norm.name, norm.same_shape) == ("model.norm.weight", False) and math.isnan(norm.max_abs)


def test_an_adapter_is_merged(adapter: str) -> None:
    info = inspect_adapter(adapter, base=TINY)
    assert (info.summary.type, info.summary.r, info.summary.modules, info.problems) == (
        "LORA",
        16,
        MATRICES,
        (),
    )
    assert len(info.tensors) == info.summary.tensors == 2 * MATRICES and {
        one.dtype for one in info.tensors
    } == {"f32"}
    report = merge(TINY, adapter, "merged", dtype="f32", verify=True)
    assert (report.changed, report.dtype, report.verified) == (MATRICES, "f32", True)
    assert report.relative_deviation <= report.allowed_deviation
    ids = [[5, 6, 7, 8]]
    live = Model(TINY, adapter=adapter, dtype="f32").logits(ids)[0]
    plain = Model("merged", dtype="f32").logits(ids)[0]
    assert float((live - plain).abs().max()) == pytest.approx(0, abs=1e-3)
    with pytest.raises(FileExistsError):
        merge(TINY, adapter, "merged")
    with pytest.raises(FileNotFoundError, match="no-adapter"):
        merge(TINY, "no-adapter", "other")
    assert not Path("other").exists()


def test_a_merge_that_is_cancelled_leaves_nothing(adapter: str) -> None:
    before = sorted(Path().iterdir())
    with pytest.raises(KeyboardInterrupt):

        def interrupt(_: Progress) -> None:
            raise KeyboardInterrupt

        merge(TINY, adapter, "merged", context=Context(progress=interrupt))
    assert sorted(Path().iterdir()) == before and adapter_bytes(adapter)


def test_a_model_is_exported(adapter: str) -> None:
    report = export(TINY, "model.gguf", type="q8_0", ollama=True)
    info = inspect_gguf("model.gguf")
    assert (report.tensors, report.bytes) == (info.summary.tensors, Path("model.gguf").stat().st_size)
    assert (info.summary.architecture, info.summary.kind, info.problems) == ("llama", "model", ())
    assert {one.format for one in info.tensors} == {"q8_0", "f32"} and len(info.tensors) == report.tensors
    assert all(math.prod(one.shape) == one.elements for one in info.tensors)
    entries = {entry.key: entry for entry in info.entries}
    assert entries["general.architecture"].value == '"llama"' and len(entries) == info.summary.entries
    assert {"eos": 511} == {one.name: one.id for one in info.specials if one.name == "eos"}
    assert Path("Modelfile").exists()
    assert Model("model.gguf").vocabulary == 512
    assert export(TINY, "lora.gguf", adapter=adapter).tensors == 2 * MATRICES
    assert inspect_gguf("lora.gguf").summary.kind == "adapter"
    with pytest.raises(ArgumentError, match="type"):
        export(TINY, "other.gguf")


def test_problems_are_listed() -> None:
    info = inspect_checkpoint(TINY, check_values=True)
    assert len(info.tensors) == info.summary.tensors and info.problems == ()
    assert info.summary.parameters == sum(math.prod(one.shape) for one in info.tensors)
    Path("bad").mkdir()
    data = bytearray(Path(TINY, "model.safetensors").read_bytes())
    data[-2:] = b"\xc0\x7f"  # NaN in bf16
    Path("bad/model.safetensors").write_bytes(data)
    Path("bad/config.json").write_bytes(Path(TINY, "config.json").read_bytes())
    assert inspect_checkpoint("bad").problems == ()
    (problem,) = inspect_checkpoint("bad", check_values=True).problems
    assert problem.endswith("1 values are not finite; the first has index 127")
    with pytest.raises(NibbleError):
        inspect_gguf("bad/model.safetensors")
    with pytest.raises(FileNotFoundError):
        inspect_adapter("missing")
