#!/usr/bin/env python3
"""Checkpoints of a shape with random weights, for bench/cuda: prints the folder, makes it if it is missing.

    cuda_make.py FOLDER SHAPE[@LAYERS] nf4|bf16

nf4 is written packed, as bitsandbytes stores a double-quantised model: random codes, scales near 0.04. Needs numpy.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

# hidden, inner, layers, heads, kv heads, head size, vocabulary, tied, qk norm
SHAPES = {
    "Llama-3.1-8B": (4096, 14336, 32, 32, 8, 128, 128256, False, False),
    "Llama-3.2-1B": (2048, 8192, 16, 32, 8, 64, 128256, True, False),
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, 128, 151936, True, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8, 128, 151936, True, True),
    "Qwen3-4B": (2560, 9728, 36, 32, 8, 128, 151936, True, True),
    "Qwen3-8B": (4096, 12288, 36, 32, 8, 128, 151936, False, True),
}


def sizes(shape):
    name, _, layers = shape.partition("@")
    return (*SHAPES[name][:2], int(layers or SHAPES[name][2]), *SHAPES[name][3:])


NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
NAMES = {"uint8": "U8", "float32": "F32", "uint16": "BF16"}


def config(shape, storage):
    hidden, inner, layers, heads, kv, head, vocabulary, tied, qk_norm = sizes(shape)
    c = {"architectures": ["Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLM"], "model_type": "qwen3" if qk_norm else "llama",
         "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
         "num_key_value_heads": kv, "head_dim": head, "vocab_size": vocabulary, "tie_word_embeddings": tied, "hidden_act": "silu",
         "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
         "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1}
    if storage == "nf4":
        c["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
                                    "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16",
                                    "bnb_4bit_quant_storage": "uint8"}
    return c


class Pool:
    """Random data, made once and handed out from changing places: making billions of random numbers takes minutes."""

    def __init__(self, size=1 << 27):
        rng = np.random.default_rng(1)
        self.at, self.bytes = 0, np.frombuffer(rng.bytes(size), dtype=np.uint8)
        values = (rng.random(size // 2, dtype=np.float32) * 2 - 1) * np.float32(0.02 * 3 ** 0.5)
        self.values = (values.view(np.uint32) >> 16).astype(np.uint16)  # bf16

    def take(self, source, n):
        self.at += 7919
        start = self.at % source.size
        pieces = [source[start:start + n]]
        while (left := n - sum(p.size for p in pieces)) > 0:
            pieces.append(source[:left])
        return np.concatenate(pieces)

    def codes(self, n):
        return self.take(self.bytes, n)

    def bf16(self, *shape):
        return self.take(self.values, int(np.prod(shape))).reshape(shape)


def packed(pool, out, inn, dynamic):
    n, blocks = out * inn, out * inn // 64
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [out, inn], "nested_blocksize": 256, "nested_dtype": "float32",
             "nested_offset": 0.04}
    yield "", pool.codes(n // 2).reshape(-1, 1)
    yield ".absmax", pool.codes(blocks)
    yield ".nested_absmax", np.full((blocks + 255) // 256, 0.01, dtype=np.float32)
    yield ".nested_quant_map", dynamic
    yield ".quant_map", np.array(NF4, dtype=np.float32)
    yield ".quant_state.bitsandbytes__nf4", np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)


def tensors(shape, storage):
    hidden, inner, layers, heads, kv, head, vocabulary, tied, qk_norm = sizes(shape)
    pool = Pool()
    dynamic = np.sort(np.concatenate([np.linspace(-1, 1, 255, dtype=np.float32), [0.0]])).astype(np.float32)
    one = np.full(1, 0x3F80, dtype=np.uint16)
    yield "model.embed_tokens.weight", pool.bf16(vocabulary, hidden)
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in ["input_layernorm", "post_attention_layernorm"]:
            yield f"{at}{name}.weight", np.repeat(one, hidden)
        if qk_norm:
            for name in ["q_norm", "k_norm"]:
                yield f"{at}self_attn.{name}.weight", np.repeat(one, head)
        for name, out, inn in [("self_attn.q_proj", heads * head, hidden), ("self_attn.k_proj", kv * head, hidden),
                               ("self_attn.v_proj", kv * head, hidden), ("self_attn.o_proj", hidden, heads * head),
                               ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner)]:
            if storage == "bf16":
                yield f"{at}{name}.weight", pool.bf16(out, inn)
            else:
                for part, data in packed(pool, out, inn, dynamic):
                    yield f"{at}{name}.weight{part}", data
    yield "model.norm.weight", np.repeat(one, hidden)
    if not tied:
        yield "lm_head.weight", pool.bf16(vocabulary, hidden)


def write(folder, shape, storage):
    """One file; the header is padded to a fixed size so that the data can be written as it is made."""
    room, header, at = 1 << 20, {}, 0
    with open(folder / "model.safetensors", "wb") as file:
        file.seek(8 + room)
        for name, data in tensors(shape, storage):
            header[name] = {"dtype": NAMES[str(data.dtype)], "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
            file.write(memoryview(np.ascontiguousarray(data)).cast("B"))
            at += data.nbytes
        text = json.dumps(header).encode()
        assert len(text) <= room
        file.seek(0)
        file.write(struct.pack("<Q", room) + text.ljust(room))


def main():
    folder, shape, storage = Path(sys.argv[1]) / f"{sys.argv[2]}-{sys.argv[3]}", sys.argv[2], sys.argv[3]
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, shape, storage)
        (folder / "config.json").write_text(json.dumps(config(shape, storage), indent=1) + "\n")
    print(folder)


if __name__ == "__main__":
    main()
