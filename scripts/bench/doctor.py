"""Times `cluster doctor` on 2 and on 32 hosts: simulated machines of the tests, each behind a real sshd on loopback.

    .venv/bin/python scripts/bench/doctor.py [--rounds 5]

Goal: 32 hosts in less than three times the time of two. The machines answer at once, so what is timed is ours: SSH,
the wire, reading, judging; and, on the same cores, sshd's own work for all of them. Whole processes, imports included,
in turn; the best of the rounds counts. Needs OpenSSH's server; touches only a temporary directory.
"""

from __future__ import annotations

import argparse
import base64
import json
import socketserver
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

from wire import serve, timed

from cluster.argv.far import source
from cluster.argv.question import Answer, Question

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/act"))

from machine import Desk, Machine  # noqa: E402
from typed import RECIPE  # noqa: E402

SIZES = (2, 32)
GOAL = 3.0
RELAY = """
import os, select, socket, sys
far = socket.socket(socket.AF_UNIX)
far.connect(sys.argv[1])
far.sendall(sys.argv[2].encode() + b"\\n")
ways = {0: far.sendall, far.fileno(): lambda data: os.write(1, data)}
while far.fileno() in ways:
    for end in select.select(list(ways), [], [])[0]:
        data = os.read(end, 1 << 20)
        if data:
            ways[end](data)
        else:
            del ways[end]
"""
"""What sshd runs for each command: bytes to the simulated machines and back."""


class Answering(socketserver.StreamRequestHandler):
    """One command of one host: the name of the host, the program, the questions; then the answers as far/run.py."""

    def handle(self) -> None:
        name = self.rfile.readline().decode().strip()
        program, request = (self.rfile.read(int(self.rfile.readline())) for _ in range(2))
        assert program == source("run"), "doctor only asks"
        told = json.loads(request)
        machine: Machine = self.server.desk[name]  # type: ignore[attr-defined]
        answers = [told_by(machine.answer(question_of(row))) for row in told["questions"]]
        body = json.dumps(answers).encode()
        self.wfile.write(f"\n{told['marker']} json {len(body)}\n".encode() + body)


def question_of(row: dict[str, object]) -> Question:
    return Question(tuple(map(str, row["argv"])), stdin=base64.b64decode(str(row["stdin"])))  # type: ignore[arg-type]


def told_by(answer: Answer) -> dict[str, object]:
    said = {"out": base64.b64encode(answer.out).decode(), "err": base64.b64encode(answer.err).decode()}
    return {"exit": answer.exit, **said, "cut": answer.cut, "seconds": answer.seconds}


class Server(socketserver.ThreadingUnixStreamServer):
    """All machines behind one socket."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self, path: Path, desk: Desk) -> None:
        super().__init__(str(path), Answering)
        self.desk = desk


def set_up(folder: Path, names: list[str], held: ExitStack) -> None:
    """The machines, a sshd for each, and the files a user has."""
    server = Server(folder / "desk", Desk(*names))
    held.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "relay.py").write_text(RELAY)
    rows = []
    for name in names:
        place = folder / name
        place.mkdir()
        force = f"ForceCommand python3 -I -S {folder}/relay.py {folder}/desk {name}\n"
        sshd, port = serve(place, force)
        held.callback(end, sshd)
        files = f"identity_file: {place}/id, known_hosts_file: {place}/known_hosts"
        rows.append(f"  {name}: {{address: 127.0.0.1, port: {port}, {files}}}\n")
    (folder / "inventory.yaml").write_text("hosts:\n" + "".join(rows))
    (folder / "toy.yaml").write_text(RECIPE)


def end(process: Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    names = [f"spark{number}" for number in range(1, max(SIZES) + 1)]
    with tempfile.TemporaryDirectory() as place, ExitStack() as held:
        folder = Path(place)
        set_up(folder, names, held)
        words = [str(Path(sys.executable).with_name("cluster")), "doctor", f"{folder}/toy.yaml"]
        words += ["-i", f"{folder}/inventory.yaml"]
        runs: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(given.rounds):
            for size in SIZES:
                runs[size].append(timed([*words, "-n", ",".join(names[:size])], {"HOME": str(folder)}))
    few, many = (min(runs[size]) for size in SIZES)
    for size in SIZES:
        print(f"{size:3} hosts: best {min(runs[size]):.2f} s of {', '.join(f'{one:.2f}' for one in runs[size])}")
    print(f"{many / few:.1f} times the time of two; goal: under {GOAL:g}{'' if many / few < GOAL else '  MISSED'}")


if __name__ == "__main__":
    main()
