"""The inventory's limit of GPU clocks as typed: set before the start, proven, kept when it is another's, put back."""

from __future__ import annotations

import json

import pytest
from machine import Desk, Killed
from typed import INVENTORY, UP, Typed

from cluster.argv.clocks import NOTE
from cluster.bench.target import state_of
from cluster.config.inventory import load_inventory, resolve_hosts
from cluster.deploy.restart import restart
from cluster.deploy.session import see
from cluster.screen import Screen
from cluster.spark.deployments import deployments

SETTING = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 32.34, 1800, 44, 50, 0x0000000000000002, [N/A]\n"


@pytest.fixture
def limited(cluster: Typed) -> Typed:
    """Both hosts are limited, one by `defaults`."""
    text = INVENTORY.replace("192.168.1.42,", "192.168.1.42, clocks: {sm_max_mhz: 2200},")
    (cluster.place / "inventory/default.yaml").write_text(text + "defaults: {clocks: {sm_max_mhz: 2000}}\n")
    return cluster


def mhz(desk: Desk) -> list[int | None]:
    return [machine.gpu_limit_mhz for machine in desk]


def test_set_proven_and_put_back(limited: Typed, desk: Desk) -> None:
    ran = limited.must(*UP)
    assert mhz(desk) == [2000, 2200]
    assert "GPU clocks: spark1 2000 of at most 2000 MHz, spark2 2200 of at most 2200 MHz" in ran.out
    planned = limited.must("down", "--dry-run").out
    assert "# stage: reset GPU clocks" in planned
    limited.must("down")
    assert mhz(desk) == [None, None]
    assert not any(NOTE in path for machine in desk for path in machine.files)


def test_a_dry_run_shows_it_before_the_ranks(limited: Typed, desk: Desk) -> None:
    shown = limited.must(*UP, "--dry-run").out
    assert 0 < shown.index("nvidia-smi -lgc") < shown.index("docker run")
    assert mhz(desk) == [None, None]


def test_without_sudo_it_is_refused_before_the_start(limited: Typed, desk: Desk) -> None:
    desk["spark2"].sudo = False
    before = desk.state()
    ran = limited.ends(4, *UP)
    assert "a GPU clock limit of 2200 MHz needs sudo" in ran.error["error"]
    assert "[clock-limit]" in ran.error["error"]
    assert desk.state() == before
    limited.must(*UP, "--force", "clock-limit")
    assert mhz(desk) == [2000, None], "forced, that host goes without"


def test_somebody_elses_limit_is_kept_and_named(limited: Typed, desk: Desk) -> None:
    desk["spark1"].limiters = ("/etc/systemd/system/multi-user.target.wants/gpu.service",)
    desk["spark2"].smi = (0, SETTING)
    ran = limited.must(*UP)
    assert mhz(desk) == [None, None]
    assert "gpu.service" in ran.err
    assert "reports that a setting limits the clocks" in ran.err
    limited.must("down")
    assert not any(NOTE in path for machine in desk for path in machine.files)


def test_a_driver_that_cannot_leaves_nothing(limited: Typed, desk: Desk) -> None:
    desk["spark2"].locks = False
    ran = limited.ends(1, *UP)
    assert "could not limit the GPU's clocks to 2200 MHz: Setting locked GPU clocks is not supported" in ran.err
    assert mhz(desk) == [None, None]
    assert not desk.serving()


def test_a_limit_that_does_not_hold_fails_the_proof(limited: Typed, desk: Desk) -> None:
    desk["spark1"].smi = (0, SETTING.replace("0x0000000000000002", "0x0").replace("1800", "2411"))
    ran = limited.ends(4, *UP)
    assert "the GPU clock limit does not hold: 2411 MHz, set were at most 2000 MHz" in ran.error["error"]
    assert mhz(desk) == [None, None]


def test_what_runs_already_gets_it_without_a_restart(cluster: Typed, desk: Desk, limited: Typed) -> None:
    path = cluster.place / "inventory/default.yaml"
    text = path.read_text()
    path.write_text(INVENTORY)
    cluster.must(*UP)
    path.write_text(text)
    document = json.loads(cluster("doctor", "--json").out)
    assert {(one["level"], one["check"]) for one in document["findings"]} == {("warning", "clock-limit")}
    ran = cluster.must(*UP)
    assert "nothing is changed" in ran.out
    assert mhz(desk) == [2000, 2200]
    assert json.loads(cluster("doctor", "--json").out)["findings"] == []
    path.write_text(INVENTORY)
    cluster.must(*UP)
    assert mhz(desk) == [None, None]


def test_a_killed_up_leaves_a_note_that_down_reads(limited: Typed, desk: Desk) -> None:
    desk.on_sleep.append(desk.kill)
    with pytest.raises(Killed):
        limited(*UP)
    desk.recover()
    assert mhz(desk) == [2000, 2200]
    limited.must("down")
    assert mhz(desk) == [None, None]


def test_after_a_reboot_the_next_up_sets_it_again(limited: Typed, desk: Desk) -> None:
    limited.must(*UP)
    desk.reboot("spark2")
    desk.pass_time(10)
    assert mhz(desk) == [2000, None]
    limited.must(*UP)
    assert mhz(desk) == [2000, 2200]


def test_after_a_reboot_down_forgets_it(limited: Typed, desk: Desk) -> None:
    limited.must(*UP)
    desk.reboot("spark2")
    desk["spark2"].gpu_limit_mhz = 1500  # somebody else's by now
    limited.must("down")
    assert mhz(desk) == [None, 1500]
    assert not any(NOTE in path for machine in desk for path in machine.files)


def test_down_without_sudo_says_what_is_left_and_ends_the_next_time(limited: Typed, desk: Desk) -> None:
    limited.must(*UP)
    desk["spark1"].sudo = False
    ran = limited.ends(1, "down")
    assert "could not reset the GPU's clocks: sudo: a password is required" in ran.error["error"]
    assert not desk.containers
    assert mhz(desk) == [2000, None]
    desk["spark1"].sudo = True
    limited.must("down")
    assert mhz(desk) == [None, None]


def test_a_restart_after_a_reboot_sets_it_first(limited: Typed, desk: Desk) -> None:
    limited.must(*UP)
    desk.reboot("spark2")
    desk.pass_time(10)
    hosts = resolve_hosts(load_inventory(), [], lambda name: False)
    fleet = desk.connect({host.name: host for host in hosts})
    [found] = deployments(see(fleet, hosts).values(), hosts)
    restart(found, hosts, fleet, Screen(), lambda: None)
    assert mhz(desk) == [2000, 2200]


def test_results_name_it(limited: Typed, desk: Desk) -> None:
    limited.must(*UP)
    hosts = resolve_hosts(load_inventory(), [], lambda name: False)
    seens = see(desk.connect({host.name: host for host in hosts}), hosts)
    [found] = deployments(seens.values(), hosts)
    assert [state_of(host, found, seens[host]).clock_limit for host in found.hosts] == [
        "at most 2000 MHz",
        "at most 2200 MHz",
    ]
