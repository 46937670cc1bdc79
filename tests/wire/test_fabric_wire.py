"""The fabric test over real processes: far/flood between two addresses of this machine, and a stand-in ib_write_bw."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from loopback import becomes, find_processes, free_port

from cluster.argv.fabric import VERSION
from cluster.argv.far import started
from cluster.argv.ports import PORTS
from cluster.cli import fabric_test
from cluster.errors import InterruptedByUser
from cluster.hosts.cancel import Cancel
from cluster.hosts.connect import LocalHost
from cluster.hosts.fleet import Fleet
from cluster.hosts.wire import FarProcess
from cluster.spark import fabric_test as spark_fabric_test
from cluster.spark.fabric_test import Bandwidth, End, Flood, Way
from cluster.spark.fact import Missing, refuse

STAND_IN = """\
#!/usr/bin/env python3
import os, socket, sys, time
words = dict(zip(sys.argv[1:], sys.argv[2:] + [""]))
if "--version" in sys.argv:
    sys.exit("Version: 24.01")
port = int(words["--port"])
if sys.argv[-1] == "--CPU-freq":
    if words["--ib-dev"] == "broken":
        sys.exit("IB device broken not found")
    print("\\n****\\n* Waiting for client to connect... *\\n****", flush=True)
    time.sleep(0.3)  # it listens a moment later
    with socket.create_server(("", port)) as listener:
        call, _ = listener.accept()
        call.recv(1)
else:
    try:
        call = socket.create_connection((sys.argv[-1], port))
    except OSError:
        sys.exit(f" Couldn't connect to {sys.argv[-1]}:{port}\\n Unable to init the socket connection")
    time.sleep(float(os.environ.get("STAND_IN_S", "0")))
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(f" 65536      882805           0.00               9{words['--gid-index']}.57               0.176554")
"""


NET = f"127.{20 + os.getpid() % 200}.{os.getpid() // 200 % 250}"
"""Addresses that only this run of the tests uses."""


def floods() -> list[str]:
    """The words of the floods that run over our addresses."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_text(errors="replace").split("\0")
            found += [word for word in words if '"role"' in word and f'"{NET}.' in word]
    return found


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    cancel = Cancel()
    with Fleet([LocalHost("spark1", cancel), LocalHost("spark2", cancel)], cancel=cancel) as hosts:
        yield hosts


@pytest.fixture
def perftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is on the hosts' PATH."""
    program = tmp_path / "ib_write_bw"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def way(**ends: Any) -> Way:
    """From one of our addresses to the other, with HCAs and GIDs 1 and 2 at the ends."""
    network = ip_network("127.0.0.0/8")
    hcas = {number: ends.get(f"hca{number}", f"mlx5_{number}") for number in (1, 2)}
    return Way(*(End(f"spark{at}", "lo", hca, f"{NET}.{at}", network, 100.0, at) for at, hca in hcas.items()))


def receiver(deadline_s: int = 12, address: str = f"{NET}.1", token: str = "secret") -> FarProcess:
    words, program = started("flood", {"role": "receive", "address": address, "streams": 2, "deadline_s": deadline_s})
    return LocalHost("spark2").start(words, program + f"{token}\n".encode())


def send(port: int, token: str = "secret") -> Flood | Missing:
    place = {"own": f"{NET}.3", "address": f"{NET}.1", "port": port}
    given = {**place, "streams": 2, "seconds": 0.3, "deadline_s": 12}
    words, program = started("flood", {"role": "send", **given})
    process = LocalHost("spark1").start(words, program + f"{token}\n".encode())
    try:
        return spark_fabric_test.parse_flood(next(process.lines(), ""))
    finally:
        process.close(0)


def port_of(process: FarProcess) -> int:
    port = spark_fabric_test.parse_port(next(process.lines()))
    assert isinstance(port, int), port
    return port


def test_a_flood_between_two_addresses(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reported went over the netdev: never more than its own counter says."""
    monkeypatch.setattr(fabric_test, "SECONDS", 1)
    counter = Path("/sys/class/net/lo/statistics/rx_bytes")
    began, before = time.monotonic(), int(counter.read_text())
    found = fabric_test.by_tcp(way(), fleet)
    assert isinstance(found, Flood), found
    assert found.bytes <= int(counter.read_text()) - before
    assert found.gbps > 0.2
    assert 1.0 <= found.seconds < time.monotonic() - began
    assert found.busiest_core is not None
    assert 0.0 < found.busiest_core <= 1.0


def test_a_stranger_without_the_token_is_sent_away_and_not_counted() -> None:
    process = receiver()
    port = port_of(process)
    assert isinstance(send(port, token="guess!"), Missing)
    with socket.create_connection((f"{NET}.1", port)) as silent:
        silent.sendall(b"secre")
        assert isinstance(send(port), Flood)
        silent.settimeout(5)
        assert silent.recv(1) == b""
    process.close(0)


def test_only_its_own_address_listens_and_no_token_is_in_a_command_line() -> None:
    process = receiver(address=f"{NET}.2", token="5ecret70ken")
    port = port_of(process)
    assert floods()
    assert not any("5ecret70ken" in word for word in floods())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((f"{NET}.1", port), timeout=2)
    process.close(0)


def test_errors_are_said_in_words() -> None:
    process = receiver(address="192.0.2.1")
    said = spark_fabric_test.parse_port(next(process.lines()))
    assert isinstance(said, Missing)
    assert said.why.startswith("Cannot assign requested address")
    assert send(free_port()) == Missing("Connection refused")
    process.close(0)


@pytest.mark.parametrize("held_s", [0, 60])
def test_the_receiver_ends_when_nobody_holds_it_and_at_its_deadline(held_s: int) -> None:
    process = receiver(deadline_s=1 if held_s else 30)
    port_of(process)
    assert floods()
    if not held_s:
        process.close(3)
    assert becomes(lambda: not floods(), 5)


def test_rdma_with_two_real_processes(fleet: Fleet, perftest: None) -> None:
    """The server says that it waits before it listens; each end has its own GID index, and nothing stays behind."""
    assert refuse(fleet["spark1"].ask([VERSION])[0], "ib_write_bw") is None, "it exits 1 after printing its version"
    port = free_port()
    assert fabric_test.by_rdma(way(), fleet, port) == Bandwidth("perftest", 91.57, 65536)
    assert becomes(lambda: not find_processes(str(port)), 5)
    found = fabric_test.by_rdma(way(hca2="broken"), fleet, free_port())
    assert found == ("spark2", Missing("IB device broken not found"))


@pytest.mark.parametrize("by_rdma", [True, False])
def test_ctrl_c_ends_both_ends(fleet: Fleet, perftest: None, monkeypatch: pytest.MonkeyPatch, by_rdma: bool) -> None:
    monkeypatch.setenv("STAND_IN_S", "30")
    monkeypatch.setattr(fabric_test, "SECONDS", 8)
    port = free_port()

    def running() -> int:
        return len(find_processes(str(port))) if by_rdma else len(floods())

    def press_when_both_run() -> None:
        becomes(lambda: running() >= 2, 10)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(fabric_test, "PORTS", replace(PORTS, perftest_first=port))
    threading.Thread(target=press_when_both_run, daemon=True).start()
    began = time.monotonic()
    over = way() if by_rdma else way(hca1="", hca2="")
    with pytest.raises(InterruptedByUser):
        fabric_test.run_round([over], fleet)
    assert time.monotonic() - began < 8
    assert becomes(lambda: running() == 0, 5)
