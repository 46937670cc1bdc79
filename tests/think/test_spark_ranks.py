import pytest
from facts_tools import said, sample

from cluster.argv.question import Answer
from cluster.spark import ranks
from cluster.spark.fact import Missing
from cluster.spark.ranks import RayNode, RayStatus


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("ray_status_two_nodes_ok.txt", RayStatus(2, 0.0, 2.0, 0)),
        ("ray_status_two_nodes_idle_section.txt", RayStatus(2, 0.0, 2.0, 0)),
        ("ray_status_one_node.txt", RayStatus(1, 0.0, 1.0, 0)),
        ("ray_status_pending_pg.txt", RayStatus(None, 0.0, 2.0, 1, "192.168.50.192", gpus_asked=2.0)),
    ],
)
def test_recorded_ray_status(name: str, status: RayStatus) -> None:
    assert ranks.recognise(sample(name)) == status


def test_active_and_idle_nodes_both_count_and_pending_ones_do_not() -> None:
    text = "Node status\nActive:\n 1 node_a\nIdle:\n 2 head.default\nPending:\n 4 worker, launching\n"
    text += "Recent failures:\n 8 node_x\n"
    assert ranks.recognise(text) == RayStatus(3, None, None, 0, failures=("8 node_x",))
    assert ranks.recognise("Usage: GPU\n") is None


def test_nodes_of_the_program() -> None:
    rows = [
        {"address": "192.168.100.11", "alive": True, "gpus": 1},
        {"address": "192.168.100.12", "alive": False, "gpus": 1.0},
    ]
    assert ranks.parse_nodes(said({"nodes": rows})) == (
        RayNode("192.168.100.11", True, 1.0),
        RayNode("192.168.100.12", False, 1.0),
    )


def test_what_ray_said_instead_is_kept() -> None:
    found = ranks.parse_nodes(Answer(1, b"", b"Traceback ...\nModuleNotFoundError: No module named 'ray'\n"))
    assert "No module named 'ray'" in found.why
    assert isinstance(ranks.parse_nodes(said({"nodes": [{"address": 1}]})), Missing)


def test_a_head_that_does_not_answer_is_a_timeout_and_an_error_is_quoted() -> None:
    assert [ranks.parse_nodes(Answer(code)).kind for code in (142, 124, None)] == ["timeout"] * 3
    found = ranks.parse_nodes(Answer(1, b'{"error": "RpcError: Failed to connect"}', b""))
    assert found == Missing("Ray: RpcError: Failed to connect")
