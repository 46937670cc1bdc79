"""far/rank.py for real, as processes on two loopback addresses. Ray and the engine are scripted here (small Python
programs, and a ray_nodes.py that reads a file); the same program with real Ray and vLLM is for the lab's tests."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

pytestmark = pytest.mark.usefixtures("under_each_python")

FAR = Path(__file__).parents[2] / "cluster" / "far"
HEAD, WORKER = ADDRESSES = ["127.0.0.2", "127.0.0.3"]
PATIENCE_S = 15.0

ALONE: dict[str, Any] = {"size": 1, "backend": "none", "addresses": [HEAD]}
SERVES = "import time; print('serving', flush=True); time.sleep(60)"
RAY = "import time; print('Ray runtime started.', flush=True); time.sleep(60)"
# Dies when the file `die` appears in its directory.
DIES = """
import pathlib, sys, time
while not pathlib.Path('die').exists(): time.sleep(0.05)
print('Traceback (most recent call last):'); print('torch.OutOfMemoryError: CUDA out of memory')
print('    raise RuntimeError('); print('RuntimeError: Engine core initialization failed. See root cause above.')
print('error while shutting down'); sys.exit(3)
"""
# Will not hear SIGTERM, and leaves a grandchild in a session of its own, as Ray and vLLM do.
STUBBORN = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
leave = 'import subprocess as s; print(s.Popen(["sleep", "61"], stdout=s.DEVNULL, start_new_session=True).pid)'
pathlib.Path('left').write_bytes(subprocess.check_output([sys.executable, '-c', leave]))
print('serving', flush=True); time.sleep(60)
"""
# Notes each of its starts, and answers each line.
NODES = """
import pathlib, sys
here = pathlib.Path(__file__).parent
with (here / 'askers').open('a') as log: log.write('start ')
for _ in sys.stdin: print((here / 'nodes.json').read_text(), flush=True)
"""
# As `ray start` when its own parts were slow: only the first time, with a raylet left behind.
SLOW_RAY = """
import pathlib, subprocess, sys, time
first = not pathlib.Path('tried').exists()
with open('tried', 'a') as log: log.write('try ')
if first:
    subprocess.Popen(['sleep', '61'], stdout=subprocess.DEVNULL, start_new_session=True)
    print("INFO node.py:424 -- Failed to get node info b'RPC error: Deadline Exceeded'")
    print('Exception: The current node timed out during startup. This could happen because some of the raylet failed')
    sys.exit(1)
print('Ray runtime started.', flush=True); time.sleep(60)
"""


MUCH = "MemTotal: 125829120 kB\nMemAvailable: 104857600 kB\nSwapTotal: 8388608 kB\nSwapFree: 8388608 kB\n"
QUIET = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def guarding(folder: Path, **more: Any) -> dict[str, Any]:
    """Limits of a guard that reads its host's memory from files in a folder."""
    for name, text in (("meminfo", MUCH), ("pressure", QUIET)):
        (folder / name).write_text(text)
    files = {name: str(folder / name) for name in ("meminfo", "pressure")}
    limits = {"loading_gib": 3, "serving_gib": 1, "serving_s": 0.5, "pressure_percent": 20, "pressure_gib": 8}
    return {"period_s": 0.1, **limits, **files, **more}


def have_available(folder: Path, gib: float) -> None:
    """In place, as a guard keeps its files open."""
    (folder / "meminfo").write_text(MUCH.replace("104857600", f"{gib * (1 << 20):.0f}"))


