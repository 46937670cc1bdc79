"""`cluster up` as typed: what is the same stays, what differs is named and replaced, what fails is rolled back."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_docker import Image
from machine import DATA, HUB, IMAGE, MODEL, Desk, Killed, Stranger, unreachable
from spark import COMMIT
from typed import INVENTORY, RECIPE, THREE, UP, Ran, Typed

BATCH = (*UP, "--", "--max-num-seqs", "8")


def replaced(old: str, ran: Ran) -> list[str]:
    """What a command says that it replaces a deployment for."""
    return re.findall(rf"^replace {old}: (.*)$", re.sub(r"\b[0-9a-f]{12}…", "DIGEST", ran.out), re.MULTILINE)


def write_recipe(more: str = "") -> None:
    Path("recipes/toy.yaml").write_text(RECIPE + more)


def changes(desk: Desk) -> int:
    """How many changes the last command made."""
    return sum(host.changes for host in desk.hosts.values())


def other_image(desk: Desk) -> None:
    """A new image behind the tag."""
    for machine in desk:
        machine.docker.images[IMAGE] = Image(IMAGE, layers=("sha256:aaaa", "sha256:cccc"))


OTHER_ENV = INVENTORY.replace("192.168.1.42, user: nvidia", "192.168.1.42, user: nvidia, env: {DEBUG: 1}")


# the same again


def test_second_up_changes_nothing_and_says_so(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    before = desk.state()
    ran = cluster.must(*UP)
    assert "runs already on spark1, spark2: nothing is changed" in ran.out
    assert "one completion: 24 tokens" in ran.out, "it is proven all the same"
    assert "Ray: 2 nodes: 192.168.100.11 (1 GPU), 192.168.100.12 (1 GPU)" in ran.out
    assert desk.state() == before
    assert changes(desk) == 0


def test_a_deployment_on_its_way_is_joined(cluster: Typed, desk: Desk) -> None:
    """The operator was killed while the engine loaded; the next `up` waits for the same containers."""
    desk.at_sleep(2, desk.kill)
    with pytest.raises(Killed):
        cluster(*UP)
    desk.recover()
    assert desk.serving() == {}
    ran = cluster.must(*UP)
    assert "nothing is changed" in ran.out
    assert changes(desk) == 0
    assert {one.starts for one in desk.containers} == {1}
    desk.deployment()


@pytest.mark.parametrize("drift", ["address", "no links"])
def test_what_was_observed_may_drift(drift: str, cluster: Typed, desk: Desk, running: str) -> None:
    for number, machine in enumerate(desk, 1):
        machine.ports[0].addresses = (f"169.254.35.{number}/16",)
        machine.ports = machine.ports[-1:] if drift == "no links" else machine.ports
    ran = cluster.must(*UP, "--allow-socket")
    assert "nothing is changed" in ran.out
    assert "spark1: address was 192.168.100.11 at the start and is" in ran.err
    assert changes(desk) == 0
    assert desk.deployment() == running


FACTS = ("memory", "listening", "processes", "disk", "deployments", "lock", "links", "weights")


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_cannot_be_read_is_no_reason_to_replace(
    fact: str, cluster: Typed, desk: Desk, running: str
) -> None:
    desk["spark2"].missing[fact] = {"missing": "the disk is gone", "kind": "unreadable"}
    ran = cluster.must(*UP)
    assert "nothing is changed" in ran.out
    assert changes(desk) == 0
    assert desk.deployment() == running


@pytest.mark.parametrize("verb", ["image", "ps", "inspect", "info"])
@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_what_the_decision_needs_stops_it(host: str, verb: str, cluster: Typed, desk: Desk, running: str) -> None:
    """Image and containers must be read to decide; when they cannot, nothing is touched."""
    before = desk.state()
    desk[host].docker.broken[verb] = (1, "Error response from daemon: i/o timeout")
    ran = cluster.ends(4, *BATCH)
    assert host in ran.err
    assert desk.state() == before
    assert desk.deployment() == running


def test_an_image_removed_from_under_it_is_fetched_and_nothing_else(cluster: Typed, desk: Desk, running: str) -> None:
    desk["spark2"].docker.registry = dict(desk["spark2"].docker.images)
    desk["spark2"].docker.images.clear()
    assert "nothing is changed" in cluster.must(*UP, "--yes").out
    assert desk.deployment() == running


# something differs


@pytest.mark.parametrize(
    ("differ", "why"),
    [
        ("--set vllm.max-num-seqs=8", "recipe.vllm.max-num-seqs: (none) → 8"),
        ("-- --max-num-seqs 8", 'words: [] → ["--max-num-seqs", "8"]'),
        ("-e SEED=2", "env.SEED: (none) → 2"),
        ("-e SOME_TOKEN=abcdef", 'secrets: [] → ["SOME_TOKEN"]'),
        ("--backend mp", "backend: ray → mp"),
        ("--bind 192.168.1.41", "bind: 0.0.0.0 → 192.168.1.41"),
        (lambda desk: Path("inventory/default.yaml").write_text(OTHER_ENV), 'host_env.spark2: (none) → {"DEBUG": "1"}'),
        (other_image, "image_content: DIGEST → DIGEST"),
        (lambda desk: write_recipe("shm_gib: 8\n"), "recipe.shm_gib: 16.0 → 8.0"),
    ],
)
def test_what_differs_is_named_and_replaced(
    differ: str | Callable[[Desk], object], why: str, cluster: Typed, desk: Desk, running: str
) -> None:
    if not isinstance(differ, str):
        differ(desk)
    ran = cluster.must(*UP, *(differ.split() if isinstance(differ, str) else ()))
    assert replaced(running, ran) == [why], "only what differs is named"
    assert desk.deployment() != running


def test_content_of_a_mounted_file(cluster: Typed, desk: Desk) -> None:
    write_recipe("mounts: [{source: patch.py, target: /opt/patch.py}]\n")
    Path("recipes/patch.py").write_text("print(1)")
    cluster.must(*UP)
    old = desk.deployment()
    [container] = desk["spark1"].docker.containers.values()
    assert desk["spark1"].read(container.source_of("/opt/patch.py")) == b"print(1)"
    Path("recipes/patch.py").write_text("print(2)")
    assert replaced(old, cluster.must(*UP)) == ["mounts./opt/patch.py: DIGEST → DIGEST"]
    [container] = desk["spark2"].docker.containers.values()
    assert desk["spark2"].read(container.source_of("/opt/patch.py")) == b"print(2)"
    # the same file from another place is the same
    Path("recipes/elsewhere.py").write_text("print(2)")
    write_recipe("mounts: [{source: elsewhere.py, target: /opt/patch.py}]\n")
    assert "nothing is changed" in cluster.must(*UP).out


EXPECT = "expect_log: {require: [Loading weights took], forbid: ['NaN|!!!!!']}\n"


def test_a_log_as_expected(cluster: Typed, desk: Desk) -> None:
    """What is expected is no part of what runs. Docker drops the oldest lines of a server that has run for long."""
    write_recipe(EXPECT)
    cluster.must(*UP)
    write_recipe()
    assert "nothing is changed" in cluster.must(*UP).out
    write_recipe(EXPECT)
    [container] = desk["spark1"].docker.containers.values()
    container.log = container.log[-1:]
    ran = cluster.must(*UP)
    assert "the log of spark1 no longer holds the start of its rank: expect_log is not checked" in ran.err


@pytest.mark.parametrize("expected", ["require: [Loading draft weights took]", "forbid: ['took [0-9.]+ seconds']"])
def test_a_log_that_is_not_as_expected_is_not_ready(expected: str, cluster: Typed, desk: Desk) -> None:
    ran = cluster.ends(4, *UP, "--set", f"expect_log={{{expected}}}")
    assert "[expect-log]" in ran.err
    assert "Loading weights took 2.50 seconds" in ran.err
    assert desk.serving() == {}


def write_dockerfile(text: str) -> None:
    write_recipe("dockerfile: toy.Dockerfile\n")
    Path("recipes/toy.Dockerfile").write_text(f"ARG IMAGE\nFROM $IMAGE\n{text}\n")


def test_an_image_is_built_on_each_host_before_the_start(cluster: Typed, desk: Desk) -> None:
    write_dockerfile("RUN true")
    cluster.must(*UP)
    old = desk.deployment()
    [first] = {one.image for one in desk.containers}
    assert re.fullmatch(r"cluster-built/toy:[0-9a-f]{12}", first)
    assert "nothing is changed" in cluster.must(*UP).out
    write_dockerfile("RUN false")
    assert replaced(old, cluster.must(*UP)) == ["dockerfile: DIGEST → DIGEST"]
    desk.deployment()
    [second] = {one.image for one in desk.containers}
    assert second != first
    assert cluster.must("down").code == 0
    for machine in desk:
        assert {first, second, IMAGE} <= machine.docker.images.keys(), "images are never removed"
        assert machine.kept() == []


def test_a_build_that_fails_leaves_the_old_one_serving(cluster: Typed, desk: Desk, running: str) -> None:
    write_dockerfile("RUN apt-get install no-such-package")
    desk["spark2"].docker.broken["build"] = (1, "ERROR: failed to solve: process did not complete: exit code: 100")
    ran = cluster.ends(1, *UP)
    assert "exit code: 100" in ran.err
    assert "spark2" in ran.err
    assert desk.deployment() == running
    assert {one.starts for one in desk.containers} == {1}, "it was never stopped"


def test_a_file_of_the_model_and_one_among_the_images_packages(cluster: Typed, desk: Desk) -> None:
    Path("recipes/new.py").write_text("")
    write_recipe(
        "mounts:\n  - {model_file: fix/toy.py, target: site-packages/vllm/toy.py}\n"
        "  - {source: new.py, target: site-packages/new.py}\n"
    )
    snapshot = f"{HUB}/hub/models--example--toy/snapshots/{COMMIT}"
    before = desk.state()
    refused = cluster.ends(4, *UP)
    assert "fix/toy.py: not there, and the recipe mounts it" in refused.err
    assert desk.state() == before
    for machine in desk:
        machine.files[f"{snapshot}/fix/toy.py"] = (b"patched", 0o644)
    cluster.must(*UP)
    [container] = desk["spark2"].docker.containers.values()
    assert container.source_of("/opt/packages/vllm/toy.py") == f"{snapshot}/fix/toy.py"
    assert desk["spark2"].read(container.source_of("/opt/packages/new.py")) == b""
    assert "nothing is changed" in cluster.must(*UP).out
    desk["spark2"].files[f"{snapshot}/fix/toy.py"] = (b"patched again", 0o644)
    refused = cluster.ends(4, *UP)
    assert "the hosts have different copies of fix/toy.py: spark1 " in refused.err
    desk["spark1"].files[f"{snapshot}/fix/toy.py"] = (b"patched again", 0o644)
    ran = cluster.must(*UP)
    assert replaced(r"toy-\w+", ran) == ["mounts.site-packages/vllm/toy.py: DIGEST → DIGEST"]
    assert "nothing is changed" in cluster.must(*UP).out


def test_descriptive_keys_are_no_difference(cluster: Typed, desk: Desk, running: str) -> None:
    Path("recipes/toy.yaml").write_text(RECIPE.replace("{1: 100, 2: 95}", "{1: 90, 2: 90}") + "summary: other words\n")
    assert "nothing is changed" in cluster.must(*UP, "--set", "ready_timeout_s=77").out
    assert changes(desk) == 0


# the new one fails


def test_two_solo_deployments_make_way_for_a_pair(cluster: Typed, desk: Desk) -> None:
    """And when the pair fails, both serve again."""
    cluster.must("up", "toy", "--solo", "-n", "spark1")
    cluster.must("up", "toy", "--solo", "-n", "spark2")
    two = desk.serving()
    assert sorted(two.values()) == [["spark1"], ["spark2"]]
    desk.bad_flag = "--max-num-seqs"
    ran = cluster.ends(1, *BATCH)
    assert all(f"replace {name}, which runs on" in ran.out for name in two)
    desk.pass_time(10)
    assert desk.serving() == two
    cluster.must(*UP)
    desk.deployment()


def lost() -> None:
    raise unreachable("spark2")


@pytest.mark.parametrize(("change", "code"), [("docker stop", 0), ("mkdir", 0), ("docker run --detach", 3)])
def test_a_connection_that_is_lost_before_a_change_is_made(
    change: str, code: int, cluster: Typed, desk: Desk, running: str
) -> None:
    """Nobody knows whether it was made: what may be done twice is done again, what may not is undone."""
    desk.when_asked("spark2", change, lost)
    ran = cluster.ends(code, *UP, "-e", "SEED=2")
    if code:
        assert ran.error["error"].startswith("the connection to spark2 was lost during: ")
        assert f"{running} was started again" in ran.error["rolled back"]
    desk.pass_time(10)
    assert (desk.deployment() == running) == bool(code)


# dry run


@pytest.mark.parametrize("words", [(), ("--backend", "mp"), ("--", "--max-num-seqs", "8")])
@pytest.mark.parametrize("running", [False, True])
def test_dry_run_shows_what_is_then_done_and_changes_nothing(
    running: bool, words: tuple[str, ...], cluster: Typed, desk: Desk
) -> None:
    if running:
        cluster.must(*UP, "-e", "SEED=1")
    before, audit = desk.state(), [list(machine.audit) for machine in desk]
    shown = cluster.must(*UP, "--dry-run", *words)
    assert desk.state() == before
    assert [list(machine.audit) for machine in desk] == audit
    written = {name: len(line.puts) for name, line in desk.hosts.items()}
    cluster.must(*UP, *words)
    printed: dict[str, list[str]] = {"spark1": [], "spark2": []}
    host = ""
    for line in shown.out.partition("# stage: ")[2].splitlines():
        named = re.match(r"# (spark\d): ", line)
        host = named[1] if named else host
        if host and line and not line.startswith("#"):
            printed[host].append(line)
    assert all(printed.values())
    for name, line in desk.hosts.items():
        done = [shlex.join(one.argv) for one in line.asked if one.changes and "cluster.try=1" not in one.argv]
        assert done[-len(printed[name]) :] == printed[name]
        for put in line.puts[written[name] :]:
            assert re.search(rf"^# write {re.escape(put.path)} mode {put.mode:04o} ", shown.out, re.MULTILINE)


def test_dry_run_needs_no_lock_and_fetches_nothing(cluster: Typed, desk: Desk) -> None:
    desk.hosts["spark1"].lock_holder = {"who": "ada", "since": 0.0, "why": "bench"}
    cluster.must(*UP, "--dry-run")
    desk["spark2"].models.clear()
    before = desk.state()
    ran = cluster.ends(4, *UP, "--dry-run", "--yes")
    assert "model example/toy is not on spark2; a dry run fetches nothing" in ran.err
    assert desk.state() == before


# sizes and backends


def words_of(desk: Desk, name: str) -> dict[str, object]:
    """rank.json of a host's only container."""
    [container] = desk[name].docker.containers.values()
    return dict(json.loads(desk[name].read(container.source_of("/cluster/rank.json"))))


