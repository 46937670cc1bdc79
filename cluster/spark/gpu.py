"""GPUs of a host as nvidia-smi prints them, the processes on them, and whether they work as they should."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cluster.argv.far import far
from cluster.spark.deployments import ours
from cluster.spark.fact import WHY_LENGTH, Missing, plain, read_section
from cluster.spark.finding import Check, Finding, Level

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.spark.look import Seen

GPU = Check("gpu", "it-does-not-start#container-and-gpu")
THROTTLED = Check("throttle", "it-is-slow#power-cap")
GPU_STRANGER = Check("gpu-stranger", "memory-is-full#another-tenant")
POWER_CAP = Check("power-cap", "it-is-slow#power-cap")
ORPHAN = Check("orphan", "memory-is-full#a-leftover-holds-it")
WEDGED = Check("wedged", "it-hangs#wedged")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None is unknown. MiB, watts, MHz, °C, percent; `throttle` holds what lowers the clocks, idling aside;
    `idle`: the driver lowers them because nothing runs."""

    name: str
    driver: str
    memory_used_mib: int | None
    memory_total_mib: int | None
    power_w: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    utilization_pct: int | None
    throttle: tuple[str, ...] | None
    idle: bool | None = None
    power_limit_w: float | None = None


FIELDS = (
    ("name",),
    ("driver_version",),
    ("memory.used",),
    ("memory.total",),
    ("power.draw",),
    ("clocks.sm",),
    ("temperature.gpu",),
    ("utilization.gpu",),
    ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    ("power.limit",),
)
"""What is asked for, each with its names from newest to oldest; the name comes first, since it may hold commas."""

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
class Said:
    """What the far program brings of one nvidia-smi query. `fields`: the names the driver knew, None for none."""

    exit: int
    said: str
    fields: tuple[str | None, ...] = ()


def question() -> Question:
    """Ask for the GPUs and for the processes on them; gpu_processes reads the same answer."""
    return far("gpu", {"fields": [list(names) for names in FIELDS], "apps": list(APPS)})


def parse(answer: Answer) -> tuple[Gpu, ...] | Missing:
    """Read the section `gpu` of far/gpu."""
    result = read_section(answer, "gpu", Said)
    if isinstance(result, Missing):
        return result
    failed = refuse_smi(result.exit, result.said)
    if failed:
        return failed
    asked = [newest for (newest, *_), name in zip(FIELDS, result.fields, strict=False) if name]
    rows = parse_query(result.said, asked)
    return rows if isinstance(rows, Missing) else tuple(_gpu(row) for row in rows)


def refuse_smi(exit_code: int, said: str) -> Missing | None:
    """Why nvidia-smi told nothing, in its own words (it prints them on stdout), or None."""
    words = " ".join(plain(said).split())[:WHY_LENGTH]
    if "No devices were found" in words or "couldn't communicate with the NVIDIA driver" in words:
        return Missing(f"nvidia-smi: {words}", "absent")
    if "Insufficient Permissions" in words and exit_code:
        return Missing(f"nvidia-smi: {words}", "refused")
    if exit_code or "Failed to initialize NVML" in words:
        return Missing(f"nvidia-smi: {words or f'exit {exit_code}'}")
    return None


def parse_query(text: str, fields: Sequence[str]) -> tuple[Mapping[str, str], ...] | Missing:
    """Rows of `--query-gpu` output, one a GPU: field → cell as printed. The first cell may hold commas."""
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
    """A cell's number as an integer; None when it is no number."""
    number = read_number(cell)
    return None if number is None else int(number)


def throttle_words(cell: str | None) -> tuple[str, ...] | None:
    """The reasons of a bit mask as words; None when the cell is no bit mask. Idling (bit 0) is no throttling."""
    if not cell or not _MASK.fullmatch(cell):
        return None
    mask = int(cell, 16)
    known = [word for bit, word in THROTTLE.items() if mask & bit]
    rest = mask & ~(IDLE | sum(THROTTLE))
    return (*known, f"unknown reason {rest:#x}") if rest else tuple(known)


