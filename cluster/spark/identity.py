"""Who a host is, who we are on it, and whether cluster can run there."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing, known
from cluster.spark.finding import Check, Finding, Level, twice
from cluster.spark.processes import OTHER_PROGRAMS

if TYPE_CHECKING:
    from cluster.spark.look import Seen
    from cluster.spark.memory import Memory
    from cluster.spark.request import Wanted

KERNEL = Check("kernel", "upgrade#kernel")
"""Fault: the kernel counts more free CMA memory than there is, and RDMA is asked for; warning: no RDMA is needed, or
its release is suspect and no CMA memory is counted. Silent about kernels before 7.0, and later ones that count right
(`kho=off`)."""
PLATFORM = Check("platform", "first-set-up#platform")
"""Fault: the recipe is for another CPU architecture. Silent about recipes for `any`."""
SUDO = Check("sudo", "first-set-up#before-the-first-command")
"""Note: `sudo -n` asks for a password, so the firewall is not known (`firewall` does not report it
again) and the page cache is not dropped. Nothing is wrong with such a host."""
HOSTNAME = Check("hostname", "first-set-up#names")
"""Warning: `/etc/hosts` gives the host's own name an address it does not have, or two hosts have one name; note: its
mDNS name was taken, it is `spark1-30.local` now. Silent about `127.0.1.1`, Ubuntu's way: every rank is given its
address."""
MACHINE_ID = Check("machine-id", "first-set-up#same-machine")
"""Fault: two names are one machine, or a host's machine-id cannot be read. Every command but `status` and `doctor`
refuses before it looks further. Silent about other names than those of the one who started what runs."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`product` is the firmware's product name (`NVIDIA_DGX_Spark`), `arch` as `uname -m`, `path` the PATH of a
    non-login shell. `sudo`: `sudo -n` works without a password. `data_dir` and `hf_home` are absolute.
    `management_address`: where the host was reached over SSH, else where its default route leaves from; may be empty.
    `named_addresses` are those that /etc/hosts gives `hostname` (Ubuntu's own is 127.0.1.1)."""

    product: str
    machine_id: str
    hostname: str
    kernel: str
    arch: str
    user: str
    uid: int
    gid: int
    groups: tuple[str, ...]
    path: str
    sudo: bool
    data_dir: str
    hf_home: str
    management_address: str = ""
    named_addresses: tuple[str, ...] = ()


def machine_question() -> Question:
    return Question(("cat", "/etc/machine-id"))


def parse_machine(answer: Answer) -> str | Missing:
    if answer.exit != 0:
        return Missing(answer.error_text.strip() or f"/etc/machine-id: exit {answer.exit}")
    return read_machine(answer.text)


def read_machine(text: str) -> str | Missing:
    """The text of /etc/machine-id; one that was never set up is Missing."""
    found = text.strip()
    if found in ("", "uninitialized"):
        return Missing(f"/etc/machine-id is {found or 'empty, or cannot be read'}")
    return found


def host_id(machine_id: str) -> str:
    """Twelve hex digits by which a host is known in labels and results, whatever its name; a keyed hash, as
    machine-id(5) requires of what is shown of the id."""
    return hmac.digest(machine_id.encode(), b"cluster", "sha256").hex()[:12]


_KERNEL = re.compile(
    r"^(?:Linux \S+ )?(?P<release>[4-9]\.\d+\.\d+-[\w.~-]+)(?: |$)"
    r"|\b[Kk]ernel:? (?:Linux )?(?P<named>[4-9]\.\d+\.\d+-[\w.~-]+)",
    re.MULTILINE,
)
_MEMLOCK = re.compile(
    r"(?:max locked memory[ \t]+\(k?bytes, -l\)[ \t]+|\bulimit -[HS]?l[ \t]*\n[ \t]*)(?P<kib>\d+|unlimited)\b"
    r"|^Max locked memory[ \t]+(?P<bytes>\d+|unlimited)",
    re.MULTILINE,
)
_MACHINE = re.compile(r"^[^\n]*?(?<![\w/:-])(?P<id>[0-9a-f]{32})(?![\w-])[ \t]*$", re.MULTILINE)
_HOSTNAME = re.compile(r"\bhostname ?[:=][ \t]*(?P<name>[\w.-]+)", re.MULTILINE | re.IGNORECASE)


def recognise_kernel(text: str) -> str | None:
    """The release that `uname -r`, `uname -a` or hostnamectl prints."""
    found = _KERNEL.search(text)
    return (found["release"] or found["named"]) if found else None


def recognise_memlock(text: str) -> int | None:
    """The limit of locked memory in bytes, -1 for unlimited: `ulimit -a`, `ulimit -l` or /proc/PID/limits."""
    found = _MEMLOCK.search(text)
    if not found:
        return None
    limit = found["kib"] or found["bytes"]
    return -1 if limit == "unlimited" else int(limit) * (1024 if found["kib"] else 1)


def recognise_machines(text: str) -> tuple[str, ...] | None:
    """One for each line that ends in one, of a text that names machine-ids or has nothing else."""
    found = list(_MACHINE.finditer(text))
    labelled = [row for row in found if re.search("machine.?id", row[0], re.IGNORECASE)]
    alone = len(found) >= sum(bool(line.strip()) for line in text.splitlines()) - 2
    return tuple(row["id"] for row in labelled or (found if alone else ())) or None


def recognise_hostnames(text: str) -> tuple[str, ...] | None:
    """The names that hostnamectl, or a line `hostname: NAME`, gives."""
    return tuple(found["name"] for found in _HOSTNAME.finditer(text)) or None


BAD_KERNEL = re.compile(r"7\.0\.0-(10\d\d|31)\b")
"""Releases on which memory cannot be registered for RDMA although it is free; `kho=off` cures them."""

MACHINES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}
"""An architecture's name in the kernel and in Go → its name in recipes and images."""


