"""The hosts of a deployment while it is measured, watched by `far/watch` on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.bench.machine import Fabric, Machine, Sample, describe, read_sample, watch_command
from cluster.errors import ConnectionLostError
from cluster.hosts.fleet import Fleet
from cluster.plan.deployed import Deployment


class Watchers:
    """The hosts of a deployment, watched by `far/watch` on each; a host that is lost is no longer told of."""

    def __init__(self, fleet: Fleet, deployment: Deployment) -> None:
        self._fabrics = {host: fabric_of(host, deployment) for host in deployment.hosts}
        words, setup = watch_command()
        self._processes = {host: fleet[host].start(words, setup) for host in deployment.hosts}
        self._lines = {host: process.lines() for host, process in self._processes.items()}
        self._each("ready")

    def begin(self) -> None:
        """See Machine.begin."""
        self._tell(b'{"begin": true}\n')
        self._each("begun")

    def end(self) -> dict[str, Any]:
        """See Machine.end."""
        self._tell(b'{"end": true}\n')
        return describe(self._each("ended"), self._fabrics)

    def close(self) -> None:
        """End the programs."""
        for process in self._processes.values():
            process.close()

    def _tell(self, line: bytes) -> None:
        for host in tuple(self._lines):
            try:
                self._processes[host].write(line)
            except ConnectionLostError:
                del self._lines[host]

    def _each(self, last: str) -> dict[str, list[Sample]]:
        """What each host says until the line with this word."""
        found: dict[str, list[Sample]] = {}
        for host in tuple(self._lines):
            try:
                found[host] = self._read(host, last)
            except (ConnectionLostError, ValueError, KeyError, TypeError):
                del self._lines[host]
        return found

    def _read(self, host: str, last: str) -> list[Sample]:
        samples: list[Sample] = []
        for line in self._lines[host]:
            if line.startswith(f'{{"{last}"'):
                return samples
            if line.startswith('{"t"'):
                samples.append(read_sample(line, self._fabrics[host]))
        raise ConnectionLostError("the watching program ended", where=host)


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
