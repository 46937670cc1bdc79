"""GPUs of a host as nvidia-smi prints them, the processes on them, and whether they work as they should."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.deployments import is_managed
from cluster.spark.fact import WHY_LENGTH, Kind, Missing, known, plain, read_section
from cluster.spark.finding import Check, Finding, Level

if TYPE_CHECKING:
    from cluster.spark.look import Seen

GPU = Check("gpu", "it-does-not-start#container-and-gpu")
"""Fault: no GPU, or driver and library differ. Silent about memory `[N/A]`, which is normal on a Spark."""
THROTTLED = Check("throttle", "it-is-slow#power-cap")
"""Warning: heat, power brake or hardware slowdown lower the clocks, or they are low at work. Silent about the power
cap of the design under load."""
GPU_STRANGER = Check("gpu-stranger", "memory-is-full#another-tenant")
"""Warning: a process that cluster does not manage is on the GPU. Silent about managed ranks."""
POWER_CAP = Check("power-cap", "it-is-slow#power-cap")
"""Fault: busy at idle power (30 W) and less than 1000 MHz: supply or firmware hold the GPU back. Silent about an idle
GPU; heat (`throttle`)."""
ORPHAN = Check("orphan", "memory-is-full#a-leftover-holds-it")
"""Warning: an engine's process on the GPU is in no container that Docker has."""
WEDGED = Check("wedged", "it-hangs#wedged")
"""Warning: busy at idle power (30 W) with full clocks: a kernel spins and waits. A restart cures it, so it stops none.
Silent about an idle GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None is unknown. `throttle`: what lowers the clocks, idling aside; `idle`: the driver lowers them, since
    nothing runs."""

    name: str
    driver: str = ""
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    utilization_pct: int | None = None
    throttle: tuple[str, ...] | None = None
    idle: bool | None = None
    power_limit_w: float | None = None
    memory_busy_pct: int | None = None

    def __str__(self) -> str:
        """Name, memory of its own and power limit, as far as the driver reports them."""
        memory = f"{self.memory_total_mib} MiB" if self.memory_total_mib else ""
        return ", ".join(filter(None, (self.name, memory, f"{self.power_limit_w:g} W" if self.power_limit_w else "")))


_ASKED = (
    "name driver_version memory.used memory.total power.draw clocks.sm temperature.gpu utilization.gpu "
    "clocks_event_reasons.active|clocks_throttle_reasons.active power.limit"
)
FIELDS = [names.split("|") for names in _ASKED.split()]
"""What is asked for, each with its names from newest to oldest; the name comes first, since it may contain commas."""
APPS = ("pid", "process_name", "used_gpu_memory")

IDLE = 0x1
THROTTLE = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(?: (?:MiB|W|MHz|%|C))?", re.ASCII)
_MASK = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """How one nvidia-smi query ended. `fields`: the names the driver knew, None for none; `containers` and `cpu_s` of
    processes are by a pid's digits."""

    exit: int
    said: str
    fields: tuple[str | None, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)


def question() -> Question:
    """The GPUs and the processes on them: parse and parse_processes read one answer."""
    return far("gpu", {"fields": FIELDS, "apps": list(APPS)})


def parse(answer: Answer) -> tuple[Gpu, ...] | Missing:
    result = _result(answer, "gpu")
    if isinstance(result, Missing):
        return result
    asked = [newest for (newest, *_), name in zip(FIELDS, result.fields, strict=False) if name]
    rows = parse_query(result.said, asked)
    return rows if isinstance(rows, Missing) else tuple(map(_gpu, rows))


def _result(answer: Answer, section: str) -> QueryResult | Missing:
    """Where nvidia-smi failed, its own words why (it prints them on stdout)."""
    result = read_section(answer, section, QueryResult)
    if isinstance(result, Missing):
        return result
    words = " ".join(plain(result.said).split())[:WHY_LENGTH]
    absent = "No devices were found" in words or "couldn't communicate with the NVIDIA driver" in words
    if not absent and not result.exit and "Failed to initialize NVML" not in words:
        return result
    kind: Kind = "absent" if absent else "refused" if "Insufficient Permissions" in words else "unreadable"
    return Missing(f"nvidia-smi: {words or f'exit {result.exit}'}", kind)


