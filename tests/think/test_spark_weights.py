import hashlib
import json
import os
import struct
from pathlib import Path

from facts_tools import ask

from cluster.spark import weights
from cluster.spark.fact import Missing
from cluster.spark.request import Model
from cluster.spark.weights import Weights

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"
MODEL = "google/gemma-4-31B-it"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = json.dumps({"metadata": {"total_size": 200}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}})


def safetensors(tensor_bytes: int) -> bytes:
    header = json.dumps({"a": {"dtype": "I8", "shape": [tensor_bytes], "data_offsets": [0, tensor_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(tensor_bytes)


FILES: dict[str, bytes] = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": INDEX.encode(),
    SHARDS[0]: safetensors(100),
    SHARDS[1]: safetensors(100),
    ".gitattributes": b"",
}


class Cache:
    """A Hugging Face cache with one model in it, as huggingface_hub lays it out."""

    def __init__(self, home: Path, files: dict[str, bytes] = FILES, revision: str = "main") -> None:
        self.home = home
        self.place = home / "hub" / "models--google--gemma-4-31B-it"
        self.snapshot = self.place / "snapshots" / COMMIT
        self.blobs = self.place / "blobs"
        for folder in (self.snapshot, self.blobs):
            folder.mkdir(parents=True)
        (self.place / "refs" / revision).parent.mkdir(parents=True)
        (self.place / "refs" / revision).write_text(COMMIT)
        for name, data in files.items():
            self.add(name, data)

    def add(self, name: str, data: bytes) -> None:
        blob = "blob-of-" + name.replace("/", "-").replace(".", "-")
        (self.blobs / blob).write_bytes(data)
        path = self.snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(self.blobs / blob, path.parent))

    def look(self, *, model: str = MODEL, revision: str = "main", dummy: bool = False) -> Weights | Missing:
        return weights.parse(ask(weights.question(Model(model, revision, dummy=dummy), str(self.home))))

    def problems(self) -> tuple[str, ...]:
        found = self.look()
        return found.problems


def test_a_whole_snapshot(tmp_path: Path) -> None:
    found = Cache(tmp_path).look()
    path, size = f"{tmp_path}/hub/models--google--gemma-4-31B-it/snapshots/{COMMIT}", sum(map(len, FILES.values()))
    assert found == Weights(MODEL, "main", COMMIT, path, len(FILES), size, (), found.listing)
    assert len(found.listing) == 64


def test_the_commit_itself_and_a_ref_with_a_slash(tmp_path: Path) -> None:
    cache = Cache(tmp_path, revision="refs/pr/7")
    assert cache.look(revision=COMMIT).commit == cache.look(revision="refs/pr/7").commit == COMMIT


def test_absent_is_said_with_what_is_absent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for model, revision, words in [
        ("google/other", "main", "google/other is not in"),
        (MODEL, "v2", "revision v2 of"),
        (MODEL, "f" * 40, "revision ffff"),
        (f"{tmp_path}/nowhere", "main", "nowhere is not there"),
    ]:
        found = cache.look(model=model, revision=revision)
        assert (found.kind, words in found.why) == ("absent", True), found


def test_a_missing_shard(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (cache.snapshot / SHARDS[1]).unlink()
    assert cache.problems() == (f"1 of 2 weight files are missing: {SHARDS[1]}",)
    (cache.snapshot / "model.safetensors.index.json").unlink()
    assert cache.problems() == (f"1 of 2 weight files are missing: {SHARDS[1]}",)


def test_a_shard_that_was_cut_off(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    whole = safetensors(100)
    cache.add(SHARDS[1], whole[:-1])
    assert cache.problems() == (f"{SHARDS[1]}: {len(whole) - 1} bytes, its header says {len(whole)}",)
    cache.add(SHARDS[1], whole[:20])
    assert "cut off" in cache.problems()[0]
    cache.add(SHARDS[1], b"version https://git-lfs.github.com/spec/v1\n")
    assert "another format" in cache.problems()[0]


def test_a_broken_link_and_an_empty_file(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (cache.blobs / "blob-of-tokenizer-json").unlink()
    cache.add("config.json", b"")
    assert cache.problems() == ("config.json: empty", "tokenizer.json: broken link", "no tokenizer")


def test_a_download_that_did_not_end_matters_only_with_a_gap(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (cache.blobs / "ffff.incomplete").write_bytes(b"x")
    (cache.blobs / "blob-of-config-json.incomplete").write_bytes(b"x")
    found = cache.look()
    assert found.problems == ()
    (cache.snapshot / SHARDS[0]).unlink()
    assert cache.problems()[1:] == ("1 downloads did not end (.incomplete)",)


def test_links_that_a_container_cannot_follow(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text("{}")
    cache = Cache(tmp_path / "home")
    for name, target in [
        ("config.json", "../../../../../elsewhere/config.json"),
        ("tokenizer.json", str(cache.blobs / "blob-of-tokenizer-json")),
    ]:
        (cache.snapshot / name).unlink()
        (cache.snapshot / name).symlink_to(target)
    assert [problem.partition(":")[0] for problem in cache.problems()] == ["config.json", "tokenizer.json"]
    assert all("a container cannot follow" in problem for problem in cache.problems())


def test_dummy_weights_need_no_weight_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path, {"config.json": b"{}", "tokenizer_config.json": b"{}"})
    assert cache.problems() == ("no weight files",)
    found = cache.look(dummy=True)
    assert found.problems == ()
    cache.add("model-00001-of-00002.safetensors", b"cut off")
    again = cache.look(dummy=True)
    assert (again.problems, again.listing) == ((), found.listing), "whatever lies there of them"
    (cache.snapshot / "config.json").unlink()
    (cache.snapshot / "tokenizer_config.json").unlink()
    bare = cache.look(dummy=True)
    assert bare.problems == ("no config.json", "no tokenizer")


def test_a_file_that_the_recipe_mounts(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.add("fix/patched.py", b"")
    asked = weights.question(Model(MODEL, "main"), str(tmp_path), ["fix/patched.py", "fix/other.py"])
    found = weights.parse(ask(asked))
    assert found.problems == ("fix/other.py: not there, and the recipe mounts it",)
    assert found.hashes == {"fix/patched.py": hashlib.sha256(b"").hexdigest()}
    assert cache.look().hashes == {}, "only what was asked for"


def test_an_index_of_the_other_format_and_an_odd_one(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.add("pytorch_model.bin.index.json", b'{"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}')
    assert cache.problems() == ()
    for index in (b"{", b"[]", b'{"weight_map": 7}', b'{"weight_map": {"a": 7}}'):
        cache.add("model.safetensors.index.json", index)
        assert isinstance(cache.look(), Weights)


def test_a_plain_directory(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / ".cache/huggingface/download").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/download/x.incomplete").write_bytes(b"x")
    found = weights.parse(ask(weights.question(Model(str(tmp_path), "main"), "/nowhere")))
    assert (found.commit, found.path, found.problems) == ("", str(tmp_path), ())
    assert found.files == len(FILES)


def test_equal_directories_have_equal_listings(tmp_path: Path) -> None:
    one, two = Cache(tmp_path / "1"), Cache(tmp_path / "2")
    listings = [found.listing for found in (one.look(), two.look()) if isinstance(found, Weights)]
    assert listings[0] == listings[1]
    two.add("config.json", b'{"a": 1}')
    found = two.look()
    assert found.listing != listings[0]


def test_a_cache_of_somebody_else(plain_user: Path) -> None:
    cache = Cache(plain_user)
    (cache.blobs / "blob-of-config-json").chmod(0)
    assert cache.problems()[0].startswith("config.json: not readable by this user (owned by ")
    cache.snapshot.chmod(0)
    assert "Permission denied" in cache.problems()[0]
    (cache.place / "refs").chmod(0)
    found = cache.look()
    assert found.kind == "refused"
