"""`cluster status --watch`: look every few seconds, print each change once, restart when asked to."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from cluster.cli.findings import STYLES, below
from cluster.config.inventory import ResolvedHost
from cluster.deploy.restart import restart
from cluster.deploy.session import Connect, Named, open_fleet, read_named, tell_apart
from cluster.diagnosis import hang
from cluster.diagnosis.hang import History, HostAnswers, OpenFinding, Snapshot
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, UsageError, joined
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark import deployments, gpu, identity, links, memory, ranks
from cluster.spark import server as spark_server
from cluster.spark.deployments import Deployment, directory, group
from cluster.spark.fact import Missing, known
from cluster.spark.finding import Finding, Shared
from cluster.spark.ranks import Failed, RankState, judge_ranks
from cluster.spark.server import Server

SERVER_TIMEOUT_S, COMMAND_S, SHORTEST_S = 5.0, 60.0, 1.0
PAUSES_S = (60.0, 300.0, 900.0)
"""After the first, second and every further restart, before another one."""
RETRY_S = 60.0
"""After a restart that could not be begun."""
INDENT = " " * 9


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster status --watch` or `--print-unit`. Nothing but Ctrl-C (130) and SIGTERM (0) ends a watch.

    Raises UsageError.
    """
    if args.interval < SHORTEST_S:
        raise UsageError(f"--interval {args.interval:g}: at least {SHORTEST_S:g} s", code="out-of-range")
    if bool(args.on_finding) != (args.on_wedge == "command"):
        raise UsageError("--on-wedge command requires --command CMD, and the reverse", code="options-conflict")
    if args.max_restarts < 1:
        what = f"--max-restarts {args.max_restarts}: at least 1"
        raise UsageError(what, code="out-of-range", remedy="--on-wedge report restarts nothing")
    named = read_named(args)
    if args.print_unit:
        return print_unit(args, named, screen)
    with ending_on_sigterm() as asked, open_fleet(named.hosts, connect) as fleet:
        restarts = Restarts(args.max_restarts) if args.on_wedge == "restart" else None
        monitor = Monitor(named, fleet, screen, shlex.split(args.on_finding or ""), restarts)
        try:
            monitor.look()
            if not monitor.watched:
                monitor.report("watching", "", f"no deployment on {', '.join(monitor.hosts)} yet")
            while True:
                fleet.time.sleep(max(0.0, monitor.looked_at + args.interval - fleet.time.monotonic()))
                monitor.look()
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


@dataclass
class MonitoredDeployment:
    """One deployment, what is remembered of it, and its findings that are not over."""

    deployment: Deployment
    history: History = field(default_factory=History)
    open_findings: Mapping[hang.Key, OpenFinding] = field(default_factory=dict)