def test_one_rank_needs_no_ray_unless_asked(cluster: Typed, desk: Desk) -> None:
    cluster.must("up", "toy", "--solo")
    assert desk.serving().popitem()[1] == ["spark1"]
    got = words_of(desk, "spark1")
    assert (got["backend"], got["ray_start"]) == ("none", None)
    assert "--distributed-executor-backend" not in got["engine"]
    ran = cluster.must("up", "toy", "--tp", "1", "-n", "spark1", "--backend", "ray")
    got = words_of(desk, "spark1")
    assert got["backend"] == "ray"
    assert got["ray_start"]
    assert "Ray: 1 nodes: 192.168.1.41 (1 GPU)" in ran.out
    assert "between the ranks" not in ran.out


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_three_hosts(backend: str, cluster: Typed) -> None:
    cluster.desk = Desk("spark1", "spark2", "spark3")
    Path("inventory/default.yaml").write_text(THREE)
    cluster.must("up", "toy", "--backend", backend)
    [(_, hosts)] = cluster.desk.serving().items()
    assert hosts == ["spark1", "spark2", "spark3"]
    cluster.must("down")
    cluster.must("up", "toy", "--tp", "1", "--pp", "3", "--backend", backend)
    assert "--pipeline-parallel-size" in words_of(cluster.desk, "spark1")["engine"]


