"""Checks of the machine itself: architecture, account, kernel, name, disks, and who else lives on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from cluster.spark.checks_stock import MACHINES
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, Level, unknown
from cluster.spark.identity import Identity
from cluster.spark.links import Links
from cluster.spark.look import Seen
from cluster.spark.request import Wanted
from cluster.spark.tenants import Kind

GIB = 1 << 30
MIN_ROOM = 5 * GIB
MIN_INODES = 10_000
BAD_KERNEL = re.compile(r"7\.0\.0-(10\d\d|31)\b")
"""Releases on which memory cannot be registered for RDMA although it is free; `kho=off` cures them."""

TENANTS: Mapping[Kind, tuple[Level, str, str]] = {
    "ollama": ("warning", "Ollama has a model loaded", "ollama ps; ollama stop NAME"),
    "killer": ("warning", "a program ends large processes when memory is short, as it is beside a model",
               "sudo systemctl stop it while a model is served"),
    "desktop": ("note", "somebody's desktop session takes memory that a model could have",
                "sudo systemctl isolate multi-user.target ends it"),
}  # fmt: skip
"""Kind → level, what it does, remedy."""


def check_platform(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The host's CPU architecture is the one the recipe is for."""
    if isinstance(seen.identity, Missing):
        yield unknown("platform", seen.host, seen.identity, "identity")
        return
    found = MACHINES.get(seen.identity.arch, seen.identity.arch)
    if wanted.recipe.platform not in ("any", found):
        yield Finding(
            "fault", "platform", seen.host, f"recipe {wanted.recipe.name} is for {wanted.recipe.platform} machines",
            f"uname -m: {seen.identity.arch}", "use a recipe for this architecture",
        )  # fmt: skip


def check_sudo(seen: Seen) -> Iterator[Finding]:
    """Without sudo everything works but dropping the page cache and reading the firewall."""
    if not isinstance(seen.identity, Missing) and not seen.identity.sudo:
        user = seen.identity.user
        yield Finding(
            "note", "sudo", seen.host,
            f"{user} cannot use sudo without a password: the firewall is not known, the page cache is not dropped",
            "sudo -n true: refused",
            f"none is needed; on {seen.host}: sudo visudo -f /etc/sudoers.d/{user}, if both shall be looked after",
        )  # fmt: skip


def check_kernel(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The kernel can register memory for RDMA.

    A count of CMA memory that cannot be is the bug itself, one that can be its absence; without one the release is a
    suspicion.
    """
    memory, kernel = seen.memory, "" if isinstance(seen.identity, Missing) else seen.identity.kernel
    counted = not isinstance(memory, Missing) and memory.has_cma_bug
    cured = not isinstance(memory, Missing) and bool(memory.cma_total) and not counted
    if cured or not (counted or BAD_KERNEL.match(kernel)):
        return
    rdma = wanted.size > 1 and not wanted.accepts_sockets
    said = [f"uname -r: {kernel}"] if kernel else []
    if counted and not isinstance(memory, Missing):
        said.append(f"CmaTotal {(memory.cma_total or 0) >> 10} kB, CmaFree {(memory.cma_free or 0) >> 10} kB")
    yield Finding(
        "fault" if counted and rdma else "warning", "kernel", seen.host,
        "this kernel cannot register memory for RDMA, however much is free", ", ".join(said),
        f"on {seen.host}: boot 6.17.0-103x-nvidia, or add kho=off to the kernel's command line",
    )  # fmt: skip


def check_name(seen: Seen) -> Iterator[Finding]:
    """The host's own name leads to itself. 127.0.1.1, Ubuntu's way, does no harm: every rank is told its address."""
    if isinstance(seen.identity, Missing):
        return
    name = seen.identity.hostname
    strange = [one for one in seen.identity.named_addresses if not _is_own(one, seen.identity, seen.links)]
    if strange:
        yield Finding(
            "warning", "hostname", seen.host, f"/etc/hosts gives {name} an address that this host does not have",
            f"{strange[0]} {name}", f"on {seen.host}: correct the line in /etc/hosts",
        )  # fmt: skip
    for tenant in () if isinstance(seen.tenants, Missing) else seen.tenants:
        if tenant.kind == "mdns" and tenant.name.partition(".")[0].lower() != name.partition(".")[0].lower():
            yield Finding(
                "note", "hostname", seen.host, f"{name}.local is taken: this host is {tenant.name} now",
                f"avahi-daemon (pid {tenant.pid}): running [{tenant.name}]",
                "use addresses in the inventory; in /etc/avahi/avahi-daemon.conf deny-interfaces= the fabric's",
            )  # fmt: skip


def _is_own(text: str, identity: Identity, links: Links | Missing) -> bool:
    """Whether an address is a loopback one or the host's; what cannot be judged is."""
    try:
        address = ip_address(text)
    except ValueError:
        return True
    if address.is_loopback or isinstance(links, Missing) or text == identity.management_address:
        return True
    return any(own.partition("/")[0] == text for netdev in links.netdevs for own in netdev.addresses)


def check_disk(seen: Seen) -> Iterator[Finding]:
    """Some room, in bytes and in files, where images, weights and caches live; a file system is named once."""
    if isinstance(seen.disk, Missing):
        yield unknown("disk", seen.host, seen.disk, "disk room")
        return
    for room in {room.device or room.path: room for room in reversed(seen.disk)}.values():
        few_files = room.free_inodes is not None and room.free_inodes < MIN_INODES
        if room.free_bytes < MIN_ROOM or few_files:
            files = f", {room.free_inodes} inodes free" if few_files else ""
            yield Finding(
                "warning", "disk", seen.host, f"little room under {room.path}",
                f"{room.free_bytes / GIB:.1f} GiB free{files}", "docker system df; remove what is not needed",
            )  # fmt: skip


def check_tenants(seen: Seen) -> Iterator[Finding]:
    """Others that take memory which a model needs, or end what takes much; those on the GPU are named elsewhere."""
    if isinstance(seen.tenants, Missing):
        yield unknown("tenants", seen.host, seen.tenants, "other programs")
        return
    on_gpu = set() if isinstance(seen.gpu_processes, Missing) else {row.pid for row in seen.gpu_processes}
    for kind, (level, what, remedy) in TENANTS.items():
        here = [one for one in seen.tenants if one.kind == kind and one.pid not in on_gpu]
        if here:
            evidence = ", ".join(f"{one.name} (pid {one.pid}, uid {one.uid})" for one in here)
            yield Finding(level, "tenants", seen.host, what, evidence, f"on {seen.host}: {remedy}")
