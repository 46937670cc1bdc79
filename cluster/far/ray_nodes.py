"""Ask Ray which nodes it has; runs inside a rank's container, with that container's own Ray.

usage: python3 ray_nodes.py [{"address": "host:port", "deadline_s": 8, "each_line": false}]
       (address: else $RAY_ADDRESS)

Prints one JSON document, with "each_line" one for each line of stdin:
{"nodes": [{"address": "192.168.100.11", "alive": true, "state": "IDLE", "head": true, "gpus": 1.0,
            "gpus_free": 1.0, "resources": {"CPU": 20.0, "GPU": 1.0, …}}],
 "gpus": 2.0, "gpus_used": 0.0, "ray": "2.56.0", "way": "gcs"}
or {"error": "…"} and exit 1. A Ray client retries a dead GCS for 40 s and longer, so the alarm ends this
program at the deadline, without a word (signal 14): no answer is the answer.

The GCS client is asked first: it needs 0.3 s, nearly all of it the import, and is no Ray job. Where Ray's
insides have changed, `ray.init` and `ray.nodes()` are asked instead; that takes some seconds.
"""

import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any


def main() -> int:
    """Ask and print, once or for each line of stdin."""
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if not given.get("each_line"):
        return answer(given)
    with suppress(ImportError):
        importlib.import_module("ray")  # while Ray's own programs start
    for _ in sys.stdin:
        answer(given)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def answer(given: dict[str, Any]) -> int:
    """Ask, print, and never take longer than the deadline."""
    signal.setitimer(signal.ITIMER_REAL, float(given.get("deadline_s", 8)))  # the default action ends the process
    address = given.get("address") or os.environ.get("RAY_ADDRESS", "")
    try:
        if given.get("each_line"):  # a GCS that is not there yet would be waited for in vain until the deadline
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), 2).close()
        found = ask(address)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}), flush=True)
        return 1
    print(json.dumps(found), flush=True)
    return 0


def ask(address: str) -> dict[str, Any]:
    """Nodes by the quick way, or by the public one where the quick one is not there."""
    ray: Any = importlib.import_module("ray")  # the container's

    try:
        nodes, way = ask_gcs(address), "gcs"
    except (ImportError, AttributeError, TypeError):
        nodes, way = ask_as_a_job(address), "job"
    alive = [node for node in nodes if node["alive"]]
    gpus = sum(node["gpus"] for node in alive)
    used = gpus - sum(node["gpus_free"] for node in alive)
    return {"nodes": nodes, "gpus": gpus, "gpus_used": used, "ray": ray.__version__, "way": way}


def ask_gcs(address: str) -> list[dict[str, Any]]:
    """Nodes as the GCS knows them; `state` tells ACTIVE, IDLE, DRAINING of a node that is alive."""
    client = importlib.import_module("ray._raylet").GcsClient(address=address)
    infos = list(client.get_all_node_info(timeout=5).values())
    free = {}
    for usage in client.get_all_resource_usage().resource_usage_data.batch:
        free[usage.node_id] = usage.resources_available.get("GPU", 0.0)
    nodes = []
    for info in infos:
        resources = dict(info.resources_total)
        alive = enum_name(info, "state") == "ALIVE"
        nodes.append(
            {
                "address": info.node_manager_address,
                "alive": alive,
                "state": enum_name(info.state_snapshot, "state") if alive else "DEAD",
                "head": info.is_head_node,
                "gpus": resources.get("GPU", 0.0),
                "gpus_free": free.get(info.node_id, 0.0),
                "resources": resources,
            }
        )
    return nodes


def enum_name(message: Any, field: str) -> str:
    """The name of an enum's value in a protobuf message."""
    kind = message.DESCRIPTOR.fields_by_name[field].enum_type
    return str(kind.values_by_number[getattr(message, field)].name)


def ask_as_a_job(address: str) -> list[dict[str, Any]]:
    """The same by Ray's public API; free GPUs are not reported by node, so they are put on the first ones."""
    ray: Any = importlib.import_module("ray")
    ray.init(address=address, logging_level="ERROR", log_to_driver=False, ignore_reinit_error=True)
    free = ray.available_resources().get("GPU", 0.0)
    nodes = []
    for node in ray.nodes():
        resources = node["Resources"]
        gpus = resources.get("GPU", 0.0)
        gpus_free = min(gpus, free) if node["Alive"] else 0.0
        free -= gpus_free
        nodes.append(
            {
                "address": node["NodeManagerAddress"],
                "alive": node["Alive"],
                "state": "ALIVE" if node["Alive"] else "DEAD",
                "head": "node:__internal_head__" in resources,
                "gpus": gpus,
                "gpus_free": gpus_free,
                "resources": resources,
            }
        )
    return nodes


if __name__ == "__main__":
    sys.exit(main())