# what is broken is repaired

BREAK: dict[str, Callable[[Desk], object]] = {
    "rebooted": lambda desk: [desk.reboot(name) for name in ("spark1", "spark2")],
    "container gone": lambda desk: desk["spark2"].docker.containers.clear(),
    "head killed": lambda desk: (desk.kill_rank("spark1"), desk.pass_time(5)),
    "worker killed": lambda desk: (desk.kill_rank("spark2"), desk.pass_time(5)),
    "head killed now": lambda desk: desk.kill_rank("spark1"),
    "worker killed now": lambda desk: desk.kill_rank("spark2"),
}


@pytest.mark.parametrize("backend", ["ray", "mp"])
@pytest.mark.parametrize("broken", BREAK)
def test_one_up_repairs(broken: str, backend: str, cluster: Typed, desk: Desk) -> None:
    """Also at once, while the other rank still holds memory and ports."""
    cluster.must(*UP, "--backend", backend)
    name = desk.deployment()
    BREAK[broken](desk)
    if not broken.endswith("now"):
        cluster.ends(4, "status")
    ran = cluster.must(*UP, "--backend", backend)
    assert f"replace what is left of {name}" in ran.out or broken.endswith("now")
    assert desk.deployment() == name


# other people


def test_a_stranger_at_the_new_port_is_seen_behind_our_own(cluster: Typed, desk: Desk, running: str) -> None:
    """Our outgoing rank's ports count as free, a stranger's do not."""
    before = desk.state()
    desk["spark1"].strangers.append(Stranger(812, "nginx", 8001))
    ran = cluster.ends(4, *UP, "--set", "port=8001")
    assert "port 8001 (OpenAI API) is taken: nginx (pid 812)" in ran.err
    assert desk.state() == before
    cluster.must(*UP, "--set", "port=8002")


