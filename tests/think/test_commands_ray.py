import pytest

from cluster.argv.ports import PORTS, PortUse, ports_used
from cluster.argv.ray import gcs_address, knows_tokens, ray_environment, ray_start

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


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.52.0", True),
        ("2.56.0", True),
        ("3.0.0.dev0", True),
        ("2.51.9", False),
        ("2.9.3", False),
        ("", False),
    ],
)
def test_tokens_by_version(version: str, known: bool) -> None:
    assert knows_tokens(version) is known


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
