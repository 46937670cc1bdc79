"""Rules of outputs, each at least once, with the numbers on both sides of its limit."""

from __future__ import annotations

import pytest
from diagnosis_tools import found, sample, samples, told

from cluster.diagnosis.rules import OF_OUTPUTS, OF_PAIRS

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
TWO = {
    "hostnames": (("hostname: gx10\n", "hostname: gx10\n"), ["warning hostname-twice"]),
    "other hostnames": (("hostname: gx10\n", "hostname: gx11\n"), []),
    "addresses": (
        (IP.format("enp1s0f1np1", 9000, "10.0.0.1/24"), IP.format("enp1s0f0np0", 9000, "10.0.0.1/24")),
        ["fault address-twice"],
    ),
    "subnets": (
        (IP.format("enp1s0f1np1", 9000, "10.0.0.1/24"), IP.format("enp1s0f0np0", 9000, "10.9.0.1/24")),
        ["fault no-common-subnet"],
    ),
    "MTU by subnet": (
        (IP.format("enp1s0f1np1", 9000, "10.0.0.1/24"), IP.format("enp1s0f0np0", 1500, "10.0.0.2/24")),
        ["fault mtu-differs"],
    ),
    "MTU of other subnets": (
        (IP.format("enp1s0f1np1", 9000, "10.0.0.1/24"), IP.format("enP7s7", 1500, "10.0.0.2/24")),
        [],
    ),
}


@pytest.mark.parametrize(("text", "right"), ONE.items(), ids=range(len(ONE)))
def test_one_output(text: str, right: list[str]) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("texts", "right"), TWO.values(), ids=TWO)
def test_two_outputs(texts: tuple[str, str], right: list[str]) -> None:
    assert found(*texts) == right


def test_the_evidence_is_the_very_line() -> None:
    for one in samples():
        for finding in told(one).files[0].findings:
            assert finding.line
            assert finding.finding.evidence == one.text.splitlines()[finding.line - 1].strip()[:500]


def test_every_rule_of_outputs_is_shown() -> None:
    shown = {one.right.split()[1] for one in samples() if one.right}
    shown |= {row.split()[1] for rows in [*ONE.values(), *(right for _, right in TWO.values())] for row in rows}
    by_pairs = {"server-wedged", "ports-crossed", "mtu-1500", "image-stores-differ"}  # test_diagnosis_pairs
    assert set(OF_OUTPUTS) - shown - by_pairs == set()


def test_rules_are_complete() -> None:
    for rule in (*OF_OUTPUTS.values(), *OF_PAIRS.values()):
        assert rule.cause
        assert rule.remedy
        assert rule.source
        assert not rule.pattern
