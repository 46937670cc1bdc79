"""`cluster explain`: exit codes, the JSON document, what people read, and where a text may come from."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from diagnosis_tools import sample

from cluster.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["explain", *argv])
    return code, *capsys.readouterr()


def document(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 4) -> Any:
    assert main(["explain", "--json", *argv]) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("texts"))


def path(name: str) -> str:
    """A sample as a file, without the lines that say what it is."""
    Path(f"{name}.txt").write_text(sample(name).text)
    return f"{name}.txt"


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
    told = document(capsys, path("vllm_worker_model_missing"))
    [file] = told["files"]
    [finding] = file["findings"]
    assert set(finding) >= {"id", "level", "cause", "evidence", "line", "remedy", "source"}
    assert (finding["id"], finding["level"], finding["line"]) == ("model-missing", "fault", 1)
    assert "Failed to get file list" in finding["evidence"]
    assert "cluster pull" in finding["remedy"]
    assert [row["id"] for row in file["secondary"]] == ["worker-init-failed"]
    assert told["root"]["file"] == path("vllm_worker_model_missing")


def test_document_of_a_healthy_text_has_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, path("ibdev2netdev_left_port_up"), path("vllm_tp_spread_warning_normal"), code=0)
    assert [file["findings"] for file in told["files"]] == [[], []]
    assert told["root"] is None
    assert told["files"][1]["normal"][0]["id"] == "tp-spread"


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, path("ib_memlock_missing_container"))
    assert "(log of NCCL, NCCL's transport):" in out
    assert "  fault: NCCL sees no RDMA device" in out
    assert "[nccl-no-device]" in out
    assert "    line 1: (RayWorkerWrapper pid=285" in out
    assert "    hint: run every rank with --device /dev/infiniband" in out
    assert "  follows from it: nccl-socket (line 2)" in out


def test_the_common_cause_of_several_files_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, path("ray_worker_died_system_error"), path("journal_kernel_oom"))
    first, second = out.splitlines()[:2]
    assert first.startswith(f"root cause: {path('journal_kernel_oom')}:1: the kernel ran out of memory")
    assert "worker-died" in second


def test_healthy_and_unknown_texts_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "(ray status): nothing wrong" in run(capsys, path("ray_status_two_nodes_ok"))[1]
    (tmp_path / "poem").write_text("roses are red\n")
    assert "nothing in it is recognized (1 lines)" in run(capsys, str(tmp_path / "poem"))[1]


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(sample("vllm_negative_kv_cache").text.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    told = document(capsys, "-")
    assert (told["files"][0]["file"], told["root"]["id"]) == ("-", "kv-cache-none")


def test_a_directory_of_evidence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "spark1-log.txt").write_text(sample("ray_worker_died_system_error").text)
    (tmp_path / "spark2-kernel.txt").write_text(sample("journal_kernel_oom").text)
    (tmp_path / "empty.txt").write_text("")
    told = document(capsys, str(tmp_path))
    assert (len(told["files"]), told["root"]["id"]) == (3, "kernel-oom")


@pytest.mark.parametrize(
    ("name", "error"),
    [("nowhere.txt", "[file-not-found]"), ("/dev/null/x", "[file-not-found]"), ("", "[directory-empty]")],
)
def test_nothing_to_read(name: str, error: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, str(tmp_path / name))
    assert (code, error in err) == (2, True)


def test_markup_in_a_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "[bold]x[/bold] ValueError: [red]no\n[/] OSError: [Errno 98] Address already in use\n"
    )
    assert "[/] OSError: [Errno 98]" in run(capsys, str(tmp_path / "log"))[1]


def test_what_is_normal_has_words_and_the_ending_says_no_more_than_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, path("nccl_info_gdr_disabled_normal"))
    assert "nothing known to be wrong" in out
    assert "looks bad, is normal: line 1: GB10 has no GPUDirect RDMA; RoCE is used all the same [no-gpudirect]" in out


def test_trouble_that_no_rule_knows_is_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x: error: one\nfine\nx: error: two\n")
    code, out, _ = run(capsys, str(tmp_path / "log"))
    assert code == 4
    assert "no rule matches; 2 lines look like trouble, the first is line 1" in out


TEXT = "OSError: [Errno 98] Address already in use\n"
UNREADABLE = {"empty": b"", "binary": bytes(range(256)) * 300, "packed binary": gzip.compress(bytes(range(256)) * 300)}
UNREADABLE["half of a gzip file"] = gzip.compress(TEXT.encode() * 99)[:40]


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_text_is_one_error(data: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    code, out, err = run(capsys, str(tmp_path / "file"))
    assert (code, out, err.count("error: ")) == (2, "", 1)


@pytest.mark.parametrize("data", [TEXT.encode("utf-16"), gzip.compress(TEXT.encode())], ids=["UTF-16", "gzip"])
def test_text_in_other_forms_is_read(data: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    assert document(capsys, str(tmp_path / "file"))["root"]["id"] == "port-taken"
