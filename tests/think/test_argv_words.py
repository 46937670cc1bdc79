"""Golden words for ib_write_bw."""

from __future__ import annotations

import json

import pytest

from cluster.argv.fabric import VERSION, calling, fabric_environment, ib_write_bw, listening, non_carry, non_carry_file
from cluster.argv.ports import PORTS, PortUse, ports_used
from cluster.argv.ray import gcs_address, ray_environment, ray_start

HEAD, WORKER = "192.168.100.11", "192.168.100.12"
NODE = (
    " --num-gpus=1 --object-store-memory=1073741824 --node-manager-port=27121 --object-manager-port=27122"
    " --runtime-env-agent-port=27123 --dashboard-agent-grpc-port=27124 --dashboard-agent-listen-port=27125"
    " --metrics-export-port=27126 --min-worker-port=27200 --max-worker-port=27299 --disable-usage-stats --block"
)


def test_golden_head() -> None:
    assert " ".join(ray_start(rank=0, address=HEAD, head=HEAD)) == (
        "ray start --head --port=27120 --ray-client-server-port=27127 --include-dashboard=false --dashboard-port=27128"
        f" --temp-dir=/tmp/ray --node-ip-address {HEAD}" + NODE
    )


def test_golden_worker() -> None:
    words = " ".join(ray_start(rank=1, address=WORKER, head=HEAD))
    assert words == f"ray start --address {HEAD}:27120 --node-ip-address {WORKER}" + NODE


def test_environment_with_and_without_tokens() -> None:
    old = ray_environment(head=HEAD, ray_version="2.51.2")
    assert old == {
        "RAY_ADDRESS": f"{HEAD}:27120",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "AUTOSCALER_METRIC_PORT": "27129",
    }
    new = ray_environment(head=HEAD, ray_version="2.52.0")
    assert new == old | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/cluster/ray-token"}


TOKENS = {"2.52.0": True, "2.56.0": True, "3.0.0.dev0": True, "2.51.9": False, "2.9.3": False, "": False}


@pytest.mark.parametrize(("version", "given"), TOKENS.items())
def test_tokens_by_version(version: str, given: bool) -> None:
    assert ("RAY_AUTH_MODE" in ray_environment(head=HEAD, ray_version=version)) is given


def test_ipv6_in_brackets() -> None:
    assert gcs_address("fd00::11") == "[fd00::11]:27120"


def test_ports_are_fixed_distinct_and_below_the_ephemeral_range() -> None:
    numbers = [getattr(PORTS, name) for name in PORTS.__slots__]
    assert len(set(numbers)) == len(numbers)
    assert all(1024 < number < 32768 for number in numbers)


def test_ports_by_role() -> None:
    def firsts(**layout: object) -> list[int]:
        return [use.first for use in ports_used(api_port=8000, **layout)]

    assert firsts(backend="none", size=1, rank=0) == [8000]
    assert firsts(backend="mp", size=2, rank=0) == [8000, 27110, 27111]
    assert firsts(backend="mp", size=2, rank=1) == []
    head, worker = firsts(backend="ray", size=2, rank=0), firsts(backend="ray", size=2, rank=1)
    assert head[:3] == [8000, 27110, 27120]
    assert set(head) - set(worker) == {8000, 27110, 27120, 27127, 27128, 27129}
    assert PortUse(27200, 27299, "Ray workers") in ports_used(backend="ray", size=1, rank=0, api_port=1)


def test_every_port_in_rays_words_is_listed_in_the_plan() -> None:
    listed = {use.first for use in ports_used(backend="ray", size=2, rank=0, api_port=8000)}
    words = ray_start(rank=0, address=HEAD, head=HEAD)
    given = {int(word.partition("=")[2]) for word in words if "port=" in word and "max-worker" not in word}
    assert given <= listed


LEFT = fabric_environment(address="192.168.100.11", netdev="enp1s0f0np0", hcas=["rocep1s0f0", "roceP2p1s0f0"])
RIGHT = fabric_environment(address="192.168.100.12", netdev="enp1s0f1np1", hcas=["rocep1s0f1", "roceP2p1s0f1"])


def test_golden_environment() -> None:
    assert LEFT == {
        "VLLM_HOST_IP": "192.168.100.11",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
    }


def test_without_hcas_the_variable_is_unset_and_not_empty() -> None:
    assert "NCCL_IB_HCA" not in fabric_environment(address="10.0.0.1", netdev="eth0")


def test_names_that_differ_or_are_absent_on_one_host_are_not_carried() -> None:
    envs = {
        "spark1": {**LEFT, "HF_HOME": "/hf", "ONLY_HERE": "1"},
        "spark2": {**RIGHT, "HF_HOME": "/hf", "EMPTY": ""},
    }
    names = "EMPTY GLOO_SOCKET_IFNAME NCCL_IB_HCA NCCL_SOCKET_IFNAME ONLY_HERE TP_SOCKET_IFNAME VLLM_HOST_IP"
    assert " ".join(non_carry(envs)) == names
    assert non_carry({"spark1": LEFT}) == non_carry({"a": LEFT, "b": dict(LEFT)}) == ()
    bare = fabric_environment(address="192.168.100.12", netdev="enp1s0f0np0")
    assert "NCCL_IB_HCA" in non_carry({"spark1": LEFT, "spark2": bare}), "a host without an HCA"
    assert json.loads(non_carry_file(("B", "A"))) == ["B", "A"]


def test_ib_write_bw() -> None:
    words = ib_write_bw("roceP2p1s0f1", 5, port=27130, seconds=2)
    golden = "ib_write_bw --ib-dev roceP2p1s0f1 --gid-index 5 --port 27130 --duration 2 --report_gbits --CPU-freq"
    assert " ".join(words) == golden
    assert " ".join(listening(words, 12)) == f"timeout --foreground -k 1 12 stdbuf -oL {golden}"
    call = calling(words, WORKER, 12)
    assert (call.argv, call.timeout_s) == ((*words, WORKER), 12)
    assert VERSION.argv == ("ib_write_bw", "--version")


def test_its_ports_are_nobody_elses() -> None:
    own = range(PORTS.perftest_first, PORTS.perftest_first + 8)
    used = [use for rank in (0, 1) for use in ports_used(backend="ray", size=2, rank=rank, api_port=8000)]
    assert not [use for use in used if any(use.first <= port <= use.last for port in own)]
