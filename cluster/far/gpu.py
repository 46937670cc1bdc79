"""What nvidia-smi reports of the GPUs and of the processes on them, both asked at once.

Given {"fields": [[name, other name, …]], "apps": [name]}: each field of --query-gpu with the names that older or
newer drivers use for it. A field the driver does not know under any name is left out instead of losing the rest.
Prints two lines, {"gpu": {"value": {"fields": [name or null], "exit": number, "said": text}}} and {"apps": {"value":
{"exit": number, "said": text, "containers": {pid: id}, "cpu_s": {pid: seconds}}}}, or {"missing": why, "kind": kind} in
place of "value".
"""

import os
import re
import subprocess

from cluster.far.prelude import Json, container_of, emit, finish, given, pids, read_text_if, start

UNKNOWN = re.compile(r'Field "([^"]+)" is not a valid field to query')
MOST = 1 << 20  # bytes of an answer; what prints more is no nvidia-smi

Program = subprocess.Popen[bytes]


def ask(what: str, names: list[str]) -> Program:
    return start("nvidia-smi", f"--query-{what}=" + ",".join(names), "--format=csv,noheader,nounits")


def answer(program: Program) -> tuple[int, str]:
    """Exit code and what was printed; of a failed program its complaints too."""
    code, out, err = finish(program, MOST)
    return code, out + err if code else out


def query_gpus(names: list[list[str]], program: Program) -> dict[str, Json]:
    """Ask as long as the driver names a field it does not know, each time with the field's next name."""
    while True:
        code, text = answer(program)
        unknown = UNKNOWN.search(text) if code else None
        place = next((left for left in names if unknown and left[:1] == [unknown[1]]), None)
        if place is None:
            return {"fields": [left[0] if left else None for left in names], "exit": code, "said": text}
        place.pop(0)
        program = ask("gpu", [left[0] for left in names if left])


def query_apps(program: Program) -> dict[str, Json]:
    code, text = answer(program)
    found = re.findall(r"(?m)^(?:GPU-[^,]+, )?(\d+), ", text)
    containers = {pid: container_of(pid) for pid in found}
    return {"exit": code, "said": text, "containers": containers, "cpu_s": cpu_seconds(found) if found else {}}


def cpu_seconds(wanted: list[str]) -> dict[str, float]:
    """CPU time so far of each process and all below it, also of those that have ended: what a compiler uses counts."""
    times: dict[str, int] = {}
    below: dict[str, list[str]] = {}
    for pid in map(str, pids()):
        if stat := read_text_if(f"/proc/{pid}/stat").rpartition(")")[2].split():  # proc(5): from the third field on
            times[pid] = sum(map(int, stat[11:15]))
            below.setdefault(stat[1], []).append(pid)

    def ticks(pid: str) -> int:
        return times[pid] + sum(map(ticks, below.get(pid, ())))

    return {pid: ticks(pid) / os.sysconf("SC_CLK_TCK") for pid in wanted if pid in times}


def main() -> None:
    wanted = given()
    try:
        gpus, apps = ask("gpu", [names[0] for names in wanted["fields"]]), ask("compute-apps", wanted["apps"])
    except FileNotFoundError:
        why, kind = "not found on the PATH of a non-login shell", "absent"
    except OSError as error:
        why, kind = str(error.strerror), "refused"
    else:
        emit({"gpu": {"value": query_gpus(wanted["fields"], gpus)}})
        emit({"apps": {"value": query_apps(apps)}})
        return
    for name in ("gpu", "apps"):
        emit({name: {"missing": f"nvidia-smi: {why}", "kind": kind}})


if __name__ == "__main__":
    main()
