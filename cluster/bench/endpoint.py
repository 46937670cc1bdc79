"""What a server reports before anything is timed, and whether an answer is of what was asked."""

from __future__ import annotations

import difflib
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from cluster.bench.loader import Ask, Batch, Loader
from cluster.bench.metrics import Counts, parse_metrics
from cluster.bench.read import HttpAnswer, RequestTrace, error_text, read_http
from cluster.bench.workload import CHAT, COMPLETIONS, Corpus, chat_body, corpus_pieces, corpus_text
from cluster.errors import ClusterError, UsageError
from cluster.spark.processes import read_loaded

LATENCY_ASKS = 7
FETCH_TIMEOUT_S = 60.0
WEIGHED = slice(1024, 1280)  # words that the server counts once, and twice in a row: the rest is no word's
NO_SUCH_PATH = (404, 405, 501)
ANOTHER = "another model answered"
CUT = "the prompt was cut"
LEAST_OF_TEXT = 0.7
"""What a server counts of a text may be less than it was weighed as; of a prompt that it cuts Ollama keeps a half."""

REMEDIES = {
    ANOTHER: "ask the server behind the router with --base-url, or look at the router's fallbacks",
    CUT: "give the server a longer context (Ollama: OLLAMA_CONTEXT_LENGTH, or num_ctx in the Modelfile), or a smaller "
    "--depth",
}

TITLES = {"vllm": "vLLM", "llamacpp": "llama.cpp", "ollama": "Ollama"}
NOT_SENT = {
    "llamacpp": ("min_tokens", "continuous_usage_stats"),
    "ollama": ("min_tokens", "ignore_eos", "continuous_usage_stats"),
}
"""Fields that an engine accepts and ignores."""
INSTEAD: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"timings_per_token": True}}
"""What is sent in their place: llama.cpp counts its tokens in each event so, and needs no min_tokens."""
COLD: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"cache_prompt": False}}
"""What keeps a prompt out of the engine's cache where none of it may be there."""
EFFECTS = {
    "min_tokens": "outputs may end early",
    "ignore_eos": "outputs may end early",
    "continuous_usage_stats": "tokens are counted at the end only",
    "include_usage": "tokens may not be counted",
    "cache_salt": "prompts have new beginnings instead",
    "temperature": "sampling is the server's own",
}
"""What a measurement lacks without a field."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model that the server offers; `max_tokens` is its context limit, None when the server does not report it.

    `owner`: what serves it, by the server's own word (a key of TITLES, or another), empty when unknown. `names`: its
    other names; `alone`: the server offers no other model and is no router, so another name is only another name.
    """

    model: str
    max_tokens: int | None
    owner: str = ""
    names: tuple[str, ...] = ()
    alone: bool = True

    def answers_to(self, name: str) -> bool:
        """One of its names, or another way to write it: Ollama adds `:latest`, routers put the provider before a /."""
        given, *known = (
            one.lower().removesuffix(":latest").rpartition("/")[2] for one in (name, self.model, *self.names)
        )
        return given in known


def check_answer(trace: RequestTrace, asked: Served, sent_tokens: int, *, exact: bool = True) -> RequestTrace:
    """The request as it was, or as failed where another model answered or a part of the prompt was not read.

    `exact`: the prompt was sent as token ids.
    """
    error, counted = trace.error, trace.prompt_tokens
    if error:
        return trace
    if trace.model and not asked.alone and not asked.answers_to(trace.model):
        error = f"{ANOTHER}: {trace.model} instead of {asked.model}"
    elif counted is not None and counted < (1 if exact else LEAST_OF_TEXT) * sent_tokens:
        error = f"{CUT}: the server read {counted} of {sent_tokens} tokens"
    return replace(trace, error=error) if error else trace


def remedy_of(error: str) -> str:
    """What to do about a doubtful answer; empty for any other error."""
    return next((remedy for begin, remedy in REMEDIES.items() if error.startswith(begin)), "")


