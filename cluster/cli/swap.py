"""`cluster swap`: what runs makes room for another recipe on the same hosts. It is `up`, which finds its hosts."""

from __future__ import annotations

import argparse
from dataclasses import replace

from cluster.bench.serving import nothing_runs, running_deployment
from cluster.cli import up
from cluster.deploy.session import Connect, Named, answered, find, look, open_fleet, raise_all, read_named, read_recipe
from cluster.errors import ExitCode, UsageError
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen

FIRST = "cluster up starts the first one"


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster swap`."""
    if not (args.recipe or args.recipe_option):
        raise UsageError("swap to which recipe?", remedy="cluster swap RECIPE; cluster recipes list shows them")
    named = read_named(args)
    read_recipe(args, named.file)  # what is wrong with it is said before any host is asked
    options = up.options_of(args)
    with open_fleet(named.hosts, connect) as fleet:
        wanted = up.read_wanted(args, with_hosts(named, fleet))
        return up.start_on(fleet.only(wanted.names), wanted, options, screen)


def with_hosts(named: Named, fleet: Fleet) -> Named:
    """The hosts of what runs, in rank order; those of `-n`, if something of ours runs there.

    Raises RefusedError when nothing runs, or more than one deployment and no host was named.
    """
    seens, errors = answered(look(fleet, named.hosts))
    found = find(seens, named.hosts)
    if not named.explicit:
        by_name = {host.name: host for host in named.hosts}
        running = running_deployment(seens, errors, found, otherwise=FIRST)
        return replace(named, hosts=tuple(by_name[name] for name in running.hosts))
    raise_all(errors)
    ranks = [rank for deployment in found for rank in deployment.ranks.values()]
    if not any(rank.state == "running" for rank in ranks):
        raise nothing_runs(seens, FIRST)
    return named
