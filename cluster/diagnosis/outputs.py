"""Outputs of commands in a text, recognised by the readers of their subjects in `spark`, and what they mean.

The limits and conditions are those of the checks in `spark`; the words are those of `rules/outputs.yaml`, for people
who pasted a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any, Generic, TypeVar

from cluster.diagnosis.lines import read_line
from cluster.diagnosis.rules import OF_OUTPUTS, Explanation
from cluster.diagnosis.scan import Source
from cluster.spark import disk, docker, fabric_test, gpu, identity, links, memory, processes, ranks, server
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
    """One output: what kind, as read, and the text it is in."""

    kind: str
    value: V
    source: Source
    lines: Sequence[tuple[int, str]]

    def explain(self, id: str, *shown: str, **values: Any) -> Explanation:
        """A rule as it applies here. Its evidence is the first line that has all words of the first of `shown` that
        some line has, else these words themselves."""
        having = (row for words in shown for row in self.lines if all(word in row[1] for word in words.split()))
        number, text = next(having, (None, shown[0]))
        finding = OF_OUTPUTS[id].finding(self.source.host, text, values)
        return Explanation(finding, OF_OUTPUTS[id], self.source.name, number)


class Outputs(tuple[Output[Any], ...]):
    def named(self, kind: str) -> list[Output[Any]]:
        return [output for output in self if output.kind == kind]

    def rows(self, kind: str) -> list[Any]:
        """What all outputs of a kind that has several rows hold."""
        return [row for output in self.named(kind) for row in output.value]


def recognise(source: Source, lines: Sequence[tuple[int, str]]) -> Iterator[Output[Any]]:
    """Every output that the readers know in one file's text."""
    text = "".join(f"{line}\n" for _, line in lines)
    for kind, (read, _) in KINDS.items():
        if (value := read(text)) is not None:
            yield Output(kind, value, source, lines)


def logs_in(lines: Sequence[tuple[int, str]]) -> list[str]:
    return [name for name, pattern in LOGS.items() if any(map(re.compile(pattern).search, (line for _, line in lines)))]


def judge_outputs(outputs: Outputs) -> Iterator[Explanation]:
    """What all outputs mean, each by itself and beside others."""
    for output in outputs:
        if judge := KINDS[output.kind][1]:
            yield from judge(output)
    for compare in COMPARED:
        yield from compare(outputs)


def listed(names: set[Any]) -> str:
    return ", ".join(sorted(map(str, names)))


def gib(value: int) -> str:
    return f"{value / GIB:.0f}"


def judge_ports(output: Output[tuple[links.Port, ...]]) -> Iterator[Explanation]:
    """All down, or one twin only. Two Down lines of four are normal; one port alone says nothing of the others."""
    up = {port.netdev or port.hca for port in output.value if port.is_up}
    first = output.value[0].netdev or output.value[0].hca
    if not up:
        yield output.explain("no-link-up" if len(output.value) > 1 else "port-down", first, port=first)
    for netdev, twin in links.half_ports(up, [port.netdev or port.hca for port in output.value]):
        yield output.explain("one-twin-up", twin, netdev=netdev, twin=twin)


def compare_ports(outputs: Outputs) -> Iterator[Explanation]:
    for ends in combinations(outputs.named("ports"), 2):
        there, here = ({port.netdev for port in output.value if port.is_up} for output in ends)
        if links.is_crossed(here, there):
            yield ends[1].explain("ports-crossed", min(here), here=listed(here), there=listed(there))


def judge_active_mtu(output: Output[tuple[int, ...]]) -> Iterator[Explanation]:
    """RDMA packets of 1024 bytes are what an MTU of 1500 allows."""
    if 1024 in output.value:
        yield output.explain("rdma-mtu-1024", "active_mtu: 1024", "active_mtu:")


FULL_MBPS, OTHER_PORT_MBPS = 200_000, 10_000


