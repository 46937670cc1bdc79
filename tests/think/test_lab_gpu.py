"""A lab with real GPUs, as far as it can be seen without one: device files made of /dev/null stand for cards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.errors import UsageError
from cluster.lab import gpu
from cluster.lab.images import REAL, dockerfiles
from cluster.lab.place import LabRecord, Place, place_of, write_record


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def fill(dev: Path, count: int) -> None:
    """Files, not devices: making those takes root. What is asked of a device is its number, 0 here."""
    for name in (*(f"nvidia{number}" for number in range(count)), "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (dev / name).touch()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 11])
def test_each_host_has_one_card_and_the_others_are_covered(dev: Path, count: int) -> None:
    """Only one and two real cards were tried."""
    fill(dev, count)
    assert [path.name for path in gpu.cards(dev)] == [f"nvidia{number}" for number in range(count)]
    assert gpu.demand_cards(None, dev) == count
    for host in range(1, count + 1):
        nodes = {name: numbers for name, *numbers in gpu.nodes(host, dev)}
        assert [name for name, numbers in nodes.items() if numbers == [0, 0]] == [
            f"nvidia{host - 1}",
            "nvidiactl",
            "nvidia-uvm",
        ]
        assert sum(numbers == [*gpu.NULL] for numbers in nodes.values()) == count - 1


def test_without_a_card_or_with_too_few_there_is_one_error(dev: Path) -> None:
    with pytest.raises(UsageError) as none:
        gpu.demand_cards(None, dev)
    fill(dev, 2)
    with pytest.raises(UsageError) as few:
        gpu.demand_cards(3, dev)
    assert (none.value.code, few.value.code) == ("lab-unsupported", "lab-size")
    assert gpu.demand_cards(1, dev) == 1


def test_engine_is_not_made_here(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="engine-gpu does not exist"):
        gpu.engine(Place(tmp_path, tmp_path / "cache", gpu=True))


def test_folders_outside_of_usr_are_shown_by_their_top(tmp_path: Path) -> None:
    """Where a compiler is a link, both ends are shown; what does not exist is left out."""
    real, cache = tmp_path / "gcc/bin/cc", tmp_path / "cache/engine-gpu/bin/python3"
    for path in (real, cache):
        path.parent.mkdir(parents=True)
        path.touch()
    top = str(Path(*tmp_path.parts[:3]))
    assert gpu.top_folders([str(real), "/usr/bin/env", "/opt/nothing/lib", "", "cc1"], tmp_path / "cache") == [top]
    assert gpu.top_folders([str(cache), "/usr", "/bin/sh"], tmp_path / "cache") == []


def test_variables_of_the_machine_go_into_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of its CUDA (NVLink multicast off), and not which card: each host has one."""
    for name in [name for name in os.environ if gpu.CARRIED.fullmatch(name)]:
        monkeypatch.delenv(name)
    given = {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "MY_KEY": "x",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/opt/gcc/bin:/usr/bin")
    assert gpu.environment() == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "PATH": "/opt/engine/bin:/opt/gcc/bin:/usr/bin",
    }
    [text] = dockerfiles(Place(tmp_path, tmp_path, gpu=True)).values()
    assert 'NCCL_NVLS_ENABLE="0"' in text
    assert 'CLUSTER_LAB_ENGINE="real"' in text
    assert len(dockerfiles(Place(tmp_path, tmp_path))) == 3, "the lab on CPU has its three images"
    assert REAL in dockerfiles(Place(tmp_path, tmp_path))


def test_lab_remembers_that_it_has_gpus(tmp_path: Path) -> None:
    write_record(place_of(str(tmp_path)), LabRecord(0, 1, gpu=True))
    assert place_of(str(tmp_path)).gpu
