"""What the watch does with what it finds: nothing more, a command of the user's, or a restart of all ranks."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from cluster.cli.tell import Teller
from cluster.config.names import ResolvedHost
from cluster.deploy.restart import restart
from cluster.diagnosis.pulse import Course
from cluster.diagnosis.standing import Change
from cluster.diagnosis.wedge import why_no_restart
from cluster.errors import ClusterError, InterruptedByUser, UsageError
from cluster.hosts.fleet import Fleet
from cluster.spark.deployed import Deployment
from cluster.spark.finding import Finding

COMMAND_S = 60.0
PAUSES_S = (60.0, 300.0, 900.0)
"""After the first, second and every further restart, before another one."""
TRY_AGAIN_S = 60.0
"""After a restart that could not be begun."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at a deployment: what is remembered of it, what stands and is new; and whom to ask, whom to tell."""

    deployment: Deployment
    course: Course
    change: Change
    fleet: Fleet
    hosts: Mapping[str, ResolvedHost]
    teller: Teller


class Act(Protocol):
    """Called after each look at a deployment."""

    def __call__(self, moment: Moment) -> None:
        """Do what is to be done."""
        ...


def make_act(args: argparse.Namespace) -> Act:
    """What --on-wedge says. Raises UsageError."""
    if bool(args.on_finding) != (args.on_wedge == "command"):
        raise UsageError("--on-wedge command and --command CMD belong together")
    if args.max_restarts < 1:
        raise UsageError(f"--max-restarts {args.max_restarts}: at least 1", remedy="--on-wedge report restarts nothing")
    if args.on_wedge == "restart":
        return Restarts(args.max_restarts)
    return Command(shlex.split(args.on_finding)) if args.on_finding else report


def report(moment: Moment) -> None:
    """What was said is all."""


class Command:
    """Runs the user's command on this machine, once for each new finding."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def __call__(self, moment: Moment) -> None:
        """See Act."""
        for finding in moment.change.raised:
            ended = run_command(self.words, moment.deployment.id, finding)
            text = f"{self.words[0]} {ended}"
            moment.teller.say("command", moment.deployment.id, text, finding=finding.as_dict())


def run_command(words: list[str], deployment: str, finding: Finding) -> str:
    """How the command ended, in words; whatever it does, the watch goes on."""
    env = os.environ | {"CLUSTER_FINDING": finding.check, "CLUSTER_DEPLOYMENT": deployment}
    given = json.dumps({"deployment": deployment, **finding.as_dict()}).encode()
    with tempfile.TemporaryFile() as said:
        try:
            child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=said, stderr=said, env=env, start_new_session=True
            )
        except OSError as error:
            return f"cannot be run: {error.strerror}"
        try:
            child.communicate(given, COMMAND_S)
        except subprocess.TimeoutExpired:
            return f"was ended after {COMMAND_S:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # what it left behind as well
            child.wait()
        said.seek(max(0, said.tell() - 300))
        last = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    return "was run" if child.returncode == 0 else f"exited with {child.returncode}: {''.join(last) or 'no output'}"


class Restarts:
    """Restarts all ranks of what hangs or died: so often at most, with growing pauses, never for memory."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0
        self.not_before = 0.0
        self.refused: dict[str, str] = {}

    def __call__(self, moment: Moment) -> None:
        """See Act."""
        faults = [one.finding for one in moment.change.standing.values() if one.finding.level == "fault"]
        curable = [one for one in faults if not why_no_restart(one, moment.course)]
        why = self.why_not(curable, faults, moment)
        if faults and why and why != self.refused.get(moment.deployment.id):
            moment.teller.say("not-restarted", moment.deployment.id, f"not restarted: {why}")
        self.refused[moment.deployment.id] = why if faults else ""
        if curable and not why:
            self.restart(curable[0], moment)

    def why_not(self, curable: list[Finding], faults: list[Finding], moment: Moment) -> str:
        """Why nothing is restarted now; empty when it is."""
        if not curable:
            return next((why_no_restart(one, moment.course) for one in faults), "")
        if self.done >= self.most:
            return f"{self.done} restarts were made, as many as --max-restarts allows"
        silent = [host for host, one in moment.course.last.hosts.items() if one.why]
        if silent:
            return f"{', '.join(silent)} does not answer"
        if moment.course.last.lock:
            return f"{moment.course.last.lock.who} is at work: {moment.course.last.lock.why}"
        if moment.fleet.time.monotonic() < self.not_before:
            return f"a pause of {self.pause_s / 60:.0f} min comes first"
        return ""

    @property
    def pause_s(self) -> float:
        """The pause after the latest restart."""
        return PAUSES_S[min(self.done, len(PAUSES_S)) - 1] if self.done else TRY_AGAIN_S

    def restart(self, finding: Finding, moment: Moment) -> None:
        """Do it, and count it from its first change on."""
        before, deployment, say = self.done, moment.deployment, moment.teller.say

        def begun() -> None:
            self.done += 1
            text = f"restarting all ranks for {finding.check} ({self.done} of {self.most})"
            say("restarting", deployment.id, text, finding=finding.as_dict())

        hosts = [moment.hosts[name] for name in deployment.hosts]
        try:
            seconds = restart(deployment, hosts, moment.fleet, moment.teller.screen, begun)
            say("restarted", deployment.id, f"restarted, and it serves again after {seconds:.0f} s")
        except InterruptedByUser as error:
            if error.put_back:
                say("restart-interrupted", deployment.id, f"restart interrupted: {error.put_back}")
            raise
        except ClusterError as error:
            word = "restart failed" if self.done > before else "not restarted"
            text = "; ".join(filter(None, (f"{word}: {error.what}", error.put_back)))
            say(word.replace(" ", "-"), deployment.id, text, remedy=error.remedy)
        self.not_before = moment.fleet.time.monotonic() + (self.pause_s if self.done > before else TRY_AGAIN_S)