def judge_speeds(output: Output[tuple[tuple[str, int], ...]]) -> Iterator[Explanation]:
    """A fabric link that trained below 200 Gb/s; the 10G port aside."""
    for netdev, mbps in output.value:
        least = 0 if links.is_fabric(netdev) else OTHER_PORT_MBPS if not netdev else FULL_MBPS
        if least < mbps < FULL_MBPS:
            yield output.explain("link-slow", f"Speed: {mbps}", netdev=netdev or "the link", gbps=mbps // 1000)


def judge_transport(output: Output[fabric_test.NcclTransport]) -> Iterator[Explanation]:
    """One HCA of the two that a port has."""
    if len(output.value.hcas) == 1:
        yield output.explain("nccl-one-hca", output.value.hcas[0], hca=output.value.hcas[0])


LOOPBACK_PORTS = {6379, 8000, 8265, 29500}


def judge_sockets(output: Output[tuple[tuple[str, int], ...]]) -> Iterator[Explanation]:
    """Ray's head, vLLM's server or rendezvous where no other host reaches it."""
    everywhere = {port for address, port in output.value if not address.startswith("127.")}
    for address, port in output.value:
        if port in LOOPBACK_PORTS - everywhere:
            yield output.explain("loopback-only", f"{address}:{port}", port=port)


ABOVE = re.compile(r"bond|br\d|team|.*\.\d")
"""Interfaces that have the addresses of those below them: bonds, bridges, VLANs."""


def judge_interfaces(output: Output[tuple[links.Interface, ...]]) -> Iterator[Explanation]:
    """Addresses that are missing, change, or lie in one subnet at two netdevs of the fabric."""
    fabric = fabric_of(output)
    above = any(row.addresses and ABOVE.match(row.name) for row in output.value)
    if fabric and not above and all(row.addresses == () and not row.ipv6 for row in fabric):
        yield output.explain("fabric-no-addresses", fabric[0].name, netdevs=listed({row.name for row in fabric}))
    static = [(row.name, str(net)) for row in fabric for net in set(row.networks()) if not net.is_link_local]
    for net, names in twice(static).items():
        yield output.explain("one-subnet", names[-1], netdevs=listed(set(names)), net=net)
    for row in fabric:
        addresses = row.interfaces()
        if addresses and all(address.ip.is_link_local for address in addresses):
            yield output.explain("link-local-address", str(addresses[0].ip), netdev=row.name)
        elif row.addresses == () and any(other.addresses for other in fabric):
            yield output.explain("fabric-no-address", row.name, netdev=row.name)


def fabric_of(output: Output[tuple[links.Interface, ...]]) -> list[links.Interface]:
    return [row for row in output.value if links.is_fabric(row.name) and row.is_up]


def compare_interfaces(outputs: Outputs) -> Iterator[Explanation]:
    """Different MTU, one address twice or no common subnet at two ends."""
    for first, second in combinations(outputs.named("interfaces"), 2):
        for row, other in product(fabric_of(first), fabric_of(second)):
            networks = row.networks(), other.networks()  # without addresses two ends face each other by name
            facing = bool(common_networks(networks)) if all(networks) else row.name == other.name
            state = judge_mtu((row.mtu, other.mtu)) if facing and row.mtu and other.mtu else ""
            ends = (row.mtu or 0, row.name, first), (other.mtu or 0, other.name, second)
            (mtu, name, output), (better, _, peer) = sorted(ends, key=lambda end: end[0])
            if state == "differs":
                small, large = f"{mtu} at {name} in {output.source.name}", f"{better} in {peer.source.name}"
                yield output.explain("mtu-differs", f"{name} mtu {mtu}", small=small, large=large)
            elif state == "small":
                yield second.explain("mtu-1500", f"{other.name} mtu 1500")
        there, here = ({ip for row in fabric_of(output) for ip in row.interfaces()} for output in (first, second))
        shared = {address.ip for address in here} & {address.ip for address in there}
        if shared and first.value != second.value:
            yield second.explain("address-twice", str(min(shared)), address=min(shared))
        sides = {address.network for address in here}, {address.network for address in there}
        if all(sides) and not common_networks(sides):
            yield second.explain("no-common-subnet", str(min(here).ip), here=listed(sides[0]), there=listed(sides[1]))


USUAL_GID = 3


def judge_gids(output: Output[tuple[links.Gid, ...]]) -> Iterator[Explanation]:
    """A table with a hole whose RoCE v2 entry for IPv4 is not where it usually is."""
    for hca in dict.fromkeys(gid.hca for gid in output.value):
        own = {gid.index: gid for gid in output.value if gid.hca == hca}
        right = {gid.index: gid for gid in own.values() if gid.is_v2 and gid.ipv4}
        holes = set(range(max(own))) - own.keys()
        if right and holes and USUAL_GID not in right:
            index, gid = next(iter(right.items()))
            yield output.explain("gid-moved", f"[{index:3}]", f"{gid.ipv4} v2", index=index, hole=min(holes))


def judge_neighbours(output: Output[tuple[links.Neighbour, ...]]) -> Iterator[Explanation]:
    for row in output.value:
        if row.state in ("FAILED", "INCOMPLETE") and links.is_fabric(row.netdev):
            yield output.explain("neighbour-silent", row.address, address=row.address, netdev=row.netdev)


FLAPS = 3
UPTIME = re.compile(r"^[^\[]*\[ *(?P<seconds>\d+)\.\d+\] ")
BOOTED_S = 120
NO_LOSS = re.compile(
    r"Linux version|mlx5_core .*(firmware version|enabling device|renamed from|Cable (un)?plugged)"
    r"|systemd-shutdown|Reached target (\S+ - )?(System )?(Reboot|Power.?Off|Shutdown)"
)
"""A host or a card that starts calls every port without a cable down, and one that ends calls every port so."""


def is_lost(event: links.LinkEvent, output: Output[tuple[links.LinkEvent, ...]]) -> bool:
    """Whether a link of the fabric that the text never shows up was lost: long after the start, and at no other."""
    if not links.is_fabric(event.netdev) or any(NO_LOSS.search(line) for _, line in output.lines):
        return False
    uptime = UPTIME.match(event.line)
    return int(uptime["seconds"]) > BOOTED_S if uptime else read_line(event.line).time is not None


def judge_link_events(output: Output[tuple[links.LinkEvent, ...]]) -> Iterator[Explanation]:
    """Links that are down finally, or go up and down; one plug-in (down, then up) is neither."""
    shown: dict[str, list[links.LinkEvent]] = {"link-went-down": [], "link-flaps": []}
    for name in dict.fromkeys(event.netdev for event in output.value):
        own = [event for event in output.value if event.netdev == name]
        states = [True, *(event.is_up for event in own)]  # two programs may report one change
        if not own[-1].is_up and (any(event.is_up for event in own) or is_lost(own[-1], output)):
            shown["link-went-down"].append(own[-1])
        if sum(before and not after for before, after in pairwise(states)) > FLAPS:
            shown["link-flaps"].append(own[-1])
    for id, events in shown.items():
        if events:
            yield output.explain(id, events[0].line, netdevs=listed({event.netdev for event in events}))


ENOUGH_BYTES = 64 << 20
"""With smaller messages NCCL's bandwidth means nothing."""
SLOW_TCP_GBPS = (10.5, 40.0)
"""Less is the 10G port, which is as fast as it should be."""
OF_NCCL = ((2.5, "nccl-slow"), (3.3, "nccl-degraded"), (10.0, "nccl-slow"), (14.0, "nccl-one-twin"), (20.0, "nccl-mtu"))
"""Below so many GB/s NCCL has this; both twins at MTU 9000 give more, a degraded ConnectX 2.5 to 3.3."""


def judge_bandwidth(output: Output[fabric_test.Bandwidth]) -> Iterator[Explanation]:
    """Wrong data, a degraded card, one twin instead of two, small MTU."""
    test, id, value = output.value, "", output.value.gbps
    if test.wrong:
        yield output.explain("data-corrupt", "Out of bounds")
    if test.tool == "perftest":
        id = {"degraded": "nic-degraded", "slow": "rdma-slow", "": ""}[fabric_test.judge_rdma(test.gbps)]
    elif test.tool == "iperf3":
        id = "tcp-slow" if SLOW_TCP_GBPS[0] < test.gbps < SLOW_TCP_GBPS[1] else "tcp-1g" if test.gbps < 1 else ""
    elif test.hosts != 1 and not 0 < test.size < ENOUGH_BYTES:
        value = test.gbps / 8
        id = next((id for most, id in OF_NCCL if value < most), "")
    if id:
        words = ("BW average", "bus bandwidth", "busbw", "bits/sec")
        yield output.explain(id, f"{value:.2f}", *words, gbps=f"{value:.1f}", speed=f"{value:.1f}")


HELD_SHARE, CACHE_SHARE = 0.5, 0.8


def compare_addresses(outputs: Outputs) -> Iterator[Explanation]:
    """A test at the speed of another port, between addresses that the fabric has."""
    rows = [row for output in outputs.named("interfaces") for row in fabric_of(output)]
    fabric = {str(address.ip) for row in rows for address in row.interfaces()}
    for output in outputs.named("bandwidth"):
        ends = {word for _, line in output.lines if " local " in line for word in line.split()}
        if output.value.tool == "iperf3" and output.value.gbps <= SLOW_TCP_GBPS[0] and fabric & ends:
            yield output.explain("tcp-slow", "bits/sec", gbps=f"{output.value.gbps:.1f}")


def judge_memory(output: Output[Memory]) -> Iterator[Explanation]:
    """The kernel's CMA bug; memory that is held; page cache that looks like use."""
    memory = output.value
    if memory.has_cma_bug:
        yield output.explain("cma-bug", "CmaFree")
    if not memory.total or memory.available is None:
        return
    share = memory.available / memory.total
    if share < HELD_SHARE:
        values = {"available": gib(memory.available), "total": gib(memory.total)}
        yield output.explain("memory-held", "MemAvailable", "Mem:", **values)
    elif share > CACHE_SHARE and memory.free is not None and memory.hides(memory.total // 2):
        yield output.explain("page-cache", "MemFree", "Mem:", cache=gib(memory.available - memory.free))


OF_STATE = {"stalled": "gpu-stalled", "capped": "gpu-power-capped", "spinning": "gpu-wedged"}


def judge_gpus(output: Output[tuple[gpu.Gpu, ...]]) -> Iterator[Explanation]:
    """Busy and drawing little: capped when the clocks are low, a kernel that spins when they are high."""
    states = [(gpu.judge_gpu(one), one) for one in output.value]
    held = ([word for word in one.throttle or () if word in gpu.HELD_BACK] for one in output.value)
    if reasons := next(filter(None, held), None):
        reason = next((text for _, text in output.lines if gpu.REASON.match(text)), "Slowdown")
        words = "Slowdown", "clocks", str(output.value[0].power_w or "")
        yield output.explain("gpu-slowed", reason, *words, reasons=", ".join(reasons))
    if any(state in ("working", "slowed") for state, _ in states):
        return
    for state, one in [row for row in states if row[0] in OF_STATE][:1]:
        power, clock = f"{one.power_w:g}", f"{one.sm_clock_mhz}"
        yield output.explain(OF_STATE[state], clock, power, busy=one.utilization_pct, power=power, clock=clock)
    for one in [one for _, one in states if one.power_w is None and one.memory_busy_pct == 0][-1:]:
        if (one.utilization_pct or 0) >= gpu.BUSY_PCT:
            yield output.explain("gpu-spins", f" {one.utilization_pct} ", busy=one.utilization_pct)


def judge_processes(outputs: Outputs) -> Iterator[Explanation]:
    """Engine processes that hold memory, where no container runs."""
    for output in outputs.named("gpu processes"):
        engines = [one for one in output.value if one.is_engine]
        if engines:
            running = [other.value for other in outputs.named("docker ps") if other.source is output.source]
            held = gib(sum(one.used_mib or 0 for one in engines) << 20)
            pids = " ".join(str(one.pid) for one in engines)
            id = "orphan-workers" if running == [0] else "engine-holds-memory"
            yield output.explain(id, str(engines[0].pid), name=engines[0].name, held=held, pids=pids)


def judge_disk(output: Output[tuple[disk.Filled, ...]]) -> Iterator[Explanation]:
    """A file system without room, images and pseudo ones aside; a small one may have little and be as it should."""
    for row in output.value:
        if row.is_storage and row.used_pct >= disk.NEARLY_FULL_PCT:
            id = "disk-full" if disk.judge_room(row.free_bytes, row.used_pct) == "full" else "disk-nearly-full"
            yield output.explain(id, f"{row.used_pct}% {row.path}", path=row.path, used=row.used_pct)


def compare_machines(outputs: Outputs) -> Iterator[Explanation]:
    for id, those in twice((one, id) for one in outputs.named("machine-ids") for id in one.value).items():
        yield those[-1].explain("machine-id-twice", id)
    if len(set(outputs.rows("machine-ids"))) != 1:
        for name, those in twice((one, name) for one in outputs.named("hostnames") for name in one.value).items():
            yield those[-1].explain("hostname-twice", name, name=name)


PENDING = "pending placement group"


def judge_ray(output: Output[ranks.RayStatus]) -> Iterator[Explanation]:
    """Placement that waits for an address nobody has, or for GPUs; a worker that never joined; nodes that failed."""
    status, total = output.value, output.value.gpus_total or 0
    free = total - (status.gpus_used or 0)
    if status.pinned_to and free >= (status.gpus_asked or 2):
        yield output.explain("ray-node-ip", PENDING, address=status.pinned_to, gpus=f"{total:g}")
    elif status.pending_placement_groups:
        yield output.explain("ray-too-few-gpus", PENDING)
    elif status.nodes is not None and status.nodes < 2 and total < 2 and not status.gpus_used:
        yield output.explain("ray-one-node", "GPU", "Node status", nodes=status.nodes, gpus=f"{total:g}")
    if status.nodes is not None and status.nodes > 1 and 0 < total < status.nodes:
        yield output.explain("ray-node-without-gpu", " GPU", nodes=status.nodes, gpus=f"{total:g}")
    if status.failures:
        yield output.explain("ray-node-lost", status.failures[0])


def judge_docker(output: Output[docker.DockerText]) -> Iterator[Explanation]:
    """No runtime of NVIDIA's, as on a stock Spark."""
    if output.value.nvidia_runtime is False and not output.value.nvidia_cdi:
        yield output.explain("no-nvidia-runtime", "runc")


def stores_of(outputs: Outputs) -> list[str]:
    return [one.value.storage_driver for one in outputs.named("docker info") if one.value.storage_driver]


def compare_stores(outputs: Outputs) -> Iterator[Explanation]:
    stores = dict.fromkeys(stores_of(outputs))
    if len(stores) > 1:
        last = next(one for one in outputs.named("docker info") if one.value.storage_driver == list(stores)[-1])
        yield last.explain("image-stores-differ", "Storage Driver", stores=" and ".join(stores))


def judge_load(outputs: Outputs) -> Iterator[Explanation]:
    """Requests that run while no token comes; one reading alone shows nothing."""
    found, readings = outputs.named("metrics"), outputs.rows("metrics")
    if not readings or not readings[-1].running or readings[-1].tokens is None:
        return
    first, last, running, power = readings[0], readings[-1], f"{readings[-1].running:g}", most_power(outputs)
    if len(readings) == 1:
        yield found[-1].explain("requests-running", "num_requests_running", running=running)
    elif first.running and first.tokens == last.tokens and (power is None or power < gpu.IDLE_W):
        id = "tokens-frozen" if power is None else "server-wedged"
        yield found[-1].explain(id, "generation_tokens", running=running, power=f"{power or 0:g}")


FEW_REPORTS, MANY_REPORTS = 3, 30
"""Of ten seconds each: a long prefill may take the few, nothing that goes on the many."""
FULL_CACHE = 95


def judge_reports(outputs: Outputs) -> Iterator[Explanation]:
    """An engine of which no token and no block of the cache moves; a queue before a full cache."""
    power = most_power(outputs)
    for output in outputs.named("reports"):
        for engine in dict.fromkeys(row.engine for row in output.value):
            own: list[server.Report] = [row for row in output.value if row.engine == engine]
            last, running, shown = own[-1], f"{own[-1].running}", f"{engine} throughput: 0.0 Running: {own[-1].running}"
            moves = (row.prompt or row.tokens or not row.running or row.cache != last.cache for row in reversed(own))
            count = next((at for at, moved in enumerate(moves) if moved), len(own))
            if count >= FEW_REPORTS and (power is None or power < gpu.IDLE_W):
                id = "tokens-stopped" if count >= MANY_REPORTS else "tokens-frozen"
                id = id if power is None else "server-wedged"
                yield output.explain(id, shown, running=running, count=count, power=f"{power or 0:g}")
            if all(row.waiting and row.cache >= FULL_CACHE for row in own[-2:]):
                shown = f"{engine} Waiting: {last.waiting} {last.cache}%"
                yield output.explain("queue-before-full-cache", shown, waiting=last.waiting, cache=last.cache)


def judge_failing(output: Output[tuple[server.Failing, ...]]) -> Iterator[Explanation]:
    for row in output.value[:1]:
        id = "requests-fail" if row.status >= 500 else "requests-refused"
        yield output.explain(id, f'{row.path} HTTP/1 " {row.status}', path=row.path, status=row.status, count=row.count)


def most_power(outputs: Outputs) -> float | None:
    """Watts of the GPU that draws most, None where none is shown."""
    return max((gpu.power_w for gpu in outputs.rows("gpus") if gpu.power_w is not None), default=None)


def judge_completion(output: Output[str]) -> Iterator[Explanation]:
    """Text that only a broken kernel or checkpoint writes."""
    wrong = server.insane(output.value)
    if wrong and output.value.strip():
        yield output.explain("text-insane", '"choices"', wrong=f"the completion {wrong}")


KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Output[Any]], Iterator[Explanation]] | None]] = {
    "ports": (links.recognise_ports, judge_ports),
    "interfaces": (links.recognise_interfaces, judge_interfaces),
    "neighbours": (links.recognise_neighbours, judge_neighbours),
    "gids": (links.recognise_gids, judge_gids),
    "link events": (links.recognise_events, judge_link_events),
    "bandwidth": (fabric_test.recognise, judge_bandwidth),
    "memory": (memory.recognise, judge_memory),
    "active MTU": (links.recognise_active_mtu, judge_active_mtu),
    "link speed": (links.recognise_speeds, judge_speeds),
    "hot-plug": (links.recognise_hotplug, None),
    "NCCL's transport": (fabric_test.recognise_transport, judge_transport),
    "sockets": (processes.recognise_listeners, judge_sockets),
    "engines": (processes.recognise_engines, None),
    "gpus": (gpu.recognise, judge_gpus),
    "gpu processes": (gpu.recognise_processes, None),
    "metrics": (server.recognise_metrics, None),
    "reports": (server.recognise_reports, None),
    "failed requests": (server.recognise_failing, judge_failing),
    "ray status": (ranks.recognise, judge_ray),
    "docker info": (docker.recognise, judge_docker),
    "docker ps": (docker.recognise_containers, None),
    "completion": (server.recognise, judge_completion),
    "disk": (disk.recognise, judge_disk),
    "kernel": (identity.recognise_kernel, None),
    "memlock": (identity.recognise_memlock, None),
    "machine-ids": (identity.recognise_machines, None),
    "hostnames": (identity.recognise_hostnames, None),
}
"""Each kind of output with its reader, and with what one means by itself, where it means something."""
COMPARED: tuple[Callable[[Outputs], Iterator[Explanation]], ...] = (
    compare_ports,
    compare_interfaces,
    compare_addresses,
    compare_machines,
    compare_stores,
    judge_processes,
    judge_load,
    judge_reports,
)
"""What several outputs mean together."""


