"""The yardstick of nibble-bench-ops: torch, PEFT and bitsandbytes on the CPU, the same cases under the same names.

    OMP_NUM_THREADS=1 python bench/torch_ops.py [--threads N] [--only TEXT] [--quick]

lora: PEFT's adapter of rank 16 (f32, as PEFT makes it) on a bitsandbytes Linear4bit (nf4, nested); forward alone, and forward with the
gradients of x, A and B. dense: torch's linear. int8: bitsandbytes' Linear8bitLt in eval mode, the LLM.int8 product. Prints one line per case:
name, threads, 0, "-", median seconds of at least three rounds and 0.2 s (--quick: 0.05 s). The first call of each case is not counted.
"""
import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
# Some virtual machines announce AMX and then stop torch's 16-bit products with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
import logging; logging.disable(logging.WARNING)
import torch
import bitsandbytes
import peft
from bitsandbytes.nn import Int8Params, Linear4bit, Linear8bitLt, Params4bit
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))  # bitsandbytes reads the variable
options.add_argument("--only", default="")
options.add_argument("--quick", action="store_true")
options.add_argument("--version", action="store_true")
options = options.parse_args()
if options.version:
    print(f"torch {torch.__version__}, PEFT {peft.__version__}, bitsandbytes {bitsandbytes.__version__}, "
          f"ONEDNN_MAX_CPU_ISA={os.environ['ONEDNN_MAX_CPU_ISA']}")
    raise SystemExit
threads = options.threads
torch.set_num_threads(threads)
clock = time.thread_time if threads == 1 else time.perf_counter  # as nibble-bench-ops measures
FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16}
CASES = ["lora fwd+bwd f32", "lora fwd+bwd bf16", "lora forward f32", "lora forward bf16", "dense forward f32", "dense forward bf16",
         "int8 forward f32"]
TOKENS = [1, 64, 512] if options.quick else [1, 8, 64, 256, 512, 2048]


class Holder(nn.Module):
    """A model for PEFT to put an adapter into."""

    def __init__(self, layer):
        super().__init__()
        self.proj, self.is_loaded_in_4bit = layer, True


def layer_of(kind, dtype, inn, out):
    weight = torch.randn(out, inn) * 0.02
    if kind == "dense":
        layer = nn.Linear(inn, out, bias=False, dtype=dtype)
        layer.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    elif kind == "int8":
        layer = Linear8bitLt(inn, out, bias=False, has_fp16_weights=False, threshold=6.0)
        layer.weight = Int8Params(weight.half(), requires_grad=False, has_fp16_weights=False).to("cpu")
        layer.eval()
    else:
        layer = Linear4bit(inn, out, bias=False, compute_dtype=dtype)
        layer.weight = Params4bit(weight.bfloat16(), requires_grad=False, blocksize=64, quant_type="nf4", compress_statistics=True).to("cpu")
        holder = Holder(layer)
        peft.inject_adapter_in_model(peft.LoraConfig(r=16, lora_alpha=32, target_modules=["proj"]), holder)
        layer = holder.proj
        nn.init.normal_(layer.lora_B.default.weight, std=0.05)
    return layer


def call_of(case, layer, dtype, inn, out, tokens):
    x, dy = torch.randn(tokens, inn, dtype=dtype), torch.randn(tokens, out, dtype=dtype)
    if "fwd+bwd" not in case:
        if "lora" in case:
            layer.train()  # in eval mode bitsandbytes would repack the weight, for a kernel that its wheels do not have
        def forward():
            with torch.no_grad():
                layer(x)
        return forward
    x.requires_grad_(True)
    def both():
        x.grad = layer.lora_A.default.weight.grad = layer.lora_B.default.weight.grad = None
        layer(x).backward(dy)
    return both


def median_time(call):
    call()
    took = []
    while len(took) < 64 and (len(took) < 3 or sum(took) < (0.05 if options.quick else 0.2)):
        start = clock(); call(); took.append(clock() - start)
    return statistics.median(took)


for line in (Path(__file__).parent / "shapes/linear.txt").read_text().splitlines():
    fields = line.split()
    if line.startswith("#") or len(fields) < 3 or (options.quick and len(fields) < 4):
        continue
    model, inn, out = fields[0], int(fields[1]), int(fields[2])
    layers = {}
    for tokens in TOKENS:
        for case in CASES:
            name = f"{case} {model} {inn}>{out} {tokens}"
            if options.only not in name:
                continue
            kind, _, dtype = case.split()
            if (kind, dtype) not in layers:
                layers[kind, dtype] = layer_of(kind, FLOATS[dtype], inn, out)
            seconds = median_time(call_of(case, layers[kind, dtype], FLOATS[dtype], inn, out, tokens))
            print(name, threads, 0, "-", f"{seconds:.9f}", sep="\t", flush=True)
