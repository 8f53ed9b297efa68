"""linear, linear_group and mlp: PEFT's adapters on bitsandbytes' and torch's layers.

Weights are quantised by the modules themselves. Their rows are multiples of the block: bitsandbytes' AVX-512 decoder takes
wrong scales elsewhere.
"""

import torch
from bitsandbytes import functional as bnb
from bitsandbytes import matmul_4bit
from bitsandbytes.nn import Int8Params, Linear4bit, Linear8bitLt, Params4bit
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from .golden import FLOATS, Golden, golden, leaf, rel

# The rounding of x to 8 bits by rows is part of LLM.int8. Its size, against a product with x itself.
EIGHT_BITS = 1.5e-2


class Holder(nn.Module):
    """A model for PEFT to put adapters into."""

    def __init__(self, store, **layers):
        super().__init__()
        self.is_loaded_in_4bit = store in ("nf4", "nf4-nested", "fp4", "fp4-nested")
        self.is_loaded_in_8bit = store == "int8"
        for name, layer in layers.items():
            setattr(self, name, layer)


def layer_of(noise, out, inn, store, dtype, bias=False, state_dtype=None, block=64):
    """A layer of random weights. state_dtype: of the weight before it was quantised; bitsandbytes records it."""
    weight = noise.normal(out, inn, dtype=state_dtype or dtype, scale=0.05)
    if store in FLOATS:
        layer = nn.Linear(inn, out, bias, dtype=FLOATS[store])
        layer.weight = nn.Parameter(weight.to(FLOATS[store]), requires_grad=False)
    elif store == "int8":
        layer = Linear8bitLt(inn, out, bias, has_fp16_weights=False, threshold=6.0)
        layer.weight = Int8Params(weight, requires_grad=False, has_fp16_weights=False).to("cpu")
    else:
        layer = Linear4bit(inn, out, bias, compute_dtype=FLOATS[dtype])
        layer.weight = Params4bit(weight, requires_grad=False, blocksize=block, quant_type=store[:3],
                                  compress_statistics=store.endswith("nested")).to("cpu")
    if bias:
        layer.bias = nn.Parameter(noise.normal(out, dtype=dtype))
    return layer


def state_of(name, layer):
    """A layer's weight under its names in a checkpoint."""
    weight = layer.weight
    if isinstance(weight, Params4bit):
        return {name: weight.data} | {f"{name}.{k}": v for k, v in weight.quant_state.as_dict(packed=True).items()}
    if isinstance(weight, Int8Params):
        return {name: weight.data.clone(), f"{name}.SCB": weight.SCB.clone()}
    return {name: weight.data}


def adapt(noise, holder, adapter, rank=4, alpha=8, rslora=False, dora=False):
    """Adapters on every layer of the holder; random, since PEFT begins with B = 0. Returns them by the layer's name."""
    names = [n for n, _ in holder.named_children()]
    settings = LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rslora, use_dora=dora, target_modules=names, lora_dropout=0.0)
    inject_adapter_in_model(settings, holder)
    found = {}
    for name in names:
        layer = getattr(holder, name)
        layer.lora_A.default.weight.data = noise.normal(rank, layer.in_features, dtype=adapter, scale=0.1)
        layer.lora_B.default.weight.data = noise.normal(layer.out_features, rank, dtype=adapter, scale=0.1)
        found[name] = {"lora_a": layer.lora_A.default.weight, "lora_b": layer.lora_B.default.weight}
        if dora:
            magnitude = layer.lora_magnitude_vector.default.weight
            magnitude.data = (magnitude.data.float() * (1 + 0.2 * noise.normal(*magnitude.shape))).to(FLOATS[adapter])
            found[name]["magnitude"] = magnitude
    return found, getattr(holder, names[0]).scaling["default"]


