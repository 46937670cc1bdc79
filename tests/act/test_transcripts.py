"""What a user reads when a command meets trouble: exit code, at most four lines an error, a remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_docker import Container, Image
from machine import IMAGE, MODEL, Desk, DeskHost, Stranger, unreachable
from transcript import compare, written
from typed import RECIPE, Typed

from cluster.argv.question import Answer

GIB = 1 << 30
Prepare = Callable[[Typed], object]


def machine(name: str, **changes: object) -> Prepare:
    """Change attributes of one machine."""

    def change(typed: Typed) -> None:
        for key, value in changes.items():
            assert hasattr(typed.desk[name], key)
            setattr(typed.desk[name], key, value)

    return change


def desk(**changes: object) -> Prepare:
    """Change attributes of the desk."""

    def change(typed: Typed) -> None:
        for key, value in changes.items():
            assert hasattr(typed.desk, key)
            setattr(typed.desk, key, value)

    return change


def docker(name: str, **changes: object) -> Prepare:
    """Change attributes of a machine's docker."""

    def change(typed: Typed) -> None:
        for key, value in changes.items():
            assert hasattr(typed.desk[name].docker, key)
            setattr(typed.desk[name].docker, key, value)

    return change


def image(*names: str, **changes: object) -> Prepare:
    """Another image behind the tag."""

    def change(typed: Typed) -> None:
        for name in names:
            typed.desk[name].docker.images[IMAGE] = dataclasses.replace(Image(IMAGE), **changes)

    return change


def link(name: str, netdev: str, **changes: object) -> Prepare:
    """Change one port of a machine."""

    def change(typed: Typed) -> None:
        for port in typed.desk[name].ports:
            if port.netdev == netdev:
                for key, value in changes.items():
                    setattr(port, key, value)

    return change


def recipe(*changes: tuple[str, str], name: str = "toy") -> Prepare:
    """Write a recipe with some text replaced."""

    def change(typed: Typed) -> None:
        text = RECIPE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        Path(typed.place, "recipes", f"{name}.yaml").write_text(text)

    return change


def typed(*words: str) -> Prepare:
    """Something that the user did before, and that worked."""

    def change(run: Typed) -> None:
        ran = run(*words)
        assert ran.code == 0, ran.all

    return change


def taken(host: DeskHost) -> None:
    """Its lock is lost, and somebody else had it before it can be taken again."""
    host.end_processes()
    host.lock_generation += 1


def gone(*names: str) -> Prepare:
    def change(run: Typed) -> None:
        for name in names:
            run.desk.hosts[name].drop()

    return change


def locked(name: str) -> Prepare:
    def change(run: Typed) -> None:
        run.desk.hosts[name].lock_holder = {"who": "ada@desk (pid 4711)", "since": 1.0, "why": "bench toy"}

    return change


def container(name: str, of: str) -> Prepare:
    """A container that is not ours."""

    def change(run: Typed) -> None:
        words = ("run", "--detach", "--name", of, "--entrypoint", "sleep", IMAGE, "infinity")
        assert run.desk[name].docker.answer(words).exit == 0

    return change


def at_sleep(number: int, event: Callable[[Desk], object]) -> Prepare:
    """Something that happens while `cluster` waits for the n-th time."""

    def change(run: Typed) -> None:
        first = run.desk.sleeps
        run.desk.on_sleep.append(lambda: event(run.desk) if run.desk.sleeps == first + number else None)

    return change


def killed_at_sleep(number: int, name: str) -> Prepare:
    """`docker kill`, or the kernel."""
    return at_sleep(number, lambda desk: desk.kill_rank(name))


def asked_for(name: str, word: str, event: Callable[[Desk], object]) -> Prepare:
    """Something that happens when a machine is asked for something with this word."""
    return lambda run: run.desk.when_asked(name, word, lambda: event(run.desk))


def ctrl_c(_: Desk) -> None:
    raise KeyboardInterrupt


def lost(desk: Desk) -> None:
    """Spark2 goes, in the middle of a question."""
    desk.hosts["spark2"].drop()
    raise unreachable("spark2")


