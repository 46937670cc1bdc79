"""What a command does not load it does not wait for: counted, as a clock would judge the machine's other work."""

from __future__ import annotations

import subprocess
import sys

import pytest

WIRE = {"paramiko", "fabric"}
WORK = {*WIRE, "pydantic", "yaml", "orjson", "httptools", "asyncio"}
HOSTS = "cluster.hosts.protocol, cluster.hosts.fleet, cluster.hosts.lock, cluster.hosts.connect"
ENGINES = {"transformers", "torch", "numpy", "tokenizers", "aiohttp", "httpx", "requests"}


def typed(*words: str) -> str:
    """Python that does what the shell does."""
    return (
        f"import sys; sys.argv = ['cluster', *{words!r}]\nfrom cluster.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass"
    )


@pytest.mark.parametrize(
    ("code", "light_of"),
    [
        (typed("--help"), {*WORK, "rich"}),
        (typed("bench", "--help"), WORK),
        (f"import {HOSTS}", {*WIRE, "rich"}),
        ("import cluster.cli.bench", ENGINES),
    ],
    ids=["help", "help of a command", "hosts", "bench"],
)
def test_nothing_heavy_is_loaded(code: str, light_of: set[str]) -> None:
    said = "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{said}"], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert "cluster" in loaded
    assert {name.partition(".")[0] for name in loaded} & light_of == set()


def test_up_loads_what_only_a_failure_needs_on_failure() -> None:
    code = "import sys, cluster.cli.up; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.partition(".")[0] == "cluster"]
    assert "cluster.deploy.plan" in loaded
    assert len(loaded) < 70
    rooms = ("cluster.diagnosis", "cluster.bench", "cluster.probe", "cluster.lab")
    assert [name for name in loaded if name.startswith(rooms)] == []
