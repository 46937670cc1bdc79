"""What the hosts were like during a row: from the watching program's lines to numbers, flags and tables."""

import dataclasses
import json
from typing import Any

import pytest
from bench_results import result, row

from cluster.bench.result import warnings
from cluster.bench.rows import Shape, parse_row
from cluster.bench.sampling import PeerLinks, Sample, describe, machine_notes, read_sample
from cluster.bench.tables import machine_table

GIB = 1 << 30
RDMA = PeerLinks("head", ("rocep1s0f0", "roceP2p1s0f0"), "enp1s0f0np0")
PEERS = {"spark1": RDMA, "spark2": PeerLinks("worker", ("rocep1s0f1",), "enp1s0f1np1")}


def link(hca: str, sent: int, received: int) -> dict[str, Any]:
    own = {"hca": hca, "netdev": "enp1s0f0np0", "state": "ACTIVE", "rate_gbps": 100.0, "mtu": 9000, "addresses": []}
    return own | {"operstate": "up", "xmit_bytes": sent, "rcv_bytes": received}


def line(
    t: float, clock: int = 2411, mask: str = "0x0", sent: int = 0, meminfo: str = "MemAvailable: 2097152 kB"
) -> str:
    """What far/watch prints of one sample of a Spark: far/look, far/gpu and far/links, each as it prints itself."""
    fields = ["name", "driver_version", "memory.used", "memory.total", "power.draw", "clocks.sm", "temperature.gpu"]
    fields += ["utilization.gpu", "clocks_event_reasons.active"]
    card = f"NVIDIA GB10, 580.95.05, [N/A], [N/A], 45.10, {clock}, 61, 96, {mask}\n"
    apps = {"exit": 0, "said": "7, VLLM::Worker_TP0, 105721\n", "containers": {}}
    netdev = {"mtu": 9000, "operstate": "up", "addresses": [], "rx_bytes": 5, "tx_bytes": 7 + sent}
    netdevs = [{"name": name} | netdev for name in ("enp1s0f0np0", "wlP9s9")]
    hcas = [link("rocep1s0f0", 100 + sent, 200 + sent), link("roceP2p1s0f0", 0, 0), link("rocep1s0f1", 1, 1)]
    said = [
        json.dumps({"memory": {"value": meminfo}}),
        json.dumps({"gpu": {"value": {"fields": fields, "exit": 0, "said": card}}})
        + "\n"
        + json.dumps({"apps": {"value": apps}}),
        json.dumps({"links": {"value": {"links": hcas, "netdevs": netdevs}}}),
    ]
    return json.dumps({"t": t, "said": said})


def samples(*lines: str, peers: PeerLinks = RDMA) -> list[Sample]:
    return [read_sample(one, peers) for one in lines]


def test_sample_is_read_by_the_facts() -> None:
    [one] = samples(line(10.0, mask="0x4", sent=50))
    assert one.state == {
        "memory_available_mib": 2048,
        "gpu_memory_mib": 105721,
        "sm_clock_mhz": 2411,
        "power_w": 45.1,
        "temperature_c": 61,
        "utilization_pct": 96,
        "throttle": ["power cap"],
    }
    assert one.traffic == {
        "hca rocep1s0f0": (150, 250),
        "hca roceP2p1s0f0": (0, 0),
        "netdev enp1s0f0np0": (57, 5),
    }


def test_what_a_host_does_not_report_is_left_out() -> None:
    missing = json.dumps({"gpu": {"missing": "nvidia-smi: not found", "kind": "absent"}})
    [one] = samples(json.dumps({"t": 1.0, "said": ["", missing, "garbage"]}))
    assert (one.state, one.traffic) == ({}, {})


@pytest.mark.parametrize("text", ["", "{}", '{"t": 1}', '{"t": 1, "said": []}'])
def test_line_of_something_else_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_sample(text, RDMA)


