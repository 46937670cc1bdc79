"""The readers of pasted outputs: what each takes from its text, and that it takes nothing from others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from diagnosis_tools import sample

from cluster.diagnosis.outputs import KINDS
from cluster.spark import disk, docker, fabric_test, gpu, identity, links, memory, ranks, server
from cluster.spark.disk import Filled
from cluster.spark.docker import DockerText
from cluster.spark.fabric_test import Bandwidth
from cluster.spark.gpu import GpuProcess
from cluster.spark.links import Gid, Interface, LinkEvent, Neighbour, Port
from cluster.spark.memory import GIB, Memory
from cluster.spark.server import Load

ID = "4f1f6c1b1f6b4a7c9b2d0e8a7c6b5a49"
EVENT = "[  1.5] mlx5_core 0000:01:00.1 enp1s0f1np1: Link down"
PS = "CONTAINER ID   IMAGE     COMMAND   CREATED   STATUS    PORTS     NAMES\n"
FREE = "          total  used  free  shared  buff/cache   available\nMem:  100 10 80 0 10 90\n"
CACHE = "vllm:kv_cache_usage_perc 1.5e-05\nvllm:prompt_tokens_total 7.0\n"
TWO_MODELS = 'vllm:num_requests_running{m="a"} 1.0\nvllm:num_requests_running{m="b"} 2.0\n'
TWO_HCAS = "hca_id:\tmlx5_0\n GID[  3]: ::ffff:1.2.3.4, RoCE v2\nhca_id:\tmlx5_1\n GID[  5]: fe80::1, RoCE v1\n"
SMI_ROW = "|    0   N/A  N/A           88      C   VLLM::Worker_TP0                        1024MiB |\n"
SHOWN = "rocep1s0f1  1  3  0000:0000:0000:0000:0000:ffff:c0a8:640b  192.168.100.11  v2  enp1s0f1np1\n"

READ: list[tuple[Callable[[str], Any], str, Any]] = [
    (
        links.recognise_ports,
        "mlx5_0 port 1 ==> enp1s0f0np0 (Up)\nlink siw0/1 state DOWN physical_state DISABLED\n",
        (Port("mlx5_0", "enp1s0f0np0", True), Port("siw0", "", False)),
    ),
    (
        links.recognise_interfaces,
        "enp1s0f1np1      UP             192.168.100.11/24 fe80::1/64 \n",
        (Interface("enp1s0f1np1", None, True, ("192.168.100.11/24",)),),
    ),
    (links.recognise_interfaces, "ip_link_mtu_mismatch_head", (Interface("enP2p1s0f1np1", 9000, True, None),)),
    (links.recognise_neighbours, "ip_neigh_json_no_dev", (Neighbour("192.168.100.12", "", "REACHABLE"),)),
    (links.recognise_neighbours, '[{"dst": broken}]\n', None),
    (links.recognise_gids, TWO_HCAS, (Gid("mlx5_0", 3, "1.2.3.4", True), Gid("mlx5_1", 5, "", False))),
    (links.recognise_gids, SHOWN, (Gid("rocep1s0f1", 3, "192.168.100.11", True),)),
    (links.recognise_events, EVENT + "\n", (LinkEvent("enp1s0f1np1", False, EVENT),)),
    (memory.recognise, "free_healthy", Memory(total=121 * GIB, free=108 * GIB, available=116 * GIB)),
    (memory.recognise, FREE, Memory(total=102400, free=81920, available=92160)),
    (memory.recognise, "MemTotal: 10 kB\n", None),
    *((gpu.recognise, text, None) for text in ("2048, 11.2, 96, 1889 tokens\n", "a, b, c\n1, 2, 3\n", "96 % of 15\n")),
    *(
        (gpu.recognise_processes, row, (GpuProcess(88, "VLLM::Worker_TP0", 1024, ""),))
        for row in ("88, 1024 MiB, VLLM::Worker_TP0\n", "GPU-1-2, 88, VLLM::Worker_TP0, 1024\n", SMI_ROW)
    ),
    (gpu.recognise_processes, "96 %, 0 %, 15.42 W, 2411 MHz\n", None),
    (server.recognise_metrics, "metrics_moving_healthy", (Load(2, None, 193136), Load(2, None, 193480))),
    (server.recognise_metrics, CACHE, (Load(None, None, None, 7.0, 0.000015),)),
    (server.recognise_metrics, TWO_MODELS, (Load(3.0, None, None),)),
    (server.recognise, "completion_healthy", "Paris is the capital of France."),
    (server.recognise, '{"choices": [}\n', None),
    (server.recognise, '{"choices": [{"message": {"content": null}}]}\n', None),
    (fabric_test.recognise, "ib_write_bw_mb_units_healthy", Bandwidth("perftest", pytest.approx(92.5, abs=0.1), 65536)),
    (fabric_test.recognise, "nccl_tests_mtu1500_19GBs", Bandwidth("nccl-tests", 18.94 * 8, 17179869184, hosts=2)),
    (fabric_test.recognise, "iperf_degraded", Bandwidth("iperf3", 12.86)),
    (docker.recognise, "docker_info_cdi_healthy", DockerText("", False, True)),
    (docker.recognise, " Runtimes: io.containerd.runc.v2 nvidia runc\n", DockerText("", True, False)),
    (docker.recognise_containers, PS, 0),
    (docker.recognise_containers, PS + "0123456789ab   vllm   x   1h   Up 1h   vllm\nother\n", 1),
    (identity.recognise_kernel, "   Kernel: Linux 7.0.0-1019-nvidia\n", "7.0.0-1019-nvidia"),
    (identity.recognise_memlock, "max locked memory           (kbytes, -l) unlimited\n", -1),
    (identity.recognise_memlock, "Max locked memory         8388608              8388608   bytes\n", 8388608),
    (identity.recognise_machines, f"{ID}\n", (ID,)),
    (identity.recognise_machines, f"      Machine ID: {ID}\n         Boot ID: {ID[::-1]}\n", (ID,)),
    (identity.recognise_machines, f"an actor was made, actor id = {ID}\n" + "another line\n" * 5, None),
    (
        disk.recognise,
        "/dev/nvme0n1p2 3906250000 3900000000 1048576 100% /\n",
        (Filled("/dev/nvme0n1p2", "/", 100, GIB),),
    ),
]


@pytest.mark.parametrize(("read", "text", "value"), READ)
def test_reader(read: Callable[[str], Any], text: str, value: object) -> None:
    """A text without a line's end is the name of a sample."""
    assert read(text if "\n" in text else sample(text).text) == value


