"""What a checkpoint holds, tensor by tensor, from the headers of its files: a directory's, or the hub's.

No weights are read. A safetensors file is 8 bytes (u64, little-endian: the header's length), the header (JSON: name →
dtype, shape, data_offsets) and the data (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cluster.bench.result import write_whole
from cluster.errors import UnreachableError, UsageError
from cluster.model.hub import ELSEWHERE, LONGEST, HubModel

AT_ONCE = 8
FIRST = 256 << 10  # bytes asked of a file when nothing says how long its header is
A_FILE, A_TENSOR = 8 << 10, 128
"""Bytes of a header, and beside the name of each tensor in it: above the usual 90, so that one request is enough."""

_SHARD = re.compile(r"(.+-)\d{5}(-of-(\d{5})\.safetensors)")
_COMMIT = re.compile("[0-9a-f]{40}")

Read = Callable[[str, int], tuple[bytes, int]]
"""The first so many bytes of a file, by its name, and the size of all of it."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """`dtype` as in the header: BF16, F8_E4M3, U8, …; `bytes` as they lie in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`id`: hub id or path; `commit` is empty for a directory outside a hub cache. `config`: config.json, with the
    quantization of hf_quant_config.json where it has none, as vLLM reads both; `files`: how many hold the tensors."""

    id: str
    commit: str
    config: dict[str, Any]
    tensors: tuple[Tensor, ...]
    files: int


def cache_dir() -> Path:
    """Where `read_hub` keeps what it read: `$XDG_CACHE_HOME/cluster/checkpoints`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cluster" / "checkpoints"


def local_copy(model: str, revision: str) -> Path | None:
    """Where this machine has a model with all its weights: a directory, or a snapshot in its hub cache."""
    if model.startswith("/"):
        return Path(model)
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = home / "hub" / f"models--{model.replace('/', '--')}"
    with suppress(OSError, ValueError):
        commit = revision if _COMMIT.fullmatch(revision) else (folder / "refs" / revision).read_text().strip()
        snapshot = folder / "snapshots" / commit
        index = snapshot / "model.safetensors.index.json"
        named = json.loads(index.read_text())["weight_map"].values() if index.exists() else ["model.safetensors"]
        if all((snapshot / name).exists() for name in set(named)):
            return snapshot
    return None


def known_checkpoint(model: str, revision: str) -> Checkpoint | None:
    """What this machine has of a model, without asking anybody: a copy, or headers that were read before."""
    with suppress(UsageError):
        if copy := local_copy(model, revision):
            return read_local(copy)
    return _load(cache_dir(), model, revision) if _COMMIT.fullmatch(revision) else None


def read_local(folder: Path) -> Checkpoint:
    """A directory, or a snapshot in a hub cache, which also gives id and commit.

    Raises UsageError: no directory, not readable, no safetensors, a file missing, cut or of another format.
    """

    def read(name: str, count: int) -> tuple[bytes, int]:
        try:
            with (folder / name).open("rb") as file:
                return file.read(count), os.fstat(file.fileno()).st_size
        except OSError as error:
            what = f"{folder / name}: cannot be read: {error.strerror}"
            raise UsageError(what, code="file-unreadable") from None

    if not folder.is_dir():
        raise UsageError(f"model not found: {folder} is no directory", code="model-not-found")
    try:
        names = {path.name for path in folder.iterdir() if path.is_file()}
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}", code="file-unreadable") from None
    place = folder.absolute()
    owner, _, model = place.parent.parent.name.removeprefix("models--").partition("--")
    if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
        return _read(f"{owner}/{model}" if model else owner, place.name, names, read, str(folder))
    return _read(str(folder), "", names, read, str(folder))


