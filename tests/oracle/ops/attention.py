"""attention and attention_decode: the eager attention of transformers' models, with the masks that transformers makes."""

from types import SimpleNamespace

import torch
from torch import nn
from transformers.masking_utils import (and_masks, causal_mask_function, eager_mask, find_packed_sequence_indices,
                                        packed_sequence_mask_function, sliding_window_causal_mask_function)
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama

from .golden import FLOATS, UNIT, Golden, golden, leaf

MODELS = {"llama": modeling_llama, "gemma2": modeling_gemma2, "gpt-oss": modeling_gpt_oss}


def bound(dtype, roundings, largest):
    """Scores, in 16 bits, are rounded before the softmax, each of up to four steps (product, scale, cap, mask): an error of
    u |score| in a score is one of u |score| relative in a probability. `largest` is the largest score."""
    return {"rel": UNIT[dtype] * (1 if dtype == "f32" else roundings + 2 * largest)}


def eager(model, q, k, v, mask, scale, softcap, sinks):
    """q, k, v [T, H, D] through a model's eager attention: [T, H, D]."""
    module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], sinks=sinks, training=False, head_dim=q.shape[2])
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    more = {"softcap": softcap} if model == "gemma2" else {}
    out, _ = MODELS[model].eager_attention_forward(module, q, k, v, mask, scaling=scale, dropout=0.0, **more)
    return out[0]


@golden("llama-attention-f32", model="llama", dtype="f32", lengths=[13])
@golden("llama-attention-packed-f32", model="llama", dtype="f32", lengths=[5, 1, 8])
@golden("llama-attention-packed-bf16", model="llama", dtype="bf16", lengths=[7, 1, 8])
@golden("llama-attention-one-kv-head-f16", model="llama", dtype="f16", lengths=[9, 8], heads=(4, 1))
@golden("llama-attention-window-packed-f32", model="llama", dtype="f32", lengths=[10, 5], window=4)
@golden("gemma2-attention-softcap-f32", model="gemma2", dtype="f32", lengths=[6, 7], softcap=5.0)
@golden("gemma2-attention-softcap-window-bf16", model="gemma2", dtype="bf16", lengths=[14], softcap=50.0, window=6)
@golden("gemma2-attention-softcap-window-f32", model="gemma2", dtype="f32", lengths=[12], softcap=5.0, window=3)
@golden("gpt-oss-attention-sinks-f32", model="gpt-oss", dtype="f32", lengths=[8, 4])
@golden("gpt-oss-attention-sinks-window-bf16", model="gpt-oss", dtype="bf16", lengths=[9, 5], window=5)
@golden("gpt-oss-attention-sinks-f16", model="gpt-oss", dtype="f16", lengths=[14])
def attention(noise, model, dtype, lengths, heads=None, window=0, softcap=0.0):
    total, dim, heads = sum(lengths), 32, heads or ((2, 1) if dtype == "f32" else (4, 2))
    q, dout = (noise.normal(total, heads[0], dim, dtype=dtype) for _ in range(2))
    k, v = (noise.normal(total, heads[1], dim, dtype=dtype) for _ in range(2))
    q, k, v = leaf(q), leaf(k), leaf(v)
    sinks = nn.Parameter(noise.normal(heads[0], dtype=dtype)) if model == "gpt-oss" else None
    rule = sliding_window_causal_mask_function(window) if window else causal_mask_function
    packed = find_packed_sequence_indices(torch.cat([torch.arange(n) for n in lengths])[None])
    if packed is not None:
        rule = and_masks(rule, packed_sequence_mask_function(packed))
    mask = eager_mask(1, total, total, mask_function=rule, dtype=FLOATS[dtype])
    scale = dim**-0.5
    out = eager(model, q, k, v, mask, scale, softcap or None, sinks)
    out.backward(dout)
    largest = (torch.einsum("qhd,khd->hqk", q.float(), k.float().repeat_interleave(heads[0] // heads[1], 1)) * scale).abs().max().item()

    ends = torch.tensor([0] + lengths).cumsum(0).int()
    made = Golden("attention", {"dtype": dtype, "scale": scale, "causal": True, "window": window, "softcap": softcap},
                  {"q": q, "k": k, "v": v, "cu_seqlens": ends, "dout": dout})
    made.expect("out", out, bound(dtype, 3, largest))
    # Backward rounds dP, dS and what follows from them once more.
    for name, tensor in (("dq", q), ("dk", k), ("dv", v)):
        made.expect(name, tensor.grad, bound(dtype, 6, largest))
    if sinks is not None:
        made.tensors["sinks"] = sinks
        # A sum of many terms of either sign, which upstream takes in the dtype of the sinks.
        made.expect("dsinks", sinks.grad, bound(dtype, 12, largest), "f32")
    return made


@golden("llama-decode-f32", model="llama", dtype="f32", window=0)
@golden("llama-decode-window-bf16", model="llama", dtype="bf16", window=5)
@golden("gpt-oss-decode-sinks-f16", model="gpt-oss", dtype="f16", window=0)
def decode(noise, model, dtype, window):
    lengths, size, heads, dim = torch.tensor([1, 12, 7], dtype=torch.int32), 12, (4, 2), 32
    q = noise.normal(3, heads[0], dim, dtype=dtype)
    k, v = (noise.normal(3, size, heads[1], dim, dtype=dtype) for _ in range(2))
    sinks = noise.normal(heads[0], dtype=dtype) if model == "gpt-oss" else None
    rows, largest = [], 0.0
    for b, length in enumerate(lengths.tolist()):
        rule = sliding_window_causal_mask_function(window) if window else causal_mask_function
        mask = eager_mask(1, 1, length, q_offset=length - 1, mask_function=rule, dtype=FLOATS[dtype])
        rows.append(eager(model, q[b:b + 1], k[b, :length], v[b, :length], mask, dim**-0.5, None, sinks))
        largest = max(largest, (q[b].float() @ k[b, :length].float().flatten(0, 1).t()).abs().max().item() * dim**-0.5)
        k[b, length:] = v[b, length:] = float("nan")  # must not be read
    made = Golden("attention_decode", {"dtype": dtype, "scale": dim**-0.5, "causal": True, "window": window, "softcap": 0.0},
                  {"q": q, "k": k, "v": v, "lengths": lengths} | ({"sinks": sinks} if sinks is not None else {}))
    made.expect("out", torch.cat(rows), bound(dtype, 3, largest))
    return made
