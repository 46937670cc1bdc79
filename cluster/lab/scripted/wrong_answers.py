"""Servers whose texts are wrong: reasoning in the wrong place, garbage, blindness, another model's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cluster.lab.scripted.asked import Asked, Body, tokens
from cluster.lab.scripted.behaviour import MODEL, Behaviour
from cluster.lab.scripted.brain import answer
from cluster.lab.scripted.forms import Document, Form
from cluster.lab.scripted.said import Said

OTHER = "qwen3.6-35b-a3b"
Says = Callable[[Asked, Said], Said]


def _aloud(form: str, *, streamed: bool | None = None) -> Says:
    """Thoughts in the text; `form` holds {0}, the thoughts, and {1}, the answer."""

    def says(asked: Asked, said: Said) -> Said:
        if not said.reasoning or streamed not in (None, asked.stream):
            return said
        return replace(said, content=form.format(said.reasoning, said.content), reasoning="")

    return says


def _unanswered(asked: Asked, said: Said) -> Said:
    """Streamed: the channel is never closed, all of the answer is in it."""
    open_ended = asked.stream and said.reasoning
    return replace(said, reasoning=said.reasoning + said.content, content="") if open_ended else said


def _speaks(text: str) -> Says:
    """Always the same, to the last of its tokens."""

    def says(asked: Asked, said: Said) -> Said:
        pieces = tokens(text) or [""]
        most = min(asked.max_tokens, 200)
        spoken = "".join((pieces * (most // len(pieces) + 1))[:most])
        return replace(said, content=spoken, reasoning="", calls=(), finish="length", completion_tokens=most)

    return says


def _silent(asked: Asked, said: Said) -> Said:
    return replace(said, content="", reasoning="", calls=(), finish="stop", completion_tokens=1)


def _broken(asked: Asked, said: Said) -> Said:
    """Characters of more than one byte are lost when a token ends within them."""
    return replace(said, content="".join(one if one.isascii() else "�" for one in said.content))


def _guessing(asked: Asked, said: Said) -> Said:
    """Pictures are part of the prompt, but what it says is made up."""
    return replace(said, content="A red circle.\nA green square.") if asked.pictures else said


def _blind(asked: Asked) -> Asked:
    """The pictures are dropped before the model."""
    texts = [
        one | {"content": [part for part in one["content"] if part["type"] != "image_url"]}
        if isinstance(one["content"], list)
        else one
        for one in asked.messages
    ]
    return replace(asked, messages=tuple(texts))


def _text_only(body: Body) -> tuple[int, Document] | None:
    shown = any(isinstance(one["content"], list) for one in body["messages"])
    message = "At most 0 image(s) may be provided in one prompt."
    error = {"message": message, "type": "BadRequestError", "param": "image", "code": 400}
    return (400, {"error": error}) if shown else None


def _falls_back(asked: Asked, said: Said) -> Said:
    return replace(said, model=OTHER) if asked.tools else said


def _thinks_always(asked: Asked) -> Asked:
    return replace(asked, thinking=True)


def _too_long(asked: Asked, said: Said) -> Said:
    """max_tokens is not heeded."""
    return answer(replace(asked, max_tokens=16384))


def _reason(wrong: dict[str, str]) -> Says:
    return lambda asked, said: replace(said, finish=wrong.get(said.finish, said.finish))


def _stop_stays(asked: Asked, said: Said) -> Said:
    return replace(said, content=said.content + (said.stopped_at or ""))


WRONG = (
    Behaviour(
        "thoughts-aloud",
        "the channel is null, `thought` and what follows stand in the text, not streamed",
        "vLLM issue 38855",
        says=_aloud("thought\n{0}{1}", streamed=False),
    ),
    Behaviour(
        "thoughts-lost",
        "the channel is null and the thoughts are gone, not streamed",
        "vLLM issue 38855",
        says=_aloud("{1}", streamed=False),
    ),
    Behaviour(
        "channel-leaks",
        "the channel's marks stand in the text",
        "club-3090 PR 289; vLLM issue 39885",
        says=_aloud("<|channel>thought\n{0}\n<channel|>{1}"),
    ),
    Behaviour(
        "think-leaks",
        "<think> stands in the text",
        "servers without a reasoning parser",
        says=_aloud("<think>\n{0}\n</think>\n\n{1}"),
    ),
    Behaviour(
        "think-half",
        "only </think> stands in the text",
        "Qwen's templates open the thought in the prompt",
        says=_aloud("{0}\n</think>\n\n{1}"),
    ),
    Behaviour(
        "thoughts-twice",
        "thoughts stand in the channel and in the text",
        "vLLM issue 51679",
        says=lambda asked, said: replace(said, content=said.reasoning + said.content),
    ),
    Behaviour("never-answers", "streamed: all of the answer is in the channel", "vLLM issue 49717", says=_unanswered),
    Behaviour(
        "no-thoughts", "it never thinks", "models without reasoning", reads=lambda asked: replace(asked, thinking=False)
    ),
    Behaviour("always-thinks", "it thinks although it is told not to", "gpt-oss", reads=_thinks_always),
    Behaviour("exclamation", "`!!!!!!!!`", "write-ups of April 2026", says=_speaks("!")),
    Behaviour("a-a-a", "` a a a a`", "vLLM issue 39407", says=_speaks(" a")),
    Behaviour("loops", "one phrase without end", "vLLM issue 40080", says=_speaks(" The sky is blue because it is.")),
    Behaviour("pads", "`<pad>` without end", "drafters of Gemma 4", says=_speaks("<pad>")),
    Behaviour("empty", "no text at all", "noonghunna/club-3090 issue 2", says=_silent),
    Behaviour(
        "broken-characters",
        "characters of more than one byte are lost",
        "detokenisers that work by token",
        says=_broken,
    ),
    Behaviour("blind", "pictures are dropped", "write-up on Gemma 4 31B, April 2026", reads=_blind),
    Behaviour("guesses", "pictures are not looked at", "encoders with wrong weights", says=_guessing),
    Behaviour("text-only", "pictures are refused", "vLLM 0.32, multimodal/processing/context.py", refuses=_text_only),
    Behaviour(
        "failover", "requests with tools are answered by another model", "write-up on MTP, May 2026", says=_falls_back
    ),
    Behaviour(
        "other-model", "every request is answered by another model", "write-up on MTP, May 2026", form=Form(told=OTHER)
    ),
    Behaviour(
        "any-name", "a name that nobody serves is served", "routers with a fallback", limit=None, form=Form(told=MODEL)
    ),
    Behaviour("listed-otherwise", "/v1/models has another name", "routers with a fallback", lists=(OTHER,)),
    Behaviour(
        "short-context",
        "its context is a quarter of what was asked for",
        "Ollama's default of 4096",
        limit=16384,
        tells=16384,
    ),
    Behaviour("clips", "requests beyond the context are cut without a word", "ollama/ollama issue 7484", limit=None),
    Behaviour("too-long", "max_tokens is not heeded", "servers that know max_completion_tokens only", says=_too_long),
    Behaviour(
        "stop-for-length", "finish_reason is stop at max_tokens", "OpenAI's API", says=_reason({"length": "stop"})
    ),
    Behaviour("no-reason", "finish_reason is null", "OpenAI's API", says=_reason({"stop": "", "length": ""})),
    Behaviour("eos", "finish_reason is eos_token", "text-generation-inference", says=_reason({"stop": "eos_token"})),
    Behaviour(
        "stop-stays", "the stop string stands in the text", "vLLM's include_stop_str_in_output", says=_stop_stays
    ),
    Behaviour(
        "stop-ignored", "stop strings are not heeded", "OpenAI's API", reads=lambda asked: replace(asked, stop=())
    ),
)
