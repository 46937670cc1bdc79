"""What a user reads when a command meets trouble: exit code, at most four lines an error, a remedy."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from fake_docker import Image
from machine import IMAGE, MODEL, Desk, Stranger, unreachable
from transcript import FOLDER, compare, written
from typed import RECIPE, UP, Typed

GIB = 1 << 30
Prepare = Callable[[Typed], object]


def change(thing: object, changes: dict[str, object]) -> None:
    for key, value in changes.items():
        assert hasattr(thing, key)
        setattr(thing, key, deepcopy(value))


def machine(name: str, **changes: object) -> Prepare:
    return lambda run: change(run.desk[name], changes)


def desk(**changes: object) -> Prepare:
    return lambda run: change(run.desk, changes)


def docker(name: str, **changes: object) -> Prepare:
    return lambda run: change(run.desk[name].docker, changes)


def image(*names: str, **changes: object) -> Prepare:
    """Another image behind the tag."""
    images = {IMAGE: replace(Image(IMAGE), **changes)}
    return lambda run: [change(run.desk[name].docker, {"images": images}) for name in names]


def link(name: str, *netdevs: str, **changes: object) -> Prepare:
    """Change ports of a machine."""
    return lambda run: [change(port, changes) for port in run.desk[name].ports if port.netdev in netdevs]


def recipe(old: str, new: str, name: str = "toy") -> Prepare:
    """Write a recipe with some text replaced."""
    assert old in RECIPE
    return lambda run: Path(run.place, "recipes", f"{name}.yaml").write_text(RECIPE.replace(old, new))


def typed(*words: str) -> Prepare:
    """Something that the user did before, and that worked."""
    return lambda run: run.must(*words)


def gone(*names: str) -> Prepare:
    return lambda run: [run.desk.hosts[name].drop() for name in names]


def locked(name: str) -> Prepare:
    holder = {"who": "ada@desk (pid 4711)", "since": 1.0, "why": "bench toy"}
    return lambda run: change(run.desk.hosts[name], {"lock_holder": holder})


def container(name: str, of: str) -> Prepare:
    """A container that is not ours."""
    words = ("run", "--detach", "--name", of, "--entrypoint", "sleep", IMAGE, "infinity")
    return lambda run: run.desk[name].docker.answer(words)


def ctrl_c(_: Desk) -> None:
    raise KeyboardInterrupt


def lost(desk: Desk) -> None:
    """Spark2 goes, in the middle of a question."""
    desk.hosts["spark2"].drop()
    raise unreachable("spark2")


def taken(desk: Desk) -> None:
    """The lock is lost, and somebody else had it before it can be taken again."""
    desk.hosts["spark2"].end_processes()
    desk.hosts["spark2"].lock_generation += 1


EVENTS: dict[str, Callable[[Desk], object]] = {
    "ctrl-c": ctrl_c,
    "worker lost": lost,
    "lock taken": taken,
    "worker off": lambda desk: desk.hosts["spark2"].drop(),
    "worker away": lambda desk: desk.hosts["spark2"].drop(4),
    "rank killed": lambda desk: desk.kill_rank("spark2"),
    "link cut": lambda desk: desk.cut.add("spark2"),
}


def at_sleep(number: int, event: str) -> Prepare:
    """Something happens while `cluster` waits for the n-th time."""
    return lambda run: run.desk.at_sleep(number, lambda: EVENTS[event](run.desk))


def asked_for(name: str, word: str, event: str) -> Prepare:
    """Something happens when a machine is asked for something with this word."""
    return lambda run: run.desk.when_asked(name, word, lambda: EVENTS[event](run.desk))


def killed(run: Typed) -> None:
    run.desk.kill_rank("spark2")
    run.desk.pass_time(5)


def of_another_version(run: Typed) -> None:
    """The labels of what runs are none of this version's."""
    for one in run.desk.containers:
        one.options["--label"] = [word.replace("image_content", "content") for word in one.options["--label"]]


