"""First process of every rank, and it stays: ties the ranks together, starts Ray and the engine, ends as one.

usage: python3 -u rank.py rank.json      (beside it: cord.py, guard.py, ray_nodes.py, ray-token; there: /cluster)

guard of memory started → secrets exported → cord tied to rank 0 → before_serve → Ray started → rank 0 waits for all
peers → engine started → rank 0 notes when it answers → wait for the first thing that ends, say why, end everything
else. A peer that ends, or whose cord is closed or silent, ends this rank too.

stdout: one JSON line a stage, {"cluster":"rank","rank":0,"stage":"joined","t":1700000000.0,…}, stages started,
secrets, before_serve, ray_started, ray_restarted, joined, engine_started, ended; all other lines are our
children's, Ray's with "ray| " before them. Exit: 0 asked to end (SIGTERM) · 75 peers did not join · 76 another rank
ended, or its cord is gone or silent · 77 its guard of memory ended it · else that of the program that ended (128 +
signal; 127 it could not be started; 1 for 0).
"""

import asyncio
import collections
import ctypes
import itertools
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

BESIDE = Path(__file__).resolve().parent
sys.path.insert(0, str(BESIDE))
if TYPE_CHECKING:
    from cluster.far.cord import Cord, NotTied
    from cluster.far.guard import kill
else:
    from cord import Cord, NotTied
    from guard import kill

Words = list[str]
NOT_JOINED, CORD_ENDED, ENDED_FOR_MEMORY = 75, 76, 77
GRACE_S = {"engine": 5.0, "ray": 2.0}  # from SIGTERM to SIGKILL; with the rest below the 10 s of docker stop
KILL_S = 2.0  # for what is left to end after SIGKILL
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
CAUSES = (
    r"\bdied\b(?!.*exit code: (None|[1-9]))",  # killed: nobody else knows; one that exited has printed its exception
    r"(Error|Exception): \S",
    r"\bdied\b",
    r"(?i)error|fatal|exit code|killed|out of memory|no space left",
)
CONSEQUENCE = (
    r"^\s*raise \w|WARNING|[Ss]ee (root cause|stack trace)|Executor failed|Remaining processes will be killed|"
    r": cancelled$|ActorHandleNotFoundError"  # Ray's word on a worker that is gone, while the engine shuts down
)
CAUSE = r"Worker failed with error '(.+?)(', please check|$)"  # vLLM's engine repeats what its worker raised
PREFIX = r"^(\([^()]*\bpid=[^()]*\) ?)?([A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] )?"  # vLLM's: who, level, time, place
stdout_lock = threading.Lock()
RAY_TIMED_OUT = "node timed out during startup"  # Ray waits 30 s for its own parts, whatever they are busy with
HEALTH_S = 5.0
SETTLE_S = 1.0  # when something ended here: time for a peer to report that it ended first, and why


class Ended(Exception):
    """This rank must end: why, with which exit code, which peer reported it (None: it happened here), and numbers."""

    def __init__(self, why: str, code: int, peer: int | None = None, **numbers: int) -> None:
        super().__init__(why)
        self.why, self.code, self.peer, self.numbers = why, code, peer, numbers


def write_line(line: str) -> None:
    """One whole line on stdout, whichever thread it comes from."""
    with stdout_lock:
        sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()


class Spawned:
    """A program below this one. Its output passes through line by line; the last lines are kept to find its cause."""

    def __init__(self, name: str, words: Words) -> None:
        self.name, self.tail = name, collections.deque[str](maxlen=400)
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            self.process = subprocess.Popen(words, **pipes, encoding="utf-8", errors="replace", start_new_session=True)
        except OSError as error:
            raise Ended(f"{name} cannot be started: {words[0]}: {error.strerror}", 127) from None
        self.pump = threading.Thread(target=self._pass_through, daemon=True)
        self.pump.start()

    def _pass_through(self) -> None:
        prefix = "ray| " if self.name == "ray" else ""
        for line in self.process.stdout or ():
            write_line(prefix + line.rstrip("\n"))
            self.tail.append(line.strip())

    async def ended(self) -> Ended:
        """Wait for its end; how it ended, with the line of its output that names the cause."""
        code = await asyncio.to_thread(self.process.wait)
        await asyncio.to_thread(self.pump.join, 0.5)  # not longer: a grandchild may hold the pipe open
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return Ended(f"{self.name} {how}: {cause_line(list(self.tail))}", 128 - code if code < 0 else code)