def lacking(fields: Sequence[str]) -> str:
    """Fields by what is lost without them: `min_tokens, ignore_eos: outputs may end early; …`."""
    by_effect: dict[str, list[str]] = {}
    for name in fields:
        by_effect.setdefault(EFFECTS.get(name, "measured without"), []).append(name)
    return "; ".join(f"{', '.join(names)}: {effect}" for effect, names in by_effect.items())


@dataclass(frozen=True, slots=True)
class Engine:
    """What a server is, as far as it reports it. `name`: a key of TITLES, empty when unknown; `router`: what stands
    before the model. `context`: tokens for one request; `slots`: requests it serves at the same time.
    `tells_cache`: whether an answer has the cached tokens of its prompt, None when unknown. `model_bytes`, `gpu_bytes`:
    of the model in Ollama's memory, None until it is loaded; `others`: what is loaded beside a model that is split.
    """

    name: str = ""
    version: str = ""
    router: str = ""
    context: int | None = None
    slots: int | None = None
    tells_cache: bool | None = None
    model_bytes: int | None = None
    gpu_bytes: int | None = None
    others: list[str] = field(default_factory=list)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of our requests that it ignores, and has nothing else for."""
        return () if self.name in INSTEAD else NOT_SENT.get(self.name, ())

    def document(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None, [])}


def engine_warnings(engine: Mapping[str, Any], model: str) -> Iterator[str]:
    """What must be shown before the numbers of this engine (`Engine.document`)."""
    size, on_gpu = engine.get("model_bytes", 0), engine.get("gpu_bytes", 0)
    if on_gpu < size:
        others = f" (also loaded: {', '.join(engine['others'])})" if engine.get("others") else ""
        yield (
            f"SPLIT OVER CPU AND GPU: {1 - on_gpu / size:.0%} of {model} is on the CPU: {on_gpu / 1e9:.1f} of "
            f"{size / 1e9:.1f} GB are in GPU memory, and the speed is not the GPU's. Unload it (`ollama stop "
            f"{model}`, or keep_alive 0), stop what holds GPU memory{others}, and load it again"
        )
    if router := engine.get("router"):
        yield f"A ROUTER ({router}) stands before the model: its time is in the numbers, and another model may answer"
    if engine.get("answers_as"):
        yield f"asked for {model}, the answers are of {engine['answers_as']}: the numbers are of whatever that is"


def engine_notes(engine: Mapping[str, Any], *, concurrency: int, prefix_caching: bool) -> Iterator[str]:
    """What a reader must know of an engine's rows."""
    name, slots = engine.get("name", ""), engine.get("slots")
    title = TITLES.get(name, name)
    if name:
        yield f"served by {title} {engine.get('version', '')}".rstrip()
    if engine.get("ignored"):
        yield f"{title} does not look at {lacking(engine['ignored'])}"
    if slots and concurrency > slots:
        yield f"{title} takes {slots} requests at a time: of {concurrency} the others wait, and that is in the numbers"
    elif name == "ollama" and concurrency > 1:
        yield "Ollama takes OLLAMA_NUM_PARALLEL requests at a time (1 unless set) and does not report its value"
    if prefix_caching and engine.get("tells_cache") is False:
        yield f"{title} does not report prefix-cache hits, so none can be verified"


def find_engine(loader: Loader, served: Served) -> Engine:
    """Ask the server what it is: one batch, and nothing that changes anything."""
    known = {"vllm": ("/version",), "llamacpp": ("/props",)}
    paths = known.get(served.owner, ("/api/version", "/api/ps", "/props"))
    answers = fetch(loader, *map(Ask, paths), name="engine")
    return read_engine(served, dict(zip(paths, map(json_object, answers), strict=True)))


def read_engine(served: Served, routes: Mapping[str, Mapping[str, Any]]) -> Engine:
    """The engine by what it calls itself, else by the routes that only it has."""
    props, memory = routes.get("/props", {}), routes.get("/api/ps", {})
    if served.owner == "llamacpp" or "default_generation_settings" in props:
        # `n_ctx` is what one slot has; in router mode (`role`) it is 0, and nothing is known of the models
        return Engine(
            "llamacpp",
            props.get("build_info", ""),
            router="llama.cpp's router" if props.get("role") == "router" else "",
            context=props.get("default_generation_settings", {}).get("n_ctx") or None,
            slots=props.get("total_slots"),
            tells_cache=True,
        )
    if isinstance(memory.get("models"), list):
        version = routes.get("/api/version", {}).get("version", "")
        return _with_loaded(Engine("ollama", version, tells_cache=False), served, memory)
    if served.owner == "vllm":
        return Engine("vllm", routes.get("/version", {}).get("version", ""))
    return Engine()


