"""cross_entropy: the head and transformers' loss over it."""

import torch
import torch.nn.functional as F
from transformers.loss.loss_utils import ForCausalLMLoss

from .golden import UNIT, Golden, golden, leaf


@golden("causal-lm-loss-f32", dtype="f32")
@golden("causal-lm-loss-bf16", dtype="bf16")
@golden("causal-lm-loss-f16", dtype="f16")
@golden("causal-lm-loss-softcap-f32", dtype="f32", softcap=5.0)
@golden("causal-lm-loss-softcap-bf16", dtype="bf16", softcap=30.0)
@golden("causal-lm-loss-items-f32", dtype="f32", items=20)
@golden("causal-lm-loss-train-head-f32", dtype="f32", train=True)
@golden("causal-lm-loss-train-head-bf16", dtype="bf16", train=True, softcap=30.0)
@golden("torch-cross-entropy-smoothing-f32", dtype="f32", smoothing=0.1)
@golden("torch-cross-entropy-per-token-f32", dtype="f32", reduction="none")
def loss(noise, dtype, softcap=0.0, smoothing=0.0, reduction="mean", items=None, train=False):
    tokens, features, vocabulary = 11, 32, 67
    x, w = leaf(noise.normal(tokens, features, dtype=dtype)), leaf(noise.normal(vocabulary, features, dtype=dtype, scale=0.3))
    labels = noise.integers(0, vocabulary, tokens)
    labels[::4] = -100
    logits = F.linear(x, w)
    if softcap:  # Gemma2ForCausalLM.forward
        logits = torch.tanh(logits / softcap) * softcap
    tensors = {"x": x, "w": w, "labels": labels}
    attrs = {"dtype": dtype, "softcap": softcap, "smoothing": smoothing, "reduction": reduction}
    if train:
        attrs["train_w"] = True
    if reduction == "none" or smoothing:
        value = F.cross_entropy(logits.float(), labels.long(), reduction=reduction, label_smoothing=smoothing)
        tensors["dloss"] = noise.normal(tokens) if reduction == "none" else noise.normal(1)
        (value * tensors["dloss"]).sum().backward()
    elif items:  # the sum over trained tokens, divided by a count that comes from outside: 1/items for each token's loss
        attrs["reduction"], tensors["dloss"] = "none", torch.full((tokens,), 1 / items)
        ForCausalLMLoss(logits, None, vocabulary, num_items_in_batch=items, shift_labels=labels.long()).backward()
        value = F.cross_entropy(logits.float(), labels.long(), reduction="none")
    else:
        tensors["dloss"] = torch.ones(1)
        value = ForCausalLMLoss(logits, None, vocabulary, shift_labels=labels.long())
        value.backward()
    logprobs = torch.log_softmax(logits.detach().float(), -1).gather(1, labels.long().clamp_min(0)[:, None])[:, 0]

    made = Golden("cross_entropy", attrs, tensors)
    # In 16 bits upstream rounds the logits (with a cap three times more), ours does not: an error u |logit| in a logit is one
    # of u |logit| relative in a probability, and absolute in a log-probability.
    wide = 2 * logits.detach().float().abs().max().item()
    bound = {"rel": UNIT[dtype] * (1 if dtype == "f32" else 4 + wide)}
    made.expect("loss", value.reshape(-1), bound)
    made.expect("logprobs", logprobs.masked_fill(labels < 0, 0), bound)
    made.expect("dx", x.grad, bound)
    if train:
        made.expect("dw", w.grad, bound, "f32")
    return made
