"""The yardstick of nibble-bench-attention: torch's scaled_dot_product_attention on the CPU, the same cases, the same lines.

    python bench/torch_attention.py [--threads N] [--rounds 7] [--only TEXT] [--dtype f32|bf16]

ONEDNN_MAX_CPU_ISA=AVX512_CORE keeps oneDNN off AMX where the machine has it, but cannot use it; ATEN_CPU_CAPABILITY=avx2 and
MKL_ENABLE_INSTRUCTIONS=AVX2 lower the instruction set.
"""
import argparse
import os
import time

import torch
import torch.nn.functional as F

MODELS = [("SmolLM2-135M", 9, 3, 64), ("Qwen3-0.6B", 16, 8, 128), ("Llama-3.2-1B", 32, 8, 64)]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", default="")
    p.add_argument("--dtype", default="f32,bf16")
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    now = time.process_time if o.threads == 1 else time.perf_counter
    print(f"# torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {o.threads} of {os.cpu_count()} cores; "
          f"B = 1, causal; median of {o.rounds} rounds, {'CPU' if o.threads == 1 else 'wall'} time")
    for name, heads, key_heads, size in MODELS:
        if o.only not in name:
            continue
        for tokens in (512, 2048):
            for d in o.dtype.split(","):
                q, k, v = (torch.randn(1, h, tokens, size).to(DTYPES[d]).requires_grad_() for h in (heads, key_heads, key_heads))
                dout, times = torch.randn(1, heads, tokens, size).to(DTYPES[d]), ([], [])
                for round in range(o.rounds + 1):
                    q.grad = k.grad = v.grad = None
                    start = now()
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                    middle = now()
                    out.backward(dout)
                    if round:
                        times[0].append(middle - start)
                        times[1].append(now() - start)
                for what, ts, flops in (("forward", times[0], 2), ("both", times[1], 7)):
                    ts, work = sorted(ts), flops * tokens * tokens * heads * size * 1e-9
                    print(f"{name:<14} T {tokens:<5} {d:<5} {what:<8} threads {o.threads:<3} {work / ts[len(ts) // 2]:8.1f} GFLOP/s, "
                          f"best {work / ts[0]:8.1f}", flush=True)


if __name__ == "__main__":
    main()
