"""One simulated Spark: lay out its files, boot it, look into it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.lab.engine import lab_files
from cluster.lab.place import HostPlace, Place
from cluster.lab.program import processes_with, run
from cluster.lab.rootfs import host_files
from cluster.lab.shape import PORTS, PRODUCT_NAME, REGISTRY_URL, USER, Spark

UID = 1000
SIMULATORS = ("nvidia-smi", "ibdev2netdev", "rdma", "ollama")
OWN = "usr/local/lib/cluster-lab"
DOCKERD = (
    "/usr/sbin/dockerd",
    "--host=unix:///var/run/docker.sock",
    "--iptables=false",
    "--ip-masq=false",
    "--bridge=none",
    "--storage-driver=overlay2",
    f"--registry-mirror={REGISTRY_URL}",
)


def lay_out(place: Place, spark: Spark, models: Path | None) -> None:
    """Write the files of a host that is not running: names, keys, simulators, the models in its HF cache."""
    host = place.host(spark.name)
    for folder in (host.upper, host.docker, host.root / "work", host.root / "mnt"):
        folder.mkdir(parents=True, exist_ok=True)
    key = place.key.with_suffix(".pub").read_text() if place.key.exists() else ""
    for name, (text, mode, owned) in host_files(spark, key).items():
        _write(host.upper / name, text.encode(), mode)
        if owned:
            (host.upper / name).parent.chmod(0o700)
    for name in SIMULATORS:
        program = lab_files() / "simulators" / f"{name.replace('-', '_')}.py"
        _write(host.upper / "usr/local/bin" / name, program.read_bytes(), 0o755)
    hook = "bin/nvidia-container-runtime-hook"
    for source, target in (("bundle.py", "bundle.py"), ("runc.sh", "bin/runc"), ("nvidia-hook.sh", hook)):
        _write(host.upper / OWN / target, (lab_files() / "inside" / source).read_bytes(), 0o755)
    own_key = _key(place, spark)
    if place.key.exists() and not own_key.exists():
        own_key.parent.mkdir(parents=True, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spark.name, "-f", str(own_key)])
    home = host.upper / "home" / USER
    if models:
        hub = home / ".cache/huggingface/hub"
        shutil.rmtree(hub, ignore_errors=True)
        shutil.copytree(models, hub, symlinks=True)
    for at, _, files in os.walk(home):
        for file in (".", *files):
            os.chown(Path(at, file), UID, UID, follow_symlinks=False)


def host_key(place: Place, spark: Spark) -> str:
    """The line of known_hosts for a host; a fault that changes the key keeps the old one beside it."""
    key = _key(place, spark)
    kept = key.with_name(f"{key.name}.kept.pub")
    kind, text = (kept if kept.exists() else key.with_suffix(".pub")).read_text().split()[:2]
    return f"{spark.management} {kind} {text}\n"


def _key(place: Place, spark: Spark) -> Path:
    return place.host(spark.name).upper / "etc/ssh/ssh_host_ed25519_key"


def dockerd_words(spark: Spark) -> list[str]:
    """How a host's Docker is started."""
    return [*DOCKERD, f"--cgroup-parent={spark.cgroup}"]


def boot(place: Place, spark: Spark, *, shown: dict[str, list[str]], wire: bool = True) -> subprocess.Popen[str]:
    """Start a host's first process; it waits for a line on stdin, which says that its wires are there.

    `shown` gives folders of this machine by the place where the host sees them read-only (several: one over the other).
    """
    host = place.host(spark.name)
    ports = [
        {
            "hca": port.hca,
            "netdev": port.netdev,
            "mac": spark.mac(index + 1),
            "address": spark.fabric(port) if port.subnet else "",
        }
        for index, port in enumerate(PORTS)
    ]
    words = {
        "name": spark.name,
        "product": PRODUCT_NAME,
        "lower": str(place.cache / "host-root"),
        "upper": str(host.upper),
        "work": str(host.root / "work"),
        "mountpoint": str(host.root / "mnt"),
        "docker": str(host.docker),
        "shown": shown,
        "ports": ports if wire else [],
        "dockerd": dockerd_words(spark),
    }
    host.boot.write_text(json.dumps(words, indent=1))
    alone = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
    init = [sys.executable, "-I", "-S", str(lab_files() / "inside/init.py"), str(host.boot)]
    with (host.root / "boot.log").open("ab") as log:
        pipe = subprocess.PIPE
        return subprocess.Popen([*alone, *init], stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True)