def read_hub(id: str, revision: str, token: str, cache_dir: Path, endpoint: str) -> Checkpoint:
    """The same of a model on the hub, by a few requests a file; kept in `cache_dir` by commit.

    `revision` is a branch, tag or commit; one that is a commit and kept needs no hub. Raises UsageError as `read_local`
    and for an unknown model, revision or endpoint; UnreachableError: no answer, access refused, gated.
    """
    kept = _load(cache_dir, id, revision) if _COMMIT.fullmatch(revision) else None
    if kept:
        return kept
    hub = HubModel(id, revision, token, endpoint)
    try:
        about = json.loads(hub.about())
        commit, names = about["sha"], {file["rfilename"] for file in about["siblings"]}
        if not isinstance(commit, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        what = f"{hub.host} answers as no hub does: no list of files of {id}"
        raise UnreachableError(what, code="hub-unreachable", remedy=ELSEWHERE) from None
    if kept := _load(cache_dir, id, commit):
        return kept
    where = f"{id} at {commit} on {hub.host}"
    found = _read(id, commit, names, lambda name, count: hub.read(commit, name, count), where)
    _store(cache_dir, found)
    return found


def _read(id: str, commit: str, names: Collection[str], read: Read, where: str) -> Checkpoint:
    """All of a checkpoint whose files have these names; `where` is for errors."""
    sizes = _weight_files(names, read, where)
    if missing := sorted(set(sizes) - set(names)):
        shown, remedy = ", ".join(missing[:3]) + ", …" * (len(missing) > 3), "get the model again, or another revision"
        what = f"{len(missing)} of {len(sizes)} weight files missing: {shown}"
        raise UsageError(what, code="checkpoint-shard-missing", where=where, remedy=remedy)
    if "config.json" not in names:
        raise UsageError("no config.json beside the weights", code="checkpoint-invalid", where=where)
    config = _document("config.json", read, where)
    if config.get("quantization_config") is None and "hf_quant_config.json" in names:  # ModelOpt 0.29 and before
        config["quantization_config"] = _document("hf_quant_config.json", read, where)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        headers = pool.map(lambda name: _header(name, sizes[name], read, where), sorted(sizes))
        tensors = {tensor.name: tensor for header in headers for tensor in header}
    if not tensors:
        what = f"no tensor in {len(sizes)} safetensors file{'s' * (len(sizes) > 1)}"
        raise UsageError(what, code="checkpoint-invalid", where=where, remedy="get the model again")
    return Checkpoint(id, commit, config, tuple(tensors.values()), len(sizes))


def _weight_files(names: Collection[str], read: Read, where: str) -> Mapping[str, int]:
    """The files vLLM loads, each with the bytes its header is expected in: those of the index, else the single one,
    else all; Mistral's `consolidated` ones only when there is nothing else."""
    files = {name for name in names if name.endswith(".safetensors") and "/" not in name}
    second = {name for name in files if name.startswith("consolidated")}
    for stem, family in (("model", files - second), ("consolidated", second)):
        index, single = f"{stem}.safetensors.index.json", f"{stem}.safetensors"
        if index in names:
            sizes = Counter[str]()
            try:
                for tensor, file in _document(index, read, where)["weight_map"].items():
                    sizes[str(file)] += len(tensor) + A_TENSOR
            except (KeyError, AttributeError):
                raise UsageError(f"{index} has no weight_map", code="checkpoint-invalid", where=where) from None
            return {file: A_FILE + size for file, size in sizes.items()}
        if single in family:
            return {single: FIRST}
        shards = [found for found in map(_SHARD.fullmatch, family) if found]
        family |= {f"{shard[1]}{at:05}{shard[2]}" for shard in shards for at in range(1, int(shard[3]) + 1)}
        if family:
            return dict.fromkeys(family, FIRST)
    others = sorted({Path(name).suffix for name in names} & {".gguf", ".bin", ".pt", ".pth", ".exl3", ".onnx"})
    what = f"no safetensors here{', only ' * bool(others)}{', '.join(others)}"
    remedy = "name the repository or directory of the model's safetensors"
    raise UsageError(what, code="checkpoint-not-safetensors", where=where, remedy=remedy)


def _document(name: str, read: Read, where: str) -> dict[str, Any]:
    """A JSON file. The standard library reads it, as configs have `Infinity` in them."""
    try:
        found = json.loads(read(name, LONGEST)[0])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {error}", code="checkpoint-invalid", where=where) from None
    if not isinstance(found, dict):
        raise UsageError(f"{name} is no mapping", code="checkpoint-invalid", where=where)
    return found


def _header(name: str, expected: int, read: Read, where: str) -> list[Tensor]:
    """The tensors of a file, by one read when its header ends within the expected bytes, else by two."""

    def cut(whole: int) -> UsageError:
        what = f"{name} is cut: it has {size} bytes, {whole - size} are missing"
        return UsageError(what, code="checkpoint-cut", where=where, remedy="get this file again, or another revision")

    def other(why: str) -> UsageError:
        remedy = "a Git LFS pointer; git lfs pull gets the file" * start.startswith(b"version https://git-lfs")
        what = f"{name} is no safetensors file: {why}"
        return UsageError(what, code="checkpoint-not-safetensors", where=where, remedy=remedy)

    start, size = read(name, min(expected, LONGEST))
    length = int.from_bytes(start[:8], "little")
    if size < 8:
        raise cut(8)
    if length > LONGEST:
        raise other(f"its header would have {length} bytes, more than {LONGEST}")
    if size < 8 + length:
        raise cut(8 + length)
    if len(start) < 8 + length:
        start, size = read(name, 8 + length)
    tensors, end = [], 0
    try:
        header = json.loads(start[8 : 8 + length])
        header.pop("__metadata__", None)
        for tensor, given in header.items():
            begin, stop = map(int, given["data_offsets"])
            if not 0 <= begin <= stop:
                raise ValueError
            tensors.append(Tensor(tensor, str(given["dtype"]), tuple(map(int, given["shape"])), stop - begin))
            end = max(end, stop)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise other("its header is not the JSON of one") from None
    if size < 8 + length + end:
        raise cut(8 + length + end)
    if size > 8 + length + end:
        raise other(f"it has {size} bytes, its header says {8 + length + end}")
    return tensors


def _kept(folder: Path, id: str, commit: str) -> Path:
    return folder / f"{quote(f'{id}@{commit}', safe='@')}.json"


def _load(folder: Path, id: str, commit: str) -> Checkpoint | None:
    """What was kept, None when nothing was or another version of this program kept it."""
    try:
        found = json.loads(_kept(folder, id, commit).read_bytes())
        tensors = tuple(Tensor(name, dtype, tuple(shape), size) for name, dtype, shape, size in found.pop("tensors"))
        return Checkpoint(id, commit, tensors=tensors, **found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _store(folder: Path, found: Checkpoint) -> None:
    """A disk that takes nothing costs the next reading its time, and no more."""
    tensors = [astuple(tensor) for tensor in found.tensors]
    text = json.dumps({"config": found.config, "files": found.files, "tensors": tensors})
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(_kept(folder, found.id, found.commit), text.encode())
