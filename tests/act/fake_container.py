"""What the docker of the tests remembers: images, and containers with their words, labels and logs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.argv.question import Answer

NEVER = "0001-01-01T00:00:00Z"


@dataclass
class Image:
    """An image of a store: what `docker image inspect` says, and what the probe finds inside."""

    reference: str
    layers: tuple[str, ...] = ("sha256:aaaa",)
    architecture: str = "arm64"
    python: str = "3.12.3"
    versions: dict[str, str | None] = field(
        default_factory=lambda: {"vllm": "0.32.0", "ray": "2.56.0", "transformers": "5.6.0", "nccl": "2.27.3"}
    )
    architectures: tuple[str, ...] = ("ToyForCausalLM",)

    @property
    def id(self) -> str:
        return "sha256:" + "".join(layer.removeprefix("sha256:") for layer in self.layers).ljust(64, "0")[:64]

    def inspect(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "RepoTags": [self.reference],
            "RepoDigests": [],
            "Os": "linux",
            "Size": 20 << 30,
            "Architecture": self.architecture,
            "RootFS": {"Type": "layers", "Layers": list(self.layers)},
            "Config": {"Env": ["PATH=/usr/local/bin:/usr/bin"], "Entrypoint": ["vllm", "serve"], "WorkingDir": "/"},
        }


class Life:
    """What runs in a container. This one sleeps until it is stopped."""

    def stop(self) -> int:
        """SIGTERM: the exit code."""
        return 143

    def exec(self, argv: Sequence[str]) -> Answer:
        """`docker exec`."""
        return Answer(127, err=f'exec: "{argv[0]}": executable file not found in $PATH'.encode())


@dataclass
class Container:
    """One container, running or not. `log` is (second, text)."""

    id: str
    name: str
    image: str
    image_id: str
    path: str
    args: tuple[str, ...]
    options: dict[str, list[str]]
    pid: int
    created: float
    state: str = "created"
    exit_code: int = 0
    error: str = ""
    started: float | None = None
    finished: float | None = None
    starts: int = 0
    log: list[tuple[float, str]] = field(default_factory=list)
    life: Life | None = None

    @property
    def labels(self) -> dict[str, str]:
        return pairs(self.options.get("--label", []))

    @property
    def env(self) -> dict[str, str]:
        return pairs(self.options.get("--env", []))

    @property
    def mounts(self) -> list[dict[str, Any]]:
        return [mount_of(word) for word in self.options.get("--mount", [])]

    @property
    def running(self) -> bool:
        return self.state == "running"

    def carries(self, label: str) -> bool:
        """Whether it has a label, `key` or `key=value`."""
        return label in self.labels or label in self.options.get("--label", [])

    def source_of(self, path: str) -> str:
        """Where a path in the container lies on the host; empty when it is not mounted."""
        for mount in self.mounts:
            target = mount["Target"]
            if path == target or path.startswith(target + "/"):
                return str(mount["Source"]) + path[len(target) :]
        return ""

    def end(self, code: int, now: float) -> None:
        self.state, self.exit_code, self.finished, self.life = "exited", code, now, None

    def inspect(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Created": stamp(self.created),
            "Path": self.path,
            "Args": list(self.args),
            "State": {
                "Status": self.state,
                "Running": self.running,
                "OOMKilled": False,
                "Pid": self.pid * self.running,
                "ExitCode": self.exit_code,
                "Error": self.error,
                "StartedAt": stamp(self.started),
                "FinishedAt": stamp(self.finished),
            },
            "Image": self.image_id,
            "Name": f"/{self.name}",
            "RestartCount": 0,
            "HostConfig": {"Options": self.options, "Mounts": self.mounts},
            "Config": {
                "Image": self.image,
                "Labels": self.labels,
                "Entrypoint": [self.path],
                "Cmd": list(self.args),
                "Env": [f"{name}={value}" for name, value in self.env.items()],
            },
        }


def pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def mount_of(word: str) -> dict[str, Any]:
    """One `--mount` word, read as docker reads it: a line of CSV."""
    [fields] = csv.reader([word], strict=True)
    told = dict([*part.split("=", 1), "true"][:2] for part in fields)
    return {"Source": told["source"], "Target": told["target"], "ReadOnly": told.get("readonly") == "true"}


def stamp(second: float | None) -> str:
    """Docker's time of a second of the test."""
    if second is None:
        return NEVER
    hour, minute = int(second) // 3600, int(second) % 3600 // 60
    return f"2026-01-01T{hour:02}:{minute:02}:{second % 60:012.9f}Z"
