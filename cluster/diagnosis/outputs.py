"""Outputs of commands in a text: recognised by the readers of their subjects, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Generic, TypeVar

from cluster.diagnosis.lines import TextLine
from cluster.diagnosis.root import EVIDENCE_LENGTH, Explanation, of_rule, settled
from cluster.diagnosis.rules import OF_OUTPUTS, OF_PAIRS
from cluster.spark import disk, docker, fabric_test, gpu, identity, links, memory, ranks, server
from cluster.spark.fabric import common_networks, judge_mtu
from cluster.spark.finding import twice
from cluster.spark.memory import GIB, Memory

LOGS = {
    "log of vLLM": r"\b(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d |\bUvicorn running|\bvllm\b.*INFO",
    "log of Ray": r"\(raylet\)|\(gcs_server\)|\w+\.py:\d+ -- |[\w.]+\.cc:\d+: ",
    "log of NCCL": r"NCCL (?:INFO|WARN) ",
    "log of a kernel": r"mlx5_core |NVRM: |\bkernel: |^\[ *\d+\.\d{6}\] ",
    "log of a rank": r'"cluster": "rank"',
    "HTTP log": r'"(?:GET|POST) /\S* HTTP/1\.',
    "output of ping": r"packets transmitted, ",
}
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Output(Generic[V]):
    """One output: what kind, as read, and the text it stands in."""

    kind: str
    value: V
    file: str
    host: str
    lines: Sequence[TextLine]

    def find(self, *words: str) -> TextLine | None:
        """The first line with all of these words in it."""
        return next((line for line in self.lines if all(word in line.text for word in words)), None)

    def say(self, id: str, words: Sequence[str], **values: str) -> Explanation:
        """A rule of outputs as it applies here; `words` find the line that shows it, else stand for themselves."""
        line = self.find(*words)
        evidence = line.text.strip()[:EVIDENCE_LENGTH] if line else " ".join(words)
        return of_rule(OF_OUTPUTS[id], values, self.file, line.number if line else None, evidence, self.host)


class Outputs(tuple[Output[Any], ...]):
    """All outputs of all files."""

    def named(self, kind: str) -> list[Output[Any]]:
        """Those of one kind, in the order of the files."""
        return [output for output in self if output.kind == kind]

    def rows(self, kind: str) -> list[Any]:
        """What all outputs of one kind that hold several things hold."""
        return [row for output in self.named(kind) for row in output.value]


def recognise(file: str, host: str, lines: Sequence[TextLine]) -> Iterator[Output[Any]]:
    """Every output that the readers know in one file's text."""
    text = "".join(f"{line.text}\n" for line in lines)
    for kind, (read, _) in KINDS.items():
        if (value := read(text)) is not None:
            yield Output(kind, value, file, host, lines)


def logs_in(lines: Sequence[TextLine]) -> list[str]:
    """Which logs a text holds lines of."""
    return [name for name, pattern in LOGS.items() if any(map(re.compile(pattern).search, (one.text for one in lines)))]


