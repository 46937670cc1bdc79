"""A docker command that remembers: images, containers, their words, labels and logs. In docker's own formats.

The story in `docker_story.py` is played with this one and with a real daemon. What is inside a container is a `Life`,
which the machine makes when the container starts.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.argv.question import Answer

VALUED = (
    "--pull --name --restart --gpus --network --cap-add --ulimit --shm-size --stop-timeout --log-driver --log-opt "
    "--device --mount --label --env --entrypoint --user"
)
BARE = {"--detach", "--rm", "--interactive", "--init"}
SEE_HELP = "\nSee 'docker run --help'."


class Failed(Exception):
    """A docker command that ends with an error: what it says on stderr, its exit code, its output before."""

    def __init__(self, said: str, code: int = 1, out: str = "") -> None:
        super().__init__(said)
        self.answer = Answer(code, out.encode(), said.encode() + b"\n")


def read_run(words: list[str]) -> tuple[dict[str, list[str]], set[str], str, list[str]]:
    """(options with values, bare ones, image, arguments) of `docker run`; a flag that docker does not know fails."""
    options: dict[str, list[str]] = {}
    bare: set[str] = set()
    at = 0
    while words[at].startswith("-"):
        if words[at] in VALUED.split():
            options.setdefault(words[at], []).append(words[at + 1])
            at += 2
        elif words[at] in BARE:
            bare.add(words[at])
            at += 1
        else:
            raise Failed(f"unknown flag: {words[at]}{SEE_HELP}", 125)
    return options, bare, words[at], words[at + 1 :]


def read_flags(words: list[str], valued: set[str]) -> tuple[dict[str, str], list[str]]:
    """The flags that have a value, and all other words."""
    got, others, rest = {}, [], iter(words)
    for word in rest:
        if word in valued:
            got[word] = next(rest)
        else:
            others.append(word)
    return got, others


def filled(form: str, got: dict[str, Any]) -> str:

    def value(path: re.Match[str]) -> str:
        found: Any = got
        for name in path[1].split("."):
            found = found[name]
        return str(found).lower() if isinstance(found, bool) else str(found)

    return re.sub(r"{{\.([\w.]+)}}", value, form)


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
        config = {"Env": ["PATH=/usr/local/bin:/usr/bin"], "Entrypoint": ["vllm", "serve"], "WorkingDir": "/"}
        about = {"Id": self.id, "RepoTags": [self.reference], "RepoDigests": [], "Os": "linux", "Size": 20 << 30}
        layers = {"Type": "layers", "Layers": list(self.layers)}
        return about | {"Architecture": self.architecture, "RootFS": layers, "Config": config}


class Life:
    """What runs in a container. This one sleeps until it is stopped."""

    def stop(self) -> int:
        return 143

    def exec(self, argv: Sequence[str]) -> Answer:
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
        state = {"Status": self.state, "Running": self.running, "OOMKilled": False, "Pid": self.pid * self.running}
        state |= {"ExitCode": self.exit_code, "Error": self.error}
        state |= {"StartedAt": stamp(self.started), "FinishedAt": stamp(self.finished)}
        config = {"Image": self.image, "Labels": self.labels, "Entrypoint": [self.path], "Cmd": list(self.args)}
        config["Env"] = [f"{name}={value}" for name, value in self.env.items()]
        about = {"Id": self.id, "Name": f"/{self.name}", "Created": stamp(self.created), "RestartCount": 0}
        about |= {"Image": self.image_id, "Path": self.path, "Args": list(self.args), "State": state, "Config": config}
        return about | {"HostConfig": {"Options": self.options, "Mounts": self.mounts}}


def pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def mount_of(word: str) -> dict[str, Any]:
    """One `--mount` word, read as docker reads it: a line of CSV."""
    [fields] = csv.reader([word], strict=True)
    got = dict([*part.split("=", 1), "true"][:2] for part in fields)
    return {"Source": got["source"], "Target": got["target"], "ReadOnly": got.get("readonly") == "true"}


def stamp(second: float | None) -> str:
    """Docker's time of a second of the test."""
    if second is None:
        return NEVER
    hour, minute = int(second) // 3600, int(second) % 3600 // 60
    return f"2026-01-01T{hour:02}:{minute:02}:{second % 60:012.9f}Z"


