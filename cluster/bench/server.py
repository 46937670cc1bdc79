"""What the server says before anything is timed: its model, its limit, its tokenizer, its latency."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cluster.bench.http_answer import error_text, read_http
from cluster.bench.loader import Loader
from cluster.bench.metrics import Counts, parse_metrics
from cluster.bench.records import Ask, Record, Round
from cluster.bench.workload import CHAT, COMPLETIONS, Corpus, corpus_pieces, corpus_words, say, write
from cluster.errors import ClusterError, UsageError

LATENCY_ASKS = 7
FETCH_TIMEOUT_S = 60.0
WEIGHED = slice(1024, 1280)  # words that the server counts once, and twice in a row: what is over is no word's
NO_SUCH_PATH = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Served:
    """A model that the server offers; `max_tokens` is its context limit, None when the server does not tell.

    `owner`: what the server calls itself there (vllm, sglang, llamacpp …), empty when it does not. `names`: its other
    names; `alone`: the server offers no other model.
    """

    model: str
    max_tokens: int | None
    owner: str = ""
    names: tuple[str, ...] = ()
    alone: bool = True

    @property
    def heeds_salt(self) -> bool:
        """Whether `cache_salt` is known to keep prompts apart; others that take it just do not look at it."""
        return self.owner == "vllm"


def fetch(loader: Loader, *asks: Ask, name: str = "fetch") -> list[tuple[int | None, bytes, str]]:
    """Ask the server one after the other: (status, body, problem) each; problem is empty for a complete answer."""
    record = loader.send(Round(name, asks, timeout_s=FETCH_TIMEOUT_S, warm=None))
    answers = [read_http(one) for one in record.records]
    return [(answer.status, answer.body, answer.problem) for answer in answers]


class CounterReader:
    """Reads what the server counts of itself; one that counts nothing we know is asked once."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._tells = True

    def read(self) -> Counts | None:
        """The counts as they are now, None when the server tells none."""
        if not self._tells:
            return None
        [(status, body, problem)] = fetch(self._loader, Ask("/metrics"), name="metrics")
        counts = parse_metrics(body.decode("utf-8", "replace")) if status == 200 and not problem else None
        self._tells = counts is not None
        return counts


def _document(status: int | None, body: bytes) -> dict[str, Any]:
    """The JSON object of a good answer; empty for any other."""
    if status != 200:
        return {}
    try:
        document = orjson.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def find_model(loader: Loader, wanted: str, base_url: str) -> Served:
    """The model to measure: `wanted`, or the only one when that is empty.

    Raises ClusterError when no server answers, UsageError when it serves another model.
    """
    [(status, body, problem)] = fetch(loader, Ask("/v1/models"))
    if status is None:
        raise ClusterError(
            f"no server answers at {base_url}: {problem}",
            where=f"asked from {loader.where}",
            remedy="`cluster status` shows whether it runs; `--base-url` names another one",
        )
    document = _document(status, body)
    models = {str(model.get("id")): model for model in document.get("data", []) if isinstance(model, dict)}
    if not models:
        said = error_text(body)
        remedy = "give the key with --api-key-file" if status in (401, 403) else ""
        raise ClusterError(f"{base_url}/v1/models answered HTTP {status}: {said}", remedy=remedy)
    if not wanted and len(models) > 1:
        raise UsageError(f"the server offers {len(models)} models: {', '.join(models)}", remedy="name one: --model")
    name = wanted or next(iter(models))
    if name not in models:
        near = difflib.get_close_matches(name, models, 1, 0.0)
        raise UsageError(f"the server does not serve {name!r}", remedy=f"--model {near[0]}")
    own = models[name]
    limit = own.get("max_model_len")
    names = other_names(own, models)
    return Served(
        name,
        limit if isinstance(limit, int) else None,
        str(own.get("owned_by") or ""),
        names,
        alone=not models.keys() - {name, *names},
    )


