"""`cluster lab`: simulated Sparks on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys

from cluster.cli.options import Parser
from cluster.errors import ExitCode, UsageError

DIR = {"--dir DIR": "the lab's directory (default $CLUSTER_LAB_DIR or /var/lib/cluster-lab)"}
VERBS = {
    "up": (
        "start the hosts; prints the line that selects their inventory",
        {
            "--hosts N": "how many (default: as many as run, else 2, with --gpu one for each card)",
            "--gpu": "hosts with a real GPU each, of this machine (scripts/gpu prepares one)",
            **DIR,
        },
    ),
    "down": ("end the hosts and remove their files", {"--purge": "also remove the built engine and images", **DIR}),
    "status": ("which hosts are up, and what is broken on purpose", DIR),
    "break": (
        "make a fault on purpose",
        {"HOST?": "which host", "FAULT?": "which fault, see --list", "--list": "the faults, a line each", **DIR},
    ),
    "mend": ("undo faults", {"HOST?": "which host (default all)", **DIR}),
    "memory": (
        "let a host have only so much memory; it reboots",
        {"HOST?": "which host", "GIB?": "for its processes and containers together; 0: all of this machine's", **DIR},
    ),
    "toy": (
        "the words that run a recipe with a toy model: cluster up $(cluster lab toy RECIPE)",
        {"RECIPE?": "which recipe (default: all, with what is replaced and why)"},
    ),
}
"""By verb: what it does, and its options."""


def configure(parser: Parser) -> None:
    parser.description = "Simulated Sparks on this machine: real SSH, Docker, Ray and vLLM on CPU. Needs root."
    parser.epilog = 'example: eval "$(cluster lab up)" && cluster up lab-tiny -n spark1,spark2 --tp 2'
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(VERBS))
    for verb, (text, options) in VERBS.items():
        verbs.add_parser(verb, help=text).add_options(options)


def run(args: argparse.Namespace, screen: object = None) -> int:
    try:
        from cluster.lab import lab, stand_ins
        from cluster.lab.faults import FAULTS
        from cluster.lab.place import place_of
    except ModuleNotFoundError:
        what = "cluster lab needs a checkout: what is installed does not contain the lab"
        remedy = "clone the repository, then run scripts/demo or .venv/bin/cluster lab up in it"
        raise UsageError(what, code="lab-needs-checkout", remedy=remedy) from None

    rows = []
    if args.verb == "toy":
        rows = [stand_ins.words_for(args.recipe)] if args.recipe else stand_ins.table()
    elif args.verb == "up":
        place = place_of(args.dir)
        lab.up(place, args.hosts, with_gpus=args.gpu)
        rows = [f"export CLUSTER_INVENTORY={shlex.quote(str(place.inventory))}"]
    elif args.verb == "down":
        lab.down(place_of(args.dir), everything=args.purge)
    elif args.verb == "status":
        rows = lab.status(place_of(args.dir))
    elif args.verb == "mend":
        lab.mend(place_of(args.dir), args.host)
    elif args.verb == "memory" and args.gib is not None:
        lab.limit_memory(place_of(args.dir), args.host, args.gib)
    elif args.verb == "break" and args.list:
        width = max(map(len, FAULTS))
        rows = [f"{name:<{width}}  {fault.what}" for name, fault in FAULTS.items()]
    elif args.verb == "break" and args.fault:
        lab.break_host(place_of(args.dir), args.host, args.fault)
    else:
        wanted, remedy = {
            "break": ("a fault", "cluster lab break --list"),
            "memory": ("GiB", "cluster lab memory spark1 8"),
        }[args.verb]
        what = f"cluster lab {args.verb} requires a host and {wanted}"
        raise UsageError(what, code="argument-missing", remedy=remedy)
    sys.stdout.write("".join(f"{row}\n" for row in rows))
    return ExitCode.DONE
