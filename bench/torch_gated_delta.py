"""The yardstick of nibble-bench-gated_delta: transformers' torch_chunk_gated_delta_rule on the CPU, the same cases, the same lines.

    python bench/torch_gated_delta.py [--threads N] [--rounds 7] [--only TEXT] [--dtype f32|bf16]
"""
import argparse
import os
import time

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines announce AMX and stop torch's 16-bit products
import torch
import torch.nn.functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

MODELS = [("Qwen3.5-0.8B", 16, 16, 128), ("Qwen3.5-9B", 16, 32, 128), ("Qwen3.5-27B", 16, 48, 128)]
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
          f"B = 1; median of {o.rounds} rounds, {'CPU' if o.threads == 1 else 'wall'} time")
    for name, keys, values, size in MODELS:
        if o.only not in name:
            continue
        for tokens in (512, 2048):
            for d in o.dtype.split(","):
                q, k, v = (torch.randn(1, tokens, h, size).to(DTYPES[d]).requires_grad_() for h in (keys, keys, values))
                a, b = (torch.randn(1, tokens, values).to(DTYPES[d]).requires_grad_() for _ in range(2))
                a_log, dt_bias = torch.randn(values), torch.randn(values)
                do, times = torch.randn(1, tokens, values, size).to(DTYPES[d]), ([], [])
                for round in range(o.rounds + 1):
                    q.grad = k.grad = v.grad = a.grad = b.grad = None
                    start = now()
                    g = -a_log.exp() * F.softplus(a.float() + dt_bias)
                    out, _ = torch_chunk_gated_delta_rule(q, k, v, g, b.sigmoid(), use_qk_l2norm_in_kernel=True)
                    middle = now()
                    out.backward(do)
                    if round:
                        times[0].append(middle - start)
                        times[1].append(now() - start)
                for what, ts in (("forward", times[0]), ("both", times[1])):
                    ts = sorted(ts)
                    print(f"{name:<14} T {tokens:<5} {d:<5} {what:<8} threads {o.threads:<3} {ts[len(ts) // 2] * 1e3:8.1f} ms, "
                          f"best {ts[0] * 1e3:8.1f}", flush=True)


if __name__ == "__main__":
    main()