def judge_ports(found: list[Output[tuple[links.Port, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """All down; one twin only; other ports on one host than on the other. Two Down lines of four are normal."""
    for output in found:
        ports = output.value
        up = {port.netdev for port in ports if port.is_up}
        if not up:
            yield output.say("no-link-up", (ports[0].netdev or ports[0].hca,))
        for netdev, twin in links.half_ports(up, [port.netdev for port in ports]):
            yield output.say("one-twin-up", (twin,), netdev=netdev, twin=twin)
    for first, second in combinations(found, 2):
        there, here = ({port.netdev for port in output.value if port.is_up} for output in (first, second))
        if links.is_crossed(here, there):
            yield second.say("ports-crossed", (min(here),), here=listed(here), there=listed(there))


def listed(names: set[str]) -> str:
    """Names for a sentence."""
    return ", ".join(sorted(names))


def judge_interfaces(found: list[Output[tuple[links.Interface, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Link-local and missing addresses; different MTU, one address twice or no common subnet at the two ends."""
    for output in found:
        fabric = fabric_of(output)
        for row in fabric:
            addresses = row.interfaces()
            if addresses and all(address.ip.is_link_local for address in addresses):
                yield output.say("link-local-address", (str(addresses[0].ip),), netdev=row.name)
            elif row.addresses == () and any(other.addresses for other in fabric):
                yield output.say("fabric-no-address", (row.name,), netdev=row.name)
    for first, second in combinations(found, 2):
        yield from _compare_mtu(first, second)
        yield from _compare_addresses(first, second)


def fabric_of(output: Output[tuple[links.Interface, ...]]) -> list[links.Interface]:
    """The fabric's interfaces that carry."""
    return [row for row in output.value if row.is_fabric and row.is_up]


def _compare_mtu(first: Output[Any], second: Output[Any]) -> Iterator[Explanation]:
    pairs = []
    for row, other in ((row, other) for row in fabric_of(first) for other in fabric_of(second)):
        networks = row.networks(), other.networks()  # without addresses two ends face each other by name
        facing = bool(common_networks(networks)) if all(networks) else row.name == other.name
        if facing and row.mtu and other.mtu:
            pairs.append(((row.mtu, row.name, first), (other.mtu, other.name, second)))
    for one, two in pairs:
        if judge_mtu((one[0], two[0])) == "differs":
            (mtu, name, output), better = (one, two) if one[0] < two[0] else (two, one)
            small, large = f"{mtu} at {name} in {output.file}", f"{better[0]} in {better[2].file}"
            yield output.say("mtu-differs", (name, f"mtu {mtu}"), small=small, large=large)
    if judge_mtu(end[0] for pair in pairs for end in pair) == "small":
        yield second.say("mtu-1500", (pairs[0][1][1], "mtu 1500"))


def _compare_addresses(first: Output[Any], second: Output[Any]) -> Iterator[Explanation]:
    there, here = ({address for row in fabric_of(output) for address in row.interfaces()} for output in (first, second))
    shared = twice((which, str(address)) for which, one in enumerate((here, there)) for address in {a.ip for a in one})
    if shared and first.value != second.value:
        yield second.say("address-twice", (min(shared),), address=min(shared))
    networks = [{address.network for address in one} for one in (here, there)]
    if all(networks) and not common_networks(networks):
        sides = [listed(set(map(str, one))) for one in networks]
        yield second.say("no-common-subnet", (str(min(here).ip),), here=sides[0], there=sides[1])


USUAL_GID = 3


def judge_gids(found: list[Output[tuple[links.Gid, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """A table with a hole whose RoCE v2 entry for IPv4 is not where it usually is."""
    for output in found:
        for hca in dict.fromkeys(gid.hca for gid in output.value):
            own = {gid.index: gid for gid in output.value if gid.hca == hca}
            right = [gid for gid in own.values() if gid.is_v2 and gid.ipv4]
            holes = [index for index in range(max(own)) if index not in own]
            if right and holes and USUAL_GID not in [gid.index for gid in right]:
                bracketed = f"[{right[0].index:3}]"
                words = (bracketed,) if output.find(bracketed) else (right[0].ipv4, "v2")
                yield output.say("gid-moved", words, index=str(right[0].index), hole=str(holes[0]))


def judge_neighbours(found: list[Output[tuple[links.Neighbour, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """A peer on the fabric that does not answer."""
    for output in found:
        for row in output.value:
            if row.state in ("FAILED", "INCOMPLETE") and links.is_fabric(row.netdev):
                yield output.say("neighbour-silent", (row.address,), address=row.address, netdev=row.netdev)


FLAPS = 3


def judge_link_events(found: list[Output[tuple[links.LinkEvent, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Links that are down at the end, or go up and down; one plug-in (down, then up) is neither."""
    for output in found:
        shown: dict[str, list[links.LinkEvent]] = {"link-went-down": [], "link-flaps": []}
        for name in dict.fromkeys(event.netdev for event in output.value):
            own = [event for event in output.value if event.netdev == name]
            if not own[-1].is_up and any(event.is_up for event in own):
                shown["link-went-down"].append(own[-1])
            elif sum(not event.is_up for event in own) > FLAPS:
                shown["link-flaps"].append(own[-1])
        for id, events in shown.items():
            if events:
                yield output.say(id, (events[0].line.strip(),), netdevs=listed({event.netdev for event in events}))


HELD_SHARE, CACHE_SHARE = 0.5, 0.8


def judge_memory(found: list[Output[Memory]], outputs: Outputs) -> Iterator[Explanation]:
    """The kernel's CMA bug; memory that is held; page cache that looks like use."""
    for output in found:
        memory = output.value
        if memory.has_cma_bug:
            yield output.say("cma-bug", ("CmaFree",))
        if not memory.total or memory.available is None:
            continue
        share = memory.available / memory.total
        if share < HELD_SHARE:
            words = ("MemAvailable",) if output.find("MemAvailable") else ("Mem:",)
            yield output.say("memory-held", words, available=gib(memory.available), total=gib(memory.total))
        elif share > CACHE_SHARE and memory.free is not None and memory.hides(memory.total // 2):
            words = ("MemFree",) if output.find("MemFree") else ("Mem:",)
            yield output.say("page-cache", words, cache=gib(memory.available - memory.free))


def gib(value: int) -> str:
    """Bytes as GiB."""
    return f"{value / GIB:.0f}"


OF_STATE = {"stalled": "gpu-stalled", "capped": "gpu-power-capped", "spinning": "gpu-wedged"}


def judge_gpus(found: list[Output[tuple[gpu.Gpu, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Busy and drawing little: capped when the clocks are low, a kernel that spins when they are high."""
    for output in found:
        states = [(gpu.judge_gpu(one), one) for one in output.value]
        if any(state in ("working", "slowed") for state, _ in states):
            continue
        for state, one in [row for row in states if row[0] in OF_STATE][:1]:
            clock, power = one.sm_clock_mhz, f"{one.power_w:g}"
            words = (str(clock),) if clock else (power,)
            yield output.say(OF_STATE[state], words, busy=str(one.utilization_pct), power=power, clock=str(clock))


def judge_processes(found: list[Output[tuple[gpu.GpuProcess, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Engine processes that hold memory where no container runs."""
    for output in found:
        engines = [one for one in output.value if one.is_engine]
        if engines:
            running = [other.value for other in outputs.named("docker ps") if other.file == output.file]
            held = sum(one.used_mib or 0 for one in engines) << 20
            pids = " ".join(str(one.pid) for one in engines)
            id = "orphan-workers" if running == [0] else "engine-holds-memory"
            yield output.say(id, (str(engines[0].pid),), name=engines[0].name, held=gib(held), pids=pids)


def judge_disk(found: list[Output[tuple[disk.Filled, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """A file system without room, images and pseudo ones aside; a small one may have little and be as it should."""
    for output in found:
        for row in output.value:
            if row.is_storage and row.used_pct >= disk.NEARLY_FULL_PCT:
                id = "disk-full" if disk.judge_room(row.free_bytes, row.used_pct) == "full" else "disk-nearly-full"
                yield output.say(id, (f"{row.used_pct}%", row.path), path=row.path, used=str(row.used_pct))


def judge_machines(found: list[Output[tuple[str, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Two hosts with one machine-id."""
    for id, those in list(twice((output, id) for output in found for id in output.value).items())[-1:]:
        yield those[-1].say("machine-id-twice", (id,))


def judge_hostnames(found: list[Output[tuple[str, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Two machines with one name; one machine has one."""
    if len(set(outputs.rows("machine-ids"))) != 1:
        for name, those in list(twice((output, name) for output in found for name in output.value).items())[-1:]:
            yield those[-1].say("hostname-twice", (name,), name=name)


PENDING = ("pending placement group",)


def judge_ray(found: list[Output[ranks.RayStatus]], outputs: Outputs) -> Iterator[Explanation]:
    """Placement that waits for an address nobody has, or for GPUs; a worker that never joined; nodes that failed."""
    for output in found:
        status = output.value
        total = status.gpus_total or 0
        gpus = f"{total:g}"
        if status.pinned_to and total >= 2:
            yield output.say("ray-node-ip", PENDING, address=status.pinned_to, gpus=gpus)
        elif status.pending_placement_groups:
            yield output.say("ray-too-few-gpus", PENDING)
        elif status.nodes is not None and status.nodes < 2 and total < 2 and not status.gpus_used:
            words = (" GPU",) if output.find(" GPU") else ("Node status",)
            yield output.say("ray-one-node", words, nodes=str(status.nodes), gpus=gpus)
        if status.failures:
            yield output.say("ray-node-lost", (status.failures[0],))


def judge_docker(found: list[Output[docker.DockerText]], outputs: Outputs) -> Iterator[Explanation]:
    """No runtime of NVIDIA's (normal on a stock Spark); two kinds of image store."""
    for output in found:
        if output.value.nvidia_runtime is False and not output.value.nvidia_cdi:
            yield output.say("no-nvidia-runtime", ("runc",))
    stores = {output.value.storage_driver: output for output in found if output.value.storage_driver}
    if len(stores) > 1:
        yield list(stores.values())[-1].say("image-stores-differ", ("Storage Driver",), stores=" and ".join(stores))


def judge_load(found: list[Output[tuple[server.Load, ...]]], outputs: Outputs) -> Iterator[Explanation]:
    """Requests that run while no token comes; one look alone cannot tell."""
    looks = [look for output in found for look in output.value]
    first, last, output = looks[0], looks[-1], found[-1]
    running = f"{last.running or 0:g}"
    if not last.running or last.tokens is None:
        return
    if len(looks) == 1:
        yield output.say("requests-running", ("num_requests_running",), running=running)
    elif first.running and first.tokens == last.tokens:
        power = _most_power(outputs)
        if power is None:
            yield output.say("tokens-frozen", ("generation_tokens",), running=running)
        elif power < gpu.IDLE_W:
            yield output.say("server-wedged", ("generation_tokens",), running=running, power=f"{power:g}")


def _most_power(outputs: Outputs) -> float | None:
    """Watts of the GPU that draws most, None where none is shown."""
    return max((gpu.power_w for gpu in outputs.rows("gpus") if gpu.power_w is not None), default=None)


def judge_completion(found: list[Output[str]], outputs: Outputs) -> Iterator[Explanation]:
    """Text that only a broken kernel or checkpoint writes."""
    for output in found:
        wrong = server.insane(output.value)
        if wrong and output.value.strip():
            yield output.say("text-insane", ('"choices"',), wrong=f"the completion {wrong}")


OF_RDMA = {"degraded": "nic-degraded", "slow": "rdma-slow", "": ""}
OF_NCCL = ((10.0, "nccl-slow"), (14.0, "nccl-one-twin"), (20.0, "nccl-mtu"))
"""Below so many GB/s NCCL says this; both twins at MTU 9000 give more."""
ENOUGH_BYTES = 64 << 20
"""With smaller messages NCCL's bandwidth says nothing."""
SLOW_TCP_GBPS = (10.5, 40.0)
"""Less is the 10G port, which is as fast as it should be."""


def judge_bandwidth(found: list[Output[fabric_test.Bandwidth]], outputs: Outputs) -> Iterator[Explanation]:
    """Wrong data, a degraded card, one twin instead of two, small MTU."""
    for output in found:
        test = output.value
        if test.wrong:
            yield output.say("data-corrupt", ("Out of bounds",))
        if id := judge(test):
            value = test.gbps / 8 if test.tool == "nccl-tests" else test.gbps
            words = (f"{value:.2f}", "BW average", "bus bandwidth", "busbw", "bits/sec")
            shown = next((word for word in words if output.find(word)), words[0])
            yield output.say(id, (shown,), gbps=f"{value:.1f}", speed=f"{value:.1f}")


def judge(test: fabric_test.Bandwidth) -> str:
    """Which rule a result falls under, empty when it is as it should be."""
    if test.tool == "perftest":
        return OF_RDMA[fabric_test.judge_rdma(test.gbps)]
    if test.tool == "iperf3":
        return "tcp-slow" if SLOW_TCP_GBPS[0] < test.gbps < SLOW_TCP_GBPS[1] else ""
    if test.hosts == 1 or 0 < test.size < ENOUGH_BYTES:
        return ""
    return next((id for most, id in OF_NCCL if test.gbps / 8 < most), "")


Judge = Callable[[list[Output[Any]], Outputs], Iterator[Explanation]]
KINDS: dict[str, tuple[Callable[[str], Any], Judge | None]] = {
    "ports": (links.recognise_ports, judge_ports),
    "interfaces": (links.recognise_interfaces, judge_interfaces),
    "neighbours": (links.recognise_neighbours, judge_neighbours),
    "gids": (links.recognise_gids, judge_gids),
    "link events": (links.recognise_events, judge_link_events),
    "bandwidth": (fabric_test.recognise, judge_bandwidth),
    "memory": (memory.recognise, judge_memory),
    "gpus": (gpu.recognise, judge_gpus),
    "gpu processes": (gpu.recognise_processes, judge_processes),
    "metrics": (server.recognise_metrics, judge_load),
    "ray status": (ranks.recognise, judge_ray),
    "docker info": (docker.recognise, judge_docker),
    "docker ps": (docker.recognise_containers, None),
    "completion": (server.recognise, judge_completion),
    "disk": (disk.recognise, judge_disk),
    "kernel": (identity.recognise_kernel, None),
    "memlock": (identity.recognise_memlock, None),
    "machine-ids": (identity.recognise_machines, judge_machines),
    "hostnames": (identity.recognise_hostnames, judge_hostnames),
}
"""Each kind of output with its reader, and with what it means by itself where it means something."""
JUDGED = (
    "ports, link events, interfaces, neighbours, gids, bandwidth, machine-ids, hostnames, disk, memory, gpu processes, "
    "gpus, docker info, ray status, metrics, completion"
)
"""What is said first where no time tells: the fabric before the hosts, these before what runs on them."""


def judge_outputs(outputs: Outputs) -> Iterator[Explanation]:
    """What all outputs mean, each by itself and beside others of its kind."""
    for kind in JUDGED.split(", "):
        judged, found = KINDS[kind][1], outputs.named(kind)
        if judged and found:
            yield from judged(found, outputs)


SMALL_MEMLOCK = 64 * GIB
FULL = 4 * GIB


def settle_free_memory(found: Explanation, outputs: Outputs) -> Explanation:
    """Page cache or a holder: MemAvailable tells."""
    memory = _memory(found, outputs)
    if memory is None or memory.available is None:
        return found
    wanted = re.search(r"\(0?\.\d+, ([\d.]+) GiB\)", found.finding.evidence)
    need = float(wanted[1]) * GIB if wanted else 0.8 * (memory.total or 0)
    id = "free-memory-page-cache" if memory.available >= need else "free-memory-held"
    return settled(found, OF_PAIRS[id], available=gib(memory.available))


def settle_rdma_memory(found: Explanation, outputs: Outputs) -> Explanation:
    """The kernel's regression, a limit of locked memory, or memory that is full."""
    kernels: list[str] = [output.value for output in outputs.named("kernel")]
    limits: list[int] = [output.value for output in outputs.named("memlock")]
    memory = _memory(found, outputs)
    if any(identity.cannot_register(memory, kernel) for kernel in kernels or [""]):
        sign = f"kernel {kernels[0]}" if kernels else "CmaFree is more than CmaTotal"
        return settled(found, OF_PAIRS["rdma-enomem-kernel"], told=sign)
    if any(0 <= limit < SMALL_MEMLOCK for limit in limits):
        return settled(found, OF_PAIRS["rdma-enomem-memlock"], limit=str(limits[0] >> 10))
    if memory and memory.available is not None and memory.available < FULL:
        return settled(found, OF_PAIRS["rdma-enomem-full"], available=gib(memory.available))
    if kernels and not limits:
        return settled(found, OF_PAIRS["rdma-enomem-other-kernel"], kernel=kernels[0])
    return found


def settle_broadcast(found: Explanation, outputs: Outputs) -> Explanation | None:
    """Compiling or hanging: power tells."""
    power = _most_power(outputs)
    if power is None:
        return found
    return None if power >= gpu.IDLE_W else settled(found, OF_PAIRS["ranks-hang"], power=f"{power:g}")


def settle_image(found: Explanation, outputs: Outputs) -> Explanation:
    """Different images, or only different stores."""
    stores = [output.value.storage_driver for output in outputs.named("docker info") if output.value.storage_driver]
    if len(stores) < 2:
        return found
    id = "image-stores-differ" if len(set(stores)) > 1 else "image-really-differs"
    return settled(found, OF_PAIRS[id], stores=" and ".join(dict.fromkeys(stores)))


def settle_env(found: Explanation, outputs: Outputs) -> Explanation | None:
    """The head's names on a worker are harmless where those ports are up too."""
    named = re.search(r" to '([^']*)'", found.finding.evidence)
    names = re.split(r"[,:=^]", named[1]) if named else []
    states = [port.is_up for port in outputs.rows("ports") if port.hca in names or port.netdev in names]
    return None if states and all(states) else found


def settle_gid(found: Explanation, outputs: Outputs) -> Explanation:
    """The index that would be right, where a table is at hand."""
    right = sorted({gid.index for gid in outputs.rows("gids") if gid.is_v2 and gid.ipv4})
    if not right:
        return found
    what = f"{found.finding.what}; the table shows it at {' and '.join(map(str, right))}"
    return replace(found, finding=replace(found.finding, what=what))


SETTLERS: dict[str, Callable[[Explanation, Outputs], Explanation | None]] = {
    "free-memory-check": settle_free_memory,
    "rdma-enomem": settle_rdma_memory,
    "shm-broadcast": settle_broadcast,
    "image-differs": settle_image,
    "env-overwritten": settle_env,
    "nccl-gid-hole": settle_gid,
}
"""The finding as more is known, the same finding when nothing is, None when it turned out to be nothing."""


def _memory(found: Explanation, outputs: Outputs) -> Memory | None:
    """The memory of the same file, else of any."""
    known = sorted(outputs.named("memory"), key=lambda one: one.file != found.file)
    return known[0].value if known else None