class Monitor:
    """All deployments on the hosts that are named. `command`: words to run for each new finding, none if empty."""

    def __init__(
        self, named: Named, fleet: Fleet, screen: Screen, command: list[str], restarts: Restarts | None
    ) -> None:
        self.hosts: dict[str, ResolvedHost] = {host.name: host for host in named.hosts}
        self.fleet, self.screen, self.command, self.restarts = fleet, screen, command, restarts
        self.watched: dict[str, MonitoredDeployment] = {}
        self.silent: set[str] = set()
        self.ids: dict[str, str] = {}
        self.looked_at = 0.0

    def look(self) -> None:
        """Look at all hosts once, and act. Raises RefusedError the first time when machines cannot be distinguished."""
        self.looked_at = self.fleet.time.monotonic()
        servers = {
            one.head: Server.of_spec(one.spec, directory(self.hosts[one.head].data_dir, one.id))
            for one in (watched.deployment for watched in self.watched.values())
            if one.head in self.hosts
        }
        answered = ask_hosts(self.fleet, self.hosts, servers)
        machines = {host: answer.machine for host, answer in answered.items() if not answer.why}
        if not self.ids:
            tell_apart(machines)
        self.ids |= {host: identity.host_id(one) for host, one in machines.items() if isinstance(one, str)}
        for host, answer in answered.items():
            if answer.why and host not in self.silent:
                self.report("unreachable", "", f"{host} does not answer: {answer.why}", host=host)
                self.silent.add(host)
            elif not answer.why and host in self.silent:
                self.report("answers", "", f"{host} answers again", host=host)
                self.silent.remove(host)
        for deployment in self.deployments(answered):
            one = self.watch_over(deployment)
            one.history = one.history.after(self.snapshot(deployment, answered))
            one.open_findings, raised, over = hang.follow(one.open_findings, one.history)
            for finding in raised:
                self.report_raised(deployment.id, finding)
            self.report_over(deployment.id, over)
            if self.restarts:
                self.restarts.consider(self, one)

    def deployments(self, answered: Mapping[str, HostAnswers]) -> tuple[Deployment, ...]:
        """What is there now. On a host that does not list its containers they are taken to be as they were."""
        listed = {host: one.containers for host, one in answered.items() if one.containers is not None}
        blind = set(self.hosts) - set(listed)
        before = [watched.deployment for watched in self.watched.values()]
        known = {host: [one.ranks[host] for one in before if host in one.ranks] for host in blind}
        addresses = {host: self.hosts[host].address for host in blind - self.ids.keys()}
        found = group({**listed, **known}, self.ids, addresses)
        for name in self.watched.keys() - {one.id for one in found}:
            self.report_over(name, self.watched.pop(name).open_findings.values())
            self.report("gone", name, "it is no longer there: taken down or replaced")
        return found

    def watch_over(self, deployment: Deployment) -> MonitoredDeployment:
        """What is remembered of a deployment; nothing when its ranks were restarted."""
        watched = self.watched.setdefault(deployment.id, MonitoredDeployment(deployment))
        before = watched.deployment.ranks
        known = [(rank, before[host]) for host, rank in deployment.ranks.items() if host in before]
        if watched.deployment is deployment:
            what = f"{deployment.served_name} on {', '.join(deployment.hosts)}"
            self.report("watching", deployment.id, f"watching {what}")
        elif any((rank.id, rank.started_at) != (old.id, old.started_at) for rank, old in known):
            self.report_over(deployment.id, watched.open_findings.values())
            self.report("ranks-restarted", deployment.id, "its ranks were restarted")
            watched.history, watched.open_findings = History(), {}
        watched.deployment = deployment
        return watched

    def snapshot(self, deployment: Deployment, answered: Mapping[str, HostAnswers]) -> Snapshot:
        server = answered[deployment.head].server if deployment.head in answered else None
        gone = bool(server and not server.healthy and self.watched[deployment.id].history.served_since is not None)
        hosts, locks, lost = {}, [], ask_ranks(deployment, self.fleet, answered, gone)
        for host in deployment.hosts:
            answer = answered.get(host, HostAnswers(why="it is not among the hosts that are watched"))
            locks += [answer.lock] if answer.lock and answer.lock.held else []
            end = deployment.seen["hosts"].get(host, {}) if len(deployment.hosts) > 1 else {}
            rank = deployment.ranks[host].id if host in deployment.ranks else ""
            hosts[host] = answer.snapshot(rank, end.get("hcas", ()), end.get("netdev") or "")
        healthy, load = (server.healthy, server.load) if server else (None, None)
        return Snapshot(self.fleet.time.monotonic(), hosts, healthy, load, lost, next(iter(locks), None))

    def report(self, event: str, deployment: str, text: str, *, style: str | None = None, **more: Any) -> None:
        now = datetime.now().astimezone()
        self.screen.text(f"{now:%H:%M:%S} {deployment}{': ' if deployment else ''}{text}", INDENT, style)
        record = {"t": now.isoformat(timespec="seconds"), "event": event, "deployment": deployment, "text": text}
        self.screen.record(record | more)

    def report_raised(self, deployment: str, finding: Finding) -> None:
        """A new finding, to the user's command too; whatever that does, the watch goes on."""
        text = f"{finding.level}: {title(finding)}: {finding.what}"
        self.report("raised", deployment, text, style=STYLES[finding.level], finding=finding.as_dict())
        for label, line in below(Shared(finding, (finding.host,) if finding.host else ())):
            self.screen.text(f"{INDENT}{label}: {line}", INDENT + " " * (len(label) + 2))
        if self.command:
            env = os.environ | {"CLUSTER_FINDING": finding.check, "CLUSTER_DEPLOYMENT": deployment}
            given = json.dumps({"deployment": deployment, **finding.as_dict()}).encode()
            text = f"{self.command[0]} {ended(self.command, env, given)}"
            self.report("command", deployment, text, finding=finding.as_dict())

    def report_over(self, deployment: str, ended: Iterable[OpenFinding]) -> None:
        for one in ended:
            seconds = self.fleet.time.monotonic() - one.since
            text = f"over: {title(one.finding)}, after {seconds:.0f} s"
            self.report("over", deployment, text, finding=one.finding.as_dict(), after_s=round(seconds))


