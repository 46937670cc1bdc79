"""A checkpoint's tensors from its files' headers: of a directory, and of a hub that is a server on this machine."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from config_tools import refusal
from hub_server import COMMIT, HubServer, serving
from loops import each

from cluster.errors import ClusterError, ExitCode
from cluster.model import checkpoint as reader
from cluster.model import hub as requests
from cluster.model.checkpoint import Checkpoint, Tensor, cache_dir, read_hub, read_local

SIZES = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "F32": 4}
ONE: dict[str, tuple[str, list[int]]] = {"a.weight": ("BF16", [4, 8]), "a.scale": ("F32", [])}
TWO: dict[str, tuple[str, list[int]]] = {"b.weight": ("U8", [3, 5])}
TENSORS = (
    Tensor("a.weight", "BF16", (4, 8), 64),
    Tensor("a.scale", "F32", (), 4),
    Tensor("b.weight", "U8", (3, 5), 15),
)
CONFIG = b'{"model_type": "toy", "time_step_limit": [0.0, Infinity]}'
NAMES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def safetensors(tensors: dict[str, tuple[str, list[int]]], metadata: str = "pt") -> bytes:
    """A file as the library writes it, its data all zero."""
    header: dict[str, Any] = {"__metadata__": {"format": metadata}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for one in shape:
            size *= one
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(end)


def index(files: dict[str, str]) -> bytes:
    return json.dumps({"metadata": {"total_size": 83}, "weight_map": files}).encode()


def toy() -> dict[str, bytes]:
    """Two shards and their index, with a quantization of its own."""
    return {
        "config.json": CONFIG,
        "hf_quant_config.json": b'{"quantization": {"quant_algo": "NVFP4"}}',
        "model.safetensors.index.json": index({"a.weight": NAMES[0], "a.scale": NAMES[0], "b.weight": NAMES[1]}),
        NAMES[0]: safetensors(ONE),
        NAMES[1]: safetensors(TWO),
        "consolidated.safetensors": b"never read",
        "README.md": b"",
    }


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def refused(of: Any, *args: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        of(*args)
    return caught.value


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a served model, without the waits of the real hub."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(requests, "PAUSES_S", (0.0, 0.0, 0.0))

    def ask(served: HubServer, token: str = "", revision: str = "main", model: str = "") -> Checkpoint:
        return read_hub(model or served.model, revision, token, tmp_path / "cache", served.endpoint)

    return ask


def test_a_directory(tmp_path: Path) -> None:
    folder = put(tmp_path / "toy", toy())
    found = read_local(folder)
    assert found.tensors == TENSORS
    assert (found.id, found.commit, found.files) == (str(folder), "", 2)
    assert found.config == {
        "model_type": "toy",
        "time_step_limit": [0.0, float("inf")],
        "quantization_config": {"quantization": {"quant_algo": "NVFP4"}},
    }


def test_a_snapshot_of_a_hub_cache(tmp_path: Path) -> None:
    """Its files are links to blobs; a blob that is gone is a missing shard."""
    blobs = put(tmp_path / "models--org--toy--v2" / "blobs", toy())
    snapshot = blobs.parent / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in toy():
        (snapshot / name).symlink_to(Path("../../blobs", name))
    found = read_local(snapshot)
    assert (found.id, found.commit, found.tensors) == ("org/toy--v2", COMMIT, TENSORS)
    (blobs / NAMES[1]).unlink()
    assert refusal(read_local, snapshot).code == "checkpoint-shard-missing"


@each(
    "files, names",
    [
        ({"model.safetensors": safetensors(ONE), "consolidated.safetensors": b""}, {*ONE}),
        ({NAMES[0]: safetensors(ONE), NAMES[1]: safetensors(TWO)}, {*ONE, *TWO}),
        ({"consolidated.safetensors": safetensors(TWO)}, {*TWO}),
        (
            {
                "consolidated.safetensors.index.json": index({"b.weight": "consolidated-00001-of-00001.safetensors"}),
                "consolidated-00001-of-00001.safetensors": safetensors(TWO),
                "consolidated-other.safetensors": b"",
            },
            {*TWO},
        ),
    ],
)
def test_which_files_count(files: dict[str, bytes], names: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    found = read_local(put(tmp_path_factory.mktemp("which") / "toy", {"config.json": b"{}", **files}))
    assert {tensor.name for tensor in found.tensors} == names
    assert found.config == {}


def test_a_header_longer_than_expected(tmp_path: Path) -> None:
    """A single file tells nothing beforehand; a shard's metadata are in no index."""
    many = {f"layer.{number}.weight": ("U8", [1]) for number in range(5000)}
    assert len(safetensors(many)) > reader.FIRST
    found = read_local(put(tmp_path / "one", {"config.json": b"{}", "model.safetensors": safetensors(many)}))
    assert len(found.tensors) == 5000
    files = {**toy(), NAMES[1]: safetensors(TWO, "x" * 20_000)}
    assert read_local(put(tmp_path / "toy", files)).tensors == TENSORS


