from pathlib import Path

import pytest
from facts_tools import put, run_far, said

from cluster.spark import processes
from cluster.spark.fact import Missing
from cluster.spark.processes import NAMES, Tenant


def told(*words: str, uid: int = 1000) -> tuple[Tenant, ...]:
    found = processes.parse(said({"tenants": {"value": [{"pid": 7, "uid": uid, "words": list(words)}]}}))
    assert not isinstance(found, Missing), found
    return found


@pytest.mark.parametrize(
    ("words", "uid", "kind", "name"),
    [
        (("/usr/local/bin/ollama", "runner", "--model"), 998, "ollama", "ollama"),
        (("/usr/lib/ollama/runners/cuda/ollama_llama_server", "--model", "x"), 998, "ollama", "ollama_llama_server"),
        (("/usr/bin/gnome-shell",), 1000, "desktop", "gnome-shell"),
        (("/usr/lib/xorg/Xorg", "vt2", "-displayfd"), 1000, "desktop", "Xorg"),
        (("/usr/bin/earlyoom", "-r", "3600"), 65534, "killer", "earlyoom"),
        (("/usr/bin/python3", "/usr/sbin/nohang", "--monitor"), 0, "killer", "nohang"),
        (("avahi-daemon: running [spark1-30.local]",), 110, "mdns", "spark1-30.local"),
    ],
)
def test_tenants(words: tuple[str, ...], uid: int, kind: str, name: str) -> None:
    assert told(*words, uid=uid) == (Tenant(kind, name, 7, uid),)


@pytest.mark.parametrize(
    ("words", "uid"),
    [
        (("/usr/local/bin/ollama", "serve"), 998),
        (("/usr/bin/ollama",), 1000),
        (("/usr/bin/gnome-shell",), 120),
        (("/usr/bin/gnome-shell",), 60578),
        (("avahi-daemon: chroot helper",), 110),
    ],
)
def test_no_tenants(words: tuple[str, ...], uid: int) -> None:
    """A server without a model, login screens (dynamic users among them), a helper."""
    assert told(*words, uid=uid) == ()


def test_found_among_all_processes(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/9/cmdline": "/usr/bin/earlyoom\0-r\0",
            "proc/10/cmdline": "vim\0earlyoom.c\0",
            "proc/11/cmdline": "",
            "proc/12/cmdline": "avahi-daemon: running [spark1.local]\0",
            "proc/version": "x",
        },
    )
    given = {"sections": ["tenants"], "names": list(NAMES), "root": f"{tmp_path}/"}
    found = processes.parse(run_far("others", given))
    assert not isinstance(found, Missing)
    assert [(one.pid, one.name) for one in found] == [(9, "earlyoom"), (12, "spark1.local")]