class Rank:
    """One rank program in a directory of its own."""

    def __init__(self, home: Path, wanted: dict[str, Any], token: str) -> None:
        self.home = home
        home.mkdir()
        for name in ("rank.py", "cord.py", "guard.py"):
            shutil.copy(FAR / name, home)
        (home / "ray_nodes.py").write_text(NODES)
        (home / "nodes.json").write_text(json.dumps({"error": "not yet"}))
        (home / "ray-token").write_text(token)
        (home / "rank.json").write_text(json.dumps(wanted))
        self.out = (home / "out").open("wb")
        words = [sys.executable, "-u", str(home / "rank.py"), str(home / "rank.json")]
        self.process = subprocess.Popen(words, stdout=self.out, stderr=subprocess.STDOUT, cwd=home)

    def lines(self) -> list[str]:
        return (self.home / "out").read_text().splitlines()

    def stages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines() if line.startswith('{"cluster"')]

    def stage(self, name: str) -> dict[str, Any] | None:
        return next((stage for stage in self.stages() if stage["stage"] == name), None)

    def reaches(self, name: str) -> dict[str, Any]:
        until(lambda: self.stage(name) or self.process.poll() is not None, f"{name}: {self.lines()}")
        found = self.stage(name)
        assert found, f"ended before {name}: {self.lines()}"
        return found

    def says(self, word: str) -> None:
        until(lambda: any(word in line for line in self.lines()), f"{word}: {self.lines()}")

    def ends(self, within_s: float = PATIENCE_S) -> tuple[int, str]:
        """Exit code, and why by its own line."""
        code = self.process.wait(within_s)
        ended = self.stage("ended")
        return code, ended["why"] if ended else ""

    def must_end(self, code: int, *words: str, within_s: float = PATIENCE_S) -> None:
        """With this exit code, for a reason that has these words."""
        ended, why = self.ends(within_s)
        assert (ended, [word for word in words if word not in why]) == (code, []), why