@each(
    "changed, code, words",
    [
        ({NAMES[0]: safetensors(ONE)[:-10]}, "checkpoint-cut", f"{NAMES[0]} is cut: it has "),
        ({NAMES[0]: safetensors(ONE)[:-10]}, "checkpoint-cut", "10 are missing"),
        ({NAMES[0]: safetensors(ONE)[:40]}, "checkpoint-cut", "it has 40 bytes"),
        ({NAMES[0]: b""}, "checkpoint-cut", "it has 0 bytes, 8 are missing"),
        ({NAMES[0]: safetensors(ONE) + b"more"}, "checkpoint-not-safetensors", "its header says"),
        ({NAMES[0]: b"version https://git-lfs.github.com/spec/v1\n"}, "checkpoint-not-safetensors", NAMES[0]),
        ({NAMES[0]: b"\4\0\0\0\0\0\0\0nope"}, "checkpoint-not-safetensors", "not the JSON"),
        ({NAMES[0]: b'\x0c\0\0\0\0\0\0\0{"a":[1, 2]}'}, "checkpoint-not-safetensors", "not the JSON"),
        (
            {NAMES[0]: safetensors(ONE).replace(b"[0,64]", b"[64,0]")},
            "checkpoint-not-safetensors",
            "not the JSON",
        ),
        ({NAMES[1]: None}, "checkpoint-shard-missing", f"1 of 2 weight files missing: {NAMES[1]}"),
        ({NAMES[1]: None, "model.safetensors.index.json": None}, "checkpoint-shard-missing", NAMES[1]),
        ({"model.safetensors.index.json": b"{}"}, "checkpoint-invalid", "no weight_map"),
        ({"model.safetensors.index.json": b"{"}, "checkpoint-invalid", "is no JSON"),
        ({"config.json": b"[]"}, "checkpoint-invalid", "config.json is no mapping"),
        ({"config.json": None}, "checkpoint-invalid", "no config.json"),
        (
            {**dict.fromkeys(toy(), None), "toy-Q4_K_M.gguf": b"GGUF"},
            "checkpoint-not-safetensors",
            "no safetensors here, only .gguf",
        ),
        (dict.fromkeys(toy(), None), "checkpoint-not-safetensors", "no safetensors here"),
    ],
)
def test_a_checkpoint_that_is_none(
    changed: dict[str, bytes | None], code: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = {name: content for name, content in {**toy(), **changed}.items() if content is not None}
    error = refusal(read_local, put(tmp_path_factory.mktemp("none") / "toy", files))
    assert (error.code, error.exit_code) == (code, ExitCode.USAGE)
    assert words in error.what
    assert error.where.endswith("toy")


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    error = refusal(read_local, put(tmp_path / "toy", {**toy(), NAMES[0]: pointer}))
    assert "git lfs pull" in error.remedy


def test_no_such_directory(tmp_path: Path) -> None:
    assert refusal(read_local, tmp_path / "none").code == "model-not-found"


def test_a_model_of_the_hub(asking: Any) -> None:
    """One request a file, no weights; the token goes to the hub and not to the server that has the files."""
    with serving(HubServer(toy(), token="hf_secret")) as served:
        found = asking(served, "hf_secret")
        assert found.tensors == TENSORS
        assert (found.id, found.commit, found.files) == ("org/toy", COMMIT, 2)
        assert {token for _, _, token in served.of("hub")} == {"Bearer hf_secret"}
        files = served.of("files")
        assert {token for _, _, token in files} == {""}
        assert len(files) == 2
        assert all(given.startswith("bytes=0-") for _, given, _ in files)
        assert not [path for _, path, *_ in served.asked if "consolidated" in path]


def test_the_token_follows_a_redirect_on_the_hub(asking: Any) -> None:
    """A renamed model is at another path of the same server."""
    with serving(HubServer(toy(), token="hf_secret")) as served:
        served.endpoint += "/old"
        assert asking(served, "hf_secret").tensors == TENSORS
        assert {token for _, _, token in served.of("hub")} == {"Bearer hf_secret"}


def test_what_was_read_is_kept_by_commit(asking: Any, tmp_path: Path) -> None:
    with serving(HubServer(toy())) as served:
        first = asking(served)
        served.asked.clear()
        assert asking(served) == first
        assert [path for _, path, *_ in served.asked] == ["/api/models/org/toy/revision/main"]
    served.asked.clear()
    assert asking(served, revision=COMMIT) == first
    assert served.asked == []
    [kept] = (tmp_path / "cache").iterdir()
    kept.write_text('{"tensors": [[1]]}')
    with serving(served):
        assert asking(served, revision=COMMIT) == first


def test_a_cache_that_takes_nothing_stops_nobody(asking: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with serving(HubServer(toy())) as served:
        assert asking(served).tensors == TENSORS


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/cluster/checkpoints")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache/cluster/checkpoints"


def test_a_server_without_ranges_is_read_no_further(asking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    big = {**toy(), NAMES[1]: safetensors({"b.weight": ("U8", [3 << 20])})}
    with serving(HubServer(big, ranges=False)) as served:
        assert asking(served).tensors[-1].bytes == 3 << 20


def test_what_passes_is_asked_again(asking: Any) -> None:
    with serving(HubServer(toy(), fail_first=2, short_first=2)) as served:
        assert asking(served).tensors == TENSORS


def test_files_of_the_hub_that_are_cut(asking: Any) -> None:
    for content in (safetensors(ONE)[:-10], b""):
        with serving(HubServer({**toy(), NAMES[0]: content})) as served:
            error = refusal(asking, served)
            assert error.code == "checkpoint-cut"
            assert error.where == f"org/toy at {COMMIT} on 127.0.0.1"


GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "You are not in the authorized list."}


@each(
    "refuse, token, code, status, words",
    [
        ({"/resolve/": (403, GATED)}, "hf_secret", "model-gated", 3, "authorized list"),
        ({"/resolve/": (401, GATED)}, "", "model-gated", 3, "is gated"),
        ({"/api/": (401, {})}, "", "model-not-found", 2, "org/toy at revision main not found"),
        ({"/api/": (404, {"X-Error-Message": "Invalid rev id"})}, "hf_secret", "model-not-found", 2, "Invalid rev id"),
        ({"/api/": (401, {"X-Error-Message": "Invalid credentials"})}, "hf_secret", "hub-access", 3, "Invalid cred"),
        ({"/api/": (403, {})}, "", "hub-access", 3, "403"),
        ({"/api/": (400, {})}, "", "hub-unreachable", 3, "400"),
        ({"/files": (429, {}), "/api/": (429, {})}, "", "hub-unreachable", 3, "429"),
    ],
)
def test_refusals(
    refuse: dict[str, tuple[int, dict[str, str]]], token: str, code: str, status: int, words: str, asking: Any
) -> None:
    with serving(HubServer(toy(), refuse=refuse)) as served:
        error = refused(asking, served, token)
    assert (error.code, error.exit_code) == (code, status)
    assert words in error.what
    assert "hf_secret" not in str(error.lines())
    if code == "model-gated":
        assert f"{served.endpoint}/org/toy" in error.remedy
        assert "HF_TOKEN" in error.remedy


def test_a_server_that_never_answers(asking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "TIMEOUT_S", 0.3)
    with serving(HubServer(toy(), silent=True)) as served:
        error = refused(asking, served)
    assert (error.code, error.exit_code) == ("hub-unreachable", 3)
    assert "timed out" in error.what
    assert len(served.asked) == 3


def test_no_server(asking: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = refused(asking, HubServer({}, endpoint=f"http://127.0.0.1:{free.getsockname()[1]}"))
    assert error.code == "hub-unreachable"
    assert "refused" in error.what


@each("about", [b"<html>", b"[]", b'{"sha": null, "siblings": []}', b'{"sha": "abc", "siblings": null}'])
def test_a_server_that_is_no_hub(about: bytes, asking: Any) -> None:
    with serving(HubServer(toy(), about=about)) as served:
        assert refused(asking, served).code == "hub-unreachable"


@each("endpoint", ["huggingface.co", "ftp://hub", "https://me:secret@hub", "http://[::1"])
def test_an_endpoint_that_is_none(endpoint: str, asking: Any) -> None:
    error = refused(asking, HubServer({}, endpoint=endpoint))
    assert (error.code, error.exit_code) == ("url-invalid", 2)
    assert "secret" not in str(error.lines())


def test_a_token_that_is_none_is_not_shown(asking: Any) -> None:
    error = refused(asking, HubServer({}, endpoint="https://hub"), "hf_one\nhf_two")
    assert (error.code, "hf_" in str(error.lines())) == ("token-invalid", False)
