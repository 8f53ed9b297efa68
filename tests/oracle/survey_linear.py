"""Which tensors of a checkpoint would transformers + bitsandbytes quantise? Ask them, for every architecture.

For each causal language model of transformers, and the multimodal and encoder-decoder ones, this builds a tiny
model, saves it with save_pretrained, which gives the names that the tensors of a real checkpoint have, and asks
transformers which modules it would replace by bitsandbytes layers when it loads that folder. Module names and
checkpoint names differ (experts are fused in memory, prefixes change), so every parameter is filled with a
number of its own before saving: the numbers in a saved tensor say which parameters it came from, whatever the
renaming, splitting or stacking was.

    python survey_linear.py                   all architectures: JSON lines on stdout, failures on stderr
    python survey_linear.py llama qwen3_moe   only these model types
    python survey_linear.py --load            really load each folder in 4 bits instead of asking the quantizer

One line per model and per setting of tie_word_embeddings:

    {"model_type": …, "architecture": …, "layers": …, "tied": …, "conv1d": …,
     "tensors": [[name, [d0, d1], verdict], …]}

verdict: "yes" one Linear4bit has exactly this tensor; "no" none has; "part" a Linear4bit has it together with
others, or has a part of it (the layer is fused or split while loading: the tensor cannot be stored quantised).
"""

import argparse
import copy
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from transformers import CONFIG_MAPPING, AutoConfig, BitsAndBytesConfig, initialization  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402
from transformers.quantizers.auto import AutoHfQuantizer  # noqa: E402
from transformers.utils import ContextManagers  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

WIDTH_DIVISOR = 16
DEPTH = 4
VOCABULARY = 96

# ---- tiny configurations ----
#
# The defaults of a configuration class are a real model's.  Widths are divided by one factor, so that every
# relation between them survives; depths, vocabularies and numbers of experts are cut.

