"""State of our containers on this host: runs or not, the stages their rank program told, the last lines, NCCL's words.

Given {"names": [...], "tail": N}; prints {name: {"state", "exit_code", "oom", "stages": [...], "loaded": bool,
"tail": [...], "net": [...]}}; a container that is not there is left out. Reads docker's log through a pipe, line by
line, so that its size does not matter.
"""
import collections
import json
import re
import subprocess
import sys

LOADED = re.compile(r"Loading weights took|Model loading took|loading weights took", re.I)
NET = re.compile(r"NCCL INFO (NET/\w+ ?: |Using network|.*via NET/)|NET/IB : No device found")
LOGS = "/tmp/ray/session_latest/logs"


def inspect(name):
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
    done = subprocess.run(["docker", "inspect", "--type", "container", "-f", form, name],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    words = done.stdout.decode().split()
    return words if done.returncode == 0 and len(words) == 3 else None


def read(name, tail):
    stages, last, net, loaded = [], collections.deque(maxlen=tail), [], False
    child = subprocess.Popen(["docker", "logs", name], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for raw in child.stdout:
        line = raw[:4000].decode("utf-8", "replace").rstrip("\n")
        if line.startswith("{") and '"cluster"' in line:
            try:
                stages.append(json.loads(line))
                continue
            except ValueError:
                pass
        last.append(line)
        loaded = loaded or bool(LOADED.search(line))
        if len(net) < 40 and NET.search(line):
            net.append(line)
    child.wait()
    return stages, list(last), net, loaded


def worker_lines(name):
    """NCCL's lines in Ray's own worker logs: a worker's output stays on its host."""
    argv = ["docker", "exec", name, "timeout", "5", "grep", "-rhsE", "NCCL INFO (NET/|Using network)", LOGS]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=8)
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.decode("utf-8", "replace").splitlines()[:40]


def main():
    given = json.loads(sys.argv[1])
    found = {}
    for name in given["names"]:
        state = inspect(name)
        if state is None:
            continue
        stages, tail, net, loaded = read(name, given.get("tail", 30))
        if given.get("net") and state[0] == "running":
            net += worker_lines(name)
        found[name] = {"state": state[0], "exit_code": int(state[1]), "oom": state[2] == "true",
                       "stages": stages, "loaded": loaded, "tail": tail, "net": net}
    print(json.dumps(found))


main()