def says_idle(cell: str | None) -> bool | None:
    """Whether a bit mask says that nothing runs; None when the cell is no bit mask."""
    return bool(int(cell, 16) & IDLE) if cell and _MASK.fullmatch(cell) else None


def _gpu(row: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=row.get("name", ""),
        driver=row.get("driver_version", ""),
        memory_used_mib=read_whole_number(row.get("memory.used")),
        memory_total_mib=read_whole_number(row.get("memory.total")),
        power_w=read_number(row.get("power.draw")),
        sm_clock_mhz=read_whole_number(row.get("clocks.sm")),
        temperature_c=read_whole_number(row.get("temperature.gpu")),
        utilization_pct=read_whole_number(row.get("utilization.gpu")),
        throttle=throttle_words(row.get("clocks_event_reasons.active")),
        idle=says_idle(row.get("clocks_event_reasons.active")),
        power_limit_w=read_number(row.get("power.limit")),
    )


_ROW = re.compile(r"(?:GPU-[^,]+, )?(?P<pid>\d{1,9}), (?P<name>.*), (?P<used>[^,]*)", re.ASCII)

_TABLE_ROW = re.compile(
    r"^\|\s+\d+\s+(?:N/A\s+N/A\s+)?(?P<pid>\d+)\s+[CGM+]+\s+(?P<name>.+?)\s+(?P<used>\d+MiB|N/A)\s+\|", re.ASCII
)
_NAME = re.compile(r"^[/\[.]?[A-Za-z][\w./:\[\] -]*$", re.ASCII)
_UNIT = re.compile(r"^\d+ ?Mi?B$|^\[.*\]$|^N/A$")
_MEMORY = re.compile(r"\d+(?: ?Mi?B)?|\[N/A\]|N/A|\[Not Supported\]")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory. `used_mib` is None when not told; `container` is a full id or empty.

    `cpu_s`: CPU time so far of it and of all processes below it, None when not told.
    """

    pid: int
    name: str
    used_mib: int | None
    container: str
    cpu_s: float | None = None

    @property
    def is_engine(self) -> bool:
        """Whether it is a process of vLLM or of one of its ranks under Ray."""
        return "VLLM::" in self.name or "ray::" in self.name


@dataclass(frozen=True, slots=True)
class SaidOfProcesses:
    """What the far program brings of the query; `containers` and `cpu_s` are by a pid's digits."""

    exit: int
    said: str
    containers: Mapping[str, str] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)


def parse_processes(answer: Answer) -> tuple[GpuProcess, ...] | Missing:
    """Read the section `apps` of far/gpu; no process at all is an empty tuple."""
    result = read_section(answer, "apps", SaidOfProcesses)
    if isinstance(result, Missing):
        return result
    return refuse_smi(result.exit, result.said) or parse_apps(result.said, result.containers, result.cpu_s)


def parse_apps(
    text: str, containers: Mapping[str, str], cpu_s: Mapping[str, float] | None = None
) -> tuple[GpuProcess, ...] | Missing:
    """Rows `[uuid, ]pid, name, MiB`, with or without the unit; a name may hold commas and spaces."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = _ROW.fullmatch(line)
        if row:
            used, pid = read_whole_number(row["used"]), row["pid"]
            spent = (cpu_s or {}).get(pid)
            found.append(GpuProcess(int(pid), row["name"], used, containers.get(pid, ""), spent))
        elif "No running" not in line:
            return Missing(f"nvidia-smi: {plain(line)[:WHY_LENGTH]}")
    return tuple(found)


def recognise_processes(text: str) -> tuple[GpuProcess, ...] | None:
    """`nvidia-smi --query-compute-apps` in any order of columns, or the table's process list; None when neither."""
    found = []
    for line in text.splitlines():
        row = _TABLE_ROW.match(line)
        cells = [cell.strip() for cell in line.split(",")]
        if row:
            used = read_whole_number(row["used"].removesuffix("MiB"))
            found.append(GpuProcess(int(row["pid"]), row["name"].strip(), used, ""))
        elif 3 <= len(cells) <= 4 and all(cells):
            process = _of_cells([cell for cell in cells if not cell.startswith("GPU-")])
            found += [process] if process else []
    return tuple(found) or None