def with_engine(served: Served, engine: Engine) -> Served:
    """The model with what is known of its engine: who serves it, the least context limit, whether a router chooses."""
    limits = [limit for limit in (served.max_tokens, engine.context) if limit]
    owner, alone = ("", False) if engine.router else (engine.name, served.alone)
    return replace(served, owner=owner, alone=alone, max_tokens=min(limits, default=None))


def ask_loaded(loader: Loader, served: Served, engine: Engine) -> Engine:
    """The same with what Ollama has in memory now; any other engine as it is."""
    if engine.name != "ollama":
        return engine
    [answer] = fetch(loader, Ask("/api/ps"), name="loaded")
    return _with_loaded(engine, served, json_object(answer))


def _with_loaded(engine: Engine, served: Served, memory: Mapping[str, Any]) -> Engine:
    models = read_loaded(memory)
    own = next((one for one in models if served.answers_to(one.name)), None)
    if own is None:
        return engine
    others = [one.name for one in models if one is not own and own.split]
    return replace(engine, context=own.context, model_bytes=own.bytes, gpu_bytes=own.gpu_bytes, others=others)


def fetch(loader: Loader, *asks: Ask, name: str = "fetch") -> list[HttpAnswer]:
    return [read_http(one) for one in loader.send(Batch(name, asks, timeout_s=FETCH_TIMEOUT_S, warm=None)).records]


def json_object(answer: HttpAnswer) -> dict[str, Any]:
    """The JSON object of a good answer; empty for any other."""
    try:
        found = orjson.loads(answer.body) if answer.status == 200 and not answer.problem else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_counters(loader: Loader) -> Counts | None:
    """What the server counts of its requests, None when it has not vLLM's counters."""
    [answer] = fetch(loader, Ask("/metrics"), name="metrics")
    good = answer.status == 200 and not answer.problem
    return parse_metrics(answer.body.decode("utf-8", "replace")) if good else None


def find_model(loader: Loader, wanted: str, base_url: str) -> Served:
    """The model to measure: `wanted`, or the only one when that is empty.

    Raises ClusterError when no server answers, UsageError when it serves another model.
    """
    [answer] = fetch(loader, Ask("/v1/models"))
    if answer.status is None:
        what = f"no server answers at {base_url}: {answer.problem}"
        remedy = "run `cluster status` to see whether it is running, or name another one with --base-url"
        raise ClusterError(what, code="server-unreachable", where=f"asked from {loader.where}", remedy=remedy)
    models = {str(model.get("id")): model for model in json_object(answer).get("data") or []}
    if not models:
        text = error_text(answer.body)
        remedy = "give the key with --api-key-file" if answer.status in (401, 403) else ""
        code = "api-key-refused" if remedy else "models-not-listed"
        raise ClusterError(f"{base_url}/v1/models returned HTTP {answer.status}: {text}", code=code, remedy=remedy)
    if not wanted and len(models) > 1:
        what = f"the server offers {len(models)} models: {', '.join(models)}"
        raise UsageError(what, code="model-not-chosen", remedy="name one with --model")
    name = wanted or next(iter(models))
    if name not in models:
        near = difflib.get_close_matches(name, models, 1, 0.0)
        raise UsageError(f"the server does not serve {name!r}", code="model-not-served", remedy=f"--model {near[0]}")
    own = models[name]
    # vLLM gives the `root` that the names of one model share, llama.cpp its `aliases`
    root = own.get("root")
    shared = {root, *(other for other, one in models.items() if one.get("root") == root)} if root else set()
    names = tuple(sorted({*shared, *(own.get("aliases") or ())} - {name}))
    alone = not models.keys() - {name, *names}
    return Served(name, own.get("max_model_len"), own.get("owned_by") or "", names, alone)