UP = ("up", "toy", "--tp", "2")
NO_CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
OOM = (
    "2026-01-01T00:00:02+0000 spark2 kernel: VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140dca, order=0",
    "2026-01-01T00:00:02+0000 spark2 kernel: Out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB",
)
BUSY = "Error response from daemon: driver overlay2 failed to remove root filesystem: device or resource busy"
NO_LAYER = "Error response from daemon: layer does not exist"
FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
NO_DOCKER = (
    1,
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
)
TOO_OLD = {"vllm": "0.11.0", "ray": "2.50.0", "transformers": "4.57.0", "nccl": "2.27.3"}
WITHOUT_RAY: dict[str, str | None] = {"vllm": "0.32.0", "ray": None, "transformers": "5.6.0", "nccl": "2.27.3"}

PERFTEST = [machine(f"spark{number}", perftest=True) for number in (1, 2)]
OTHER = recipe(("max-model-len: 4096", "max-model-len: 2048"), name="other")
OLLAMA = machine("spark2", strangers=[Stranger(99, "ollama", 0, 22 * GIB, True)])
PATIENT = recipe(("ready_timeout_s: 60", "ready_timeout_s: 600"))


def cut(desk: Desk) -> None:
    desk.cut.add("spark2")


def killed(run: Typed) -> None:
    run.desk.kill_rank("spark2")
    run.desk.pass_time(5)


def rebooted(run: Typed) -> None:
    run.desk.reboot("spark1")
    run.desk.reboot("spark2")


def of_another_version(run: Typed) -> None:
    """The labels of what runs are none of this version's."""
    for at in run.desk:
        for one in at.docker.containers.values():
            one.options["--label"] = [word.replace("image_content", "content") for word in one.options["--label"]]


def after_probe(name: str, event: Callable[[Desk], object]) -> Prepare:
    """Something that happens between the checks and the first change."""

    def change(run: Typed) -> None:
        docker = run.desk[name].docker
        probe = docker.alone

        def then(container: Container, stdin: bytes) -> Answer:
            event(run.desk)
            return probe(container, stdin)

        docker.alone = then

    return change


