"""`cluster status --watch`: look every few seconds, say each change once, act as told. It ends when it is told to."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from cluster.cli.heard import Heard, ask_ranks, hear
from cluster.cli.on_wedge import Act, Moment, make_act
from cluster.cli.tell import Teller
from cluster.cli.unit import print_unit
from cluster.config.names import ResolvedHost
from cluster.deploy.session import Connect, Named, open_fleet, read_named, tell_apart
from cluster.diagnosis.pulse import Course, HostPulse, Pulse, read_host
from cluster.diagnosis.standing import Key, Standing, follow
from cluster.errors import ExitCode, InterruptedByUser, UsageError
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.completion import Server
from cluster.spark.deployed import Deployment, group
from cluster.spark.fact import Missing
from cluster.spark.identity import host_id
from cluster.spark.lock import LockState
from cluster.spark.ready import Failed

SHORTEST_S = 1.0


@dataclass
class Watched:
    """One deployment, what is remembered of it, and what stands."""

    deployment: Deployment
    course: Course = field(default_factory=Course)
    standing: Mapping[Key, Standing] = field(default_factory=dict)

    def is_as_before(self, now: Deployment) -> bool:
        """Whether the ranks that are known now are those of the last look, not started since."""
        known = self.deployment.ranks
        return all(
            (rank.id, rank.started_at) == (known[host].id, known[host].started_at)
            for host, rank in now.ranks.items() if host in known
        )  # fmt: skip


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster status --watch` or `--print-unit`. Nothing but Ctrl-C (130) and SIGTERM (0) ends a watch."""
    if args.interval < SHORTEST_S:
        raise UsageError(f"--interval {args.interval:g}: at least {SHORTEST_S:g} s")
    named = read_named(args)
    act = make_act(args)
    if args.print_unit:
        return print_unit(args, named, screen)
    teller = Teller(screen)
    with ending_on_sigterm() as asked, open_fleet(named.hosts, connect) as fleet:
        try:
            Watch(named, fleet, teller, act).go_on(args.interval)
        except (KeyboardInterrupt, InterruptedByUser):
            return ExitCode.DONE if asked else ExitCode.INTERRUPTED


@contextmanager
def ending_on_sigterm() -> Iterator[list[int]]:
    """SIGTERM interrupts as Ctrl-C does, and is noted in the list."""
    asked: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


