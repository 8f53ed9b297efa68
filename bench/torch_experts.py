"""The yardstick of nibble-bench-experts: transformers' experts on the CPU, the same cases under the same names.

    OMP_NUM_THREADS=1 python bench/torch_experts.py [--threads N] [--only TEXT] [--quick]

Qwen3-MoE's module of experts, forward and the gradients of x and of the routing weights. frozen: dense weights. lora: PEFT's adapter of
rank 16 on both parameters (target_parameters), and its gradients. Each case runs as a loop (eager) and with grouped_mm; the faster one is
printed: name, threads, 0, which, median seconds of three rounds. The first call is not counted.
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
import peft
from torch import nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

options = argparse.ArgumentParser()
options.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
options.add_argument("--only", default="")
options.add_argument("--quick", action="store_true")
options = options.parse_args()
torch.set_num_threads(options.threads)
clock = time.thread_time if options.threads == 1 else time.perf_counter  # as nibble-bench-experts measures
FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16}
CASES = ["frozen fwd+bwd f32", "frozen fwd+bwd bf16", "lora fwd+bwd f32", "lora fwd+bwd bf16"]
TOKENS = [512] if options.quick else [64, 512, 2048]


class Holder(nn.Module):
    """A model for PEFT to put an adapter into."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts


def experts_of(kind, dtype, implementation, experts, hidden, inner):
    config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=inner, num_experts=experts)
    config._experts_implementation = implementation
    layer = Qwen3MoeExperts(config).to(dtype)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.02)
        p.requires_grad_(False)
    if kind == "lora":
        holder = Holder(layer)
        names = ["experts.gate_up_proj", "experts.down_proj"]
        peft.inject_adapter_in_model(peft.LoraConfig(r=16, lora_alpha=32, target_modules=[], target_parameters=names), holder)
        layer = holder.experts
        for name, p in layer.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.05)
    return layer


def call_of(layer, dtype, experts, top_k, hidden, tokens):
    x, dy = torch.randn(tokens, hidden, dtype=dtype), torch.randn(tokens, hidden, dtype=dtype)
    weights, chosen = torch.randn(tokens, experts).softmax(-1).topk(top_k, -1)
    weights = weights.to(dtype)
    x.requires_grad_(True), weights.requires_grad_(True)
    def both():
        x.grad = weights.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x, chosen, weights).backward(dy)
    return both


def median_time(call):
    call()
    took = []
    for _ in range(1 if options.quick else 3):
        start = clock(); call(); took.append(clock() - start)
    return statistics.median(took)


for line in (Path(__file__).parent / "shapes/experts.txt").read_text().splitlines():
    fields = line.split()
    if line.startswith("#") or len(fields) < 5 or (options.quick and len(fields) < 6):
        continue
    model, experts, top_k, hidden, inner = fields[0], *map(int, fields[1:5])
    for case in CASES:
        kind, _, dtype = case.split()
        times = {}
        for implementation in ("eager", "grouped_mm"):
            layer = None
            for tokens in TOKENS:
                name = f"{case} {model} {experts}/{top_k} {hidden}>{inner} {tokens}"
                if options.only not in name:
                    continue
                if layer is None:
                    layer = experts_of(kind, FLOATS[dtype], implementation, experts, hidden, inner)
                times.setdefault(name, []).append((median_time(call_of(layer, FLOATS[dtype], experts, top_k, hidden, tokens)), implementation))
        for name, runs in times.items():
            seconds, implementation = min(runs)
            print(name, options.threads, 0, implementation, f"{seconds:.9f}", sep="\t", flush=True)
