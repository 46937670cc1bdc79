import copy
from typing import Any

import pytest
from facts_tools import said, sample

from cluster.argv.question import Answer
from cluster.spark import image
from cluster.spark.fact import Missing
from cluster.spark.image import Image

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


@pytest.mark.parametrize("words", ["Error: No such image: x:1", "Error response from daemon: No such image: x:1"])
def test_an_image_that_is_not_there_is_absent(words: str) -> None:
    assert image.parse("x:1", Answer(1, b"[]\n", words.encode())) == Missing("image x:1 is not on this host", "absent")


def test_no_permission_is_refused() -> None:
    found = image.parse("x:1", Answer(1, b"[]\n", sample("docker_permission_denied_new.txt").encode()))
    assert found.kind == "refused"


@pytest.mark.parametrize("told", [[], {}, [{}], [None], [OVERLAY2 | {"RootFS": {"Layers": None}}], 7])
def test_another_shape_is_missing(told: Any) -> None:
    assert isinstance(image.parse("x:1", said(told)), Missing)
