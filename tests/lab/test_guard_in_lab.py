"""The guard of memory on a host whose limit is real: what does not fit is ended in time, what fits is left alone.

Beside each start two threads look from outside: available memory 100 times a second, from the host's cgroup, and how
long sshd takes to greet. Each case prints what they saw; the last lines are the table of docs/log.md.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hosts_now import HOSTS, assert_nothing_of_ours, state_of
from own_lab import Lab, campaign
from person import QUICK, Person, quick
from waiting import eventually

CGROUPS = Path("/sys/fs/cgroup/memory")
GIB, LOADING_GIB, SERVING_GIB, SERVING_S = 3, 1.0, 1.0, 5
REAL_GIB, REAL_S = 5, 900
GREETS_S = 2.0
FILES = ("usage_in_bytes", "stat", "limit_in_bytes", "usage_in_bytes")
SPEEDS = {"slow": 205, "fast": 2048, "jump": 0}  # MiB/s
GROWTH = {"crawl": 100, "slow": 205, "fast": 2048}
LAYOUTS = {
    "solo": ("--solo", "-n", "spark1"),
    "mp, head": ("-n", "spark1,spark2", "--tp", "2", "--backend", "mp"),
    "mp, worker": ("-n", "spark2,spark1", "--tp", "2", "--backend", "mp"),
    "ray, head": ("-n", "spark1,spark2", "--tp", "2"),
    "ray, worker": ("-n", "spark2,spark1", "--tp", "2"),
}
"""Where the host with little memory, spark1, is in the deployment."""
LOADS = [(where, speed, cache) for where in [*LAYOUTS][:3] for speed in SPEEDS for cache in ("empty", "full", "busy")]
LOADS += [
    (where, speed, cache) for where, cache in (("ray, head", "full"), ("ray, worker", "busy")) for speed in SPEEDS
]
LOADS += [("solo", "jump", "full")] * 7
GROWS = [(where, speed) for where in [*LAYOUTS][:3] for speed in GROWTH] + [("ray, worker", "slow")]
REAL = [("solo", "empty"), ("solo", "full"), ("solo", "busy"), ("ray, head", "empty"), ("ray, worker", "full")]
FEW = {("mp, worker", "fast", "full"), ("solo", "fast")}
FEW_FIT = {("solo", "jump", "full")}
FULL = "ls sparse >/dev/null 2>&1 || truncate -s 4G sparse; cat sparse >/dev/null"
BUSY = f"{FULL}; nohup sh -c 'while cat sparse; do sleep 0.3; done' >/dev/null 2>&1 </dev/null & echo $!"


@dataclass
class Seen:
    """What was seen from outside while a deployment ran: of memory (time, GiB available), of sshd seconds."""

    before: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)
    greetings: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return f"lowest {self.lowest:.2f} GiB, fell by {self.fell:.2f} GiB/s, sshd {max(self.greetings):.2f} s"

    @property
    def lowest(self) -> float:
        return min(gib for _, gib in self.memory)

    @property
    def fell(self) -> float:
        """The fastest fall of available memory within about 0.2 s, GiB/s: what a speed that was asked for came to."""
        looks = self.memory
        return max((one[1] - two[1]) / (two[0] - one[0]) for one, two in zip(looks, looks[20:], strict=False))

    def crossed(self, limit: float) -> float:
        """When less than `limit` was available first, by this machine's clock."""
        return next(at for at, gib in self.memory if gib < limit)

    def freed_after(self, limit: float) -> float:
        """Seconds from then on until all but 0.3 GiB of what was there before is back."""
        crossed = self.crossed(limit)
        return next(at for at, gib in self.memory if at > crossed and gib > self.before - 0.3) - crossed


