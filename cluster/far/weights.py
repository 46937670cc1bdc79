"""Whether a model's files are on this host, whole, and where a container that mounts them can follow them.

Given {"model": hub id or absolute path, "revision": branch, tag or commit, "hf_home": path, "dummy": bool,
"files": [paths in the model's directory that are wanted beside what every model has]}. `dummy`: weight files are
neither needed nor looked at.
Prints {"weights": {"value": …} | {"missing": why, "kind": kind}}. Of weight files only the headers are read.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cluster.far.prelude import Json, NoSection, absolute, emit, given, read_text, section

COMMIT = re.compile(r"[0-9a-f]{40}")
SHARD = re.compile(r"(.+-)(\d{5})-of-(\d{5})(\.safetensors|\.bin)")
OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
NEVER_EMPTY = (".safetensors", ".bin", ".gguf", ".json", ".model")
LONGEST_HEADER = 100_000_000  # the format's own limit
LONGEST_MOUNT = 64 << 20
MANY = 8


def is_there(path: str) -> bool:
    """Whether a path exists; raises PermissionError where that cannot be known, as os.path.exists does not."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)
        return True
    return False


def find(model: str, revision: str, hf_home: str) -> tuple[str, str]:
    """(directory, commit) of a model; raises NoSection."""
    if model.startswith(("/", "~")):
        directory = absolute(model)
        if not is_there(directory):
            raise NoSection(f"{directory} is not there", "absent")
        return directory, ""
    place = os.path.join(hf_home, "hub", "models--" + model.replace("/", "--"))
    if not is_there(place):
        raise NoSection(f"{model} is not in {os.path.dirname(place)}", "absent")
    ref = os.path.join(place, "refs", revision)
    commit = revision if COMMIT.fullmatch(revision) else read_text(ref) if is_there(ref) else ""
    directory = os.path.join(place, "snapshots", commit)
    if not commit or not is_there(directory):
        raise NoSection(f"revision {revision} of {model} is not in {place}", "absent")
    return directory, commit


def walk(directory: str, root: str, dummy: bool) -> tuple[dict[str, int], list[str]]:
    """({name: bytes}, problems) of all files below a directory; hidden directories are left out."""
    sizes: dict[str, int] = {}
    problems: list[str] = []
    closed: list[OSError] = []
    for at, folders, files in os.walk(directory, onerror=closed.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if dummy and name.endswith(WEIGHTS):
                continue
            path = os.path.join(at, name)
            short = os.path.relpath(path, directory)
            try:
                size = os.stat(path).st_size
            except OSError as error:
                problems.append(f"{short}: broken link" if os.path.islink(path) else explain(error))
                continue
            sizes[short] = size
            problems += [f"{short}: {wrong}" for wrong in wrongs(path, size, root)]
    return sizes, [explain(error) for error in closed] + problems


def wrongs(path: str, size: int, root: str) -> Iterator[str]:
    """What is wrong with one file that is there."""
    if not os.access(path, os.R_OK):
        owner = str(os.stat(path).st_uid)
        with suppress(KeyError):
            owner = Path(path).owner()
        yield f"not readable by this user (owned by {owner})"
    elif size == 0 and path.endswith(NEVER_EMPTY):
        yield "empty"
    elif path.endswith(".safetensors"):
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else LONGEST_HEADER
            header = file.read(length) if length < LONGEST_HEADER else b""
        end = 8 + length + max(map(int, OFFSETS.findall(header)), default=0)
        if len(header) < length or not header.lstrip().startswith(b"{"):
            yield "no safetensors header: cut off or another format"
        elif end != size:
            yield f"{size} bytes, its header says {end}"
    if os.path.islink(path):
        inside = os.path.realpath(path).startswith(root + os.sep)
        if os.path.isabs(os.readlink(path)) or not inside:
            yield f"a link that leads out of {root} or is absolute, which a container cannot follow"


def explain(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"


def few(texts: list[str]) -> list[str]:
    return texts[:MANY] + ([f"and {len(texts) - MANY} more"] if len(texts) > MANY else [])


def missing_shards(directory: str, sizes: dict[str, int]) -> tuple[list[str], int]:
    """Files that an index or the numbered names call for. The .bin ones count only where no safetensors are."""
    suffix = ".safetensors" if any(".safetensors" in name for name in sizes) else ".bin"
    expected: set[str] = set()
    for name in sizes:
        if name.endswith(suffix + ".index.json"):
            # one that cannot be read is a problem of its own kind elsewhere
            with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
                shards = json.loads(Path(directory, name).read_bytes())["weight_map"].values()
                expected |= {os.path.join(os.path.dirname(name), str(shard)) for shard in shards}
        parts = SHARD.fullmatch(name)
        if parts and parts[4] == suffix:
            expected |= {f"{parts[1]}{at:05}-of-{parts[3]}{suffix}" for at in range(1, int(parts[3]) + 1)}
    return sorted(expected - set(sizes)), len(expected)


def gaps(directory: str, sizes: dict[str, int], dummy: bool) -> Iterator[str]:
    """What a model needs to be loaded and this directory does not have."""
    missing, count = missing_shards(directory, sizes)
    names = [name for name in sizes if "/" not in name]
    if missing and not dummy:
        yield f"{len(missing)} of {count} weight files are missing: {', '.join(few(missing))}"
    elif not dummy and not any(name.endswith((".safetensors", ".bin", ".gguf", ".pt")) for name in names):
        yield "no weight files"
    if any(name.endswith(".gguf") for name in names):
        return
    if not any(name in ("config.json", "params.json") for name in names):
        yield "no config.json"
    if not any(name.startswith(("tokenizer", "tekken", "vocab")) or name.endswith(".tiktoken") for name in names):
        yield "no tokenizer"


def unfinished(directory: str, commit: str) -> int:
    """How many downloads into this model's cache did not end; one that succeeded later does not count."""
    blobs = os.path.join(directory, "..", "..", "blobs") if commit else f"{directory}/.cache/huggingface/download"
    names = set(os.listdir(blobs)) if os.access(blobs, os.R_OK) else set[str]()
    return sum(name.endswith(".incomplete") and name.split(".")[0] not in names for name in names)


def look(wanted: dict[str, Json]) -> Json:
    hf_home = absolute(wanted["hf_home"])
    directory, commit = find(wanted["model"], wanted["revision"], hf_home)
    root = hf_home if commit or directory.startswith(hf_home + os.sep) else directory
    dummy, mounted, hashes = wanted["dummy"], wanted["files"], {}
    sizes, problems = walk(directory, os.path.realpath(root), dummy)
    problems += gaps(directory, sizes, dummy)
    problems += [f"{name}: not there, and the recipe mounts it" for name in mounted if name not in sizes]
    for name in mounted:
        path = os.path.join(directory, name)
        # one that cannot be read is a problem already
        if sizes.get(name, LONGEST_MOUNT + 1) <= LONGEST_MOUNT and os.access(path, os.R_OK):
            hashes[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    begun = unfinished(directory, commit)
    if problems and begun:
        problems.append(f"{begun} downloads did not end (.incomplete)")
    listing = "".join(f"{name} {size}\n" for name, size in sorted(sizes.items()))
    return {
        "model": wanted["model"],
        "revision": wanted["revision"],
        "commit": commit,
        "path": directory,
        "files": len(sizes),
        "bytes": sum(sizes.values()),
        "problems": few(problems),
        "listing": hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(),
        "hashes": hashes,
    }


if __name__ == "__main__":
    emit({"weights": section(look, given())})