def test_run_keeps_the_extremes_between_its_ends() -> None:
    free = [f"MemAvailable: {kib} kB" for kib in (4 << 20, 1 << 20, 3 << 20)]
    lines = (line(1.0, 2000, meminfo=free[0]), line(2.0, 2411, "0x20", 60, free[1]))
    found = describe({"spark1": samples(*lines, line(3.0, 1900, sent=90, meminfo=free[2])), "spark2": []}, PEERS)
    assert found["before"]["spark1"]["memory_available_mib"] == 4096
    assert found["after"]["spark1"]["memory_available_mib"] == 3072
    assert found["least"]["spark1"] == {"role": "head", "memory_available_mib": 1024, "sm_clock_mhz": 1900}
    assert found["most"]["spark1"]["sm_clock_mhz"] == 2411
    assert found["most"]["spark1"]["throttle"] == ["software thermal slowdown"]
    assert found["series"]["spark1"]["sm_clock_mhz"] == [2000, 2411, 1900]
    assert found["series"]["spark1"]["t"] == [1.0, 2.0, 3.0]
    assert found["links"]["spark1"][0] == {
        "link": "rocep1s0f0",
        "kind": "hca",
        "sent_bytes": 90,
        "received_bytes": 90,
    }
    assert [(one["link"], one["sent_bytes"]) for one in found["links"]["spark1"][1:]] == [
        ("roceP2p1s0f0", 0),
        ("enp1s0f0np0", 90),
    ]
    assert found["lost"] == ["spark2"]


def test_counter_that_went_back_is_left_out() -> None:
    found = describe({"spark1": samples(line(1, sent=90), line(2, sent=10))}, PEERS)
    assert [one["link"] for one in found["links"]["spark1"]] == ["roceP2p1s0f0"]


def run(**hosts: list[str]) -> dict[str, Any]:
    found = {name: samples(*lines, peers=PEERS[name]) for name, lines in hosts.items()}
    return describe(found, {name: PEERS[name] for name in hosts})


STILL, STEADY = [line(1), line(2)], [line(1), line(2, sent=4000)]
IDLE = line(1, 208).replace(", 61, 96, ", ", 40, 0, ")


@pytest.mark.parametrize(
    ("hosts", "notes"),
    [
        ({"spark1": STEADY, "spark2": STEADY}, []),
        ({"spark1": STILL}, []),
        ({"spark1": [IDLE, IDLE]}, []),
        ({"spark1": STILL, "spark2": STILL}, ["no byte went over the links between the hosts"]),
        (
            {"spark1": STEADY, "spark2": [line(1), line(2, mask="0x24", sent=1), line(3)]},
            ["THROTTLED: spark2 (power cap, software thermal slowdown)"],
        ),
        ({"spark1": [line(1, 2000, mask="0x2")] * 2}, ["spark1: a setting limits the GPU's clocks"]),
        ({"spark1": [line(1, 650)] * 2}, ["POWER-CAPPED: spark1 ran at 650 MHz under load, at most 45 W"]),
        ({"spark1": [line(1, 1800)] * 2}, []),
        (
            {"spark1": STEADY, "spark2": [line(2, 2000)]},
            ["ASYMMETRIC HOSTS: SM clock under load: spark1 2,411 MHz, spark2 2,000 MHz"],
        ),
        (
            {"spark1": STEADY, "spark2": [line(2).replace("105721", "60000")]},
            ["ASYMMETRIC HOSTS: GPU memory: spark1 105,721 MiB, spark2 60,000 MiB"],
        ),
    ],
)
def test_hosts_that_need_a_word(hosts: dict[str, list[str]], notes: list[str]) -> None:
    assert machine_notes([run(**hosts)]) == notes
    assert machine_notes([]) == []


def test_lost_host_is_named() -> None:
    found = describe({"spark1": samples(line(1), line(2, sent=3)), "spark2": []}, PEERS)
    whole = describe({"spark1": samples(line(1), line(2, sent=3)), "spark2": samples(line(1))}, PEERS)
    notes = machine_notes([{"run": 0} | whole, {"run": 1} | found])
    assert notes == ["nothing is known of spark2 in run 2 of 2: the connection was lost"]


def test_row_and_tables_hold_it() -> None:
    free = "MemAvailable: 1048576 kB"
    found = run(spark1=[line(1), line(2, 2390, "0x4", 3 * GIB, free), line(3, sent=4 * GIB)])
    one = row(Shape(2048, 128, 0), machine=[{"run": 0} | found])
    assert "THROTTLED: spark1 (power cap)" in one.notes
    assert parse_row(one.document()) == one
    whole = dataclasses.replace(result(), rows=(one,))
    assert warnings(whole) == ("THROTTLED: spark1 (power cap)",)
    machines = machine_table(whole)
    links = "rocep1s0f0 4.29/4.29; roceP2p1s0f0 0.00/0.00; enp1s0f0np0 4.29/0.00"
    assert machines.rows == (("spark1", "2390–2411", "45", "61", "power cap", links),)
    gap = {"run": 1} | describe({}, {"spark1": RDMA})
    gapped = machine_table(dataclasses.replace(whole, rows=(row(one.shape, machine=[{"run": 0} | found, gap]),)))
    assert gapped.rows == machines.rows
    assert "spark1" in gapped.notes[1]