def other_names(own: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of one model: vLLM tells the `root` that its names share, llama.cpp its `aliases`."""
    root, aliases = own.get("root"), own.get("aliases")
    names = {str(root)} | {name for name, one in models.items() if one.get("root") == root} if root else set()
    names |= {str(alias) for alias in aliases} if isinstance(aliases, list) else set()
    return tuple(sorted(names - {own.get("id")}))


def tokenise(loader: Loader, model: str, corpus: str = "prose", *, chat: bool = False) -> Corpus:
    """A corpus as this server's token ids; as words where it has no /tokenize (Ollama) and counts prompts itself.

    Raises ClusterError when it does neither: lengths would be guesses.
    """
    asks = [_tokenize_ask(model, text, False) for text in (*corpus_pieces(corpus), "a")]
    *pieces, plain, special = fetch(loader, *asks, _tokenize_ask(model, "a", True), name="tokenise")
    ids: list[int] = []
    for status, body, problem in pieces:
        piece = _ids(status, body)
        ids += piece
        if piece:
            continue
        if status in NO_SUCH_PATH and (words := count_words(loader, model, corpus, chat)):
            return words
        said = f"HTTP {status}: {error_text(body, 160)}" if status else problem
        raise ClusterError(
            f"the server has no /tokenize that answers ({said}), so prompts of known length cannot be made",
            remedy="measure a server that has it (vLLM, SGLang, llama.cpp do), or that counts prompts in its `usage`",
        )
    return Corpus(tuple(ids), _begin(_ids(*plain[:2]), _ids(*special[:2])))


def count_words(loader: Loader, model: str, corpus: str, chat: bool) -> Corpus | None:
    """A corpus of words, weighed by what the server counts for a text and for twice that; None when it counts none."""
    words, counts = corpus_words(corpus), []
    text = "".join(words[WEIGHED])
    for prompt in (text, text + text):
        ask = {"model": model, "max_tokens": 1, "temperature": 0}
        body = say(ask, prompt) if chat else write(ask, prompt)
        [(status, answer, _)] = fetch(loader, Ask(CHAT if chat else COMPLETIONS, body), name="count")
        usage = _document(status, answer).get("usage") or {}
        counts.append(usage.get("prompt_tokens"))
    once, twice = counts
    if not isinstance(once, int) or not isinstance(twice, int) or twice <= once:
        return None
    tokens = twice - once
    return Corpus(
        tuple(range(len(words))),
        words=words,
        per_word=tokens / (WEIGHED.stop - WEIGHED.start),
        overhead=max(0, once - tokens),
        per_byte=tokens / len(text.encode()),
    )


def detokenise(loader: Loader, model: str, prompts: Sequence[Sequence[int]]) -> list[str]:
    """The text of token ids. Raises ClusterError when the server has no /detokenize (vLLM, SGLang, llama.cpp do)."""
    asks = [Ask("/detokenize", {"model": model, "tokens": list(ids)}) for ids in prompts]
    texts = []
    for status, body, problem in fetch(loader, *asks, name="detokenise"):
        document = _document(status, body)
        text = document.get("prompt", document.get("content", document.get("text")))
        if not isinstance(text, str):
            said = f"HTTP {status}: {error_text(body, 160)}" if status else problem
            raise ClusterError(
                f"the server has no /detokenize that answers ({said}), so chats of a known length cannot be made",
                remedy="leave out --chat",
            )
        texts.append(text)
    return texts


def _tokenize_ask(model: str, text: str, special: bool) -> Ask:
    """The question in vLLM's words (`prompt`, `add_special_tokens`) and in llama.cpp's (`content`, `add_special`)."""
    body = {"model": model, "prompt": text, "content": text, "add_special_tokens": special, "add_special": special}
    return Ask("/tokenize", body)


def _ids(status: int | None, body: bytes) -> list[int]:
    """The token ids of an answer; empty when there are none."""
    tokens = _document(status, body).get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return []
    return tokens


def _begin(plain: list[int], special: list[int]) -> tuple[int, ...]:
    """What comes before a text when special tokens are asked for."""
    for at in range(len(special) - len(plain) + 1):
        if plain and special[at : at + len(plain)] == plain:
            return tuple(special[:at])
    return ()


def measure_latency(loader: Loader) -> float:
    """Seconds that an empty question takes: the median of some GET /v1/models on a warm connection.

    llama-benchy's latency mode "api" is the mean of three.
    """
    asks = tuple(Ask("/v1/models") for _ in range(LATENCY_ASKS))
    record = loader.send(Round("latency", asks, timeout_s=FETCH_TIMEOUT_S))
    return statistics.median(_seconds(one) for one in record.records)


def _seconds(record: Record) -> float:
    """From the first byte sent to the end of the answer."""
    return record.end_s - record.t0_s
