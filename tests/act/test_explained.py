"""`cluster logs --explain`, and the cause that `up` finds in its own evidence."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from machine import Desk
from test_transcripts import NO_CACHE, OOM
from typed import UP, Typed

from cluster.cli.main import main
from cluster.deploy.cause import name_cause
from cluster.errors import ClusterError
from cluster.screen import Screen

FULL = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
BENIGN = "WARNING 05-20 20:35:26 [ray_utils.py:372] Tensor parallel size (2) exceeds available GPUs (1)."


def directory(cluster: Typed) -> Path:
    """The only directory of evidence."""
    [found] = (cluster.place / "state/cluster/evidence").iterdir()
    return found


def explained(cluster: Typed, place: Path) -> Any:
    """What `cluster explain DIR` calls the cause."""
    assert main(["explain", str(place), "--json"]) == 4
    return json.loads(cluster.capsys.readouterr().out)["root"]


def test_a_text_from_a_pipe_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named, and as the shell gives it in `<(cat FILE)`; packed or not."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for text in (FULL, gzip.compress(FULL)):
        writer = Thread(target=pipe.write_bytes, args=(text,))
        writer.start()
        assert main(["explain", str(pipe)]) == 4
        writer.join()
        assert "[cuda-oom]" in capsys.readouterr().out
        read, write = os.pipe()
        os.write(write, text)
        os.close(write)
        assert main(["explain", f"/dev/fd/{read}"]) == 4
        os.close(read)
        assert "[cuda-oom]" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "a.gz"
    damaged.write_bytes(gzip.compress(FULL)[:-12])
    for name, why in (("/proc/self/mem", "Input/output error"), (str(damaged), "damaged gzip file")):
        assert main(["explain", name]) == 2
        assert f"{name} cannot be read: {why}" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_a_healthy_pair(backend: str, cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP, "--backend", backend)
    for machine in desk:
        machine.lives()[0].say(BENIGN)
    ran = cluster("logs", "--explain")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("nothing known to be wrong in ")
    assert "lines of the logs of spark1, spark2" in ran.out
    told = json.loads(cluster("logs", "--explain", "--json").out)
    assert (told["deployments"][0]["root"], told["deployments"][0]["missing"], told["errors"]) == (None, {}, [])


def test_a_rank_that_its_kernel_killed(cluster: Typed, desk: Desk) -> None:
    """The cause stands in another host's journal than most of what is said about it."""
    cluster.must(*UP)
    desk.kill_rank("spark2")
    desk["spark2"].kernel_log = OOM
    desk.pass_time(5)
    ran = cluster("logs", "--explain")
    assert ran.code == 4
    assert "cause: the kernel ran out of memory" in ran.out
    assert "spark2, kernel's journal line 1, at 00:00:02 UTC: 2026-01-01T00:00:02+0000 spark2 kernel: VLLM" in ran.out
    assert "rank-lost (spark1, log line " in ran.out.partition("follows from it: ")[2]
    root = json.loads(cluster("logs", "--explain", "--json").out)["deployments"][0]["root"]
    assert (root["id"], root["host"], root["file"]) == ("kernel-oom", "spark2", "spark2-kernel.txt")


XID = "2026-01-01T00:00:07+0000 spark1 kernel: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
JOURNAL = """\
2026-01-01T00:00:02+0000 spark2 kernel: VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=0
2026-01-01T00:00:02+0000 spark2 kernel: Out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:98765432kB, anon-rss:61234567kB, file-rss:128kB, shmem-rss:0kB, UID:0 pgtables:1234kB oom_score_adj:0
-- Boot bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb --
2026-01-01T00:01:30+0000 spark2 kernel: Linux version 6.17.0-1014-nvidia (buildd@bos03-arm64-001)
2026-01-01T00:01:31+0000 spark2 kernel: mlx5_core 0000:01:00.0: firmware version: 28.45.4028
"""  # noqa: E501
"""journalctl 252 with the words of evidence, over a journal of two boots (systemd-journal-remote made the file)."""


