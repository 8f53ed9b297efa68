#!/usr/bin/env python3
"""A yardstick of bench/cuda: the QLoRA step of transformers + PEFT + bitsandbytes on a GPU. Prints tokens per second.

    cuda_torch.py MODEL SEQUENCES TOKENS [--recompute]
"""
import statistics
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM


def main():
    model, sequences, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, device_map={"": 0}, attn_implementation="sdpa")
    targets = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
    m = get_peft_model(m, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")).train()
    if "--recompute" in sys.argv:
        m.enable_input_require_grads()
        m.gradient_checkpointing_enable()
    parameters = [p for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    ids = torch.randint(0, m.config.vocab_size, (sequences, tokens), device="cuda")
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        m(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    print(sequences * tokens / statistics.median(times[3:]))


if __name__ == "__main__":
    main()