def cause_line(lines: Words) -> str:
    """The innermost exception, else the last line that names an error, else the last one, without vLLM's prefix.

    Ray's version mismatch comes with the lines that belong to it, an exception whose first line is empty with the next.
    """
    lines = [re.sub(PREFIX, "", line) for line in lines]
    for at in range(len(lines)):
        if re.search(r"(Error|Exception): *$", lines[at]):
            more = itertools.takewhile(str.strip, itertools.dropwhile(lambda line: not line.strip(), lines[at + 1 :]))
            lines[at] = " ".join([lines[at].strip(), *map(str.strip, more)])
    cause = next((found[1] for line in reversed(lines) if (found := re.search(CAUSE, line))), None)
    if cause:
        raised = (line for line in lines if re.search(r"(Error|Exception): " + re.escape(cause), line))
        return next(raised, cause)[:500]
    for pattern in CAUSES:
        for at in reversed(range(len(lines))):
            if re.search(pattern, lines[at]) and not re.search(CONSEQUENCE, lines[at]):
                if "ersion mismatch" in lines[at]:
                    return " ".join(lines[at : at + 7])
                return lines[at][:500] if re.search(CAUSES[1], lines[at]) else lines[at][-500:]
    return lines[-1][-500:] if lines else "no output"


class Rank:
    """What runs here. The first call of `end` ends it."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted, self.number, self.joined = wanted, wanted["rank"], wanted["rank"] > 0
        self.cord = Cord(wanted, (BESIDE / "ray-token").read_bytes(), self.lose_peer, self.receive)
        self.children: list[Spawned] = []
        self.guard: Any = None
        self.ray_retried = False
        self.asker = RayAsker()
        self.ends: list[Ended] = []
        self.first_end = asyncio.Event()
        self.running: list[asyncio.Task[None]] = []

    def end(self, end: Ended) -> None:
        """Something that must live has ended. Of what the guard has killed it has said why before."""
        if self.guard and end.code != ENDED_FOR_MEMORY:
            self.hear_guard()
        self.ends.append(end)
        self.first_end.set()

    def lose_peer(self, rank: int, why: str, said: bool) -> None:
        """Another rank or its cord has ended; after an end here, only what a peer itself reports counts."""
        if said or not self.first_end.is_set():
            not_joined = Ended(f"peers did not join: {why}", NOT_JOINED, rank)
            self.end(Ended(why, CORD_ENDED, rank) if self.joined else not_joined)

    def report(self, stage: str, **more: Any) -> None:
        write_line(json.dumps({"cluster": "rank", "rank": self.number, "stage": stage, "t": time.time(), **more}))

    async def live(self) -> int:
        """Start everything, wait for the first end, end all below us, politely first; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asked = Ended(f"asked to end ({number.name})", 0)
            asyncio.get_running_loop().add_signal_handler(number, self.end, asked)
        work = asyncio.create_task(self.start_all())
        await self.first_end.wait()
        work.cancel()
        await self.explain(end := self.ends[0])
        for child in reversed(self.children):
            child.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(GRACE_S[child.name])
        kill(os.getpid(), within_s=KILL_S)
        give_back(Path(self.wanted.get("cache", "/cache")))
        return end.code

    async def start_all(self) -> None:
        try:
            self.report("started", **{name: self.wanted[name] for name in ("size", "backend", "address")})
            self.start_guard()
            if self.wanted["secrets"]:  # environment only from here on: `docker inspect` must not show them
                secrets = json.loads(Path(self.wanted["secrets"]).read_text())
                os.environ.update(secrets)
                self.report("secrets", names=sorted(secrets))
            if self.wanted["size"] > 1:
                await (self.cord.tie(self.wanted["join_timeout_s"]) if self.number else self.cord.listen())
            for words in self.wanted["before_serve"]:
                self.report("before_serve", words=words)
                end = await Spawned(f"before_serve {words[0]}", words).ended()
                if end.code:
                    raise end
            self.start("ray", self.wanted["ray_start"])
            if self.number == 0:
                self.report("joined", nodes=await self.wait_for_peers())
                self.joined = True
                self.asker.close()
            self.start("engine", self.wanted["engine"])
            if self.wanted["health"]:
                await self.wait_until_served()
        except Ended as end:
            self.end(end)
        except NotTied as error:
            self.end(Ended(str(error), NOT_JOINED))
        except Exception as error:
            self.end(Ended(f"rank.py failed: {type(error).__name__}: {error}", 1))

    def start_guard(self) -> None:
        """A process of its own, so that it acts when this one waits for memory. Its end alone ends nothing."""
        words = [sys.executable, "-I", "-S", str(BESIDE / "guard.py"), json.dumps(self.wanted["guard"])]
        pipe = subprocess.PIPE
        self.guard = subprocess.Popen(words, bufsize=0, stdin=pipe, stdout=pipe, start_new_session=True)
        os.set_blocking(self.guard.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self.guard.stdout, self.hear_guard)

    def hear_guard(self) -> None:
        """It says why just before it kills, in one line; at its end the pipe is empty for good."""
        said, loop = self.guard.stdout.read(1 << 16), asyncio.get_running_loop()
        if said:
            found = json.loads(said)
            write_line(found["why"])
            numbers = {"missing_bytes": found["missing"], "total_bytes": found["total"]}
            self.end(Ended(found["why"], ENDED_FOR_MEMORY, **numbers))
        elif said == b"" and loop.remove_reader(self.guard.stdout) and not self.first_end.is_set():
            write_line(f"memory guard: it exited with {self.guard.wait()}; memory is not guarded any more")

    async def wait_until_served(self) -> None:
        """Rank 0: until the server's /health answers with 200; then the limits of serving hold on all ranks."""
        healthy = False
        while not healthy:
            await asyncio.sleep(1)
            with suppress(OSError, ValueError, asyncio.TimeoutError):
                healthy = await self.ask_health()
        self.cord.broadcast(serving=True)
        self.note_serving()

    async def ask_health(self, tls: ssl.SSLContext | None = None) -> bool:
        """Whether /health answers with 200. What is not HTTP is asked again by TLS.

        There no answer counts as well: a server that wants to see a certificate closes only once the handshake is done.
        """
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*self.wanted["health"], ssl=tls), HEALTH_S)
        status = b""
        with suppress(ConnectionError, ssl.SSLError), closing(writer):
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            status = await asyncio.wait_for(reader.readline(), HEALTH_S)
        if tls or status.startswith(b"HTTP/"):
            return not status or b" 200 " in status
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        own.check_hostname, own.verify_mode = False, ssl.CERT_NONE  # this host asks itself
        return await self.ask_health(own)

    def note_serving(self) -> None:
        with suppress(OSError):  # it has ended, which was reported
            self.guard.stdin.write(b"s")

    def start(self, name: str, words: Words | None) -> None:
        """Start what must live as long as this rank, if this rank has it."""
        if words:
            child = Spawned(name, words)
            self.children.append(child)
            self.running.append(asyncio.create_task(self.watch(child)))
            self.report(f"{name}_started")

    async def watch(self, child: Spawned) -> None:
        """Act on its end; vLLM exits with 0 when its executor has failed."""
        end = await child.ended()
        if child not in self.children or self.first_end.is_set():
            return
        if child.name == "ray" and not self.ray_retried and any(RAY_TIMED_OUT in line for line in child.tail):
            self.ray_retried = True
            self.cord.broadcast(restart_ray=True)
            self.restart_ray(end.why)
        else:
            self.end(Ended(end.why, end.code or 1))

    def receive(self, message: dict[str, Any]) -> None:
        """The server at rank 0 serves; or Ray there was restarted, and has lost the nodes that had joined it before."""
        if "serving" in message:
            self.note_serving()
        if "restart_ray" in message and self.number and self.children:
            self.restart_ray("rank 0 has started its Ray again")

    def restart_ray(self, why: str) -> None:
        """Nothing but Ray runs here yet: a head's engine waits for all nodes."""
        self.children.clear()
        kill(os.getpid(), self.guard.pid, KILL_S)
        self.report("ray_restarted", why=why)
        self.start("ray", self.wanted["ray_start"])

    async def wait_for_peers(self) -> list[dict[str, Any]]:
        """Until each address has a rank, and with Ray a node with a GPU. Raises Ended (75) with what is missing."""
        deadline = time.monotonic() + self.wanted["join_timeout_s"]
        while True:
            missing, nodes = await self.look_for_peers()
            if not missing:
                return nodes
            if time.monotonic() > deadline:
                waited = f"{self.wanted['join_timeout_s']:g} s"
                raise Ended(f"peers did not join within {waited}: {'; '.join(missing)}", NOT_JOINED)
            await asyncio.sleep(0.2)

    async def look_for_peers(self) -> tuple[Words, list[dict[str, Any]]]:
        """What is missing, and Ray's nodes that are there."""
        addresses = self.wanted["addresses"]
        missing = [f"no rank calls from {addresses[i]}" for i in range(1, len(addresses)) if i not in self.cord.lines]
        if missing or not self.wanted["ray_start"]:
            return missing, [{"address": address} for address in addresses]
        found = await asyncio.to_thread(self.asker.ask)
        if "error" in found:
            return [f"Ray does not answer: {found['error']}"], []
        nodes = [{"address": node["address"], "gpus": node["gpus"]} for node in found["nodes"] if node["alive"]]
        gpus = {node["address"]: node["gpus"] for node in nodes}
        foreign = [address for address in gpus if address not in addresses]
        missing = [f"{address} is not a node of Ray" for address in addresses if address not in gpus]
        missing += [f"Ray sees no GPU at {address}" for address in addresses if gpus.get(address, 1) < 1]
        return missing + [f"{address} is a node of Ray but not of this deployment" for address in foreign], nodes

    async def explain(self, end: Ended) -> None:
        """Report to peers and log why this rank ends; a peer may know the cause, so wait a little for its message.

        Not when the guard ended it: that is a cause.
        """
        self.cord.broadcast(without=end.peer, ended=end.why)
        if end.peer is None and end.code not in (0, ENDED_FOR_MEMORY) and self.cord.lines:
            await asyncio.sleep(SETTLE_S)
        said = [end.why] + [other.why for other in self.ends[1:] if other.peer is not None]
        self.report("ended", why="; ".join(said), exit=end.code, **end.numbers)


