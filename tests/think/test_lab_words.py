"""What the lab writes and says, without a lab: addresses, inventory, images, tables of tools, quick answers."""

from __future__ import annotations

import io
import json
import re
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.config.inventory import Inventory
from cluster.errors import LockedError, UsageError
from cluster.lab.faults import FAULTS, meminfo_with_little
from cluster.lab.images import NO_RAY, QUICK, REAL, digest_of, dockerfile, lay_out_registry
from cluster.lab.inside import bundle, daemon, init
from cluster.lab.place import LabRecord, Place, locked, place_of, purge, read_record, write_record
from cluster.lab.quick import answers
from cluster.lab.quick.words import parse
from cluster.lab.shape import CABLED, PORTS, Spark, inventory_text
from cluster.lab.simulators import nvidia_smi

ROOT = Path(__file__).parents[2]


def sparks(count: int, lab: int = 0) -> tuple[Spark, ...]:
    return LabRecord(lab, count).sparks


def test_addresses_differ_by_host_and_lab() -> None:
    hosts = [host for lab in range(3) for host in sparks(3, lab)]
    assert len({host.management for host in hosts}) == 9
    assert len({host.mac(wire) for host in hosts for wire in range(5)}) == 45
    assert sparks(2)[1].management == "10.83.77.12"
    assert sparks(2)[1].fabric(CABLED[0]) == "192.168.100.12"
    assert sparks(2)[1].fabric(CABLED[1]) == "192.168.101.12"


def test_netdev_names_fit_the_kernel() -> None:
    assert all(len(port.netdev) <= 15 for port in PORTS)
    assert [port.hca for port in PORTS] == ["rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1"]


def test_inventory_is_one_the_product_reads() -> None:
    text = inventory_text(sparks(2), "/lab/key", "/lab/known_hosts")
    read = Inventory.model_validate(yaml.safe_load(text))
    addresses = {name: host.address for name, host in read.hosts.items()}
    assert addresses == {"spark1": "10.83.77.11", "spark2": "10.83.77.12"}
    assert read.groups == {"all": ["spark1", "spark2"]}
    assert (read.defaults.user, read.defaults.identity_file) == ("spark", "/lab/key")
    assert read.default_recipe == "lab-tiny"


def test_place_is_the_words_then_the_environment_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER_LAB_CACHE", raising=False)
    monkeypatch.setenv("CLUSTER_LAB_DIR", "/from/environment")
    assert place_of("/from/words") == Place(Path("/from/words"), Path("/from/words/cache"))
    assert place_of(None).root == Path("/from/environment")
    monkeypatch.delenv("CLUSTER_LAB_DIR")
    assert place_of(None).root == Path("/var/lib/cluster-lab")
    monkeypatch.setenv("CLUSTER_LAB_CACHE", "/shared")
    assert place_of("/x").cache == Path("/shared")


def test_record_survives_and_a_broken_one_counts_as_none(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "cache")
    assert read_record(place) == LabRecord()
    write_record(place, LabRecord(3, 2, {"spark2": ["mtu"]}))
    assert read_record(place) == LabRecord(3, 2, {"spark2": ["mtu"]})
    place.record.write_text("{half")
    assert read_record(place) == LabRecord()


def test_two_lab_commands_do_not_interleave(tmp_path: Path) -> None:
    """In a directory where only a cache lies, in which another lab built."""
    place = Place(tmp_path, tmp_path / "cache")
    place.cache.mkdir()
    with locked(place), pytest.raises(LockedError, match="another lab command"), locked(place):
        pass
    with locked(place):
        pass


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    with pytest.raises(UsageError, match="no lab's directory"), locked(Place(tmp_path, tmp_path / "cache")):
        pass
    assert (tmp_path / "hosts").exists()


def test_purge_removes_what_is_ours_only(tmp_path: Path) -> None:
    place = Place(tmp_path / "lab", tmp_path / "lab/cache")
    with locked(place):
        (place.cache / "engine").mkdir(parents=True)
        (place.cache / "mine").touch()
        purge(place)
    assert [path.name for path in place.root.rglob("*")] == ["cache", "mine"]
    (place.cache / "mine").unlink()
    purge(place)
    assert not place.root.exists()