def _of_cells(cells: list[str]) -> GpuProcess | None:
    """Cells by what they look like: the first number is the pid, a name has letters and no unit, the rest is memory."""
    pid = next((cell for cell in cells if cell.isdecimal()), None)
    name = next((cell for cell in cells if _NAME.search(cell) and not _UNIT.search(cell)), None)
    if pid is None or name is None or len(cells) != 3:
        return None
    used = next((cell for cell in cells if cell not in (pid, name)), "")
    return GpuProcess(int(pid), name, read_whole_number(used), "") if used and _MEMORY.fullmatch(used) else None


_HEADER = re.compile(r"^(?:[a-z_]+(?:\.[a-z_]+)*(?: \[[\w/%]+\])?)(?:, ?[a-z_]+(?:\.[a-z_]+)*(?: \[[\w/%]+\])?)+$")
_PERCENT = re.compile(r"(?<![\d.])(\d{1,3}) ?%")
_WATTS = re.compile(r"(?<![\d.])(\d{1,4}(?:\.\d+)?) ?W(?:atts)?\b(?! \d)")
_MHZ = re.compile(r"(?<![\d.])(\d{2,4}) ?MHz")
_CELLS = re.compile(
    r"(?:(?:NVIDIA [\w ]+|P\d+|[\d/]+ [\d:.]+|\[N/A\]), *)*"
    r"(?:(?:\d+(?:\.\d+)?|\[N/A\]), *){2,6}(?:\d+(?:\.\d+)?|\[N/A\])"
)
_LONG = {
    "utilization_pct": re.compile(r"^[ \t]*(?:GPU|Gpu) +: (\d+) ?%", re.MULTILINE),
    "power_w": re.compile(r"^[ \t]*(?:(?:Average|Instantaneous) )?(?:GPU )?Power Draw +: ([\d.]+) W", re.MULTILINE),
    "sm_clock_mhz": re.compile(r"^[ \t]*SM +: (\d+) MHz", re.MULTILINE),
}
_UNKNOWN = re.compile(r"(?:(?:NVIDIA GB10|\[N/A\]|N/A|\[Not Supported\]|\d+(?:\.\d+)?), *)*(?:\[N/A\]|\d+)")
_NAMES = {
    "clocks.current.sm": "clocks.sm",
    "clocks.gr": "clocks.sm",
    "clocks.current.graphics": "clocks.sm",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
}