class Watch:
    """All deployments on the hosts that are named."""

    def __init__(self, named: Named, fleet: Fleet, teller: Teller, act: Act) -> None:
        self.hosts: dict[str, ResolvedHost] = {host.name: host for host in named.hosts}
        self.fleet, self.teller, self.act = fleet, teller, act
        self.watched: dict[str, Watched] = {}
        self.silent: set[str] = set()
        self.ids: dict[str, str] = {}

    def go_on(self, interval_s: float) -> NoReturn:
        """Look until interrupted."""
        first = True
        while True:
            began = self.fleet.time.monotonic()
            self.look()
            if first and not self.watched:
                self.teller.say("watching", "", f"nothing of ours runs on {', '.join(self.hosts)} yet")
            first = False
            self.fleet.time.sleep(max(0.0, began + interval_s - self.fleet.time.monotonic()))

    def look(self) -> None:
        """One look at all hosts, and what follows from it."""
        heard = hear(self.fleet, self.hosts, self.servers())
        self.tell_apart(heard)
        self.say_who_is_silent(heard)
        for deployment in self.deployments(heard):
            watched = self.watch_over(deployment)
            lost = ask_ranks(deployment, self.fleet, heard)
            watched.course = watched.course.after(self.pulse(deployment, heard, lost))
            change = follow(watched.standing, watched.course)
            watched.standing = change.standing
            for finding in change.raised:
                self.teller.raised(deployment.id, finding)
            self.say_over(deployment.id, change.over)
            self.act(Moment(deployment, watched.course, change, self.fleet, self.hosts, self.teller))

    def servers(self) -> dict[str, Server]:
        """By head, the server of each deployment that is watched."""
        found = {}
        for watched in self.watched.values():
            deployment = watched.deployment
            if deployment.head in self.hosts:
                home = f"{self.hosts[deployment.head].data_dir}/deployments/{deployment.id}"
                found[deployment.head] = Server.of_spec(deployment.spec, home)
        return found

    def tell_apart(self, heard: Mapping[str, Heard]) -> None:
        """Learn which host is which machine. Raises RefusedError at the first look when they are not told apart."""
        machines = {host: told.machine for host, told in heard.items() if not told.why}
        if not self.ids:
            tell_apart(machines)
        self.ids |= {host: host_id(machine) for host, machine in machines.items() if isinstance(machine, str)}

    def say_who_is_silent(self, heard: Mapping[str, Heard]) -> None:
        """Say once who does not answer, and who answers again."""
        for host, told in heard.items():
            if told.why and host not in self.silent:
                self.teller.say("unreachable", "", f"{host} does not answer: {told.why}", host=host)
                self.silent.add(host)
            elif not told.why and host in self.silent:
                self.teller.say("answers", "", f"{host} answers again", host=host)
                self.silent.remove(host)

    def deployments(self, heard: Mapping[str, Heard]) -> list[Deployment]:
        """What is there now. On a host that does not tell its containers they are taken to be as they were."""
        listed = {host: told.containers for host, told in heard.items() if not isinstance(told.containers, Missing)}
        blind = set(self.hosts) - set(listed)
        before = [watched.deployment for watched in self.watched.values()]
        known = {host: [one.ranks[host] for one in before if host in one.ranks] for host in blind}
        silent = {host: self.hosts[host].address for host in blind - self.ids.keys()}
        found = group({**listed, **known}, self.ids, silent)
        for name in self.watched.keys() - {one.id for one in found}:
            self.say_over(name, self.watched.pop(name).standing.values())
            self.teller.say("gone", name, "it is no longer there: taken down or replaced")
        return list(found)

    def watch_over(self, deployment: Deployment) -> Watched:
        """What is remembered of a deployment; nothing but the way of its traffic when its ranks were started anew."""
        watched = self.watched.get(deployment.id)
        if watched is None:
            what = f"{deployment.served_name} on {', '.join(deployment.hosts)}"
            self.teller.say("watching", deployment.id, f"watching {what}")
            watched = Watched(deployment)
        elif not watched.is_as_before(deployment):
            self.say_over(deployment.id, watched.standing.values())
            self.teller.say("anew", deployment.id, "its ranks were started anew")
            watched = Watched(deployment, Course(rdma=watched.course.rdma))
        watched.deployment = deployment
        self.watched[deployment.id] = watched
        return watched

    def say_over(self, deployment: str, ended: Iterable[Standing]) -> None:
        """Say of each finding that it does not stand any more."""
        for one in ended:
            self.teller.over(deployment, one, self.fleet.time.monotonic())

    def pulse(self, deployment: Deployment, heard: Mapping[str, Heard], lost: Failed | None) -> Pulse:
        """The look at one deployment in what all hosts told."""
        hosts = {host: self.host_pulse(host, deployment, heard) for host in deployment.hosts}
        here = [heard[host] for host in deployment.hosts if host in heard]
        locks = [told.lock for told in here if isinstance(told.lock, LockState) and told.lock.held]
        server = heard[deployment.head].server if deployment.head in heard else None
        known = None if server is None or isinstance(server, Missing) else server
        return Pulse(
            self.fleet.time.monotonic(),
            hosts,
            known.healthy if known else None,
            known.load if known else None,
            lost,
            locks[0] if locks else None,
        )

    def host_pulse(self, host: str, deployment: Deployment, heard: Mapping[str, Heard]) -> HostPulse:
        """One host of it."""
        told = heard.get(host)
        if told is None or told.why:
            return HostPulse(why=told.why if told else "it is not among the hosts that are watched")
        end = deployment.seen["hosts"].get(host, {}) if len(deployment.hosts) > 1 else {}
        ids = [deployment.ranks[host].id] if host in deployment.ranks else []
        facing = (end.get("hcas", ()), end.get("netdev") or "")
        return read_host(ids, facing, told.memory, told.gpus, told.processes, told.links)