PEFT = [  # base, compute dtype, adapter's dtype, shape of x before the features, more
    ("nf4-nested", "f32", "f32", (5,), {}),
    ("nf4-nested", "bf16", "f32", (2, 3), {"rslora": True}),
    ("nf4-nested", "f16", "f32", (5,), {"bias": True}),
    ("nf4-nested", "bf16", "bf16", (5,), {}),
    ("nf4", "f32", "f32", (2, 3), {"bias": True, "rslora": True}),
    ("nf4", "bf16", "f32", (1,), {}),
    ("fp4", "f32", "bf16", (5,), {}),
    ("fp4-nested", "f16", "f16", (2, 3), {}),
    ("int8", "f16", "f32", (5,), {}),
    ("int8", "bf16", "f32", (2, 3), {"bias": True}),
    ("f32", "f32", "f32", (2, 3), {"bias": True}),
    ("f16", "f16", "f32", (5,), {"rslora": True}),
    ("bf16", "bf16", "f32", (2, 3), {}),
    ("nf4-nested", "f32", "f32", (5,), {"dora": True}),
    ("nf4-nested", "bf16", "f32", (2, 3), {"dora": True, "bias": True}),
    ("nf4", "f16", "f32", (5,), {"dora": True}),
    ("fp4", "f32", "f32", (2, 3), {"dora": True, "rslora": True}),
    ("int8", "f16", "f32", (5,), {"dora": True}),
    ("f32", "f32", "f32", (5,), {"dora": True, "bias": True}),
    ("bf16", "bf16", "f32", (5,), {"dora": True}),
]


def peft_linear(noise, store, dtype, adapter, shape, rslora=False, bias=False, dora=False):
    inn, out = 64, 24
    holder = Holder(store, proj=layer_of(noise, out, inn, store, dtype, bias))
    base = holder.proj
    weight = state_of("w", base)
    adapters, scale = adapt(noise, holder, adapter, rslora=rslora, dora=dora)
    holder.train(store != "int8")  # on the CPU a training Linear8bitLt leaves x unquantised; in eval mode it is LLM.int8
    x, dy = leaf(noise.normal(*shape, inn, dtype=dtype)), noise.normal(*shape, out, dtype=dtype)
    if base.bias is not None:
        base.bias.requires_grad_(True)
    y = holder.proj(x)
    y.backward(dy)

    made = Golden("linear", {"dtype": dtype, "scale": scale}, weight | adapters["proj"] | {"x": x, "dy": dy})
    # Upstream rounds the base product, the adapter's, their scaled product and the sum; with DoRA the quotient, its
    # difference from 1 and two products more. dx has the two paths and their sum.
    # Adapters in 16 bits: upstream rounds x, x·Aᵀ, dy·B and the gradients to their dtype.
    narrow = dtype if adapter == "f32" else adapter
    made.expect("y", y, rel(narrow, 8 if dora else 5))
    made.expect("dx", x.grad, rel(narrow, 8 if dora else 5))
    for name, parameter in adapters["proj"].items():
        made.expect(f"d{name}", parameter.grad, rel(narrow, 8 if dora else 5), "f32")
    if dora:
        # Its gradient is a sum of dy·y/magnitude over tokens with either sign: the errors of y stay, the sum shrinks.
        made.bounds["dmagnitude"] = rel(dtype, 12)
    if base.bias is not None:
        made.tensors["b"] = base.bias
        made.expect("db", base.bias.grad, rel(dtype, 3), "f32")  # upstream sums in the bias's dtype
    return made


for store, dtype, adapter, shape, more in PEFT:
    words = ["dora" if more.get("dora") else "lora", store, "x", dtype, "adapter", adapter] + [k for k in ("rslora", "bias") if more.get(k)]
    golden("peft-" + "-".join(words) + f"-{len(shape) + 1}d", store=store, dtype=dtype, adapter=adapter, shape=shape,
           **more)(peft_linear)


