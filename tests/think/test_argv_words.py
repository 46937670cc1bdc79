"""Golden words for docker, Ray, NCCL and ib_write_bw, and the ports they use."""

import ast
import csv
import json
import shlex

import pytest

from cluster.argv.clients import client_notes, client_words
from cluster.argv.docker import (
    Bind,
    RankContainer,
    docker_exec,
    docker_image_inspect,
    docker_inspect,
    docker_logs,
    docker_pull,
    docker_rm,
    docker_run,
    docker_start,
    docker_stop,
    docker_try,
    mount_word,
    why_failed,
)
from cluster.argv.fabric import VERSION, fabric_environment, ib_write_bw, listening, non_carry_file
from cluster.argv.ports import PORTS, PortUse, ports_used
from cluster.argv.question import Answer
from cluster.argv.ray import gcs_address, ray_environment, ray_start


def test_never_privileged_and_no_device_that_is_not_asked_for() -> None:
    words = docker_run(RankContainer("n", "i", "python3")).argv
    assert "--privileged" not in words
    assert "--device" not in words


@pytest.mark.parametrize("path", ["/a,b", '/a "b"', "/a b/ü", "/a=b", "/a\nb"])
def test_a_mount_reads_back_as_docker_reads_it(path: str) -> None:
    """Docker's CLI takes the word as one line of CSV (opts/mount.go), then splits each field at the first `=`."""
    [row] = csv.reader([mount_word(Bind(path, "/t,u"))], strict=True)
    fields = dict(field.partition("=")[::2] for field in row)
    assert fields == {"type": "bind", "source": path, "target": "/t,u", "readonly": ""}


def test_a_probe_is_labelled_removed_and_runs_our_program() -> None:
    question = docker_try("cluster-try-1", "img:1", "image", ["Gemma4ForConditionalGeneration"])
    assert " ".join(question.argv) == (
        "docker run --rm --interactive --init --pull never --name cluster-try-1 --label cluster.try=1 --gpus all"
        " --network none --entrypoint python3 img:1 - Gemma4ForConditionalGeneration"
    )
    assert b"importlib" in question.stdin
    assert question.changes


def test_the_deadline_of_exec_is_kept_inside_the_container() -> None:
    question = docker_exec("c", ("python3", "-", "a b"), stdin=b"x", timeout_s=7.5)
    assert question.argv == ("docker", "exec", "--interactive", "c", "timeout", "-k", "2", "7.5", "python3", "-", "a b")
    assert question.timeout_s > 7.5 + 2
    assert not question.changes


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (docker_stop("a", "b").argv, "docker stop -t 20 a b"),
        (docker_start("a").argv, "docker start a"),
        (docker_rm("a").argv, "docker rm --volumes a"),
        (docker_rm("a", force=True).argv, "docker rm --force --volumes a"),
        (docker_inspect("a", "b").argv, "docker inspect --type container a b"),
        (docker_logs("a").argv, "docker logs --timestamps a"),
        (
            docker_logs("a", since="2026-01-02T03:04:05Z", tail=0, follow=True).argv,
            "docker logs --timestamps --since 2026-01-02T03:04:05Z --tail 0 --follow a",
        ),
        (docker_pull("i").argv, "docker pull i"),
        (docker_image_inspect("i").argv, "docker image inspect i"),
    ],
)
def test_golden_words(argv: tuple[str, ...], words: str) -> None:
    assert " ".join(argv) == words


def test_what_changes_something_says_so() -> None:
    changing = [docker_run(RankContainer("n", "i", "python3")), docker_try("n", "i", "image")]
    changing += [docker_stop("a"), docker_start("a"), docker_rm("a"), docker_pull("i")]
    looking = [docker_inspect("a"), docker_logs("a"), docker_exec("a", ["x"]), docker_image_inspect("i")]
    assert all(question.changes for question in changing)
    assert not any(question.changes for question in looking)
    assert docker_stop("a", grace_s=30).timeout_s > 30


@pytest.mark.parametrize(
    ("exit_code", "said", "why"),
    [
        (
            1,
            b"\x1b[1m\x1b[31mError: no entry.\x1b[0m\n\x1b[90mHint: set HF_DEBUG=1 for more.\x1b[0m\n",
            "Error: no entry.",
        ),
        (1, b"Error: 'a/b' not found.\nIf the repo is private, make sure you log in.\n", "Error: 'a/b' not found."),
        (125, b"docker: no such device.\nSee 'docker run --help'.\n", "docker: no such device."),
        (3, b"", "exit 3"),
        (None, b"", "it did not end in time"),
    ],
)
def test_why_failed_leaves_out_hints_and_colour(exit_code: int | None, said: bytes, why: str) -> None:
    assert why_failed(Answer(exit_code, err=said)) == why