def recognise(text: str) -> tuple[Gpu, ...] | None:
    """A Gpu for each row that tells power or clocks, in order; None when a text has no such row."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [*_with_header(lines), *_dmon(lines)]
    found = found or list(_with_units(lines)) or list(_bare(lines)) or list(_long_form(text))
    found = found or [
        _gpu_of_text("", None, None, None, None) for line in lines if "[N/A]" in line and _UNKNOWN.fullmatch(line)
    ]
    return tuple(found) or None


def _with_header(lines: list[str]) -> Iterator[Gpu]:
    fields: list[str] = []
    for line in lines:
        if _HEADER.match(line) and any(word in line for word in ("power.draw", "clocks.", "utilization.gpu")):
            names = [cell.split(" [")[0].strip() for cell in line.split(",")]
            fields = [_NAMES.get(name, name) for name in names]
        elif fields and line.count(",") >= len(fields) - 1:
            rows = parse_query(line.replace(",", ", ").replace(",  ", ", "), fields)
            yield from () if isinstance(rows, Missing) else map(_of_row, rows)


def _of_row(row: Mapping[str, str]) -> Gpu:
    throttle = throttle_words(row.get("clocks_event_reasons.active") or row.get("clocks_throttle_reasons.active"))
    return _gpu_of_text(
        row.get("name", ""),
        read_whole_number(row.get("utilization.gpu")),
        read_number(row.get("power.draw")),
        read_whole_number(row.get("clocks.sm")),
        throttle,
    )


def _with_units(lines: list[str]) -> Iterator[Gpu]:
    for line in lines:
        watts, percent, clock = _WATTS.search(line), _PERCENT.search(line), _MHZ.search(line)
        if watts and (percent or clock):
            name = "NVIDIA GB10" if "GB10" in line else ""
            yield _gpu_of_text(
                name, int(percent[1]) if percent else None, float(watts[1]), int(clock[1]) if clock else None, None
            )


def _bare(lines: list[str]) -> Iterator[Gpu]:
    """Numbers without names or units, told apart by their size; only when the text is nothing else."""
    if not all(_CELLS.fullmatch(line) for line in lines):
        return
    for line in lines:
        cells = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", re.sub(r"NVIDIA [\w ]+,|[\d/]+ [\d:.]+,", "", line))
        power = next((float(cell) for cell in cells if "." in cell), None)
        whole = [int(cell) for cell in cells if "." not in cell]
        clock = next((number for number in whole if 200 <= number <= 3500), None)
        if power is not None and clock is not None:
            yield _gpu_of_text("", max((number for number in whole if number <= 100), default=None), power, clock, None)


def _dmon(lines: list[str]) -> Iterator[Gpu]:
    columns: list[str] = []
    for line in lines:
        if line.startswith("#") and "pwr" in line and "pclk" in line:
            columns = line.lstrip("# ").split()
        elif columns and not line.startswith("#") and len(line.split()) == len(columns):
            row = dict(zip(columns, line.split(), strict=True))
            power, clock = read_number(row.get("pwr")), read_whole_number(row.get("pclk"))
            yield _gpu_of_text("", read_whole_number(row.get("sm")), power, clock, None)


def _long_form(text: str) -> Iterator[Gpu]:
    found = {name: pattern.search(text) for name, pattern in _LONG.items()}
    values = {name: float(match[1]) for name, match in found.items() if match}
    if len(values) > 1:
        clock, used = values.get("sm_clock_mhz"), values.get("utilization_pct")
        yield _gpu_of_text(
            "", None if used is None else int(used), values.get("power_w"), int(clock) if clock else None, None
        )


def _gpu_of_text(
    name: str, used: int | None, power: float | None, clock: int | None, throttle: tuple[str, ...] | None
) -> Gpu:
    return Gpu(name, "", None, None, power, clock, None, used, throttle)


BUSY_PCT, IDLE_W, CAPPED_MHZ = 90, 30.0, 1000

GpuState = Literal["quiet", "working", "spinning", "capped", "slowed", "stalled", "unknown"]
"""`quiet`: not busy, at idle power. `spinning`: busy at idle power with full clocks, so a kernel waits and nothing is
computed. `capped`: the same with low clocks, so its power is limited. `stalled`: one of the two, the clock is not told.
`slowed`: at work with low clocks. `unknown`: the power is not told."""


def judge_gpu(gpu: Gpu) -> GpuState:
    """The state of one GPU at one moment."""
    if gpu.power_w is None:
        return "unknown"
    busy = (gpu.utilization_pct or 0) >= BUSY_PCT
    low = gpu.sm_clock_mhz is not None and gpu.sm_clock_mhz < CAPPED_MHZ
    if gpu.idle and gpu.power_w < IDLE_W:
        return "quiet"  # utilisation is of the last second, clocks are of now: a short job has just ended
    if gpu.power_w >= IDLE_W:
        return "slowed" if busy and low else "working"
    if not busy:
        return "quiet"
    return "stalled" if gpu.sm_clock_mhz is None else "capped" if low else "spinning"


HELD_BACK = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
"""Reasons for low clocks that are no matter of the load; a power cap is one on a busy GPU."""


def check_gpu(seen: Seen) -> Iterator[Finding]:
    """nvidia-smi answers, and what it tells of a busy GPU's power and clocks makes sense."""
    if isinstance(seen.gpu, Missing):
        level: Level = "fault" if seen.gpu.kind == "absent" or "NVML" in seen.gpu.why else "unknown"
        yield GPU.found(
            level,
            seen.host,
            "nvidia-smi failed",
            seen.gpu.why,
            f"on {seen.host}: nvidia-smi; after a driver upgrade, reboot",
        )
        return
    for gpu in seen.gpu:
        yield from check_state(seen.host, gpu)


