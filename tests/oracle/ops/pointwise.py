"""rmsnorm, layernorm, rope and embedding: transformers' and torch's modules."""

import torch
from torch import nn
from transformers import LlamaConfig, logging
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, Gemma2TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from .golden import FLOATS, Golden, golden, leaf, rel

logging.set_verbosity_error()  # it doubts factors that are not the quotient of two lengths


@golden("llama-rmsnorm-f32", kind="llama", dtype="f32", shape=(2, 5, 64))
@golden("llama-rmsnorm-bf16", kind="llama", dtype="bf16", shape=(2, 5, 100))
@golden("llama-rmsnorm-f16-large", kind="llama", dtype="f16", shape=(6, 64), scale=3000.0)
@golden("llama-rmsnorm-residual-bf16", kind="llama", dtype="bf16", shape=(7, 64), residual=True)
@golden("gemma2-rmsnorm-f32", kind="gemma2", dtype="f32", shape=(5, 96))
@golden("gemma2-rmsnorm-bf16", kind="gemma2", dtype="bf16", shape=(2, 4, 96))
@golden("gemma2-rmsnorm-f16", kind="gemma2", dtype="f16", shape=(5, 72))
@golden("gemma2-rmsnorm-residual-f32", kind="gemma2", dtype="f32", shape=(5, 64), residual=True)
def rmsnorm(noise, kind, dtype, shape, scale=2.0, residual=False):
    norm = (LlamaRMSNorm if kind == "llama" else Gemma2RMSNorm)(shape[-1], eps=1e-6)
    norm.weight = nn.Parameter(noise.normal(shape[-1], dtype=dtype, scale=0.3) + (kind == "llama"))
    x, dy = noise.normal(*shape, dtype=dtype, scale=scale), noise.normal(*shape, dtype=dtype)
    gemma = kind == "gemma2"
    made = Golden("rmsnorm", {"dtype": dtype, "eps": 1e-6, "offset": int(gemma), "round": "after_weight" if gemma else "before_weight"},
                  {"x": x, "w": norm.weight, "dy": dy})
    total = leaf(x)
    if residual:  # as a decoder layer has it: the sum is rounded, goes on, and is normalised; both its gradients arrive
        made.tensors["residual"] = noise.normal(*shape, dtype=dtype, scale=scale)
        made.tensors["dresidual"] = noise.normal(*shape, dtype=dtype)
        total = leaf(x + made.tensors["residual"])
        made.expect("residual_out", total, {"abs": 0.0})
    y = norm(total)
    y.backward(dy)
    # The same roundings as ours forward: the normalised value (before the weight, for Llama) and the product.
    made.expect("y", y, rel(dtype, 2))
    gradient = total.grad + made.tensors["dresidual"] if residual else total.grad
    made.expect("dx", gradient, rel(dtype, 4))
    # A sum over tokens whose terms and, in 16 bits, whose result upstream rounds.
    made.expect("dw", norm.weight.grad, rel(dtype, 4), "f32")
    return made


@golden("torch-layernorm-f32", dtype="f32", shape=(2, 4, 96))
@golden("torch-layernorm-f16", dtype="f16", shape=(9, 50))
@golden("torch-layernorm-bf16", dtype="bf16", shape=(9, 64))
def layernorm(noise, dtype, shape):
    norm = nn.LayerNorm(shape[-1], eps=1e-5)
    norm.weight = nn.Parameter(noise.normal(shape[-1], dtype=dtype))
    norm.bias = nn.Parameter(noise.normal(shape[-1], dtype=dtype))
    x, dy = leaf(noise.normal(*shape, dtype=dtype, scale=2.0) + 1), noise.normal(*shape, dtype=dtype)
    y = norm(x)
    y.backward(dy)
    made = Golden("layernorm", {"dtype": dtype, "eps": 1e-5}, {"x": x, "w": norm.weight, "b": norm.bias, "dy": dy})
    made.expect("y", y, rel(dtype, 2))
    made.expect("dx", x.grad, rel(dtype, 3))
    made.expect("dw", norm.weight.grad, rel(dtype, 4), "f32")
    made.expect("db", norm.bias.grad, rel(dtype, 4), "f32")
    return made


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}  # gpt-oss
NEAR, FAR = [0, 1, 2, 0, 1, 63, 511, 2047], [1, 4095, 8192, 32767, 65536, 99999, 100000]


