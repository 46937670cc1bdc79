"""Boot hosts, and write how to reach them."""

from __future__ import annotations

from cluster.lab import wires
from cluster.lab.engine import toy_models
from cluster.lab.images import give_images, shown_engines
from cluster.lab.place import LabRecord, Place
from cluster.lab.shape import Spark, inventory_text
from cluster.lab.spark import await_docker, await_init, await_ssh, boot, end, host_key, lay_out, start_daemons

UNKNOWN_KEY = "unknown-key"


def start_hosts(place: Place, switch: int, sparks: list[Spark]) -> None:
    """Boot hosts that do not run, side by side, and wait until SSH and Docker answer. Their files stay as they are."""
    shown = shown_engines(place)
    booted = []
    for spark in sparks:
        end(place, [spark])
        host = place.host(spark.name)
        if not host.boot.exists():
            lay_out(place, spark, toy_models(place))
            give_images(place, host)
        booted.append((spark, boot(place, spark, shown=shown)))
    for spark, first in booted:
        wires.plug_in(switch, spark, await_init(place, spark))
        start_daemons(place.host(spark.name), first)
    for spark in sparks:
        await_ssh(spark)
        await_docker(await_init(place, spark))


def write_access(place: Place, record: LabRecord) -> None:
    """The inventory and the host keys that a fault does not hide."""
    known = [spark for spark in record.sparks if UNKNOWN_KEY not in record.faults.get(spark.name, [])]
    place.known_hosts.write_text("".join(host_key(place, spark) for spark in known))
    place.inventory.write_text(inventory_text(record.sparks, str(place.key), str(place.known_hosts)))