def parse_query(text: str, fields: Sequence[str]) -> tuple[dict[str, str], ...] | Missing:
    """Rows of `--query-gpu` output, one a GPU: field → cell as printed. The first cell may contain commas."""
    rows = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(", ")]
        surplus = len(cells) - len(fields)
        if surplus < 0 or not fields:
            return Missing(f"nvidia-smi: {plain(line)[:WHY_LENGTH]}")
        cells = [", ".join(cells[: surplus + 1]), *cells[surplus + 1 :]]
        rows.append(dict(zip(fields, cells, strict=True)))
    return tuple(rows) if rows else Missing("nvidia-smi: no GPU listed", "absent")


def read_number(cell: str | None) -> float | None:
    """A cell's number; None for `[N/A]`, `Not Supported`, `[Unknown Error]` and whatever else is no number."""
    found = _NUMBER.fullmatch(cell.strip()) if cell else None
    return float(found[1]) if found else None


def read_whole_number(cell: str | None) -> int | None:
    number = read_number(cell)
    return None if number is None else int(number)


def throttle_words(cell: str | None) -> tuple[str, ...] | None:
    """The reasons of a bit mask as words; None when the cell is no bit mask. Idling (bit 0) is no throttling."""
    if not cell or not _MASK.fullmatch(cell):
        return None
    mask = int(cell, 16)
    words = [word for bit, word in THROTTLE.items() if mask & bit]
    rest = mask & ~(IDLE | sum(THROTTLE))
    return (*words, f"unknown reason {rest:#x}") if rest else tuple(words)


def _gpu(row: Mapping[str, str]) -> Gpu:
    reasons = row.get("clocks_event_reasons.active", "")
    return Gpu(
        name=row.get("name", ""),
        driver=row.get("driver_version", ""),
        memory_used_mib=read_whole_number(row.get("memory.used")),
        memory_total_mib=read_whole_number(row.get("memory.total")),
        power_w=read_number(row.get("power.draw")),
        sm_clock_mhz=read_whole_number(row.get("clocks.sm")),
        temperature_c=read_whole_number(row.get("temperature.gpu")),
        utilization_pct=read_whole_number(row.get("utilization.gpu")),
        throttle=throttle_words(reasons),
        idle=bool(int(reasons, 16) & IDLE) if _MASK.fullmatch(reasons) else None,
        power_limit_w=read_number(row.get("power.limit")),
        memory_busy_pct=read_whole_number(row.get("utilization.memory")),
    )


_ROW = re.compile(r"(?:GPU-[^,]+, )?(?P<pid>\d{1,9}), (?P<name>.*), (?P<used>[^,]*)", re.ASCII)
_TABLE_ROW = re.compile(
    r"^\|\s+\d+\s+(?:N/A\s+N/A\s+)?(?P<pid>\d+)\s+[CGM+]+\s+(?P<name>.+?)\s+(?P<used>\d+(?:MiB|\.+)|N/A)\s+\|", re.ASCII
)
_NAME = re.compile(r"^[/\[.]?[A-Za-z][\w./:\[\] -]*$", re.ASCII)
_UNIT = re.compile(r"^\d+ ?Mi?B$|^\[.*\]$|^N/A$")
_MEMORY = re.compile(r"\d+(?: ?Mi?B)?|\[N/A\]|N/A|\[Not Supported\]")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """`used_mib` and `cpu_s` (CPU time of it and of all processes below it) may be None; `container` is a full id or
    empty."""

    pid: int
    name: str
    used_mib: int | None
    container: str
    cpu_s: float | None = None

    @property
    def is_engine(self) -> bool:
        """A process of vLLM or of one of its ranks under Ray."""
        return "VLLM::" in self.name or "ray::" in self.name


def parse_processes(answer: Answer) -> tuple[GpuProcess, ...] | Missing:
    result = _result(answer, "apps")
    if isinstance(result, Missing):
        return result
    found = []
    for line in filter(None, map(str.strip, result.said.splitlines())):
        if row := _ROW.fullmatch(line):  # with or without the unit; a name may contain commas and spaces
            used, pid = read_whole_number(row["used"]), row["pid"]
            container, cpu_s = result.containers.get(pid, ""), result.cpu_s.get(pid)
            found.append(GpuProcess(int(pid), row["name"], used, container, cpu_s))
        elif "No running" not in line:
            return Missing(f"nvidia-smi: {plain(line)[:WHY_LENGTH]}")
    return tuple(found)


