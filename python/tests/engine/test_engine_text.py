"""Tokenizers, text streams, stop matchers, chat templates: ids and texts of the libraries that users know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_common import TINY, enter

from nibble_torch.engine import (
    ChatEncoder,
    ChatTemplate,
    Context,
    FormatError,
    Model,
    NibbleError,
    NotFoundError,
    StopMatcher,
    Tokenizer,
)

TEXTS = ["", "What is 3 plus 4?", "ünïcödé 数 🙂", "a\0b", "<|im_start|>user\nHi<|im_end|>\n"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(threads=2)


def test_ids_are_those_of_the_tokenizers_library(context: Context) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    want = tokenizers.Tokenizer.from_file(f"{TINY}/tokenizer.json")
    tokenizer = Tokenizer(TINY, context=context)
    batch = tokenizer.encode_batch(TEXTS)
    for text, ids in zip(TEXTS, batch, strict=True):
        assert ids.tolist() == want.encode(text).ids and ids.dtype == torch.int32
        assert torch.equal(tokenizer.encode(text), ids)
        assert tokenizer.decode(ids) == want.decode(ids.tolist(), skip_special_tokens=False)
        assert tokenizer.decode(ids.tolist(), skip_special=True) == want.decode(ids.tolist())
    assert len(tokenizer) == want.get_vocab_size()
    assert tokenizer.find("<|im_end|>") == want.token_to_id("<|im_end|>")
    assert tokenizer.token(511) == want.id_to_token(511)
    assert tokenizer.find("no such token") is None and tokenizer.token(10**6) is None


def test_a_tokenizer_is_parsed_from_its_text() -> None:
    text = Path(TINY, "tokenizer.json").read_text()
    tokenizer, same = Tokenizer.parse(text), Tokenizer(TINY)
    assert torch.equal(tokenizer.encode(TEXTS[2]), same.encode(TEXTS[2]))
    described = json.loads(text)
    described["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tokenizer = Tokenizer.parse(json.dumps(described))
    assert len(tokenizer.encode(TEXTS[1])) > 2
    tokenizer.set_truncation_and_padding(True)
    assert len(tokenizer.encode(TEXTS[1])) == 2
    with pytest.raises(FormatError, match="mine.json"):
        Tokenizer.parse("{", name="mine.json")
    with pytest.raises(FileNotFoundError):
        Tokenizer("missing")


def test_a_stream_hands_out_whole_characters(context: Context) -> None:
    tokenizer = Tokenizer(TINY, context=context)
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in tokenizer.encode(TEXTS[2]).tolist()]
    assert "".join(pieces) + stream.finish() == TEXTS[2]
    assert "\ufffd" not in "".join(pieces) and "" in pieces
    assert tokenizer.stream(skip_special=True).push(511) == "" != tokenizer.stream().push(511)


def test_stop_strings_lie_across_pieces(context: Context) -> None:
    matcher = StopMatcher(["stop", "</s>"], context=context)
    assert matcher.push("a st") == ("a ", False)
    assert matcher.push("ill s") == ("still ", False)
    assert matcher.finish() == "s"
    assert matcher.push("<") == ("", False)
    assert matcher.push("/s> more") == ("", True)
    with pytest.raises(NibbleError):
        StopMatcher([""], context=context)
    assert StopMatcher([], context=context).push("text") == ("text", False)


def test_templates_render_as_transformers(context: Context) -> None:
    jinja2 = pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": 'a "quote" 🙂\n'}, {"role": "assistant", "content": "b"}]
    text = Path(TINY, "chat_template.jinja").read_text()
    want = jinja2.Template(text).render(messages=messages, add_generation_prompt=True)
    template = ChatTemplate(TINY, context=context)
    assert len(template) == 1
    assert template.render(messages, generation_prompt=True).text == want
    line = {"messages": messages, "generation_prompt": True}
    assert template.render_line(line).text == ChatTemplate.parse(text).render_line(line).text == want
    assert ChatTemplate(TINY, file="llama3").render(messages).text.count("<|start_header_id|>") == 2


def test_templates_have_variables_tools_and_spans(context: Context) -> None:
    text = "{{ bos_token }}{{ tools | length }}{% generation %}{{ messages[0].content }}{% endgeneration %}!"
    template = ChatTemplate.parse(text, context=context)
    found = template.render([{"content": "ünï"}], tools=[{}, {}], variables={"bos_token": "<s>"})
    assert found.text == "<s>2ünï!" and [found.text[start:end] for start, end in found.spans] == ["ünï"]
    with pytest.raises(NibbleError, match="no way"):
        ChatTemplate.parse("{{ raise_exception('no way') }}", context=context).render([])
    with pytest.raises(NibbleError, match="no way"):
        ChatTemplate.parse("{{ raise_exception('no way') }}", context=context).render_line({"messages": []})
    with pytest.raises(NibbleError, match="mine"):
        ChatTemplate.parse("{% if %}", name="mine", context=context).render([])


def test_rows_are_encoded_as_training_does(context: Context) -> None:
    model = Model(TINY, context=context)
    tokenizer, template = model.tokenizer(), ChatTemplate(TINY, context=context)
    encoder = ChatEncoder(model, tokenizer, template)
    messages = [{"role": "user", "content": "3 plus 4"}, {"role": "assistant", "content": "7"}]
    row = encoder.row({"messages": messages})
    assert tokenizer.decode(row.ids) == template.render(messages).text
    trained = row.labels != -100
    assert torch.equal(row.labels[trained], row.ids[trained])
    assert tokenizer.decode(row.ids[trained]) == "7<|im_end|>"
    assert model.evaluate([row.ids], [row.labels]).tokens == int(trained.sum())
    assert model.adapter_eos_id(tokenizer) is None and model.eos_ids() == [511, 509]
    with pytest.raises(NibbleError, match="chats.jsonl:7"):
        encoder.row({"text": "no chat"}, where="chats.jsonl:7")
    Path("bare").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        Path("bare", name).symlink_to(Path(TINY, name).resolve())
    with pytest.raises(NotFoundError):
        ChatEncoder(model, tokenizer, ChatTemplate("bare", context=context))