WIDTHS = (
    "hidden_size intermediate_size head_dim moe_intermediate_size d_model v_head_dim kv_lora_rank "
    "q_lora_rank qk_rope_head_dim qk_nope_head_dim qk_head_dim projection_dim out_hidden_size "
    "encoder_ffn_dim decoder_ffn_dim linear_key_head_dim linear_value_head_dim "
    "shared_expert_intermediate_size ffn_dim index_head_dim n_embd n_inner d_kv d_ff mlp_dim embed_dim "
    "hidden_size_per_layer_input projector_hidden_size encoder_hidden_size vision_output_dim "
    "word_embed_proj_dim text_hidden_size linear_head_dim ffn_hidden_size laurel_rank "
    "shared_intermediate_size intermediate_size_mlp attention_hidden_size mamba_d_head mamba_d_state "
    "embedding_size swa_head_dim d_rel mamba_dt_rank kv_channels projector_input_dim projector_output_dim "
    "dense_intermediate_size input_size ssm_state_size mamba_head_dim moe_shared_expert_intermediate_size "
    "attention_head_dim image_text_hidden_size latent_channels resampler_head_dim patch_embed_hidden_size "
    "output_dim gated_norm_rank dim_head dim_ff dff o_lora_rank mamba_d_ssm backbone_hidden_size "
    "expert_ffn_hidden_size prompt_mid_dim lru_width attention_head_size feed_forward_size "
    "input_embedding_size output_embedding_size pronunciation_embed_dim shape_embed_dim emb_dim d_inner "
    "d_head embedding_dim mamba_headdim router_hidden_size alignment_intermediate_size "
    "position_embedding_size resampler_dim_head projection_intermediate_size image_token_embed_dim "
    "projection_hidden_size merged_hidden_size moe_hidden_size hidden_sizes vision_hidden_size "
    "post_conv_in_channels post_conv_out_channels post_conv_mid_channels decoder_hidden_size "
    "downsample_hidden_size share_expert_dim pooler_output_size hidden_size_global ext_pw_out_channel "
    "depthwise_separable_out_channel nemo_conv_channels output_channels hc_lowrank ple_embed_dim "
    "state_size time_step_rank codebook_dim rotary_dim adapter_rank expert_intermediate_size "
    "shared_expert_hidden_size axial_pos_embds_dim global_head_dim conf_hidden_size hidden_dim input_dim "
    "audio_hidden_size"
).split()
DEPTHS = (
    "num_hidden_layers n_layer n_layers num_layers depth encoder_layers decoder_layers num_blocks layers "
    "num_decoder_layers num_encoder_layers conf_num_hidden_layers num_layers_per_stack"
).split()
LIMITS = {
    **dict.fromkeys((
        "vocab_size codebook_size encoder_hash_byte_group_vocab decoder_vocab_size audio_vocab_size "
        "pronunciation_vocab_size shape_vocab_size mel_vocab_size additional_vocab_size "
        "vocab_size_per_layer_input num_embeddings ngram_vocab_size_base").split(), VOCABULARY),
    **dict.fromkeys((
        "max_position_embeddings n_positions max_source_positions max_target_positions n_ctx max_seq_len "
        "context_length num_position_embeddings max_2d_position_embeddings").split(), 64),
    **dict.fromkeys("n_routed_experts num_experts num_local_experts moe_num_experts zero_expert_num".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_topk top_k_experts n_group topk_group".split(), 2),
    **dict.fromkeys("first_k_dense_replace num_dense_layers moe_layer_start_index".split(), 1),
}


def shrink(values):
    """A copy of a configuration's dictionary with everything large made small."""
    small = {}
    depth = next((values[k] for k in DEPTHS if isinstance(values.get(k), int)), 0)
    # Layers that differ: at least one of each kind, found in the lists with one entry per layer.
    lists = {k: v for k, v in values.items() if isinstance(v, list) and len(v) == depth > DEPTH}
    kept, seen = [], set()
    for i in range(depth):
        kind = tuple(str(v[i]) for v in lists.values())
        if (kind not in seen or i < DEPTH) and len(kept) < 3 * DEPTH:
            seen.add(kind)
            kept.append(i)
    for key, value in values.items():
        if key == "per_layer_config":
            continue
        if isinstance(value, dict):
            value = shrink(value) if "model_type" in value else value
        elif key in lists:
            value = [max(value[i] // WIDTH_DIVISOR, 1) if key in WIDTHS else value[i] for i in kept]
        elif key in WIDTHS and isinstance(value, list):
            value = [max(v // WIDTH_DIVISOR, 2) for v in value]
        elif not isinstance(value, int) or isinstance(value, bool):
            value = 3 if key.endswith("_token_id") and isinstance(value, list) else value
        elif key in WIDTHS:
            value = value if value < 2 else max(value // WIDTH_DIVISOR, 2)
        elif key in DEPTHS:
            value = len(kept) if value == depth else min(value, DEPTH)
        elif key in LIMITS:
            value = min(value, LIMITS[key])
        elif key.endswith(("_token_id", "_token_index", "_id")) and value >= VOCABULARY:
            value = 3
        small[key] = value
    # Heads of an odd or broken width: fewer heads.
    width, heads = small.get("hidden_size"), small.get("num_attention_heads")
    if isinstance(width, int) and isinstance(heads, int) and not small.get("head_dim") and width % (2 * heads):
        fewer = max(h for h in range(1, heads + 1) if width % (2 * h) == 0)
        small["num_attention_heads"] = fewer
        if small.get("num_key_value_heads"):
            small["num_key_value_heads"] = fewer
    return small


def merge(values, special):
    for key, value in special.items():
        values[key] = merge(values.get(key) or {}, value) if isinstance(value, dict) else value
    return values


# What the defaults leave out or the generic cuts break, merged into the small configuration; lists of variants.
GEMMA4 = {"num_kv_shared_layers": 0}
GEMMA4_MOE = {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
              "moe_intermediate_size": 32}
COMPASS = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
QWEN4 = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
         "indexer_compress_ratio": 2, "ple_layer_ids": [2], "split_ngram_parts": 2, "eos_token_id": 2}
ZAMBA = {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
         "num_hidden_layers": 5}
SPECIAL = {
    "arcee": [{"head_dim": 8}],
    "bamba": [{"attn_layer_indices": [1]}],
    "bloom": [{"hidden_size": 64}],
    "chameleon": [{"vocabulary_map": {"<image>": 4}, "vq_config": {"base_channels": 32}}],
    "cohere_compass": [{"text_config": COMPASS}],
    "cohere_compass_text": [COMPASS],
    "cosmos3_edge": [{"text_config": {"rope_parameters": {"mrope_section": [2, 1, 1]}}}],
    "dbrx": [{"attn_config": {"rope_theta": 10000.0}}],
    "deepseek_ocr2": [{"text_config": {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}}],
    "deepseek_v2": [{"first_k_dense_replace": 1}, {"q_lora_rank": None}],
    "diffusion_gemma": [{"text_config": {k: v for k, v in GEMMA4_MOE.items() if k != "enable_moe_block"}}],
    "dots1": [{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}],
    "emu3": [{"vocabulary_map": {"<image>": 4}, "vq_config": {"base_channels": 32}}],
    "ernie4_5_vl_moe": [{"text_config": {"rope_parameters": {"mrope_section": [1, 1, 2]}}}],
    "falcon_h1": [{"mamba_n_heads": 16, "mamba_d_head": 4, "mamba_d_ssm": 64}],
    "gemma3n_text": [{"num_kv_shared_layers": 2}],
    "gemma4": [{"text_config": GEMMA4}, {"text_config": GEMMA4_MOE}],
    "gemma4_assistant": [{"text_config": {"num_kv_shared_layers": 5}}],
    "gemma4_text": [GEMMA4, GEMMA4_MOE],
    "gemma4_unified": [{"text_config": GEMMA4}],
    "gemma4_unified_text": [GEMMA4],
    "gemma4_unified_assistant": [{"text_config": {"num_kv_shared_layers": 5}}],
    "granite4_vision": [{"deepstack_layer_map": [[0, 0], [1, 1]], "downsample_rate": "4/8",
                         "vision_config": {"hidden_size": 128, "num_attention_heads": 4}}],
    "granitemoehybrid": [{"layer_types": ["mamba", "attention", "mamba", "attention"]}],
    "hunyuan_v1_dense": [{"head_dim": 8}],
    "hunyuan_v1_moe": [{"head_dim": 8, "num_experts": 4}],
    "hunyuan_vl": [{"text_config": {"head_dim": 8}}],
    "jamba": [{"num_hidden_layers": 6}],
    "janus": [{"vq_config": {"base_channels": 32}}],
    "kyutai_speech_to_text": [{"codec_config": {"codebook_size": 64}}],
    "lfm2_moe": [{"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1}],
    "llama4_text": [{"moe_layers": [1, 3]}],
    "ministral": [{"head_dim": 8}],
    "molmo2": [{"adapter_config": {"vision_feature_layer": [3, 1]}}],
    "moshi": [{"audio_encoder_config": {"codebook_size": 64}}],
    "nemotron": [{"num_key_value_heads": 8}],
    "opt": [{}, {"word_embed_proj_dim": 32}],
    "qwen2_moe": [{"mlp_only_layers": [0]}],
    "qwen3_moe": [{"mlp_only_layers": [0]}],
    "qwen4_exp": [{"text_config": QWEN4}],
    "qwen4_exp_text": [QWEN4],
    "reformer": [{"is_decoder": True}],
    "zamba": [ZAMBA],
    "zamba2": [ZAMBA],
}
# Classes that cannot be made without arguments.
DEFAULTS = {"gemma4_assistant": {"text_config": {
    "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}}


def tiny_configs(model_type, tied):
    config_class = CONFIG_MAPPING[model_type]
    values = config_class(**DEFAULTS.get(model_type, {})).to_dict()
    for key in ("model_type", "transformers_version", "architectures"):
        values.pop(key, None)
    for special in SPECIAL.get(model_type, [{}]):
        config = config_class(**merge(shrink(values), copy.deepcopy(special)))
        config.tie_word_embeddings = tied
        for key in config.sub_configs:
            sub = getattr(config, key, None)
            if hasattr(sub, "tie_word_embeddings"):
                sub.tie_word_embeddings = tied
        yield config


# ---- asking transformers ----


def tag(model):
    """Fills every parameter with a number of its own; returns number -> names of the parameters."""
    names, numbers = {}, {}
    with torch.no_grad():
        for name, tensor in model.named_parameters(remove_duplicate=False):
            number = numbers.setdefault(tensor.data_ptr(), len(numbers) + 5000)  # buffers hold small numbers
            names.setdefault(number, []).append(name)
            tensor.fill_(number)
    return names


def bitsandbytes_modules(folder, architecture, really_load):
    """Full names of the modules that become bitsandbytes layers when `folder` is loaded in 4 bits."""
    import bitsandbytes as bnb

    wanted = BitsAndBytesConfig(load_in_4bit=True)
    if really_load:
        model = architecture.from_pretrained(folder, quantization_config=wanted, device_map="cpu")
    else:
        # As from_pretrained does: on the meta device and before weights are tied, so that the last parameter
        # (which it never replaces) is the output head even when that shares the embedding.
        config = AutoConfig.from_pretrained(folder)
        with ContextManagers(architecture.get_init_context(torch.float32, True, False, None)):
            model = architecture(config)
        quantizer = AutoHfQuantizer.from_config(wanted, pre_quantized=False)
        quantizer._process_model_before_weight_loading(model, device_map=None)
    return {name for name, module in model.named_modules() if isinstance(module, bnb.nn.Linear4bit)}


def survey(architecture, config, really_load=False):
    if not isinstance(config, architecture.config_class):
        # The text half of a multimodal model, as AutoModelForCausalLM does.
        halves = [getattr(config, key, None) for key in config.sub_configs]
        config = next((half for half in halves if isinstance(half, architecture.config_class)), config)
    with initialization.no_init_weights():
        model = architecture(config)
    model.tie_weights()
    size = sum(p.numel() for p in model.parameters())
    if size > 40_000_000:  # nothing has touched that memory yet
        raise RuntimeError(f"still {size} parameters after shrinking")
    model.to(torch.float32)
    names = tag(model)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="100GB")
        linear = bitsandbytes_modules(folder, architecture, really_load)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
            saved = {name: file.get_tensor(name) for name in sorted(file.keys())}
        with open(os.path.join(folder, "config.json")) as file:
            saved_config = json.load(file)
    return {
        "model_type": saved_config["model_type"],
        "architecture": architecture.__name__,
        "layers": saved_config.get("text_config", saved_config).get("num_hidden_layers"),
        "tied": bool(head is not None and getattr(head, "weight", None) is getattr(embedding, "weight", 0)),
        "conv1d": any(isinstance(m, Conv1D) for m in model.modules()),
        "tensors": [[n, list(t.shape), verdict(t, names, parameters, linear)] for n, t in saved.items()],
    }


def verdict(tensor, names, parameters, linear):
    if tensor.numel() == 0:
        return "no"
    low, high = (bound.item() for bound in torch.aminmax(tensor.float()))
    numbers = [low] if low == high else torch.unique(tensor.float()).tolist()
    sources = [names.get(number) for number in numbers]
    if None in sources:
        return "no"  # a buffer
    quantised = [any(n.removesuffix(".weight") in linear and n.endswith(".weight") for n in s) for s in sources]
    if not any(quantised):
        return "no"
    same = len(sources) == 1 and parameters[sources[0][0]].shape == tensor.shape
    return "yes" if same else "part"


def architectures():
    """(model_type, class name) of every model to survey, causal language models first."""
    auto, seen = modeling_auto, {}
    for names in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
                  auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES):
        for model_type, name in names.items():
            for one in name if isinstance(name, (tuple, list)) else [name]:
                seen[model_type, one] = True
    return list(seen)


def survey_architecture(task):
    """Records of one architecture, and (model_type, class name, tied, reason) where building it failed."""
    model_type, name, really_load = task
    records, failed = [], []
    for tied in (False, True):
        try:
            for config in tiny_configs(model_type, tied):
                record = survey(getattr(transformers, name), config, really_load)
                if record not in records:  # not every model can be tied, or untied
                    records.append(record)
        except Exception as error:  # noqa: BLE001 - whatever one model does, the survey goes on
            if os.environ.get("SURVEY_TRACE"):
                traceback.print_exc()
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            failed.append((model_type, name, tied, reason))
    return records, failed


def survey_all(wanted=(), really_load=False, processes=2):
    """Yields the results of survey_architecture for all architectures, or for the wanted model types."""
    tasks = [(t, name, really_load) for t, name in architectures() if not wanted or t in wanted]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(survey_architecture, tasks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model_type", nargs="*")
    parser.add_argument("--load", action="store_true", help="load in 4 bits instead of asking the quantizer")
    arguments = parser.parse_args()
    for records, failed in survey_all(arguments.model_type, arguments.load):
        for record in records:
            print(json.dumps(record), flush=True)
        for model_type, name, tied, reason in failed:
            print(f"not surveyed: {model_type} ({name}, tied={tied}): {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