def start_daemons(host: HostPlace, first: subprocess.Popen[str]) -> None:
    """Tell a waiting host that its wires are there. Raises ClusterError with what it said when it does not boot."""
    assert first.stdin
    assert first.stdout
    with contextlib.suppress(BrokenPipeError):
        first.stdin.write("\n")
        first.stdin.close()
    if first.stdout.readline() != "booted\n":
        first.wait()
        last = (host.root / "boot.log").read_text(errors="replace").strip().splitlines()[-3:]
        what = f"{host.root.name} did not boot: {' | '.join(last)}"
        raise ClusterError(what, code="lab-start-failed", where=str(host.root / "boot.log"))


def await_init(place: Place, spark: Spark, timeout_s: float = 5) -> int:
    """The id of a host's first process, as soon as it is there."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if pid := init_pid(place, spark):
            return pid
        time.sleep(0.01)
    log = place.host(spark.name).root / "boot.log"
    raise ClusterError(f"{spark.name} did not start", code="lab-start-failed", where=str(log))


def init_pid(place: Place, spark: Spark) -> int | None:
    """The id of a running host's first process, seen from this machine."""
    return next(filter(_is_first, processes_with([str(place.host(spark.name).boot)])), None)


def is_up(place: Place, spark: Spark) -> bool:
    """Whether a host runs and has booted to the end; one whose `lab up` was killed half-way has not."""
    pid = init_pid(place, spark)
    return pid is not None and Path(f"/proc/{pid}/root/run/cluster-lab/booted").exists()


def enter_words(init: int, argv: Sequence[str]) -> list[str]:
    """The words that run a program inside a host as root, in its own root file system."""
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
    return ["nsenter", "--target", str(init), *spaces, "--root", "--wdns=/", *argv]


def inside(init: int, argv: Sequence[str], timeout_s: float = 60) -> str:
    """Run a program inside a host as root; its standard output. Raises ClusterError when it fails."""
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    return run(enter_words(init, argv), env=env, timeout_s=timeout_s)


def start_inside(init: int, *argv: str) -> None:
    """Start a daemon inside a host as its own init would; its output goes to /var/log/<name>.log."""
    name = Path(argv[0]).name
    path = "/usr/local/lib/cluster-lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    line = f'export PATH={path}; setsid "$@" </dev/null >>/var/log/{name}.log 2>&1 &'
    inside(init, ["sh", "-c", line, "sh", *argv])


def await_docker(init: int, timeout_s: float = 30) -> None:
    """Wait until a host's Docker answers."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            inside(init, ["docker", "version", "--format", "{{.Server.Version}}"])
            return
        except ClusterError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def await_ssh(spark: Spark, timeout_s: float = 15) -> None:
    """Wait until a host's sshd greets."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((spark.management, 22), timeout=1) as link:
                if link.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.05)
        if time.monotonic() > until:
            raise ClusterError(f"sshd of {spark.name} does not answer at {spark.management}", code="lab-start-failed")


def end(place: Place, sparks: Iterable[Spark], timeout_s: float = 30) -> None:
    """Kill hosts at once, as a power cut would, and wait until their processes and cgroups are gone."""
    sparks = tuple(sparks)
    until = time.monotonic() + timeout_s
    for spark in sparks:
        while pids := list(processes_with([str(place.host(spark.name).boot)])):
            for pid in sorted(pids, key=_is_first, reverse=True):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                raise ClusterError(f"{spark.name} does not end: processes {pids}", code="lab-end-failed")
            time.sleep(0.02)
    while left := [spark.name for spark in sparks if not _sweep_cgroups(spark)]:
        if time.monotonic() > until:
            raise ClusterError(f"processes in the cgroups of {', '.join(left)} do not end", code="lab-end-failed")
        time.sleep(0.05)


def _is_first(pid: int) -> bool:
    """Whether a process is the first of a process namespace below ours."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    row = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(row) > 1 and row[-1] == "1"


def _sweep_cgroups(spark: Spark) -> bool:
    """Remove a host's cgroups; False while processes that were killed still end in one of them."""
    gone = True
    for hierarchy in [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")]:
        top = hierarchy / spark.cgroup.strip("/")
        if top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            gone = gone and not top.exists()
            with contextlib.suppress(OSError):
                top.parent.rmdir()
    return gone


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
