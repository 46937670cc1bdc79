"""From a command line to hosts that answer: what every action begins with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.config.inventory import InventoryFile, ResolvedHost, load_inventory, resolve_hosts
from cluster.config.recipe import Recipe, choose_recipe, final_recipe, load_recipe
from cluster.errors import UNCHANGED, ClusterError, ExitCode, InterruptedByUser, ManyErrors, UsageError, raise_all
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet, Say, values
from cluster.hosts.fleet import errors as errors_of
from cluster.hosts.lock import Lock
from cluster.hosts.protocol import Host
from cluster.hosts.target import ssh_knows
from cluster.screen import Screen
from cluster.spark import disk, identity
from cluster.spark import look as spark_look
from cluster.spark.deployments import Deployment, deployments
from cluster.spark.fact import Missing, known
from cluster.spark.finding import as_errors
from cluster.spark.look import Look, Seen
from cluster.spark.request import Wanted


@dataclass(frozen=True, slots=True)
class Named:
    """What a command line names: the inventory, the hosts of `-n` (or all), whether `-n` was given."""

    file: InventoryFile
    hosts: tuple[ResolvedHost, ...]
    explicit: bool


def read_named(args: Any) -> Named:
    """The inventory and the hosts that a command line's options mean. Raises UsageError."""
    file = load_inventory(args.inventory)
    return Named(file, tuple(resolve_hosts(file, [args.nodes] if args.nodes else [], ssh_knows)), bool(args.nodes))


def read_recipe(args: Any, file: InventoryFile) -> Recipe:
    """The recipe that a command line's options mean, `--set` applied. Raises UsageError."""
    name = choose_recipe(getattr(args, "recipe", None), args.recipe_option, file.inventory)
    return final_recipe(load_recipe(name).recipe, args.set)


Connect = Callable[[Mapping[str, Any]], Fleet]
"""How a fleet is made of inventory entries. Actions take it as an argument: tests give them hosts of their own."""


def open_fleet(hosts: Sequence[ResolvedHost], connect: Connect = connect) -> Fleet:
    """Hosts that can be asked; connections are opened when first used."""
    return connect({host.name: host for host in hosts})


@dataclass
class Stopwatch:
    """Seconds by stage, in order."""

    stages: dict[str, float] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)

    @property
    def passed(self) -> float:
        return time.monotonic() - self.start

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.monotonic() - start


@dataclass(frozen=True, slots=True)
class Session:
    """What one command works with: its hosts, the lock on them, the screen, and the time of each stage.

    A dry run changes nothing and holds no lock.
    """

    fleet: Fleet
    guard: Lock
    screen: Screen
    dry_run: bool = False
    clock: Stopwatch = field(default_factory=Stopwatch)


def note_unchanged(errors: Iterable[ClusterError], screen: Screen) -> None:
    """Have errors say that no changes were made, if that is so."""
    for error in errors:
        if not screen.stays and not error.rolled_back:
            error.rolled_back = UNCHANGED


@contextmanager
def unchanged(screen: Screen) -> Iterator[None]:
    """Errors that leave the block before the first change say so; see `errors`."""
    try:
        yield
    except (ClusterError, KeyboardInterrupt) as caught:
        error = caught if isinstance(caught, ClusterError) else InterruptedByUser()
        note_unchanged(error.errors, screen)
        raise error from caught.__cause__


@contextmanager
def at_work(
    hosts: Sequence[ResolvedHost], purpose: str, screen: Screen, connect: Connect, *, dry_run: bool
) -> Iterator[Session]:
    """These hosts, connected and locked. Errors before the first change say that there was none."""
    clock = Stopwatch()
    with unchanged(screen), open_fleet(hosts, connect) as fleet, ExitStack() as held:
        with clock.stage("connect and lock"):
            reach(fleet)
            guard = held.enter_context(locked(fleet, hosts, purpose, dry_run=dry_run))
        yield Session(fleet, guard, screen, dry_run, clock)


