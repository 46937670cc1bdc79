"""Outputs of commands: what each reader takes, each rule at its limit, causes that a second text tells apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from diagnosis_tools import found, sample, samples, told

from cluster.diagnosis.outputs import KINDS
from cluster.diagnosis.rules import OF_OUTPUTS
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
SMI_STATE = "| N/A   45C    P0             12W /  N/A  | Not Supported          |     96%      Default |\n"
REASONS = "utilization.gpu [%], power.draw [W], clocks.sm [MHz], {}\n96 %, 15.00 W, 611 MHz, {}\n"
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
    (
        gpu.recognise_processes,  # a long name takes the room of its memory
        "|    0   N/A  N/A            2595      C   ray::RayWorkerProc.run                   12290... |\n",
        (GpuProcess(2595, "ray::RayWorkerProc.run", None, ""),),
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


PERFTEST = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n65536 5000 0.00 {} 0.17\n"
NCCL = "# Avg bus bandwidth    : {}\n"
DEVINFO = "hca_id:\trocep1s0f0\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_{} (1)\n\t\t\tactive_mtu:\t\t{} (3)\n"
SPEED = "Settings for {}:\n\tSupported ports: [ FIBRE ]\n\tSpeed: {}\n\tDuplex: Full\n"
LISTEN = "LISTEN 0      511        {}:{}       0.0.0.0:*\n"
ROW = " {size} 2147483648 float none -1 453650 37.87 {busbw} 0 410049 41.90 20.95 0\n"
STATUS = sample("ray_status_two_nodes_ok").text
PINNED = sample("ray_status_pending_pg").text
DF = "Filesystem Size Used Avail Use% Mounted on\n{}\n"
LINK = "mlx5_core 0000:01:00.1 enp1s0f1np1: Link {}\n"
BRIEF = "enP7s7 UP 192.168.1.11/24\nenp1s0f0np0 UP {}\nenP2p1s0f0np0 UP {}\nenp1s0f1np1 DOWN\n"
CARRIER = "Nov 20 04:00:{} spark1 systemd-networkd[811]: enp1s0f1np1: {} carrier\n"
REPORT = (
    "INFO 11-10 10:03:14 [loggers.py:127] Engine 000: Avg prompt throughput: {}.0 tokens/s, "
    "Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: {} reqs, "
    "GPU KV cache usage: {:.1f}%, Prefix cache hit rate: 1.0%\n"
)
CHAT = 'INFO:     192.168.1.30:51110 - "POST /v1/chat/completions HTTP/1.1" {}\n'
HEALTH = 'INFO:     192.168.1.30:51110 - "GET /health HTTP/1.1" {}\n'
IPERF = (
    "[  5] local 10.0.0.1 port 51010 connected to 10.0.0.2 port 5201\n"
    "[  5]   0.00-10.00  sec  10.9 GBytes  {}/sec  128             sender\n"
)
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
    NCCL.format("3.04"): ["fault nccl-degraded"],
    NCCL.format("5.04"): ["fault nccl-slow"],
    ROW.format(size=17179869184, busbw="3.10") + NCCL.format("3.04"): ["fault nccl-degraded"],
    ROW.format(size=1024, busbw="0.10") + NCCL.format("0.1"): [],
    "# Out of bounds values : 7 FAILED\n" + NCCL.format("23.7"): ["fault data-corrupt"],
    LINK.format("up") + LINK.format("down") + LINK.format("up"): [],
    (LINK.format("down") + LINK.format("up")) * 5: ["warning link-flaps"],
    LINK.format("up") + LINK.format("down"): ["fault link-went-down"],
    LINK.format("down"): [],
    "[  901.2] " + LINK.format("down"): ["fault link-went-down"],
    "[   12.2] " + LINK.format("down"): [],
    "[  901.1] mlx5_core 0000:01:00.1: firmware version: 28.45.4028\n[  901.2] " + LINK.format("down"): [],
    "[  901.2] " + LINK.format("down").replace("enp1s0f1np1", "enp1s0"): [],
    CARRIER.format("11", "Lost") + "Nov 20 04:00:11 spark1 kernel: " + LINK.format("down"): ["fault link-went-down"],
    CARRIER.format("11", "Lost") + CARRIER.format("14", "Gained"): [],
    CARRIER.format("11", "Lost") + "Nov 20 04:00:11 spark1 systemd[1]: Reached target reboot.target - Reboot.\n": [],
    (LINK.format("down") + CARRIER.format("11", "Lost") + LINK.format("up")) * 3: [],
    (LINK.format("up") + LINK.format("down")) * 4: ["fault link-went-down", "warning link-flaps"],
    BRIEF.format("fe80::1/64", "fe80::2/64"): ["warning fabric-no-addresses"],
    BRIEF.format("", ""): ["warning fabric-no-addresses"],
    BRIEF.format("fd00:1::1/64", "fe80::2/64"): [],
    BRIEF.format("", "") + "bond0 UP 192.168.100.11/24\n": [],
    BRIEF.format("192.168.100.11/24", "192.168.101.11/24"): [],
    BRIEF.format("192.168.177.11/24", "192.168.177.21/24"): ["warning one-subnet"],
    BRIEF.format("169.254.1.2/16", "169.254.3.4/16"): ["warning link-local-address"] * 2,
    REPORT.format(0, 0, 4, 0, 12) * 3: ["warning tokens-frozen"],
    REPORT.format(0, 0, 4, 0, 12) * 30: ["fault tokens-stopped"],
    REPORT.format(0, 0, 4, 0, 12) * 2: [],
    REPORT.format(0, 0, 0, 0, 0) * 60: [],
    REPORT.format(0, 0, 1, 0, 10) + REPORT.format(0, 0, 1, 0, 11) + REPORT.format(0, 0, 1, 0, 12): [],  # a prefill
    REPORT.format(0, 0, 4, 0, 12) * 60 + REPORT.format(0, 9.5, 4, 0, 12): [],
    REPORT.format(0, 0, 4, 0, 12) * 60 + REPORT.format(0, 0, 0, 0, 0): [],
    REPORT.format(0, 36, 4, 211, 99.8) * 2: ["note queue-before-full-cache"],
    REPORT.format(0, 36, 4, 211, 99.8) + REPORT.format(0, 36, 4, 0, 99.8): [],
    REPORT.format(0, 36, 4, 211, 40) * 9: [],
    CHAT.format("500 Internal Server Error") * 2: ["fault requests-fail"],
    CHAT.format("500 Internal Server Error"): [],
    CHAT.format("200 OK") + CHAT.format("500 Internal Server Error") * 3: [],
    CHAT.format("200 OK") + CHAT.format("500 Internal Server Error") * 4: ["fault requests-fail"],
    CHAT.format("500 Internal Server Error") * 9 + CHAT.format("200 OK"): [],
    HEALTH.format("200 OK") * 9 + HEALTH.format("503 Service Unavailable") * 30: ["fault requests-fail"],
    CHAT.format("401 Unauthorized") * 2 + HEALTH.format("200 OK"): ["warning requests-refused"],
    CHAT.format("401 Unauthorized") * 9 + CHAT.format("200 OK"): [],
    CHAT.format("401 Unauthorized"): [],
    CHAT.format("400 Bad Request") * 9: [],
    IPERF.format("938 Mbits"): ["note tcp-1g"],
    IPERF.format("9.41 Gbits"): [],
    IPERF.format("9.41 Gbits") + BRIEF.format("10.0.1.1/24", "10.0.2.1/24"): [],
    IPERF.format("9.41 Gbits") + BRIEF.format("10.0.0.1/24", "10.0.2.1/24"): ["warning tcp-slow"],
    DF.format("/dev/nvme0n1p2 3.7T 3.6T 150G 96% /"): ["warning disk-nearly-full"],
    DF.format("/dev/nvme0n1p2 3.7T 3.7T 512M 99% /var/lib/docker"): ["fault disk-full"],
    DF.format("/dev/nvme0n1p2 3.7T 3.3T 400G 90% /"): [],
    DF.format("/dev/loop9 74M 74M 0 100% /snap/x/1"): [],
    STATUS.replace("(no failures)", "10.0.0.2: RayletUnexpectedTermination"): ["fault ray-node-lost"],
    STATUS.replace(" (no resource demands)", " {'GPU': 1.0} * 4 (PACK): 1+ pending placement groups"): [
        "fault ray-too-few-gpus"
    ],
    PINNED.replace("* 1 (", "* 2 ("): ["fault ray-too-few-gpus"],
    PINNED.replace("0.0/2.0 GPU", "1.0/2.0 GPU"): ["fault ray-too-few-gpus"],
    PINNED.replace("0.0/2.0 GPU", "0.0/1.0 GPU"): ["fault ray-too-few-gpus"],
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
    SMI_STATE: ["warning gpu-stalled"],
    # busy in the last second, idle now: a short job has just ended
    SMI_STATE + "        Idle                              : Active\n": [],
    SMI_STATE + "        Idle                              : Not Active\n": ["warning gpu-stalled"],
    "96 %, 15.00 W, 208 MHz, 0x0000000000000001\n": [],
    "96 %, 15.00 W, 650 MHz, 0x0000000000000004\n": ["fault gpu-power-capped"],
    REASONS.format("clocks_event_reasons.active", "0x0000000000000001"): [],
    REASONS.format("clocks_throttle_reasons.active", "0x0000000000000001"): [],
    REASONS.format("clocks_event_reasons.active", "0x0000000000000000"): ["fault gpu-power-capped"],
    REASONS.format("clocks_throttle_reasons.active", "0x0000000000000020"): [
        "fault gpu-power-capped",
        "warning gpu-slowed",
    ],
    "# gpu     sm    mem    enc    dec\n    0     96     41      0      0\n": [],
    "# gpu    pwr  gtemp\n    0     51     60\n": [],
    "        HW Thermal Slowdown               : Active\n": ["warning gpu-slowed"],
    "        HW Thermal Slowdown               : Not Active\n": [],
    DEVINFO.format("ACTIVE", 4096): [],
    DEVINFO.format("ACTIVE", 1024): ["warning rdma-mtu-1024"],
    DEVINFO.format("DOWN", 4096): ["warning port-down"],
    DEVINFO.format("DOWN", 1024): ["warning port-down"],
    DEVINFO.format("DOWN", 1024) + DEVINFO.format("DOWN", 1024): ["fault no-link-up"],
    DEVINFO.format("DOWN", 1024) + DEVINFO.format("ACTIVE", 4096): [],
    LINK.format("up") + LINK.format("down") + sample("nccl_completion_error_12").text: ["fault link-went-down"],
    SPEED.format("enp1s0f0np0", "200000Mb/s"): [],
    SPEED.format("enp1s0f0np0", "100000Mb/s"): ["fault link-slow"],
    SPEED.format("enP7s7", "1000Mb/s"): [],
    SPEED.format("enp1s0f1np1", "Unknown!"): [],
    LISTEN.format("127.0.0.1", 6379): ["warning loopback-only"],
    LISTEN.format("127.0.0.1", 6379) + LISTEN.format("0.0.0.0", 6379): [],
    LISTEN.format("127.0.0.1", 631): [],
    STATUS.replace("0.0/2.0 GPU", "0.0/1.0 GPU"): ["fault ray-node-without-gpu"],
}
HOST = sample("hostnamectl_healthy").text
USING = "spark1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB x:10.0.0.1<0>\n"
PLUGGED = "[ 1548.264565] mlx5_core 0000:01:00.0: Port module event: module 0, Cable plugged\n"
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


def test_a_slowdown_shows_the_line_that_says_so() -> None:
    text = "    Clocks Event Reasons\n        Idle       : Not Active\n        HW Slowdown     : Active\n"
    [one] = told(text).files[0].findings
    assert (one.id, one.line) == ("gpu-slowed", 3)


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
    "memlock alone": ("nccl_reg_mr_enomem_kernel7", "$ ulimit -l\n8192\n", "fault rdma-enomem-memlock"),
    "memory full": ("nccl_reg_mr_enomem_kernel7", FREE_HELD, "fault rdma-enomem-full"),
    "another kernel": ("nccl_reg_mr_enomem_kernel7", "6.17.0-1032-nvidia\n", "fault rdma-enomem-other-kernel"),
    "hang": ("vllm_shm_broadcast_wait", IDLES, "fault ranks-hang"),
    "OOM of a container": ("docker_inspect_oom", "journal_kernel_oom", "fault kernel-oom"),
    "compile": ("vllm_shm_broadcast_wait", WORKS, ""),
    "image store": ("docker_image_mismatch_ids", STORE.format("overlay2") * 2, "fault image-differs"),
    "wedge": ("metrics_frozen_twice", "nvidia_smi_wedged_spin", "fault gpu-wedged"),
    "power cap": ("metrics_frozen_twice", "nvidia_smi_pd_capped", "fault gpu-power-capped"),
    "long prefill": ("metrics_frozen_twice", WORKS, ""),
    "slow with both HCAs": ("nccl_tests_slow_3GBs", USING, "fault nccl-degraded-surely"),
    "slow after a cable was plugged in": ("nccl_tests_slow_3GBs", PLUGGED, "fault nccl-degraded-surely"),
    "slow over sockets": ("nccl_tests_slow_3GBs", "nccl_info_socket_fallback", "fault nccl-socket"),
    "no GPU, one engine": (
        "vllm_no_gpu_current_node",
        "ada   610 1 vllm serve google/gemma\n",
        "fault vllm-no-gpu-here",
    ),
    "no GPU, two engines": (
        "vllm_no_gpu_current_node",
        "ada   610 1 vllm serve google/gemma\nada   611 1 vllm serve google/gemma\n",
        "fault engine-twice",
    ),
    "idle and frozen": ("metrics_frozen_twice", IDLES, "fault server-wedged"),
    "tokens exceed and wait": ("vllm_tp_exceeds_gpus", "ray_pg_waiting", "fault ray-not-placed"),
    "not placed, one GPU": ("ray_pack_node_anchor", PINNED.replace("0.0/2.0", "0.0/1.0"), "fault ray-too-few-gpus"),
    "not placed, GPUs enough": ("ray_pack_node_anchor", PINNED, "fault ray-node-ip"),
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