def recognise_processes(text: str) -> tuple[GpuProcess, ...] | None:
    """`nvidia-smi --query-compute-apps` in any order of columns, or the table's process list; None when neither."""
    found = []
    for line in text.splitlines():
        if row := _TABLE_ROW.match(line):
            used = read_whole_number(row["used"].removesuffix("MiB"))
            found.append(GpuProcess(int(row["pid"]), row["name"].strip(), used, ""))
            continue
        # by what cells look like: the first number is the pid, a name has letters and no unit, the rest is memory
        cells = [cell.strip() for cell in line.split(",") if not cell.strip().startswith("GPU-")]
        pid = next(filter(str.isdecimal, cells), "")
        name = next((cell for cell in cells if _NAME.search(cell) and not _UNIT.search(cell)), "")
        rest = [cell for cell in cells if cell not in (pid, name)]
        if len(cells) == 3 and pid and name and rest and _MEMORY.fullmatch(rest[0]):
            found.append(GpuProcess(int(pid), name, read_whole_number(rest[0]), ""))
    return tuple(found) or None


_HEADER = re.compile(r"^(?:[a-z_]+(?:\.[a-z_]+)*(?: \[[\w/%]+\])?)(?:, ?[a-z_]+(?:\.[a-z_]+)*(?: \[[\w/%]+\])?)+$")
_UNITS = {
    "utilization.gpu": re.compile(r"(?<![\d.])(\d{1,3}) ?%"),
    "power.draw": re.compile(r"(?<![\d.])(\d{1,4}(?:\.\d+)?) ?W(?:atts)?\b(?! \d)"),
    "clocks.sm": re.compile(r"(?<![\d.])(\d{2,4}) ?MHz"),
    "clocks_event_reasons.active": re.compile(r"\b(0x[0-9a-fA-F]{16})\b"),
}
_CELLS = re.compile(
    r"(?:(?:NVIDIA [\w ]+|P\d+|[\d/]+ [\d:.]+|\[N/A\]), *)*"
    r"(?:(?:\d+(?:\.\d+)?|\[N/A\]), *){2,6}(?:\d+(?:\.\d+)?|\[N/A\])"
)
_LONG = {
    "utilization.gpu": re.compile(r"^[ \t]*(?:GPU|Gpu) +: (\d+) ?%", re.MULTILINE),
    "power.draw": re.compile(r"^[ \t]*(?:(?:Average|Instantaneous) )?(?:GPU )?Power Draw +: ([\d.]+) W", re.MULTILINE),
    "clocks.sm": re.compile(r"^[ \t]*SM +: (\d+) MHz", re.MULTILINE),
}
_HELD = {
    "HW Slowdown": "hardware slowdown",
    "HW Thermal Slowdown": "hardware thermal slowdown",
    "SW Thermal Slowdown": "software thermal slowdown",
    "HW Power Brake Slowdown": "power brake",
}
REASON = re.compile(rf"^[ \t]*({'|'.join(_HELD)}) +: Active$", re.MULTILINE)
_IDLES = re.compile(r"^[ \t]*Idle +: Active$", re.MULTILINE)
_UNKNOWN = re.compile(r"(?:(?:NVIDIA GB10|\[N/A\]|N/A|\[Not Supported\]|\d+(?:\.\d+)?), *)*(?:\[N/A\]|\d+)")
_NAMES = {
    **dict.fromkeys(("clocks.current.sm", "clocks.gr", "clocks.current.graphics"), "clocks.sm"),
    **dict.fromkeys(("power.draw.instant", "power.draw.average", "pwr"), "power.draw"),
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "pclk": "clocks.sm",
    "sm": "utilization.gpu",
    "mem": "utilization.memory",
}
_JUDGED = ("name", "power.draw", "clocks.sm", "utilization.gpu", "utilization.memory", "clocks_event_reasons.active")
"""What pasted rows are judged by."""
Cells = dict[str, str]
"""Of one GPU, by nvidia-smi's names."""