SMALL_MEMLOCK, FULL = 64 * GIB, 4 * GIB


def settle_free_memory(found: Explanation, outputs: Outputs) -> Explanation:
    """Page cache or a holder: MemAvailable decides."""
    memory = memory_beside(found, outputs)
    if memory is None or memory.available is None:
        return found
    wanted = re.search(r"\(0?\.\d+, ([\d.]+) GiB\)", found.finding.evidence)
    need = float(wanted[1]) * GIB if wanted else 0.8 * (memory.total or 0)
    id = "free-memory-page-cache" if memory.available >= need else "free-memory-held"
    return found.settled(id, available=gib(memory.available))


def memory_beside(found: Explanation, outputs: Outputs) -> Memory | None:
    known = sorted(outputs.named("memory"), key=lambda one: one.source.name != found.file)
    return known[0].value if known else None


def settle_rdma_memory(found: Explanation, outputs: Outputs) -> Explanation:
    """The kernel's regression, a limit of locked memory, or memory that is full."""
    kernels: list[str] = [output.value for output in outputs.named("kernel")]
    limits: list[int] = [output.value for output in outputs.named("memlock")]
    memory = memory_beside(found, outputs)
    if any(identity.cannot_register(memory, kernel) for kernel in kernels or [""]):
        sign = f"kernel {kernels[0]}" if kernels else "CmaFree is more than CmaTotal"
        return found.settled("rdma-enomem-kernel", told=sign)
    if any(0 <= limit < SMALL_MEMLOCK for limit in limits):
        return found.settled("rdma-enomem-memlock", limit=limits[0] >> 10)
    if memory and memory.available is not None and memory.available < FULL:
        return found.settled("rdma-enomem-full", available=gib(memory.available))
    if kernels and not limits:
        return found.settled("rdma-enomem-other-kernel", kernel=kernels[0])
    return found