@golden("rope-default-f32", scaling=None, theta=1e4, dtype="f32", positions=NEAR)
@golden("rope-default-far-f32", scaling=None, theta=5e5, dtype="f32", positions=FAR)
@golden("rope-default-far-bf16", scaling=None, theta=1e6, dtype="bf16", positions=FAR)
@golden("rope-default-partial-f32", scaling=None, theta=1e4, dtype="f32", positions=NEAR, rotary=16)
@golden("rope-default-partial-f16", scaling=None, theta=1e4, dtype="f16", positions=NEAR, rotary=24)
@golden("rope-linear-f32", scaling={"rope_type": "linear", "factor": 4.0}, theta=1e4, dtype="f32", positions=FAR)
@golden("rope-linear-f16", scaling={"rope_type": "linear", "factor": 2.5}, theta=1e6, dtype="f16", positions=NEAR)
@golden("rope-llama3-f32", scaling=LLAMA3, theta=5e5, dtype="f32", positions=NEAR)
@golden("rope-llama3-far-f32", scaling=LLAMA3, theta=5e5, dtype="f32", positions=FAR)
@golden("rope-llama3-far-bf16", scaling=LLAMA3, theta=5e5, dtype="bf16", positions=FAR)
@golden("rope-yarn-gpt-oss-f32", scaling=YARN, theta=1.5e5, dtype="f32", positions=NEAR)
@golden("rope-yarn-gpt-oss-far-f32", scaling=YARN, theta=1.5e5, dtype="f32", positions=FAR)
@golden("rope-yarn-gpt-oss-bf16", scaling=YARN, theta=1.5e5, dtype="bf16", positions=FAR)
@golden("rope-yarn-defaults-f32", scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, theta=1e4,
        dtype="f32", positions=NEAR)
@golden("rope-yarn-attention-factor-f32", scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "attention_factor": 0.8}, theta=1e4, dtype="f32", positions=NEAR)
@golden("rope-yarn-mscale-f32", scaling={"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
        "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}, theta=1e4, dtype="f32", positions=FAR)
def rope(noise, scaling, theta, dtype, positions, rotary=None):
    heads, dim, most = 2, 32, 131072
    rotary = rotary or dim  # features beyond it pass, as in transformers' models with a partial_rotary_factor
    parameters = dict(scaling or {"rope_type": "default"}, rope_theta=theta)
    embedding = LlamaRotaryEmbedding(LlamaConfig(hidden_size=rotary * heads, num_attention_heads=heads, head_dim=rotary,
                                                 max_position_embeddings=most, rope_parameters=parameters))
    at = torch.tensor(positions, dtype=torch.int32)
    x, dy = leaf(noise.normal(len(at), heads, dim, dtype=dtype)), noise.normal(len(at), heads, dim, dtype=dtype)
    cos, sin = embedding(x, at[None])
    turned, _ = apply_rotary_pos_emb(x[None, ..., :rotary], x[None, ..., :rotary], cos, sin, unsqueeze_dim=2)
    y = torch.cat([turned[0], x[..., rotary:]], -1)
    y.backward(dy)
    made = Golden("rope", {"dtype": dtype, "theta": theta, "scaling": scaling, "rotary_dim": rotary, "max_position_embeddings": most},
                  {"x": x, "positions": at, "dy": dy})
    # Upstream's angle is a product in f32 of frequencies that are off by an ulp or two themselves: three roundings of an angle that
    # is the position for the first frequency, where the product is exact, and far less for most others: a tenth in the mean.
    # In 16 bits, cosine, sine, two products and a sum are rounded.
    angle = 0.3 * 2.0**-24 * max(positions)
    bound = {"rel": angle + (1e-6 if dtype == "f32" else rel(dtype, 4)["rel"])}
    made.expect("y", y, bound)
    made.expect("dx", x.grad, bound)
    return made


@golden("torch-embedding-f32", dtype="f32", scaled=False)
@golden("torch-embedding-bf16", dtype="bf16", scaled=False)
@golden("gemma2-embedding-f32", dtype="f32", scaled=True)
@golden("gemma2-embedding-bf16", dtype="bf16", scaled=True)
@golden("torch-embedding-padding-f32", dtype="f32", scaled=False, padded=True)
def embedding(noise, dtype, scaled, padded=False):
    rows, features = 23, 24
    weight, ids = noise.normal(rows, features, dtype=dtype), noise.integers(0, rows, 2, 6)
    ids[1, :3] = ids[0, 0]  # rows that are read several times
    padding = ids[0, 0].item() if padded else None
    layer = (Gemma2TextScaledWordEmbedding(rows, features, padding, embed_scale=features**0.5) if scaled
             else nn.Embedding(rows, features, padding))
    layer.weight = nn.Parameter(weight)
    dy = noise.normal(2, 6, features, dtype=dtype)
    y = layer(ids)
    y.backward(dy)
    # The scale has the weight's dtype upstream: rounded before it multiplies.
    scale = torch.tensor(features**0.5).to(FLOATS[dtype]).item() if scaled else 1.0
    attrs = {"dtype": dtype, "scale": scale} | ({"padding": padding} if padded else {})
    made = Golden("embedding", attrs, {"ids": ids, "w": weight, "dy": dy})
    made.expect("y", y, {"abs": 0.0})  # copies, or one product and one rounding
    made.expect("dw", layer.weight.grad, rel(dtype, 4), "f32")  # upstream adds up in the weight's dtype
    return made
