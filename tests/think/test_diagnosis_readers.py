"""The readers of pasted outputs: what each takes from its text, and that it takes nothing from others'."""

from __future__ import annotations

from typing import Any

import pytest
from diagnosis_tools import sample

from cluster.diagnosis.outputs import READERS
from cluster.spark import disk, docker, fabric_test, gpu, identity, links, memory, ranks, server
from cluster.spark.disk import Filled
from cluster.spark.docker import DockerText
from cluster.spark.fabric_test import Bandwidth
from cluster.spark.gpu import GpuProcess
from cluster.spark.links import Gid, Interface, LinkEvent, Neighbour, Port
from cluster.spark.memory import Memory
from cluster.spark.server import Load

GIB = 1 << 30


def test_ports_of_both_tools() -> None:
    assert links.recognise_ports("mlx5_0 port 1 ==> enp1s0f0np0 (Up)\nmlx5_1 port 1 ==> eth9 (Down)\n") == (
        Port("mlx5_0", "enp1s0f0np0", True),
        Port("mlx5_1", "eth9", False),
    )
    assert links.recognise_ports("link siw0/1 state DOWN physical_state DISABLED\n") == (Port("siw0", "", False),)


def test_a_port_of_which_one_half_is_used() -> None:
    halves = ["enp1s0f1np1", "enP2p1s0f1np1", ""]
    assert list(links.half_ports({"enp1s0f1np1"}, halves)) == [("enp1s0f1np1", "enP2p1s0f1np1")]
    assert list(links.half_ports({"enp1s0f0np0"}, halves)) == []
    assert list(links.half_ports(halves, halves)) == []


def test_interfaces_of_three_commands() -> None:
    assert links.recognise_interfaces(sample("ip_addr_link_local").text) == (
        Interface("enp1s0f1np1", 1500, True, ("169.254.35.62/16",)),
    )
    assert links.recognise_interfaces(sample("ip_link_mtu_mismatch_head").text) == (
        Interface("enP2p1s0f1np1", 9000, True, None),
    )
    assert links.recognise_interfaces("enp1s0f1np1      UP             192.168.100.11/24 fe80::1/64 \n") == (
        Interface("enp1s0f1np1", None, True, ("192.168.100.11/24",)),
    )


@pytest.mark.parametrize(
    ("name", "fabric"),
    [
        ("enp1s0f1np1", True),
        ("enP2p1s0f0np0", True),
        ("enp225s0f1", True),
        ("enP7s7", False),
        ("wlP9s9", False),
        ("lo", False),
        ("docker0", False),
        ("eth0", False),
    ],
)
def test_names_of_a_card_of_several_functions(name: str, fabric: bool) -> None:
    assert links.is_fabric(name) == fabric


def test_addresses_that_are_none() -> None:
    assert Interface("x", 1, True, ("999.1.1.1/24", "10.0.0.1/8")).networks() == (
        Interface("x", 1, True, ("10.0.0.1/8",)).networks()
    )


def test_neighbours() -> None:
    assert links.recognise_neighbours(sample("ip_neigh_json_no_dev").text) == (
        Neighbour("192.168.100.12", "", "REACHABLE"),
    )
    assert links.recognise_neighbours("10.0.0.9 dev enp1s0f0np0 FAILED\n") == (
        Neighbour("10.0.0.9", "enp1s0f0np0", "FAILED"),
    )
    assert links.recognise_neighbours('[{"dst": broken}]') is None


def test_gid_tables_of_both_tools() -> None:
    assert links.recognise_gids(sample("gid_table_ibv_devinfo").text) == (
        Gid("", 0, "", False),
        Gid("", 1, "", True),
        Gid("", 2, "192.168.100.10", False),
        Gid("", 3, "192.168.100.10", True),
    )
    shown = links.recognise_gids(sample("show_gids_healthy").text)
    assert shown
    assert shown[3] == Gid("rocep1s0f1", 3, "192.168.100.11", True)
    named = links.recognise_gids(
        "hca_id:\tmlx5_0\n GID[  3]: ::ffff:1.2.3.4, RoCE v2\nhca_id:\tmlx5_1\n GID[  5]: fe80::1, RoCE v1\n"
    )
    assert named == (Gid("mlx5_0", 3, "1.2.3.4", True), Gid("mlx5_1", 5, "", False))


def test_memory_of_free_and_meminfo() -> None:
    assert memory.recognise(sample("free_healthy").text) == Memory(total=121 * GIB, free=108 * GIB, available=116 * GIB)
    assert memory.recognise("MemTotal: 10 kB\n") is None
    plain = (
        "               total        used        free      shared  buff/cache   available\nMem:  100 10 80 0 10 90\n"
    )
    assert memory.recognise(plain) == Memory(total=102400, free=81920, available=92160)


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
    found = gpu.recognise(text)
    assert found
    assert (found[0].utilization_pct, found[0].power_w, found[0].sm_clock_mhz) == values


@pytest.mark.parametrize("text", ["2048, 11.2, 96, 1889 tokens\n", "a, b, c\n1, 2, 3\n", "96 % of 15 items\n"])
def test_other_tables_are_no_gpus(text: str) -> None:
    assert gpu.recognise(text) is None


def test_gpu_processes_in_any_order_of_columns() -> None:
    for row in (
        "88, VLLM::Worker_TP0, 1024 MiB",
        "88, 1024 MiB, VLLM::Worker_TP0",
        "GPU-1-2, 88, VLLM::Worker_TP0, 1024",
    ):
        assert gpu.recognise_processes(row) == (GpuProcess(88, "VLLM::Worker_TP0", 1024, ""),)
    table = "|    0   N/A  N/A           88      C   VLLM::EngineCore                      103161MiB |\n"
    assert gpu.recognise_processes(table) == (GpuProcess(88, "VLLM::EngineCore", 103161, ""),)
    assert gpu.recognise_processes("96 %, 0 %, 15.42 W, 2411 MHz\n") is None