@dataclass
class Limited:
    """spark1, whose memory is limited."""

    lab: Lab
    gib: float = 0
    rows: dict[str, list[Seen]] = field(default_factory=dict)

    def have(self, gib: float) -> None:
        """Reboot it with this limit, if it has another one."""
        if gib != self.gib:
            self.lab.must("memory", "spark1", f"{gib}")
            self.gib = gib

    @property
    def group(self) -> str:
        return f"cluster-lab-{json.loads((self.lab.root / 'lab.json').read_text())['number']}/spark1"

    def kernel_kills(self) -> list[str]:
        """Lines of the kernel's log on processes of this host that it killed for memory."""
        log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
        return re.findall(rf".*oom_memcg=/{self.group}\b.*", log)

    @contextmanager
    def watched(self, kind: str, cache: str = "empty") -> Iterator[Seen]:
        """Look at it from outside, with page cache as it is asked for. No kernel kill, and sshd always greets."""
        reader, seen, done = "", Seen(), threading.Event()
        if cache != "empty":
            reader = self.lab.tell("spark1", BUSY if cache == "busy" else FULL)
        kills, looks = self.kernel_kills(), (self.look_at_memory, self.look_at_sshd)
        seen.before = available(CGROUPS / self.group)
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(look, seen, done) for look in looks]
            try:
                yield seen
            finally:
                done.set()
                if reader:
                    self.lab.tell("spark1", f"pkill -P {reader}; kill {reader} || true")
            for run in runs:
                run.result()
        assert not set(self.kernel_kills()) - set(kills)
        assert max(seen.greetings) < GREETS_S, seen.greetings
        self.rows.setdefault(kind, []).append(seen)

    def look_at_memory(self, seen: Seen, done: threading.Event) -> None:
        while not done.wait(0.01):
            seen.memory.append((time.time(), available(CGROUPS / self.group)))

    def look_at_sshd(self, seen: Seen, done: threading.Event) -> None:
        while not done.wait(0.3):
            began = time.monotonic()
            with socket.create_connection((self.lab.address("spark1"), 22), timeout=30) as link:
                assert link.recv(4) == b"SSH-"
            seen.greetings.append(time.monotonic() - began)


def available(group: Path) -> float:
    """GiB available in a cgroup, as the lab shows it to the host, but now."""
    before, text, limit, after = ((group / f"memory.{name}").read_text() for name in FILES)
    stat = dict(line.split() for line in text.splitlines())
    file = sum(int(stat[f"total_{kind}_file"]) for kind in ("active", "inactive"))
    return (int(limit) - min(int(before), int(after)) + file) / 2**30


@pytest.fixture(scope="module")
def limited(lab: Lab) -> Iterator[Limited]:
    if not (CGROUPS / "memory.limit_in_bytes").exists():
        pytest.skip("a limit of memory requires cgroup v1's memory controller")
    made = Limited(lab)
    yield made
    made.have(0)
    print()
    for kind, rows in made.rows.items():
        lowest, greeting = min(seen.lowest for seen in rows), max(max(seen.greetings) for seen in rows)
        line = f"| {kind} | {len(rows)} | {lowest:.2f} | {greeting:.2f} |"
        if "not" in kind:
            took = [seen.freed_after(LOADING_GIB) for seen in rows]
            line += f" {statistics.median(took):.2f} / {max(took):.2f} |"
        print(line)


def guarding(where: str, *image: str, **more: object) -> tuple[str, ...]:
    """Words of `up` for a deployment with limits that suit so small a host."""
    keys = {"loading_gib": LOADING_GIB, "serving_gib": SERVING_GIB, "serving_s": SERVING_S}
    sets = [f"memory.guard.{name}={value}" for name, value in keys.items()]
    sets += [
        "memory.per_host_gib.1=0.1",
        "memory.per_host_gib.2=0.1",
        *(f"{key}={value}" for key, value in more.items()),
    ]
    return (*LAYOUTS[where], *image, "--no-probe", *(word for one in sets for word in ("--set", one)))


def cases(rows: list[tuple[str, ...]], few: set[tuple[str, ...]] = FEW) -> list[object]:
    """The few that run on every change, once, and the others."""
    return [row if row in few and row not in rows[:at] else campaign(*row) for at, row in enumerate(rows)]


def assert_ended(limited: Limited, person: Person, words: tuple[str, ...]) -> float:
    """`up` fails, since the guard of spark1 ended its rank; the other rank ended with it, and nothing is left. When
    spark1's rank said so."""
    ran = person("up", *words, timeout_s=2 * REAL_S)
    assert (ran.code, ran.errors[0]["code"]) == (1, "memory-guard"), ran
    assert re.match(r"spark1: memory guard: .* required while loading; held: ", ran.errors[0]["error"]), ran
    ends = {host: end(person, host) for host in HOSTS if host in " ".join(words)}
    exits = {host: end["exit"] for host, end in ends.items()}
    assert exits == {host: 77 if host == "spark1" else 76 for host in exits}, exits
    assert_nothing_of_ours(limited.lab)
    return float(ends["spark1"]["t"])


def end(person: Person, host: str) -> dict[str, Any]:
    """What a rank said at its end, in the evidence of the last start."""
    log = (person.evidence[-1] / f"{host}-log.txt").read_text()
    return dict(json.loads(re.findall(r'{"cluster".*"stage": "ended".*', log)[-1]))


