"""What a user installs: the wheel, in an environment of its own, away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOG = "NCCL WARN Call to ibv_create_qp failed\nNVML: Driver/library version mismatch\n"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """An environment with the wheel; what the package depends on comes from the one that runs the tests."""
    with tempfile.TemporaryDirectory(prefix="cluster-wheel-") as name:
        Path(name).chmod(0o755)
        install(Path(name))
        yield Path(name)


def install(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    [packages] = (folder / "env/lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # its own .pth files are not read
    (folder / "home").mkdir()


def run(place: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(place / "home"), "COLUMNS": "200"}
    done = subprocess.run(
        [place / "env/bin/cluster", *words], capture_output=True, text=True, env=env, cwd=place / "home"
    )
    assert done.returncode == code, done
    return done


pytestmark = pytest.mark.timeout(300)


def test_it_is_the_wheel_that_runs(place: Path) -> None:
    said = subprocess.run(
        [place / "env/bin/python", "-c", "import cluster; print(cluster.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
    )
    assert Path(said.stdout.strip()).is_relative_to(place / "env")


def test_recipes_are_in_it_and_right(place: Path) -> None:
    listed = run(place, "recipes", "list").stdout
    for recipe in (ROOT / "recipes").glob("*.yaml"):
        assert recipe.stem in listed
    run(place, "recipes", "check")


def test_commands_load(place: Path) -> None:
    told = run(place, "--help").stdout
    assert {"up", "doctor", "bench", "lab"} <= set(re.findall(r"^ {2,6}([a-z]+) {2,}\S", told, re.MULTILINE))
    run(place, "doctor", "--help")
    run(place, "doctor", code=2)  # there is no inventory yet


def test_a_printed_runbook_can_be_opened(place: Path) -> None:
    (place / "home/log.txt").write_text(LOG)
    said = run(place, "explain", "log.txt", code=4).stdout
    pages = re.findall(r"\S+/runbooks/[a-z-]+\.md", said)
    assert pages
    for page in pages:
        assert Path(page).is_relative_to(place / "env")
        assert Path(page).is_file()


def test_an_inventory_can_be_begun_from_the_example(place: Path) -> None:
    [example] = (place / "env").rglob("shipped/inventory/example.yaml")
    assert yaml.safe_load(example.read_text())["hosts"]


def test_the_lab_needs_a_checkout(place: Path) -> None:
    for words in (("lab", "up"), ("lab", "status"), ("lab", "toy")):
        said = run(place, *words, code=2).stderr.splitlines()
        assert [line.partition(":")[0] for line in said] == ["error", "hint"]
        assert "[lab-needs-checkout]" in said[0]


def test_links_between_its_pages_lead_somewhere(place: Path) -> None:
    [shipped] = (place / "env").rglob("shipped/docs")
    for page in shipped.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_what_only_developers_use_is_not_in_it(place: Path) -> None:
    [package] = (place / "env/lib").glob("python*/site-packages/cluster")
    assert (package / "py.typed").exists()
    assert not (package / "lab").exists()
    pages = {path.name for path in (package / "shipped/docs").iterdir()}
    assert {"runbooks", "measuring.md"} <= pages
    assert not {"decisions", "architecture.md", "log.md", "lab.md"} & pages


def test_a_stored_result_becomes_the_same_page_each_time(place: Path) -> None:
    for name in ("one.html", "two.html"):
        said = run(place, "report", str(ROOT / "tests/samples/result_schema_1.json"), "-o", name)
        assert said.stderr == f"written: {name}\n"
    one, two = ((place / "home" / name).read_bytes() for name in ("one.html", "two.html"))
    assert one == two
    assert one.count(b"<svg ") > 1
