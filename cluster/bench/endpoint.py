"""What a server says of itself before anything is timed, and whether an answer is of what was asked."""

from __future__ import annotations

import difflib
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from cluster.bench.loader import Ask, Loader, Round
from cluster.bench.metrics import Counts, parse_metrics
from cluster.bench.read import HttpAnswer, RequestTrace, error_text, read_http
from cluster.bench.workload import CHAT, COMPLETIONS, Corpus, corpus_pieces, corpus_text, say
from cluster.errors import ClusterError, UsageError
from cluster.spark.processes import Loaded, read_loaded

ANOTHER = "another model answered"
CUT = "the prompt was cut"
LEAST_OF_TEXT = 0.7
"""What a server counts of a text may be less than it was weighed as; of a prompt that it cuts Ollama keeps a half."""

REMEDIES = {
    ANOTHER: "ask the server behind the router with --base-url, or look at the router's fallbacks",
    CUT: "give the server a longer context (Ollama: OLLAMA_CONTEXT_LENGTH, or num_ctx in the Modelfile), or a smaller "
    "--depth",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is held against. `names`: other names of the model; `exact`: the prompt went out as token ids.

    `alone`: the server has one model and no router shows before it, so another name is only another name.
    """

    model: str
    names: Collection[str] = ()
    alone: bool = True
    exact: bool = True


def same_name(asked: str, given: str) -> bool:
    """One name, or two ways to write it: Ollama adds `:latest`, routers put the provider before a slash."""
    one, other = (name.lower().removesuffix(":latest") for name in (asked, given))
    return one == other or one.rpartition("/")[2] == other.rpartition("/")[2]


def check_answer(trace: RequestTrace, asked: Asked, sent_tokens: int) -> RequestTrace:
    """The request as it was, or as failed where another model answered or a part of the prompt was not read."""
    if trace.error:
        return trace
    names, counted = (asked.model, *asked.names), trace.prompt_tokens
    if trace.model and not asked.alone and not any(same_name(name, trace.model) for name in names):
        return replace(trace, error=f"{ANOTHER}: {trace.model} instead of {asked.model}")
    least = sent_tokens if asked.exact else LEAST_OF_TEXT * sent_tokens
    if counted is not None and counted < least:
        return replace(trace, error=f"{CUT}: the server read {counted} of {sent_tokens} tokens")
    return trace


def remedy_of(error: str) -> str:
    """What to do about a doubtful answer; empty for any other error."""
    return next((remedy for begin, remedy in REMEDIES.items() if error.startswith(begin)), "")


IGNORED = {
    "llamacpp": ("min_tokens", "continuous_usage_stats"),
    "ollama": ("min_tokens", "ignore_eos", "continuous_usage_stats"),
}
"""Fields that an engine takes without a word and does not look at: not sent."""
INSTEAD: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"timings_per_token": True}}
"""What it has in their place: llama.cpp counts its tokens in each event so."""
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


def lacking(fields: Sequence[str]) -> str:
    """Fields by what is lost without them: `min_tokens, ignore_eos: outputs may end early; …`."""
    by_effect: dict[str, list[str]] = {}
    for name in fields:
        by_effect.setdefault(EFFECTS.get(name, "measured without"), []).append(name)
    return "; ".join(f"{', '.join(names)}: {effect}" for effect, names in by_effect.items())


def ignored(engine: str) -> tuple[str, ...]:
    """Fields of ours that this engine is known not to look at, and has nothing else for."""
    made_up_for = ("min_tokens", "continuous_usage_stats") if engine == "llamacpp" else ()
    return tuple(name for name in IGNORED.get(engine, ()) if name not in made_up_for)


def engine_warnings(engine: Mapping[str, Any], model: str) -> Iterator[str]:
    """What must be said before the numbers of this engine (`Engine.document`)."""
    whole, on_gpu = engine.get("model_bytes", 0), engine.get("gpu_bytes", 0)
    if on_gpu < whole:
        others = f" (also loaded: {', '.join(engine['others'])})" if engine.get("others") else ""
        yield (
            f"SPLIT OVER CPU AND GPU: {1 - on_gpu / whole:.0%} of {model} is on the CPU: {on_gpu / 1e9:.1f} of "
            f"{whole / 1e9:.1f} GB are in GPU memory, and the speed is not the GPU's. Unload it (`ollama stop "
            f"{model}`, or keep_alive 0), stop what holds GPU memory{others}, and load it again"
        )
    if router := engine.get("router"):
        yield f"A ROUTER ({router}) stands before the model: its time is in the numbers, and another model may answer"
    if engine.get("answers_as"):
        yield f"asked for {model}, the answers are of {engine['answers_as']}: the numbers are of whatever that is"


def engine_notes(engine: Mapping[str, Any], *, concurrency: int, prefix_caching: bool) -> Iterator[str]:
    """What a reader must know of an engine's rows."""
    name = engine.get("name", "")
    title, slots = TITLES.get(name, name), engine.get("slots")
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


BY_OWNER = {
    "vllm": ("/version",),
    "llamacpp": ("/props",),
}
"""What is asked of a server that says in /v1/models what it is."""
LOADED = "/api/ps"
UNKNOWN_OWNER = ("/api/version", LOADED, "/props")
"""What is asked of one that does not; most of it is not there."""
TITLES = {"vllm": "vLLM", "llamacpp": "llama.cpp", "ollama": "Ollama"}


@dataclass(frozen=True, slots=True)
class Engine:
    """What a server is, as far as it tells. `name`: a key of TITLES, empty when unknown; `router`: what stands before.

    `context`: tokens for one request, None when it does not tell; `slots`: requests it takes at the same time.
    `tells_cache`: whether an answer says how much of its prompt was cached, None when unknown. `loaded`: the model that
    is asked, `others`: more models in the same memory (Ollama). `waits`: Ollama has not loaded the model yet.
    """

    name: str = ""
    version: str = ""
    router: str = ""
    context: int | None = None
    slots: int | None = None
    tells_cache: bool | None = None
    loaded: Loaded | None = None
    others: tuple[Loaded, ...] = ()

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def waits(self) -> bool:
        """Whether it can tell of the model only after a first request."""
        return self.name == "ollama" and self.loaded is None

    def document(self) -> dict[str, Any]:
        """For the result: what decides a number; `loaded` in GB where a part of it is not on the GPU."""
        names = ("name", "version", "router", "context", "slots", "tells_cache")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.loaded:
            found["model_bytes"], found["gpu_bytes"] = self.loaded.bytes, self.loaded.gpu_bytes
            found["others"] = [one.name for one in self.others if self.loaded.split]
        return {key: value for key, value in found.items() if value not in ("", None, [])}


def find_engine(loader: Loader, served: Served) -> Engine:
    """Ask the server what it is: one round, and nothing that changes anything."""
    paths = BY_OWNER.get(served.owner, UNKNOWN_OWNER)
    return read_engine(served, dict(zip(paths, fetch(loader, *map(Ask, paths), name="engine"), strict=True)))


def with_engine(served: Served, engine: Engine) -> Served:
    """The model with what is known of its engine: who serves it, and the least of the context limits told."""
    limits = [limit for limit in (served.max_tokens, engine.context) if limit]
    return replace(served, owner="" if engine.router else engine.name, max_tokens=min(limits) if limits else None)


def ask_loaded(loader: Loader, served: Served, engine: Engine) -> Engine:
    """The same with what Ollama has in memory now; any other engine as it is."""
    if engine.name != "ollama":
        return engine
    [answer] = fetch(loader, Ask(LOADED), name="loaded")
    return _with_loaded(engine, served, json_object(answer))


def read_engine(served: Served, answers: Mapping[str, HttpAnswer]) -> Engine:
    """What the answers say: the engine by what it calls itself, else by the routes that only it has."""
    routes = {path: json_object(answer) for path, answer in answers.items()}
    props = routes.get("/props", {})
    if served.owner == "llamacpp" or "default_generation_settings" in props:
        # `n_ctx` is what one slot has; in router mode (`role`) it is 0, and nothing is told of the models
        settings = props.get("default_generation_settings")
        return Engine(
            "llamacpp",
            _text(props, "build_info"),
            router="llama.cpp's router" if props.get("role") == "router" else "",
            context=_number(settings, "n_ctx") if isinstance(settings, dict) else None,
            slots=_number(props, "total_slots"),
            tells_cache=True,
        )
    if LOADED in routes and isinstance(routes[LOADED].get("models"), list):
        version = _text(routes.get("/api/version", {}), "version")
        return _with_loaded(Engine("ollama", version, tells_cache=False), served, routes[LOADED])
    if served.owner == "vllm":
        return Engine("vllm", _text(routes.get("/version", {}), "version"))
    return Engine()


def _with_loaded(engine: Engine, served: Served, memory: Mapping[str, Any]) -> Engine:
    """Ollama's engine with the models in its memory."""
    models = read_loaded(memory)
    own = next((one for one in models if same_name(served.model, one.name)), None)
    others = tuple(one for one in models if one is not own)
    return replace(engine, loaded=own, others=others, context=own.context if own else None)


def json_object(answer: HttpAnswer) -> dict[str, Any]:
    """The JSON object of a good answer; empty for any other."""
    if answer.status != 200 or answer.problem:
        return {}
    try:
        found = orjson.loads(answer.body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def _number(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


LATENCY_ASKS = 7
FETCH_TIMEOUT_S = 60.0
WEIGHED = slice(1024, 1280)  # words that the server counts once, and twice in a row: what is over is no word's
NO_SUCH_PATH = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Served:
    """A model that the server offers; `max_tokens` is its context limit, None when the server does not tell.

    `owner`: what the server calls itself there (vllm, llamacpp …), empty when it does not. `names`: its other
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


def fetch(loader: Loader, *asks: Ask, name: str = "fetch") -> list[HttpAnswer]:
    """Ask the server one after the other."""
    record = loader.send(Round(name, asks, timeout_s=FETCH_TIMEOUT_S, warm=None))
    return [read_http(one) for one in record.records]


class CounterReader:
    """Reads what the server counts of itself; one that counts nothing we know is asked once."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._tells = True

    def read(self) -> Counts | None:
        """The counts as they are now, None when the server tells none."""
        counts = None
        if self._tells:
            [answer] = fetch(self._loader, Ask("/metrics"), name="metrics")
            if answer.status == 200 and not answer.problem:
                counts = parse_metrics(answer.body.decode("utf-8", "replace"))
        self._tells = counts is not None
        return counts


def find_model(loader: Loader, wanted: str, base_url: str) -> Served:
    """The model to measure: `wanted`, or the only one when that is empty.

    Raises ClusterError when no server answers, UsageError when it serves another model.
    """
    [answer] = fetch(loader, Ask("/v1/models"))
    if answer.status is None:
        raise ClusterError(
            f"no server answers at {base_url}: {answer.problem}",
            code="server-unreachable",
            where=f"asked from {loader.where}",
            remedy="run `cluster status` to see whether it is running, or name another one with --base-url",
        )
    listed = json_object(answer).get("data", [])
    models = {str(model.get("id")): model for model in listed if isinstance(model, dict)}
    if not models:
        said = error_text(answer.body)
        remedy = "give the key with --api-key-file" if answer.status in (401, 403) else ""
        code = "api-key-refused" if remedy else "models-not-listed"
        raise ClusterError(f"{base_url}/v1/models returned HTTP {answer.status}: {said}", code=code, remedy=remedy)
    if not wanted and len(models) > 1:
        raise UsageError(
            f"the server offers {len(models)} models: {', '.join(models)}",
            code="model-not-chosen",
            remedy="name one with --model",
        )
    name = wanted or next(iter(models))
    if name not in models:
        near = difflib.get_close_matches(name, models, 1, 0.0)
        raise UsageError(
            f"the server does not serve {name!r}",
            code="model-not-served",
            remedy=f"--model {near[0]}",
        )
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
    for answer in pieces:
        piece = _ids(answer)
        ids += piece
        if piece:
            continue
        if answer.status in NO_SUCH_PATH and (words := count_words(loader, model, corpus, chat)):
            return words
        raise ClusterError(
            f"the server has no /tokenize that answers ({_refusal(answer)}), so prompts of known length cannot be made",
            code="no-tokenizer",
            remedy="measure a server that has it (vLLM and llama.cpp do), or that counts prompts in its `usage`",
        )
    return Corpus(tuple(ids), _begin(_ids(plain), _ids(special)))


def count_words(loader: Loader, model: str, corpus: str, chat: bool) -> Corpus | None:
    """A corpus of words, weighed by what the server counts for a text and for twice that; None when it counts none."""
    words, counts = tuple(re.findall(r"\S+\s*", corpus_text(corpus))), []
    text = "".join(words[WEIGHED])
    for prompt in (text, text + text):
        ask = {"model": model, "max_tokens": 1, "temperature": 0}
        body = say(ask, prompt) if chat else ask | {"prompt": prompt}
        [answer] = fetch(loader, Ask(CHAT if chat else COMPLETIONS, body), name="count")
        usage = json_object(answer).get("usage") or {}
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
    """The text of token ids. Raises ClusterError when the server has no /detokenize (vLLM and llama.cpp do)."""
    asks = [Ask("/detokenize", {"model": model, "tokens": list(ids)}) for ids in prompts]
    texts = []
    for answer in fetch(loader, *asks, name="detokenise"):
        document = json_object(answer)
        text = document.get("prompt", document.get("content", document.get("text")))
        if not isinstance(text, str):
            raise ClusterError(
                f"the server has no /detokenize that answers ({_refusal(answer)}), so chats of a known length cannot "
                "be made",
                code="no-tokenizer",
                remedy="leave out --chat",
            )
        texts.append(text)
    return texts


def _tokenize_ask(model: str, text: str, special: bool) -> Ask:
    """The question in vLLM's words (`prompt`, `add_special_tokens`) and in llama.cpp's (`content`, `add_special`)."""
    body = {"model": model, "prompt": text, "content": text, "add_special_tokens": special, "add_special": special}
    return Ask("/tokenize", body)


def _refusal(answer: HttpAnswer) -> str:
    """Why there is no answer, in the server's words where it has any."""
    return f"HTTP {answer.status}: {error_text(answer.body, 160)}" if answer.status else answer.problem


def _ids(answer: HttpAnswer) -> list[int]:
    """The token ids of an answer; empty when there are none."""
    tokens = json_object(answer).get("tokens")
    return tokens if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else []


def _begin(plain: list[int], special: list[int]) -> tuple[int, ...]:
    """What comes before a text when special tokens are asked for."""
    places = range(len(special) - len(plain) + 1) if plain else ()
    return next((tuple(special[:at]) for at in places if special[at : at + len(plain)] == plain), ())


def measure_latency(loader: Loader) -> float:
    """Seconds that an empty question takes: the median of some GET /v1/models on a warm connection.

    llama-benchy's latency mode "api" is the mean of three.
    """
    asks = tuple(Ask("/v1/models") for _ in range(LATENCY_ASKS))
    record = loader.send(Round("latency", asks, timeout_s=FETCH_TIMEOUT_S))
    return statistics.median(one.end_s - one.t0_s for one in record.records)
