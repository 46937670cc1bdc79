"""`cluster explain`: exit codes, the JSON document, what people read, and where a text may come from."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from diagnosis_tools import SAMPLES, sample

from cluster.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["explain", *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    code, out, _ = run(capsys, "--json", *argv)
    return code, json.loads(out)


def path(name: str) -> str:
    return str(next(file for file in SAMPLES.rglob(f"{name}.txt")))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("vllm_ready", 0),
        ("ray_status_two_nodes_ok", 0),
        ("nccl_info_gdr_disabled_normal", 0),
        ("metrics_wedged", 0),
        ("vllm_shm_broadcast_wait", 0),
        ("vllm_negative_kv_cache", 4),
        ("docker_run_exit_125", 4),
        ("unknown_traceback", 4),
    ],
)
def test_exit_code(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, path(name))[0] == code


def test_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = document(capsys, path("vllm_worker_model_missing"))
    assert code == 4
    [file] = told["files"]
    [finding] = file["findings"]
    assert set(finding) >= {"id", "level", "cause", "evidence", "line", "remedy", "source"}
    assert (finding["id"], finding["level"], finding["line"]) == ("model-missing", "fault", 3)
    assert "Failed to get file list" in finding["evidence"]
    assert "cluster pull" in finding["remedy"]
    assert [row["id"] for row in file["secondary"]] == ["worker-init-failed"]
    assert told["root"]["file"] == path("vllm_worker_model_missing")


def test_document_of_a_healthy_text_has_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = document(capsys, path("ibdev2netdev_left_port_up"), path("vllm_tp_spread_warning_normal"))
    assert code == 0
    assert [file["findings"] for file in told["files"]] == [[], []]
    assert told["root"] is None
    assert told["files"][1]["normal"][0]["id"] == "tp-spread"


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, path("ib_memlock_missing_container"))
    assert "(log of NCCL):" in out
    assert "  fault: NCCL sees no RDMA device" in out
    assert "[nccl-no-device]" in out
    assert "    line 3: (RayWorkerWrapper pid=285" in out
    assert "    hint: run every rank with --device /dev/infiniband" in out
    assert "  follows from it: nccl-socket (line 4)" in out


def test_the_common_cause_of_several_files_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, path("ray_worker_died_system_error"), path("journal_kernel_oom"))
    first, second = out.splitlines()[:2]
    assert first.startswith(f"root cause: {path('journal_kernel_oom')}:3: the kernel ran out of memory")
    assert "worker-died" in second


def test_healthy_and_unknown_texts_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "(ray status): nothing wrong" in run(capsys, path("ray_status_two_nodes_ok"))[1]
    (tmp_path / "poem").write_text("roses are red\n")
    assert "nothing in it is recognized (1 lines)" in run(capsys, str(tmp_path / "poem"))[1]
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 300)
    assert "not text" in run(capsys, str(tmp_path / "binary"))[1]


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(sample("vllm_negative_kv_cache").text.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    code, told = document(capsys, "-")
    assert code == 4
    assert told["files"][0]["file"] == "-"
    assert told["root"]["id"] == "kv-cache-none"


def test_a_directory_of_evidence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "spark1-log.txt").write_text(sample("ray_worker_died_system_error").text)
    (tmp_path / "spark2-kernel.txt").write_text(sample("journal_kernel_oom").text)
    (tmp_path / "empty.txt").write_text("")
    code, told = document(capsys, str(tmp_path))
    assert code == 4
    assert len(told["files"]) == 3
    assert told["root"]["id"] == "kernel-oom"


@pytest.mark.parametrize("argv", [["nowhere.txt"], ["/dev/null/x"]])
def test_a_file_that_is_not_there(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert "[file-not-found]" in err


def test_an_empty_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, str(tmp_path))
    assert code == 2
    assert "[directory-empty]" in err


def test_markup_in_a_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "[bold]x[/bold] ValueError: [red]no\n[/] OSError: [Errno 98] Address already in use\n"
    )
    assert "[/] OSError: [Errno 98]" in run(capsys, str(tmp_path / "log"))[1]
