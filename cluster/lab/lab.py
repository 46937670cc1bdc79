"""The lab: up, down, status, break, mend, memory. It requires root, Debian 12 and a few packages."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path

from cluster.errors import ClusterError, UsageError
from cluster.lab import gpu, wires
from cluster.lab.engine import PYTHON, toy_models
from cluster.lab.faults import FAULTS, UNKNOWN_KEY, Scene, cut_power, power_on
from cluster.lab.images import docker_images, shown_engines, start_hosts
from cluster.lab.place import LabRecord, Place, building, locked, purge, read_record, write_record
from cluster.lab.program import run, say
from cluster.lab.rootfs import host_root
from cluster.lab.shape import MAX_HOSTS, Spark, inventory_text
from cluster.lab.spark import CGROUPS, end, host_key, is_up

PACKAGES = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "tar": "tar",
}


def up(place: Place, wanted: int | None, *, with_gpus: bool = False) -> None:
    """Bring the lab up with `wanted` hosts (None: as many as it has, else two, with GPUs as many as there are cards);
    hosts that run stay as they are."""
    demand_root()
    if with_gpus and not place.gpu and read_record(place).hosts:
        what = f"the lab in {place.root} has no real GPUs"
        raise UsageError(what, code="lab-dir", remedy="cluster lab down, then cluster lab up --gpu")
    place.gpu = place.gpu or with_gpus
    if place.gpu:
        wanted = gpu.demand_cards(wanted or read_record(place).hosts or None)
    if wanted is not None and not 1 <= wanted <= MAX_HOSTS:
        raise UsageError(f"--hosts {wanted}: a lab has 1 to {MAX_HOSTS} hosts", code="lab-size")
    with locked(place):
        prepare(place)
        record = read_record(place)
        count = wanted or record.hosts or 2
        if wires.switch_of(place, record.number) is None or record.hosts != count:
            clear(place, record)
            number = wires.new_switch(place, images=docker_images(place), models=toy_models(place))
            record = LabRecord(number, count, place.gpu)
            write_record(place, record)
        switch = wires.switch_of(place, record.number)
        if switch is None:
            raise ClusterError("the lab's switch ended", code="lab-start-failed", where=str(place.root / "daemon.log"))
        down = [spark for spark in record.sparks if not is_up(place, spark)]
        start_hosts(place, switch, down)
        for spark in down:
            forget(record, spark.name, "killed")
        write_record(place, record)
        write_access(place, record)
        say(f"{count} hosts are up: {', '.join(f'{spark.name} {spark.management}' for spark in record.sparks)}")


def write_access(place: Place, record: LabRecord) -> None:
    """The inventory and the host keys that a fault does not hide."""
    known = [spark for spark in record.sparks if UNKNOWN_KEY not in record.faults.get(spark.name, [])]
    place.known_hosts.write_text("".join(host_key(place, spark) for spark in known))
    place.inventory.write_text(inventory_text(record.sparks, str(place.key), str(place.known_hosts)))


def demand_root() -> None:
    """Raises UsageError unless this is root on Linux."""
    if not Path("/proc/self/ns/net").exists():
        what, remedy = "the lab requires Linux: it is made of namespaces", "run it on a Debian 12 machine"
        raise UsageError(what, code="lab-unsupported", remedy=remedy)
    if os.geteuid() != 0:
        what = "the lab requires root: it makes network namespaces, mounts and Docker daemons"
        raise UsageError(what, code="lab-unsupported", remedy="run it as root, e.g. sudo cluster lab up")


def install_packages(place: Place) -> None:
    """Install what is missing with apt-get. None of these packages starts a service."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = {package for program, package in PACKAGES.items() if shutil.which(program, path=path) is None}
    if place.gpu:
        missing -= {"debootstrap"} if (place.cache / "host-root").exists() else set()
    elif not any(Path("/usr/lib").glob("python3*/ensurepip")):  # which Debian splits off
        missing.add("python3-venv")
    if not missing:
        return
    names = sorted(missing)
    if shutil.which("apt-get") is None:
        raise UsageError(f"missing on this machine: {', '.join(names)}", code="program-missing", remedy="install them")
    say(f"installing {', '.join(names)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *names]):
        run(["apt-get", *words], env=env, log=place.log, timeout_s=900)


def prepare(place: Place) -> None:
    """Everything that is made once: packages, root file systems, engine, models, images."""
    install_packages(place)
    version = run([PYTHON, "-c", "import sys; print(*sys.version_info[:2])"]) if Path(PYTHON).exists() else ""
    if version.split() != ["3", "11"] and not place.gpu:
        what = f"{PYTHON} is not Python 3.11, so an engine made here would not run in the lab's Debian 12 image"
        raise UsageError(what, code="lab-unsupported", remedy="run the lab on Debian 12")
    with building(place):
        host_root(place)
        shown_engines(place)
        toy_models(place)
        docker_images(place)
    if not place.key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cluster lab", "-f", str(place.key)])


def down(place: Place, *, everything: bool) -> None:
    """End every host and remove the wires; `everything` also removes what was built."""
    demand_root()
    if not place.root.exists():
        return
    with locked(place):
        clear(place, read_record(place))
        for path in (place.inventory, place.known_hosts, place.record, place.key, place.key.with_suffix(".pub")):
            path.unlink(missing_ok=True)
        if everything:
            purge(place)
        say("all hosts are down")


def clear(place: Place, record: LabRecord) -> None:
    """End hosts and switch, remove the hosts' files; also what a killed lab left behind."""
    left = [path.name.removeprefix("spark") for path in (place.root / "hosts").glob("spark*")]
    end(place, [Spark(int(number), record.number) for number in left])
    wires.end_switches(place, record.number)
    shutil.rmtree(place.root / "hosts", ignore_errors=True)


def status(place: Place) -> list[str]:
    record = read_record(place)
    if not record.hosts:
        return [f"no lab in {place.root}"]
    rows = []
    if record.gpu:
        rows = ["real: GPU, driver, CUDA, Docker, SSH, Ray, vLLM; simulated: network, HCAs, the product's name"]
    for spark in record.sparks:
        state = "up" if is_up(place, spark) else "down"
        broken = record.faults.get(spark.name)
        row = f"{spark.name}  {spark.management}  {state}"
        if spark.memory_gib:
            row += f"  memory: {spark.memory_gib:g} GiB (the limit is real, /proc/meminfo simulated from its cgroup)"
        rows.append(row + (f"  broken: {', '.join(broken)}" if broken else ""))
    return rows


def break_host(place: Place, name: str, fault_name: str) -> None:
    demand_root()
    with locked(place):
        record = read_record(place)
        scene = scene_of(place, record, name)
        if fault_name not in FAULTS:
            near = difflib.get_close_matches(fault_name, FAULTS, 1, 0.0)[0]
            what, remedy = f"unknown fault {fault_name!r}; did you mean {near}?", "cluster lab break --list"
            raise UsageError(what, code="lab-fault-unknown", remedy=remedy)
        fault = FAULTS[fault_name]
        made = record.faults.setdefault(name, [])
        if fault_name in made:
            say(f"{name}: {fault_name} is made already")
            return
        if not fault.instant:
            made.append(fault_name)
            write_record(place, record)
        fault.make(scene)
        say(f"{name}: {fault.what}")


def limit_memory(place: Place, name: str, gib: float) -> None:
    """Let a host's processes and containers together have `gib` GiB, 0: all of this machine's. The host reboots.

    Raises UsageError for a size that this machine has not, and where the kernel's memory cgroup is not v1.
    """
    demand_root()
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if gib and not 1 <= gib <= most:
        raise UsageError(f"{gib:g} GiB: a host has 1 to {most:.1f}, or 0 for no limit", code="lab-memory")
    if gib and not (CGROUPS / "memory/memory.limit_in_bytes").exists():
        raise UsageError("a limit of memory requires cgroup v1's memory controller", code="lab-unsupported")
    with locked(place):
        record = read_record(place)
        record.memory[name] = gib
        scene = scene_of(place, record, name)
        write_record(place, record)
        cut_power(scene)
        power_on(scene)
        forget(record, name, "killed")
        write_record(place, record)
        say(f"{name}: memory {f'{gib:g} GiB' if gib else 'of this machine'}")


def mend(place: Place, name: str | None) -> None:
    """Undo the faults of one host or of all, newest first; a host that is off is booted first."""
    demand_root()
    with locked(place):
        record = read_record(place)
        for one in [name] if name else [spark.name for spark in record.sparks]:
            scene = scene_of(place, record, one)
            made = record.faults.get(one, [])
            power_on(scene)
            forget(record, one, "killed")
            for fault in reversed(made.copy()):
                FAULTS[fault].undo(scene)
                forget(record, one, fault)
                write_record(place, record)
                say(f"{one}: {fault} mended")
            write_record(place, record)


def forget(record: LabRecord, host: str, fault: str) -> None:
    record.faults[host] = [made for made in record.faults.get(host, []) if made != fault]


def scene_of(place: Place, record: LabRecord, name: str) -> Scene:
    """A host of a lab that is up. Raises UsageError when there is none of that name."""
    switch = wires.switch_of(place, record.number)
    if switch is None:
        raise UsageError(f"no lab is up in {place.root}", code="lab-down", remedy="cluster lab up")
    found = [spark for spark in record.sparks if spark.name == name]
    if not found:
        names = ", ".join(spark.name for spark in record.sparks)
        raise UsageError(f"the lab has no host {name!r}, it has: {names}", code="host-unknown")
    return Scene(place, found[0], switch)
