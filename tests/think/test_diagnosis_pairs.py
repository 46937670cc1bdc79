"""Causes that look alike in one text and are told apart by a second one, in whatever order the two are given."""

from __future__ import annotations

import pytest
from diagnosis_tools import Sample, found, sample, told

FREE_HELD = "MemTotal: 127607296 kB\nMemFree: 1242880 kB\nMemAvailable: 2894464 kB\n"
POWER = "utilization.gpu [%], power.draw [W], clocks.current.sm [MHz]\n"
WORKS, IDLES = POWER + "96 %, 51.20 W, 2411 MHz\n", POWER + "0 %, 4.10 W, 208 MHz\n"
STORE = " Storage Driver: {}\n"

PAIRS = {
    "page cache": ("vllm_free_memory_check", "meminfo_page_cache_full", "fault free-memory-page-cache"),
    "real holder": ("vllm_free_memory_check", "meminfo_really_full", "fault free-memory-held"),
    "kernel by name": ("nccl_reg_mr_enomem_kernel7", "7.0.0-1019-nvidia\n", "fault rdma-enomem-kernel"),
    "kernel by uname -a": (
        "nccl_reg_mr_enomem_kernel7",
        "Linux spark1 7.0.0-1019-nvidia #19 SMP aarch64\n",
        "fault rdma-enomem-kernel",
    ),
    "kernel by CMA": ("nccl_reg_mr_enomem_kernel7", "proc_meminfo_cma_bug", "fault rdma-enomem-kernel"),
    "memlock": (
        "nccl_reg_mr_enomem_kernel7",
        "max locked memory           (kbytes, -l) 8192\n",
        "fault rdma-enomem-memlock",
    ),
    "memory full": ("nccl_reg_mr_enomem_kernel7", FREE_HELD, "fault rdma-enomem-full"),
    "another kernel": ("nccl_reg_mr_enomem_kernel7", "6.17.0-1032-nvidia\n", "fault rdma-enomem-other-kernel"),
    "hang": ("vllm_shm_broadcast_wait", IDLES, "fault ranks-hang"),
    "compile": ("vllm_shm_broadcast_wait", WORKS, ""),
    "image store": ("docker_image_mismatch_ids", STORE.format("overlay2") * 2, "fault image-differs"),
    "wedge": ("metrics_frozen_twice", "nvidia_smi_wedged_spin", "fault gpu-wedged"),
    "power cap": ("metrics_frozen_twice", "nvidia_smi_pd_capped", "fault gpu-power-capped"),
    "long prefill": ("metrics_frozen_twice", WORKS, ""),
    "idle and frozen": ("metrics_frozen_twice", IDLES, "fault server-wedged"),
    "tokens exceed and wait": ("vllm_tp_exceeds_gpus", "ray_pg_waiting", "fault ray-node-ip"),
    "tokens exceed and one node": ("vllm_tp_exceeds_gpus", "ray_status_one_node", "fault ray-one-node"),
    "tokens exceed and two nodes": ("vllm_tp_exceeds_gpus", "ray_status_two_nodes_idle_section", ""),
}


def text_of(name: str) -> str:
    return name if "\n" in name else sample(name).text


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize(("first", "second", "right"), PAIRS.values(), ids=PAIRS)
def test_pair(first: str, second: str, right: str, turned: bool) -> None:
    texts = [text_of(first), text_of(second)]
    root = told(*(reversed(texts) if turned else texts)).root
    assert (f"{root.level} {root.id}" if root else "") == right


def test_the_settled_finding_stands_in_its_file() -> None:
    diagnosis = told(sample("vllm_free_memory_check"), sample("meminfo_page_cache_full"))
    assert [one.id for one in diagnosis.files[0].findings] == ["free-memory-page-cache"]
    assert [one.id for one in diagnosis.secondary] == ["page-cache"]
    assert "113 GiB" in diagnosis.files[0].findings[0].finding.what


def test_wanted_memory_decides_where_it_is_told() -> None:
    line = "Free memory on device cuda:0 (36.7/121.6 GiB) on startup is less than desired GPU memory utilization "
    line += "({}, {} GiB)."
    half = "MemTotal: 127607296 kB\nMemFree: 1242880 kB\nMemAvailable: 66894464 kB\n"
    assert "fault free-memory-page-cache" in found(line.format("0.45", "54.7"), half)
    assert "fault free-memory-held" in found(line.format("0.85", "103.4"), half)


@pytest.mark.parametrize(
    ("stores", "right"),
    [
        (("overlay2", "overlayfs"), "warning image-stores-differ"),
        (("overlay2", "overlay2"), "fault image-really-differs"),
    ],
)
def test_image_or_store(stores: tuple[str, str], right: str) -> None:
    texts = [sample("docker_image_mismatch_ids").text, *(STORE.format(store) for store in stores)]
    assert found(*texts)[0] == right


def test_env_of_the_head_is_harmless_where_its_ports_are_up() -> None:
    overwrite = sample("vllm_ray_env_overwrite")
    assert found(overwrite, sample("ibdev2netdev_two_cables_up")) == []
    assert found(overwrite, sample("ibdev2netdev_left_port_up")) == ["fault env-overwritten"]


def test_gid_index_that_would_be_right() -> None:
    diagnosis = told(sample("nccl_modify_qp_err61_gid_hole"), sample("gid_table_drifted"))
    assert diagnosis.root
    assert "at 4" in diagnosis.root.finding.what
    assert [one.id for one in diagnosis.secondary] == ["gid-moved"]


def test_mtu_of_both_ends() -> None:
    head, worker = sample("ip_link_mtu_mismatch_head"), sample("ip_link_mtu_mismatch_worker")
    assert found(head, worker) == ["fault mtu-differs"]
    assert found(head, head) == []
    assert found(worker, worker) == ["warning mtu-1500"]


def test_ports_of_both_hosts() -> None:
    left, right = sample("ibdev2netdev_left_port_up"), sample("ibdev2netdev_right_port_up")
    assert found(left, right) == ["warning ports-crossed"]
    assert found(right, sample("ibdev2netdev_cross_port_worker")) == []
    assert found(left, sample("ibdev2netdev_two_cables_up")) == []


ADDRESS = "4: enp1s0f1np1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default\n    inet {} x\n"


@pytest.mark.parametrize(
    ("here", "there", "right"),
    [
        ("192.168.100.11/24", "192.168.100.12/24", []),
        ("192.168.100.11/24", "192.168.100.11/24", []),  # the same text twice: one host
        ("192.168.100.11/24", "192.168.200.12/24", ["fault no-common-subnet"]),
        ("192.168.100.11/24", "192.168.100.11/25", ["fault address-twice"]),
    ],
)
def test_addresses_of_both_hosts(here: str, there: str, right: list[str]) -> None:
    assert found(ADDRESS.format(here), ADDRESS.format(there))[: len(right) or None] == right


def test_two_cables_need_four_addresses() -> None:
    twin = "6: enP2p1s0f1np1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default\n"
    assert found(sample("ibdev2netdev_two_cables_up"), ADDRESS.format("192.168.100.11/24") + twin) == [
        "warning fabric-no-address"
    ]


def test_ninety_two_and_thirteen() -> None:
    assert found(sample("ib_write_bw_healthy_92g"), sample("ib_write_bw_degraded_13g")) == ["fault nic-degraded"]


def test_machine_ids_of_two_files() -> None:
    one: Sample = sample("hostnamectl_healthy")
    assert found(one, one.text.replace("spark1", "spark2")) == ["fault machine-id-twice"]
    assert found(one, one.text.replace("4f1f6c", "aaaaaa")) == ["warning hostname-twice"]
