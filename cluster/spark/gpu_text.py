"""A GPU's load, power and clocks from any form of nvidia-smi that people paste: table, CSV, -q, dmon."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cluster.spark.fact import Missing
from cluster.spark.gpu import Gpu, parse_query, read_number, read_whole_number, throttle_words

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
_NAMES = {"clocks.current.sm": "clocks.sm", "clocks.gr": "clocks.sm", "clocks.current.graphics": "clocks.sm",
          "power.draw.instant": "power.draw", "power.draw.average": "power.draw"}  # fmt: skip


def recognise(text: str) -> tuple[Gpu, ...] | None:
    """A Gpu for each row that tells power or clocks, in order; None when a text has no such row."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [*_with_header(lines), *_dmon(lines)]
    found = found or list(_with_units(lines)) or list(_bare(lines)) or list(_long_form(text))
    found = found or [
        _gpu("", None, None, None, None) for line in lines if "[N/A]" in line and _UNKNOWN.fullmatch(line)
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
    return _gpu(
        row.get("name", ""), read_whole_number(row.get("utilization.gpu")), read_number(row.get("power.draw")),
        read_whole_number(row.get("clocks.sm")), throttle,
    )  # fmt: skip


def _with_units(lines: list[str]) -> Iterator[Gpu]:
    for line in lines:
        watts, percent, clock = _WATTS.search(line), _PERCENT.search(line), _MHZ.search(line)
        if watts and (percent or clock):
            name = "NVIDIA GB10" if "GB10" in line else ""
            yield _gpu(
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
            yield _gpu("", max((number for number in whole if number <= 100), default=None), power, clock, None)


def _dmon(lines: list[str]) -> Iterator[Gpu]:
    columns: list[str] = []
    for line in lines:
        if line.startswith("#") and "pwr" in line and "pclk" in line:
            columns = line.lstrip("# ").split()
        elif columns and not line.startswith("#") and len(line.split()) == len(columns):
            row = dict(zip(columns, line.split(), strict=True))
            power, clock = read_number(row.get("pwr")), read_whole_number(row.get("pclk"))
            yield _gpu("", read_whole_number(row.get("sm")), power, clock, None)


def _long_form(text: str) -> Iterator[Gpu]:
    found = {name: pattern.search(text) for name, pattern in _LONG.items()}
    values = {name: float(match[1]) for name, match in found.items() if match}
    if len(values) > 1:
        clock, used = values.get("sm_clock_mhz"), values.get("utilization_pct")
        yield _gpu("", None if used is None else int(used), values.get("power_w"), int(clock) if clock else None, None)


def _gpu(name: str, used: int | None, power: float | None, clock: int | None, throttle: tuple[str, ...] | None) -> Gpu:
    return Gpu(name, "", None, None, power, clock, None, used, throttle)
