"""The few questions that `up` asks of what it started: within two minutes, and never a reason to fail."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from threading import Timer
from typing import Any

from cluster.bench.endpoint import find_model
from cluster.bench.target import client_in
from cluster.errors import ClusterError, InterruptedByUser
from cluster.hosts.protocol import Host
from cluster.probe.ask import lines, subject_of
from cluster.probe.cases import QUICK, run_probe
from cluster.screen import Screen
from cluster.spark.deployments import HOME
from cluster.spark.server import Server

REQUEST_S = 40.0
"""Of one request: 280 tokens of a 31B on one Spark. The questions ask for a tenth of that."""
BEGIN_S = 60.0
"""No case is begun later."""
END_S = 120.0
"""All of it, a client that hangs included."""


def probe_quickly(host: Host, container: str, spec: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Ask what runs in a container on this host, the head of a deployment, and say what it got wrong.

    `spec` is that of the deployment. A probe that could not be made is a warning. Raises InterruptedByUser only.
    """
    server = Server.of_spec(spec, HOME)
    try:
        with screen.waiting("a few questions to what is ready"), client_in(host, container, server) as loader:
            deadline = Timer(END_S, loader.close)
            deadline.daemon = True
            deadline.start()
            try:
                subject = subject_of(find_model(loader, server.model, server.url), spec["recipe"], spec["words"])
                probed = run_probe(loader, subject, QUICK, timeout_s=REQUEST_S, budget_s=BEGIN_S, lenient=True)
            finally:
                deadline.cancel()
    except (KeyboardInterrupt, InterruptedByUser):
        raise InterruptedByUser("interrupted at the last questions", rolled_back="nothing: it is ready") from None
    except ClusterError as error:
        screen.warn(f"not probed: {error.what}; cluster probe asks again")
        return {"error": error.what}
    asked = f"{len(probed.results)} short questions"
    if not probed.failed and not probed.gone:
        screen.line(f"asked {asked}: {probed.count('pass')} passed, {probed.count('not applicable')} not applicable")
        return probed.document()
    screen.warn(f"it serves, but of {asked} {len(probed.failed)} failed:")
    for line, _ in chain.from_iterable(map(lines, probed.failed)):
        screen.warn(line)
    more = "the server no longer answers; run cluster logs --explain" if probed.gone else "cluster probe asks more"
    screen.warn(f"  {more}")
    return probed.document()