def title(finding: Finding) -> str:
    return f"{finding.check} on {finding.host}" if finding.host else finding.check


def ask_hosts(fleet: Fleet, hosts: Mapping[str, ResolvedHost], servers: Mapping[str, Server]) -> dict[str, HostAnswers]:
    """Ask all hosts. Of one that failed every connection is closed, so that the next look makes a new one."""
    asked = {
        name: [
            deployments.containers_question(),
            deployments.lock_question(host.data_dir),
            memory.question(),
            gpu.question(),
            links.question(),
            identity.machine_question(),
        ]
        for name, host in hosts.items()
    }
    for name, place in servers.items():
        asked[name].append(spark_server.question(place, ask=False, timeout_s=SERVER_TIMEOUT_S))
    answered = {}
    for name, outcome in fleet.ask(asked).items():
        if outcome.value is None:
            fleet[name].close()
            answered[name] = HostAnswers(why=str(outcome.error))
            continue
        listed, held, kernel, card, linked, machine, *server = outcome.value
        answered[name] = HostAnswers(
            known(deployments.parse_containers(listed)),
            known(deployments.parse_lock(held)),
            known(memory.parse(kernel)),
            known(gpu.parse(card)),
            known(gpu.parse_processes(card)),
            known(links.parse(linked)),
            identity.parse_machine(machine),
            known(spark_server.parse(server[0])) if server else None,
        )
    return answered


def ask_ranks(
    deployment: Deployment, fleet: Fleet, answered: Mapping[str, HostAnswers], server_gone: bool
) -> Failed | None:
    """The rank that ended first, in its words; None while all known ones run. Those that ended are asked, and all
    when the server is gone: a rank reports its end up to 8 s before its container ends."""
    states: dict[str, RankState | Missing | None] = {}
    asked = {}
    for host in deployment.hosts:
        rank = deployment.ranks.get(host)
        listed = host in answered and answered[host].containers is not None
        states[host] = None if listed and not rank else Missing("not asked")
        if listed and rank and (server_gone or rank.state != "running"):
            asked[host] = [ranks.question([rank.name])]
    for host, outcome in (fleet.ask(asked) if asked else {}).items():
        answer = ranks.parse(outcome.value[0]) if outcome.value else Missing(str(outcome.error))
        states[host] = answer if isinstance(answer, Missing) else answer.get(deployment.ranks[host].name)
    state = judge_ranks(states, healthy=True)
    return state if isinstance(state, Failed) else None


def ended(words: list[str], env: Mapping[str, str], given: bytes) -> str:
    """How a command ended, in words. Its output goes to a file: a pipe would be waited for while its children live."""
    with tempfile.TemporaryFile() as printed:
        run = partial(subprocess.run, stdout=printed, stderr=printed, start_new_session=True)
        try:
            done = run(words, input=given, env=env, timeout=COMMAND_S)
        except OSError as error:
            return f"cannot be run: {error.strerror}"
        except subprocess.TimeoutExpired:
            return f"was ended after {COMMAND_S:.0f} s"
        printed.seek(max(0, printed.tell() - 300))
        last = printed.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"exited with {done.returncode}: {''.join(last) or 'no output'}" if done.returncode else "was run"


