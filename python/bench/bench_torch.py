"""Speed of nibble_torch.accelerate beside PEFT and bitsandbytes, in one process.

    python bench_torch.py                        all parts that fit the device
    python bench_torch.py layer step --threads 1
    python bench_torch.py step8b decode8b --device cuda

layer     a LoRA layer (4096 x 4096, rank 16, nested NF4), forward, and forward with backward
dequantize  the same weight to f32, f16 and bf16
call      a layer of 64 x 64: what a call costs by itself
step      forward and backward of a small Llama, eager, whole model
step8b    CUDA: the step of a Llama of 8B's shape, 4 x 2048 tokens, compiled, Liger's loss if it is installed
decode8b  CUDA: tokens per second of generate()

Both sides run alternately, and medians are printed. bitsandbytes has its own kernels. `cpu` is the ratio of
the processor time that both took. On a machine that others use it says more than wall time.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

# Read before torch and glibc start. Without the latter each large output is mapped and faulted at every call.
SETTINGS = {
    "NIBBLE_BITSANDBYTES": "off",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
if os.environ.get("NIBBLE_BITSANDBYTES") != "off":
    os.execve(
        sys.executable, [sys.executable, *sys.argv], SETTINGS | os.environ | {"NIBBLE_BITSANDBYTES": "off"}
    )

import bitsandbytes as bnb  # noqa: E402
import nibble_torch  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from torch import Tensor, nn  # noqa: E402

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Single(nn.Module):
    """One layer that PEFT can adapt."""

    def __init__(self, size: int, compute: torch.dtype, device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = fourbit(nn.Linear(size, size, bias=False, dtype=compute), compute, device)
        self.is_loaded_in_4bit = True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def fourbit(linear: nn.Linear, compute: torch.dtype, device: str) -> nn.Module:
    made = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=False, compute_dtype=compute, quant_type="nf4"
    )
    made.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4", module=made)
    return made.to(device)


def adapted(model: Any, **options: Any) -> Any:
    made = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", **options))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    return made.train()


# ---- measuring ----


class Timer:
    def __init__(self, device: str, rounds: int) -> None:
        self.device, self.rounds = device, rounds

    def once(self, run: Callable[[], object], repeat: int) -> tuple[float, float]:
        """Wall and processor milliseconds of a run."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeat):
            run()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - wall) * 1e3 / repeat, (time.process_time() - cpu) * 1e3 / repeat

    def compare(self, title: str, stock: Callable[[], object], fused: Callable[[], object]) -> None:
        stock()
        first = self.once(stock, 1)[0]
        repeat = max(1, min(200, int(2 / max(first, 1e-3))))  # a sample takes 2 ms or more
        fused()
        samples: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        for _ in range(self.rounds):
            samples[0].append(self.once(stock, repeat))
            samples[1].append(self.once(fused, repeat))
        (stock_wall, stock_cpu), (wall, cpu) = (
            tuple(statistics.median(column) for column in zip(*side, strict=True)) for side in samples
        )
        print(
            f"{title:44} {stock_wall:10.3f} {wall:10.3f} ms"
            f" {stock_wall / wall:6.2f} {stock_cpu / cpu:6.2f} cpu"
        )


def header(threads: int, device: str) -> None:
    import ctypes

    library = ctypes.CDLL(str(nibble_torch._library.PATH))
    library.nbl_version.restype = ctypes.c_char_p
    machine = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            machine = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if device == "cuda":
        machine += f", {torch.cuda.get_device_name()}"
    print(f"machine   {machine}; {threads} threads; load {os.getloadavg()[0]:.1f}")
    print(
        f"versions  nibble {library.nbl_version().decode()}, torch {torch.__version__}, bitsandbytes "
        f"{bnb.__version__}, peft {peft.__version__}, transformers {transformers.__version__}"
    )
    print(
        f"isa       torch {torch.backends.cpu.get_cpu_capability()}, "
        f"oneDNN {os.environ['ONEDNN_MAX_CPU_ISA']}"
    )
    print(f"\n{'':44} {'stock':>10} {'nibble':>10}    {'ratio':>6}")


# ---- parts ----