@dataclass
class FakeDocker:
    """`exists(path)`: is a file or directory there; `devices`; `gpu`: `--gpus all` works; `born` makes what is inside.

    `alone` runs a `--rm` container to its end and gives its answer. `now` is the time. `trouble` makes every command
    fail with this exit code and these words, `broken` those of a verb.
    """

    exists: Callable[[str], bool]
    born: Callable[[Container], Life | int]
    alone: Callable[[Container, bytes], Answer]
    now: Callable[[], float]
    images: dict[str, Image] = field(default_factory=dict)
    registry: dict[str, Image] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    root: str = "/var/lib/docker"
    gpu: bool = True
    trouble: tuple[int, str] | None = None
    broken: dict[str, tuple[int, str]] = field(default_factory=dict)
    made: int = 0

    def answer(self, words: Sequence[str], stdin: bytes = b"") -> Answer:
        verb, rest = words[0], list(words[1:])
        try:
            self.refuse(verb)
            if verb == "image":
                verb, rest = f"image_{rest[0]}", rest[1:]
            said = getattr(self, f"do_{verb}")(rest, stdin)
        except Failed as failed:
            return failed.answer
        return said if isinstance(said, Answer) else Answer(0, said.encode())

    def refuse(self, verb: str) -> None:
        wrong = self.trouble or self.broken.get(verb)
        if wrong:
            raise Failed(wrong[1], wrong[0])

    # run, and what it needs

    def do_run(self, words: list[str], stdin: bytes) -> str | Answer:
        options, bare, image, args = read_run(words)
        [name] = options["--name"]
        for word in options.get("--mount", []):
            source = mount_of(word)["Source"]
            if not self.exists(source):
                raise Failed(
                    'docker: Error response from daemon: invalid mount config for type "bind": bind source path does'
                    f" not exist: {source}.{SEE_HELP}",
                    125,
                )
        if image not in self.images:
            assert options["--pull"] == ["never"], "a rank's image is never pulled by run"
            raise Failed(f"docker: Error response from daemon: No such image: {image}.{SEE_HELP}", 125)
        self.refuse_name(name, "docker: ", SEE_HELP, 125)
        self.made += 1
        [path], content = options["--entrypoint"], self.images[image].id
        container = Container(
            f"{self.made:064x}", name, image, content, path, tuple(args), options, 1000 + self.made, self.now()
        )
        self.containers[container.id] = container
        try:
            return self.begin(container, bare, stdin)
        finally:
            if "--rm" in bare:
                self.containers.pop(container.id, None)

    def begin(self, container: Container, bare: set[str], stdin: bytes) -> str | Answer:
        said = self.refuse_start(container)
        if said:
            code = 127 if "no such file or directory" in said else 125  # as the docker command tells them apart
            raise Failed(f"docker: Error response from daemon: {said}", code, container.id + "\n")
        if "--rm" in bare:
            container.state = "running"
            return self.alone(container, stdin)
        self.start(container)
        return container.id + "\n"

    def refuse_start(self, container: Container) -> str:
        """Why a container cannot be started; it stays, created."""
        missing = [device for device in container.options.get("--device", []) if device not in self.devices]
        said = ""
        if missing:
            said = f'error gathering device information while adding custom device "{missing[0]}"'
            said += ": no such file or directory"
        elif "--gpus" in container.options and not self.gpu:
            said = 'could not select device driver "" with capabilities: [[gpu]].'
        container.exit_code, container.error = (128 if said else 0), said
        return said

    def start(self, container: Container) -> None:
        container.state, container.started, container.finished = "running", self.now(), None
        container.starts += 1
        if container.path == "no-such-program":  # --init starts, and finds nothing to run
            container.log.append((self.now(), f"[FATAL tini (7)] exec {container.path} failed: No such file"))
            container.end(127, self.now())
            return
        life = self.born(container)
        if isinstance(life, int):
            container.end(life, self.now())
        else:
            container.life = life

    def refuse_name(self, name: str, before: str, after: str, code: int) -> None:
        taken = next((one for one in self.containers.values() if one.name == name), None)
        if taken:
            raise Failed(
                f'{before}Error response from daemon: Conflict. The container name "/{name}" is already in use by'
                f' container "{taken.id}". You have to remove (or rename) that container to be able to reuse that'
                f" name.{after}",
                code,
            )

    # the rest of a container's life

    def find(self, name: str) -> Container:
        for container in self.containers.values():
            if name in (container.name, container.id) or (len(name) >= 12 and container.id.startswith(name)):
                return container
        raise Failed(f"Error: No such container: {name}")

    def each(self, names: Sequence[str], do: Callable[[Container], None]) -> Answer:
        """Do the same to several; the names that worked on stdout, complaints on stderr."""
        done, said = [], []
        for name in names:
            try:
                do(self.find(name))
                done.append(name)
            except Failed as failed:
                said.append(failed.answer.error_text)
        return Answer(1 if said else 0, "".join(f"{name}\n" for name in done).encode(), "".join(said).encode())

    def do_stop(self, words: list[str], _: bytes) -> Answer:
        assert words[0] == "-t"
        return self.each(words[2:], self.stop)

    def stop(self, container: Container) -> None:
        if container.running and container.life:
            container.end(container.life.stop(), self.now())

    def do_start(self, words: list[str], _: bytes) -> Answer:
        def start(container: Container) -> None:
            said = "" if container.running else self.refuse_start(container)
            if said:
                raise Failed(f"Error response from daemon: {said}\nError: failed to start containers: {container.name}")
            if not container.running:
                self.start(container)

        return self.each(words, start)

    def do_rm(self, words: list[str], _: bytes) -> Answer:
        force = bool({"-f", "--force"} & set(words))

        def remove(container: Container) -> None:
            if container.running and not force:
                raise Failed(
                    f"Error response from daemon: You cannot remove a running container {container.id}. Stop the"
                    " container before attempting removal or force remove"
                )
            if container.running and container.life:
                container.life.stop()
            del self.containers[container.id]

        said = self.each([word for word in words if not word.startswith("-")], remove)
        gone = force and all("No such container" in line for line in said.error_text.splitlines())
        return Answer(0, said.out) if gone else said  # since Docker 23: with --force, gone is gone

    def do_rename(self, words: list[str], _: bytes) -> str:
        container = self.find(words[0])
        self.refuse_name(words[1], "", "", 1)
        container.name = words[1]
        return ""

    def do_exec(self, words: list[str], _: bytes) -> Answer:
        words = [word for word in words if word != "--interactive"]
        container = self.find(words[0])
        if not container.running or not container.life:
            raise Failed(f"Error response from daemon: container {container.id} is not running")
        return container.life.exec(words[1:])

    # questions

    def do_ps(self, words: list[str], _: bytes) -> str:
        assert {"--all", "--quiet", "--no-trunc"} <= set(words)
        wanted = [word.removeprefix("label=") for word in words if word.startswith("label=")]
        names = [word.removeprefix("name=") for word in words if word.startswith("name=")]
        found = [
            one
            for one in self.containers.values()
            if all(one.carries(label) for label in wanted) and all(re.search(name, f"/{one.name}") for name in names)
        ]
        return "".join(f"{one.id}\n" for one in reversed(found))

    def do_inspect(self, words: list[str], _: bytes) -> str | Answer:
        got, names = read_flags(words, {"--type", "-f", "--format"})
        form, found, said = got.get("-f", got.get("--format", "")), [], []
        for name in names:
            try:
                found.append(self.find(name).inspect())
            except Failed as failed:
                said.append(failed.answer.error_text)
        out = "".join(filled(form, one) + "\n" for one in found) if form else json.dumps(found) + "\n"
        return Answer(1 if said else 0, out.encode() or b"\n", "".join(said).encode())

    def do_logs(self, words: list[str], _: bytes) -> str:
        got, [*flags, name] = read_flags(words, {"--tail", "--since"})
        assert set(flags) <= {"--timestamps"}
        log = [(at, text) for at, text in self.find(name).log if stamp(at) >= got.get("--since", NEVER)]
        rows = log[max(0, len(log) - int(got["--tail"])) :] if "--tail" in got else log
        return "".join(f"{stamp(at)} {text}\n" if flags else f"{text}\n" for at, text in rows)

    def do_cp(self, words: list[str], _: bytes) -> Answer:
        name, _, path = words[-2].partition(":")
        if not any(one.name == name for one in self.containers.values()):
            raise Failed(f"Error: No such container:path: {words[-2]}")
        container, packed = self.find(name), io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            text = "\n".join(text for _, text in container.log if not text.startswith('{"cluster"')).encode()
            entry = tarfile.TarInfo(f"{path.rpartition('/')[2]}/worker-0af3-01000000-717.out")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        return Answer(0, packed.getvalue())

    def do_info(self, words: list[str], _: bytes) -> str:
        assert words == ["--format", "{{json .}}"]
        got = {"ServerVersion": "28.2.2", "Driver": "overlay2", "DockerRootDir": self.root, "Architecture": "aarch64"}
        return json.dumps(got | {"Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}})

    # images

    def do_image_inspect(self, words: list[str], _: bytes) -> str:
        [reference] = words
        if reference not in self.images:
            raise Failed(f"Error: No such image: {reference}", 1, "[]\n")
        return json.dumps([self.images[reference].inspect()])

    def build(self, tag: str, image: str, dockerfile: bytes) -> Answer:
        """`docker build`, unless the tag is there: the base and one layer more."""
        try:
            self.refuse("build")
        except Failed as failed:
            return failed.answer
        if tag not in self.images:
            base = self.images[image]
            layer = f"sha256:{hashlib.sha256(dockerfile).hexdigest()}"
            self.images[tag] = replace(base, reference=tag, layers=(*base.layers, layer))
        return Answer(0)

    def do_pull(self, words: list[str], _: bytes) -> str:
        [reference] = words
        if reference not in self.registry:
            raise Failed(f"Error response from daemon: manifest for {reference} not found: manifest unknown")
        self.images[reference] = self.registry[reference]
        return f"Status: Downloaded newer image for {reference}\n{reference}\n"