def test_a_strangers_container_with_our_very_name_survives(cluster: Typed, desk: Desk) -> None:
    """Even when the user forces the check that would have stopped it."""
    shown = cluster.must(*UP, "--dry-run").out
    name = re.search(r"--name (cluster-toy-\w{8}-r1)", shown)
    assert name
    desk["spark2"].docker.answer(("run", "--detach", "--name", name[1], "--entrypoint", "sleep", IMAGE, "infinity"))
    before = desk.state()
    cluster.ends(4, *UP)
    ran = cluster.ends(1, *UP, "--force", "names")
    assert "is already in use" in ran.err
    after = desk.state()
    assert after["spark2"].containers == before["spark2"].containers
    assert after["spark1"].containers == {}
    cluster.must("down")
    assert desk.state()["spark2"].containers == before["spark2"].containers


# memory, fetching, the lock


def test_page_cache_is_dropped_only_when_it_stands_in_the_way(cluster: Typed, desk: Desk) -> None:
    desk["spark1"].cached_bytes = 60 << 30
    assert "drop_caches" in cluster.must(*UP, "--dry-run").out
    cluster.must(*UP)
    assert desk["spark1"].cached_bytes == 0
    cluster.must("down")
    desk["spark1"].cached_bytes = 60 << 30
    desk["spark1"].sudo = False
    ran = cluster.must(*UP)
    assert "drop the page cache was not possible" in ran.err
    cluster.must("down")
    desk["spark1"].cached_bytes = 1 << 30
    assert "drop_caches" not in cluster.must(*UP, "--dry-run").out


