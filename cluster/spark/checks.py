"""All checks of one host in their order. They are pure: facts → findings, and a missing fact becomes `unknown`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.spark.checks_gpu import check_gpu, check_strangers
from cluster.spark.checks_machine import check_disk, check_kernel, check_name, check_platform, check_sudo, check_tenants
from cluster.spark.checks_memory import check_memory
from cluster.spark.checks_place import check_containers, check_docker, check_ports
from cluster.spark.checks_stock import check_image, check_weights
from cluster.spark.deployed import Deployment
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.look import Seen
from cluster.spark.request import Wanted


def check_host(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """All findings of one host. What our own ranks hold, those of `found`, counts as free: they go first."""
    yield from check_platform(wanted, seen)
    yield from check_sudo(seen)
    yield from check_kernel(wanted, seen)
    yield from check_name(seen)
    yield from check_docker(seen)
    yield from check_gpu(seen)
    yield from check_tenants(seen)
    yield from check_disk(seen)
    if isinstance(seen.containers, Missing) or isinstance(seen.docker, Missing):
        return  # what is ours cannot be told from what is not
    yield from check_strangers(seen)
    yield from check_memory(wanted, seen)
    yield from check_ports(wanted, seen, found)
    yield from check_containers(seen, found)
    yield from check_image(wanted, seen)
    yield from check_weights(wanted, seen)