class Deployment:
    """Starts ranks that belong together, and ends what they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ranks = folder, list[Rank]()
        with socket.create_server((HEAD, 0)) as probe:
            self.port = probe.getsockname()[1]

    def start(self, rank: int, engine: str | None = SERVES, *, token: str = "right", **more: Any) -> Rank:
        home = self.folder / f"r{len(self.ranks)}"
        words = [sys.executable, "-c", engine] if engine else None
        wanted = {
            "rank": rank,
            "size": 2,
            "backend": "mp",
            "address": ADDRESSES[rank],
            "addresses": ADDRESSES,
            "cord_port": self.port,
            "join_timeout_s": 10,
            "silence_s": 10,
            "secrets": None,
            "before_serve": [],
            "ray_start": None,
            "engine": words,
            "guard": guarding(self.folder),
            "health": None,
            "cache": str(self.folder / "cache"),
            **more,
        }
        self.ranks.append(Rank(home, wanted, token))
        return self.ranks[-1]

    def pair(self, head: str = SERVES, worker: str = SERVES, **more: Any) -> tuple[Rank, Rank]:
        """Two ranks whose engines run."""
        ranks = self.start(0, head, **more), self.start(1, worker, **more)
        for rank in ranks:
            rank.reaches("engine_started")
        return ranks


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    for rank in made.ranks:
        rank.process.kill()
        rank.process.wait()
        rank.out.close()
    for pid in lost_engines(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lost_engines(folder: Path) -> list[int]:
    """Processes that work in a rank's directory: what a killed rank leaves behind without a container around it."""
    pids = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(link.readlink()).startswith(str(folder)) and runs(int(link.parent.name)):
                pids.append(int(link.parent.name))
        except OSError:
            continue
    return pids


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid: int) -> bytes:
    """NUL between words; empty for one that has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until(holds: Callable[[], Any], what: str) -> None:
    eventually(holds, PATIENCE_S, what, every_s=0.05)


def names(rank: Rank) -> list[str]:
    return [stage["stage"] for stage in rank.stages()]


def test_a_rank_alone_runs_its_commands_then_its_engine(deployment: Deployment) -> None:
    before = [sys.executable, "-c", "print('patched')"]
    rank = deployment.start(0, **ALONE, before_serve=[before])
    rank.says("serving")
    rank.reaches("engine_started")  # the engine may print first
    assert names(rank) == ["started", "before_serve", "joined", "engine_started"]
    assert rank.lines().index("patched") < rank.lines().index("serving")


def test_ranks_join_and_the_head_starts_its_engine_only_then(deployment: Deployment) -> None:
    head = deployment.start(0)
    head.reaches("started")
    time.sleep(0.5)
    assert "joined" not in names(head)
    worker = deployment.start(1)
    assert [node["address"] for node in head.reaches("joined")["nodes"]] == ADDRESSES
    head.reaches("engine_started")
    worker.reaches("engine_started")
    assert names(head) == ["started", "joined", "engine_started"]
    assert names(worker) == ["started", "engine_started"]


def test_a_worker_waits_for_a_head_that_comes_later(deployment: Deployment) -> None:
    worker = deployment.start(1)
    worker.reaches("started")
    time.sleep(0.5)
    deployment.start(0).reaches("engine_started")
    worker.reaches("engine_started")


def test_secrets_reach_the_engine_and_no_line(deployment: Deployment) -> None:
    secrets = deployment.folder / "secrets.json"
    secrets.write_text(json.dumps({"VLLM_API_KEY": "sesame-4711"}))
    shows = "import os, time; print('length', len(os.environ['VLLM_API_KEY']), flush=True); time.sleep(60)"
    rank = deployment.start(0, shows, **ALONE, secrets=str(secrets))
    rank.says("length 11")
    assert rank.reaches("secrets")["names"] == ["VLLM_API_KEY"]
    assert "sesame" not in "".join(rank.lines())


def test_a_peer_that_never_comes_is_named(deployment: Deployment) -> None:
    deployment.start(0, join_timeout_s=1).must_end(75, WORKER)
    deployment.start(1, join_timeout_s=1).must_end(75, f"{HEAD}:{deployment.port}")


BOTH = [(HEAD, True, 1.0), (WORKER, True, 1.0)]


def tell_nodes(head: Rank, nodes: list[tuple[str, bool, float]]) -> None:
    """What Ray says of its nodes from now on."""
    rows = [{"address": address, "alive": alive, "gpus": gpus} for address, alive, gpus in nodes]
    (head.home / "nodes.json").write_text(json.dumps({"nodes": rows}))


def ray(deployment: Deployment, nodes: list[tuple[str, bool, float]], **more: Any) -> tuple[Rank, Rank]:
    """Two ranks of the ray backend, and what Ray says of its nodes."""
    start = [sys.executable, "-c", RAY]
    head = deployment.start(0, backend="ray", ray_start=start, **more)
    tell_nodes(head, nodes)
    return head, deployment.start(1, None, backend="ray", ray_start=start)


def test_ray_joins_when_both_nodes_have_their_gpu(deployment: Deployment) -> None:
    head, worker = ray(deployment, [*BOTH, (WORKER, False, 1.0)])
    assert head.reaches("joined")["nodes"] == [{"address": HEAD, "gpus": 1.0}, {"address": WORKER, "gpus": 1.0}]
    head.reaches("engine_started")
    assert names(head) == ["started", "ray_started", "joined", "engine_started"]
    assert names(worker) == ["started", "ray_started"]
    worker.says("ray| Ray runtime started.")


def test_ray_is_asked_by_one_program_that_stays(deployment: Deployment) -> None:
    head, _ = ray(deployment, [(HEAD, True, 1.0)])
    time.sleep(1.5)
    tell_nodes(head, BOTH)
    head.reaches("joined")
    assert (head.home / "askers").read_text() == "start "


@pytest.mark.parametrize("slow", [0, 1])
def test_a_ray_that_timed_out_while_it_started_is_started_once_more(deployment: Deployment, slow: int) -> None:
    """Without what the first try left behind; a head's nodes have to join its new Ray."""
    start = {rank: [sys.executable, "-c", SLOW_RAY if rank == slow else RAY] for rank in (0, 1)}
    head = deployment.start(0, backend="ray", ray_start=start[0])
    worker = deployment.start(1, None, backend="ray", ray_start=start[1])
    again = (head, worker)[slow]
    assert "timed out during startup" in again.reaches("ray_restarted")["why"]
    again.says("ray| Ray runtime started.")
    assert not [pid for pid in lost_engines(again.home) if command_of(pid).startswith(b"sleep")]
    tell_nodes(head, BOTH)
    head.reaches("engine_started")
    assert (again.home / "tried").read_text() == "try try "
    assert "ended" not in names(head) + names(worker)
    if again is head:
        assert "rank 0" in worker.reaches("ray_restarted")["why"]
    else:
        assert "ray_restarted" not in names(head)


