"""The hosts of a deployment while it is measured, watched by `far/watch` on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cluster.bench.machine import Fabric, Machine, Sample, describe, read_sample, watch_command
from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host, Process
from cluster.spark.deployed import Deployment

LOST = (UnreachableError, ValueError, KeyError, TypeError)
"""What a host that cannot be reached, a connection that ends, or a line of something else raises."""


class Watcher:
    """One host's `far/watch`. When it is lost, this run has a gap, and the next begins with a new one."""

    def __init__(self, host: Host, fabric: Fabric) -> None:
        self.host, self.fabric = host, fabric
        self.process: Process | None = None
        self.lines: Iterator[str] = iter(())

    def start(self) -> None:
        """Watch, unless it is watched. Raises one of LOST."""
        if self.process is None:
            self.process = self.host.start(*watch_command())
            self.lines = self.process.lines()
            self.read("ready")

    def ask(self, word: bytes) -> None:
        """Send a line. Raises ConnectionLostError."""
        if self.process:
            self.process.write(word)

    def read(self, last: str) -> list[Sample]:
        """What it prints until the line with this word. Raises one of LOST."""
        samples: list[Sample] = []
        for line in self.lines:
            if line.startswith(f'{{"{last}"'):
                return samples
            if line.startswith('{"t"'):
                samples.append(read_sample(line, self.fabric))
        raise ConnectionLostError("the watching program ended", where=self.host.name)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the program."""
        process, self.process = self.process, None
        if process:
            process.close(timeout_s)


class Watchers:
    """The hosts of a deployment, watched by `far/watch` on each; a host that is lost is missing until it is back."""

    def __init__(self, fleet: Fleet, deployment: Deployment) -> None:
        """Start them all; when the user interrupts, none is left behind."""
        self._all = {host: Watcher(fleet[host], fabric_of(host, deployment)) for host in deployment.hosts}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """See Machine.begin."""
        self._start()
        self._each(b'{"begin": true}\n', "begun")

    def end(self) -> dict[str, Any]:
        """See Machine.end."""
        told = self._each(b'{"end": true}\n', "ended")
        return describe(told, {host: one.fabric for host, one in self._all.items()})

    def close(self) -> None:
        """End the programs."""
        for one in self._all.values():
            one.close()

    def _start(self) -> None:
        for one in self._all.values():
            try:
                one.start()
            except LOST:
                one.close(0)

    def _each(self, word: bytes, last: str) -> dict[str, list[Sample]]:
        """Send a line to each host that is watched, then what each prints until the line with the last word."""
        found: dict[str, list[Sample]] = {}
        for one in self._all.values():
            with suppress(ConnectionLostError):  # reading finds it lost, too
                one.ask(word)
        for host, one in self._all.items():
            try:
                found[host] = one.read(last) if one.process else []
            except LOST:
                one.close(0)
        return found


def fabric_of(host: str, deployment: Deployment) -> Fabric:
    """How a host reaches its peers, as the deployment was started; one alone has none."""
    end = deployment.seen["hosts"].get(host, {}) if len(deployment.hosts) > 1 else {}
    return Fabric(role(host, deployment), tuple(end.get("hcas", ())), end.get("netdev") or "")


@contextmanager
def watching(fleet: Fleet, deployment: Deployment) -> Iterator[Machine]:
    """The deployment's hosts, watched until the block ends."""
    watchers = Watchers(fleet, deployment)
    try:
        yield watchers
    finally:
        watchers.close()


def role(host: str, deployment: Deployment) -> str:
    """head or worker."""
    return "head" if host == deployment.head else "worker"