class Restarts:
    """Restarts all ranks of what hangs or died: so often at most, with growing pauses, never for memory."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0
        self.not_before = 0.0
        self.refused: dict[str, str] = {}

    def consider(self, monitor: Monitor, watched: MonitoredDeployment) -> None:
        """Restart, or report once why not."""
        faults = [one.finding for one in watched.open_findings.values() if one.finding.level == "fault"]
        reasons = [(one, hang.why_no_restart(one, watched.history)) for one in faults]
        curable = next((one for one, why in reasons if not why), None)
        deployment = watched.deployment.id
        why = self.why_not(monitor, watched) if curable else next((why for _, why in reasons), "")
        if why and why != self.refused.get(deployment):
            monitor.report("not-restarted", deployment, f"not restarted: {why}")
        self.refused[deployment] = why
        if curable and not why:
            self.restart(curable, monitor, watched.deployment)

    def why_not(self, monitor: Monitor, watched: MonitoredDeployment) -> str:
        """Why what would be cured is not restarted now."""
        last = watched.history.last
        if self.done >= self.most:
            return f"{self.done} restarts were made, as many as --max-restarts allows"
        if silent := [host for host, one in last.hosts.items() if one.why]:
            return f"{', '.join(silent)} does not answer"
        if last.lock:
            return f"{last.lock.who} is at work: {last.lock.why}"
        if monitor.fleet.time.monotonic() < self.not_before:
            return f"a pause of {self.pause_s / 60:.0f} min comes first"
        return ""

    @property
    def pause_s(self) -> float:
        return PAUSES_S[min(self.done, len(PAUSES_S)) - 1] if self.done else RETRY_S

    def restart(self, finding: Finding, monitor: Monitor, deployment: Deployment) -> None:
        """Do it, and count it from its first change on."""
        before, report = self.done, monitor.report

        def begun() -> None:
            self.done += 1
            text = f"restarting all ranks for {finding.check} ({self.done} of {self.most})"
            report("restarting", deployment.id, text, finding=finding.as_dict())

        hosts = [monitor.hosts[name] for name in deployment.hosts]
        try:
            seconds = restart(deployment, hosts, monitor.fleet, monitor.screen, begun)
            report("restarted", deployment.id, f"restarted, and it serves again after {seconds:.0f} s")
        except InterruptedByUser as error:
            if error.rolled_back:
                report("restart-interrupted", deployment.id, f"restart interrupted: {error.rolled_back}")
            raise
        except ClusterError as error:
            word = "restart failed" if self.done > before else "not restarted"
            text = joined(f"{word}: {error.what}", error.rolled_back)
            report(word.replace(" ", "-"), deployment.id, text, remedy=error.remedy)
        self.not_before = monitor.fleet.time.monotonic() + (self.pause_s if self.done > before else RETRY_S)


UNIT = """\
# cluster status --watch --print-unit | sudo tee /etc/systemd/system/cluster-watch.service
# sudo systemctl daemon-reload && sudo systemctl enable --now cluster-watch
[Unit]
Description=cluster status --watch ({hosts})
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
User={user}
ExecStart={command}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2
TimeoutStopSec=120

[Install]
WantedBy=multi-user.target
"""


def print_unit(args: argparse.Namespace, named: Named, screen: Screen) -> ExitCode:
    """The unit, with how this program was started, the inventory's file and only what differs from the defaults."""
    own = Path(sys.argv[0])
    is_program = own.name == "cluster" and os.access(own, os.X_OK)
    words = [str(own.absolute())] if is_program else [sys.executable, "-m", "cluster.cli.main"]
    words += ["status", "--watch"]
    for option, value in (
        ("--interval", f"{args.interval:g}"),
        ("--inventory", named.file.path and str(named.file.path.absolute())),
        ("--nodes", args.nodes),
        ("--on-wedge", args.on_wedge),
        ("--command", args.on_finding),
        ("--max-restarts", str(args.max_restarts) if args.on_wedge == "restart" else ""),
    ):
        words += [option, value] if value else []
    words += ["--json"] if args.json else []
    hosts = ", ".join(host.name for host in named.hosts).replace("%", "%%")
    text = UNIT.format(hosts=hosts, user=getpass.getuser(), command=" ".join(map(quote, words)))
    for line in text.splitlines():
        screen.line(line)
    screen.document({"unit": text})
    return ExitCode.DONE


def quote(word: str) -> str:
    """A word of ExecStart=: systemd's specifiers and variables taken literally, in quotes where needed."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if text and not set(text) & set(" \t'\";\\") else f'"{text}"'
