"""Who a host is, its clock and its memory: what far/look prints, and how it is read."""

import os
import time
from pathlib import Path

import pytest
from facts_tools import put, put_program, run_far, said, sample

from cluster.argv.question import Answer
from cluster.spark import clock, memory
from cluster.spark.fact import Missing, read_section
from cluster.spark.identity import Identity
from cluster.spark.memory import Memory

RECORDED = {
    "product": "NVIDIA_DGX_Spark",
    "machine_id": "ab" * 16,
    "hostname": "spark1",
    "kernel": "6.17.0-1032-nvidia",
    "arch": "aarch64",
    "user": "nvidia",
    "uid": 1000,
    "gid": 1000,
    "groups": ["nvidia", "docker"],
    "path": "/usr/bin:/bin",
    "data_dir": "/home/nvidia/.local/share/cluster",
    "hf_home": "/home/nvidia/.cache/huggingface",
    "management_address": "192.168.1.11",
    "sudo": False,
}


def look(tmp_path: Path, env: dict[str, str], **given: str) -> Identity:
    asked = {"sections": ["identity"], "data_dir": "~/d", "hf_home": "/models/../hf", "root": f"{tmp_path}/"}
    found = read_section(run_far("look", {**asked, **given}, env), "identity", Identity)
    assert isinstance(found, Identity), found
    return found


def test_recorded_reply() -> None:
    expected = Identity(**RECORDED | {"groups": ("nvidia", "docker")})
    assert read_section(said({"identity": {"value": RECORDED}}), "identity", Identity) == expected
    found = read_section(said({"identity": {"value": RECORDED | {"uid": "1000"}}}), "identity", Identity)
    assert "uid" in found.why


def test_files_paths_and_address(tmp_path: Path) -> None:
    put(tmp_path, {"sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n", "etc/machine-id": "0123\n"})
    env = {"HOME": "/home/me", "PATH": "/bin:/usr/bin", "SSH_CONNECTION": "10.0.0.9 50000 fd00::11 22"}
    found = look(tmp_path, env)
    assert (found.product, found.machine_id) == ("NVIDIA_DGX_Spark", "0123")
    assert (found.data_dir, found.hf_home) == ("/home/me/d", "/hf")
    assert found.management_address == "fd00::11"
    assert (found.uid, found.path, found.arch) == (os.getuid(), "/bin:/usr/bin", os.uname().machine)
    assert found.named_addresses == ()


def test_device_tree_names_the_product_where_there_is_no_dmi(tmp_path: Path) -> None:
    put(tmp_path, {"proc/device-tree/model": "Some Board\0"})
    assert look(tmp_path, {"HOME": "/h", "PATH": "/bin"}).product == "Some Board"


def test_an_account_without_sudo(tmp_path: Path) -> None:
    """Root needs no sudo; anybody else has it when `sudo -n true` ends well."""
    asked = look(tmp_path, put_program(tmp_path / "bin", "sudo", "#!/bin/sh\nexit 1\n"))
    assert asked.sudo is (os.getuid() == 0)


def test_what_the_hosts_file_calls_this_host(tmp_path: Path) -> None:
    name = os.uname().nodename
    text = f"127.0.0.1 localhost\n127.0.1.1 {name} # as Ubuntu does\n192.168.1.9 other {name}\n# 10.0.0.1 {name}\n"
    put(tmp_path, {"etc/hosts": text})
    assert look(tmp_path, {"HOME": "/h", "PATH": "/bin"}).named_addresses == ("127.0.1.1", "192.168.1.9")


@pytest.mark.parametrize(
    ("asked", "offset_s", "uncertainty_s"),
    [
        ((1000.0, 1000.4), 0.0, 0.2),
        ((700.0, 700.4), 300.0, 0.2),
        ((1060.0, 1060.4), -60.0, 0.2),
        ((1000.2, 1000.2), 0.0, 0.0),
    ],
)
def test_offset_from_the_middle_of_the_round_trip(
    asked: tuple[float, float], offset_s: float, uncertainty_s: float
) -> None:
    found = clock.parse(said({"clock": {"value": {"time_unix_s": 1000.2, "synchronised": True}}}), asked)
    assert (found.offset_s, found.uncertainty_s) == (pytest.approx(offset_s), pytest.approx(uncertainty_s))
    assert found.synchronised is True


def test_this_machines_clock_is_this_machines() -> None:
    began = time.time()
    found = clock.parse(run_far("look", {"sections": ["clock"]}), (began, time.time()))
    assert abs(found.offset_s) <= found.uncertainty_s + 0.01
    assert isinstance(clock.parse(said({"clock": {"value": {"time_unix_s": "noon"}}}), (0.0, 1.0)), Missing)


@pytest.mark.parametrize(
    ("text", "kib"),
    [
        (sample("meminfo_page_cache_full.txt"), {"total": 127607296, "available": 118489088, "free": 38535168}),
        (sample("meminfo_really_full.txt"), {"total": 127607296, "available": 40894464, "free": 5242880}),
        (sample("proc_meminfo_cma_bug.txt"), {"free": 92274688, "cma_total": 0, "cma_free": 940604}),
        ("MemTotal: 100 kB\nHugePages_Total: 4\nHugetlb: 8192 kB\n", {"total": 100, "huge_pages": 8192}),
        ("MemTotal: 10 kB\nDirectMap4k: 5 kB\n", {"total": 10}),
    ],
    ids=["page cache is available though not free", "held", "the kernel's CMA bug", "huge pages", "others are None"],
)
def test_meminfo(text: str, kib: dict[str, int]) -> None:
    assert memory.parse_meminfo(text) == Memory(**{name: number * 1024 for name, number in kib.items()})


def test_the_kernels_cma_bug() -> None:
    counts = [(0, 940604), (0, 0), (64, 60), (None, None), (0, None)]
    assert [Memory(cma_total=total, cma_free=free).has_cma_bug for total, free in counts] == [True] + [False] * 4


def test_section_is_read() -> None:
    assert memory.parse(said({"memory": {"value": "MemFree: 1 kB\n"}})) == Memory(free=1024)
    assert isinstance(memory.parse_meminfo("hello\n"), Missing)


def test_this_machines_memory_and_a_deadline() -> None:
    found = memory.parse(run_far("look", {"sections": ["memory"]}))
    assert found.total
    assert found.available
    assert found.total > found.available > 1 << 20
    assert memory.parse(Answer(None)) == Missing("python3 did not answer in time", "timeout")