HEAD, WORKER = "192.168.100.11", "192.168.100.12"
NODE = (
    " --num-gpus=1 --object-store-memory=1073741824 --node-manager-port=27121 --object-manager-port=27122"
    " --runtime-env-agent-port=27123 --dashboard-agent-grpc-port=27124 --dashboard-agent-listen-port=27125"
    " --metrics-export-port=27126 --min-worker-port=27200 --max-worker-port=27299 --disable-usage-stats --block"
)


def test_golden_head_and_worker() -> None:
    assert " ".join(ray_start(rank=0, address=HEAD, head=HEAD)) == (
        "ray start --head --port=27120 --ray-client-server-port=27127 --include-dashboard=false --dashboard-port=27128"
        f" --temp-dir=/tmp/ray --node-ip-address {HEAD}" + NODE
    )
    words = " ".join(ray_start(rank=1, address=WORKER, head=HEAD))
    assert words == f"ray start --address {HEAD}:27120 --node-ip-address {WORKER}" + NODE


OLD_ENVIRONMENT = {
    "RAY_ADDRESS": f"{HEAD}:27120",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "AUTOSCALER_METRIC_PORT": "27129",
}


@pytest.mark.parametrize("version", ["2.52.0", "2.56.0", "3.0.0.dev0", "2.51.9", "2.9.3", ""])
def test_environment_with_and_without_tokens(version: str) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/cluster/ray-token"}
    expected = OLD_ENVIRONMENT | (token if version[:4] in ("2.52", "2.56", "3.0.") else {})
    assert ray_environment(head=HEAD, ray_version=version) == expected
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
    assert "NCCL_IB_HCA" not in fabric_environment(address="10.0.0.1", netdev="eth0"), "unset, and not empty"


def test_names_that_differ_or_are_absent_on_one_host_are_not_carried() -> None:
    envs = {"spark1": {**LEFT, "HF_HOME": "/hf", "ONLY_HERE": "1"}, "spark2": {**RIGHT, "HF_HOME": "/hf", "EMPTY": ""}}
    names = "EMPTY GLOO_SOCKET_IFNAME NCCL_IB_HCA NCCL_SOCKET_IFNAME ONLY_HERE TP_SOCKET_IFNAME VLLM_HOST_IP"
    assert json.loads(non_carry_file(envs)) == names.split()
    assert non_carry_file({"spark1": LEFT}) == non_carry_file({"a": LEFT, "b": dict(LEFT)}) == b"[]\n"
    bare = fabric_environment(address="192.168.100.12", netdev="enp1s0f0np0")
    assert b"NCCL_IB_HCA" in non_carry_file({"spark1": LEFT, "spark2": bare}), "a host without an HCA"


def test_ib_write_bw() -> None:
    words = ib_write_bw("roceP2p1s0f1", 5, port=27130, seconds=2)
    golden = "ib_write_bw --ib-dev roceP2p1s0f1 --gid-index 5 --port 27130 --duration 2 --report_gbits --CPU-freq"
    assert " ".join(words) == golden
    assert " ".join(listening(words, 12)) == f"timeout --foreground -k 1 12 stdbuf -oL {golden}"
    assert VERSION.argv == ("ib_write_bw", "--version")
    own = range(PORTS.perftest_first, PORTS.perftest_first + 8)
    used = [use for rank in (0, 1) for use in ports_used(backend="ray", size=2, rank=rank, api_port=8000)]
    assert not [use for use in used if any(use.first <= port <= use.last for port in own)]


def test_lines_for_clients_name_a_key_only_by_its_variable() -> None:
    with_key = client_words("http://10.0.0.5:8000", "gemma", key=True)
    assert 'export ANTHROPIC_AUTH_TOKEN="$VLLM_API_KEY"' in with_key["Claude Code"]
    assert 'OPENAI_API_KEY="$VLLM_API_KEY"' in with_key["Open WebUI"][0]
    without = client_words("http://10.0.0.5:8000", "gemma", key=False)
    assert "VLLM_API_KEY" not in str(without)
    assert "export ANTHROPIC_BASE_URL=http://10.0.0.5:8000" in without["Claude Code"]
    assert "export OPENAI_BASE_URL=http://10.0.0.5:8000/v1" in without["OpenAI SDKs"]


def test_lines_for_clients_can_be_typed() -> None:
    """A shell and Python read the model's name as it is, whatever is in it."""
    name = 'it\'s a "name"; ls $HOME'
    words = client_words("http://[fd00::1]:8000", name, key=False)
    assert ["export", f"ANTHROPIC_MODEL={name}"] in [shlex.split(line) for line in words["Claude Code"]]
    program, option, code = shlex.split(words["OpenAI SDKs"][-1])
    assert (program, option) == ("python3", "-c")
    assert name in [one.value for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Constant)]


def test_what_keeps_clients_from_a_server() -> None:
    assert client_notes("gemma", tools=True, bind="0.0.0.0", head="spark1") == ()
    local, slash, tools = client_notes("google/gemma", tools=False, bind="127.0.0.1", head="spark1")
    assert "spark1" in local
    assert "served_model_name" in slash
    assert "tool-call-parser" in tools
