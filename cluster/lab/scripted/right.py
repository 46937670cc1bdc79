"""Servers that are right, and differ in form."""

from __future__ import annotations

from dataclasses import replace

from cluster.lab.scripted.asked import Asked, Body
from cluster.lab.scripted.behaviour import MODEL, Behaviour
from cluster.lab.scripted.forms import Document, Form
from cluster.lab.scripted.said import Said

STRANGE = ("seed", "stream_options", "chat_template_kwargs")


def _strict(body: Body) -> tuple[int, Document] | None:
    """The first field that it does not know."""
    found = next((name for name in STRANGE if name in body), None)
    said = {"detail": [{"type": "extra_forbidden", "loc": ["body", found], "msg": "Extra inputs are not permitted"}]}
    return (422, said) if found else None


def _talks(asked: Asked, said: Said) -> Said:
    return replace(said, content="Let me look that up for you.") if said.calls else said


NULLS = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
TIMINGS = {"timings": {"prompt_n": 10, "prompt_ms": 251.5, "predicted_n": 28, "predicted_ms": 407.6}}

RIGHT = (
    Behaviour("right", "as vLLM 0.32 with Gemma 4's parsers", "vLLM 0.32, chat_completion/serving.py"),
    Behaviour(
        "before-0.13",
        "the channel is called reasoning_content",
        "vLLM recipes PR 311",
        form=Form(reasoning="reasoning_content", no_calls=True),
    ),
    Behaviour(
        "sglang",
        "every field in every event, empty ones null",
        "SGLang PR 9657",
        owner="sglang",
        form=Form(
            reasoning="reasoning_content",
            each=NULLS,
            choice={"logprobs": None, "matched_stop": None},
            event={"usage": None},
        ),
    ),
    Behaviour(
        "llamacpp",
        "roles with null, timings beside usage",
        "openai-php/client issue 780",
        owner="llamacpp",
        form=Form(reasoning="reasoning_content", choice={}, extra=TIMINGS, event={"system_fingerprint": "b9554"}),
        tells=None,
    ),
    Behaviour(
        "ollama",
        "the role in each event, calls in one piece, thinks unless told not to",
        "Ollama PR 5915; dirac-run/dirac PR 227",
        owner="library",
        tells=None,
        thinks=True,
        form=Form(each={"role": "assistant", "content": ""}, opens=False, whole_calls=True, filler=""),
    ),
    Behaviour(
        "openai",
        "null usage in each event but the last",
        "OpenAI's API",
        form=Form(event={"usage": None, "service_tier": "default"}, choice={"logprobs": None}),
    ),
    Behaviour(
        "many-at-once",
        "the whole answer in one event",
        "vLLM issue 41691: --stream-interval",
        form=Form(portion=0, last=True),
    ),
    Behaviour(
        "drafted",
        "four tokens an event, the end with the last of them",
        "vLLM issue 41967: MTP",
        form=Form(portion=4, last=True),
    ),
    Behaviour(
        "gaps",
        "events without text between those with some, the role in each",
        "tokens that are half a character",
        form=Form(each={"role": "assistant"}, opens=False, gaps=True),
    ),
    Behaviour("no-role", "no event has a role", "OpenAI's API leaves it open", form=Form(opens=False)),
    Behaviour("empty-text", "content is empty and not null beside calls", "Ollama PR 5915", form=Form(filler="")),
    Behaviour("empty-calls", "an empty list of calls in each message", "vLLM before 0.19", form=Form(no_calls=True)),
    Behaviour(
        "crlf",
        "lines end in CR LF, comments between events",
        "the WHATWG's server-sent events",
        form=Form(newline="\r\n", comments=True),
    ),
    Behaviour("tight", "no blank behind `data:`", "the WHATWG's server-sent events", form=Form(data="data:")),
    Behaviour("split", "characters are cut between two portions", "HTTP/1.1", form=Form(splits=True)),
    Behaviour("until-close", "a stream ends with its connection", "HTTP/1.0 proxies", form=Form(until_close=True)),
    Behaviour("talks", "a sentence comes before a call", "Gemma 4 and Qwen, now and then", says=_talks),
    Behaviour("strict", "refuses fields that it does not know", "Mistral's API", refuses=_strict),
    Behaviour("thinks", "thinks unless it is forbidden to", "Qwen's chat templates", thinks=True),
    Behaviour(
        "alias",
        "answers under the first of its two names",
        "vLLM's --served-model-name with two names",
        names=("google/gemma-4-31B-it", MODEL),
        form=Form(told="google/gemma-4-31B-it"),
    ),
)
