"""accelerate on the families of transformers whose attention and MLP differ: groups, and gradients."""

from __future__ import annotations

from typing import Any

import nibble_torch
import pytest
import torch
import transformers
from tiny_models import (
    adapt,
    counted,
    distance,
    fourbit,
    step,
    stock_bitsandbytes,  # noqa: F401
    worst,
)
from torch import nn

COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
QKV, MLP = "q_proj, k_proj, v_proj", "gate_proj, up_proj"

# family: what its configuration has beside COMMON, its groups
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "qwen2": ({}, {QKV: 2, MLP: 2}),
    "mistral": ({}, {QKV: 2, MLP: 2}),
    "gemma2": ({}, {QKV: 2, MLP: 2}),
    "gemma3_text": ({"layer_types": ["sliding_attention", "full_attention"]}, {QKV: 2, MLP: 2}),
    "phi": ({}, {QKV: 2}),
    "phi3": ({}, {}),
    "gpt_neox": ({}, {}),
    "gpt_oss": ({"num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]}, {QKV: 2}),
    "qwen2_moe": (EXPERTS | {"shared_expert_intermediate_size": 64}, {QKV: 2, MLP: 2}),
    "qwen3_next": (
        EXPERTS
        | {
            "shared_expert_intermediate_size": 64,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
        {QKV: 1, MLP: 2, "in_proj_qkvz, in_proj_ba": 1},
    ),
    "deepseek_v3": (
        {
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "num_key_value_heads": 4,
        },
        {"q_a_proj, kv_a_proj_with_mqa": 2, MLP: 2},
    ),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, {QKV: 1, "w1, w3": 2}),
    "bert": ({}, {"query, key, value": 2}),
    # its attention serves as cross attention, too
    "bart": (
        {
            "d_model": 64,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
        },
        {},
    ),
}
RATES = (
    "attention_dropout",
    "dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "activation_dropout",
)


def packed(family: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    classes = {"bert": transformers.AutoModelForMaskedLM, "bart": transformers.AutoModelForSeq2SeqLM}
    config = transformers.AutoConfig.for_model(family, **(COMMON | options))
    model: Any = classes.get(family, transformers.AutoModelForCausalLM).from_config(config).float()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and name not in ("lm_head", "embed_out", "decoder"):
                block = 64 if child.in_features % 64 == 0 else 32
                made = fourbit(child, torch.float32, True, "nf4", block, torch.uint8)
                made.bias = child.bias
                setattr(parent, name, made.to("cpu"))
        for rate in RATES:
            if isinstance(getattr(parent, rate, None), float):
                setattr(parent, rate, 0.0)
        if isinstance(parent, nn.Dropout):
            parent.p = 0.0
    model.requires_grad_(False)
    model.is_loaded_in_4bit = True
    return model.train()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_family(family: str) -> None:
    options, groups = FAMILIES[family]
    model = adapt(packed(family, options))
    loss, scores, gradients = step(model)
    report = nibble_torch.accelerate(model)
    assert report.groups == groups
    with counted() as calls:
        fused_loss, fused_scores, fused_gradients = step(model)
    assert calls.get("linear_group", 0) == sum(groups.values())
    members = sum(count * (name.count(",") + 1) for name, count in groups.items())
    assert calls["linear"] == report.fused_count - members
    assert nibble_torch.accelerate(model) == report  # no group was dissolved
    assert distance(fused_loss, loss) < 2e-6 and distance(fused_scores, scores) < 2e-6
    assert worst(fused_gradients, gradients) < 2e-6
