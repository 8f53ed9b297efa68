"""Checkpoints with random weights in the shapes of real models, for bench/models: speed does not depend on the values.

    python bench/models_make.py FOLDER SHAPE              FOLDER/SHAPE: config.json and model.safetensors, bf16
    python bench/models_make.py FOLDER SHAPE --gguf       FOLDER/SHAPE-f16.gguf: the same, for llama.cpp (needs gguf)

Needs numpy. What is there already is left as it is. Prints the path.
"""
import json
import os
import sys
from pathlib import Path

import numpy as np

SHAPES = {
    "SmolLM2-135M": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                         vocab_size=49152, max_position_embeddings=8192, rope_theta=100000.0),
    "Llama-3.2-1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         vocab_size=128256, max_position_embeddings=131072, rope_theta=500000.0,
                         rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=8192)),
}
HEAD = 64  # of both


def config(shape):
    return dict(SHAPES[shape], architectures=["LlamaForCausalLM"], model_type="llama", head_dim=HEAD, hidden_act="silu", rms_norm_eps=1e-5,
                tie_word_embeddings=True, attention_bias=False, mlp_bias=False, torch_dtype="bfloat16", initializer_range=0.02)


def tensors(shape):
    """Name, name in a GGUF file, shape."""
    s = SHAPES[shape]
    hidden, inner, kv, q = s["hidden_size"], s["intermediate_size"], HEAD * s["num_key_value_heads"], HEAD * s["num_attention_heads"]
    yield "model.embed_tokens.weight", "token_embd.weight", (s["vocab_size"], hidden)
    for i in range(s["num_hidden_layers"]):
        for name, short, size in [
                ("self_attn.q_proj", "attn_q", (q, hidden)), ("self_attn.k_proj", "attn_k", (kv, hidden)),
                ("self_attn.v_proj", "attn_v", (kv, hidden)), ("self_attn.o_proj", "attn_output", (hidden, q)),
                ("mlp.gate_proj", "ffn_gate", (inner, hidden)), ("mlp.up_proj", "ffn_up", (inner, hidden)),
                ("mlp.down_proj", "ffn_down", (hidden, inner)), ("input_layernorm", "attn_norm", (hidden,)),
                ("post_attention_layernorm", "ffn_norm", (hidden,))]:
            yield f"model.layers.{i}.{name}.weight", f"blk.{i}.{short}.weight", size
    yield "model.norm.weight", "output_norm.weight", (hidden,)


class Values:
    """Slices of one long random line: making a billion numbers one by one would take longer than the measurement."""

    def __init__(self):
        line = (0.02 * np.random.default_rng(1).standard_normal((1 << 24) + 4099, dtype=np.float32))
        self.bits = (line.view(np.uint32) >> 16).astype(np.uint16)  # bf16, cut off
        self.at = 0

    def take(self, size):
        """bf16 bits."""
        n = int(np.prod(size))
        if len(size) == 1:
            return np.full(n, 0x3f80, np.uint16)  # norms: 1
        self.at = (self.at + 40961) % 4099
        return np.resize(self.bits[self.at:], n).reshape(size)


def make_safetensors(path, shape):
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n")
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, _, size in tensors(shape):
        end = at + 2 * int(np.prod(size))
        header[name], at = dict(dtype="BF16", shape=list(size), data_offsets=[at, end]), end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    values = Values()
    with open(path / "part", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, _, size in tensors(shape):
            values.take(size).tofile(out)
    os.replace(path / "part", path / "model.safetensors")


def make_gguf(path, shape):
    import gguf
    s, values = SHAPES[shape], Values()
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama", use_temp_file=False)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(s["max_position_embeddings"])
    writer.add_embedding_length(s["hidden_size"])
    writer.add_block_count(s["num_hidden_layers"])
    writer.add_feed_forward_length(s["intermediate_size"])
    writer.add_head_count(s["num_attention_heads"])
    writer.add_head_count_kv(s["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(s["rope_theta"])
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(s["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for _, name, size in tensors(shape):
        value = (values.take(size).astype(np.uint32) << 16).view(np.float32)
        writer.add_tensor(name, value if len(size) == 1 else value.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


if __name__ == "__main__":
    folder, shape = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    if "--gguf" in sys.argv:
        path = folder / f"{shape}-f16.gguf"
        if not path.exists():
            make_gguf(path, shape)
    else:
        path = folder / shape
        if not (path / "model.safetensors").exists():
            make_safetensors(path, shape)
    print(path)
