#!/usr/bin/python3 -IS
"""nvidia-smi of a simulated Spark: a GB10 named as simulated, made of this host's real processes.

Memory of a process is its resident memory; utilization is its CPU time over 50 ms. What a fault changes is in
/run/cluster-lab/gpu.json: {"power_w", "sm_mhz", "utilization", "temperature", "reasons", "apps": {pid: MiB}}.
`-lgc` and `-rgc` need root, as the real ones do; a reboot ends the limit, which is in /run/cluster-lab/clocks.json.
Within a container there are no compute apps, as on a Spark. Formats: samples of driver 580.95.05. Of the real tool
it has the queries, those two and the list, which it also prints in place of the table.
"""

import json
import os
import re
import sys
import time
from typing import Any

NAME = "NVIDIA GB10 (simulated)"
UUID = "GPU-51b1a7ed-0000-4000-8000-000000000010"
DRIVER = "580.95.05"
STATE = "/run/cluster-lab/gpu.json"
CLOCKS = "/run/cluster-lab/clocks.json"
MAX_MHZ = 3003
App = tuple[int, str, int]  # process id, name, MiB
WORKER = re.compile(r"VLLM::Worker|ray::RayWorker|ray::QuickWorker")
REASONS = {"gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4}


def state(path: str) -> dict[str, Any]:
    """What a fault or `-lgc` set; empty when nothing did."""
    try:
        return dict(json.loads(read(path) or "{}"))
    except ValueError:  # it is being written
        return {}


def set_limit(words: list[str]) -> None:
    """`-lgc MIN,MAX` or one value, `-rgc`; exits 4 without root, as the real tool does."""
    bus = "0000000F:01:00.0"
    if os.geteuid():
        verb = "setting" if words[0] == "-lgc" else "resetting"
        print(f"The current user does not have permission to change clocks for GPU {bus}.")
        print(f"Terminating early due to previous errors while {verb} GPU clocks.")
        sys.exit(4)
    if words[0] == "-rgc":
        if os.path.exists(CLOCKS):
            os.unlink(CLOCKS)
        print(f"GPU clocks reset for GPU {bus}")
    else:
        low, _, high = words[1].partition(",")
        with open(CLOCKS, "w", encoding="utf-8") as file:
            json.dump({"min": int(low), "max": int(high or low)}, file)
        print(f'GPU clocks set to "(gpuClkMin {low}, gpuClkMax {high or low})" for GPU {bus}')
    print("All done.")


def read(path: str) -> str:
    """A file; empty when it is not there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def mib(pid: int) -> int:
    words = read(f"/proc/{pid}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") >> 20 if len(words) > 1 else 0


def ticks(pid: int) -> int:
    words = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[11]) + int(words[12]) if len(words) > 12 else 0


def compute_apps(given: dict[str, Any]) -> list[App]:
    """[(pid, name, MiB)] of what would hold GPU memory: workers; an engine core only when it has no workers.

    On a Spark the driver shows none to a container.
    """
    if os.path.exists("/.dockerenv"):
        return []
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    titles = {pid: re.split(r"[\0 ]", read(f"/proc/{pid}/cmdline"), maxsplit=1)[0] for pid in pids}
    workers = {pid: name for pid, name in titles.items() if WORKER.match(name)}
    places = {read(f"/proc/{pid}/cgroup") for pid in workers}
    for pid, name in titles.items():
        if name.startswith("VLLM::EngineCore") and read(f"/proc/{pid}/cgroup") not in places:
            workers[pid] = name
    rows = [(pid, name, mib(pid)) for pid, name in sorted(workers.items()) if mib(pid)]
    others = [(int(pid), titles.get(int(pid), ""), size) for pid, size in given.get("apps", {}).items()]
    return rows + [row for row in others if row[1]]


def reading(given: dict[str, Any]) -> dict[str, Any]:
    pids = [pid for pid, _, _ in compute_apps({})]
    busy = 0
    if pids:
        before = sum(map(ticks, pids))
        time.sleep(0.05)
        busy = min(100, (sum(map(ticks, pids)) - before) * 100 // max(1, os.sysconf("SC_CLK_TCK") // 20))
    idle = not pids and not given
    now: dict[str, Any] = {
        "power_w": 4.2 if idle else 11.0 + busy * 0.4,
        "sm_mhz": 208 if idle else 2411,
        "utilization": busy,
        "temperature": 40 if idle else 44 + busy // 8,
        "reasons": ["gpu_idle"] if idle else [],
    }
    now |= {key: value for key, value in given.items() if key != "apps"}
    if now["sm_mhz"] > (most := state(CLOCKS).get("max", MAX_MHZ)):
        now |= {"sm_mhz": most, "reasons": [*now["reasons"], "applications_clocks_setting"]}
    return now


def gpu_values(now: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Fields of --query-gpu: name → (value, unit)."""
    values: dict[str, tuple[str, str]] = {}
    mask = f"0x{sum(REASONS[name] for name in now['reasons']):016X}"
    for names, value, unit in (
        ("index", "0", ""),
        ("name gpu_name", NAME, ""),
        ("uuid gpu_uuid", UUID, ""),
        ("pstate", "P8" if "gpu_idle" in now["reasons"] else "P0", ""),
        ("persistence_mode", "Enabled", ""),
        ("driver_version", DRIVER, ""),
        ("compute_cap", "12.1", ""),
        ("utilization.gpu", str(now["utilization"]), "%"),
        ("utilization.memory", "0", "%"),
        ("temperature.gpu", str(now["temperature"]), ""),
        ("memory.total memory.used memory.free memory.reserved power.limit enforced.power.limit", "[N/A]", ""),
        ("power.draw power.draw.average power.draw.instant", f"{now['power_w']:.2f}", "W"),
        ("clocks.sm clocks.current.sm clocks.gr", str(now["sm_mhz"]), "MHz"),
        ("clocks.max.sm", str(MAX_MHZ), "MHz"),
        ("clocks_event_reasons.active clocks_throttle_reasons.active", mask, ""),
    ):
        values |= dict.fromkeys(names.split(), (value, unit))
    return values


def table(fields: list[str], rows: list[dict[str, str]], units: dict[str, str], form: list[str]) -> None:
    """CSV as nvidia-smi writes it: units in the header, and behind each value unless `form` has "nounits". A field that
    `units` does not have ends the query, exit 2, as the real tool does."""
    if unknown := [field for field in fields if field not in units]:
        print(f'Field "{unknown[0]}" is not a valid field to query.\n')
        sys.exit(2)
    behind = {} if "nounits" in form else {field: f" {unit}" for field, unit in units.items() if unit}
    if "noheader" not in form:
        print(", ".join(f"{field} [{units[field]}]" if units[field] else field for field in fields))
    for row in rows:
        print(", ".join(row[field] + behind.get(field, "") for field in fields))


def query_gpu(fields: list[str], form: list[str]) -> None:
    values = gpu_values(reading(state(STATE)))
    table(fields, [{name: value for name, (value, _) in values.items()}], {n: u for n, (_, u) in values.items()}, form)


def query_apps(fields: list[str], form: list[str]) -> None:
    rows = []
    for pid, name, size in compute_apps(state(STATE)):
        used = {"used_memory": str(size), "used_gpu_memory": str(size)}
        rows.append({"pid": str(pid), "process_name": name, "name": name, "gpu_uuid": UUID, "gpu_name": NAME, **used})
    units = dict.fromkeys(("pid", "process_name", "name", "gpu_uuid", "gpu_name"), "")
    table(fields, rows, units | {"used_memory": "MiB", "used_gpu_memory": "MiB"}, form)


def main(words: list[str]) -> None:
    given = dict(word.lstrip("-").partition("=")[::2] for word in words if word.startswith("--"))
    form = given.get("format", "csv").split(",")
    if "query-gpu" in given:
        query_gpu([field.strip() for field in given["query-gpu"].split(",")], form)
    elif "query-compute-apps" in given:
        query_apps([field.strip() for field in given["query-compute-apps"].split(",")], form)
    elif (words[:1] == ["-lgc"] and len(words) == 2) or words == ["-rgc"]:
        set_limit(words)
    elif not words or "-L" in words or "list-gpus" in given:
        print(f"GPU 0: {NAME} (UUID: {UUID})")
    else:
        print(f"Invalid combination of input arguments. (nvidia-smi of the lab does not know {' '.join(words)})")
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
