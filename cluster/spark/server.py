"""The server on the head: health, models, queue, one completion, its own counters, and whether a text is sane."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.config.secrets import API_KEY
from cluster.spark.fact import Missing

LAST_WORDS = 3000
"""Words from the end that are searched for loops: an endless repetition is still there at the end."""

TOOL_MARKS = re.compile(
    r"""<\|?/?tool_(?:call|response)s?\|?>  # Gemma 4 <|tool_call> <tool_call|>, Hermes and Qwen <tool_call>
    | <\|["\\] | "\|>                       # Gemma 4's quotation mark <|"|>, whole or cut
    | \bcall:\w+\{                          # Gemma 4's call after its marks were stripped
    | <function=\w+ | </function>           # Qwen 3 coder, Llama
    | <\|python_tag\|> | \[TOOL_CALLS\]     # Llama 3, Mistral
    | <[|｜]tool[▁_]                        # DeepSeek, Kimi
    | <pad>                                 # what a drafter left of them
    """,
    re.VERBOSE,
)
"""What models write around tool calls and a parser must take away."""

_MARKS = re.compile(
    r"""<\|[\w"/-]{1,40}\|?> | <[\w"/-]{1,40}\|>  # <|im_end|>, <|turn>, <turn|>
    | <｜[^<>\n]{1,40}｜>                        # DeepSeek's, in full-width bars
    | <(?:pad|eos|bos|unk|mask|start_of_turn|end_of_turn|unused\d+)>
    | \[/?INST\] | \[(?:PAD|UNK)\] | </s>\s*$ | <0x[0-9A-F]{2}>
    """,
    re.VERBOSE,
)
_THOUGHTS = re.compile(r"</?(?:think|thought|thinking)>|<\|?channel\|?>|\Athought\n")
_TOKENS = re.compile(r"(?:^|(?<=[\w.,]))[Ġ▁](?=\w)")
_WORD = re.compile(r"['’\"(]?[^\W\d_]+(?:['’-][^\W\d_]+)*['’\")]?[.!?…,;:]*['’\")]?")
_BREAKS_ALPHABETS = ("CYRILLIC", "ARABIC", "HEBREW", "DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "THAI", "GEORGIAN")
"""Alphabets that never touch a Latin letter within a word. Greek does (µs), and Chinese, Japanese and Korean do."""


def insane(text: str) -> str:
    """Why a text cannot be a model's sane answer, in a few words that go on after "the text"; empty for a sane one."""
    if not text.strip():
        return "is empty"
    judges = (_same, _loop, _poor, _glued, _no_text, _mixed)
    return next(filter(None, (judge(text) for judge in judges)), "")


def leaked(text: str) -> str:
    """The first mark of a tokenizer or a chat template in a text, empty without one."""
    found = _MARKS.search(text) or TOOL_MARKS.search(text)
    if found:
        return found.group().strip()
    raw = _TOKENS.findall(text)
    return raw[0] if len(raw) >= 3 else ""


def thinks_aloud(text: str) -> str:
    """The mark that shows that an answer contains the model's reasoning, empty without one. `thought` on a line of its
    own at the beginning is Gemma 4's `<|channel>thought` without the special tokens (vLLM issue 38855)."""
    found = _THOUGHTS.search(text.lstrip())
    return found.group().strip() if found else ""


def _same(text: str) -> str:
    """`!!!!!!!!`, or one word alone. Rules (`-----`), digits, blanks and screams may be longer."""
    for run in re.finditer(r"(\S)\1{15,}|(\s)\2{199,}", text):
        said, length = run.group()[0], len(run.group())
        draws = said in "-=_*~#.+/\\|:<>^·•…" or said.isdigit() or unicodedata.category(said) == "So"
        if length > (15 if said == "!" else 30 if said.isalpha() else 199 if said.isspace() or draws else 20):
            return f"repeats one character: {run.group()[:40]!r}"
    words = text.split()
    return f"repeats one word: {text[:40]!r}" if len(words) >= 8 and len(set(words)) == 1 else ""


def _loop(text: str) -> str:
    words = text.split()[-LAST_WORDS:]
    last: dict[tuple[str, ...], int] = {}
    apart: Counter[int] = Counter()  # distances at which four words in a row repeat
    for at in range(len(words) - 3):
        four = tuple(words[at : at + 4])
        if four in last:
            apart[at - last[four]] += 1
        last[four] = at
    for size in sorted(size for size, times in apart.items() if times >= size):
        enough = 16 if size == 1 else 8 if size <= 3 else 6 if size < 10 else 4 if size < 40 else 3
        enough_code = enough * (4 if size < 10 else 2)  # for numbers, code and tables, which go on up to the end, too
        for first, length in _runs(words, size):
            phrase, repeats = words[first : first + size], length / size
            at_end = first + length >= len(words)
            if repeats >= enough and (_spoken(phrase) or (at_end and repeats >= enough_code)):
                return f"repeats {_quote(phrase)} {int(repeats)} times"
    return ""


def _runs(words: list[str], size: int) -> Iterator[tuple[int, int]]:
    """Where words repeat with a period of `size` at least twice: the first of them, and how many they are."""
    same = 0
    for at in range(size, len(words) + 1):
        if at < len(words) and words[at] == words[at - size]:
            same += 1
            continue
        if same >= size:
            yield at - same - size, same + size
        same = 0


def _spoken(phrase: list[str]) -> bool:
    """Made of words as they are spoken, and so not code, a table, numbers, or one name in an array (`NULL,`)."""
    share = sum(bool(_WORD.fullmatch(word)) for word in phrase) / len(phrase)
    return share >= (0.8 if len(phrase) >= 10 else 1) and not (len(phrase) == 1 and phrase[0][-1] in ",;:")


def _quote(phrase: list[str]) -> str:
    said = " ".join(phrase)
    return repr(said if len(said) <= 60 else said[:59] + "…")


def _glued(text: str) -> str:
    """`'s's's's` and `hahaha…`: a loop without blanks, of letters and marks of speech, without base64's capitals."""
    for word in re.findall(r"\S{40,}", text):
        found = re.search(r"((?:[^\W\d_]|['’!?,]){2,24}?)\1{11,}", word)
        phrase = found.group(1) if found else ""
        if len(set(phrase)) > 1 and any(map(str.isalpha, phrase)) and (phrase == phrase.lower() or phrase.istitle()):
            return f"repeats {phrase!r} without end"
    return ""


def _poor(text: str) -> str:
    """A hundred spoken words in a row of which at most ten differ."""
    words = text.lower().split()[-LAST_WORDS:]
    for first in range(0, len(words) - 99, 20):
        part = words[first : first + 100]
        if len(set(part)) <= 10 and sum(bool(_WORD.fullmatch(word)) for word in part) >= 90:
            return f"has the same few words again and again: {_quote(part[:12])}"
    return ""


def _no_text(text: str) -> str:
    """Three that are no characters: U+FFFD, control, private and unassigned ones. One or two may come of a character
    that `max_tokens` cut in its middle."""
    kinds = ("Cc", "Co", "Cn", "Cs")
    wrong = [one for one in text if one == "�" or (unicodedata.category(one) in kinds and one not in "\t\n\r\f\x1b")]
    return f"has characters that are no text: {''.join(wrong[:8])!r}" if len(wrong) >= 3 else ""


def _mixed(text: str) -> str:
    """Words in which Latin letters touch those of another alphabet, as in `Schдum`."""
    mixed = []
    for word in filter(lambda word: not word.isascii(), re.findall(r"[^\W\d_]{2,}", text)):
        kinds = {unicodedata.name(letter, "").split(" ")[0] for letter in word}
        if "LATIN" in kinds and not kinds.isdisjoint(_BREAKS_ALPHABETS):
            mixed.append(word)
    return f"mixes alphabets within words: {' '.join(mixed[:3])}" if len(mixed) >= 3 else ""


EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that are all of a host's, and the one by which the host itself calls them."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where an API is, as seen from the head, the model's name in it, and the private file with its key."""

    url: str
    model: str
    key_file: str = ""

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any], home: str) -> Server:
        recipe, bind = spec["recipe"], spec["bind"]
        address = EVERYWHERE.get(bind, bind)
        address = f"[{address}]" if ":" in address else address
        key_file = f"{home}/api-key" if API_KEY in spec["secrets"] else ""
        return cls(f"http://{address}:{recipe['port']}", recipe["served_model_name"] or recipe["model"], key_file)


@dataclass(frozen=True, slots=True)
class Completion:
    """The server's answers. `text`, `tokens` and `seconds` are of the completion, `status` its HTTP status, `error` the
    server's own words when it was not 200. `load` is what vLLM's counters say, None for another server."""

    healthy: bool
    models: tuple[str, ...]
    load: Load | None = None
    status: int = 0
    text: str = ""
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""

    def wrong(self, served_name: str, *, judge_text: bool) -> str:
        """What is wrong with it in a few words, empty when nothing is."""
        if not self.healthy:
            return "/health is not 200"
        if served_name not in self.models:
            return f"/v1/models has {', '.join(self.models) or 'nothing'}, not {served_name}"
        if self.status != 200:
            return f"the completion ended with HTTP {self.status}: {self.error[:300]}"
        if self.tokens < 1:
            return "the completion has no token"
        wrong = insane(self.text) if judge_text else ""
        return f"the completion {wrong}" if wrong else ""


def question(server: Server, *, ask: bool, timeout_s: float, tokens: int = 24) -> Question:
    """Ask /health and /v1/models, and with `ask` for one completion of at most `tokens` tokens."""
    given = {"ask": ask, "tokens": tokens, "timeout_s": timeout_s}
    return far("completion", {**asdict(server), **given}, timeout_s=timeout_s + 5)


def parse(answer: Answer) -> Completion | Missing:
    try:
        document = json.loads(answer.text)
        loads = recognise_metrics(document.get("counters") or "") or (None,)
        names = ("status", "text", "tokens", "seconds", "error")
        completed = {name: document[name] for name in names if document.get(name)}
        return Completion(document["health"] == 200, tuple(document["models"]), loads[-1], **completed)
    except (ValueError, KeyError, TypeError, AttributeError):
        why = answer.error_text.strip()[-200:] or "the program did not answer"
        return Missing(why, "timeout" if answer.exit is None else "unreadable")


def recognise(text: str) -> str | None:
    """The text of a completion in an answer of an OpenAI API that somebody pasted; None when there is none."""
    try:
        document, _ = json.JSONDecoder().raw_decode(text, text.index('{"'))
        choice = document["choices"][0]
        said = choice["text"] if "text" in choice else choice["message"]["content"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return said if isinstance(said, str) else None


_COUNTERS = "num_requests_running", "num_requests_waiting", "generation_tokens", "prompt_tokens", "kv_cache_usage_perc"
_LINE = re.compile(
    rf"^(?:\S*\s)?vllm[:_](?P<name>(?:{'|'.join(_COUNTERS)})(?:_total)?)"
    r"(?P<labels>\{[^}]*\})?[ \t]+(?P<value>[\d.]+(?:e[+-]?\d+)?)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Load:
    """vLLM's counters at one time, None where not shown: requests that run and wait, tokens generated and of prompts
    since the start, the part of the KV cache in use (0 to 1), which grows with each step of a prefill."""

    running: float | None = None
    waiting: float | None = None
    tokens: float | None = None
    prompts: float | None = None
    cache: float | None = None

    @property
    def queue(self) -> str:
        """Requests running and waiting in words, empty when they were not shown."""
        shown = self.running is not None and self.waiting is not None
        return f"{self.running:g} running, {self.waiting:g} waiting" if shown else ""

    @property
    def counters(self) -> tuple[float | None, ...]:
        """What moves as long as the engine does."""
        return (self.tokens, self.prompts, self.cache)


def recognise_metrics(text: str) -> tuple[Load, ...] | None:
    """The loads in a text; a counter that repeats begins the next one. None when vLLM's counters are not there."""
    seen: set[tuple[str, str]] = set()
    totals: list[dict[str, float]] = []
    for found in _LINE.finditer(text):
        name, labels = found["name"].removesuffix("_total"), found["labels"] or ""
        if not totals or (name, labels) in seen:
            seen = set()
            totals.append({})
        seen.add((name, labels))
        totals[-1][name] = totals[-1].get(name, 0.0) + float(found["value"])
    return tuple(Load(*map(one.get, _COUNTERS)) for one in totals) or None


_ANSWER = re.compile(r'"(?:GET|POST) (?P<path>/v1/[\w/]+|/health)\S* HTTP/1\.\d" (?P<status>\d{3})\b')
ENOUGH_FAILED = 4
"""A client asks again twice by itself."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The last answers to a path when all of them were errors of the server, or refused a key (401, 403)."""

    path: str
    status: int
    count: int


def recognise_failing(text: str) -> tuple[Failing, ...] | None:
    """Paths that answer no more, in a log of requests: several failed after the last that did not, or all did; and
    refused keys where the text has no key that was accepted."""
    answers: dict[str, list[int]] = {}
    for row in _ANSWER.finditer(text):
        answers.setdefault(row["path"], []).append(int(row["status"]))
    accepted = any(status < 300 for path, own in answers.items() for status in own if path != "/health")
    found = []
    for path, own in answers.items():
        count = next((at for at, status in enumerate(reversed(own)) if status < 500), len(own))
        refused = own[-1] in (401, 403) and set(own) == {own[-1]} and not accepted
        count = len(own) if refused else count
        if count >= ENOUGH_FAILED or 1 < count == len(own):
            found.append(Failing(path, own[-1], count))
    return tuple(found) or None


_REPORT = re.compile(
    r"(?P<engine>Engine \d+)?: Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<tokens>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs, "
    r"(?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d+) reqs,.*?GPU KV cache usage: (?P<cache>[\d.]+)%"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What vLLM logs every ten seconds while requests run: tokens/s of prompts and answers, and the cache in %."""

    engine: str
    prompt: float
    tokens: float
    running: int
    waiting: int
    cache: float


def recognise_reports(text: str) -> tuple[Report, ...] | None:
    """The reports of a log, in order; None when no engine has requests in its last one."""
    found = []
    for row in _REPORT.finditer(text):
        running, waiting = map(int, row.group("running", "waiting"))
        prompt, tokens, cache = map(float, row.group("prompt", "tokens", "cache"))
        found.append(Report(row["engine"] or "", prompt, tokens, running, waiting, cache))
    last = {one.engine: one for one in found}
    return tuple(found) if any(one.running or one.waiting for one in last.values()) else None
