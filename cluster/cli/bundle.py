"""`cluster doctor --bundle FILE`: what was seen, found and logged, in one archive without secrets, for a bug report."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from cluster import __version__
from cluster.argv.question import Question
from cluster.config.redact import is_secret, redact, redact_text
from cluster.deploy import evidence
from cluster.deploy.fetch import read_token
from cluster.deploy.rank import SECRET_FILES
from cluster.errors import ClusterError, UsageError
from cluster.hosts.fleet import Fleet
from cluster.spark.deployed import Deployment
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.request import Wanted

ENDINGS = (".tar.gz", ".tgz")
TAIL = 5000
SINCE = "-1h"
"""Lines of each rank's log, and how old lines of a host's journal may be."""
FOLDER = "cluster-doctor"
"""The folder in the archive."""


def place_of(name: str, *, overwrite: bool) -> Path:
    """Where the archive will lie. Raises UsageError: another ending, no such folder, or a file that is there."""
    place = Path(name).expanduser()
    if not name.endswith(ENDINGS):
        raise UsageError(f"--bundle {name}: a name that ends in {' or '.join(ENDINGS)} is wanted")
    if not place.parent.is_dir():
        raise UsageError(f"--bundle {name}: there is no folder {place.parent}")
    if place.is_dir() or (place.exists() and not overwrite):
        raise UsageError(f"--bundle {name} is there already", remedy="take another name, or --yes overwrites a file")
    return place


def save(
    place: Path, wanted: Wanted, seens: Mapping[str, Seen], found: Sequence[Deployment], told: Any, fleet: Fleet
) -> int:
    """Write the archive and return how many files are in it; `told` is what `--json` prints.

    It appears under its name only when it is whole. Raises ClusterError when it cannot be written.
    """
    ranks = {
        host: [(one.id, rank.name) for one in found if (rank := one.ranks.get(host))] for host, seen in seens.items()
    }
    secrets = known_secrets(seens, ranks, fleet)
    files = {name: redact(value, secrets) for name, value in documents(wanted, seens, told).items()}
    texts = {name: as_text(name, value) for name, value in files.items()}
    texts |= {name: redact_text(text, secrets) for name, text in logs(ranks, fleet)}
    part = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        part.touch(0o600)
        write_archive(part, texts)
        part.replace(place)
    except OSError as error:
        raise ClusterError(f"{place} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return len(texts)


def documents(wanted: Wanted, seens: Mapping[str, Seen], told: Any) -> dict[str, Any]:
    """What is known here, by file name."""
    versions = {"cluster": __version__, "python": platform.python_version(), "system": platform.platform()}
    return {
        "findings.json": told,
        "versions.json": versions | {"written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())},
        "inventory.yaml": {"hosts": {host.name: asdict(host) for host in wanted.hosts}},
        "recipe.yaml": wanted.recipe.model_dump(mode="json"),
        **{f"{name}/facts.json": asdict(seen) for name, seen in seens.items()},
    }


def as_text(name: str, value: Any) -> str:
    """A document as JSON or YAML, as its name says."""
    if name.endswith(".yaml"):
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return json.dumps(value, indent=1, default=str) + "\n"


def logs(ranks: Mapping[str, Sequence[tuple[str, str]]], fleet: Fleet) -> Iterator[tuple[str, str]]:
    """What explains a failure of each of our containers, by file name; where a host is lost, why."""
    asked = {host: [evidence.questions(name, SINCE, ray=False, tail=TAIL) for _, name in ranks[host]] for host in ranks}
    asked = {host: given for host, given in asked.items() if given}
    outcomes = fleet.ask({host: [one for files in given for one in files.values()] for host, given in asked.items()})
    for host, outcome in outcomes.items():
        answers = iter(outcome.value or ())
        for (_, name), files in zip(ranks[host], asked[host], strict=True):
            for file in files:
                answer = next(answers, None)
                said = evidence.said(answer) if answer else str(outcome.error).encode()
                yield f"{host}/{name}-{file}", said.decode("utf-8", "replace")


def known_secrets(
    seens: Mapping[str, Seen], ranks: Mapping[str, Sequence[tuple[str, str]]], fleet: Fleet
) -> frozenset[str]:
    """Values that must not be in the archive, whatever quotes them; they are kept in memory only.

    Those given to what runs (read from its files on the hosts), the hub token and secrets of this environment, and
    machine ids, which nobody but their owner should know.
    """
    secrets = {value for name, value in os.environ.items() if len(value) >= 8 and is_secret(name, value)}
    secrets.add(read_token(None))
    asked: dict[str, list[Question]] = {}
    for host, seen in seens.items():
        if not isinstance(seen.identity, Missing):
            secrets.add(seen.identity.machine_id)
            homes = [f"{seen.identity.data_dir}/deployments/{name}" for name, _ in ranks[host]]
            asked[host] = [Question(("cat", f"{home}/{file}")) for home in homes for file in SECRET_FILES]
    for outcome in fleet.ask({host: questions for host, questions in asked.items() if questions}).values():
        for answer in outcome.value or ():
            secrets |= set(values_in(answer.text)) if answer.exit == 0 else set()
    return frozenset(secrets)


def values_in(text: str) -> Iterator[str]:
    """The values of a JSON mapping, or the text itself."""
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    yield from map(str, told.values()) if isinstance(told, dict) else (text.strip(),)


def write_archive(file: Path, texts: Mapping[str, str]) -> None:
    """A compressed tar of private files in one folder. Raises OSError."""
    with tarfile.open(file, "w:gz") as archive:
        for name, text in texts.items():
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
