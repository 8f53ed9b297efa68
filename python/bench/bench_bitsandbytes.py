"""Times bitsandbytes' operators on the CPU: its own kernels against nibble's, in one run.

    python bench/bench_bitsandbytes.py [--threads 1 2] [--quick] [--best] [--only NAME]

Both kernels of a row run in turn. A row shows the medians, and how many times faster nibble is. Results are
new tensors in each call, as in a model. With one thread it is the time of the processor, which other processes
do not disturb as much. With more it is that of the clock.

torch's own bf16 product dies with an illegal instruction on machines that announce AMX and do not have it. Set
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 there.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

logging.disable(logging.WARNING)  # of bitsandbytes, about a package that it could download

import bitsandbytes as bnb  # noqa: E402
import bitsandbytes.functional as functional  # noqa: E402
import nibble_torch.bitsandbytes as backend  # noqa: E402
import torch  # noqa: E402

ops: Any = torch.ops.bitsandbytes
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    own: Callable[[], Any]
    ours: Callable[[], Any]


def row(name: str, what: str, call: Callable[[], Any]) -> Row:
    return Row(name, what, call, call)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("float", "f")


def rows(quick: bool) -> Iterator[Row]:
    sizes = (256, 1024) if quick else (256, 1024, 4096)
    for size in sizes:
        shape = f"{size}x{size}"
        for dtype in (F32, F16, BF16):
            weight = torch.randn(size, size).to(dtype)
            data, state = functional.quantize_4bit(weight, quant_type="nf4")
            args = (data, state.absmax, 64, "nf4", [size, size], dtype)
            yield row("dequantize_4bit", f"{shape} {short(dtype)}", lambda: ops.dequantize_4bit(*args))
    for size in sizes:
        data, state = functional.quantize_4bit(
            torch.randn(size, size), quant_type="nf4", compress_statistics=True
        )
        for dtype in (F32, F16, BF16):
            for tokens in (1, 16, 512):
                x = torch.randn(tokens, size).to(dtype)
                what = f"{tokens} x {size}x{size} {short(dtype)}"
                yield row("gemm_4bit", what, lambda: bnb.matmul_4bit(x, data, state))
    if functional.has_avx512bf16():
        yield from repacked(sizes)
    for size in sizes:
        for kind in ("nf4", "fp4"):
            weight = torch.randn(size, size).bfloat16()
            what = f"{size}x{size} {kind} bf16"
            yield row("quantize_4bit", what, lambda: ops.quantize_4bit(weight, 64, kind, torch.uint8))
    table = functional.create_dynamic_map()
    for count in (2**14, 2**18, 2**22):
        values = torch.randn(count)
        yield row("quantize_blockwise", f"{count} f32", lambda: ops.quantize_blockwise(values, table, 256))
    for tokens in (1, 16, 512):
        for threshold in (0.0, 6.0):
            x = torch.randn(tokens, 4096).half()
            what = f"{tokens}x4096 f16, threshold {threshold:g}"
            yield row("int8_vectorwise_quant", what, lambda: ops.int8_vectorwise_quant(x, threshold))
        sums = torch.randint(-(10**6), 10**6, (tokens, 4096), dtype=torch.int32)
        scales = torch.rand(tokens), torch.rand(4096)
        what = f"{tokens}x4096 bf16"
        yield row("int8_mm_dequant", what, lambda: ops.int8_mm_dequant(sums, *scales, BF16, None))
    yield from layers(1024 if quick else 4096)


def repacked(sizes: tuple[int, ...]) -> Iterator[Row]:
    """bitsandbytes' gemv_4bit takes weights that it has repacked. nibble takes them as they were."""
    for size in sizes:
        data, state = functional.quantize_4bit(torch.randn(size, size), quant_type="nf4")
        other, packed = functional.quantize_4bit(torch.randn(size, size), quant_type="nf4")
        other, packed = functional._convert_weight_packed_for_cpu(other, packed)
        for tokens in (1, 16):
            x = torch.randn(tokens, size).bfloat16()
            yield Row(
                "gemv_4bit",
                f"{tokens} x {size}x{size} bf16, own repacked",
                lambda: functional.gemv_4bit(x, other, state=packed),
                lambda: functional.gemv_4bit(x, data, state=state),
            )


def layers(size: int) -> Iterator[Row]:
    for dtype in (F32, BF16):
        layer = (
            bnb.nn.Linear4bit(size, size, bias=False, compute_dtype=dtype, quant_type="nf4").to("cpu").train()
        )
        for tokens in (16, 512):
            x = torch.randn(tokens, size).to(dtype).requires_grad_()
            dy = torch.randn(tokens, size).to(dtype)
            what = f"{tokens} x {size}x{size} {short(dtype)}"
            yield row("Linear4bit, both ways", what, lambda: torch.autograd.grad(layer(x), x, dy))
    int8 = bnb.nn.Linear8bitLt(size, size, bias=False, has_fp16_weights=False, threshold=6.0)
    int8.weight = bnb.nn.Int8Params(torch.randn(size, size), requires_grad=False, has_fp16_weights=False)
    int8 = int8.to("cpu").eval()
    for tokens in (1, 512):
        x = torch.randn(tokens, size).bfloat16()
        with torch.no_grad():
            yield row("Linear8bitLt, forward", f"{tokens} x {size}x{size} bf16", lambda: int8(x))


def seconds(call: Callable[[], Any], repeat: int) -> float:
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = now()
    for _ in range(repeat):
        call()
    return (now() - start) / repeat


def measure(of: Row, pick: Callable[[list[float]], float]) -> tuple[float, float]:
    """Seconds of bitsandbytes and of nibble: medians, or minima."""
    backend.unregister()
    of.own()
    once = seconds(of.own, 1)
    repeat = max(1, min(200, int(0.005 / once)))
    rounds = 3 if once > 0.5 else 7 if once > 0.05 else 21
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for switch, call, found in (
            (backend.unregister, of.own, times[0]),
            (backend.register, of.ours, times[1]),
        ):
            switch()
            # After the other kernel malloc gives out other addresses for a while, with pages to map.
            seconds(call, min(repeat, 8))
            found.append(seconds(call, repeat))
    return pick(times[0]), pick(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="leave out the large weights")
    parser.add_argument(
        "--best", action="store_true", help="minima, where other processes disturb the medians"
    )
    parser.add_argument("--only", default="", help="operators whose name contains this")
    args = parser.parse_args()
    pick, kind = (min, "minima") if args.best else (statistics.median, "medians")
    version = backend.status().bitsandbytes
    torch.set_grad_enabled(True)
    print(
        f"bitsandbytes {version}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, ",
        end="",
    )
    print(f"{platform.machine()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for threads in args.threads:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        print(f"\n{threads} thread{'s' * (threads > 1)}: milliseconds, {kind} of calls in turn")
        print(f"{'operator':24} {'':34} {'bitsandbytes':>12} {'nibble':>9} {'ratio':>6}")
        for of in rows(args.quick):
            if args.only not in of.name:
                continue
            own, ours = measure(of, pick)
            print(
                f"{of.name:24} {of.what:34} {own * 1e3:12.3f} {ours * 1e3:9.3f} {own / ours:6.1f}", flush=True
            )
    backend.unregister()


if __name__ == "__main__":
    main()