NO_CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
OOM = (
    "2026-01-01T00:00:02+0000 spark2 kernel: VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140dca, order=0",
    "2026-01-01T00:00:02+0000 spark2 kernel: Out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB",
)
GUARD = (
    "memory guard: 2.9 GiB available, 3.0 GiB required while loading; held: VLLM::Worker_TP 61.2 GiB, raylet 1.1 GiB, "
    "GPU and others 55.8 GiB; swap 0.0 of 8.0 GiB free"
)
BUSY = "Error response from daemon: driver overlay2 failed to remove root filesystem: device or resource busy"
NO_LAYER = "Error response from daemon: layer does not exist"
FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
NO_DOCKER = 1, "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
TOO_OLD = {"vllm": "0.11.0", "ray": "2.50.0", "transformers": "4.57.0", "nccl": "2.27.3"}
WITHOUT_RAY = {"vllm": "0.32.0", "ray": None, "transformers": "5.6.0", "nccl": "2.27.3"}
UNREADABLE = {"disk": {"missing": "/var/lib/docker: permission denied", "kind": "refused"}}

PERFTEST = [machine(f"spark{number}", perftest=True) for number in (1, 2)]
OTHER = recipe("max-model-len: 4096", "max-model-len: 2048", name="other")
PATIENT = recipe("ready_timeout_s: 60", "ready_timeout_s: 600")
OLLAMA = machine("spark2", strangers=[Stranger(99, "ollama", 0, 22 * GIB, True)])
SERVING = typed(*UP)
NO_IMAGE, NO_MODEL = docker("spark2", images={}), machine("spark2", models={})
NO_GROUP = docker("spark2", trouble=NO_DOCKER)
NO_LINK = link("spark2", FIRST, SECOND, state="DOWN")
BAD_BATCH, BAD_LENGTH = desk(bad_flag="--max-num-seqs"), desk(bad_flag="--max-model-len")