def measure_latency(loader: Loader) -> float:
    """Seconds that an empty question takes: the median of some GET /v1/models on a warm connection.

    llama-benchy's latency mode "api" is the mean of three.
    """
    record = loader.send(Batch("latency", (Ask("/v1/models"),) * LATENCY_ASKS, timeout_s=FETCH_TIMEOUT_S))
    return statistics.median(one.end_s - one.t0_s for one in record.records)


def tokenise(loader: Loader, model: str, corpus: str = "prose", *, chat: bool = False) -> Corpus:
    """A corpus as this server's token ids; as words where it has no /tokenize (Ollama) and counts prompts itself.

    A chat's template puts the start of a text (BOS) itself.
    Raises ClusterError when it does neither: lengths would be guesses.
    """
    texts = [(text, False) for text in (*corpus_pieces(corpus), "a")] + [("a", True)]
    asks = [  # in vLLM's words (`prompt`, `add_special_tokens`) and in llama.cpp's (`content`, `add_special`)
        Ask(
            "/tokenize",
            {"model": model, "prompt": text, "content": text, "add_special_tokens": special, "add_special": special},
        )
        for text, special in texts
    ]
    answers = fetch(loader, *asks, name="tokenise")
    *pieces, plain, special = (json_object(answer).get("tokens") or [] for answer in answers)
    for piece, answer in zip(pieces, answers, strict=False):
        if piece:
            continue
        if answer.status in NO_SUCH_PATH and (words := count_words(loader, model, corpus, chat)):
            return words
        remedy = "measure a server that has it (vLLM and llama.cpp do), or that counts prompts in its `usage`"
        raise _no_tokenizer("/tokenize", answer, "prompts of known length", remedy)
    starts = (special[:at] for at in range(len(special)) if special[at : at + len(plain)] == plain and not chat)
    begin = next(starts, [])
    return Corpus(tuple(token for piece in pieces for token in piece), tuple(begin))


def count_words(loader: Loader, model: str, corpus: str, chat: bool) -> Corpus | None:
    """A corpus of words, weighed by what the server counts for a text and for twice that; None when it counts none."""
    words = tuple(re.findall(r"\S+\s*", corpus_text(corpus)))
    text = "".join(words[WEIGHED])
    counts = []
    for prompt in (text, text + text):
        ask = {"model": model, "max_tokens": 1, "temperature": 0}
        body = chat_body(ask, prompt) if chat else ask | {"prompt": prompt}
        [answer] = fetch(loader, Ask(CHAT if chat else COMPLETIONS, body), name="count")
        counts.append((json_object(answer).get("usage") or {}).get("prompt_tokens") or 0)
    once, twice = counts
    tokens = twice - once
    if tokens <= 0:
        return None
    per_word = tokens / (WEIGHED.stop - WEIGHED.start)
    overhead, per_byte = max(0, once - tokens), tokens / len(text.encode())
    return Corpus(tuple(range(len(words))), (), words, per_word, overhead, per_byte)


def detokenise(loader: Loader, model: str, prompts: Sequence[Sequence[int]]) -> list[str]:
    """The text of token ids. Raises ClusterError when the server has no /detokenize (vLLM and llama.cpp do)."""
    asks = [Ask("/detokenize", {"model": model, "tokens": list(ids)}) for ids in prompts]
    texts = []
    for answer in fetch(loader, *asks, name="detokenise"):
        document = json_object(answer)
        text = document.get("prompt", document.get("content"))
        if text is None:
            raise _no_tokenizer("/detokenize", answer, "chats of a known length", "leave out --chat")
        texts.append(text)
    return texts


def _no_tokenizer(path: str, answer: HttpAnswer, needed: str, remedy: str) -> ClusterError:
    why = f"HTTP {answer.status}: {error_text(answer.body, 160)}" if answer.status else answer.problem
    what = f"the server has no {path} that answers ({why}), so {needed} cannot be made"
    return ClusterError(what, code="no-tokenizer", remedy=remedy)
