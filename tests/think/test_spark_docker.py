"""Docker's daemon and its images, from what docker prints."""

import copy
import json
from typing import Any

import pytest
from facts_tools import said, sample

from cluster.argv.question import Answer
from cluster.spark import docker, image
from cluster.spark.docker import Docker
from cluster.spark.fact import Missing
from cluster.spark.image import Image

INFO = {
    "ID": "x",
    "Containers": 2,
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "ServerVersion": "28.3.3",
    "DockerRootDir": "/var/lib/docker",
    "Architecture": "aarch64",
    "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
    "ServerErrors": None,
}
OLD_REFUSAL = (
    "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": dial unix /var/run/docker.sock: connect: permission denied'
)
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
NO_DAEMON_29 = (
    "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct and if the "
    "daemon is running: dial unix /var/run/docker.sock: connect: no such file or directory"
)
CLIENT_ONLY = {"ClientInfo": {"Version": "28.2.2"}, "ServerVersion": ""}


def test_containerd_keeps_the_images_where_its_snapshotter_is_named() -> None:
    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    found = docker.parse(said(INFO | {"Driver": "overlayfs", "DriverStatus": status}))
    assert found.image_store == "containerd"
    graph_driver = docker.parse(said(INFO))
    assert graph_driver == Docker("28.3.3", "overlay2", "/var/lib/docker")
    assert graph_driver.image_store == "overlay2"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(1, b"", sample("docker_permission_denied_new.txt").encode()),
        Answer(1, b"", OLD_REFUSAL.encode()),
        Answer(1, json.dumps(CLIENT_ONLY | {"ServerErrors": [OLD_REFUSAL]}).encode(), b"errors pretty printing info"),
        Answer(0, json.dumps(CLIENT_ONLY | {"ServerErrors": [OLD_REFUSAL]}).encode()),
        Answer(126),
    ],
)
def test_a_daemon_without_permission_is_refused(answer: Answer) -> None:
    found = docker.parse(answer)
    assert found.kind == "refused"
    if answer.exit != 126:
        assert "permission denied while trying to connect" in found.why


@pytest.mark.parametrize("words", [NO_DAEMON, NO_DAEMON_29, "error during connect: Get ..."])
def test_no_daemon_is_absent(words: str) -> None:
    reply: dict[str, Any] = CLIENT_ONLY | {"ServerErrors": [words]}
    for answer in (Answer(1, b"", words.encode()), Answer(1, json.dumps(reply).encode(), b"")):
        found = docker.parse(answer)
        assert (found.kind, found.why) == ("absent", f"Docker's daemon does not answer: {words}")


def test_no_docker_command_is_absent() -> None:
    found = docker.parse(Answer(127, b"", sample("docker_not_found_noninteractive.txt").encode()))
    assert found == Missing("docker: not found on the PATH of a non-login shell", "absent")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(
            0,
            b'{"host":{"arch":"arm64"},"store":{"graphDriverName":"overlay"},"version":{"Version":"4.9.3"}}',
            b"Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.",
        ),
        Answer(125, b"", b"Emulate Docker CLI using podman.\nError: template: info:1:2: can't evaluate field"),
    ],
)
def test_podman_is_not_docker(answer: Answer) -> None:
    assert docker.parse(answer) == Missing(docker.PODMAN, "absent")


def test_a_daemon_that_hangs_and_a_description_with_a_hole() -> None:
    assert docker.parse(Answer(None)) == Missing("docker did not answer in time", "timeout")
    for field in ("ServerVersion", "Driver", "DockerRootDir"):
        assert isinstance(docker.parse(said({key: value for key, value in INFO.items() if key != field})), Missing)


REFERENCE = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5:20260415"
CONFIG: dict[str, Any] = {"Env": ["PATH=/usr/bin", "A=1"], "Entrypoint": ["vllm"], "Labels": {"a": "b"}}
OVERLAY2: dict[str, Any] = {
    "Id": "sha256:" + "1" * 64,
    "RepoTags": [REFERENCE],
    "RepoDigests": [],
    "Parent": "",
    "Size": 20_000_000_000,
    "Created": "2026-04-15T00:00:00Z",
    "DockerVersion": "28.3.3",
    "Architecture": "arm64",
    "Variant": "v8",
    "Os": "linux",
    "GraphDriver": {"Name": "overlay2"},
    "Metadata": {"LastTagTime": "2026-04-16T00:00:00Z"},
    "RootFS": {"Type": "layers", "Layers": ["sha256:" + "a" * 64, "sha256:" + "b" * 64]},
    "Config": CONFIG | {"Hostname": "", "User": "", "Cmd": None, "WorkingDir": "", "OnBuild": None, "Volumes": None},
}
CONTAINERD: dict[str, Any] = {
    "Id": "sha256:" + "2" * 64,
    "RepoTags": [REFERENCE],
    "RepoDigests": [f"x@sha256:{'2' * 64}"],
    "Size": 9_000_000_000,
    "Architecture": "arm64",
    "Os": "linux",
    "Descriptor": {"digest": "sha256:" + "2" * 64},
    "RootFS": {"Type": "layers", "Layers": ["sha256:" + "a" * 64, "sha256:" + "b" * 64]},
    "Config": CONFIG | {"WorkingDir": "/"},
}


def test_both_image_stores_agree_on_the_content() -> None:
    old, new = (image.parse(REFERENCE, said([told])) for told in (OVERLAY2, CONTAINERD))
    assert old.content_id == new.content_id
    assert old == Image(REFERENCE, "sha256:" + "1" * 64, old.content_id, "arm64", 20_000_000_000)
    assert len(old.content_id) == 64
    assert old.id != new.id


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["RootFS"]["Layers"].append("sha256:" + "c" * 64),
        lambda told: told["RootFS"]["Layers"].reverse(),
        lambda told: told["Config"]["Env"].append("B=2"),
        lambda told: told["Config"].update(Entrypoint=["sh"]),
        lambda told: told["Config"].update(User="1000"),
        lambda told: told.update(Architecture="amd64"),
    ],
)
def test_what_changes_what_runs_changes_the_id(change: Any) -> None:
    changed = copy.deepcopy(OVERLAY2)
    change(changed)
    assert image.content_id(changed) != image.content_id(OVERLAY2)


def test_what_does_not_run_does_not() -> None:
    changed = copy.deepcopy(OVERLAY2)
    changed["Config"]["Labels"] = {"built": "later"}
    changed["Metadata"] = {}
    assert image.content_id(changed) == image.content_id(OVERLAY2)


def test_an_image_that_is_not_there_is_absent_and_one_not_allowed_refused() -> None:
    for words in (b"Error: No such image: x:1", b"Error response from daemon: No such image: x:1"):
        assert image.parse("x:1", Answer(1, b"[]\n", words)) == Missing("image x:1 is not on this host", "absent")
    found = image.parse("x:1", Answer(1, b"[]\n", sample("docker_permission_denied_new.txt").encode()))
    assert found.kind == "refused"


def test_another_shape_is_missing() -> None:
    for told in ([], {}, [{}], [None], [OVERLAY2 | {"RootFS": {"Layers": None}}], 7):
        assert isinstance(image.parse("x:1", said(told)), Missing)