def test_a_real_journal_tells_of_the_boot_before(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    desk["spark2"].kernel_log = tuple(JOURNAL.splitlines())
    desk.reboot("spark2")
    desk.pass_time(90)
    ran = cluster("logs", "--explain")
    assert ran.code == 4
    assert "cause: the kernel ran out of memory" in ran.out
    assert "spark2, kernel's journal line 1, at 00:00:02 UTC" in ran.out
    asked = [question.argv for question in desk.hosts["spark2"].asked if question.argv[0] == "journalctl"]
    assert all("-k" not in argv and "-n" not in argv for argv in asked)


def test_events_are_ordered_by_one_clock(cluster: Typed, desk: Desk) -> None:
    """Both journals have 00:00 and 00:01; the second one's clock is 90 s ahead, so its event came first."""
    desk["spark1"].kernel_log = (XID,)
    desk["spark2"].kernel_log = tuple(line.replace("00:00:02", "00:01:32") for line in OOM)
    desk["spark2"].ahead_s = 90.0
    desk.on_sleep.append(lambda: desk.kill_rank("spark2") if desk.sleeps == 2 else None)
    ran = cluster(*UP)
    assert ran.code == 1
    assert "[kernel-oom]" in ran.err
    kept = directory(cluster)
    assert explained(cluster, kept)["id"] == "kernel-oom"
    (kept / "spark2-clock.json").write_text('{"ahead_s": 1e300}')
    assert explained(cluster, kept)["id"] == "gpu-off-bus"


def test_an_unknown_failure_is_called_so(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    desk["spark1"].lives()[0].say("FrobnicationError: the flux is not dense")
    ran = cluster("logs", "--explain")
    assert ran.code == 4
    assert "[unknown]" in ran.out.splitlines()[0]
    assert "spark1, log line " in ran.out
    assert "FrobnicationError: the flux is not dense" in ran.out


def test_only_the_last_lines(cluster: Typed, desk: Desk) -> None:
    """Without Ray, whose own logs are read whole."""
    cluster.must(*UP, "--backend", "mp")
    life = desk["spark1"].lives()[0]
    life.say("FrobnicationError: the flux is not dense")
    life.say("INFO 05-20 20:35:26 [core.py:1] step")
    assert cluster("logs", "--explain", "--tail", "1").code == 0


def test_what_cannot_be_read_is_said(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    del desk["spark2"].docker.containers[next(iter(desk["spark2"].docker.containers))]
    ran = cluster("logs", "--explain")
    assert "not read: log of spark2: no container of it was seen" in ran.out
    desk.hosts["spark2"].drop()
    ran = cluster("logs", "--explain")
    assert ran.code == 3
    assert "error: spark2 did not answer" in ran.err


def test_the_evidence_of_a_failed_up_says_the_same_later(cluster: Typed, desk: Desk) -> None:
    desk.bad_flag, desk.last_line = "--max-model-len", NO_CACHE
    ran = cluster(*UP)
    assert ran.code == 1
    kept = directory(cluster)
    assert "[kv-cache-none]" in (kept / "diagnosis.txt").read_text()
    assert (kept / "diagnosis.txt").stat().st_mode & 0o777 == 0o600
    root = explained(cluster, kept)
    assert (root["id"], Path(root["file"]).name) == ("kv-cache-none", "spark1-log.txt")


@pytest.mark.parametrize("spoiled", [b"", b"\0" * 9000, b"\xff\xfe" * 999, b"[[[[" * 99_999, b"logs/x\0" * 100])
def test_evidence_of_any_kind_is_read_without_harm(spoiled: bytes, cluster: Typed, desk: Desk) -> None:
    desk.bad_flag, desk.last_line = "--max-model-len", NO_CACHE
    assert cluster(*UP).code == 1
    kept = directory(cluster)
    for file in kept.iterdir():
        if file.name != "spark1-log.txt":
            file.write_bytes(spoiled)
    assert explained(cluster, kept)["id"] == "kv-cache-none"


def test_evidence_that_cannot_be_explained_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = ClusterError("spark1: engine exited with 1", code="rank-failed", where="spark1", remedy="read it")
    name_cause(error, [error], str(tmp_path / "gone"), Screen())
    assert (error.what, error.where, error.remedy) == ("spark1: engine exited with 1", "spark1", "read it")
    assert "the evidence could not be explained" in capsys.readouterr().err
