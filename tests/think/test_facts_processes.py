import os
from pathlib import Path

import pytest
from facts_tools import put, run_far

from cluster.spark import processes
from cluster.spark.fact import Missing
from cluster.spark.processes import EngineProcess

ID = "0123456789abcdef" * 4
PAGE = os.sysconf("SC_PAGE_SIZE")


def put_process(root: Path, pid: int, argv: list[str], *, comm: str = "x", cgroup: str = "0::/user.slice\n") -> None:
    put(
        root,
        {
            f"proc/{pid}/cmdline": "\0".join(argv) + "\0" if argv else "",
            f"proc/{pid}/comm": f"{comm}\n",
            f"proc/{pid}/statm": "900 300 100 1 0 200 0\n",
            f"proc/{pid}/cgroup": cgroup,
        },
    )


def look(root: Path) -> tuple[EngineProcess, ...]:
    found = processes.parse_processes(run_far("look", {"sections": ["processes"], "root": f"{root}/"}))
    assert not isinstance(found, Missing), found
    return found


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["VLLM::Worker_TP0", "", ""], "VLLM::Worker_TP0"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["ray::RayWorkerProc.execute_method"], "ray::RayWorkerProc.execute_method"),
        (["ray::IDLE"], "ray::IDLE"),
        (["/opt/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=x"], "raylet"),
        (["/opt/ray/core/src/ray/gcs/gcs_server", "--log_dir=x"], "gcs_server"),
        (["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "google/gemma-4-31B-it", "--api-key", "s"], "vllm serve"),
        (["python3.12", "-u", "/opt/v/bin/vllm", "serve", "m"], "vllm serve"),
        (["vllm", "serve", "m"], "vllm serve"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "vllm serve"),
        (["/usr/bin/python3", "-u", "/opt/v/lib/ray/dashboard/agent.py", "--node-ip-address=x"], "ray agent"),
        (["python3", "-m", "ray.util.client.server", "--port=10001"], "ray agent"),
        (["/usr/bin/python3", "/usr/local/bin/ray", "start", "--block"], "ray start"),
    ],
)
def test_engine_processes_by_their_words(tmp_path: Path, argv: list[str], name: str) -> None:
    put_process(tmp_path, 7, argv)
    assert look(tmp_path) == (EngineProcess(7, name, 300 * PAGE, ""),)


@pytest.mark.parametrize(
    "argv",
    [
        ["bash", "-c", "vllm serve m"],
        ["docker", "exec", "x", "vllm", "serve"],
        ["tail", "-f", "raylet.out"],
        ["python3", "tool.py", "--of", "vllm", "serve"],
        ["vllm", "bench"],
        [],
        ["grep", "VLLM::EngineCore"],
    ],
)
def test_other_processes_are_none_of_it(tmp_path: Path, argv: list[str]) -> None:
    put_process(tmp_path, 7, argv)
    assert look(tmp_path) == ()


def test_a_zombie_is_known_by_its_short_name(tmp_path: Path) -> None:
    put_process(tmp_path, 7, [], comm="VLLM::EngineCor")
    assert [one.name for one in look(tmp_path)] == ["VLLM::EngineCor"]


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{ID}.scope\n",
        f"12:memory:/docker/{ID}\n0::/\n",
        f"0::/../docker/{ID}/init\n",
        f"0::/docker/{'f' * 64}/docker/{ID}\n",
    ],
)
def test_the_container_is_told_by_the_control_group(tmp_path: Path, cgroup: str) -> None:
    put_process(tmp_path, 7, ["raylet"], cgroup=cgroup)
    assert look(tmp_path)[0].container == ID


def test_a_process_that_vanishes_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/9").mkdir(parents=True)
    assert look(tmp_path) == ()


def test_a_name_of_foreign_bytes_does_no_harm(tmp_path: Path) -> None:
    put_process(tmp_path, 7, ["raylet"])
    (tmp_path / "proc/7/cmdline").write_bytes(b"ray::\xff\x1b[31mred\0")
    assert look(tmp_path)[0].name == "ray::?red"
