"""Words for the docker command line, and for the hub's tool in a container of the image. Nothing runs here."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.argv.far import source
from cluster.argv.question import Answer, Question

STOP_GRACE_S = 20  # rank.py ends its engine within 10 s; docker kills after this
LOG_MAX_SIZE = "50m"
LOG_MAX_FILES = 3
TRY_LABEL = "cluster.try=1"
REASONS = ("docker: ", "Error response from daemon: ", "Error: ")
"""Beginnings of the line in which docker or the hub's tool says what went wrong."""
HINTS = ("See 'docker", "Run 'docker", "Hint: ")
"""Beginnings of lines that they add after it."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

END_SCRIPT = """\
ids=$(docker ps --all --quiet --no-trunc --filter "label=$1") || exit 1
[ -z "$ids" ] && exit 0
docker stop -t "$2" $ids
docker rm --force --volumes $ids
[ -z "$(docker ps --all --quiet --no-trunc --filter "label=$1")" ]
"""
STARTED_SCRIPT = """\
said=$(docker inspect --type container -f '{{.State.Status}} {{json .Config.Labels}}' "$1") || exit 1
case $said in created*) exit 1 ;; *"\\"$2\\":\\"$3\\""*) exit 0 ;; *) exit 1 ;; esac
"""
STOPPED_SCRIPT = """\
test "$(docker inspect --type container -f '{{.State.Running}}' "$1")" = false
"""
BUILD_SCRIPT = """\
docker image inspect "$1" >/dev/null 2>&1 && exit 0
exec docker build --tag "$1" --build-arg "IMAGE=$2" "$3"
"""
"""What takes more than one docker command, for `sh -c`; the words that follow are $1, $2, …, never part of the text."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A directory or file of the host seen in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class RankContainer:
    """How a rank's container is started: `words` follow `entrypoint`; `env` and `labels` contain no secret."""

    name: str
    image: str
    entrypoint: str
    words: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    shm_bytes: int = 16 << 30
    infiniband: bool = False
    unconfined: bool = False


