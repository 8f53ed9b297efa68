"""The yardstick llama.cpp for bench/models, through llama-cpp-python's bindings of its C functions.

    python bench/models_llama.py MODEL.gguf --threads N --prompt 512 --new 64
    python bench/models_llama.py MODEL.gguf --quantize OUT.gguf      as llama-quantize does for Q4_0: its head is Q6_K

Loads the model and runs it once. Then, for every line on standard input, takes in the prompt as one batch and makes the new tokens one by
one, always the likeliest; prints both speeds, in tokens per second.
"""
import argparse
import ctypes
import os
import sys
import time

import llama_cpp as lib
import numpy as np

options = argparse.ArgumentParser()
options.add_argument("model")
options.add_argument("--quantize")
options.add_argument("--threads", type=int, default=1)
options.add_argument("--prompt", type=int, default=512)
options.add_argument("--new", type=int, default=64)
options = options.parse_args()


@lib.llama_log_callback
def silent(level, text, user):
    pass


lib.llama_log_set(silent, None)
lib.llama_backend_init()
if options.quantize:
    how = lib.llama_model_quantize_default_params()
    how.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_0
    how.nthread = os.cpu_count()
    part = options.quantize + ".part"
    if lib.llama_model_quantize(options.model.encode(), part.encode(), ctypes.byref(how)) != 0:
        raise SystemExit(f"llama.cpp could not quantise {options.model}")
    os.replace(part, options.quantize)
    raise SystemExit

model = lib.llama_model_load_from_file(options.model.encode(), lib.llama_model_default_params())
if not model:
    raise SystemExit(f"llama.cpp could not load {options.model}")
how = lib.llama_context_default_params()
how.n_ctx = options.prompt + options.new
how.n_batch = how.n_ubatch = max(512, options.prompt)
how.n_threads = how.n_threads_batch = options.threads
context = lib.llama_init_from_model(model, how)
vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
prompt = np.random.default_rng(2).integers(0, vocabulary, options.prompt).tolist()


def step(ids):
    """The likeliest token after these."""
    tokens = (lib.llama_token * len(ids))(*ids)  # the batch does not hold it
    if lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(ids))) != 0:
        raise SystemExit("llama.cpp could not compute")
    return int(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (vocabulary,)).argmax())


def measure():
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    start = time.perf_counter()
    token = step(prompt)
    middle = time.perf_counter()
    for _ in range(options.new - 1):
        token = step([token])
    return options.prompt / (middle - start), (options.new - 1) / (time.perf_counter() - middle)


measure()
print("llama-cpp-python", lib.__version__, flush=True)
for line in sys.stdin:
    print(*measure(), flush=True)