def test_a_ray_that_times_out_twice_is_given_up(deployment: Deployment) -> None:
    always = SLOW_RAY.replace("if first:", "if True:")
    rank = deployment.start(0, None, size=1, backend="ray", addresses=[HEAD], ray_start=[sys.executable, "-c", always])
    rank.must_end(1, "timed out during startup")
    assert names(rank) == ["started", "ray_started", "ray_restarted", "ray_started", "ended"]
    assert not lost_engines(rank.home)


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        ([(HEAD, True, 1.0), (WORKER, False, 1.0)], f"{WORKER} is not a node of Ray"),
        ([(HEAD, True, 1.0), (WORKER, True, 0.0)], f"Ray sees no GPU at {WORKER}"),
        ([*BOTH, ("127.0.0.9", True, 1.0)], "127.0.0.9 is a node of Ray but not of this deployment"),
    ],
)
def test_what_ray_lacks_is_named(deployment: Deployment, nodes: list[tuple[str, bool, float]], missing: str) -> None:
    head, worker = ray(deployment, nodes, join_timeout_s=1)
    code, why = head.ends()
    assert (code, "engine_started" in names(head)) == (75, False)
    assert missing in why
    worker.must_end(76, missing)


# What Ray 2.56 prints on a node whose Ray is another (ray/_private/utils.py, check_version_info).
MISMATCH = """
import sys
print('RuntimeError: Version mismatch: The cluster was started with:')
print('    Ray: 2.56.0'); print('    Python: 3.12.3')
print('This process on node 127.0.0.3 was started with:')
print('    Ray: 2.55.0'); print('    Python: 3.12.3'); print(); sys.exit(1)
"""


def test_a_version_mismatch_seen_by_the_workers_ray_is_the_heads_reason(deployment: Deployment) -> None:
    head = deployment.start(0, backend="ray", ray_start=[sys.executable, "-c", RAY])
    worker = deployment.start(1, None, backend="ray", ray_start=[sys.executable, "-c", MISMATCH])
    assert worker.ends()[0] == 1
    head.must_end(75, WORKER, "Ray: 2.56.0", "Ray: 2.55.0")


def test_a_worker_that_fails_before_it_serves_is_the_heads_reason(deployment: Deployment) -> None:
    head = deployment.start(0)
    worker = deployment.start(1, before_serve=[[sys.executable, "-c", "raise SystemExit('error: no such patch')"]])
    assert worker.ends()[0] == 1
    code, why = head.ends()
    assert code in (75, 76)  # whether it had joined by then is a race
    assert "no such patch" in why


def test_a_workers_dead_engine_ends_the_head_within_two_seconds_with_the_cause(deployment: Deployment) -> None:
    head, worker = deployment.pair(worker=DIES)
    (worker.home / "die").touch()
    died = time.monotonic()
    until(lambda: head.stage("ended"), "the head's end")
    assert time.monotonic() - died < 2
    head.must_end(76, f"rank 1 ({WORKER})", "OutOfMemoryError")
    assert worker.ends() == (3, "engine exited with 3: torch.OutOfMemoryError: CUDA out of memory")


def test_a_heads_dead_engine_ends_the_worker_with_the_cause(deployment: Deployment) -> None:
    head, worker = deployment.pair(head=DIES)
    (head.home / "die").touch()
    worker.must_end(76, f"rank 0 ({HEAD})", "OutOfMemoryError")
    assert head.ends() == (3, "engine exited with 3: torch.OutOfMemoryError: CUDA out of memory")
    assert not lost_engines(deployment.folder)


def test_a_killed_head_ends_the_worker(deployment: Deployment) -> None:
    head, worker = deployment.pair()
    head.process.kill()
    worker.must_end(76, "killed or rebooted", within_s=5)
    assert not lost_engines(worker.home)


