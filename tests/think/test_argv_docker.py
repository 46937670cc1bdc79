import csv

import pytest

from cluster.argv.docker import (
    Bind,
    Container,
    docker_exec,
    docker_image_inspect,
    docker_inspect,
    docker_logs,
    docker_ps,
    docker_pull,
    docker_rename,
    docker_rm,
    docker_run,
    docker_start,
    docker_stop,
    docker_try,
    mount_word,
    why_failed,
)
from cluster.argv.question import Answer


def test_never_privileged_and_no_device_that_is_not_asked_for() -> None:
    words = docker_run(Container("n", "i", "python3")).argv
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
    assert "--gpus" not in docker_try("n", "i", "image", gpus=False).argv


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
        (docker_rename("a", "b").argv, "docker rename a b"),
        (docker_inspect("a", "b").argv, "docker inspect --type container a b"),
        (docker_ps("a", "b=0").argv, "docker ps --all --no-trunc --quiet --filter label=a --filter label=b=0"),
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
    changing = [docker_run(Container("n", "i", "python3")), docker_try("n", "i", "image")]
    changing += [docker_stop("a"), docker_start("a"), docker_rm("a"), docker_pull("i"), docker_rename("a", "b")]
    looking = [docker_inspect("a"), docker_ps(), docker_logs("a"), docker_exec("a", ["x"]), docker_image_inspect("i")]
    assert all(question.changes for question in changing)
    assert not any(question.changes for question in looking)


def test_stopping_leaves_the_rank_time_to_end_its_engine() -> None:
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
