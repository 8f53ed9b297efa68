"""Makes tests/data/gguf/golden.gguf: blocks of every decodable type and what the package gguf decodes them to.

    python tests/oracle/make_gguf_golden.py [FILE]

Tensor `q4_k` holds random blocks, `q4_k.f32` their values. The scales are finite, some of them subnormal or negative; the rest of
a block is any byte. Metadata of every type stands beside them. Needs the package gguf (requirements.txt); the tests need nothing.
"""
import sys
from pathlib import Path

import gguf
import numpy as np

TARGET = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "data/gguf/golden.gguf")
# Where the f16 scales of a block stand.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "F16": [0], "BF16": [0]}
random = np.random.default_rng(7)
writer = gguf.GGUFWriter(str(TARGET), "golden")
V = gguf.GGUFValueType
for name, value in {"uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4000000000, "int32": -2000000000,
                    "uint64": 2**64 - 1, "int64": -(2**62)}.items():
    writer.add_key_value(f"golden.{name}", value, V[name.upper()])
writer.add_float32("golden.float32", 1 / 3)
writer.add_float64("golden.float64", 1 / 3)
writer.add_bool("golden.bool", True)
writer.add_string("golden.string", "naïve ✓")
writer.add_array("golden.strings", ["", "a", "ä\0b"])
writer.add_array("golden.integers", [1, -2, 3])
writer.add_array("golden.floats", [0.5, -1.5])
for name, places in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    columns = max(values, 64)
    blocks = random.integers(0, 256, (3 * columns // values, size), dtype=np.uint8)
    for place in places:
        blocks[:, place + 1] &= 0xBF  # the exponent's top bit: no infinities, no NaN
    rows = blocks.reshape(3, -1)
    writer.add_tensor(name.lower(), rows, raw_dtype=kind)
    writer.add_tensor(name.lower() + ".f32", gguf.quants.dequantize(rows, kind).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
