# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,no-untyped-call"
"""What every toy reads and writes: Gemma 4's marks in a small tokenizer, a chat template that uses them, pictures."""

from __future__ import annotations

import functools
import json
import sysconfig
from pathlib import Path
from typing import Any

VOCABULARY = 2048
MARKS = {  # by the names that Gemma 4's processor asks for
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
# The marks that vLLM's parsers look for, and those of the chat template.
SPECIAL = [
    *("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
    *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
    *MARKS.values(),
    *("<|video|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),  # the last four are Qwen's
]
TEMPLATE = """\
{{ bos_token }}
{%- if tools or enable_thinking %}<|turn>system
{% if enable_thinking %}<|think|>{% endif %}
{%- for tool in tools or [] %}<|tool>{{ tool | tojson }}<tool|>{% endfor %}<turn|>
{% endif %}
{%- for message in messages %}<|turn>{{ 'model' if message.role == 'assistant' else message.role }}
{% if message.role == 'tool' %}<|tool_response>{% endif %}
{%- if message.content is string %}{{ message.content }}
{%- elif message.content %}
{%- for part in message.content %}
{%- if part.type == 'image' %}<|image|>{% elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}
{{- call.function.arguments | tojson }}<tool_call|>{% endfor %}
{%- if message.role == 'tool' %}<tool_response|>{% endif %}<turn|>
{% endfor %}
{%- if add_generation_prompt %}<|turn>model
{% endif %}"""
PROCESSOR = {
    "processor_class": "Gemma4Processor",
    "image_processor": {"image_processor_type": "Gemma4ImageProcessor"},
    "video_processor": {"video_processor_type": "Gemma4VideoProcessor"},
    "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
}


@functools.cache
def tokenizer() -> Any:
    """A byte-level BPE tokenizer of the standard library's own text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-m]*.py"))
    bpe.train([str(path) for path in files], trainer)
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=bpe, model_max_length=131072, extra_special_tokens=MARKS, **names
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def token(mark: str) -> int:
    """The id of a mark."""
    return int(tokenizer().convert_tokens_to_ids(mark))


def save_words(files: Path) -> None:
    """Write what makes tokens of text and of pictures."""
    tokenizer().save_pretrained(files)
    (files / "processor_config.json").write_text(json.dumps(PROCESSOR, indent=1) + "\n")
