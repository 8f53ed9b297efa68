"""Models: logits, gradients, generation and evaluation; arrays by DLPack; the same bits as the command."""

from __future__ import annotations

import gc
import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_common import TINY, command, enter, sums

from nibble_torch.engine import (
    ArgumentError,
    BusyError,
    Context,
    DtypeError,
    ExistsError,
    FormatError,
    Model,
    NibbleError,
    NotFoundError,
    OutOfMemoryError,
    ShapeError,
    Status,
    Tokenizer,
    check_result,
    version,
)

PROMPTS = ["What is 3 plus", "Hello", "What is 9 plus 9?"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(threads=2)


@pytest.fixture
def ids(context: Context) -> list[torch.Tensor]:
    return Tokenizer(TINY, context=context).encode_batch(PROMPTS)


@pytest.fixture
def adapter(context: Context) -> str:
    assert sums("adapter", context=context, max_steps=2).train(samples=-1).step == 2
    return "adapter"


def load(path: str) -> dict[str, torch.Tensor]:
    """A .safetensors file of f32 tensors, read by hand."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32"
            begin, end = (8 + size + at for at in entry["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(
                entry["shape"]
            )
    return tensors


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_logits_are_those_that_the_library_writes(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context, dtype="f32")
    logits = model.logits(ids)
    model.write_logits(ids, "logits.safetensors")
    assert [tuple(one.shape) for one in logits] == [(len(one), model.vocabulary) for one in ids]
    assert same(load("logits.safetensors"), {f"logits.{index}": one for index, one in enumerate(logits)})


def test_ids_come_in_every_form(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context)
    want = model.logits(ids[:1])[0]
    rows = ids[0].unsqueeze(0).repeat(2, 1)
    wide = torch.stack([ids[0], ids[0]], dim=1)
    for form in (
        [ids[0].tolist()],
        [tuple(ids[0].tolist())],
        [ids[0].long()],
        [ids[0].numpy()],
        [ids[0].numpy().astype(np.uint16)],
        [wide[:, 1]],  # with gaps
        rows,
        rows.numpy(),
        iter([ids[0]]),
    ):
        assert all(torch.equal(one, want) for one in model.logits(form))


def test_i32_ids_are_not_copied() -> None:
    from nibble_torch.engine._arrays import IdLists, ids_tensor

    array = np.arange(6, dtype=np.int32)
    assert ids_tensor(array, "ids").data_ptr() == array.ctypes.data
    lists = IdLists(array.reshape(2, 3), "sequences")
    assert [tensor.data_ptr() - array.ctypes.data for tensor in lists.tensors] == [0, 12]


def test_arrays_that_cannot_be_written_are_read(context: Context, ids: list[torch.Tensor]) -> None:
    array = np.frombuffer(ids[0].numpy().tobytes(), dtype=np.int32)
    assert not array.flags.writeable
    model = Model(TINY, context=context)
    assert torch.equal(model.logits([array])[0], model.logits(ids[:1])[0])


def test_results_are_dlpack(context: Context, ids: list[torch.Tensor]) -> None:
    logits = Model(TINY, context=context).logits(ids[:1])[0]
    array = np.from_dlpack(logits)
    assert array.ctypes.data == logits.data_ptr() and array.shape == tuple(logits.shape)


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        ([[2**31]], ValueError, r"sequences\[0\] has values outside of 32 bits"),
        ([[1], [1.5]], TypeError, "float"),
        ([[1], torch.ones(2)], DtypeError, r"sequences\[1\] has dtype torch.float32; it must be integers"),
        (
            [torch.ones(2, 2).long()],
            ShapeError,
            r"sequences\[0\] has shape \(2, 2\); it must have one dimension",
        ),
        ([1, 2], TypeError, r"sequences\[0\] is int"),
        (["text"], TypeError, r"sequences\[0\] is str"),
        ([[]], FormatError, "sequence 0 has 0 tokens"),
        ([], FormatError, "no sequences"),
        ([[512]], FormatError, "the id 512"),
        ([[-1]], FormatError, "the id -1"),
    ],
)
def test_wrong_ids_are_refused(
    context: Context, sequences: list[list[int]], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        Model(TINY, context=context).logits(sequences)


def test_gradients_are_those_of_the_command(context: Context, ids: list[torch.Tensor], adapter: str) -> None:
    model = Model(TINY, context=context, adapter=adapter, load="nf4", dtype="f32")
    labels = [one.clone() for one in ids]
    labels[0][1] = -100
    found = model.gradients(ids, labels)
    written = model.write_gradients(ids, labels, "written.safetensors")
    assert (found.loss, found.trained) == written == (found.loss, sum(len(one) - 1 for one in ids) - 1)
    assert len(found.tensors) == 56 and all(name.endswith("weight") for name in found.tensors)
    # The functions name tensors as PEFT's file does, with and without its prefix.
    want = {
        name.removeprefix("base_model.model."): tensor for name, tensor in load("written.safetensors").items()
    }
    assert same(found.tensors, want)

    Path("ids.json").write_text(json.dumps([one.tolist() for one in ids]))
    Path("labels.json").write_text(json.dumps([one.tolist() for one in labels]))
    line = "grads models/nibble-tiny --ids ids.json --labels labels.json --out command.safetensors"
    options = f"--json --device cpu --load nf4 --dtype f32 --adapter {adapter}"
    done = subprocess.run(
        [command(), *line.split(), *options.split()], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["trained_tokens"] == found.trained
    assert Path("command.safetensors").read_bytes() == Path("written.safetensors").read_bytes()


def test_gradients_follow_the_loss(context: Context, ids: list[torch.Tensor], adapter: str) -> None:
    """A small step against the gradient of B lowers the loss by its square, as gradients must."""
    model = Model(TINY, context=context, adapter=adapter, dtype="f32")
    found = model.gradients(ids, ids)
    model.close()  # or the change of the file would be an error
    path = Path(adapter, "adapter_model.safetensors")
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    step, square = 1e-3, 0.0
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if "lora_B" in name:
            begin, end = (8 + size + at for at in entry["data_offsets"])
            values = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=begin)
            gradient = found.tensors[name.removeprefix("base_model.model.")].flatten()
            values -= step * gradient
            square += float(gradient.double().square().sum())
    path.write_bytes(data)
    lower = Model(TINY, context=context, adapter=adapter, dtype="f32").gradients(ids, ids).loss
    assert found.loss - lower == pytest.approx(step * square, rel=0.05)


def test_generation_is_that_of_the_command(context: Context, ids: list[torch.Tensor]) -> None:
    how = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 7}
    model = Model(TINY, context=context)
    found = model.generate(ids, max_tokens=12, **how)  # type: ignore[arg-type]
    Path("ids.json").write_text(json.dumps([one.tolist() for one in ids]))
    options = [part for name, value in how.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    line = "generate models/nibble-tiny --ids ids.json --max-tokens 12 --json --device cpu".split()
    done = subprocess.run([command(), *line, *options], capture_output=True, text=True, check=True)
    sequences = json.loads(done.stdout)["sequences"]
    assert [one.ids.tolist() for one in found] == [one["ids"] for one in sequences]
    assert [one.stopped for one in found] == [one["finish"] == "stop" for one in sequences]


def test_greedy_tokens_are_the_largest_logits(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context, dtype="f32")
    for prompt, new in zip(ids, model.generate(ids, max_tokens=5, ends=[]), strict=True):
        logits = model.logits([torch.cat([prompt, new.ids])])[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == new.ids.tolist()
        assert len(new.ids) == 5 and not new.stopped


def test_tokens_come_one_by_one_and_true_ends_a_sequence(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context)
    seen: list[tuple[int, int]] = []

    def on_token(sequence: int, token: int) -> bool:
        seen.append((sequence, token))
        return sequence == 1 and len([1 for one, _ in seen if one == 1]) == 2

    found = model.generate(ids, max_tokens=6, ends=[], on_token=on_token)
    assert [len(one.ids) for one in found] == [6, 2, 6]
    assert [one.stopped for one in found] == [False, True, False]
    for index, one in enumerate(found):
        assert [token for sequence, token in seen if sequence == index] == one.ids.tolist()


def test_a_token_callback_streams_text(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context)
    tokenizer = model.tokenizer()
    pieces: list[str] = []
    stream = tokenizer.stream()
    found = model.generate(
        ids[:1], max_tokens=8, ends=[], on_token=lambda _, token: pieces.append(stream.push(token))
    )[0]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(found.ids)


def test_a_callback_cannot_compute_with_its_own_context(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context)
    for use in (lambda: model.logits(ids), lambda: Model(TINY, context=context)):
        with pytest.raises(BusyError, match="while its context is at work"):
            model.generate(ids[:1], max_tokens=3, ends=[], on_token=lambda *_: bool(use()))
    other = Model(TINY)
    seen: list[torch.Tensor] = []
    model.generate(ids[:1], max_tokens=2, ends=[], on_token=lambda *_: seen.extend(other.logits(ids[:1])))
    assert len(seen) == 2 and torch.equal(seen[0], model.logits(ids[:1])[0])


def test_evaluation_is_the_cross_entropy(context: Context, ids: list[torch.Tensor]) -> None:
    model = Model(TINY, context=context, dtype="f32")
    logits = model.logits(ids)
    losses = [
        torch.nn.functional.cross_entropy(one[:-1].double(), row[1:].long(), reduction="none")
        for one, row in zip(logits, ids, strict=True)
    ]
    found = model.evaluate(ids)
    assert found.tokens == sum(map(len, losses))
    assert found.loss == pytest.approx(float(torch.cat(losses).mean()), rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss_sum / found.tokens), rel=1e-12)
    hits = sum(int((one[:-1].argmax(-1) == row[1:]).sum()) for one, row in zip(logits, ids, strict=True))
    assert (found.hits, found.accuracy) == (hits, hits / found.tokens)
    labels = [torch.full_like(row, -100) for row in ids]
    labels[2][1] = ids[2][1]
    seen: list[tuple[int, int]] = []
    one = model.evaluate(ids, labels, on_progress=lambda done, total: seen.append((done, total)))
    assert one.tokens == 1 and one.loss == pytest.approx(float(losses[2][0]), rel=1e-6)
    assert seen and seen[-1][0] == seen[-1][1]
    with pytest.raises(ShapeError, match="labels has 1 sequences; it must have 3"):
        model.evaluate(ids, [ids[0]])


def test_plans_are_whole(context: Context, adapter: str) -> None:
    model = Model(TINY, context=context, adapter=adapter, plan_only=True)
    plan = model.plan(tokens=64, batch=2)
    assert plan.total_bytes == sum(vars(plan.arenas).values()) > 0
    lists = (plan.summary.op_count, plan.summary.cast_count, plan.summary.value_count)
    assert lists == tuple(map(len, (plan.ops, plan.casts, plan.values)))
    assert {"forward", "backward"} <= {op.pass_ for op in plan.ops}
    assert all(value.shape and value.dtype or value.arena == "scratch" for value in plan.values)
    with pytest.raises(OutOfMemoryError, match="the smallest budget is") as caught:
        model.plan(tokens=64, batch=2, memory=1000)
    assert caught.value.status is Status.ERROR_MEMORY and isinstance(caught.value, MemoryError)
    assert model.plan(tokens=64, batch=2, memory=plan.summary.smallest_memory).total_bytes <= plan.total_bytes
    with pytest.raises(ArgumentError):
        model.logits([[1]])


def test_failures_are_exceptions_of_python(context: Context) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-folder") as missing:
        Model("no-such-folder", context=context)
    assert isinstance(missing.value, NotFoundError) and missing.value.status is Status.ERROR_NOT_FOUND
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{")
    with pytest.raises(FormatError, match="broken/config.json"):
        Model("broken", context=context)
    with pytest.raises(ValueError, match="zero byte"):
        Model("models\0", context=context)
    with pytest.raises(ArgumentError, match="dtype is 'f64'; it must be one of default, f32, f16, bf16"):
        Model(TINY, context=context, dtype="f64")
    Path("taken").write_text("")
    with pytest.raises(FileExistsError) as exists:
        check_result("taken", context=context)
    assert isinstance(exists.value, ExistsError)
    with pytest.raises(ArgumentError, match="adapter"):
        Model(TINY, context=context).gradients([[1, 2]], [[1, 2]])


def test_numbers_are_not_cut_to_the_size_of_an_argument(context: Context) -> None:
    model = Model(TINY, context=context)
    for wrong in (0, -1, 2**24 + 1):
        with pytest.raises(ArgumentError, match="max_tokens"):
            model.generate([[1]], max_tokens=wrong)
    with pytest.raises(OverflowError, match="max_tokens is 18446744073709551617, which does not fit 64 bits"):
        model.generate([[1]], max_tokens=2**64 + 1)
    with pytest.raises(OverflowError, match="seed is -1, which does not fit 64 bits"):
        model.generate([[1]], max_tokens=1, seed=-1)
    with pytest.raises(Exception, match="does not fit 64 bits"):
        model.plan(tokens=2**64 + 1)
    with pytest.raises(Exception, match="does not fit 32 bits"):
        model.tokenizer().token(2**32 + 1)
    with pytest.raises(Exception, match="does not fit 32 bits"):
        Context().threads = 2**32 + 1


def test_a_failure_keeps_nothing_alive(context: Context) -> None:
    def fail(_sequence: int, _token: int) -> None:
        raise LookupError

    count = len(context.session.handles)
    gc.disable()
    try:
        for ids in ([[999]], [[1, 2]]):
            model = Model(TINY, context=context)
            with pytest.raises((FormatError, LookupError)):
                model.generate(ids, max_tokens=3, ends=[], on_token=fail)
            del model
            assert len(context.session.handles) == count
    finally:
        gc.enable()


def test_an_exception_carries_message_and_hint() -> None:
    import pickle

    with pytest.raises(NibbleError) as caught:
        Context(threads=-1)
    error = caught.value
    assert error.hint and str(error) == f"{error.message}\n{error.hint}"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint) == (type(error), error.message, error.hint)


def test_version_is_that_of_the_command() -> None:
    shown = subprocess.run([command(), "--version"], capture_output=True, text=True, check=True).stdout
    assert version() in shown
