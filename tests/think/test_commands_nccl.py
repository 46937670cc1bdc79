import json

from cluster.argv.nccl import fabric_environment, non_carry, non_carry_file

LEFT = fabric_environment(
    address="192.168.100.11", netdev="enp1s0f0np0", hcas=["rocep1s0f0", "roceP2p1s0f0"]
)  # cabled at port 0
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


def test_the_gid_index_is_never_set() -> None:
    assert not any("GID" in name for name in LEFT)


def test_names_that_differ_or_are_absent_on_one_host_are_not_carried() -> None:
    envs = {
        "spark1": {**LEFT, "HF_HOME": "/hf", "ONLY_HERE": "1"},
        "spark2": {**RIGHT, "HF_HOME": "/hf", "EMPTY": ""},
    }
    assert non_carry(envs) == (
        "EMPTY",
        "GLOO_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "ONLY_HERE",
        "TP_SOCKET_IFNAME",
        "VLLM_HOST_IP",
    )
    assert non_carry({"spark1": LEFT}) == ()
    assert non_carry({"a": LEFT, "b": dict(LEFT)}) == ()


def test_a_host_without_an_hca_keeps_the_heads_list_away() -> None:
    bare = fabric_environment(address="192.168.100.12", netdev="enp1s0f0np0")
    assert "NCCL_IB_HCA" in non_carry({"spark1": LEFT, "spark2": bare})


def test_the_file_is_a_json_array() -> None:
    assert json.loads(non_carry_file(("B", "A"))) == ["B", "A"]
