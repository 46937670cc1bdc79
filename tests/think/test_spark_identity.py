import os
from pathlib import Path

from facts_tools import put, put_program, run_far, said

from cluster.spark import identity
from cluster.spark.identity import Identity

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
    found = identity.parse(run_far("look", {**asked, **given}, env))
    assert isinstance(found, Identity), found
    return found


def test_recorded_reply() -> None:
    expected = Identity(**RECORDED | {"groups": ("nvidia", "docker")})
    assert identity.parse(said({"identity": {"value": RECORDED}})) == expected


def test_a_wrong_shape_names_the_field() -> None:
    found = identity.parse(said({"identity": {"value": RECORDED | {"uid": "1000"}}}))
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