@pytest.mark.parametrize(
    "drafting",
    [
        ("--set", "vllm.speculative-config={method: mtp, model: example/drafter, num_speculative_tokens: 2}"),
        ("--set", "vllm.spec-model=example/drafter", "--set", "vllm.spec-tokens=2"),
        ("--", "--spec_model", "example/drafter"),
        ("--", "-sc.model", "example/drafter"),
    ],
)
def test_a_drafter_is_a_model_like_the_other(drafting: tuple[str, ...], cluster: Typed, desk: Desk) -> None:
    refused = cluster.ends(4, *UP, *drafting)
    assert "model example/drafter is not on spark1, spark2" in refused.err
    desk.hub |= {"example/drafter"}
    ran = cluster.must(*UP, "--yes", *drafting)
    assert "model example/drafter is not on spark1, spark2: download 59.0 GiB there" in ran.err
    assert {machine.name: set(machine.models) for machine in desk} == {
        "spark1": {MODEL, "example/drafter"},
        "spark2": {MODEL, "example/drafter"},
    }
    assert "nothing is changed" in cluster.must(*UP, *drafting).out
    desk["spark2"].models["example/drafter"] = "d0000000" * 5
    other = cluster.ends(4, *UP, *drafting, *([] if "--" in drafting else ["--"]), "--seed", "1")
    assert "the hosts have different copies of the model" in other.err


def test_the_lock_is_given_back_however_it_ends(cluster: Typed, desk: Desk) -> None:
    for words in (UP, UP, (*UP, "--set", "port=9"), ("down",), ("down",), (*UP, "--set", "vllm.max-model-len=1")):
        cluster(*words)
        assert [host.lock_holder for host in desk.hosts.values()] == [None, None]
        desk.bad_flag = "--max-model-len" if words == ("down",) else ""
    desk.hosts["spark2"].lock_holder = {"who": "ada", "since": 0.0, "why": "bench"}
    cluster.ends(5, *UP)
    assert desk.hosts["spark1"].lock_holder is None


