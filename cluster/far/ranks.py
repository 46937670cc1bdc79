"""State of ranks on this host: runs or not, the stages their rank program printed, the last lines, NCCL's words.

Given {"names": [...], "tail": N, "patterns": [...], "since": {name: "until" of an earlier answer}, "workers": bool};
prints {name: {"state", "exit_code", "oom", "stages": [...], "phases": [of PHASES, as they were reached], "progress":
"47%" of the last phase or "", "tail": [...], "net": [...], "found": [...], "until": [docker's time of the last line,
how many lines have it], "whole": bool}}; a container that is not there is left out. `found` has for each pattern
{"line": the first line that it is found in, or null, "near": the line with most of its words}. Colors are taken out.
With `workers` Ray's own files are read too: a worker's output reaches the head's log up to a minute late, and other
logs never. Of a log since the container's last start only the beginning (HEAD_BYTES) and the end (END_LINES) are read:
stages are printed early and at the end, and a server that has run for a week must not make this slow. With `since` only
what came after it is read while the container runs; `whole` is false then.
"""

import collections
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta

from cluster.far.prelude import Json, emit, finish, given, start

PHASES = {  # vLLM's own words, model_loader, compilation/backends and gpu_model_runner of 0.19 to 0.32
    "loaded": re.compile(r"(loading weights|model loading) took", re.I),
    "compiling": re.compile("Dynamo bytecode transform|Directly load the compiled|Compiling a graph|Cache the graph"),
    "capturing": re.compile("Capturing CUDA graph|Graph capturing"),
}
PROGRESS = re.compile(r"(?:Loading|Capturing)[^%|]*?(\d{1,3}%)")
NET = re.compile(r"NCCL INFO (NET/\w+ ?: |Using network|.*via NET/)|NET/IB : No device found")
IN_WORKERS = "took|bytecode|compiled|Compiling|Capturing|capturing|NCCL INFO (NET/|Using network|.*via NET/)"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
WORD = re.compile(r"[A-Za-z]\w{3,}")
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\S+$")
LOGS = "/tmp/ray/session_latest/logs"
HEAD_BYTES = 4 << 20
END_LINES = 400
NEW_LINES = 2000  # docker reads that many from the end of its file; when as many came, some may be missing
LONGEST = 1 << 16  # bytes of a line that are read at once
MOST = 1 << 20

Line = tuple[str, str]  # docker's time, and what was printed


def lines(name: str, *options: str) -> Iterator[Line]:
    """(docker's time, line) of a container's log, cut to 4,000 bytes each; the caller may stop before the end."""
    child = start("docker", "logs", "--timestamps", *options, name, merged=True)
    out: Json = child.stdout
    try:
        while raw := out.readline(LONGEST):
            text = raw[:4000].decode("utf-8", "replace").rstrip("\n")
            time, _, line = text.partition(" ")
            yield (time, COLOR.sub("", line)) if STAMP.match(time) else ("", COLOR.sub("", text))
    finally:
        child.kill()
        child.wait()


def whole_or_both_ends(name: str, since: str) -> Iterator[Line]:
    """The log since the last start; of a long one the beginning, then the end (a line may then come twice)."""
    size = 0
    for time, line in lines(name, "--since", since):
        size += len(line) + 1
        yield time, line
        if size > HEAD_BYTES:
            yield from lines(name, "--tail", str(END_LINES))
            return


def new_lines(name: str, since: str, known: int) -> Iterator[Line]:
    """The lines from that time on without the first `known` of that time."""
    fresh = [*lines(name, "--since", since, "--tail", str(NEW_LINES))]
    for time, line in fresh if len(fresh) < NEW_LINES else whole_or_both_ends(name, since):
        if time == since and known:
            known -= 1
        else:
            yield time, line


def before(started: str) -> str:
    """A second or two earlier: a program that ends at once has printed before docker notes its start."""
    if started < "1970":  # never
        return started
    noted = datetime.strptime(started[:19], "%Y-%m-%dT%H:%M:%S")
    return f"{noted - timedelta(seconds=1):%Y-%m-%dT%H:%M:%S}.0Z"


class Sought:
    """A pattern, the first line it is found in, and the line that has most of its words (half of them at least)."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.near = re.compile(pattern), ""
        self.line: str | None = None
        self.words = set(WORD.findall(pattern))
        self.most = (len(self.words) - 1) // 2

    def see(self, line: str) -> None:
        if self.line is None and self.pattern.search(line):
            self.line = line[:400]
        elif self.line is None and (shared := sum(word in line for word in self.words)) > self.most:
            self.near, self.most = line[:400], shared


class EngineLog:
    """How far the engine is, and NCCL's lines."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.progress = ""
        self.net: list[str] = []

    def see(self, line: str) -> None:
        for name, words in PHASES.items():
            if name not in self.phases and words.search(line):
                self.phases.append(name)
                self.progress = ""
        if found := PROGRESS.search(line):
            self.progress = found[1]
        if len(self.net) < 40 and NET.search(line):
            line = line[max(0, line.find("NCCL INFO")) :]  # without Ray's and vLLM's prefixes
            self.net += [line] if line not in self.net else []


def read(log: Iterable[Line], tail: int, sought: list[Sought], engine: EngineLog) -> dict[str, Json]:
    """What is in a log: stages, tail, until; the rest goes to `sought` and `engine`."""
    stages: list[Json] = []
    last: collections.deque[str] = collections.deque(maxlen=tail)
    latest, count = "", 0
    for time, line in log:
        if time > latest:
            latest, count = time, 0
        count += time == latest
        if line.startswith('{"cluster"'):  # the rank program's own
            with suppress(ValueError):
                stage = json.loads(line)
                stages += [stage] if stage not in stages else []
                continue
        last.append(line)
        for one in sought:
            one.see(line)
        engine.see(line)
    return {"stages": stages, "tail": list(last), "until": [latest, count]}


def look(name: str, wanted: dict[str, Json]) -> dict[str, Json] | None:
    """One container; None when it is not there."""
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.StartedAt}}"
    code, out, _ = finish(start("docker", "inspect", "--type", "container", "-f", form, name), MOST)
    state = out.split()
    if code or len(state) != 4 or not state[1].isdigit():
        return None
    sought = [Sought(pattern) for pattern in wanted.get("patterns", ())]
    since, known = wanted.get("since", {}).get(name, ("", 0))
    whole = state[0] != "running" or since <= state[3]
    log = whole_or_both_ends(name, before(state[3])) if whole else new_lines(name, since, known)
    engine = EngineLog()
    found = read(log, wanted.get("tail", 30), sought, engine)
    if wanted.get("workers") and state[0] == "running":
        words = ("timeout", "5", "grep", "-rhsE", IN_WORKERS, LOGS)
        for line in finish(start("docker", "exec", name, *words), MOST)[1].splitlines():
            engine.see(COLOR.sub("", line))
    return {
        "state": state[0],
        "exit_code": int(state[1]),
        "oom": state[2] == "true",
        **found,
        "phases": engine.phases,
        "progress": engine.progress,
        "net": engine.net,
        "whole": whole,
        "found": [{"line": one.line, "near": one.near} for one in sought],
    }


if __name__ == "__main__":
    wanted = given()
    emit({name: found for name in wanted["names"] if (found := look(name, wanted))})
