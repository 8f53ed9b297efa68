"""Folders of models without tokenizer.json, and the tokenizer that transformers makes of each: for make_tokenizer_files_golden.py
and test_tokenizer_files.py. SentencePiece's and tiktoken's files need these two packages."""
import base64
import io
import json
import random
import tempfile

TEXT = """The quick brown fox jumps over the lazy dog. In 1984, 3 of 27 towns had no train; it's theirs, we'll see.
Grüße aus Köln, ça va? Привет, мир! 你好，世界。 こんにちは 😀 naïve café\tdef main(argc, argv):\n    return argc + 42
"""


def o200k(count):
    """The first ranks of o200k: bytes by rank."""
    import bpe_openai

    encoding = bpe_openai.get_encoding("o200k_base")
    return [bytes(encoding.decode_single_token_bytes(i)) for i in range(count)]


def byte_level(ranks):
    """vocab.json and merges.txt of byte ranks, as the old scripts of transformers wrote them."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spell, known = bytes_to_unicode(), {t: i for i, t in enumerate(ranks)}
    text = lambda t: "".join(spell[b] for b in t)
    merges = []
    for token in ranks:
        pairs = [(known[token[:i]], known[token[i:]], i) for i in range(1, len(token)) if token[:i] in known and token[i:] in known]
        merges += [f"{text(token[:i])} {text(token[i:])}" for _, _, i in sorted(pairs)]
    return {text(t): i for i, t in enumerate(ranks)}, "#version: 0.2\n" + "\n".join(merges) + "\n"


def sentencepiece(kind, size=420, **options):
    import sentencepiece as sp

    made = io.BytesIO()
    rng = random.Random(3)
    words = TEXT.split()
    if "rules" in options:
        file = tempfile.NamedTemporaryFile("w", suffix=".tsv")
        file.write(options.pop("rules"))
        file.flush()
        options["normalization_rule_tsv"] = file.name
    lines = [" ".join(rng.choice(words) for _ in range(9)) for _ in range(400)]
    sp.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=made, model_type=kind, vocab_size=size, minloglevel=9,
                                  hard_vocab_limit=False, num_threads=1, **options)
    return made.getvalue()


def token(text, **flags):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} | flags


def tekken(count, special=None, fill=None, padded=0):
    ranks = o200k(count)
    document = {"config": {"pattern": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                           "num_vocab_tokens": count, "default_vocab_size": count - padded + (fill or len(special)), "version": "v7"},
                "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": t.decode() if t.isascii() else None} for i, t in enumerate(ranks)]}
    if fill:
        document["config"]["default_num_special_tokens"] = fill
    if special:
        document["special_tokens"] = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(special)]
    return json.dumps(document)


def folders(count=600):
    """{name: {file: content}} for all forms; `count` ranks where these make the vocabulary."""
    ranks = o200k(count)
    vocab, merges = byte_level(ranks)
    end = {"<|endoftext|>": count}
    ranked = "".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(ranks))
    pair = {"vocab.json": vocab | end, "merges.txt": merges}
    spm = {"byte_fallback": True, "character_coverage": 0.98, "normalization_rule_name": "identity"}
    control = ["<|user|>", "<|assistant|>"]
    llama = sentencepiece("bpe", 400, **spm)
    marked = sentencepiece("bpe", 400, control_symbols=control, user_defined_symbols=["[IMG]", "[PAD]", "  "], **spm)
    gemma = sentencepiece("bpe", 400, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
                          user_defined_symbols=["<mask>", "<start_of_turn>", "<end_of_turn>"], **spm)
    unigram = {"rules": "0041\t0061\n00E9\t0065\n0020 0020\t0020\n"}
    return {
        "gpt2": {"config.json": {"model_type": "gpt2"}, **pair},
        "gpt2-prefix": {"config.json": {"model_type": "llama"}, **pair,
                        "tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True, "add_bos_token": True, "additional_special_tokens": ["<a>"]},
                        "special_tokens_map.json": {"bos_token": token("<|endoftext|>", normalized=True), "pad_token": "<pad>", "additional_special_tokens": ["<b>", token(" <c>", lstrip=True)]},
                        "added_tokens.json": {"<b>": count + 2, "<pad>": count + 1, "plain": count + 3}},
        "granite": {"config.json": {"model_type": "smollm3"}, **pair, "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "unk_token": None, "eos_token": {"__type": "AddedToken", **token("<|eot|>", rstrip=True)},
            "additional_special_tokens": ["<x>", "<x>"], "image_token": "<image>", "extra_special_tokens": {"video_token": "<video>"}}},
        "qwen2": {"config.json": {"model_type": "qwen2"}, "vocab.json": vocab, "merges.txt": merges, "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
            "added_tokens_decoder": {str(count): token("<|endoftext|>"), str(count + 1): token("<|im_start|>"), str(count + 2): token("<|im_end|>"), str(count + 3): token("<tool_call>", special=False)}}},
        "qwen3_5": {"config.json": {"model_type": "qwen3_5"}, "vocab.json": vocab, "merges.txt": merges,
                    "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "add_eos_token": True, "added_tokens_decoder": {str(count): token("<|endoftext|>"), str(count + 5): token("<think>", special=False, normalized=True)}}},
        "olmo": {"config.json": {"model_type": "olmo"}, **pair, "tokenizer_config.json": {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": False, "add_eos_token": True, "pad_token": "<|padding|>", "unk_token": None}},
        "cohere": {"config.json": {"model_type": "cohere2"}, "vocab.json": vocab, "merges.txt": merges,
                   "tokenizer_config.json": {"tokenizer_class": "CohereTokenizer", "add_bos_token": True, "added_tokens_decoder": {str(count): token("<PAD>"), str(count + 1): token("<EOS>", special=False)}}},
        "codegen": {"config.json": {"model_type": "phi"}, **pair, "tokenizer_config.json": {"tokenizer_class": "CodeGenTokenizer", "add_prefix_space": False}, "added_tokens.json": {"\t\t": count + 1, " " * 4: count + 2}},
        "llama": {"config.json": {"model_type": "llama"}, "tokenizer.model": llama, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": True,
                  "bos_token": {"__type": "AddedToken", **token("<s>", normalized=True)}, "pad_token": None, "added_tokens_decoder": {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>")}}},
        "llama-marked": {"config.json": {"model_type": "llama"}, "tokenizer.model": marked, "special_tokens_map.json": {"bos_token": "<s>", "eos_token": "<|user|>", "unk_token": "<unk>"},
                         "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": True}, "added_tokens.json": {"<|new|>": 9999}},
        "llama-bare": {"config.json": {"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}, "tokenizer.model": marked},
        "llama-unprefixed": {"config.json": {"model_type": "llama"}, "tokenizer.model": marked, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "additional_special_tokens": []}},
        "mistral": {"config.json": {"model_type": "mistral"}, "tokenizer.model": marked, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False,
                    "added_tokens_decoder": {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "3": token("[TOOL]"), "5": token("[AVAILABLE]", special=False)}}},
        "phi3": {"config.json": {"model_type": "phi3"}, "tokenizer.model": llama, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "eos_token": "<|endoftext|>", "added_tokens_decoder": {
            "1": token("<s>"), "2": token("</s>", rstrip=True, special=False), "400": token("<|endoftext|>"), "401": token("<|assistant|>", rstrip=True)}}},
        "gemma": {"config.json": {"model_type": "gemma2"}, "tokenizer.model": gemma, "tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]}},
        "gemma-bare": {"config.json": {"model_type": "gemma3_text"}, "tokenizer.model": gemma},
        "t5": {"config.json": {"model_type": "t5"}, "tokenizer.model": sentencepiece("unigram", 150, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **unigram), "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 7}},
        "unigram": {"config.json": {"model_type": "internlm2"}, "tokenizer.model": sentencepiece("unigram", 400, control_symbols=control, byte_fallback=True, **unigram), "tokenizer_config.json": {"tokenizer_class": "InternLM2Tokenizer", "add_bos_token": True}},
        "tekken": {"config.json": {"model_type": "mistral"}, "tekken.json": tekken(count, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"], 20, 9)},
        "tekken-settings": {"config.json": {"model_type": "ministral3"}, "tekken.json": tekken(count, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]),
                            "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": "<s>", "additional_special_tokens": ["[INST]", "[NEW]"]}},
        "tiktoken": {"config.json": {"model_type": "llama"}, "tokenizer.model": ranked, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>",
                     "added_tokens_decoder": {str(count): token("<|begin|>"), str(count + 3): token("<|end|>"), str(count + 4): token("<|soft|>", special=False)}}},
        "tiktoken-name": {"config.json": {"model_type": "llama"}, "tiktoken.model": ranked.replace("\n", "\r\n"), "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": ["<|one|>", "<|two|>"]}},
    }


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        content = json.dumps(content, ensure_ascii=False) if isinstance(content, dict) else content
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def upstream(folder):
    """transformers' tokenizer of a folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