def check_state(host: str, gpu: Gpu) -> Iterator[Finding]:
    """Power capped (every number measured would be of the cap), spinning in a kernel, or held back by heat."""
    state, numbers = judge_gpu(gpu), _numbers(gpu)
    held_back = [reason for reason in gpu.throttle or () if reason in HELD_BACK]
    if held_back or state == "slowed":
        yield THROTTLED.warning(
            host,
            f"the GPU's clocks are lowered: {', '.join(held_back) or 'no reason reported'}",
            numbers,
            f"on {host}: nvidia-smi -q -d PERFORMANCE,TEMPERATURE; free the air's way, let it cool",
        )
    elif state == "capped":
        yield POWER_CAP.fault(
            host,
            "the GPU is busy at low clocks: its power is capped by supply or firmware",
            numbers,
            f"on {host}: shut down, unplug the power brick for a minute; else sudo fwupdmgr update",
        )
    elif state == "spinning":
        yield WEDGED.warning(
            host,
            "the GPU is busy at idle power with full clocks: a kernel spins and waits",
            numbers,
            f"cluster status: do tokens move? if not, cluster down; on {host}: nvidia-smi names the holder",
        )
    elif state == "stalled":
        yield WEDGED.warning(
            host,
            "the GPU is busy at idle power: a kernel spins, or the power is capped",
            numbers,
            f"on {host}: nvidia-smi -q -d CLOCK,POWER; low SM clocks mean a cap",
        )


def _numbers(gpu: Gpu) -> str:
    """What was read, as far as it was told."""
    rows = [
        ("{} % busy", gpu.utilization_pct),
        ("{:g} W", gpu.power_w),
        ("of at most {:g} W", gpu.power_limit_w),
        ("{} MHz", gpu.sm_clock_mhz),
        ("{} °C", gpu.temperature_c),
    ]
    numbers = [text.format(value) for text, value in rows if value is not None]
    return ", ".join([*numbers, *(gpu.throttle or ())])


def check_strangers(seen: Seen) -> Iterator[Finding]:
    """Processes on the GPU that are not in a container of ours: strangers', and engines that outlived theirs."""
    if isinstance(seen.gpu_processes, Missing):
        if not isinstance(seen.gpu, Missing):
            yield GPU_STRANGER.unknown(seen.host, "processes on the GPU", seen.gpu_processes)
        return
    if isinstance(seen.containers, Missing):
        return
    names = {container.id: container.name for container in seen.containers}
    mine = {container.id for container in seen.containers if ours(container)}
    for process in seen.gpu_processes:
        if process.container in mine:
            continue
        if process.is_engine and process.container not in names:
            yield ORPHAN.warning(
                seen.host,
                f"{process.name} uses the GPU and is in no container that Docker has",
                _held(process),
                f"on {seen.host}: {end_process(process.pid)}",
            )
            continue
        place = names.get(process.container, "")
        yield GPU_STRANGER.warning(
            seen.host,
            "an unmanaged process uses the GPU",
            _held(process) + (f", container {place}" if place else ""),
            f"on {seen.host}: {_stop(process, place)}",
        )


def _held(process: GpuProcess) -> str:
    held = "memory unknown" if process.used_mib is None else f"{process.used_mib} MiB"
    return f"pid {process.pid} {process.name}, {held}"


def _stop(process: GpuProcess, container: str) -> str:
    if "ollama" in process.name:
        return "ollama ps; ollama stop NAME"
    return f"docker stop {container}, if nobody needs it" if container else end_process(process.pid)


def end_process(pids: int | str) -> str:
    """How to end processes that may be a person's or a service's: first whose they are, and only then a kill."""
    whose = f"ps -o user,ppid,lstart,cmd -p '{pids}'; systemctl status {pids}"
    return f"{whose}; only if they are no user's and no service's: sudo kill {pids}"
