"""Ask Ray which nodes it has; runs inside a rank's container, with that container's own Ray.

usage: python3 ray_nodes.py [{"address": "host:port", "deadline_s": 8, "each_line": false}]
       (address: else $RAY_ADDRESS)

Prints one JSON document, with "each_line" one for each line of stdin:
{"nodes": [{"address": "192.168.100.11", "alive": true, "gpus": 1.0}]}
or {"error": "…"} and exit 1. A Ray client retries a dead GCS for 40 s and longer, so the alarm ends this
program at the deadline, without output (signal 14).

The GCS client is asked first: it needs 0.3 s, nearly all of it the import, and is no Ray job. Where Ray's
internals have changed, `ray.init` and `ray.nodes()` are asked instead; that takes some seconds.
"""

import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any


def answer(given: dict[str, Any]) -> int:
    """Ask, print, and never take longer than the deadline."""
    signal.setitimer(signal.ITIMER_REAL, float(given.get("deadline_s", 8)))  # the default action ends the process
    address = given.get("address") or os.environ.get("RAY_ADDRESS", "")
    try:
        if given.get("each_line"):  # not to wait until the deadline for a GCS that has not started yet
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), 2).close()
        importlib.import_module("ray")  # the container's: where there is none, that is the error
        try:
            nodes = ask_gcs(address)
        except (ImportError, AttributeError, TypeError):
            nodes = ask_as_a_job(address)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}), flush=True)
        return 1
    print(json.dumps({"nodes": nodes}), flush=True)
    return 0


def ask_gcs(address: str) -> list[dict[str, Any]]:
    found = []
    for info in importlib.import_module("ray._raylet").GcsClient(address=address).get_all_node_info(timeout=5).values():
        alive = info.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[info.state].name == "ALIVE"
        gpus = dict(info.resources_total).get("GPU", 0.0)
        found.append({"address": info.node_manager_address, "alive": alive, "gpus": gpus})
    return found


def ask_as_a_job(address: str) -> list[dict[str, Any]]:
    ray: Any = importlib.import_module("ray")
    ray.init(address=address, logging_level="ERROR", log_to_driver=False, ignore_reinit_error=True)
    return [
        {"address": one["NodeManagerAddress"], "alive": one["Alive"], "gpus": one["Resources"].get("GPU", 0.0)}
        for one in ray.nodes()
    ]


def main() -> int:
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if not given.get("each_line"):
        return answer(given)
    with suppress(ImportError):
        importlib.import_module("ray")  # while Ray's own programs start
    for _ in sys.stdin:
        answer(given)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