PREPARED: dict[str, list[Prepare]] = {
    "up/broken_recipe": [recipe("backend: ray", "backend: rya")],
    "up/worker_unreachable": [gone("spark2")],
    "up/both_unreachable": [gone("spark1", "spark2")],
    "up/lock_held": [locked("spark2")],
    "up/same_machine_twice": [machine("spark2", machine_id=f"{1:032x}")],
    "up/no_machine_id": [machine("spark2", machine_id="")],
    "up/no_docker_group": [NO_GROUP],
    "up/no_docker": [docker("spark2", trouble=(127, "docker: not found"))],
    "up/port_taken": [machine("spark1", strangers=[Stranger(812, "nginx", 8000)])],
    "up/ray_port_taken": [machine("spark2", strangers=[Stranger(0, "", 27121)])],
    "up/stranger_with_our_name": [container("spark2", "cluster-toy-old-r1")],
    "up/foreign_gpu_process": [machine("spark1", strangers=[Stranger(99, "ollama", 0, 8 * GIB, True)])],
    "up/not_enough_memory": [machine("spark1", strangers=[Stranger(99, "ollama", 0, 40 * GIB, True)])],
    "up/mtu_differs": [link("spark2", FIRST, mtu=1500)],
    "up/link_down": [NO_LINK],
    "up/link_down_allowed": [NO_LINK],
    "up/ping_lost": [desk(cut={"spark1"})],
    "up/degraded_card": [*PERFTEST, link("spark1", FIRST, rdma_gbps=13.2)],
    "up/no_rdma_device": [machine("spark2", rdma_device=False)],
    "up/driver_mismatch": [machine("spark1", smi=(18, MISMATCH))],
    "up/image_missing": [NO_IMAGE],
    "up/image_not_to_be_had": [NO_IMAGE],
    "up/image_differs": [image("spark2", layers=("sha256:bbbb",))],
    "up/image_of_other_architecture": [image("spark1", "spark2", architecture="amd64")],
    "up/image_without_ray": [image("spark1", "spark2", versions=WITHOUT_RAY)],
    "up/image_without_ray_mp": [image("spark1", "spark2", versions=WITHOUT_RAY)],
    "up/image_too_old": [image("spark1", "spark2", versions=TOO_OLD)],
    "up/model_not_known": [image("spark1", "spark2", architectures=())],
    "up/no_gpu_in_container": [docker("spark2", gpu=False)],
    "up/model_missing_on_worker": [NO_MODEL],
    "up/model_gated": [NO_MODEL, desk(hub_token="hf_secret")],
    "up/weights_not_whole": [machine("spark2", model_problems=("2 of 7 weight files are missing: a, b",))],
    "up/containers_not_listed": [SERVING, docker("spark2", broken={"ps": (1, NO_LAYER)})],
    "up/rank_of_a_pair": [SERVING],
    "up/engine_fails": [BAD_LENGTH],
    "up/engine_fails_old_serves": [SERVING, BAD_BATCH],
    "up/engine_fails_and_why": [desk(bad_flag="--max-model-len", last_line=NO_CACHE)],
    "up/worker_killed_by_its_kernel": [machine("spark2", kernel_log=OOM), at_sleep(2, "rank killed")],
    "up/worker_ended_by_its_guard": [machine("spark2", guard_says=GUARD)],
    "up/worker_does_not_join": [PATIENT, asked_for("spark2", "docker run --rm", "link cut")],
    "up/link_cut": [PATIENT, at_sleep(1, "link cut")],
    "up/worker_killed": [at_sleep(2, "rank killed")],
    "up/worker_lost": [at_sleep(2, "worker off")],
    "up/worker_away": [at_sleep(2, "worker away")],
    "up/interrupted": [at_sleep(1, "ctrl-c")],
    "up/interrupted_twice": [at_sleep(1, "ctrl-c"), asked_for("spark2", "journalctl", "ctrl-c")],
    "up/engine_fails_and_not_all_is_undone": [SERVING, BAD_BATCH, docker("spark2", broken={"rm": (1, BUSY)})],
    "up/lock_lost": [asked_for("spark2", "docker run --rm", "lock taken")],
    "up/sockets_used": [desk(sockets=True)],
    "up/text_is_garbage": [desk(says="!" * 40)],
    "swap/done": [OTHER, SERVING],
    "swap/nothing_runs": [OTHER],
    "swap/nothing_runs_there": [OTHER],
    "swap/two_run": [OTHER, *(typed("up", "toy", "--solo", "-n", f"spark{number}") for number in (1, 2))],
    "swap/no_recipe": [SERVING],
    "swap/no_such_recipe": [OTHER, gone("spark1", "spark2")],
    "swap/half_a_pair": [OTHER, SERVING],
    "swap/memory_not_back": [OTHER, SERVING, machine("spark2", lingering_bytes=30 * GIB)],
    "swap/less_memory_but_enough": [OTHER, SERVING, machine("spark2", lingering_bytes=5 * GIB)],
    "swap/port_not_free": [OTHER, SERVING, machine("spark1", strangers=[Stranger(7, "raylet", 27120)])],
    "swap/new_one_fails": [OTHER, SERVING, BAD_BATCH],
    "swap/both_fail": [OTHER, SERVING, BAD_LENGTH],
    "swap/new_one_fails_and_the_way_to_the_old_is_lost": [OTHER, SERVING, BAD_BATCH, at_sleep(4, "worker off")],
    "swap/of_another_version": [OTHER, SERVING, of_another_version],
    "swap/interrupted": [OTHER, SERVING, at_sleep(2, "ctrl-c")],
    "swap/dry_run": [OTHER, SERVING],
    "swap/ollama_in_the_way": [OTHER, SERVING, OLLAMA],
    "pull/dry_run": [NO_IMAGE, machine("spark1", models={})],
    "pull/not_agreed": [NO_IMAGE],
    "pull/fetched": [NO_MODEL],
    "pull/no_room": [machine("spark2", models={}, free_bytes=20 * GIB)],
    "pull/not_to_be_had": [NO_IMAGE],
    "pull/not_on_the_hub": [NO_MODEL, desk(hub=set())],
    "pull/not_whole": [machine("spark2", model_problems=("a: 4 of 8 bytes",))],
    "pull/copies_differ": [machine("spark2", models={MODEL: "d0000000" * 5})],
    "pull/image_differs": [image("spark2", layers=("sha256:bbbb",))],
    "pull/worker_unreachable": [gone("spark2")],
    "pull/lock_held": [locked("spark2")],
    "down/done": [SERVING],
    "down/two_run": [typed("up", "toy", "--solo", "-n", f"spark{number}") for number in (1, 2)],
    "down/worker_unreachable": [SERVING, gone("spark2")],
    "down/lock_held": [SERVING, locked("spark1")],
    "down/half_a_pair": [SERVING],
    "down/memory_not_back": [SERVING, machine("spark2", lingering_bytes=20 * GIB)],
    "down/port_not_free": [SERVING, machine("spark1", strangers=[Stranger(7, "nginx", 27120)])],
    "down/no_docker": [SERVING, NO_GROUP],
    "down/dry_run": [SERVING],
    "status/ready": [SERVING],
    "status/clients": [SERVING],
    "status/worker_unreachable": [SERVING, gone("spark2")],
    "status/worker_killed": [SERVING, killed],
    "status/both_rebooted": [SERVING, lambda run: [run.desk.reboot(name) for name in ("spark1", "spark2")]],
    "status/no_docker": [SERVING, NO_GROUP],
    "logs/worker_lost": [SERVING, asked_for("spark2", "docker logs", "worker lost")],
    "logs/worker_lost_explained": [SERVING, asked_for("spark2", "docker logs", "worker lost")],
    "logs/refused_by_docker": [SERVING, docker("spark2", broken={"logs": (1, BUSY)})],
    "exec/worker_unreachable": [gone("spark2")],
    "doctor/running": [SERVING],
    "doctor/sockets_now": [SERVING, desk(sockets=True)],
    "doctor/server_busy": [SERVING, desk(sockets=True, answers=(0, "TimeoutError: timed out"))],
    "doctor/rank_killed": [SERVING, killed],
    "doctor/worker_unreachable": [gone("spark2"), machine("spark1", strangers=[Stranger(812, "nginx", 8000)])],
    "doctor/both_unreachable": [gone("spark1", "spark2")],
    "doctor/every_level": [
        docker("spark1", trouble=NO_DOCKER),
        NO_GROUP,
        link("spark2", FIRST, mtu=1500),
        machine("spark1", strangers=[Stranger(99, "ollama", 0, 8 * GIB, True)], models={}),
        machine("spark2", missing=UNREADABLE),
    ],
    "doctor/image_and_model_missing": [NO_IMAGE, NO_MODEL],
    "doctor/image_differs": [image("spark2", layers=("sha256:bbbb",))],
    "doctor/no_gpu_in_container": [docker("spark2", gpu=False)],
    "doctor/moved_cable": [SERVING, *(link(f"spark{n}", FIRST, addresses=()) for n in (1, 2))],
    "doctor/fabric_healthy": PERFTEST,
    "doctor/fabric_slow_twin": [
        *PERFTEST,
        link("spark1", FIRST, rdma_gbps=61.0),
        link("spark2", FIRST, rdma_gbps=61.0),
        link("spark2", SECOND, rdma_gbps=12.9),
    ],
    "doctor/fabric_without_tool": [link("spark2", SECOND, tcp_gbps=12.9)],
}