@golden("torch-linear-trained-f32", dtype="f32")
@golden("torch-linear-trained-bf16", dtype="bf16")
@golden("torch-linear-trained-f16", dtype="f16")
def trained_linear(noise, dtype):
    inn, out = 40, 24
    layer = layer_of(noise, out, inn, dtype, dtype, bias=True).requires_grad_(True)
    x, dy = leaf(noise.normal(3, 7, inn, dtype=dtype)), noise.normal(3, 7, out, dtype=dtype)
    y = layer(x)
    y.backward(dy)
    made = Golden("linear", {"dtype": dtype, "train_w": True}, {"x": x, "dy": dy, "w": layer.weight, "b": layer.bias})
    for name, value in (("y", y), ("dx", x.grad)):
        made.expect(name, value, rel(dtype, 3))
    made.expect("dw", layer.weight.grad, rel(dtype, 2), "f32")
    made.expect("db", layer.bias.grad, rel(dtype, 3), "f32")
    return made


@golden("llama-mlp-trained-f32", dtype="f32")
@golden("llama-mlp-trained-bf16", dtype="bf16")
def trained_mlp(noise, dtype):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP
    hidden, between = 32, 56
    block = LlamaMLP(LlamaConfig(hidden_size=hidden, intermediate_size=between, mlp_bias=True)).to(FLOATS[dtype])
    parts = {"gate": block.gate_proj, "up": block.up_proj, "down": block.down_proj}
    for layer in parts.values():
        layer.weight.data = noise.normal(*layer.weight.shape, dtype=dtype, scale=0.2)
        layer.bias.data = noise.normal(*layer.bias.shape, dtype=dtype)
    x, dy = leaf(noise.normal(2, 5, hidden, dtype=dtype)), noise.normal(2, 5, hidden, dtype=dtype)
    y = block(x)
    y.backward(dy)
    made = Golden("mlp", {"dtype": dtype, "act": "silu", "train_w": True}, {"x": x, "dy": dy})
    # Three layers, and the roundings of the activation and the product between them.
    made.expect("y", y, rel(dtype, 8))
    made.expect("dx", x.grad, rel(dtype, 10))
    for name, layer in parts.items():
        made.tensors |= {name: layer.weight, f"{name}.b": layer.bias}
        made.expect(f"d{name}", layer.weight.grad, rel(dtype, 8), "f32")
        made.expect(f"d{name}.b", layer.bias.grad, rel(dtype, 8), "f32")
    return made


@golden("bnb-matmul4bit-nf4-block64-f32", kind="nf4", nested=True, block=64, dtype="f32", state_dtype="f32")
@golden("bnb-matmul4bit-nf4-block128-bf16", kind="nf4", nested=False, block=128, dtype="bf16", state_dtype="bf16")
@golden("bnb-matmul4bit-fp4-block128-f32", kind="fp4", nested=True, block=128, dtype="f32", state_dtype="f32")
@golden("bnb-matmul4bit-nf4-block4096-f16", kind="nf4", nested=False, block=4096, dtype="f16", state_dtype="f16")
@golden("bnb-matmul4bit-nf4-block4096-nested-f32", kind="nf4", nested=True, block=4096, dtype="f32", state_dtype="f32")
@golden("bnb-matmul4bit-state-bf16-x-f32", kind="nf4", nested=True, block=64, dtype="f32", state_dtype="bf16")
@golden("bnb-matmul4bit-state-f32-x-bf16", kind="nf4", nested=True, block=64, dtype="bf16", state_dtype="f32")
def matmul(noise, kind, nested, block, dtype, state_dtype):
    inn, out = 128, 64
    packed, state = bnb.quantize_4bit(noise.normal(out, inn, dtype=state_dtype, scale=0.05), blocksize=block, quant_type=kind,
                                      compress_statistics=nested)
    x, bias, dy = leaf(noise.normal(5, inn, dtype=dtype)), leaf(noise.normal(out, dtype=dtype)), noise.normal(5, out, dtype=dtype)
    y = matmul_4bit(x, packed, bias=bias, quant_state=state)
    y.backward(dy)
    made = Golden("linear", {"dtype": dtype}, {"x": x, "b": bias, "dy": dy, "w": packed} |
                  {f"w.{k}": v for k, v in state.as_dict(packed=True).items()})
    made.expect("y", y, rel(dtype, 3))
    # Backward decodes W into the dtype that the state records, and only then into the compute dtype: another rounding of W.
    made.expect("dx", x.grad, rel(dtype, 3) if dtype != "f32" or state_dtype == "f32" else rel(state_dtype, 2))
    made.expect("db", bias.grad, rel(dtype, 3), "f32")
    return made