def settle_broadcast(found: Explanation, outputs: Outputs) -> Explanation | None:
    """Compiling or hanging: power decides."""
    power = most_power(outputs)
    if power is None:
        return found
    return None if power >= gpu.IDLE_W else found.settled("ranks-hang", power=f"{power:g}")


def settle_image(found: Explanation, outputs: Outputs) -> Explanation:
    stores = stores_of(outputs)
    if len(stores) < 2:
        return found
    id = "image-stores-differ" if len(set(stores)) > 1 else "image-really-differs"
    return found.settled(id, stores=" and ".join(dict.fromkeys(stores)))


def settle_env(found: Explanation, outputs: Outputs) -> Explanation | None:
    """The head's names on a worker are harmless where those ports are up too."""
    named = re.search(r" to '([^']*)'", found.finding.evidence)
    names = re.split(r"[,:=^]", named[1]) if named else []
    states = [port.is_up for port in outputs.rows("ports") if port.hca in names or port.netdev in names]
    return None if states and all(states) else found


def settle_no_gpu(found: Explanation, outputs: Outputs) -> Explanation:
    """Several engines on one host, of which only one can have its GPU."""
    pids = [pid for output in outputs.named("engines") for pid in output.value]
    return found.settled("engine-twice", pids=" ".join(map(str, pids))) if len(pids) > 1 else found


