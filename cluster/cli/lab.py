"""`cluster lab`: simulated Sparks on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys

from cluster.errors import ExitCode, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Simulated Sparks on this machine: real SSH, Docker, Ray and vLLM on CPU. Needs root."
    parser.epilog = 'example: eval "$(cluster lab up)" && cluster up lab-tiny -n spark1,spark2 --tp 2'
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up|down|status|break|mend|toy")
    up = verbs.add_parser("up", help="start the hosts; prints the line that selects their inventory")
    up.add_argument("--hosts", type=int, metavar="N", help="how many (default: as many as run, else 2)")
    down = verbs.add_parser("down", help="end the hosts and remove their files")
    down.add_argument("--purge", action="store_true", help="also remove the built engine and images")
    status = verbs.add_parser("status", help="which hosts are up, and what is broken on purpose")
    broken = verbs.add_parser("break", help="make a fault on purpose")
    broken.add_argument("host", nargs="?", help="which host")
    broken.add_argument("fault", nargs="?", help="which fault, see --list")
    broken.add_argument("--list", action="store_true", help="the faults, a line each")
    mend = verbs.add_parser("mend", help="undo faults")
    mend.add_argument("host", nargs="?", help="which host (default all)")
    toy = verbs.add_parser(
        "toy", help="the words that run a recipe with a toy model: cluster up $(cluster lab toy RECIPE)"
    )
    toy.add_argument("recipe", nargs="?", help="which recipe (default: all, with what is replaced and why)")
    for verb in (up, down, status, broken, mend):
        verb.add_argument(
            "--dir", metavar="DIR", help="the lab's directory (default $CLUSTER_LAB_DIR or /var/lib/cluster-lab)"
        )


def run(args: argparse.Namespace, screen: object = None) -> int:
    try:
        from cluster.lab import lab, stand_ins
        from cluster.lab.place import place_of
    except ModuleNotFoundError:
        raise UsageError(
            "cluster lab needs a checkout: what is installed does not contain the lab",
            code="lab-needs-checkout",
            remedy="clone the repository, then run scripts/demo or .venv/bin/cluster lab up in it",
        ) from None

    if args.verb == "toy":
        rows = [stand_ins.words_for(args.recipe)] if args.recipe else stand_ins.table()
        sys.stdout.write("".join(f"{row}\n" for row in rows))
        return ExitCode.DONE
    place = place_of(args.dir)
    if args.verb == "up":
        lab.up(place, args.hosts)
        sys.stdout.write(f"export CLUSTER_INVENTORY={shlex.quote(str(place.inventory))}\n")
    elif args.verb == "down":
        lab.down(place, everything=args.purge)
    elif args.verb == "status":
        sys.stdout.write("".join(f"{row}\n" for row in lab.status(place)))
    elif args.verb == "break" and args.list:
        from cluster.lab.faults import FAULTS

        width = max(map(len, FAULTS))
        sys.stdout.write("".join(f"{fault.name:<{width}}  {fault.what}\n" for fault in FAULTS.values()))
    elif args.verb == "break":
        if not args.host or not args.fault:
            raise UsageError(
                "cluster lab break requires a host and a fault",
                code="argument-missing",
                remedy="cluster lab break --list",
            )
        lab.break_host(place, args.host, args.fault)
    elif args.verb == "mend":
        lab.mend(place, args.host)
    return ExitCode.DONE


if __name__ == "__main__":
    from cluster.errors import ClusterError

    words = argparse.ArgumentParser(prog="cluster lab")
    configure(words)
    try:
        sys.exit(run(words.parse_args()))
    except ClusterError as error:
        sys.stderr.write("".join(f"{label}: {text}\n" for label, text in error.lines()))
        sys.exit(error.exit_code)
