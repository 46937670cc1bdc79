"""A lab of the tests' own, beside one that may be up for people; what was built before is shared."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

CACHE = os.environ.get("CLUSTER_LAB_CACHE", "/var/lib/cluster-lab/cache")
DIRECTORY = os.environ.get("CLUSTER_TEST_LAB_DIR", "/var/lib/cluster-lab-of-tests")


def campaign(*values: Any) -> Any:
    """A case that only `scripts/test --all` runs."""
    return pytest.param(*values, marks=pytest.mark.campaign)


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab as its user sees it: the command line, and SSH."""

    root: Path

    @property
    def inventory(self) -> Path:
        """What CLUSTER_INVENTORY points at."""
        return self.root / "inventory.yaml"

    def command(self, *words: str, timeout_s: float = 1200) -> subprocess.CompletedProcess[str]:
        """`cluster lab WORDS`, whatever it answers."""
        argv = [sys.executable, "-m", "cluster.cli.main", "lab", *words, "--dir", str(self.root)]
        env = {**os.environ, "CLUSTER_LAB_CACHE": CACHE}
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=timeout_s)

    def must(self, *words: str) -> str:
        """`cluster lab WORDS`, which must succeed; its standard output."""
        done = self.command(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ssh(self, host: str, command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A line of shell on a host, as the inventory's user."""
        options = ("BatchMode=yes", "ConnectTimeout=5", f"UserKnownHostsFile={self.root / 'known_hosts'}")
        argv = ["ssh", "-F", "none", "-i", str(self.root / "id_ed25519"), *(f"-o{option}" for option in options)]
        argv += [f"spark@{self.address(host)}", command]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)

    def tell(self, host: str, command: str) -> str:
        """A line of shell that must succeed; its standard output without the last line end."""
        done = self.ssh(host, command)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def address(self, host: str) -> str:
        """A host's management address."""
        return str(yaml.safe_load(self.inventory.read_text())["hosts"][host]["address"])