def test_metrics_look_by_look() -> None:
    text = sample("metrics_moving_healthy").text
    assert server.recognise_metrics(text) == (Load(2, None, 193136), Load(2, None, 193480))
    assert server.recognise_metrics("vllm:kv_cache_usage_perc 1.5e-05\nvllm:prompt_tokens_total 7.0\n") == (
        Load(None, None, None, 7.0, 0.000015),
    )
    two = 'vllm:num_requests_running{m="a"} 1.0\nvllm:num_requests_running{m="b"} 2.0\n'
    assert server.recognise_metrics(two) == (Load(3.0, None, None),)


def test_bandwidth_of_three_tools() -> None:
    assert fabric_test.recognise(sample("ib_write_bw_degraded_13g").text) == Bandwidth("perftest", 13.23, 65536)
    megabytes = fabric_test.recognise(sample("ib_write_bw_mb_units_healthy").text)
    assert megabytes
    assert megabytes.gbps == pytest.approx(92.5, abs=0.1)
    assert fabric_test.recognise(sample("nccl_tests_mtu1500_19GBs").text) == Bandwidth(
        "nccl-tests", 18.94 * 8, 17179869184, hosts=2
    )
    assert fabric_test.recognise("# Out of bounds values : 3 FAILED\n# Avg bus bandwidth : 20.0\n") == Bandwidth(
        "nccl-tests", 160.0, wrong=3
    )
    assert fabric_test.recognise(sample("iperf_degraded").text) == Bandwidth("iperf3", 12.86)


def test_docker() -> None:
    assert docker.recognise(" Storage Driver: overlay2\n") == DockerText("overlay2", None, False)
    runtimes = docker.recognise(sample("docker_info_cdi_healthy").text)
    assert runtimes == DockerText("", False, True)
    assert docker.recognise(" Runtimes: io.containerd.runc.v2 nvidia runc\n") == DockerText("", True, False)
    header = "CONTAINER ID   IMAGE     COMMAND   CREATED   STATUS    PORTS     NAMES\n"
    assert docker.recognise_containers(header) == 0
    assert docker.recognise_containers(header + "0123456789ab   vllm   x   1h   Up 1h   vllm\nother\n") == 1


def test_link_events() -> None:
    assert links.recognise_events("[  1.5] mlx5_core 0000:01:00.1 enp1s0f1np1: Link down\n") == (
        LinkEvent("enp1s0f1np1", False, 1.5, "[  1.5] mlx5_core 0000:01:00.1 enp1s0f1np1: Link down"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "7.0.0-1019-nvidia",
        "Linux spark1 7.0.0-1019-nvidia #19 SMP PREEMPT aarch64",
        "   Kernel: Linux 7.0.0-1019-nvidia",
    ],
)
def test_kernels(text: str) -> None:
    assert identity.recognise_kernel(text) == "7.0.0-1019-nvidia"


def test_limits_of_locked_memory() -> None:
    assert identity.recognise_memlock("max locked memory           (kbytes, -l) unlimited\n") == -1
    assert identity.recognise_memlock("max locked memory           (kbytes, -l) 64\n") == 65536
    assert (
        identity.recognise_memlock("Max locked memory         8388608              8388608              bytes\n")
        == 8388608
    )


def test_machine_ids_only_where_they_are_meant() -> None:
    id = "4f1f6c1b1f6b4a7c9b2d0e8a7c6b5a49"
    assert identity.recognise_machines(f"{id}\n") == (id,)
    assert identity.recognise_machines(f"      Machine ID: {id}\n         Boot ID: {id[::-1]}\n") == (id,)
    assert identity.recognise_machines("an actor was made, actor id = " + id + "\n" + "another line\n" * 5) is None


def test_disks_with_and_without_units() -> None:
    assert disk.recognise("/dev/nvme0n1p2  3.7T  3.7T   12G 100% /\n") == (
        Filled("/dev/nvme0n1p2", "/", 100, 12 * GIB),
    )
    assert disk.recognise("/dev/nvme0n1p2 3906250000 3900000000 1048576 100% /\n") == (
        Filled("/dev/nvme0n1p2", "/", 100, GIB),
    )


def test_failures_in_ray_status() -> None:
    text = sample("ray_status_two_nodes_ok").text.replace(
        " (no failures)", " 192.168.100.12: RayletUnexpectedTermination (ip: 192.168.100.12)"
    )
    status = ranks.recognise(text)
    assert status
    assert status.failures == ("192.168.100.12: RayletUnexpectedTermination (ip: 192.168.100.12)",)
    pinned = ranks.recognise(sample("ray_status_pending_pg").text)
    assert pinned
    assert pinned.pinned_to == "192.168.50.192"


def test_completions() -> None:
    assert server.recognise(sample("completion_healthy").text) == "Paris is the capital of France."
    assert server.recognise('{"choices": [}') is None
    assert server.recognise('{"choices": [{"message": {"content": null}}]}') is None


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
    assert [known for known, read in READERS if read(sample(name).text) is not None] == [kind]


HOSTILE: list[Any] = [
    "",
    "\n" * 1000,
    "{" * 5000,
    "[[[",
    "a" * 100_000,
    "1, 2, 3\n" * 1000,
    "% W MHz GB10\n" * 100,
    "\x00\x01",
    "Mem: x\n",
    "==> ( )\n" * 50,
    "GID[  9]:\n",
    "inet 1.2.3.4/99\n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_reader_breaks(text: str) -> None:
    for _, read in READERS:
        read(text)