def locked(fleet: Fleet, hosts: Sequence[ResolvedHost], purpose: str, *, dry_run: bool = False) -> Lock:
    """The lock on all these hosts; a dry run changes nothing and locks none."""
    return Lock(fleet.only(()) if dry_run else fleet, purpose, {host.name: host.data_dir for host in hosts})


def reach(fleet: Fleet) -> None:
    """Open all connections at once. Raises every host's error when some are unreachable, or are one machine."""
    answers = values(fleet.ask_all([identity.machine_question()]))
    tell_apart({host: identity.parse_machine(answer) for host, [answer] in answers.items()})


def tell_apart(machines: Mapping[str, str | Missing]) -> None:
    """Raise RefusedError when two of these hosts are one machine, or one does not report which it is."""
    raise_all(as_errors([*identity.check_machines(machines)]))


def find(seens: Mapping[str, Seen], named: Sequence[ResolvedHost]) -> tuple[Deployment, ...]:
    """The deployments on the hosts of a command that answered. Raises RefusedError as `tell_apart` does."""
    tell_apart({host: seen.machine for host, seen in seens.items()})
    return deployments(seens.values(), named)


def not_chosen(found: Sequence[Deployment], remedy: str) -> UsageError:
    """That several deployments could be meant."""
    names = "; ".join(f"{one.id} on {','.join(one.hosts)}" for one in found)
    return UsageError(f"more than one deployment exists: {names}", code="deployment-not-chosen", remedy=remedy)


def choose_one(found: Sequence[Deployment], named: Named) -> None:
    """Raise UsageError when deployments are side by side on different hosts, and no `-n` says which is meant."""
    if not named.explicit and any({*one.hosts}.isdisjoint(other.hosts) for one in found for other in found):
        raise not_chosen(found, "name the hosts of one with -n, or of all")


def look(
    fleet: Fleet, hosts: Sequence[ResolvedHost], wanted: Wanted | None = None
) -> tuple[dict[str, Seen], list[ClusterError]]:
    """Look at all hosts at once, in one round trip each: those that answered, and the errors of the others."""
    outcomes = fleet.each(looker(fleet, hosts, wanted), [host.name for host in hosts])
    return {name: one.value for name, one in outcomes.items() if one.value is not None}, errors_of(outcomes)


def see(fleet: Fleet, hosts: Sequence[ResolvedHost], wanted: Wanted | None = None, say: Say = None) -> dict[str, Seen]:
    """Look until every one of them has answered, or was silent for too long."""
    return fleet.keep_trying(looker(fleet, hosts, wanted), [host.name for host in hosts], say)


def looker(fleet: Fleet, hosts: Sequence[ResolvedHost], wanted: Wanted | None) -> Callable[[Host], Seen]:
    """What looks at one of these hosts: for something wanted, at everything that its checks need."""
    places, more = {host.name: host for host in hosts}, dict[str, Any]()
    if wanted:
        files = tuple(mount.model_file for mount in wanted.recipe.mounts if mount.model_file)
        more = {"image": wanted.recipe.image, "models": wanted.models, "model_files": files, "thorough": True}

    def look_at(host: Host) -> Seen:
        place, asked_at = places[host.name], fleet.time.time()
        one = Look(data_dir=place.data_dir, hf_home=place.hf_home, **more)
        answers = host.ask(spark_look.questions(one))
        seen = spark_look.read(host.name, one, answers, (asked_at, fleet.time.time()))
        docker, rooms = known(seen.docker), known(seen.disk)
        if one.thorough and docker and rooms is not None and disk.moved_root(docker.root, rooms):
            # one more question: the room where images live when Docker keeps them elsewhere (`data-root`)
            elsewhere = known(disk.parse(host.ask([disk.question([docker.root])])[0]))
            return replace(seen, disk=(*rooms, *(elsewhere or ())))
        return seen

    return look_at


def finish(errors: Sequence[ClusterError], screen: Screen, code: ExitCode) -> ExitCode:
    """The exit code of a command that has shown its result; hosts' errors are raised unless its document has them."""
    if errors and screen.json_mode:
        return ManyErrors(errors).exit_code
    raise_all(errors)
    return code
