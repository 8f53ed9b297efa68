"""The yardstick transformers + bitsandbytes for bench/models: a checkpoint loaded in 4 bits (NF4), on the CPU.

    OMP_NUM_THREADS=N python bench/models_torch.py FOLDER --dtype f32 --threads N --prompt 512 --new 64

Loads the model and runs it once, on a short prompt. Then, for every line on standard input, takes in the prompt as one batch and makes the
new tokens one by one, always the likeliest; prints both speeds, in tokens per second.
"""
import argparse
import os
import sys
import time

os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
# Some virtual machines announce AMX and then stop torch's 16-bit products with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
options = argparse.ArgumentParser()
options.add_argument("model")
options.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
options.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
options.add_argument("--prompt", type=int, default=512)
options.add_argument("--new", type=int, default=64)
options = options.parse_args()

import logging; logging.disable(logging.WARNING)
import bitsandbytes
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(options.threads)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
model = transformers.AutoModelForCausalLM.from_pretrained(options.model, quantization_config=how, dtype=dtype, device_map="cpu").eval()
prompt = torch.randint(0, model.config.vocab_size, (1, options.prompt), generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def measure(ids, new):
    start = time.perf_counter()
    out = model(ids, use_cache=True, logits_to_keep=1)
    token = out.logits[:, -1:].argmax(-1)
    middle = time.perf_counter()
    for _ in range(new - 1):
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
    return ids.shape[1] / (middle - start), (new - 1) / (time.perf_counter() - middle)


measure(prompt[:, :32], 3)
print("torch", torch.__version__, "transformers", transformers.__version__, "bitsandbytes", bitsandbytes.__version__, flush=True)
for line in sys.stdin:
    print(*measure(prompt, options.new), flush=True)
