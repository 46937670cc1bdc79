"""Checks of the machine: each when it fires, and when it must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts_tools import sample
from plan_tools import DATA, GIB, identity, names, one_cable, recipe, seen, wanted

from cluster.spark import memory
from cluster.spark.disk import Room
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.gpu import GpuProcess
from cluster.spark.look import check_host
from cluster.spark.memory import Memory
from cluster.spark.processes import Tenant

ROOM = Room(DATA, 900 * GIB, 1 << 20, 1)
CMA_BUG = Memory(120 * GIB, 110 * GIB, 100 * GIB, cma_total=0, cma_free=940604 << 10)


def check(of: Any = None, **changes: Any) -> list[Finding]:
    return list(check_host(of or wanted(), seen(1, **changes), ()))


def tenant(kind: str, name: str) -> tuple[Tenant, ...]:
    return (Tenant(kind, name, 812, 1000),)


CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "no sudo": ({"identity": identity(1, sudo=False)}, [("note", "sudo")]),
    "a kernel of the bad series": ({"identity": identity(1, kernel="7.0.0-1019-nvidia")}, [("warning", "kernel")]),
    "its other name": ({"identity": identity(1, kernel="7.0.0-31-generic")}, [("warning", "kernel")]),
    "that kernel with kho=off": (
        {
            "identity": identity(1, kernel="7.0.0-1019-nvidia"),
            "memory": replace(CMA_BUG, cma_total=GIB, cma_free=GIB // 2),
        },
        [],
    ),
    "an earlier kernel": ({"identity": identity(1, kernel="6.17.0-1032-nvidia")}, []),
    "a later one of that number": ({"identity": identity(1, kernel="7.0.0-310-generic")}, []),
    "CMA counts more free than there is": ({"memory": CMA_BUG}, [("fault", "kernel")]),
    "no CMA": ({"memory": replace(CMA_BUG, cma_free=0)}, []),
    "a CMA pool in use": ({"memory": replace(CMA_BUG, cma_total=GIB, cma_free=GIB // 2)}, []),
    "Ubuntu's name for itself": ({"identity": identity(1, named_addresses=("127.0.1.1",))}, []),
    "its own address": ({"identity": identity(1, named_addresses=("192.168.1.41", "::1"))}, []),
    "an address of its fabric": ({"identity": identity(1, named_addresses=("192.168.100.11",))}, []),
    "an address of before": ({"identity": identity(1, named_addresses=("192.168.1.99",))}, [("warning", "hostname")]),
    "no address to compare": ({"identity": identity(1, named_addresses=("10.9.9.9",)), "links": Missing("x")}, []),
    "its mDNS name": ({"tenants": tenant("mdns", "spark1.local")}, []),
    "another mDNS name": ({"tenants": tenant("mdns", "spark1-30.local")}, [("note", "hostname")]),
    "Ollama with a model": ({"tenants": tenant("ollama", "ollama")}, [("warning", "tenants")]),
    "earlyoom": ({"tenants": tenant("killer", "earlyoom")}, [("warning", "tenants")]),
    "a desktop": ({"tenants": tenant("desktop", "gnome-shell")}, [("note", "tenants")]),
    "one session": ({"tenants": tenant("desktop", "gnome-shell") + tenant("desktop", "Xorg")}, [("note", "tenants")]),
    "tenants not told": ({"tenants": Missing("no")}, [("unknown", "tenants")]),
    "Ollama on the GPU is told once": (
        {"tenants": tenant("ollama", "ollama"), "gpu_processes": (GpuProcess(812, "/usr/bin/ollama", 9000, ""),)},
        [("warning", "gpu-stranger")],
    ),
    "few inodes": ({"disk": (replace(ROOM, free_inodes=900),)}, [("warning", "disk")]),
    "inodes are not counted": ({"disk": (replace(ROOM, free_inodes=None),)}, []),
    "two paths of one disk": (
        {"disk": (replace(ROOM, free_bytes=GIB), replace(ROOM, path="/var/lib/docker", free_bytes=GIB))},
        [("warning", "disk")],
    ),
    "two disks": (
        {"disk": (replace(ROOM, free_bytes=GIB), replace(ROOM, path="/var/lib/docker", free_bytes=GIB, device=2))},
        [("warning", "disk")] * 2,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_finding(what: str) -> None:
    changes, expected = CASES[what]
    found = check(**changes)
    assert names(found) == expected
    for finding in found:
        assert finding.evidence
        assert finding.remedy or finding.level == "unknown"


def test_memory_that_ollama_holds_is_freed_with_its_own_command() -> None:
    """Also where its processes are seen and the GPU does not list them."""
    found = check(memory=Memory(available=2 * GIB), tenants=tenant("ollama", "ollama"))
    [fault] = [one for one in found if one.check == "memory"]
    assert "ollama stop NAME" in fault.remedy


def test_the_kernels_bug_stops_only_what_needs_rdma() -> None:
    """One host registers nothing; sockets neither. The recorded /proc/meminfo of the field fires."""
    recorded = memory.parse_meminfo(sample("proc_meminfo_cma_bug.txt"))
    assert not isinstance(recorded, Missing)
    bug = replace(CMA_BUG, cma_total=recorded.cma_total, cma_free=recorded.cma_free)
    [fault] = check(memory=bug)
    assert fault.evidence == "uname -r: 6.11, CmaTotal 0 kB, CmaFree 940604 kB"
    assert "kho=off" in fault.remedy
    assert names(check(wanted(1, "none"), memory=bug)) == [("warning", "kernel")]
    assert names(check(wanted(allow_socket=True), memory=bug)) == [("warning", "kernel")]
    assert names(check(wanted(of=recipe(transport="socket")), memory=bug)) == [("warning", "kernel")]


def test_docker_is_explained_by_the_account() -> None:
    refused = Missing("permission denied while trying to connect", "refused")
    [fault] = check(docker=refused, containers=refused, identity=identity(1, groups=("ada", "video")))
    assert fault.evidence == "permission denied while trying to connect; groups of ada: ada video"
    absent = Missing("docker: not found on the PATH of a non-login shell", "absent")
    [fault] = check(docker=absent, containers=absent)
    assert fault.evidence == "docker: not found on the PATH of a non-login shell: /usr/bin"


def test_without_docker_the_machine_is_judged_all_the_same() -> None:
    gone = Missing("Docker's daemon does not answer", "absent")
    found = check(docker=gone, containers=gone, disk=(replace(ROOM, free_bytes=0),), links=one_cable(1))
    assert names(found) == [("fault", "docker"), ("warning", "disk")]