@golden("bnb-linear8bit-outliers-f16", dtype="f16", shape=(9,))
@golden("bnb-linear8bit-outliers-3d-f16", dtype="f16", shape=(3, 3))
@golden("bnb-linear8bit-outliers-bf16", dtype="bf16", shape=(9,))
@golden("bnb-linear8bit-outliers-f32", dtype="f32", shape=(9,))
@golden("bnb-linear8bit-one-row-f16", dtype="f16", shape=(1,))
@golden("bnb-linear8bit-no-outliers-f16", dtype="f16", shape=(2, 4), outliers=False)
@golden("bnb-linear8bit-training-bf16", dtype="bf16", shape=(9,), training=True)
def eight_bit(noise, dtype, shape, outliers=True, training=False):
    inn, out = 96, 40
    codes = noise.integers(-128, 128, 32, 64).to(torch.int8)
    if not torch.equal(torch._int_mm(codes, codes.t()).double(), codes.double() @ codes.double().t()):
        raise RuntimeError("torch._int_mm saturates here (AVX-512 without VNNI): no golden values of 8-bit layers")
    layer = layer_of(noise, out, inn, "int8", "f16", bias=True).train(training)
    layer.bias.data = layer.bias.data.to(FLOATS[dtype])
    x, dy = noise.normal(*shape, inn, dtype=dtype), noise.normal(*shape, out, dtype=dtype)
    x = x.clamp(-5, 5)
    if outliers:
        x.view(-1, inn)[:, 17] *= 12  # a column that mostly reaches the threshold, with values below it too
        x.view(-1, inn)[0, 40] = -25
        if x.numel() > inn:
            x.view(-1, inn)[-1, 17] = 5.5  # below the threshold: it counts for its row's scale, though its column is taken out
    made = Golden("linear", {"dtype": dtype, "threshold": 6.0}, state_of("w", layer) | {"x": x, "dy": dy, "b": layer.bias})
    flat = leaf(x.view(-1, inn))  # upstream's CPU operators are wrong for rank 3
    y = layer(flat)
    y.backward(dy.view(-1, out))
    if training:
        bound = {"rel": EIGHT_BITS}  # upstream decodes the weight and leaves x as it is
    elif dtype == "f32":
        bound = {"rel": 4e-3}  # upstream rounds x to f16 first, which turns over one code in about thirty by one
    else:
        bound = rel(dtype, 5)  # the same integers; the int8 part is rounded before outliers and bias are added
    made.expect("y", y.view(*shape, out), bound)
    made.expect("dx", flat.grad.view(x.shape), rel(dtype, 3))
    made.expect("db", layer.bias.grad, rel(dtype, 3), "f32")
    return made


@golden("peft-group-qkv-bf16", dtype="bf16")
@golden("peft-group-qkv-f32", dtype="f32")
def group(noise, dtype):
    inn, outs = 64, {"q": 40, "k": 16, "v": 16}
    holder = Holder("nf4-nested", **{n: layer_of(noise, o, inn, "nf4-nested", dtype) for n, o in outs.items()})
    tensors = {}
    for i, name in enumerate(outs):
        tensors |= state_of(f"w{i}", getattr(holder, name))
    adapters, scale = adapt(noise, holder, "f32")
    x = leaf(noise.normal(2, 3, inn, dtype=dtype))
    made = Golden("linear_group", {"dtype": dtype, "scale": scale}, tensors | {"x": x})
    for i, (name, out) in enumerate(outs.items()):
        dy = noise.normal(2, 3, out, dtype=dtype)
        y = getattr(holder, name)(x)
        y.backward(dy)  # x.grad adds up, rounded each time
        made.tensors |= {f"dy{i}": dy, f"lora_a{i}": adapters[name]["lora_a"], f"lora_b{i}": adapters[name]["lora_b"]}
        made.expect(f"y{i}", y, rel(dtype, 5))
        for part in ("lora_a", "lora_b"):
            made.expect(f"d{part}{i}", adapters[name][part].grad, rel(dtype, 5), "f32")
    made.expect("dx", x.grad, rel(dtype, 8))
    return made