class RayAsker:
    """Asks Ray for its nodes, by one ray_nodes.py that stays: importing Ray costs a second of a core each time."""

    process: subprocess.Popen[bytes] | None = None

    def ask(self) -> Any:
        """What ray_nodes.py found; {"error"} while Ray does not answer."""
        words, pipe = [sys.executable, str(BESIDE / "ray_nodes.py"), '{"each_line": true}'], subprocess.PIPE
        pipes: Any = self.process or subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.process = pipes
        try:
            pipes.stdin.write(b"\n")
            pipes.stdin.flush()
            return json.loads(pipes.stdout.readline())
        except (OSError, ValueError):
            with suppress(subprocess.TimeoutExpired):
                pipes.wait(1)
            self.close()
            late = pipes.returncode == -signal.SIGALRM
            return {"error": "no answer in time" if late else f"ray_nodes.py ended with {pipes.returncode}"}

    def close(self) -> None:
        """End it; the next question starts another."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


def give_back(cache: Path) -> None:
    """Give what this rank wrote as root to the owner of the cache directory."""
    if os.geteuid() or not cache.is_dir():
        return
    owner = cache.stat()
    for folder, folders, files in os.walk(cache):
        for name in folders + files:
            with suppress(OSError):
                os.chown(os.path.join(folder, name), owner.st_uid, owner.st_gid, follow_symlinks=False)


async def main() -> None:
    """Adopt orphans, so that what programs leave behind is found and ended; then live.

    It leaves at once, since threads may still wait for a child that cannot be killed.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os._exit(await Rank(json.loads(Path(sys.argv[1]).read_text())).live())


if __name__ == "__main__":
    asyncio.run(main())
