"""Fits a container to this machine before the real runc reads it. Called by the `runc` in front of runc.

Changes, in the lab only: RLIMIT_MEMLOCK is dropped (the machine may lack CAP_SYS_RESOURCE); the engine is
mounted into images of the lab (`CLUSTER_LAB_ENGINE`), so that they stay small, and in a lab with real GPUs (gpu.json)
this machine's folders; a container that asked for GPUs has the simulated `nvidia-smi`, or the host's card; where the
host's memory has a limit, its /proc says so in the container too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

RUNC = "/usr/sbin/runc"
ENGINES = "/opt/cluster-lab"
GPU = "/usr/local/lib/cluster-lab/gpu.json"
INIT = "/.docker-init"
MEMORY = {"/run/cluster-lab/memory/meminfo": "meminfo", "/run/cluster-lab/memory/pressure": "pressure/memory"}


def read_only(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "destination": target, "options": ["rbind", "ro"]}


def fit_process(process: dict[str, Any]) -> None:
    limits = process.get("rlimits") or []
    process["rlimits"] = [limit for limit in limits if limit.get("type") != "RLIMIT_MEMLOCK"]


def fit_container(spec: dict[str, Any]) -> None:
    fit_process(spec["process"])
    words = dict(word.partition("=")[::2] for word in spec["process"].get("env") or [])
    engine = {"real": "engine", "no-ray": "engine-no-ray"}.get(words.get("CLUSTER_LAB_ENGINE", ""))
    if engine:
        spec["mounts"].insert(0, read_only(f"{ENGINES}/{engine}", "/opt/engine"))  # files may be mounted into it
    hooks = (spec.get("hooks") or {}).get("prestart") or []
    wants_gpu = any("nvidia" in hook.get("path", "") for hook in hooks)
    if os.path.exists(GPU):
        if engine:
            show_machine(spec)
        if wants_gpu:
            add_card(spec)
    elif wants_gpu:
        spec["mounts"].append(read_only("/usr/local/bin/nvidia-smi", "/usr/bin/nvidia-smi"))
        spec["mounts"].append(read_only("/run/cluster-lab", "/run/cluster-lab"))
    show_memory(spec)


def show_memory(spec: dict[str, Any]) -> None:
    """By hooks, since runc refuses mounts over /proc/pressure."""
    for source, target in MEMORY.items():
        if os.path.exists(source):
            words = ["mount", "-o", "bind,ro", source, f"{spec['root']['path']}/proc/{target}"]
            spec["hooks"] = spec.get("hooks") or {}
            spec["hooks"].setdefault("createContainer", []).append({"path": "/usr/bin/mount", "args": words})


def show_machine(spec: dict[str, Any]) -> None:
    with open(GPU) as file:
        spec["mounts"][:0] = [read_only(source, target) for source, target in json.load(file)]
    for mount in spec["mounts"]:  # /usr is read-only, so docker's init cannot get a place in it
        if mount["destination"] == "/sbin/docker-init":
            mount["destination"] = spec["process"]["args"][0] = INIT


def add_card(spec: dict[str, Any]) -> None:
    """The host's own card; the names of the others lead nowhere, as on the host."""
    rules = spec["linux"].setdefault("resources", {}).setdefault("devices", [])
    for name in sorted(os.listdir("/dev")):
        device = os.stat("/dev/" + name)
        if name.startswith("nvidia") and os.major(device.st_rdev) not in (0, 1):
            number = {"type": "c", "major": os.major(device.st_rdev), "minor": os.minor(device.st_rdev)}
            node = {"path": "/dev/" + name, "fileMode": 0o666, "uid": 0, "gid": 0, **number}
            spec["linux"].setdefault("devices", []).append(node)
            rules.append({"allow": True, "access": "rwm", **number})


def rewrite(path: str, fit: Any) -> None:
    with open(path) as file:
        value = json.load(file)
    fit(value)
    with open(path, "w") as file:
        json.dump(value, file)


def main(words: list[str]) -> None:
    if "--bundle" in words:
        rewrite(os.path.join(words[words.index("--bundle") + 1], "config.json"), fit_container)
    elif "exec" in words and "--process" in words:
        rewrite(words[words.index("--process") + 1], fit_process)
    os.execv(RUNC, [RUNC, *words])


if __name__ == "__main__":
    main(sys.argv[1:])