@golden("llama-mlp-nf4-f32", kind="llama", store="nf4-nested", dtype="f32")
@golden("llama-mlp-nf4-bf16", kind="llama", store="nf4-nested", dtype="bf16")
@golden("llama-mlp-f16", kind="llama", store="f16", dtype="f16")
@golden("gemma-mlp-nf4-f32", kind="gemma", store="nf4", dtype="f32")
@golden("gemma-mlp-bf16", kind="gemma", store="bf16", dtype="bf16")
@golden("llama-mlp-exact-gelu-f32", kind="llama", store="f32", dtype="f32", act="gelu")
def gated_mlp(noise, kind, store, dtype, act=None):
    from transformers import GemmaConfig, LlamaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP
    from transformers.models.llama.modeling_llama import LlamaMLP
    hidden, between = (32, 80) if store in FLOATS else (64, 128)
    sizes = {"hidden_size": hidden, "intermediate_size": between}
    block = GemmaMLP(GemmaConfig(**sizes, hidden_activation="gelu_pytorch_tanh")) if kind == "gemma" else LlamaMLP(
        LlamaConfig(**sizes, hidden_act=act or "silu"))
    parts = {"gate": (between, hidden), "up": (between, hidden), "down": (hidden, between)}
    holder = Holder(store, **{n: layer_of(noise, *size, store, dtype) for n, size in parts.items()})
    tensors = {}
    for name in parts:
        tensors |= state_of(name, getattr(holder, name))
    adapters, scale = adapt(noise, holder, "f32")
    block.gate_proj, block.up_proj, block.down_proj = holder.gate, holder.up, holder.down
    x, dy = leaf(noise.normal(2, 3, hidden, dtype=dtype)), noise.normal(2, 3, hidden, dtype=dtype)
    y = block(x)
    y.backward(dy)
    made = Golden("mlp", {"dtype": dtype, "scale": scale, "act": "gelu_tanh" if kind == "gemma" else act or "silu"},
                  tensors | {"x": x, "dy": dy})
    # Three layers of five roundings each, and those of the activation and the product between them.
    made.expect("y", y, rel(dtype, 10))
    made.expect("dx", x.grad, rel(dtype, 12))
    for name in parts:
        for part in ("lora_a", "lora_b"):
            made.tensors[f"{name}.{part}"] = adapters[name][part]
            made.expect(f"d{name}.{part}", adapters[name][part].grad, rel(dtype, 12), "f32")
    return made


@golden("bnb-dequantize-nf4-nested-bf16", kind="nf4", dtype="bf16", nested=True, transpose=False)
@golden("bnb-dequantize-fp4-f16-transposed", kind="fp4", dtype="f16", nested=False, transpose=True)
@golden("bnb-dequantize-nf4-f32", kind="nf4", dtype="f32", nested=False, transpose=False)
def decode(noise, kind, dtype, nested, transpose):
    packed, state = bnb.quantize_4bit(noise.normal(24, 64, dtype=dtype), blocksize=64, quant_type=kind, compress_statistics=nested)
    made = Golden("dequantize", {"dtype": dtype, "transpose": transpose},
                  {"w": packed} | {f"w.{k}": v for k, v in state.as_dict(packed=True).items()})
    y = bnb.dequantize_4bit(packed, state)
    made.expect("y", y.t().contiguous() if transpose else y, {"abs": 0.0})  # bit for bit
    return made