def test_sigterm_ends_everything_in_time_and_tells_the_peers(deployment: Deployment) -> None:
    head, worker = deployment.pair(head=STUBBORN)
    head.says("serving")
    grandchild = int((head.home / "left").read_text())
    assert runs(grandchild)
    head.process.terminate()
    assert head.ends(10) == (0, "asked to end (SIGTERM)")
    assert not runs(grandchild)
    worker.must_end(76, "asked to end", within_s=2)


def test_sigterm_while_waiting_for_peers(deployment: Deployment) -> None:
    head, worker = deployment.start(0), deployment.start(1, silence_s=60)
    head.reaches("engine_started")
    worker.process.terminate()
    assert worker.ends(10)[0] == 0
    alone = deployment.start(0, cord_port=deployment.port + 1)
    alone.reaches("started")
    alone.process.terminate()
    assert alone.ends(10) == (0, "asked to end (SIGTERM)")


def test_a_rank_with_another_secret_is_refused_by_name(deployment: Deployment) -> None:
    head = deployment.start(0, join_timeout_s=2)
    deployment.start(1, token="wrong").must_end(75, "wrong secret")
    head.says(f"cord: refused {WORKER}: wrong secret")
    head.must_end(75, f"no rank calls from {WORKER}")


def test_strangers_do_not_disturb(deployment: Deployment) -> None:
    head = deployment.start(0)
    head.reaches("started")
    until(lambda: listens(deployment.port), "the cord's port")
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"[1]\n", b"x" * 200_000, b""):
        stranger = socket.create_connection((HEAD, deployment.port), 5, (WORKER, 0))
        with stranger, suppress(OSError):  # a rank that has read enough of it closes first
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
    deployment.start(1).reaches("engine_started")
    head.reaches("engine_started")


def test_the_right_secret_from_another_address_or_twice_is_refused(deployment: Deployment) -> None:
    head = deployment.start(0)
    deployment.start(1, addresses=[HEAD, "127.0.0.4"]).must_end(75, "rank 1 does not live at 127.0.0.4")
    deployment.start(1).reaches("engine_started")
    deployment.start(1).must_end(75, "has tied its cord already")
    assert head.stage("ended") is None