@pytest.mark.parametrize(("where", "speed", "cache"), cases(LOADS))
def test_load_that_does_not_fit(limited: Limited, person: Person, where: str, speed: str, cache: str) -> None:
    limited.have(GIB)
    with limited.watched(f"does not fit: {speed}", cache) as seen:
        at = assert_ended(limited, person, (*guarding(where, *QUICK), *quick(mib=4096, mib_s=SPEEDS[speed])))
        time.sleep(0.5)
    said = at - seen.crossed(LOADING_GIB)
    print(f"{where}, {speed}, {cache}: said {said:.2f}, freed {seen.freed_after(LOADING_GIB):.2f} s, {seen}")


@pytest.mark.parametrize(("where", "speed", "cache"), cases(LOADS, FEW_FIT))
def test_load_that_fits(limited: Limited, person: Person, where: str, speed: str, cache: str) -> None:
    limited.have(GIB)
    with limited.watched(f"fits: {speed}", cache) as seen:
        mib = 800 if "ray" in where else 1400
        person.must("up", *guarding(where, *QUICK), *quick(mib=mib, mib_s=SPEEDS[speed]))
    assert LOADING_GIB < seen.lowest < 2
    print(f"{where}, {speed}, {cache}: {seen}")


@pytest.mark.parametrize(("where", "speed"), cases(GROWS))
def test_growth_that_does_not_fit(limited: Limited, person: Person, where: str, speed: str) -> None:
    """It serves, and takes more and more."""
    limited.have(GIB)
    with limited.watched(f"does not fit, serving: {speed}") as seen:
        wishes = quick(mib=600, grow_mib=4096, grow_mib_s=GROWTH[speed], grow_after_s=12)
        person.must("up", *guarding(where, *QUICK), *wishes)
        alive = [host for host in HOSTS if host in " ".join(LAYOUTS[where])]
        eventually(lambda: all(state_of(limited.lab, host)["Status"] == "exited" for host in alive), 60, "all end", 1)
        time.sleep(0.5)
    exits = {host: state_of(limited.lab, host)["ExitCode"] for host in alive}
    assert exits == {host: 77 if host == "spark1" else 76 for host in alive}
    status = person("status")
    assert (status.code, "while serving" in status.out) == (4, True), status
    print(f"{where}, {speed}: freed {seen.freed_after(SERVING_GIB):.2f} s, {seen}")


@pytest.mark.campaign
@pytest.mark.parametrize(("where", "speed"), GROWS)
def test_growth_that_fits(limited: Limited, person: Person, where: str, speed: str) -> None:
    limited.have(GIB)
    with limited.watched(f"fits, serving: {speed}", "full") as seen:
        person.must(
            "up", *guarding(where, *QUICK), *quick(mib=400, grow_mib=400, grow_mib_s=GROWTH[speed], grow_after_s=12)
        )
        time.sleep(12)
        assert person("status").code == 0
    print(f"{where}, {speed}: {seen}")


def real(where: str, intermediate_size: int) -> tuple[str, ...]:
    """Words of `up` for the real engine, which makes up the toy's weights: 9 KiB for each of `intermediate_size`."""
    sets = {"vllm.load-format": "dummy", "vllm.kv-cache-memory-bytes": 50 << 20, "ready_timeout_s": REAL_S}
    return (*guarding(where, **sets), "--", "--hf-overrides", json.dumps({"intermediate_size": intermediate_size}))


@pytest.mark.campaign
@pytest.mark.timeout(2 * REAL_S)
@pytest.mark.parametrize(("where", "cache"), REAL)
def test_real_engine_that_does_not_fit(limited: Limited, person: Person, where: str, cache: str) -> None:
    limited.have(REAL_GIB)
    with limited.watched("does not fit: real engine", cache) as seen:
        at = assert_ended(limited, person, real(where, 600_000))
        time.sleep(0.5)
    said = at - seen.crossed(LOADING_GIB)
    print(f"{where}, real, {cache}: said {said:.2f}, freed {seen.freed_after(LOADING_GIB):.2f} s, {seen}")


@pytest.mark.campaign
@pytest.mark.timeout(2 * REAL_S)
@pytest.mark.parametrize(("where", "cache"), REAL)
def test_real_engine_that_fits(limited: Limited, person: Person, where: str, cache: str) -> None:
    limited.have(REAL_GIB)
    with limited.watched("fits: real engine", cache) as seen:
        person.must("up", *real(where, 10_000), timeout_s=2 * REAL_S)
    print(f"{where}, real, {cache}: {seen}")