def check_platform(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    if isinstance(seen.identity, Missing):
        yield PLATFORM.unknown(seen.host, "identity", seen.identity)
    elif wanted.recipe.platform not in ("any", MACHINES.get(seen.identity.arch, seen.identity.arch)):
        what = f"recipe {wanted.recipe.name} is for {wanted.recipe.platform} machines"
        yield PLATFORM.fault(seen.host, what, f"uname -m: {seen.identity.arch}", "use a recipe for this architecture")


def check_sudo(seen: Seen) -> Iterator[Finding]:
    """Without sudo everything works but dropping the page cache and reading the firewall."""
    if (own := known(seen.identity)) and not own.sudo:
        what = f"{own.user} cannot use sudo without a password"
        what += ": the firewall is not known, the page cache is not dropped"
        visudo = f"on {seen.host}: sudo visudo -f /etc/sudoers.d/{own.user}"
        remedy = f"none is needed; {visudo}, if both shall be looked after"
        yield SUDO.note(seen.host, what, "sudo -n true: refused", remedy)


def cannot_register(memory: Memory | None, kernel: str) -> Literal["", "suspected", "counted"]:
    """Whether a kernel cannot register memory for RDMA. An impossible count of CMA memory is the bug itself, a possible
    one its absence; without one the release is a suspicion."""
    if memory and (memory.has_cma_bug or memory.cma_total):
        return "counted" if memory.has_cma_bug else ""
    return "suspected" if BAD_KERNEL.match(kernel) else ""


def check_kernel(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    memory, own = known(seen.memory), known(seen.identity)
    sure = cannot_register(memory, own.kernel if own else "")
    if not sure:
        return
    evidence = [f"uname -r: {own.kernel}"] if own else []
    if memory and sure == "counted":
        evidence.append(f"CmaTotal {(memory.cma_total or 0) >> 10} kB, CmaFree {(memory.cma_free or 0) >> 10} kB")
    level: Level = "fault" if sure == "counted" and wanted.size > 1 and not wanted.accepts_sockets else "warning"
    what = "this kernel cannot register memory for RDMA, however much is free"
    remedy = f"on {seen.host}: boot 6.17.0-103x-nvidia, or add kho=off to the kernel's command line"
    yield KERNEL.found(level, seen.host, what, ", ".join(evidence), remedy)


def check_name(seen: Seen) -> Iterator[Finding]:
    """The host's own name leads to itself. 127.0.1.1, Ubuntu's way, does no harm: every rank is given its address."""
    if isinstance(seen.identity, Missing):
        return
    name, links = seen.identity.hostname, known(seen.links)
    own = {at.partition("/")[0] for netdev in links.netdevs for at in netdev.addresses} if links else set()
    own.add(seen.identity.management_address)
    strange = [one for one in seen.identity.named_addresses if one not in own and not one.startswith(("127.", "::1"))]
    if strange and links:
        what = f"/etc/hosts gives {name} an address that this host does not have"
        remedy = f"on {seen.host}: correct the line in /etc/hosts"
        yield HOSTNAME.warning(seen.host, what, f"{strange[0]} {name}", remedy)
    tenants = seen.of(OTHER_PROGRAMS)
    for tenant in known(tenants) or ():
        if tenant.kind == "mdns" and tenant.name.partition(".")[0].lower() != name.partition(".")[0].lower():
            what = f"{name}.local is taken: this host is {tenant.name} now"
            evidence = f"avahi-daemon (pid {tenant.pid}): running [{tenant.name}]"
            remedy = "use addresses in the inventory; in /etc/avahi/avahi-daemon.conf deny-interfaces= the fabric's"
            yield HOSTNAME.note(seen.host, what, evidence, remedy)


def check_machines(machines: Mapping[str, str | Missing]) -> Iterator[Finding]:
    """Every host says which machine it is, and no two names are one machine. Checked before all else."""
    for host, machine in machines.items():
        if isinstance(machine, Missing):
            remedy = f"on {host}: cat /etc/machine-id; where there is none: sudo systemd-machine-id-setup"
            yield MACHINE_ID.fault(host, "its machine-id cannot be read", machine.why, remedy)
    ids = twice((host, machine) for host, machine in machines.items() if not isinstance(machine, Missing))
    for machine, hosts in ids.items():
        what = f"{' and '.join(hosts)} are the same machine"
        remedy = "name each machine once; after cloning a disk: systemd-machine-id-setup"
        yield MACHINE_ID.fault(hosts[1], what, f"machine-id {machine}", remedy)


def check_hostnames(seens: Sequence[Seen]) -> Iterator[Finding]:
    machines = {seen.host_id: seen for seen in seens if seen.host_id}.values()
    rows = [(seen.host, own.hostname) for seen in machines if (own := known(seen.identity))]
    for name, hosts in twice(rows).items():
        remedy = f"on {hosts[1]}: sudo hostnamectl set-hostname OTHER"
        yield HOSTNAME.warning(hosts[1], f"{' and '.join(hosts)} have the same hostname", name, remedy)
