"""All containers of this host: `docker ps -aq`, then one `docker inspect` of them all.

Given {}. Prints {"containers": {"value": [what docker inspect says, cut down]}} or {"failed": {"exit": number,
"said": text}} in the words of the docker command. A container that vanishes in between is left out.
"""

import json
import subprocess

MOST = 8 << 20  # bytes of an answer of docker's; what says more is no docker
GONE = ("no such", "removal of container", "not found")


def docker(*words):
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = subprocess.Popen(["docker", *words], **quiet)
    said = []
    for pipe in (program.stdout, program.stderr):
        said.append(pipe.read(MOST).decode("utf-8", "replace"))
        pipe.close()
    return program.wait(), *said


def inspect(ids):
    """The containers that are still there; raises ValueError with docker's words when it fails for another reason."""
    code, out, err = docker("inspect", "--type", "container", *ids)
    complaints = [line for line in err.splitlines() if line.strip()]
    if code and not all(any(word in line.lower() for word in GONE) for line in complaints):
        raise ValueError(code, err or out)
    return json.loads(out or "[]")


def row(container):
    """The part of one container that is read; its environment stays here."""
    state, config, host = container["State"], container["Config"], container.get("HostConfig") or {}
    return {
        "id": container["Id"],
        "name": container["Name"].lstrip("/"),
        "image": config["Image"],
        "state": state["Status"],
        "exit_code": state["ExitCode"],
        "labels": config.get("Labels") or {},
        "started_at": state["StartedAt"],
        "finished_at": state["FinishedAt"],
        "pid": state.get("Pid") or 0,
        "gpu": host.get("Runtime") == "nvidia" or any(map(asks_gpu, host.get("DeviceRequests") or [])),
        "argv": [container["Path"], *(container.get("Args") or [])],
    }


def asks_gpu(request):
    """Whether a device request is what `--gpus` makes, or one for NVIDIA's devices by their CDI names."""
    capabilities = [name for names in request.get("Capabilities") or [] for name in names]
    return "gpu" in capabilities or any("nvidia.com/gpu" in name for name in request.get("DeviceIDs") or [])


def main():
    try:
        code, out, err = docker("ps", "--all", "--quiet", "--no-trunc")
        if code:
            raise ValueError(code, err or out)
        ids = out.split()
        found = {"containers": {"value": [row(one) for one in (inspect(ids) if ids else [])]}}
    except FileNotFoundError:
        found = {"failed": {"exit": 127, "said": "docker: not found"}}
    except OSError as error:
        found = {"failed": {"exit": 126, "said": f"docker: {error.strerror}"}}
    except ValueError as error:
        code, said = error.args if len(error.args) == 2 else (1, str(error))
        found = {"failed": {"exit": code, "said": said[-2000:]}}
    except (KeyError, TypeError, AttributeError) as error:
        found = {"failed": {"exit": 1, "said": f"docker inspect printed something else: {error!r}"}}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
