"""The lab as a whole: up, down, status. Each reads top to bottom."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

from cluster.errors import UsageError
from cluster.lab import wires
from cluster.lab.images import docker_root, give_images, shown_engines
from cluster.lab.needs import demand_python, demand_root, install_packages
from cluster.lab.place import Place, Record, locked, read_record, write_record
from cluster.lab.program import run, say
from cluster.lab.rootfs import host_root
from cluster.lab.shape import LAB_NUMBERS, MAX_HOSTS, Spark, inventory_text
from cluster.lab.spark import (
    await_docker,
    await_init,
    await_ssh,
    boot,
    end,
    init_pid,
    lay_out,
    make_host_key,
    start_daemons,
)
from cluster.lab.toymodel import toy_model


def up(place: Place, count: int) -> None:
    """Bring the lab up with `count` hosts; hosts that run stay as they are. What a killed lab left is cleaned first."""
    demand_root()
    if not 1 <= count <= MAX_HOSTS:
        raise UsageError(f"--hosts {count}: a lab has 1 to {MAX_HOSTS} hosts")
    with locked(place):
        prepare(place)
        record = read_record(place)
        switch = wires.switch_of(place, record.number)
        if switch is None or record.hosts != count:
            clear(place, record)
            record = Record(wires.free_number(), count)
            write_record(place, record)
            switch = wires.make_switch(place, record.number)
        down = [spark for spark in record.sparks if init_pid(place, spark) is None]
        start(place, switch, down)
        write_access(place, record)
        say(f"{count} hosts are up: {', '.join(f'{spark.name} {spark.management}' for spark in record.sparks)}")


def prepare(place: Place) -> None:
    """Everything that is made once: packages, root file systems, engine, model, images."""
    place.cache.mkdir(parents=True, exist_ok=True)
    install_packages(place)
    demand_python()
    host_root(place)
    shown_engines(place)
    toy_model(place)
    docker_root(place)
    if not place.key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cluster lab", "-f", str(place.key)])


def start(place: Place, switch: int, sparks: list[Spark]) -> None:
    """Boot hosts that do not run, side by side, and wait until SSH and Docker answer."""
    model, shown = toy_model(place), shown_engines(place)
    booted = []
    for spark in sparks:
        end(place, [spark])
        lay_out(place, spark, model if not place.host(spark.name).boot.exists() else None)
        give_images(place, place.host(spark.name))
        booted.append((spark, boot(place, spark, shown=shown)))
    for spark, first in booted:
        wires.plug_in(switch, spark, await_init(place, spark))
        start_daemons(place.host(spark.name), first)
    for spark in sparks:
        await_ssh(spark)
        await_docker(await_init(place, spark))


def write_access(place: Place, record: Record) -> None:
    """The inventory and the host keys."""
    place.known_hosts.write_text("".join(make_host_key(place, spark) for spark in record.sparks))
    place.inventory.write_text(inventory_text(record.sparks, str(place.key), str(place.known_hosts)))


def down(place: Place, *, purge: bool) -> None:
    """End every host and take the wires away; `purge` also throws away what was built."""
    demand_root()
    if not place.root.exists():
        return
    with locked(place):
        clear(place, read_record(place))
        for path in (place.inventory, place.known_hosts, place.record, place.key, place.key.with_suffix(".pub")):
            path.unlink(missing_ok=True)
        if purge:
            shutil.rmtree(place.cache, ignore_errors=True)
            for path in (place.log, place.root / "daemon.log"):
                path.unlink(missing_ok=True)
        say("all hosts are down")


def clear(place: Place, record: Record) -> None:
    """End hosts and switch, remove the hosts' files; also what a killed lab left behind."""
    left = [path.name for path in (place.root / "hosts").glob("spark*")]
    labs = {record.number, *LAB_NUMBERS} if left else {record.number}
    for name in left:
        end(place, [Spark(int(name.removeprefix("spark")), lab) for lab in sorted(labs)])
    switch = wires.daemon_pid(place)
    if switch:
        with contextlib.suppress(ProcessLookupError):
            os.kill(switch, signal.SIGKILL)
        wires.await_unplugged(record.number)
    shutil.rmtree(place.root / "hosts", ignore_errors=True)
    shutil.rmtree(place.root / "still", ignore_errors=True)


def status(place: Place) -> list[str]:
    """One line a host, for people."""
    record = read_record(place)
    if not record.hosts:
        return [f"no lab in {place.root}"]
    rows = []
    for spark in record.sparks:
        state = "up" if init_pid(place, spark) else "down"
        broken = record.faults.get(spark.name)
        rows.append(f"{spark.name}  {spark.management}  {state}" + (f"  broken: {', '.join(broken)}" if broken else ""))
    return rows


def inventory_of(place: Place) -> Path:
    """Where the inventory lies."""
    return place.inventory
