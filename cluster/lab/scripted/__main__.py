"""python -m cluster.lab.scripted [--port N] [--behaviour NAME] [--list]    prints {"port": N}, runs until stdin ends

http://127.0.0.1:N/NAME/v1 has the behaviour NAME, http://127.0.0.1:N/v1 the one of --behaviour.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

from cluster.lab.scripted.reply import BEHAVIOURS
from cluster.lab.scripted.server import serve


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m cluster.lab.scripted")
    parser.add_argument("--port", type=int, default=0, help="where to listen on loopback (default: a free port)")
    parser.add_argument("--behaviour", choices=BEHAVIOURS, default="right", metavar="NAME", help="see --list")
    parser.add_argument("--list", action="store_true", help="the behaviours, a line each, and leave")
    given = parser.parse_args()
    if given.list:
        width = max(map(len, BEHAVIOURS))
        print("\n".join(f"{one.name:<{width}}  {one.what} ({one.source})" for one in BEHAVIOURS.values()))
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(BEHAVIOURS[given.behaviour], given.port))


if __name__ == "__main__":
    main()