def recognise(text: str) -> tuple[Gpu, ...] | None:
    """A Gpu for each row with power or clocks, in order."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = list(_tables(lines)) or _with_units(lines) or list(_bare(lines))
    if not rows:
        long = {name: match[1] for name, pattern in _LONG.items() if (match := pattern.search(text))}
        unknown = [line for line in lines if "[N/A]" in line and _UNKNOWN.fullmatch(line)]
        rows = [long] if len(long) > 1 else [{} for _ in unknown]
    held = tuple(_HELD[name] for name in REASON.findall(text))
    rows = rows or ([{}] if held else [])
    idle = _IDLES.search(text) is not None
    found = [_gpu({name: row.get(name, "") for name in _JUDGED}) for row in rows]
    return tuple(replace(one, throttle=one.throttle or held or None, idle=one.idle or idle) for one in found) or None


def _tables(lines: list[str]) -> Iterator[Cells]:
    """Rows below a header, of `--query-gpu` or of dmon."""
    columns: list[str] = []
    mark: str | None = None
    for line in lines:
        if _HEADER.match(line) and any(word in line for word in ("power.draw", "clocks.", "utilization.gpu")):
            columns, mark = [cell.split(" [")[0].strip() for cell in line.split(",")], ","
        elif line.startswith("#") and {"pwr", "sm"} & {*line.split()}:
            columns, mark = line.lstrip("# ").split(), None
        elif not line.startswith("#") and columns and len(cells := line.split(mark)) == len(columns):
            yield {_NAMES.get(name, name): cell.strip() for name, cell in zip(columns, cells, strict=True)}


def _with_units(lines: list[str]) -> list[Cells]:
    rows = []
    for line in lines:
        row = {name: match[1] for name, pattern in _UNITS.items() if (match := pattern.search(line))}
        if "power.draw" in row and len(row) > 1:
            rows.append(row | {"name": "NVIDIA GB10" if "GB10" in line else ""})
    return rows


def _bare(lines: list[str]) -> Iterator[Cells]:
    """Numbers without names or units, distinguished by their size; only when the text is nothing else."""
    if not all(map(_CELLS.fullmatch, lines)):
        return
    for line in lines:
        cells = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", re.sub(r"NVIDIA [\w ]+,|[\d/]+ [\d:.]+,", "", line))
        power = [cell for cell in cells if "." in cell]
        whole = [int(cell) for cell in cells if "." not in cell]
        clocks, used = [one for one in whole if 200 <= one <= 3500], [one for one in whole if one <= 100]
        if power and clocks:
            yield {"power.draw": power[0], "clocks.sm": f"{clocks[0]}", "utilization.gpu": f"{max(used, default='')}"}


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of a GPU by its name. `bytes_per_s`: bandwidth of its memory; `memory_gib`: of a host with one, for
    models; `own_memory`: it is the card's and not the host's; `idle_w`: the most it draws without work, None where that
    was never seen."""

    bytes_per_s: float
    memory_gib: float
    own_memory: bool = True
    idle_w: float | None = None


SPARK = "GB10"
CARDS = {
    SPARK: Card(273e9, 121.6, own_memory=False, idle_w=30.0),  # data sheet of the DGX Spark; MemTotal of one
    "H100 80GB HBM3": Card(3350e9, 79.6),  # data sheet of the H100 SXM; memory.total 81559 MiB
    "H200": Card(4800e9, 140.4, idle_w=130.0),  # data sheet; memory.total 143771 MiB; 79 W empty, 126 W with a model
}
"""By what nvidia-smi calls it, without NVIDIA."""


def card_of(name: str) -> Card | None:
    """What is known of a GPU by nvidia-smi's name, a remark in brackets aside; None for one not in the table."""
    return CARDS.get(name.removeprefix("NVIDIA").partition(" (")[0].strip())


BUSY_PCT, CAPPED_MHZ = 90, 1000
IDLE_W = CARDS[SPARK].idle_w or 0
"""Of a Spark, for what people paste without a GPU's name."""

GpuState = Literal["quiet", "working", "spinning", "capped", "slowed", "stalled", "unknown"]
"""`quiet`: not busy, at idle power. `spinning`: busy at idle power with full clocks, so a kernel waits and nothing is
computed. `capped`: the same with low clocks, so its power is limited. `stalled`: one of the two, without a clock.
`slowed`: at work with low clocks. `unknown`: the power is not reported, or what the card draws without work."""


def judge_gpu(gpu: Gpu) -> GpuState:
    card = card_of(gpu.name or SPARK)
    if gpu.power_w is None or card is None or card.idle_w is None:
        return "unknown"
    busy = (gpu.utilization_pct or 0) >= BUSY_PCT
    low = gpu.sm_clock_mhz is not None and gpu.sm_clock_mhz < CAPPED_MHZ
    if gpu.idle and gpu.power_w < card.idle_w:
        return "quiet"  # utilisation is of the last second, clocks are of now: a short job has just ended
    if gpu.power_w >= card.idle_w:
        return "slowed" if busy and low else "working"
    if not busy:
        return "quiet"
    return "stalled" if gpu.sm_clock_mhz is None else "capped" if low else "spinning"


