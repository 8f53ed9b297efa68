"""The yardstick of bench/run: bitsandbytes on the CPU, on the same shapes as nibble-bench and under the same names.

    OMP_NUM_THREADS=1 python bench/bitsandbytes_cpu.py [--shape 4096x14336] [--rounds 3] [--sample 64]

Prints one line per case: name, "bitsandbytes", threads, elements, 0, median seconds; the allocation of its results is part of it, since its calls offer no
other way. Quantising is measured on 1/64 of the weight's rows (--sample): it is
slow, and its cost per element does not depend on the number of rows. The first call of each case is not counted.
"""
import argparse, os, statistics, time

os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
import logging; logging.disable(logging.WARNING)
import torch
import bitsandbytes.functional as F
from bitsandbytes import __version__ as version

options = argparse.ArgumentParser()
options.add_argument("--shape", default="4096x14336")
options.add_argument("--rounds", type=int, default=3)
options.add_argument("--sample", type=int, default=64)
options.add_argument("--version", action="store_true")
options = options.parse_args()
if options.version:
    print(f"bitsandbytes {version}, torch {torch.__version__}"); raise SystemExit
threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
torch.set_num_threads(threads)
clock = time.thread_time if threads == 1 else time.perf_counter  # as nibble-bench measures
rows, columns = map(int, options.shape.split("x"))
weight = (torch.randn(rows, columns) * 0.02).bfloat16()
few = weight[:max(1, rows // options.sample)].contiguous()


def measure(name, elements, call):
    took = []
    for _ in range(options.rounds + 1):
        start = clock(); call(); took.append(clock() - start)
    print(name, "bitsandbytes", threads, elements, 0, f"{statistics.median(took[1:]):.9f}", sep="\t", flush=True)


with torch.no_grad():
    for kind, nested in (("nf4", False), ("nf4", True), ("fp4", False)):
        name = kind + ("-nested" if nested else "")
        measure(f"quantize {name} bf16", few.numel(), lambda: F.quantize_4bit(few, blocksize=64, quant_type=kind, compress_statistics=nested))
        packed, state = F.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
        for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
            state.dtype = dtype
            measure(f"dequantize {name} {label}", weight.numel(), lambda: F.dequantize_4bit(packed, state))
        del packed, state
    measure("quantize int8 bf16", few.numel(), lambda: F.int8_vectorwise_quant(few.half()))
    codes, scales, _ = F.int8_vectorwise_quant(weight.half())
    measure("dequantize int8 f32", weight.numel(), lambda: F.int8_vectorwise_dequant(codes, scales))
    measure("dequantize int8 bf16", weight.numel(), lambda: F.int8_vectorwise_dequant(codes, scales).bfloat16())
