"""What nvidia-smi tells of the GPUs and of the processes on them, both asked at once.

Given {"fields": [[name, other name, …]], "apps": [name]}: each field of --query-gpu with the names that older or
newer drivers use for it. A field the driver does not know under any name is left out instead of losing the rest.
Prints two lines, {"gpu": {"value": {"fields": [name or null], "exit": number, "said": text}}} and {"apps": {"value":
{"exit": number, "said": text, "containers": {pid: id}, "cpu_s": {pid: seconds}}}}, or {"missing": why, "kind": kind} in
place of "value".
"""

import json
import os
import re
import subprocess
import sys

UNKNOWN = re.compile(r'Field "([^"]+)" is not a valid field to query')
CONTAINER = re.compile(r"[0-9a-f]{64}")
MOST = 1 << 20  # bytes of an answer; what says more is no nvidia-smi
SHAPE = "--format=csv,noheader,nounits"


def start(query):
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(["nvidia-smi", query, SHAPE], **quiet)


def end(program):
    """(exit code as a shell tells it, what was said) of a program; of a failed one its complaints too."""
    told = []
    for pipe in (program.stdout, program.stderr):
        told.append(pipe.read(MOST))
        pipe.close()
    said = b"".join(told) if program.wait() else told[0]
    return program.returncode if program.returncode >= 0 else 128 - program.returncode, said.decode("utf-8", "replace")


def query_gpus(fields, program):
    """Ask again as long as the driver names a field it does not know, each time with the field's next name."""
    names = [list(alternatives) for alternatives in fields]
    while True:
        code, said = end(program)
        unknown = UNKNOWN.search(said) if code else None
        place = next((at for at, left in enumerate(names) if unknown and left and left[0] == unknown[1]), None)
        if place is None:
            return {"fields": [left[0] if left else None for left in names], "exit": code, "said": said}
        names[place].pop(0)
        program = start(query_of(names))


def query_of(names):
    return "--query-gpu=" + ",".join(left[0] for left in names if left)


def query_apps(program):
    code, said = end(program)
    pids = re.findall(r"(?m)^(?:GPU-[^,]+, )?(\d+), ", said)
    containers = {pid: container_of(pid) for pid in pids}
    return {"exit": code, "said": said, "containers": containers, "cpu_s": cpu_seconds(pids)}


def container_of(pid):
    """The full id of a process's container by its control group; empty outside of one."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            found = CONTAINER.findall(file.read())
    except OSError:
        return ""
    return found[-1] if found else ""


def cpu_seconds(pids):
    """CPU time so far of each process and all below it, also of those that have ended: what a compiler uses counts."""
    times, below = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc") if pids else ()):
        try:
            with open(f"/proc/{pid}/stat", errors="replace") as file:
                told = file.read().rpartition(")")[2].split()  # proc(5): from the third field on
        except OSError:
            continue
        times[pid] = sum(map(int, told[11:15]))
        below.setdefault(told[1], []).append(pid)
    ticks = os.sysconf("SC_CLK_TCK")
    return {pid: sum(times[one] for one in family(pid, below)) / ticks for pid in pids if pid in times}


def family(pid, below):
    """A process and all below it."""
    return [pid, *(one for child in below.get(pid, []) for one in family(child, below))]


def tell(name, found):
    """Print one section at once: what was told counts even when a later one hangs."""
    print(json.dumps({name: found}), flush=True)


def tell_both(found):
    tell("gpu", found)
    tell("apps", found)


def main():
    given = json.loads(sys.argv[1])
    try:
        gpus, apps = start(query_of(given["fields"])), start("--query-compute-apps=" + ",".join(given["apps"]))
        tell("gpu", {"value": query_gpus(given["fields"], gpus)})
        tell("apps", {"value": query_apps(apps)})
    except FileNotFoundError:
        tell_both({"missing": "nvidia-smi: not found on the PATH of a non-login shell", "kind": "absent"})
    except OSError as error:
        tell_both({"missing": f"nvidia-smi: {error.strerror}", "kind": "refused"})


if __name__ == "__main__":
    main()