def settle_nccl_slow(found: Explanation, outputs: Outputs) -> Explanation | None:
    """Sockets, a ConnectX that came up degraded, or what the number alone leaves open."""
    ways: list[fabric_test.NcclTransport] = [output.value for output in outputs.named("NCCL's transport")]
    if any(way.sockets for way in ways):
        return None  # nccl-socket says it
    uptime = max((output.value for output in outputs.named("hot-plug")), default=0)
    if any(len(way.hcas) > 1 for way in ways) or uptime > PLUGGED_LATE_S:
        sign = f"a cable was plugged in {uptime} s after boot" if uptime > PLUGGED_LATE_S else "NCCL uses both HCAs"
        return found.settled("nccl-degraded-surely", sign=sign)
    return found


PLUGGED_LATE_S = 300
"""A cable that is plugged in later after boot was pulled, or plugged, while the host ran."""

SETTLERS: dict[str, Callable[[Explanation, Outputs], Explanation | None]] = {
    "free-memory-check": settle_free_memory,
    "rdma-enomem": settle_rdma_memory,
    "shm-broadcast": settle_broadcast,
    "image-differs": settle_image,
    "env-overwritten": settle_env,
    "vllm-no-gpu-here": settle_no_gpu,
    "nccl-slow": settle_nccl_slow,
    "nccl-degraded": settle_nccl_slow,
}
"""The finding as more is known, the same finding when nothing is, None when it turned out to be nothing."""