def read(path: Path) -> tuple[int, tuple[str, ...], list[Prepare]]:
    """A story as it is kept: the exit code at its end, the words at its beginning; and what comes before."""
    lines = path.read_text().splitlines()
    name = f"{path.parent.name}/{path.stem}"
    return int(lines[-1].removeprefix("exit ")), tuple(shlex.split(lines[0])[2:]), PREPARED.get(name, [])


STORIES = {
    f"{folder}/{path.stem}": read(path)
    for folder in ("up", "swap", "pull", "down", "status", "logs", "exec", "doctor")
    for path in sorted((FOLDER / folder).glob("*.txt"))
}
"""Exit code, words and preparations. A new one begins as a file with its first line, `$ cluster …`, and `exit N`."""


def test_every_preparation_has_its_story() -> None:
    assert PREPARED.keys() <= STORIES.keys()


@pytest.mark.parametrize("name", STORIES)
def test_transcript(name: str, cluster: Typed) -> None:
    code, words, prepare = STORIES[name]
    for change in prepare:
        change(cluster)
    before, state = [len(host.asked) for host in cluster.desk.hosts.values()], cluster.desk.state()
    ran = cluster(*words)
    asked = before != [len(host.asked) for host in cluster.desk.hosts.values()]
    assert all(len(lines) <= 4 for lines in ran.errors())
    rolled_back = [any(line.startswith("rolled back: ") for line in lines) for lines in ran.errors()]
    if words[0] not in ("up", "swap", "pull", "down"):
        assert not any(rolled_back), "it changes nothing"
    elif cluster.desk.state() == state and (asked or code == 3):
        assert all(rolled_back), "nothing was changed, or all of it was taken back, and it says so"
    assert bool(ran.errors()) == (code not in (0, 4) or (code == 4 and words[0] not in ("status", "doctor")))
    compare(name, written(words, ran, cluster.place))
    assert ran.code == code
    assert code != 2 or asked == ("[deployment-not-chosen]" in ran.err), "refused before any host is asked"