HELD_BACK = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
"""Reasons for low clocks that are no matter of the load; a power cap is one on a busy GPU."""


def check_gpu(seen: Seen) -> Iterator[Finding]:
    """nvidia-smi answers, and a busy GPU has the power and clocks of one."""
    host = seen.host
    if isinstance(seen.gpu, Missing):
        level: Level = "fault" if seen.gpu.kind == "absent" or "NVML" in seen.gpu.why else "unknown"
        remedy = f"on {host}: nvidia-smi; after a driver upgrade, reboot"
        yield GPU.found(level, host, "nvidia-smi failed", seen.gpu.why, remedy)
        return
    for gpu in seen.gpu:
        state, numbers = judge_gpu(gpu), _numbers(gpu)
        held_back = [reason for reason in gpu.throttle or () if reason in HELD_BACK]
        if held_back or state == "slowed":
            what = f"the GPU's clocks are lowered: {', '.join(held_back) or 'no reason reported'}"
            remedy = f"on {host}: nvidia-smi -q -d PERFORMANCE,TEMPERATURE; free the air's way, let it cool"
            yield THROTTLED.warning(host, what, numbers, remedy)
        elif state == "capped":  # every number measured would be of the cap
            what = "the GPU is busy at low clocks: its power is capped by supply or firmware"
            remedy = f"on {host}: shut down, unplug the power brick for a minute; else sudo fwupdmgr update"
            yield POWER_CAP.fault(host, what, numbers, remedy)
        elif state == "spinning":
            what = "the GPU is busy at idle power with full clocks: a kernel spins and waits"
            remedy = f"cluster status: do tokens move? if not, cluster down; on {host}: nvidia-smi names the holder"
            yield WEDGED.warning(host, what, numbers, remedy)
        elif state == "stalled":
            what = "the GPU is busy at idle power: a kernel spins, or the power is capped"
            remedy = f"on {host}: nvidia-smi -q -d CLOCK,POWER; low SM clocks mean a cap"
            yield WEDGED.warning(host, what, numbers, remedy)


def _numbers(gpu: Gpu) -> str:
    texts = ("{} % busy", "{:g} W", "of at most {:g} W", "{} MHz", "{} °C")
    values = (gpu.utilization_pct, gpu.power_w, gpu.power_limit_w, gpu.sm_clock_mhz, gpu.temperature_c)
    numbers = [text.format(value) for text, value in zip(texts, values, strict=True) if value is not None]
    return ", ".join([*numbers, *(gpu.throttle or ())])


def check_strangers(seen: Seen) -> Iterator[Finding]:
    """Processes on the GPU outside of our containers: unmanaged ones, and engines that outlived theirs."""
    if isinstance(seen.gpu_processes, Missing) and not isinstance(seen.gpu, Missing):
        yield GPU_STRANGER.unknown(seen.host, "processes on the GPU", seen.gpu_processes)
    containers = known(seen.containers) or ()
    names = {container.id: container.name for container in containers}
    mine = {container.id for container in containers if is_managed(container)}
    for one in known(seen.gpu_processes) or ():
        if one.container in mine:
            continue
        held = f"pid {one.pid} {one.name}, " + ("memory unknown" if one.used_mib is None else f"{one.used_mib} MiB")
        remedy = f"on {seen.host}: {end_process(one.pid)}"
        if one.is_engine and one.container not in names:
            what = f"{one.name} uses the GPU and is in no container that Docker has"
            yield ORPHAN.warning(seen.host, what, held, remedy)
            continue
        if place := names.get(one.container, ""):
            held, remedy = f"{held}, container {place}", f"on {seen.host}: docker stop {place}, if nobody needs it"
        if "ollama" in one.name:
            remedy = f"on {seen.host}: ollama ps; ollama stop NAME"
        yield GPU_STRANGER.warning(seen.host, "an unmanaged process uses the GPU", held, remedy)


def end_process(pids: int | str) -> str:
    """For processes that may be a person's or a service's: first whose they are, and only then a kill."""
    whose = f"ps -o user,ppid,lstart,cmd -p '{pids}'; systemctl status {pids}"
    return f"{whose}; only if they are no user's and no service's: sudo kill {pids}"