def test_registry_of_a_saved_image_has_its_blobs_by_digest(tmp_path: Path) -> None:
    rows = [{"Config": "config.json", "RepoTags": ["x/y:z"], "Layers": ["a/layer.tar"]}]
    files = {"config.json": b"{}", "a/layer.tar": b"layer", "manifest.json": json.dumps(rows).encode()}
    with tarfile.open(tmp_path / "saved.tar", "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    lay_out_registry(tmp_path / "saved.tar", tmp_path / "registry")
    manifest = tmp_path / "registry/manifests/x/y/z"
    assert manifest.resolve().name == digest_of(manifest.read_bytes())
    layer = json.loads(manifest.read_text())["layers"][0]
    assert (tmp_path / "registry/blobs" / layer["digest"]).read_bytes() == b"layer"
    assert layer["size"] == 5


def test_images_differ_in_engine_and_in_who_answers_to_vllm() -> None:
    assert 'CLUSTER_LAB_ENGINE="real"' in dockerfile(REAL, {})
    assert 'CLUSTER_LAB_ENGINE="no-ray"' in dockerfile(NO_RAY, {})
    assert 'PATH="/opt/engine/bin:' in dockerfile(REAL, {})
    assert 'PATH="/opt/quick/bin:/opt/engine/bin:' in dockerfile(QUICK, {})
    assert all(
        text.endswith('ENTRYPOINT ["vllm"]\n') for text in (dockerfile(kind, {}) for kind in (REAL, NO_RAY, QUICK))
    )


def container(**more: Any) -> dict[str, Any]:
    """The parts of an OCI bundle's config that are looked at."""
    limits = [{"type": "RLIMIT_MEMLOCK", "hard": 1, "soft": 1}, {"type": "RLIMIT_NOFILE", "hard": 2, "soft": 2}]
    return {"process": {"env": ["CLUSTER_LAB_ENGINE=real"], "rlimits": limits}, "mounts": [], **more}


def test_container_loses_the_limit_and_sees_the_engine() -> None:
    spec = container()
    bundle.fit_container(spec)
    assert [limit["type"] for limit in spec["process"]["rlimits"]] == ["RLIMIT_NOFILE"]
    shown = [(mount["source"], mount["destination"]) for mount in spec["mounts"]]
    assert shown == [("/opt/cluster-lab/engine", "/opt/engine")]


def test_container_sees_nvidia_smi_only_with_gpus() -> None:
    spec = container(hooks={"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]})
    spec["process"]["env"] = []
    bundle.fit_container(spec)
    assert [mount["destination"] for mount in spec["mounts"]] == ["/usr/bin/nvidia-smi", "/run/cluster-lab"]


def test_container_sees_the_limit_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = container(root={"path": "/rootfs"}, hooks=None)
    bundle.fit_container(spec)
    assert spec["hooks"] is None
    (tmp_path / "meminfo").touch()
    monkeypatch.setattr(bundle, "MEMORY", {f"{tmp_path}/meminfo": "meminfo", f"{tmp_path}/none": "pressure/memory"})
    bundle.fit_container(spec)
    words = ["mount", "-o", "bind,ro", f"{tmp_path}/meminfo", "/rootfs/proc/meminfo"]
    assert spec["hooks"] == {"createContainer": [{"path": "/usr/bin/mount", "args": words}]}


def test_meminfo_of_a_limit_has_one_length_and_counts_files_as_available() -> None:
    mib = 1 << 20
    empty = daemon.meminfo(119 << 30, 0, {})
    stat = {"total_active_file": mib, "total_inactive_file": 2 * mib, "total_active_anon": 5 * mib}
    some = daemon.meminfo(119 << 30, 9 * mib, stat)
    full = daemon.meminfo(119 << 30, (119 << 30) + 4096, {"total_active_file": 120 << 30})
    assert len(empty) == len(some) == len(full)
    rows = {name: int(kib) for name, kib in re.findall(r"(\w+): +(\d+) kB\n", some)}
    assert rows["MemTotal"] - rows["MemFree"] == 9 << 10
    assert rows["MemAvailable"] - rows["MemFree"] == 3 << 10
    assert (rows["Active"], rows["Inactive"], rows["SwapTotal"]) == (6 << 10, 2 << 10, 0)
    assert "MemFree:                0 kB\n" in full
    assert f"MemAvailable:   {119 << 20} kB\n" in full


def test_limit_of_memory_is_the_hosts_own() -> None:
    record = LabRecord(3, 2, memory={"spark2": 8})
    assert [spark.memory_gib for spark in record.sparks] == [0, 8]


def test_gids_are_written_as_sysfs_does() -> None:
    table = init.gids("02:5a:00:03:00:02", "192.168.100.12")
    assert table[0] == table[1] == "fe80:0000:0000:0000:005a:00ff:fe03:0002"
    assert table[2] == table[3] == "0000:0000:0000:0000:0000:ffff:c0a8:640c"
    assert len(init.gids("02:5a:00:03:00:02", "")) == 2


def test_little_memory_keeps_the_file_readable() -> None:
    text = "MemTotal:       24684092 kB\nMemFree:        16000000 kB\nMemAvailable:   19000000 kB\nSwapCached: 0 kB\n"
    assert meminfo_with_little(text) == (
        "MemTotal:       24684092 kB\nMemFree:        500000 kB\nMemAvailable:   1500000 kB\nSwapCached: 0 kB\n"
    )


def test_faults_have_a_line_each() -> None:
    wanted = (
        "link-down mtu one-twin no-ipv4 counters-still host-key no-docker docker-down no-sudo no-ray no-image no-model"
    )
    assert {*wanted.split(), "stranger", "low-memory", "clock", "power-cap", "wedged", "killed", "reboot"} <= set(
        FAULTS
    )
    assert all(fault.what and len(fault.what) < 80 for fault in FAULTS.values())


class Letters:
    """A tokenizer of one token a letter."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())


def quick(*words: str) -> Namespace:
    """The words of a quick `vllm serve`."""
    return parse(["cluster-lab/tiny", *words])


def ask(body: dict[str, Any], *words: str) -> answers.Request:
    """A request as the quick server reads it."""
    return answers.read_request(body, "messages" in body, quick(*words), Letters())


def test_quick_reads_words_and_ignores_what_it_does_not_know() -> None:
    given = quick("--tensor-parallel-size", "2", "--no-such-flag", "7", "--additional-config", '{"quick": {"mib": 5}}')
    assert (given.size, given.quick, given.names) == (2, {"mib": 5}, ["cluster-lab/tiny"])


def test_quick_counts_tokens_of_text_and_of_ids() -> None:
    assert ask({"prompt": "abcd", "max_tokens": 2}).prompt_tokens == 4
    assert ask({"prompt": [7] * 9}).prompt_tokens == 9
    assert ask({"messages": [{"role": "user", "content": "ab"}]}).prompt_tokens == 6


def test_quick_stream_has_one_token_an_event_then_usage() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = ask({"prompt": "ab", "max_tokens": 3, "stream": True, "stream_options": options})
    rows = [answers.chunk(request, index) for index in range(3)]
    assert [row["usage"]["completion_tokens"] for row in rows] == [1, 2, 3]
    assert [row["choices"][0]["finish_reason"] for row in rows] == [None, None, "length"]
    assert answers.last(request)["choices"] == []
    assert "".join(row["choices"][0]["text"] for row in rows) == answers.whole(request)["choices"][0]["text"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"prompt": "ab", "model": "other"}, 404, "does not exist"),
        ({"prompt": [1] * 90, "max_tokens": 11}, 400, "maximum context length is 100"),
        ({"messages": [], "tool_choice": "auto"}, 400, "--enable-auto-tool-choice"),
    ],
)
def test_quick_refuses_as_vllm_does(body: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(answers.Refused) as refused:
        ask(body, "--max-model-len", "100")
    assert refused.value.args[0] == status
    assert words in refused.value.args[1]
    assert answers.error(*refused.value.args)["error"]["code"] == status


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(nvidia_smi, "compute_apps", lambda given: [])
    return nvidia_smi


def test_nvidia_smi_says_na_for_memory_and_names_itself(smi: Any, capsys: pytest.CaptureFixture[str]) -> None:
    smi.main(["--query-gpu=name,memory.used,memory.total,power.draw", "--format=csv,noheader"])
    assert capsys.readouterr().out == "NVIDIA GB10 (simulated), [N/A], [N/A], 4.20 W\n"
    smi.main(["--query-gpu=memory.used,memory.total,utilization.memory", "--format=csv,noheader,nounits"])
    sample = (ROOT / "tests/samples/nvidia_smi_query_memory_na.csv").read_text().splitlines()[-1]
    assert capsys.readouterr().out.strip() == sample


def test_nvidia_smi_refuses_unknown_fields(smi: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        smi.main(["--query-gpu=name,foo", "--format=csv"])
    assert ended.value.code == 2
    assert 'Field "foo" is not a valid field to query.' in capsys.readouterr().out


def test_clocks_are_limited_by_root_and_put_back(
    smi: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smi, "CLOCKS", str(tmp_path / "clocks.json"))
    monkeypatch.setattr(smi.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as refused:
        smi.main(["-lgc", "0,2000"])
    assert refused.value.code == 4
    assert "permission" in capsys.readouterr().out
    monkeypatch.setattr(smi.os, "geteuid", lambda: 0)
    smi.main(["-lgc", "0,2000"])
    assert "gpuClkMax 2000" in capsys.readouterr().out
    busy = {"power_w": 40.0}
    values = smi.gpu_values(smi.reading(busy))
    assert (values["clocks.sm"], values["clocks_event_reasons.active"]) == (("2000", "MHz"), ("0x0000000000000002", ""))
    smi.main(["-rgc"])
    assert smi.gpu_values(smi.reading(busy))["clocks.sm"] == ("2411", "MHz")


def test_throttle_reasons_are_a_mask(smi: Any) -> None:
    values = smi.gpu_values(smi.reading({"power_w": 16.4, "sm_mhz": 640, "reasons": ["sw_power_cap"]}))
    assert values["clocks_event_reasons.active"] == ("0x0000000000000004", "")
    assert values["clocks.sm"] == ("640", "MHz")