def forward(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def forward_backward(model: nn.Module, x: Tensor, dy: Tensor) -> None:
    model(x.detach().requires_grad_()).backward(dy)


def layer(timer: Timer, options: argparse.Namespace) -> None:
    for name in ("f32", "bf16"):
        dtype = DTYPES[name]
        stock = adapted(Single(options.size, dtype, options.device))
        fused = adapted(Single(options.size, dtype, options.device))
        nibble_torch.accelerate(fused)
        for tokens in options.tokens:
            x = torch.randn(tokens, options.size, device=options.device).to(dtype)
            dy = torch.randn(tokens, options.size, device=options.device).to(dtype)
            title = f"layer {options.size}, {name}, {tokens} tokens"
            timer.compare(f"{title}, forward", partial(forward, stock, x), partial(forward, fused, x))
            both = [partial(forward_backward, model, x, dy) for model in (stock, fused)]
            timer.compare(f"{title}, forward + backward", *both)


def dequantize(timer: Timer, options: argparse.Namespace) -> None:
    packed: Any = Single(options.size, torch.bfloat16, options.device).layer
    weight = nibble_torch.Weight.from_bitsandbytes(packed.weight)
    state = packed.weight.quant_state
    for name, dtype in DTYPES.items():

        def stock(dtype: torch.dtype = dtype) -> None:
            state.dtype = dtype
            bnb.functional.dequantize_4bit(packed.weight.data, state)

        timer.compare(
            f"dequantize {options.size}, {name}", stock, lambda dtype=dtype: weight.dequantize(dtype)
        )


def call(timer: Timer, options: argparse.Namespace) -> None:
    stock = adapted(Single(64, torch.float32, options.device))
    fused = adapted(Single(64, torch.float32, options.device))
    nibble_torch.accelerate(fused)
    x = torch.randn(1, 64, device=options.device)
    weight = nibble_torch.Weight.from_bitsandbytes(fused.base_model.model.layer.base_layer.weight)

    def operator() -> None:
        nibble_torch.linear(x, weight)

    with torch.no_grad():
        timer.compare(
            "call, no gradient", lambda: stock.base_model.model(x), lambda: fused.base_model.model(x)
        )
        base = stock.base_model.model.layer.base_layer
        timer.compare("call of the base layer, no gradient", lambda: base(x), operator)
    x.requires_grad_()
    timer.compare("call, with gradient", lambda: stock.base_model.model(x), lambda: fused.base_model.model(x))


def llama(device: str, dtype: torch.dtype, **shape: int) -> Any:
    """A Llama with random weights, made and packed on the device, layer by layer."""
    config = transformers.LlamaConfig(**shape, tie_word_embeddings=False, use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    torch.manual_seed(0)
    for parent in list(model.model.layers.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                dense = nn.Linear(child.in_features, child.out_features, False, device, dtype)
                nn.init.normal_(dense.weight, std=0.02)
                setattr(parent, name, fourbit(dense, dtype, device))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                value = torch.ones(parameter.shape, dtype=dtype, device=device)
                if value.dim() > 1:
                    nn.init.normal_(value, std=0.02)
                setattr(module, name, nn.Parameter(value, requires_grad=False))
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    model.requires_grad_(False)
    model.is_loaded_in_4bit = True
    return adapted(model)


def train_step(model: Any, ids: Tensor) -> float:
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return float(loss.detach())


def step(timer: Timer, options: argparse.Namespace) -> None:
    shape = {
        "vocab_size": 4096,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    ids = torch.randint(0, 4096, (4, 128), device=options.device)
    for name in ("f32", "bf16"):
        stock = llama(options.device, DTYPES[name], **shape)
        fused = llama(options.device, DTYPES[name], **shape)
        nibble_torch.accelerate(fused)
        sides = [partial(train_step, model, ids) for model in (stock, fused)]
        timer.compare(f"step, Llama 4 x 512, {name}, 4 x 128 tokens", *sides)


def step8b(timer: Timer, options: argparse.Namespace) -> None:
    """One model, stock and accelerated in turn: two would not fit. Memory is the peak beyond the model."""
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama(rope=False, rms_norm=False, swiglu=False, cross_entropy=False)
        loss = "Liger loss"
    except ImportError:
        loss = "loss of transformers (Liger is not installed)"
    cuda = options.device == "cuda"
    model = llama(options.device, torch.bfloat16, **shape_8b(options))
    batch, length = (4, 2048) if cuda else (2, 16)
    ids = torch.randint(0, model.config.vocab_size, (batch, length), device=options.device)
    print(f"step8b: {batch} x {length} tokens, compiled, {loss}")
    for side in ("stock", "nibble", "stock again"):
        nibble_torch.restore(model)
        if side == "nibble":
            print(nibble_torch.accelerate(model))
        torch._dynamo.reset()
        compiled = torch.compile(model)
        for _ in range(3):
            train_step(compiled, ids)
        held = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        times = [timer.once(partial(train_step, compiled, ids), 1)[0] for _ in range(timer.rounds)]
        memory = (torch.cuda.max_memory_allocated() - held) / 2**30 if cuda else 0.0
        value = train_step(compiled, ids)
        print(f"{side:12} {statistics.median(times):10.2f} ms, {memory:6.2f} GiB more, loss {value:.4f}")


def decode8b(timer: Timer, options: argparse.Namespace) -> None:
    model = llama(options.device, torch.bfloat16, **shape_8b(options)).eval()
    model.config.use_cache = True
    ids = torch.randint(0, model.config.vocab_size, (1, 32), device=options.device)
    new = 64 if options.device == "cuda" else 4

    def generate() -> None:
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                min_new_tokens=new,
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                use_cache=True,
            )

    nibble_torch.restore(model)
    for side in ("stock", "nibble", "stock again"):
        nibble_torch.restore(model)
        if side == "nibble":
            nibble_torch.accelerate(model)
        if options.device == "cpu":
            model.train()  # bitsandbytes would repack the weights
        generate()
        times = [timer.once(generate, 1)[0] for _ in range(timer.rounds)]
        print(f"decode8b {side:12} {new / statistics.median(times) * 1e3:8.1f} tokens/s")


def shape_8b(options: argparse.Namespace) -> dict[str, int]:
    if options.device == "cpu":  # a trial of the script
        return {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    return {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}  # fmt: skip


PARTS = {
    "layer": layer,
    "dequantize": dequantize,
    "call": call,
    "step": step,
    "step8b": step8b,
    "decode8b": decode8b,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: those of the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 16, 1])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    header(options.threads, options.device)
    timer = Timer(options.device, options.rounds)
    chosen = options.parts or [name for name in PARTS if options.device == "cuda" or not name.endswith("8b")]
    for name in chosen:
        PARTS[name](timer, options)


if __name__ == "__main__":
    main()
