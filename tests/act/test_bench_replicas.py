"""Several servers of the same share the requests: what is sent where, what is counted, and when one of them dies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_live import Watching, known_server
from machine import Desk
from measured_desk import RECIPE, LoadClient, measurable, server
from typed import Typed

from cluster.bench.loader import Batch, BatchRecord, ProcessLoader
from cluster.bench.result import Manifest, warnings
from cluster.bench.run import run_bench
from cluster.bench.wanted import BenchWanted
from cluster.errors import RefusedError

RATE = 200.0
NAMES = ("a on spark1", "a on spark2")


@pytest.fixture
def client() -> LoadClient:
    """A client of two servers, without sockets: no second passes."""
    return LoadClient([server(RATE, 0.02), server(RATE, 0.02)], {})


@pytest.fixture
def load(client: LoadClient) -> ProcessLoader:
    return ProcessLoader(client)


def wanted(model: str = "plain", **given: object) -> BenchWanted:
    values: dict = {"pp": (64,), "tg": (32,), "depth": (0,), "runs": 2}
    return BenchWanted(("http://one", "http://two"), model, **values | given)


def test_requests_go_to_the_servers_in_turn(load: ProcessLoader) -> None:
    watching = Watching(load)
    measured = run_bench(watching, wanted(tg=(16, 440), concurrency=(1, 2, 5)), manifest=Manifest("", replicas=NAMES))
    rows = {(row.response_size, row.concurrency): row for row in measured.rows}
    assert all((row.failed, row.notes) == (0, ()) for row in measured.rows)
    for clients, each in ((1, (1, 1)), (2, (2, 2)), (5, (5, 5))):  # over two runs
        row = rows[440, clients]
        assert row.replicas
        assert tuple(one["requests"] for one in row.replicas.values()) == each
        assert list(row.replicas) == list(NAMES)
        assert row.server["requests"] == sum(each)
        assert (row.server["foreign_requests"], row.server["foreign_tokens"]) == (0, 0)
    assert rows[440, 2].tg_throughput.mean == pytest.approx(2 * RATE, rel=0.01)
    sent = [ask.server for ask in watching.asks if ask.path == "/tokenize"]
    assert set(sent) == {0}


def test_a_single_client_meets_all_servers_in_its_runs(load: ProcessLoader) -> None:
    """And the sentinel compares runs of the same server."""
    watching = Watching(load)
    measured = run_bench(watching, wanted(tg=(8,), depth=(0, 64)))
    asks = [ask for ask in watching.asks if ask.body and ask.body.get("stream") and ask.body["max_tokens"] == 8]
    warm = 1 + 2 * 2  # until one is served, then each prompt length on each server
    assert [ask.server for ask in asks[warm:]] == [0, 0, 1, 1, 0]
    assert measured.sentinel
    assert measured.sentinel.extra
    assert measured.manifest.model == "plain"


@pytest.mark.parametrize("model", ["caching", "caching-untold"])
def test_a_prompt_goes_where_its_context_is(load: ProcessLoader, model: str) -> None:
    given = {"pp": (64,), "tg": (4,), "depth": (320,), "depth_mode": "prefix-caching", "concurrency": (1, 3)}
    for row in run_bench(load, wanted(model, **given)).rows[1::2]:
        assert row.cache == {"hit": row.requests}
        assert row.notes == ()


def test_places_of_all_servers_count(load: ProcessLoader) -> None:
    one, two = run_bench(load, wanted(tg=(8,), runs=1, concurrency=(4, 5), max_num_seqs=2)).rows
    assert (one.queued, two.queued) == (0, 1)


def test_servers_of_different_models_are_no_replicas(client: LoadClient, load: ProcessLoader) -> None:
    client.servers[1] = server(RATE, engine="vllm")
    with pytest.raises(RefusedError, match=r"are not replicas: http.*0\.32\.0") as caught:
        run_bench(load, wanted())
    assert caught.value.code == "replicas-differ"


def test_a_replica_that_dies_is_marked_in_each_row_it_lacks(client: LoadClient, load: ProcessLoader) -> None:
    class Killing(Watching):
        """The second server dies before a batch."""

        def send(self, wanted: Batch) -> BatchRecord:
            if "pp64 tg32 (c2) run1" in wanted.id:
                client.servers[1] = None
            return super().send(wanted)

    replicas = Manifest("", replicas=NAMES)
    measured = run_bench(Killing(load), wanted(concurrency=(1, 2), runs=4), manifest=replicas)
    one, two = measured.rows
    assert (one.failed, one.requests) == (1, 4), "of the single clients' runs it was sent the second and the fourth"
    assert (two.failed, two.requests, two.runs) == (3, 8, 4)
    assert two.tg_throughput is None or len(two.tg_throughput.values) == 1
    assert one.notes == ("REPLICA LOST: a on spark2 answered no request in 1 of 4 runs",)
    assert two.notes == ("REPLICA LOST: a on spark2 answered no request in 3 of 4 runs",)
    assert all(failure.endswith(" (a on spark2)") for failure in two.failures)
    assert [line.split(":")[0] for line in warnings(measured)][:3] == [
        "4 of 12 requests FAILED; the numbers are those of the others",
        "REPLICA LOST",
        "REPLICA LOST",
    ]
    assert two.server["requests"] == 4 + 1, "the dead one's are known up to its death"


# as typed


@pytest.fixture
def toy(place: Path) -> Path:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="plain"))
    return place / "kept"


BENCH = ("bench", "--results", "kept")


@pytest.fixture
def solos(cluster: Typed, desk: Desk, toy: Path) -> list[str]:
    """Two deployments of one host, by host."""
    for host in ("spark1", "spark2"):
        cluster.must("up", "toy", "--solo", "-n", host)
    return sorted(desk.serving(), key=lambda name: desk.serving()[name])


def stored(kept: Path) -> dict:
    [path] = kept.glob("*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("words", [("--replicas",), ("-n", "spark1,spark2"), ("-n", "spark1,spark2", "--replicas")])
def test_two_deployments_share_the_requests(
    cluster: Typed, desk: Desk, solos: list[str], toy: Path, words: tuple[str, ...]
) -> None:
    with measurable(desk, (100,)):
        ran = cluster.must(*BENCH, *words, "--concurrency", "2")
    found = stored(toy)
    manifest = found["manifest"]
    assert manifest["replicas"] == [f"{name} on spark{at}" for at, name in enumerate(solos, 1)]
    assert (manifest["tp"], manifest["nodes"], manifest["client_on"]) == (1, 2, "container")
    assert [(host["name"], host["role"]) for host in manifest["hosts"]] == [("spark1", "head"), ("spark2", "head")]
    [row] = found["benchmarks"]
    assert [one["requests"] for one in row["replicas"].values()] == [2, 2]
    assert set(row["machine"][0]["after"]) == {"spark1", "spark2"}, "both hosts are watched"
    assert f"requests go in turn to 2 servers: {solos[0]} on spark1, {solos[1]} on spark2" in ran.out
    [setup] = [one.given for one in desk.hosts["spark1"].processes if isinstance(one, LoadClient)]
    assert setup["urls"] == ["http://192.168.1.41:8000", "http://192.168.1.42:8000"]


@pytest.mark.parametrize("words", [("bench",), ("down",), ("down", "--dry-run"), ("logs",), ("probe",)], ids=" ".join)
def test_which_of_two_is_asked_for(cluster: Typed, desk: Desk, solos: list[str], words: tuple[str, ...]) -> None:
    before = desk.state()
    ran = cluster.ends(2, *words)
    assert "[deployment-not-chosen]" in ran.err
    assert f"{solos[0]} on spark1; {solos[1]} on spark2" in ran.error["error"]
    assert ("--replicas" in ran.error["hint"]) == (words == ("bench",))
    assert desk.state() == before


def test_status_and_what_names_the_hosts_of_both(cluster: Typed, desk: Desk, solos: list[str]) -> None:
    shown = json.loads(cluster.must("status", "--json").out)["deployments"]
    assert [(one["id"], one["state"], one["hosts"]) for one in shown] == [
        (solos[0], "ready", ["spark1"]),
        (solos[1], "ready", ["spark2"]),
    ]
    rows = json.loads(cluster.must("logs", "-n", "spark1,spark2", "--json").out)["lines"]
    assert {row["deployment"] for row in rows} == {*solos}
    cluster.must("down", "-n", "spark1,spark2")
    assert desk.serving() == {}


def test_both_hosts_are_locked(cluster: Typed, desk: Desk, solos: list[str]) -> None:
    locked: list[tuple[str, ...]] = []
    with measurable(desk, (100,), lambda: locked.append(tuple(cluster("down", "-n", "spark2").errors()[0]))):
        cluster.must(*BENCH, "--replicas")
    assert all("[locked]" in lines[0] and f"bench {solos[0]}, {solos[1]}" in " ".join(lines) for lines in locked)
    assert locked


@pytest.mark.parametrize("words", ["", "-i elsewhere.yaml"])
def test_the_next_command_measures_what_was_started(
    cluster: Typed, desk: Desk, solos: list[str], toy: Path, words: str
) -> None:
    """Another deployment runs beside it; the inventory may be named on the command line only."""
    if words:
        Path("inventory/default.yaml").rename("elsewhere.yaml")
    ran = cluster.must("up", "toy", "--solo", "-n", "spark2", "--no-probe", *words.split())
    [line] = [line for line in ran.out.splitlines() if line.startswith("next: cluster ")]
    with measurable(desk, (100,)):
        cluster.must(*line.split()[2:], "--depth", "0", "--runs", "1", "--results", "kept")
    assert stored(toy)["manifest"]["deployment"] == solos[1]


@pytest.mark.parametrize(
    "command", ["bench --results kept --replicas", "bench --results kept -n spark1", "probe -n spark1"]
)
@pytest.mark.parametrize("words", ["up toy --solo -n spark1 -e SEED=2 --no-probe", "down -n spark1"])
def test_what_is_measured_runs_when_the_lock_is_held(
    cluster: Typed, desk: Desk, solos: list[str], toy: Path, words: str, command: str
) -> None:
    """Another operator replaces or ends it after it was chosen, and is done before the lock is taken."""
    desk.when_locked("spark1", lambda: cluster.must(*words.split()))
    with measurable(desk, (100,)):
        ran = cluster.ends(4, *command.split())
    assert "[deployment-changed]" in ran.err
    assert solos[0] in ran.error["error"]
    assert not toy.exists()


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--set", "vllm.max-num-seqs=8"), "replicas-differ", "recipe.vllm.max-num-seqs"),
        (("-e", "SEED=2"), "replicas-differ", "env.SEED"),
        (("--bind", "127.0.0.1"), "replica-not-reachable", "127.0.0.1"),
        ((), "replicas-missing", "toy-"),
    ],
)
def test_what_are_no_replicas(
    cluster: Typed, desk: Desk, toy: Path, words: tuple[str, ...], code: str, what: str
) -> None:
    cluster.must("up", "toy", "--solo", "-n", "spark1")
    if words:
        cluster.must("up", "toy", "--solo", "-n", "spark2", *words)
    ran = cluster.ends(4, *BENCH, "--replicas")
    assert f"[{code}]" in ran.err
    assert what in ran.err
    assert not toy.exists()


def test_a_port_of_its_own_is_no_difference(cluster: Typed, desk: Desk, toy: Path) -> None:
    cluster.must("up", "toy", "--solo", "-n", "spark1")
    cluster.must("up", "toy", "--solo", "-n", "spark2", "--set", "port=8001")
    with measurable(desk, (100,)):
        cluster.must(*BENCH, "--replicas", "--runs", "1")


def test_the_first_replica_ends_and_the_client_with_it(
    cluster: Typed, desk: Desk, solos: list[str], toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next client runs beside the other replica; exit 6, and the row is marked."""
    starts: list[float] = []
    send = ProcessLoader.send

    def ends(self: ProcessLoader, batch: Batch) -> BatchRecord:
        if "run1" in batch.id and len(starts) == 1:
            desk.kill_rank("spark1")
            [client] = [one for one in desk.hosts["spark1"].processes if isinstance(one, LoadClient)]
            client.end(137)
        return send(self, batch)

    monkeypatch.setattr(ProcessLoader, "send", ends)
    with measurable(desk, (100,), lambda: starts.append(desk.now)):
        ran = cluster(*BENCH, "--replicas", "--concurrency", "2", "--runs", "3")
    assert ran.code == 6, (ran.code, ran.all)
    assert len(starts) == 2
    [row] = stored(toy)["benchmarks"]
    assert (row["failed"], row["requests"], row["repeated"]) == (2, 6, [1])
    lost = f"REPLICA LOST: {solos[0]} on spark1 answered no request in 2 of 3 runs"
    assert lost in row["notes"]
    assert lost in ran.err.splitlines(), "it is said before the numbers"
    spark1, spark2 = (
        [one for one in desk.hosts[name].processes if isinstance(one, LoadClient)] for name in ("spark1", "spark2")
    )
    assert (len(spark1), len(spark2)) == (1, 1)


def test_several_urls(cluster: Typed, toy: Path) -> None:
    """Over real sockets."""
    short = ("--model", "plain", "--pp", "64", "--tg", "8", "--depth", "0", "--runs", "2")
    with known_server("--rate", "200") as one, known_server("--rate", "200") as two:
        urls, words = [one, two], ["--base-url", one, "--base-url", two]
        ran = cluster.must(*BENCH, *words, *short)
    manifest, [row] = (stored(toy)[key] for key in ("manifest", "benchmarks"))
    assert (manifest["replicas"], manifest["client_on"], manifest["tp"]) == (urls, "local", None)
    assert [one["requests"] for one in row["replicas"].values()] == [1, 1], "one run each, as they count"
    assert f"requests go in turn to 2 servers: {', '.join(urls)}" in ran.out
    cluster.ends(2, *BENCH, *words[:2], *words[:2], *short)
    assert "one --base-url" in cluster.ends(2, "probe", *words).err
