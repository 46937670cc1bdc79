# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-return,no-untyped-call,call-arg"
"""Makes the toy Gemma 4 text model: random weights, a tokenizer trained on files at hand. Runs in the engine.

    python make_tiny.py FOLDER

Writes FOLDER/models--cluster-lab--tiny-gemma-4 as the Hub's own cache lays it out.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

VOCABULARY = 2048
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>{{ message['role'] }}\n{{ message['content'] }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def make_tokenizer() -> Any:
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
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=32768, **names)
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_model() -> Any:
    """Six layers of Gemma 4, a few million parameters; the seed is fixed, so each machine makes the same."""
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(4)
    config = Gemma4TextConfig(
        vocab_size=VOCABULARY,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size=256,
        hidden_size_per_layer_input=32,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        global_head_dim=128,
        sliding_window=512,
        max_position_embeddings=32768,
        dtype="bfloat16",
    )
    return Gemma4ForCausalLM(config).to(torch.bfloat16)


def lay_out(files: Path, repository: Path) -> None:
    """blobs by hash, a snapshot of links named by a commit, refs/main: what the Hub's own tool leaves."""
    rows = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files.iterdir())}
    commit = hashlib.sha1(repr(rows).encode()).hexdigest()
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    for name, digest in rows.items():
        shutil.copy(files / name, repository / "blobs" / digest)
        (repository / "blobs" / digest).chmod(0o644)
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    (repository / "refs/main").write_text(commit)


def main() -> None:
    """Make it."""
    top = Path(sys.argv[1])
    files = top / "files"
    files.mkdir(parents=True)
    make_tokenizer().save_pretrained(files)
    make_model().save_pretrained(files)
    lay_out(files, top / "models--cluster-lab--tiny-gemma-4")
    shutil.rmtree(files)


if __name__ == "__main__":
    main()