def docker_run(container: RankContainer) -> Question:
    """Create and start a rank's container, detached; prints its id. The image is never pulled here. `/dev/infiniband`
    is passed only when asked for: a device that is not there is an error of docker."""
    words = ["docker", "run", "--detach", "--pull", "never", "--name", container.name]
    words += ["--restart", "no", "--gpus", "all", "--network", "host", "--init"]
    words += ["--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1", "--shm-size", str(container.shm_bytes)]
    words += ["--stop-timeout", str(STOP_GRACE_S), "--log-driver", "json-file"]
    words += ["--log-opt", f"max-size={LOG_MAX_SIZE}", "--log-opt", f"max-file={LOG_MAX_FILES}"]
    if container.infiniband:
        words += ["--device", "/dev/infiniband"]
    if container.unconfined:
        words += ["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
    for bind in container.binds:
        words += ["--mount", mount_word(bind)]
    for flag, values in (("--label", container.labels), ("--env", container.env)):
        words += [word for name, value in sorted(values.items()) for word in (flag, f"{name}={value}")]
    words += ["--entrypoint", container.entrypoint, container.image, *container.words]
    return Question(tuple(words), timeout_s=120, changes=True)


def mount_word(bind: Bind) -> str:
    """The value of `--mount`, which Docker reads as one line of CSV."""
    row = io.StringIO()
    fields = ["type=bind", f"source={bind.source}", f"target={bind.target}"]
    csv.writer(row, lineterminator="\n").writerow(fields + ["readonly"] * bind.read_only)
    return row.getvalue().removesuffix("\n")


def docker_try(name: str, image: str, program: str, words: Sequence[str] = (), *, timeout_s: float = 30) -> Question:
    """Run `far/<program>.py` once in a fresh container of `image` and remove it: a probe, labelled as cluster's. The
    program ends itself before `timeout_s`, so that no container outlives its question."""
    argv = ["docker", "run", "--rm", "--interactive", "--init", "--pull", "never", "--name", name, "--label", TRY_LABEL]
    argv += ["--gpus", "all", "--network", "none", "--entrypoint", "python3", image, "-", *words]
    return Question(tuple(argv), stdin=source(program), timeout_s=timeout_s, changes=True)


def docker_stop(*names: str, grace_s: int = STOP_GRACE_S) -> Question:
    return Question(("docker", "stop", "-t", str(grace_s), *names), timeout_s=grace_s + 20, changes=True)


def docker_start(*names: str) -> Question:
    return Question(("docker", "start", *names), timeout_s=120, changes=True)


def docker_rm(*names: str, force: bool = False) -> Question:
    """Remove containers and their anonymous volumes; `force` ends them first."""
    forced = ("--force",) if force else ()
    return Question(("docker", "rm", *forced, "--volumes", *names), timeout_s=60, changes=True)


def docker_end(label: str, *, grace_s: int = STOP_GRACE_S) -> Question:
    """Stop and remove all containers with a label and no others, whatever their names; exit 0 when none is left."""
    words = ("sh", "-c", END_SCRIPT, "-", label, str(grace_s))
    return Question(words, timeout_s=grace_s + 60, changes=True)


def docker_has_started(name: str, label: str) -> Question:
    """Exit 0 when the container of that name has the label (`key=value`) and was started."""
    return Question(("sh", "-c", STARTED_SCRIPT, "-", name, *label.split("=", 1)))


def docker_has_stopped(name: str) -> Question:
    """Exit 0 when the container of that name is there and does not run."""
    return Question(("sh", "-c", STOPPED_SCRIPT, "-", name))


def is_gone(question: Question, answer: Answer) -> bool:
    """Whether `docker stop` or `docker rm` failed only because the container is gone (an error before Docker 23)."""
    said = [line for line in answer.error_text.splitlines() if line.strip()]
    asked = question.argv[:2] in (("docker", "stop"), ("docker", "rm"))
    return asked and bool(said) and all("No such container" in line or "already in progress" in line for line in said)


def why_failed(answer: Answer) -> str:
    """The line of a failed command that says why: docker's first, with a hint after it; the last of others."""
    if answer.exit is None:
        return "it did not end in time"
    lines = [COLOUR.sub("", line).strip() for text in (answer.text, answer.error_text) for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(HINTS)]
    first = next((line for line in said if line.startswith(REASONS)), "")
    return first or (said[-1] if said else f"exit {answer.exit}")


def docker_inspect(*names: str) -> Question:
    """Everything docker knows of containers, as a JSON array; stopped ones are included."""
    return Question(("docker", "inspect", "--type", "container", *names), limit=4 << 20)


def docker_logs(name: str, *, since: str = "", tail: int | None = None, follow: bool = False) -> Question:
    """A container's output with docker's own time before each line (stdout and stderr stay apart).

    `since` is a time as docker prints it or seconds since the epoch. With `follow` the argv is for `Host.start`.
    """
    words = ["--since", since] if since else []
    words += ["--tail", str(tail)] if tail is not None else []
    words += ["--follow"] if follow else []
    return Question(("docker", "logs", "--timestamps", *words, name), timeout_s=20, limit=8 << 20)


def attend(name: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Words for `Host.start` that run others in a container, with our stdin: they must end when that ends."""
    return ("docker", "exec", "--interactive", name, *argv)


def docker_exec(name: str, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 10) -> Question:
    """Run words in a container. The deadline is enforced in there: ending `docker exec` would leave it running."""
    inside = ("timeout", "-k", "2", f"{timeout_s:g}", *argv)
    return Question(attend(name, inside), stdin=stdin, timeout_s=timeout_s + 5)


def docker_pull(image: str) -> Question:
    """Fetch an image. Its argv also serves `Host.start`, which shows docker's progress lines."""
    return Question(("docker", "pull", image), timeout_s=4 * 3600, changes=True)


def docker_build(tag: str, image: str, folder: str) -> Question:
    """Build the Dockerfile in a folder of the host on top of `image`, unless the host has `tag` already."""
    return Question(("sh", "-c", BUILD_SCRIPT, "-", tag, image, folder), timeout_s=3600, changes=True)


def docker_image_inspect(image: str) -> Question:
    """Everything docker knows of an image, as a JSON array of one; exit 1 when it is not there."""
    return Question(("docker", "image", "inspect", image))


WEIGHT_ENDINGS = (".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".bin", ".safetensors")
DOWNLOAD = "cluster-download"
"""Name of the container that downloads; on a host there is one at a time."""


@dataclass(frozen=True, slots=True)
class Download:
    """A model for one host's cache, as `user` (`uid:gid`). `token_file` is a private file on the host. `dummy`:
    everything but the weights."""

    model: str
    revision: str
    hf_home: str
    user: str
    token_file: str = ""
    dummy: bool = False


def hub_download(image: str, wanted: Download) -> Question:
    """`hf download MODEL --revision REVISION`. The tool reads the token's file (HF_TOKEN_PATH), so the token is in no
    command line and no environment. The oldest of the tools heed only the last `--exclude`."""
    words = ["docker", "run", "--rm", "--init", "--pull", "never", "--name", DOWNLOAD, "--label", TRY_LABEL]
    words += ["--network", "host", "--user", wanted.user, "--env", "HOME=/tmp", "--env", "HF_HOME=/hf"]
    cache = mount_word(Bind(wanted.hf_home, "/hf", read_only=False))
    words += ["--env", "HF_HUB_DISABLE_TELEMETRY=1", "--mount", cache]
    if wanted.token_file:
        words += ["--env", "HF_TOKEN_PATH=/hub-token", "--mount", mount_word(Bind(wanted.token_file, "/hub-token"))]
    words += ["--entrypoint", "hf", image, "download", wanted.model, "--revision", wanted.revision]
    for ending in WEIGHT_ENDINGS if wanted.dummy else ():
        words += ["--exclude", f"*{ending}"]
    return Question(tuple(words), timeout_s=12 * 3600, changes=True)
