"""What serves at an address that is not ours: engine, version, context, slots, a router before it, a split model.

One round of questions after /v1/models. Routes and fields as these have them:
vLLM /version · SGLang 0.5.23 /server_info (earlier /get_server_info) · llama.cpp b11434 /props · Ollama 0.33
/api/version, /api/ps · LiteLLM 1.108 /health/liveliness and its headers · LM Studio 0.4 /api/v0/models ·
TensorRT-LLM 1.2 /version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from cluster.bench.belief import same_name
from cluster.bench.http_answer import HttpAnswer, read_http
from cluster.bench.loader import Loader
from cluster.bench.records import Ask, Round
from cluster.bench.server import FETCH_TIMEOUT_S, Served
from cluster.spark.ollama import Loaded, read_loaded

BY_OWNER = {
    "vllm": ("/version",),
    "sglang": ("/server_info", "/get_server_info"),
    "llamacpp": ("/props",),
    "tensorrt_llm": ("/version",),
}
"""What is asked of a server that says in /v1/models what it is."""
LOADED = "/api/ps"
OTHERWISE = ("/api/version", LOADED, "/health/liveliness", "/props", "/server_info", "/api/v0/models", "/version")
"""What is asked of one that does not; most of it is not there."""
TITLES = {
    "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "ollama": "Ollama", "tensorrt_llm": "TensorRT-LLM",
    "lmstudio": "LM Studio",
}  # fmt: skip


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
        """Its name as people write it."""
        return TITLES.get(self.name, self.name)

    @property
    def waits(self) -> bool:
        """Whether it can tell of the model only after a first request."""
        return self.name == "ollama" and self.loaded is None

    def document(self) -> dict[str, Any]:
        """For the result: what decides a number; `loaded` in GB where a part of it is not on the GPU."""
        told: dict[str, Any] = {name: getattr(self, name) for name in ("name", "version", "router", "context", "slots")}
        told |= {"tells_cache": self.tells_cache}
        if self.loaded:
            told["model_bytes"], told["gpu_bytes"] = self.loaded.bytes, self.loaded.gpu_bytes
            told["others"] = [one.name for one in self.others if self.loaded.split]
        return {key: value for key, value in told.items() if value not in ("", None, [])}


def find_engine(loader: Loader, served: Served) -> Engine:
    """Ask the server what it is: one round, and nothing that changes anything."""
    paths = BY_OWNER.get(served.owner, OTHERWISE)
    record = loader.send(Round("engine", tuple(Ask(path) for path in paths), timeout_s=FETCH_TIMEOUT_S, warm=None))
    answers = dict(zip(paths, map(read_http, record.records), strict=True))
    return read_engine(served, answers)


def known_as(served: Served, engine: Engine) -> Served:
    """The model with what is known of its engine: who serves it, and the least of the context limits told."""
    limits = [limit for limit in (served.max_tokens, engine.context) if limit]
    return replace(served, owner="" if engine.router else engine.name, max_tokens=min(limits) if limits else None)


def look_again(loader: Loader, served: Served, engine: Engine) -> Engine:
    """The same with what Ollama has in memory now; any other engine as it is."""
    if engine.name != "ollama":
        return engine
    record = loader.send(Round("loaded", (Ask(LOADED),), timeout_s=FETCH_TIMEOUT_S, warm=None))
    return _with_loaded(engine, served, document(read_http(record.records[0])))


def read_engine(served: Served, answers: Mapping[str, HttpAnswer]) -> Engine:
    """What the answers say; the first engine that recognises its own."""
    told = {path: document(answer) for path, answer in answers.items()}
    engine = _engine(served, told)
    return replace(engine, router=_router(served, told, answers))


def _engine(served: Served, told: Mapping[str, Any]) -> Engine:
    """The engine by what it calls itself, else by the routes that only it has."""
    info = told.get("/server_info") or told.get("/get_server_info") or {}
    if served.owner == "sglang" or "max_total_num_tokens" in info:
        return _read_sglang(info)
    props = told.get("/props", {})
    if served.owner == "llamacpp" or "default_generation_settings" in props:
        return _read_llamacpp(props)
    if LOADED in told and isinstance(told[LOADED].get("models"), list):
        version = _text(told.get("/api/version", {}), "version")
        return _with_loaded(Engine("ollama", version, tells_cache=False), served, told[LOADED])
    if lmstudio := _lmstudio_model(served, told.get("/api/v0/models", {})):
        return Engine("lmstudio", context=_number(lmstudio, "loaded_context_length"))
    if served.owner in TITLES:
        return Engine(served.owner, _text(told.get("/version", {}), "version"))
    return Engine()


def _read_sglang(info: Mapping[str, Any]) -> Engine:
    """/server_info: its arguments as they were resolved, with the scheduler's numbers."""
    return Engine(
        "sglang",
        _text(info, "version"),
        context=_number(info, "context_length"),
        slots=_number(info, "max_running_requests"),
        tells_cache=bool(info["enable_cache_report"]) if "enable_cache_report" in info else None,
    )


def _read_llamacpp(props: Mapping[str, Any]) -> Engine:
    """/props: `n_ctx` is what one slot has. In router mode (`role`) it is 0, and nothing is told of the models."""
    settings = props.get("default_generation_settings")
    context = _number(settings, "n_ctx") if isinstance(settings, dict) else None
    return Engine(
        "llamacpp",
        _text(props, "build_info"),
        context=context,
        slots=_number(props, "total_slots"),
        tells_cache=True,
    )


def _lmstudio_model(served: Served, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model in LM Studio's own list; empty for any other server."""
    models = told.get("data") if isinstance(told.get("data"), list) else []
    own = (one for one in models or () if isinstance(one, dict) and one.get("id") == served.model and "state" in one)
    return next(own, {})


def _with_loaded(engine: Engine, served: Served, told: Mapping[str, Any]) -> Engine:
    """Ollama's engine with the models in its memory."""
    models = read_loaded(told)
    own = next((one for one in models if same_name(served.model, one.name)), None)
    others = tuple(one for one in models if one is not own)
    return replace(engine, loaded=own, others=others, context=own.context if own else None)


def _router(served: Served, told: Mapping[str, Any], answers: Mapping[str, HttpAnswer]) -> str:
    """What stands before the server, and chooses who answers; empty when nothing shows."""
    for answer in answers.values():
        if any(name.startswith("x-litellm-") for name in answer.headers):
            return _named("LiteLLM", answer.headers.get("x-litellm-version", ""))
    alive = answers.get("/health/liveliness")
    if alive and alive.status == 200 and b"I'm alive!" in alive.body:
        return "LiteLLM"
    if told.get("/props", {}).get("role") == "router":
        return "llama.cpp's router"
    return "llama-swap" if served.owner == "llama-swap" else ""


def _named(title: str, version: str) -> str:
    return f"{title} {version}".strip()


def document(answer: HttpAnswer) -> dict[str, Any]:
    """The JSON object of a good answer; empty for any other."""
    if answer.status != 200 or answer.problem:
        return {}
    try:
        found = orjson.loads(answer.body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    return value if isinstance(value, str) else ""


def _number(told: Mapping[str, Any], key: str) -> int | None:
    """A positive whole number."""
    value = told.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