def listens(port: int) -> bool:
    """Read from the LISTEN table (a connection would count as a caller), on the head's address only."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening in ([], [f"0200007F:{port:04X}"])
    return bool(listening)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_silent_peer_ends_the_other_rank(deployment: Deployment, frozen: int) -> None:
    ranks = deployment.pair(silence_s=1.5)
    ranks[frozen].process.send_signal(signal.SIGSTOP)
    ranks[1 - frozen].must_end(76, f"rank {frozen} ({ADDRESSES[frozen]}) was silent for 1.5 s", within_s=8)


def test_beats_keep_a_quiet_pair_alive(deployment: Deployment) -> None:
    head, worker = deployment.pair(silence_s=2.5)
    time.sleep(5.5)
    assert head.process.poll() is None
    assert worker.process.poll() is None


def test_an_engine_that_is_not_there(deployment: Deployment) -> None:
    rank = deployment.start(0, **ALONE, engine=None)
    rank.reaches("joined")
    rank = deployment.start(0, None, size=1, backend="ray", addresses=[HEAD], ray_start=["/no/ray", "start"])
    rank.must_end(127, "ray cannot be started: /no/ray")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_caches_are_given_back_to_their_owner(deployment: Deployment) -> None:
    cache = deployment.folder / "cache"
    cache.mkdir()
    os.chown(cache, 12345, 12346)
    outside = deployment.folder / "outside"
    outside.touch()
    writes = f"import os; os.mkdir('{cache}/d'); open('{cache}/d/x', 'w'); os.symlink('{outside}', '{cache}/l')"
    rank = deployment.start(0, writes, **ALONE)
    assert rank.ends() == (1, "engine exited with 0: no output")  # an engine that nobody asked to end has failed
    for name in ("d", "d/x", "l"):
        found = (cache / name).lstat()
        assert (found.st_uid, found.st_gid) == (12345, 12346)
    assert outside.stat().st_uid == 0


# Holds memory, in a process that shows who it is only by its size; leaves one in a session of its own.
HOLDS = STUBBORN.replace("time.sleep(60)", "held = b'x' * (64 << 20); time.sleep(60)")


def test_too_little_memory_while_loading_ends_all_within_a_second_and_says_who_held_it(deployment: Deployment) -> None:
    rank = deployment.start(0, HOLDS, **ALONE)
    rank.says("serving")
    have_available(deployment.folder, 2.96)
    low = time.monotonic()
    until(lambda: not children_of(rank), "the end of the engine")
    assert time.monotonic() - low < 1
    assert not runs(int((rank.home / "left").read_text()))
    rank.must_end(77, "memory guard: 2.9 GiB available, 3.0 GiB required while loading; held: python")
    end = rank.stages()[-1]
    assert "GPU and others 1" in end["why"]
    assert end["why"].endswith("; swap 8.0 of 8.0 GiB free")
    assert (end["missing_bytes"] >> 20, end["total_bytes"] >> 30) == (40, 120)
    assert end["why"] in rank.lines()


def children_of(rank: Rank) -> list[int]:
    """What runs in its directory but the rank program and its guard."""
    lines = {pid: command_of(pid) for pid in lost_engines(rank.home)}
    return [pid for pid, line in lines.items() if line and b"rank.py" not in line and b"guard.py" not in line]


def test_a_peer_reports_the_memory_of_the_rank_that_was_ended(deployment: Deployment) -> None:
    own = deployment.folder / "own"
    own.mkdir()
    head = deployment.start(0)
    worker = deployment.start(1, guard=guarding(own))
    for rank in (head, worker):
        rank.reaches("engine_started")
    have_available(own, 2)
    worker.must_end(77, "memory guard: 2.0 GiB available")
    head.must_end(76, f"rank 1 ({WORKER}): memory guard: 2.0 GiB available, 3.0 GiB required while loading")


# Answers /health once the file `ready` appears in its directory.
ANSWERS = """
import http.server, pathlib, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == '/health' and pathlib.Path('ready').exists() else 503)
        self.end_headers()
server = http.server.HTTPServer(('127.0.0.2', PORT), Answer); print('listens', flush=True); server.serve_forever()
"""


def serving(deployment: Deployment, **limits: Any) -> tuple[Rank, Rank]:
    """Two ranks whose guards know that the server answers."""
    with socket.create_server((HEAD, 0)) as probe:
        port = probe.getsockname()[1]
    guard = guarding(deployment.folder, **limits)
    engine = ANSWERS.replace("PORT", str(port))
    head = deployment.start(0, engine, guard=guard, health=(HEAD, port))
    worker = deployment.start(1, guard=guard)
    head.says("listens")
    (head.home / "ready").touch()
    for rank in (head, worker):
        rank.says("memory guard: the server answers")
    return head, worker


def test_once_the_server_answers_less_memory_is_enough_on_all_ranks(deployment: Deployment) -> None:
    head, worker = serving(deployment)
    have_available(deployment.folder, 2)
    time.sleep(1)
    assert (head.stage("ended"), worker.stage("ended")) == (None, None)
    have_available(deployment.folder, 0.5)
    for rank in (head, worker):
        code, why = rank.ends()
        assert code in (77, 76)  # both cross the limit at once; one may hear of the other first
        assert "memory guard: 0.5 GiB available, 1.0 GiB required while serving, for 0.5 s" in why


def test_a_guard_that_ends_by_itself_ends_no_rank(deployment: Deployment) -> None:
    rank = deployment.start(0, **ALONE, guard=guarding(deployment.folder, meminfo="/no/meminfo"))
    rank.says("memory guard: it exited with 1; memory is not guarded any more")
    rank.reaches("engine_started")


def test_a_killed_rank_leaves_no_guard(deployment: Deployment) -> None:
    rank = deployment.start(0, **ALONE)
    rank.reaches("engine_started")
    rank.process.kill()
    until(lambda: not any(b"guard.py" in command_of(pid) for pid in lost_engines(rank.home)), "the end of the guard")