def test_every_change_is_in_the_audit_of_its_host(cluster: Typed, desk: Desk) -> None:
    planned = []
    for words in (UP, ("down",)):
        planned += re.findall(r"^# spark2: (.*)$", cluster.must(*words, "--dry-run").out, re.MULTILINE)
        cluster.must(*words)
    assert {what.split()[0] for what in planned} >= {"write", "start", "stop", "remove"}
    assert [str(line["what"]) for line in desk["spark2"].audit] == planned
    assert {str(line["who"]) for line in desk["spark2"].audit} == {desk["spark2"].audit[0]["who"]}


def test_what_ready_prints(cluster: Typed, desk: Desk) -> None:
    got = json.loads(cluster.must(*UP, "--json").out)
    assert (got["endpoint"], got["model"], got["changed"]) == ("http://192.168.1.41:8000/v1", MODEL, True)
    assert list(got["memory_bytes"]) == ["idle", "ray_up", "loaded", "ready"]
    assert got["memory_bytes"]["ready"]["spark2"]["gpu"] == 90 << 30
    assert got["transport"]["verdict"] == "rdma"
    assert min(got["transport"]["bytes"].values()) > 1 << 20
    assert got["ray_nodes"] == ["192.168.100.11 (1 GPU)", "192.168.100.12 (1 GPU)"]
    assert {"look", "check", "try", "apply", "prove"} <= set(got["stages_s"])
    desk["spark1"].product = "Simulated Spark"
    ran = cluster.must(*UP)
    assert "simulated hosts: Simulated Spark" in ran.err


def test_what_the_counters_show_where_messages_bypass_nccl(cluster: Typed, desk: Desk) -> None:
    ran = cluster.must(*UP, "-e", "VLLM_ENABLE_ROCE_ALLREDUCE=1")
    assert re.search(
        r"ranks: rdma \(.*its log proves nothing about them; spark1 \S+ \d+\.\d MB, .*spark2 \S+ ", ran.out
    )


def test_a_key_is_asked_for(cluster: Typed, desk: Desk) -> None:
    Path("key").write_text("sk-0123456789\n")
    ran = cluster.must(*UP, "--api-key-file", "key", "--bind", "127.0.0.1")
    assert 'Authorization: Bearer $KEY"' in ran.out
    assert "listens on all addresses" not in ran.out
    assert "http://127.0.0.1:8000/v1" in ran.out
    name = desk.deployment()
    assert desk["spark1"].files[f"{DATA}/deployments/{name}/api-key"] == (b"sk-0123456789", 0o600)
    again = cluster.must(*UP, "--api-key-file", "key", "--bind", "127.0.0.1", "--clients")
    shown = cluster.must("status", "--clients", "--json")
    assert json.loads(shown.out)["clients"][name]["address"] == "http://127.0.0.1:8000"
    for ran in (again, shown):
        assert "VLLM_API_KEY" in ran.out
        assert "sk-0123456789" not in ran.all


@pytest.mark.parametrize("transport", ["recipe", "option"])
def test_sockets_may_be_allowed(transport: str, cluster: Typed, desk: Desk) -> None:
    desk.sockets = True
    words = ["--set", "transport=socket"] if transport == "recipe" else ["--allow-socket"]
    ran = cluster.must(*UP, *words)
    assert "between the ranks: socket" in ran.out
    assert re.search(r"RDMA was not used .*\(socket\): (the recipe says transport: socket|--allow-socket)", ran.err)


@pytest.mark.parametrize(
    "words",
    [("--set", "vllm.load-format=dummy"), ("--", "--load_format", "dummy"), ("--", "--load-format=dummy")],
)
def test_weights_that_vllm_makes_up_are_not_fetched(words: tuple[str, ...], cluster: Typed, desk: Desk) -> None:
    """The rest of the model is; a real start then finds that the weights are missing."""
    for machine in desk:
        machine.models.clear()
    desk.says = "!" * 50
    ran = cluster.must(*UP, "--yes", *words)
    assert "download 1.0 GiB there" in ran.err
    assert "weights are random" in ran.err
    assert all({"*.safetensors", "*.bin"} <= machine.left_out[MODEL] for machine in desk)
    assert cluster.must(*UP, *words).code == 0
    real = cluster.ends(4, *UP)
    assert "no weight files" in real.err


def test_recipe_of_weights_without_meaning_says_so(cluster: Typed, desk: Desk) -> None:
    desk.says = "!" * 50
    assert "weights are random" in cluster.must(*UP, "--set", "weights=dummy").err
