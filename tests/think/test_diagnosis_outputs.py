"""Rules of outputs with the numbers on both sides of each limit, and causes that a second text tells apart."""

from __future__ import annotations

import pytest
from diagnosis_tools import found, sample, samples, told

from cluster.diagnosis.rules import OF_OUTPUTS

PERFTEST = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n65536 5000 0.00 {} 0.17\n"
NCCL = "# Avg bus bandwidth    : {}\n"
ROW = " {size} 2147483648 float none -1 453650 37.87 {busbw} 0 410049 41.90 20.95 0\n"
STATUS = sample("ray_status_two_nodes_ok").text
DF = "Filesystem Size Used Avail Use% Mounted on\n{}\n"
LINK = "mlx5_core 0000:01:00.1 enp1s0f1np1: Link {}\n"
IP = "4: {}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu {} qdisc mq state UP group default\n    inet {} scope global x\n"

ONE = {
    PERFTEST.format("92.57"): [],
    PERFTEST.format("80.10"): [],
    PERFTEST.format("61.20"): ["warning rdma-slow"],
    PERFTEST.format("13.23"): ["fault nic-degraded"],
    NCCL.format("23.7"): [],
    NCCL.format("20.1"): [],
    NCCL.format("18.9"): ["warning nccl-mtu"],
    NCCL.format("11.8"): ["warning nccl-one-twin"],
    NCCL.format("3.04"): ["fault nccl-slow"],
    ROW.format(size=17179869184, busbw="3.10") + NCCL.format("3.04"): ["fault nccl-slow"],
    ROW.format(size=1024, busbw="0.10") + NCCL.format("0.1"): [],
    "# Out of bounds values : 7 FAILED\n" + NCCL.format("23.7"): ["fault data-corrupt"],
    LINK.format("up") + LINK.format("down") + LINK.format("up"): [],
    (LINK.format("down") + LINK.format("up")) * 5: ["warning link-flaps"],
    LINK.format("up") + LINK.format("down"): ["fault link-went-down"],
    LINK.format("down"): [],
    DF.format("/dev/nvme0n1p2 3.7T 3.6T 150G 96% /"): ["warning disk-nearly-full"],
    DF.format("/dev/nvme0n1p2 3.7T 3.7T 512M 99% /var/lib/docker"): ["fault disk-full"],
    DF.format("/dev/nvme0n1p2 3.7T 3.3T 400G 90% /"): [],
    DF.format("/dev/loop9 74M 74M 0 100% /snap/x/1"): [],
    STATUS.replace("(no failures)", "10.0.0.2: RayletUnexpectedTermination"): ["fault ray-node-lost"],
    STATUS.replace(" (no resource demands)", " {'GPU': 1.0} * 4 (PACK): 1+ pending placement groups"): [
        "fault ray-too-few-gpus"
    ],
    "MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 60 kB\n": [],
    "MemTotal: 100 kB\nMemFree: 90 kB\nMemAvailable: 95 kB\n": [],
    "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 95 kB\n": ["note page-cache"],
    "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 30 kB\n": ["warning memory-held"],
    "MemFree: 9 kB\nCmaTotal: 100 kB\nCmaFree: 90 kB\n": [],
    "88, VLLM::EngineCore, 103161 MiB\n": ["note engine-holds-memory"],
    "96 %, 29.00 W, 2411 MHz\n": ["fault gpu-wedged"],
    "96 %, 31.00 W, 2411 MHz\n": [],
    "12 %, 15.00 W, 611 MHz\n": [],
    "96 %, 15.00 W, 650 MHz\n": ["fault gpu-power-capped"],
    "96 %, 15.00 W\n": ["warning gpu-stalled"],
}
HOST = sample("hostnamectl_healthy").text
LEFT, RIGHT, BOTH = (sample(f"ibdev2netdev_{name}").text for name in ("left_port_up", "right_port_up", "two_cables_up"))
LARGE, SMALL = sample("ip_link_mtu_mismatch_head").text, sample("ip_link_mtu_mismatch_worker").text
OVERWRITE = sample("vllm_ray_env_overwrite").text
TWIN = "6: enP2p1s0f1np1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default\n"
ONE_END = IP.format("enp1s0f1np1", 9000, "10.0.0.1/24")
TWO = {
    "hostnames": ("hostname: gx10\n", "hostname: gx10\n", ["warning hostname-twice"]),
    "other hostnames": ("hostname: gx10\n", "hostname: gx11\n", []),
    "hostnames of two machines": (HOST, HOST.replace("4f1f6c", "aaaaaa"), ["warning hostname-twice"]),
    "machine-ids": (HOST, HOST.replace("spark1", "spark2"), ["fault machine-id-twice"]),
    "addresses": (ONE_END, IP.format("enp1s0f0np0", 9000, "10.0.0.1/24"), ["fault address-twice"]),
    "subnets": (ONE_END, IP.format("enp1s0f0np0", 9000, "10.9.0.1/24"), ["fault no-common-subnet"]),
    "MTU by subnet": (ONE_END, IP.format("enp1s0f0np0", 1500, "10.0.0.2/24"), ["fault mtu-differs"]),
    "MTU of other subnets": (ONE_END, IP.format("enP7s7", 1500, "10.0.0.2/24"), []),
    "MTU by name": (LARGE, SMALL, ["fault mtu-differs"]),
    "large MTU": (LARGE, LARGE, []),
    "small MTU": (SMALL, SMALL, ["warning mtu-1500"]),
    "two cables need four addresses": (BOTH, ONE_END + TWIN, ["warning fabric-no-address"]),
    "ports": (LEFT, RIGHT, ["warning ports-crossed"]),
    "ports alike": (RIGHT, sample("ibdev2netdev_cross_port_worker").text, []),
    "both ports": (LEFT, BOTH, []),
    "env of the head, its ports up": (OVERWRITE, BOTH, []),
    "env of the head, its ports down": (OVERWRITE, LEFT, ["fault env-overwritten"]),
}


@pytest.mark.parametrize(("text", "right"), ONE.items(), ids=range(len(ONE)))
def test_one_output(text: str, right: list[str]) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("first", "second", "right"), TWO.values(), ids=TWO)
def test_two_outputs(first: str, second: str, right: list[str]) -> None:
    assert found(first, second) == right


def test_every_rule_of_outputs_is_shown() -> None:
    shown = {one.right.split()[1] for one in samples() if one.right}
    shown |= {row.split()[1] for rows in [*ONE.values(), *(right for _, _, right in TWO.values())] for row in rows}
    by_pairs = {"server-wedged", "image-stores-differ"}
    assert set(OF_OUTPUTS) - shown - by_pairs == set()


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
    ("second", "right"), [("overlayfs", "warning image-stores-differ"), ("overlay2", "fault image-really-differs")]
)
def test_image_or_store(second: str, right: str) -> None:
    stores = [STORE.format(store) for store in ("overlay2", second)]
    assert found(sample("docker_image_mismatch_ids"), *stores)[0] == right
