"""Faults of the whole host."""

from __future__ import annotations

from cluster.lab.faults.fault import Fault, Scene, nothing
from cluster.lab.spark import end, is_up
from cluster.lab.start import start_hosts


def cut_power(scene: Scene) -> None:
    """Every process of the host is gone at once; its cables are dark."""
    end(scene.place, [scene.spark])


def power_on(scene: Scene) -> None:
    """Undo cut_power: the host boots with the files it had."""
    if not is_up(scene.place, scene.spark):
        start_hosts(scene.place, scene.switch, [scene.spark])


def reboot(scene: Scene) -> None:
    """Cut the power and boot again."""
    cut_power(scene)
    power_on(scene)


POWER_FAULTS = (
    Fault("killed", "the host is off: nothing answers (mend boots it)", cut_power, power_on),
    Fault("reboot", "the host boots again: new boot id, containers exited", reboot, nothing, instant=True),
)