STORIES: dict[str, tuple[int, tuple[str, ...], list[Prepare]]] = {
    # up, before any host is asked
    "up/tp_4_with_two_hosts": (2, ("up", "toy", "--tp", "4"), []),
    "up/tp_1_with_two_hosts": (2, ("up", "toy", "--tp", "1"), []),
    "up/solo_and_tp_2": (2, ("up", "toy", "--solo", "--tp", "2"), []),
    "up/broken_recipe": (2, UP, [recipe(("backend: ray", "backend: rya"))]),
    "up/no_such_recipe": (2, ("up", "tyo"), []),
    "up/no_such_host": (2, ("up", "toy", "-n", "spark1,spark3"), []),
    "up/flag_that_is_ours": (2, (*UP, "--", "--port", "9000"), []),
    "up/key_file_missing": (2, (*UP, "--api-key-file", "nowhere"), []),
    # up, hosts
    "up/worker_unreachable": (3, UP, [gone("spark2")]),
    "up/both_unreachable": (3, UP, [gone("spark1", "spark2")]),
    "up/lock_held": (5, UP, [locked("spark2")]),
    "up/same_machine_twice": (4, UP, [machine("spark2", machine_id=f"{1:032x}")]),
    "up/no_machine_id": (4, UP, [machine("spark2", machine_id="")]),
    # up, checks
    "up/no_docker_group": (4, UP, [docker("spark2", trouble=NO_DOCKER)]),
    "up/no_docker": (4, UP, [docker("spark2", trouble=(127, "docker: not found"))]),
    "up/port_taken": (4, UP, [machine("spark1", strangers=[Stranger(812, "nginx", 8000)])]),
    "up/ray_port_taken": (4, UP, [machine("spark2", strangers=[Stranger(0, "", 27121)])]),
    "up/stranger_with_our_name": (4, UP, [container("spark2", "cluster-toy-old-r1")]),
    "up/foreign_gpu_process": (0, UP, [machine("spark1", strangers=[Stranger(99, "ollama", 0, 8 * GIB, True)])]),
    "up/not_enough_memory": (4, UP, [machine("spark1", strangers=[Stranger(99, "ollama", 0, 40 * GIB, True)])]),
    "up/mtu_differs": (4, UP, [link("spark2", "enp1s0f0np0", mtu=1500)]),
    "up/link_down": (4, UP, [link("spark2", netdev, state="DOWN") for netdev in ("enp1s0f0np0", "enP2p1s0f0np0")]),
    "up/link_down_allowed": (
        0,
        (*UP, "--allow-socket"),
        [link("spark2", netdev, state="DOWN") for netdev in ("enp1s0f0np0", "enP2p1s0f0np0")],
    ),
    "up/ping_lost": (4, UP, [desk(cut={"spark1"})]),
    "up/degraded_card": (4, (*UP, "--fabric-test"), [*PERFTEST, link("spark1", FIRST, rdma_gbps=13.2)]),
    "up/no_rdma_device": (4, UP, [machine("spark2", rdma_device=False)]),
    "up/driver_mismatch": (4, UP, [machine("spark1", smi=(18, MISMATCH))]),
    "up/image_missing": (4, UP, [docker("spark2", images={})]),
    "up/image_not_to_be_had": (1, (*UP, "--yes"), [docker("spark2", images={})]),
    "up/image_differs": (4, UP, [image("spark2", layers=("sha256:bbbb",))]),
    "up/image_of_other_architecture": (4, UP, [image("spark1", "spark2", architecture="amd64")]),
    "up/image_without_ray": (4, UP, [image("spark1", "spark2", versions=WITHOUT_RAY)]),
    "up/image_without_ray_mp": (0, (*UP, "--backend", "mp"), [image("spark1", "spark2", versions=WITHOUT_RAY)]),
    "up/image_too_old": (4, UP, [image("spark1", "spark2", versions=TOO_OLD)]),
    "up/model_not_known": (4, UP, [image("spark1", "spark2", architectures=())]),
    "up/no_gpu_in_container": (4, UP, [docker("spark2", gpu=False)]),
    "up/model_missing_on_worker": (4, UP, [machine("spark2", models={})]),
    "up/model_gated": (4, (*UP, "--yes"), [machine("spark2", models={}), desk(hub_token="hf_secret")]),
    "up/weights_not_whole": (4, UP, [machine("spark2", model_problems=("2 of 7 weight files are missing: a, b",))]),
    "up/containers_not_listed": (4, UP, [typed(*UP), docker("spark2", broken={"ps": (1, NO_LAYER)})]),
    "up/rank_of_a_pair": (4, ("up", "toy", "--solo", "-n", "spark2"), [typed(*UP)]),
    # up, while it starts
    "up/engine_fails": (1, UP, [desk(bad_flag="--max-model-len")]),
    "up/engine_fails_old_serves": (
        1,
        (*UP, "--", "--max-num-seqs", "8"),
        [typed(*UP), desk(bad_flag="--max-num-seqs")],
    ),
    "up/engine_fails_and_why": (1, UP, [desk(bad_flag="--max-model-len", last_line=NO_CACHE)]),
    "up/worker_killed_by_its_kernel": (1, UP, [machine("spark2", kernel_log=OOM), killed_at_sleep(2, "spark2")]),
    "up/worker_does_not_join": (1, UP, [PATIENT, after_probe("spark2", cut)]),
    "up/link_cut": (1, UP, [PATIENT, at_sleep(1, cut)]),
    "up/not_ready_in_time": (1, (*UP, "--set", "ready_timeout_s=0.6"), []),
    "up/worker_killed": (1, UP, [killed_at_sleep(2, "spark2")]),
    "up/worker_lost": (3, UP, [at_sleep(2, lambda desk: desk.hosts["spark2"].drop())]),
    "up/worker_away": (0, UP, [at_sleep(2, lambda desk: desk.hosts["spark2"].drop(4))]),
    "up/interrupted": (130, UP, [at_sleep(1, ctrl_c)]),
    "up/interrupted_twice": (130, UP, [at_sleep(1, ctrl_c), asked_for("spark2", "journalctl", ctrl_c)]),
    "up/engine_fails_and_not_all_is_undone": (
        1,
        (*UP, "--", "--max-num-seqs", "8"),
        [typed(*UP), desk(bad_flag="--max-num-seqs"), docker("spark2", broken={"rm": (1, BUSY)})],
    ),
    "up/lock_lost": (5, UP, [after_probe("spark2", lambda desk: taken(desk.hosts["spark2"]))]),
    "up/sockets_used": (4, UP, [desk(sockets=True)]),
    "up/text_is_garbage": (1, UP, [desk(says="!" * 40)]),
    # swap
    "swap/done": (0, ("swap", "other"), [OTHER, typed(*UP)]),
    "swap/nothing_runs": (4, ("swap", "other"), [OTHER]),
    "swap/nothing_runs_there": (4, ("swap", "other", "-n", "spark2"), [OTHER]),
    "swap/two_run": (
        4,
        ("swap", "other"),
        [OTHER, typed("up", "toy", "--solo", "-n", "spark1"), typed("up", "toy", "--solo", "-n", "spark2")],
    ),
    "swap/no_recipe": (2, ("swap",), [typed(*UP)]),
    "swap/no_such_recipe": (2, ("swap", "othre"), [OTHER, gone("spark1", "spark2")]),
    "swap/half_a_pair": (4, ("swap", "other", "-n", "spark1"), [OTHER, typed(*UP)]),
    "swap/memory_not_back": (
        4,
        ("swap", "other"),
        [OTHER, typed(*UP), machine("spark2", lingering_bytes=30 * GIB)],
    ),
    "swap/less_memory_but_enough": (
        0,
        ("swap", "other"),
        [OTHER, typed(*UP), machine("spark2", lingering_bytes=5 * GIB)],
    ),
    "swap/port_not_free": (
        4,
        ("swap", "other"),
        [OTHER, typed(*UP), machine("spark1", strangers=[Stranger(7, "raylet", 27120)])],
    ),
    "swap/new_one_fails": (
        1,
        ("swap", "other", "--", "--max-num-seqs", "8"),
        [OTHER, typed(*UP), desk(bad_flag="--max-num-seqs")],
    ),
    "swap/both_fail": (1, ("swap", "other"), [OTHER, typed(*UP), desk(bad_flag="--max-model-len")]),
    "swap/new_one_fails_and_the_way_to_the_old_is_lost": (
        1,
        ("swap", "other", "--", "--max-num-seqs", "8"),
        [OTHER, typed(*UP), desk(bad_flag="--max-num-seqs"), at_sleep(4, lambda desk: desk.hosts["spark2"].drop())],
    ),
    "swap/of_another_version": (4, ("swap", "other"), [OTHER, typed(*UP), of_another_version]),
    "swap/interrupted": (130, ("swap", "other"), [OTHER, typed(*UP), at_sleep(2, ctrl_c)]),
    "swap/dry_run": (0, ("swap", "other", "--dry-run"), [OTHER, typed(*UP)]),
    "swap/ollama_in_the_way": (4, ("swap", "other", "--yes"), [OTHER, typed(*UP), OLLAMA]),
    # pull
    "pull/all_there": (0, ("pull", "toy"), []),
    "pull/dry_run": (0, ("pull", "toy", "--dry-run"), [docker("spark2", images={}), machine("spark1", models={})]),
    "pull/not_agreed": (4, ("pull", "toy"), [docker("spark2", images={})]),
    "pull/fetched": (0, ("pull", "toy", "--yes"), [machine("spark2", models={})]),
    "pull/no_room": (4, ("pull", "toy", "--yes"), [machine("spark2", models={}, free_bytes=20 * GIB)]),
    "pull/not_to_be_had": (1, ("pull", "toy", "--yes"), [docker("spark2", images={})]),
    "pull/not_on_the_hub": (4, ("pull", "toy", "--yes"), [machine("spark2", models={}), desk(hub=set())]),
    "pull/not_whole": (4, ("pull", "toy"), [machine("spark2", model_problems=("a: 4 of 8 bytes",))]),
    "pull/copies_differ": (4, ("pull", "toy"), [machine("spark2", models={MODEL: "d0000000" * 5})]),
    "pull/image_differs": (4, ("pull", "toy"), [image("spark2", layers=("sha256:bbbb",))]),
    "pull/worker_unreachable": (3, ("pull", "toy"), [gone("spark2")]),
    "pull/lock_held": (5, ("pull", "toy"), [locked("spark2")]),
    # down
    "down/nothing": (0, ("down",), []),
    "down/done": (0, ("down",), [typed(*UP)]),
    "down/worker_unreachable": (3, ("down",), [typed(*UP), gone("spark2")]),
    "down/lock_held": (5, ("down",), [typed(*UP), locked("spark1")]),
    "down/half_a_pair": (0, ("down", "-n", "spark1"), [typed(*UP)]),
    "down/memory_not_back": (4, ("down",), [typed(*UP), machine("spark2", lingering_bytes=20 * GIB)]),
    "down/port_not_free": (4, ("down",), [typed(*UP), machine("spark1", strangers=[Stranger(7, "nginx", 27120)])]),
    "down/no_docker": (4, ("down",), [typed(*UP), docker("spark2", trouble=NO_DOCKER)]),
    "down/dry_run": (0, ("down", "--dry-run"), [typed(*UP)]),
    # status
    "status/nothing": (0, ("status",), []),
    "status/ready": (0, ("status",), [typed(*UP)]),
    "status/worker_unreachable": (3, ("status",), [typed(*UP), gone("spark2")]),
    "status/worker_killed": (4, ("status",), [typed(*UP), killed]),
    "status/both_rebooted": (4, ("status",), [typed(*UP), rebooted]),
    "status/no_docker": (4, ("status",), [typed(*UP), docker("spark2", trouble=NO_DOCKER)]),
    # logs and exec
    "logs/worker_lost": (3, ("logs", "--tail", "2"), [typed(*UP), asked_for("spark2", "docker logs", lost)]),
    "logs/worker_lost_explained": (3, ("logs", "--explain"), [typed(*UP), asked_for("spark2", "docker logs", lost)]),
    "logs/refused_by_docker": (1, ("logs", "--tail", "2"), [typed(*UP), docker("spark2", broken={"logs": (1, BUSY)})]),
    "exec/worker_unreachable": (3, ("exec", "--", "true"), [gone("spark2")]),
    # doctor
    "doctor/nothing": (0, ("doctor",), []),
    "doctor/one_host": (0, ("doctor", "-n", "spark2"), []),
    "doctor/running": (0, ("doctor",), [typed(*UP)]),
    "doctor/sockets_now": (4, ("doctor",), [typed(*UP), desk(sockets=True)]),
    "doctor/server_busy": (0, ("doctor",), [typed(*UP), desk(sockets=True, answers=(0, "TimeoutError: timed out"))]),
    "doctor/rank_killed": (4, ("doctor",), [typed(*UP), killed]),
    "doctor/worker_unreachable": (
        3,
        ("doctor",),
        [gone("spark2"), machine("spark1", strangers=[Stranger(812, "nginx", 8000)])],
    ),
    "doctor/both_unreachable": (3, ("doctor",), [gone("spark1", "spark2")]),
    "doctor/every_level": (
        4,
        ("doctor",),
        [
            docker("spark1", trouble=NO_DOCKER),
            docker("spark2", trouble=NO_DOCKER),
            link("spark2", FIRST, mtu=1500),
            machine("spark1", strangers=[Stranger(99, "ollama", 0, 8 * GIB, True)], models={}),
            machine("spark2", missing={"disk": {"missing": "/var/lib/docker: permission denied", "kind": "refused"}}),
        ],
    ),
    "doctor/image_and_model_missing": (0, ("doctor",), [docker("spark2", images={}), machine("spark2", models={})]),
    "doctor/image_differs": (4, ("doctor",), [image("spark2", layers=("sha256:bbbb",))]),
    "doctor/no_gpu_in_container": (4, ("doctor",), [docker("spark2", gpu=False)]),
    "doctor/moved_cable": (0, ("doctor",), [typed(*UP), *(link(f"spark{n}", FIRST, addresses=()) for n in (1, 2))]),
    "doctor/fabric_healthy": (0, ("doctor", "--fabric-test"), PERFTEST),
    "doctor/fabric_slow_twin": (
        4,
        ("doctor", "--fabric-test"),
        [
            *PERFTEST,
            link("spark1", FIRST, rdma_gbps=61.0),
            link("spark2", FIRST, rdma_gbps=61.0),
            link("spark2", SECOND, rdma_gbps=12.9),
        ],
    ),
    "doctor/fabric_without_tool": (0, ("doctor", "--fabric-test"), [link("spark2", SECOND, tcp_gbps=12.9)]),
    "doctor/no_such_recipe": (2, ("doctor", "tyo"), []),
}


@pytest.mark.parametrize("name", STORIES)
def test_transcript(name: str, cluster: Typed) -> None:
    code, words, prepare = STORIES[name]
    for change in prepare:
        change(cluster)
    ran = cluster(*words)
    assert all(len(lines) <= 4 for lines in ran.errors())
    assert bool(ran.errors()) == (code not in (0, 4) or (code == 4 and words[0] not in ("status", "doctor")))
    compare(name, written(words, ran, cluster.place))
    assert ran.code == code
