"""One simulated Spark: lay out its files, boot it, look into it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.lab import gpu
from cluster.lab.engine import lab_files
from cluster.lab.inside.daemon import meminfo
from cluster.lab.place import HostPlace, Place
from cluster.lab.program import await_that, processes_with, run
from cluster.lab.rootfs import host_files
from cluster.lab.shape import GPU_PRODUCT_NAME, PORTS, PRODUCT_NAME, REGISTRY_URL, USER, Spark

UID = 1000
CGROUPS = Path("/sys/fs/cgroup")
OWN = "usr/local/lib/cluster-lab"
SMI = "usr/local/bin/nvidia-smi"
PROGRAMS = {
    SMI: "simulators/nvidia_smi.py",
    "usr/local/bin/ollama": "simulators/ollama.py",
    f"{OWN}/bundle.py": "inside/bundle.py",
    f"{OWN}/bin/runc": "inside/runc.sh",
    f"{OWN}/bin/nvidia-container-runtime-hook": "inside/nvidia-hook.sh",
}
"""Programs of the lab by their place on a host."""
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
    for name, (text, mode) in host_files(spark, key).items():
        _write(host.upper / name, text.encode(), mode)
    home = host.upper / "home" / USER
    (home / ".ssh").chmod(0o700)
    for target, source in PROGRAMS.items():
        _write(host.upper / target, (lab_files() / source).read_bytes(), 0o755)
    if place.gpu:
        _write(host.upper / SMI, gpu.smi().encode(), 0o755)
        _write(host.upper / OWN / "gpu.json", json.dumps(gpu.binds(place)).encode(), 0o644)
    own_key = _key(place, spark)
    if place.key.exists() and not own_key.exists():
        own_key.parent.mkdir(parents=True, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spark.name, "-f", str(own_key)])
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
    return [*DOCKERD, f"--cgroup-parent={spark.cgroup}"]


def boot(place: Place, spark: Spark, *, shown: dict[str, list[str]], wire: bool = True) -> subprocess.Popen[str]:
    """Start a host's first process; it waits for a line on stdin, which means that its wires are there.

    `shown` has folders of this machine by their place on the host: read-only, one over the other.
    """
    host = place.host(spark.name)
    ports = [
        {"hca": port.hca, "netdev": port.netdev, "mac": spark.mac(wire), "address": spark.fabric(port)}
        for wire, port in enumerate(PORTS, 1)
    ]
    words = {
        "name": spark.name,
        "product": GPU_PRODUCT_NAME if place.gpu else PRODUCT_NAME,
        "devices": gpu.nodes(spark.number) if place.gpu else [],
        "lower": str(place.cache / "host-root"),
        "upper": str(host.upper),
        "work": str(host.root / "work"),
        "mountpoint": str(host.root / "mnt"),
        "docker": str(host.docker),
        "shown": shown,
        "ports": ports if wire else [],
        "dockerd": dockerd_words(spark),
        "memory": memory_words(spark) if spark.memory_gib else None,
    }
    host.boot.write_text(json.dumps(words, indent=1))
    alone = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
    init = [sys.executable, "-I", "-S", str(lab_files() / "inside/init.py"), str(host.boot)]
    with (host.root / "boot.log").open("ab") as log:
        pipe = subprocess.PIPE
        return subprocess.Popen([*alone, *init], stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True)


def memory_words(spark: Spark) -> dict[str, Any]:
    """How a host's memory is limited: in a cgroup (v1) whose limit its processes and containers share; one of cgroup2,
    where the kernel has it beside, measures their pressure."""
    limit, own = int(spark.memory_gib * 2**30), spark.cgroup.strip("/")
    group = str(CGROUPS / "memory" / own)
    pressure = str(CGROUPS / "unified" / own) if (CGROUPS / "unified/memory.pressure").exists() else None
    return {"limit": limit, "group": group, "pressure": pressure, "meminfo": meminfo(limit, 0, {})}


def start_daemons(host: HostPlace, first: subprocess.Popen[str]) -> None:
    """Tell a waiting host that its wires are there. Raises ClusterError with its last output if it does not boot."""
    pipes: Any = first
    with contextlib.suppress(BrokenPipeError):
        pipes.stdin.write("\n")
        pipes.stdin.close()
    if pipes.stdout.readline() != "booted\n":
        first.wait()
        last = (host.root / "boot.log").read_text(errors="replace").strip().splitlines()[-3:]
        what = f"{host.root.name} did not boot: {' | '.join(last)}"
        raise ClusterError(what, code="lab-start-failed", where=str(host.root / "boot.log"))


def await_init(place: Place, spark: Spark) -> int:
    """The id of a host's first process, as soon as it is there."""
    log = str(place.host(spark.name).root / "boot.log")
    await_that(lambda: init_pid(place, spark), f"{spark.name} did not start", timeout_s=5, log=log)
    return init_pid(place, spark) or 0


def init_pid(place: Place, spark: Spark) -> int | None:
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
    log = f"/var/log/{Path(argv[0]).name}.log"
    join = "for procs in $(cat /run/cluster-lab/memory/cgroups 2>/dev/null); do echo 0 >$procs; done"
    line = f'{join}; export PATH=/{OWN}/bin:$PATH; setsid "$@" </dev/null >>{log} 2>&1 &'
    inside(init, ["sh", "-c", line, "sh", *argv])


def await_docker(init: int) -> None:
    inside(init, ["sh", "-c", "for i in $(seq 300); do docker version && exit; sleep 0.1; done; exit 1"], 60)


def await_ssh(spark: Spark) -> None:
    def greets() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((spark.management, 22), timeout=1) as link:
            return link.recv(4) == b"SSH-"
        return False

    await_that(greets, f"sshd of {spark.name} does not answer at {spark.management}", timeout_s=15)


def end(place: Place, sparks: Iterable[Spark]) -> None:
    """Kill hosts at once, as a power cut would, and wait until their processes and cgroups are gone."""
    hosts = tuple(sparks)
    for is_gone, what in ((_kill, "processes"), (_sweep_cgroups, "processes in the cgroups")):
        for spark in hosts:
            done = partial(is_gone, place, spark)
            await_that(done, f"{what} of {spark.name} do not end", code="lab-end-failed", timeout_s=30)


def _kill(place: Place, spark: Spark) -> bool:
    """Kill a host's processes, the first one first; False while there were some."""
    pids = list(processes_with([str(place.host(spark.name).boot)]))
    for pid in sorted(pids, key=_is_first, reverse=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not pids


def _is_first(pid: int) -> bool:
    """Whether a process is the first of a process namespace below this one."""
    with contextlib.suppress(OSError):
        return re.search(r"^NSpid:.*\d\t1$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None
    return False


def _sweep_cgroups(place: Place, spark: Spark) -> bool:
    """Remove a host's cgroups; False while processes that were killed still end in one of them."""
    gone = True
    for hierarchy in [CGROUPS, *CGROUPS.glob("*/")]:
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