def test_a_port_of_which_one_half_is_used() -> None:
    halves = ["enp1s0f1np1", "enP2p1s0f1np1", ""]
    assert list(links.half_ports({"enp1s0f1np1"}, halves)) == [("enp1s0f1np1", "enP2p1s0f1np1")]
    assert list(links.half_ports({"enp1s0f0np0"}, halves)) == []
    assert list(links.half_ports(halves, halves)) == []


def test_names_of_a_card_of_several_functions() -> None:
    assert all(map(links.is_fabric, ("enp1s0f1np1", "enP2p1s0f0np0", "enp225s0f1")))
    assert not any(map(links.is_fabric, ("enP7s7", "wlP9s9", "lo", "docker0", "eth0")))


def test_addresses_that_are_none() -> None:
    right = Interface("x", 1, True, ("10.0.0.1/8",))
    assert Interface("x", 1, True, ("999.1.1.1/24", "10.0.0.1/8")).networks() == right.networks()


GPUS = {
    "csv with header": (
        "power.draw [W], clocks.sm [MHz], utilization.gpu [%]\n12.5 W, 611 MHz, 96 %\n",
        (96, 12.5, 611),
    ),
    "csv without units": ("utilization.gpu, power.draw, clocks.current.sm\n96, 12.5, 611\n", (96, 12.5, 611)),
    "units without header": ("2026/03/01 10:00:00.000, NVIDIA GB10, 96 %, 12.5 W, 611 MHz\n", (96, 12.5, 611)),
    "bare numbers": ("96, 0, 12.50, 611\n", (96, 12.5, 611)),
    "bare numbers with a name": ("NVIDIA GB10, P0, 96, 12.50, [N/A], 2411\n", (96, 12.5, 2411)),
    "table": (sample("nvidia_smi_gb10_na").text, (0, 4.0, None)),
    "dmon": (sample("nvidia_smi_dmon_capped").text, (96, 16.0, 633)),
    "long form": (
        "    Utilization\n        GPU                               : 96 %\n    GPU Power Readings\n"
        "        Average Power Draw                : 15.20 W\n    Clocks\n"
        "        SM                                : 2411 MHz\n",
        (96, 15.2, 2411),
    ),
}


@pytest.mark.parametrize(("text", "values"), GPUS.values(), ids=GPUS)
def test_gpus(text: str, values: tuple[int, float, int | None]) -> None:
    [found, *_] = gpu.recognise(text) or ()
    assert (found.utilization_pct, found.power_w, found.sm_clock_mhz) == values


def test_failures_and_pins_in_ray_status() -> None:
    failure = "192.168.100.12: RayletUnexpectedTermination (ip: 192.168.100.12)"
    status = ranks.recognise(sample("ray_status_two_nodes_ok").text.replace(" (no failures)", f" {failure}"))
    pinned = ranks.recognise(sample("ray_status_pending_pg").text)
    assert status
    assert pinned
    assert (status.failures, pinned.pinned_to) == ((failure,), "192.168.50.192")


EXPECTED = {
    "ports": "ibdev2netdev_right_port_up",
    "gids": "gid_table_drifted",
    "memory": "proc_meminfo_cma_bug",
    "ray status": "ray_status_one_node",
    "bandwidth": "ib_write_bw_healthy_92g",
    "metrics": "metrics_wedged",
    "link events": "dmesg_cx7_cable_plugged",
    "docker info": "docker_info_no_nvidia",
    "disk": "df_full",
}


@pytest.mark.parametrize(("kind", "name"), EXPECTED.items())
def test_one_output_is_one_kind(kind: str, name: str) -> None:
    assert [known for known, (read, _) in KINDS.items() if read(sample(name).text) is not None] == [kind]


HOSTILE = ["", "\n" * 1000, "{" * 5000, "[[[", "a" * 100_000, "1, 2, 3\n" * 1000, "% W MHz GB10\n" * 100, "\x00\x01"]
HOSTILE += ["Mem: x\n", "==> ( )\n" * 50, "GID[  9]:\n", "inet 1.2.3.4/99\n"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_reader_breaks(text: str) -> None:
    for read, _ in KINDS.values():
        read(text)
