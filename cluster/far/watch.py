"""Watches this host while something is measured: runs programs of far/ periodically and keeps what they print.

stdin, one JSON document a line; the end of stdin ends it:
    first   {"programs": [{"source": text, "given": value}], "period_s": 2.0}
    then    {"begin": true}     a sample at once, one after half a second, then one each period
            {"end": true}       a last sample
stdout, one JSON document a line:
    {"ready": true}
    {"begun": true}             once the first sample is there
    {"t": unix seconds, "said": [what each program printed]}    each sample, when it has ended, and then
    {"ended": number of samples, "hangs": whether a program did not come back}

The programs run within this one, so a sample costs what they start (nvidia-smi), not an interpreter. The period grows
with what a sample takes and with the time watched, so that watching stays light and its result short.
"""

import io
import json
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from types import CodeType

from cluster.far.prelude import Json, say

PATIENCE_S = 10.0  # for a sample; a driver that hangs must not hold up the measurement
FIRST_PAUSE_S = 0.5
SHARE = 10  # a pause lasts as many times as long as a sample took
MOST = 100  # samples in about the time watched


class Sampler:
    """Takes samples, in a thread of its own, until `end`."""

    def __init__(self, programs: list[tuple[CodeType, Json]], period_s: float) -> None:
        self.programs, self.period_s = programs, period_s
        self.samples: list[dict[str, Json]] = []
        self.begun, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        start = time.monotonic()
        self.sample()
        self.begun.set()
        pause = min(FIRST_PAUSE_S, self.period_s)
        while not self.stop.wait(pause):
            took = self.sample()
            pause = max(self.period_s, SHARE * took, (time.monotonic() - start) / MOST)
        self.sample()

    def sample(self) -> float:
        """Run every program once; the seconds it took."""
        start, now = time.monotonic(), time.time()
        self.samples.append({"t": now, "said": [run(*program) for program in self.programs]})
        return time.monotonic() - start

    def end(self) -> None:
        """Take the last sample and print all."""
        self.stop.set()
        self.thread.join(PATIENCE_S)
        samples = [*self.samples]  # one that hangs may still arrive
        for sample in samples:
            say(**sample)
        say(ended=len(samples), hangs=self.thread.is_alive())


def run(code: CodeType, given: Json) -> str:
    """What a program prints when it is given this."""
    out, argv = io.BytesIO(), sys.argv
    wrapper = io.TextIOWrapper(out, "utf-8", write_through=True)
    sys.argv = ["-", json.dumps(given)]
    # what a program that fails has not printed is missing, which its reader notices
    with redirect_stdout(wrapper), suppress(Exception, SystemExit):
        exec(code, {"__name__": "__main__"})
    sys.argv = argv
    wrapper.flush()
    return out.getvalue().decode("utf-8", "replace")


def main() -> None:
    setup = json.loads(sys.stdin.readline() or '{"programs": []}')
    programs = [(compile(one["source"], "<far>", "exec"), one["given"]) for one in setup["programs"]]
    say(ready=True)
    for line in sys.stdin:
        if "begin" in json.loads(line):
            sampler = Sampler(programs, float(setup["period_s"]))
            sampler.begun.wait(PATIENCE_S)
            say(begun=True)
        else:
            sampler.end()


if __name__ == "__main__":
    main()
