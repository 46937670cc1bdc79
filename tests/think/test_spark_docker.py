import json
from typing import Any

import pytest
from facts_tools import said, sample

from cluster.argv.question import Answer
from cluster.spark import docker
from cluster.spark.docker import Docker
from cluster.spark.fact import Missing

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


def test_a_stock_spark_lists_no_nvidia_runtime() -> None:
    assert docker.parse(said(INFO)) == Docker(
        "28.3.3", "overlay2", "/var/lib/docker", ("io.containerd.runc.v2", "runc"), "aarch64"
    )


def test_containerd_keeps_the_images_where_its_snapshotter_is_named() -> None:
    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    found = docker.parse(said(INFO | {"Driver": "overlayfs", "DriverStatus": status}))
    assert found.image_store == "containerd"
    graph_driver = docker.parse(said(INFO))
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
def test_no_permission_is_refused(answer: Answer) -> None:
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


def test_a_daemon_that_hangs_is_a_timeout() -> None:
    assert docker.parse(Answer(None)) == Missing("docker did not answer in time", "timeout")


@pytest.mark.parametrize("field", ["ServerVersion", "Driver", "DockerRootDir", "Architecture"])
def test_a_description_with_a_hole_is_missing(field: str) -> None:
    assert isinstance(docker.parse(said({key: value for key, value in INFO.items() if key != field})), Missing)
