"""All containers of this host: `docker ps -aq`, then one `docker inspect` of them all.

Given {}. Prints {"containers": {"value": [what docker inspect prints, cut down; a time that never was is empty]}} or
{"failed": {"exit": number, "said": text}} in the words of the docker command. A container that vanishes in between is
left out.
"""

import json
import re
from errno import ENOENT

from cluster.far.prelude import Json, emit, finish, start

MOST = 8 << 20  # bytes of an answer of docker's; what prints more is no docker
GONE = re.compile(r"no such|removal of container|not found", re.I)
NEVER, NEVER_ENDED = "0001-01-01T00:00:00Z", ("created", "running", "paused", "restarting")
GPU = r'"gpu"|nvidia\.com/gpu'  # what `--gpus` asks for, and NVIDIA's devices by their CDI names


def docker(*words: str) -> str:
    """What a docker command prints; `inspect` may miss some. Raises ValueError(exit, text)."""
    code, out, err = finish(start("docker", *words), MOST)
    complaints = [line for line in err.splitlines() if line.strip()]
    if code and not (words[0] == "inspect" and all(map(GONE.search, complaints))):
        raise ValueError(code, err or out)
    return out


def row(container: dict[str, Json]) -> dict[str, Json]:
    """The part of one container that is read; its environment stays here."""
    state, config, host = container["State"], container["Config"], container.get("HostConfig") or {}
    return {
        "id": container["Id"],
        "name": container["Name"].lstrip("/"),
        "image": config["Image"],
        "state": state["Status"],
        "exit_code": None if state["Status"] in NEVER_ENDED else state["ExitCode"],
        "labels": config.get("Labels") or {},
        "started_at": state["StartedAt"].replace(NEVER, ""),
        "finished_at": state["FinishedAt"].replace(NEVER, ""),
        "pid": state.get("Pid") or 0,
        "gpu": host.get("Runtime") == "nvidia" or bool(re.search(GPU, json.dumps(host.get("DeviceRequests")))),
        "argv": [container["Path"], *(container.get("Args") or [])],
    }


def look() -> dict[str, Json]:
    try:
        ids = docker("ps", "--all", "--quiet", "--no-trunc").split()
        found = json.loads(docker("inspect", "--type", "container", *ids) or "[]") if ids else []
        return {"containers": {"value": [row(one) for one in found]}}
    except OSError as error:
        code, words = (127, "docker: not found") if error.errno == ENOENT else (126, f"docker: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        code, words = error.args if len(error.args) == 2 else (1, f"docker inspect printed something else: {error!r}")
    return {"failed": {"exit": code, "said": words[-2000:]}}


if __name__ == "__main__":
    emit(look())
