"""Times the wire: twelve facts of 2 and of 32 hosts on a loopback sshd, beside ansible's `setup`.

    python scripts/bench/wire.py [--ansible DIRECTORY_OF_ANSIBLES_BIN] [--rounds 3]

Goals: 2 hosts under 0.5 s, 32 under 4 s. Both programs are timed as whole processes, imports included, in turn, so
that what else the machine does hits both; the best of the rounds counts. Needs OpenSSH's server; touches only a
temporary directory. ansible is only compared with, for development: pip install ansible-core in a venv of its own.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOALS_S = {2: 0.5, 32: 4.0}
FACTS = (
    ("cat", "/proc/meminfo"),
    ("uname", "-a"),
    ("cat", "/etc/os-release"),
    ("id",),
    ("df", "-P"),
    ("cat", "/proc/net/dev"),
    ("cat", "/proc/loadavg"),
    ("cat", "/proc/cpuinfo"),
    ("date", "+%s"),
    ("ls", "/sys/class/net"),
    ("cat", "/proc/net/tcp"),
    ("ps", "-eo", "pid,rss,comm"),
)


def serve(folder: Path, options: str = "") -> tuple[subprocess.Popen[bytes], int]:
    """A sshd of our own on a free port of loopback; `options` are more lines of its configuration."""
    for key in ("host_key", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True) if os.getuid() == 0 else None
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/id.pub\n"
        f"StrictModes no\nUsePAM no\nPidFile none\nMaxStartups 200\nSetEnv HOME={folder} PATH=/usr/bin:/bin\n{options}"
    )
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    server = subprocess.Popen([sshd, "-D", "-f", folder / "config", "-E", folder / "log"])
    for _ in range(50):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    kind, key = (folder / "host_key.pub").read_text().split()[:2]
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    return server, port


def ask(hosts: int, folder: Path, port: int) -> None:
    """Our side: one process that asks all hosts all facts."""
    from cluster.argv.question import Question
    from cluster.config.inventory import HostEntry
    from cluster.hosts.connect import connect
    from cluster.hosts.fleet import values

    entry = HostEntry(
        address="127.0.0.1", port=port, identity_file=f"{folder}/id", known_hosts_file=f"{folder}/known_hosts"
    )
    with connect({f"host{number}": entry for number in range(hosts)}) as fleet:
        answers = values(fleet.ask_all([Question(words) for words in FACTS]))
    assert all(answer.out for given in answers.values() for answer in given), "a fact without an answer"


def timed(words: list[str], env: dict[str, str]) -> float:
    """Seconds a process takes; it must succeed."""
    began = time.monotonic()
    done = subprocess.run(
        words, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{words[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - began


def write_ansible(hosts: int, folder: Path, port: int) -> Path:
    """An inventory for ansible with the same hosts and keys, and its usual connection sharing."""
    inventory = folder / f"ansible-{hosts}"
    options = (
        f"ansible_host=127.0.0.1 ansible_port={port} ansible_user={getpass.getuser()}"
        f" ansible_ssh_private_key_file={folder}/id"
        f" ansible_ssh_common_args='-o UserKnownHostsFile={folder}/known_hosts'"
    )
    inventory.write_text("".join(f"host{number} {options}\n" for number in range(hosts)))
    return inventory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ansible", metavar="DIR", help="the bin directory of a venv with ansible-core")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        ask(int(given.ask[0]), Path(given.ask[1]), int(given.ask[2]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, port = serve(folder)
        try:
            measure(folder, port, given.ansible, given.rounds)
        finally:
            server.terminate()
            server.wait()


def measure(folder: Path, port: int, ansible: str | None, rounds: int) -> None:
    """One line for each number of hosts: ours, the goal, ansible's, how many times faster."""
    print(f"{'hosts':>5}  {'cluster s':>9}  {'goal s':>6}  {'ansible s':>9}  {'ratio':>5}")
    for hosts, goal in GOALS_S.items():
        inventory = write_ansible(hosts, folder, port)
        ours, theirs = [], []
        for turn in range(rounds):
            ours.append(timed([sys.executable, __file__, "--ask", str(hosts), str(folder), str(port)], {}))
            if ansible:
                words = [f"{ansible}/ansible", "all", "-i", str(inventory), "-m", "setup", "-f", "32"]
                shared = {"ANSIBLE_SSH_CONTROL_PATH_DIR": f"{folder}/cp{turn}", "ANSIBLE_HOME": f"{folder}/home"}
                theirs.append(timed(words, {**shared, "LC_ALL": "C.UTF-8"}))
        beside = f"{min(theirs):9.2f}  {min(theirs) / min(ours):5.1f}" if theirs else f"{'-':>9}  {'-':>5}"
        print(f"{hosts:5}  {min(ours):9.2f}  {goal:6.1f}  {beside}{'' if min(ours) < goal else '  MISSED'}")


if __name__ == "__main__":
    main()
