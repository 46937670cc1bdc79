"""`cluster scaling` and `cluster sweep`: up, bench, down step by step, one table.

Each of the three takes the lock of its hosts by itself and releases it, as if somebody had typed them one after the
other. What a step measured is checked to be what it started, so that a change in between is noticed.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.bench.compare import all_warnings, details, moments_table, overview
from cluster.bench.result import find_baseline, results_dir, store
from cluster.bench.scaling import Entry, bytes_a_token
from cluster.bench.series import (
    SIZES,
    Point,
    Series,
    combinations,
    find_series,
    label_of,
    new_series,
    parse_vary,
    read_point,
)
from cluster.bench.tables import Table
from cluster.cli import down, up
from cluster.cli.bench import BenchOptions, measure_all, print_tables
from cluster.cli.options import UpOptions, typed
from cluster.config.inventory import ResolvedHost
from cluster.config.recipe import MemoryNeeds, Recipe, choose_recipe
from cluster.config.written import deciding
from cluster.deploy.session import Connect, Named, find, look, open_fleet, read_named, read_recipe, unchanged
from cluster.deploy.spec import differing, spec_like
from cluster.errors import (
    UNCHANGED,
    ClusterError,
    ExitCode,
    InterruptedByUser,
    RefusedError,
    UsageError,
    joined,
    raise_all,
)
from cluster.hosts.connect import connect
from cluster.screen import QuietScreen, Screen
from cluster.spark.deployments import Deployment
from cluster.spark.request import Wanted

STOPS = (ExitCode.UNREACHABLE, ExitCode.LOCKED, ExitCode.INTERRUPTED)
"""After these the next step has no chance, or is not wanted."""

NO_CONDITIONS = {"nodes", "results", "inventory", "base_url", "model", "api_key_file", "replicas"}
"""Options of bench that do not decide what is measured, or that a step has of its own."""


def run_scaling(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster scaling`. 6 when some sizes or requests failed; an error that ended it gives its own code."""
    named = read_named(args)
    given = given_options(args, named)
    given = replace(given, backend=args.backend or read_recipe(args, named.file).backend)
    steps = read_sizes(given, named, args)
    if args.replicas:
        steps.append(read_replicas(given, named, args))
    screen.note(f"backend {given.backend} at every size" + ("" if args.backend else ", as the recipe says"))
    return SeriesJob("scaling", ("tp",), steps, named, args, screen, connect).run()


def run_sweep(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster sweep`. 6 when some values or requests failed; an error that ended it gives its own code."""
    varied = parse_vary(args.vary)
    named = read_named(args)
    fixed = {"tp": args.tp or args.solo, "pp": args.pipeline != 1, "backend": args.backend}
    for key in varied:
        if fixed.get(key):
            what = f"--vary {key} and the same option are both given"
            raise UsageError(what, code="options-conflict", remedy=f"leave out --vary {key} or the option")
    given = given_options(args, named)
    steps = [read_step(label_of(values), values, given, named, args) for values in combinations(varied)]
    return SeriesJob("sweep", tuple(varied), steps, named, args, screen, connect).run()


@dataclass(frozen=True, slots=True)
class SeriesStep:
    """One deployment to measure, or replicas: what varies, what `up` is asked for, and the options of `up` and `bench`.

    `more`: the steps of the other replicas, which are started after this one's and measured with it.
    """

    label: str
    values: dict[str, Any]
    wanted: Wanted
    up: UpOptions
    bench: BenchOptions
    more: tuple[SeriesStep, ...] = ()

    @property
    def replicas(self) -> tuple[SeriesStep, ...]:
        return (self, *self.more)

    @property
    def hosts(self) -> tuple[ResolvedHost, ...]:
        return tuple(host for one in self.replicas for host in one.wanted.hosts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    def matches(self, deployment: Deployment) -> bool:
        """Whether what runs is what this step starts."""
        specs = (spec_like(one.wanted, deployment.spec, deployment.hosts) for one in self.replicas)
        return any(spec == dict(deployment.spec) for spec in specs)


def read_sizes(given: UpOptions, named: Named, args: argparse.Namespace) -> list[SeriesStep]:
    """The sizes as steps, in the order given. Raises UsageError; no host is asked."""
    if min(args.pipeline, *(args.tp or [1])) < 1:
        raise UsageError("--tp and --pipeline-parallel must be 1 or more", code="size-invalid")
    sizes = list(dict.fromkeys(args.tp or [1, len(named.hosts) // args.pipeline]))
    need, names = max(sizes) * args.pipeline, [host.name for host in named.hosts]
    if need > len(names) or (need < len(names) and not args.replicas):
        what = f"the largest size, --tp {max(sizes)}, uses {need} hosts (one GPU each), named are {','.join(names)}"
        remedy = "name more with -n" if need > len(names) else f"-n {','.join(names[:need])}"
        raise UsageError(what, code="size-invalid", remedy=remedy)
    return [read_step(f"TP={tp}", {"tp": tp}, given, named, args) for tp in sizes]


def read_replicas(given: UpOptions, named: Named, args: argparse.Namespace) -> SeriesStep:
    """One deployment of one host on each host, measured together. Raises UsageError."""
    count = len(named.hosts)
    if args.pipeline != 1 or count < 2:
        what = "--replicas starts a deployment of one host on each: it requires two hosts or more and no pipeline"
        raise UsageError(what, code="options-conflict", remedy="leave out --replicas, or name more hosts with -n")
    first, *more = (read_step(host.name, {"tp": 1}, given, replace(named, hosts=(host,)), args) for host in named.hosts)
    bench = replace(first.bench, nodes=",".join(host.name for host in named.hosts), replicas=True)
    values = {"tp": 1, "replicas": count}
    return replace(first, label=f"{count} × TP=1", values=values, bench=bench, more=tuple(more))


def given_options(args: argparse.Namespace, named: Named) -> UpOptions:
    """What all steps give `up`."""
    name = choose_recipe(args.recipe, args.recipe_option, named.file.inventory)
    return replace(UpOptions.of(args), recipe=name, recipe_option=None)


def read_step(
    label: str, values: dict[str, Any], given: UpOptions, named: Named, args: argparse.Namespace
) -> SeriesStep:
    """A step as it starts and measures its hosts: `--set KEY=VALUE` for recipe keys, the options of `up` for sizes.

    A size of its own takes the first hosts. What `--set bench.…` changes is given to bench as options, since it reads
    the recipe's file by itself. Raises UsageError; no host is asked.
    """
    options = replace(
        given,
        set=[*given.set, *(f"{key}={value}" for key, value in values.items() if key not in SIZES)],
        tp=int(values["tp"]) if "tp" in values else given.tp,
        pipeline=int(values.get("pp", given.pipeline)),
        backend=values.get("backend", given.backend),
    )
    hosts = named.hosts
    if options.solo:
        hosts = hosts[: options.pipeline]
    elif options.tp and {"tp", "pp"} & values.keys():
        hosts = hosts[: options.tp * options.pipeline]
    try:
        wanted = up.read_wanted(options, replace(named, hosts=hosts, explicit=True))
    except UsageError as error:
        error.what = f"{label}: {error.what}"
        raise
    nodes = ",".join(wanted.names)
    bench = replace(BenchOptions.of(args), nodes=nodes, recipe_option=options.recipe, api_key_file=None, replicas=False)
    keys = [text.partition("=")[0].partition(".")[2] for text in options.set if text.startswith("bench.")]
    changed = {key: getattr(wanted.recipe.bench, key) for key in keys if getattr(bench, key, 0) is None}
    started = replace(options, nodes=nodes, solo=False, tp=wanted.tp, dry_run=False)
    return SeriesStep(label, values, wanted, started, replace(bench, **changed))


@dataclass
class SeriesJob:
    """A series that is carried out. `error` is what ended it early, if anything did; `changed`: whether it has started
    something, or taken it down."""

    kind: str
    varied: tuple[str, ...]
    steps: Sequence[SeriesStep]
    named: Named
    args: argparse.Namespace
    screen: Screen
    connect: Connect
    series: Series = field(init=False)
    path: Path = field(init=False)
    error: ClusterError | None = None
    changed: bool = False

    def run(self) -> ExitCode:
        if self.args.dry_run:
            return self.show_plan()
        self.open()
        self.make_room()
        self.screen.stay()
        try:
            for number, step in enumerate(self.steps, 1):
                if not self.error:
                    self.carry_out(step, f"[{number}/{len(self.steps)}] {step.label}")
        except KeyboardInterrupt:
            self.error = InterruptedByUser()
        return self.end()

    def show_plan(self) -> ExitCode:
        """`--dry-run`: each step's three commands, and every host's argv of `up` as it would be now."""
        worst, shown = ExitCode.DONE, []
        for number, step in enumerate(self.steps, 1):
            file = ["--inventory", step.up.inventory] if step.up.inventory else []
            lines = [
                *(typed("up", one.up) for one in step.replicas),
                typed("bench", step.bench),
                shlex.join(["cluster", "down", "--nodes", ",".join(step.names), *file]),
            ]
            for line in (f"[{number}/{len(self.steps)}] {step.label}", *(f"  {line}" for line in lines)):
                self.screen.line(line)
            quiet = QuietScreen(progress=self.screen.json_mode)
            try:
                for one in step.replicas:
                    up.start(one.wanted, replace(one.up, dry_run=True, yes=True), quiet, self.connect)
            except UsageError:
                raise
            except ClusterError as error:
                quiet.error(error)
                worst = ExitCode(max(worst, error.exit_code))
            shown.append({"label": step.label, "values": step.values, "commands": lines, "up": quiet.kept})
        self.screen.document({"steps": shown})
        return worst

    def open(self) -> None:
        """Begin the series, or with --resume find the newest that wanted the same.

        Raises UsageError when it cannot be written; RefusedError when there is nothing to resume.
        """
        directory, recipe = results_dir(self.args.results), self.steps[0].wanted.recipe
        self.series, name = new_series(self.kind, recipe.name, self.wanted(), self.varied)
        self.path = directory / name
        if self.args.resume:
            self.series, self.path = find_series(directory, self.series)
            self.screen.note(f"going on with {self.path}")
        store(self.path, self.series.document(), "--results DIRECTORY")

    def wanted(self) -> dict[str, Any]:
        """What all steps share, and a later run must want as well to be the same series. No secrets."""
        step, args, defaults = self.steps[0], self.args, asdict(BenchOptions())
        recipe = read_recipe(args, self.named.file)  # without what is varied
        nothing = dict.fromkeys(deciding(Recipe, "nothing"), True) | {"memory": deciding(MemoryNeeds, "nothing")}
        return {
            "recipe": recipe.model_dump(mode="json", exclude=nothing),
            "hosts": args.nodes or "",
            "pp": "" if "pp" in self.varied else args.pipeline,
            "backend": "" if "backend" in self.varied else args.backend or "",
            "env": dict(step.wanted.env),
            "secrets": sorted(step.wanted.secrets),
            "words": list(step.wanted.words),
            "bench": {
                key: value
                for key, value in asdict(step.bench).items()
                if key not in NO_CONDITIONS and value != defaults[key]  # a later version may know more options
            },
        }

    def make_room(self) -> None:
        """What runs on these hosts would be replaced and finally taken down: ask first.

        With --resume what a killed run of the same series left is its own: the next step goes on with it.
        """
        with unchanged(self.screen):
            with open_fleet(self.named.hosts, self.connect) as fleet:
                seens, errors = look(fleet, self.named.hosts)
                raise_all(errors)
                running = [one for one in find(seens, self.named.hosts) if one.running]
            resume, to_do = self.args.resume, [step for step in self.steps if self.measured(step) is None]
            if not running or (to_do and resume and all(to_do[0].matches(one) for one in running)):
                return
            names = "; ".join(f"{one.id} on {', '.join(one.hosts)}" for one in running)
            own = resume and all(any(step.matches(one) for step in self.steps) for one in running)
            if not own and not self.args.yes and not self.screen.confirm(f"{names} runs; take it down?"):
                what = f"{names} is running and would be taken down"
                raise RefusedError(what, code="not-confirmed", remedy="run `cluster down` first, or add --yes")
        self.changed = True
        down.take(replace(self.named, explicit=True), QuietScreen(), self.connect, dry_run=False)

    def measured(self, step: SeriesStep) -> Point | None:
        """What an earlier run measured of this step without a failure; only its `down` may have failed."""
        point = self.series.point(step.values)
        result = read_point(point, self.path.parent) if point and point.stage in ("", "down") else None
        return point if result and result.complete else None

    def carry_out(self, step: SeriesStep, place: str) -> None:
        """up, bench, down; what an earlier run has done is left out."""
        point = self.measured(step)
        if point and not point.failed:
            self.screen.note(f"{place}: measured already")
            return
        if point:
            self.screen.note(f"{place}: measured already; down again on {', '.join(point.hosts)}")
            point = self.take_down(replace(point, stage="", failed="", exit=0), step)
        else:
            self.screen.note(f"{place} on {', '.join(step.names)}: up, bench, down")
            point = self.up_bench_down(step)
        self.series = self.series.with_point(point)
        store(self.path, self.series.document(), "--results DIRECTORY")
        if point.failed:
            self.screen.warn(f"{step.label}: {point.stage} failed: {point.failed}")

    def up_bench_down(self, step: SeriesStep) -> Point:
        """One step. What it started keeps running while it is measured, whatever happens, and is then taken down."""
        point, stage = Point(step.label, step.values, step.names, time.time()), "up"
        started: list[dict[str, Any]] = []
        try:
            for one in step.replicas:
                quiet = QuietScreen()
                up.start(one.wanted, replace(one.up, probe=False), quiet, self.connect)
                started.append(quiet.kept)
                self.changed = True
            point, stage = replace(point, up=as_one(started)), "bench"
            done = measure_all(step.bench, QuietScreen(), self.connect)
            if done.interrupted:
                raise InterruptedByUser(f"interrupted while {step.label} was measured")
            [(result, path)] = done.finished
            point, manifest = replace(point, result=path.name), result.manifest
            own = spec_like(step.wanted, manifest.spec, [host.name for host in manifest.hosts])  # of the first replica
            if other := "; ".join(differing(own, manifest.spec)):
                changed = f"the deployment changed while it was measured: {other}"
                raise ClusterError(changed, code="deployment-changed")
            if result.failed:
                point = replace(point, stage=stage, failed="some requests failed", exit=int(done.exit_code))
        except (ClusterError, KeyboardInterrupt) as caught:  # `up` has rolled back what it began
            point = self.failed(point, stage, caught)
        return self.take_down(point, step) if started else point

    def take_down(self, point: Point, step: SeriesStep) -> Point:
        """`cluster down` of the step's hosts. When it fails nothing further can be started there."""
        quiet = QuietScreen()
        try:
            down.take(replace(self.named, hosts=step.hosts, explicit=True), quiet, self.connect, dry_run=False)
        except (ClusterError, KeyboardInterrupt) as caught:
            return self.failed(point, "down", caught)
        return replace(point, down=quiet.kept)

    def failed(self, point: Point, stage: str, caught: ClusterError | KeyboardInterrupt) -> Point:
        """A step that failed, for its first reason; `error` is set when no further one should be tried."""
        error = caught if isinstance(caught, ClusterError) else InterruptedByUser()
        if self.changed and error.rolled_back == UNCHANGED:
            error.rolled_back = ""
        if stage == "down":
            error.remedy = error.remedy or f"cluster down -n {','.join(point.hosts)}"
        if stage == "down" or error.exit_code in STOPS:
            self.error = error
        return point if point.failed else replace(point, stage=stage, failed=error.what, exit=int(error.exit_code))

    def exit_code(self) -> ExitCode:
        """0 all measured, 6 some; when none was, or the series ended early, the error's own code."""
        if self.error:
            return ExitCode(self.error.exit_code)
        points = [point for step in self.steps if (point := self.series.point(step.values))]
        bad = [point for point in points if point.failed]
        if bad and not any(point.result for point in points):
            return ExitCode(bad[0].exit)
        return ExitCode.PARTIAL if bad else ExitCode.DONE

    def tables(self, entries: list[Entry]) -> list[Table]:
        """Each size, memory by moment, and last what was compared; a sweep has its steps as lines."""
        shown = [*([] if self.kind == "sweep" else details(entries)), *moments_table(entries)]
        if self.kind == "sweep" or len(entries) != 1 or (entries[0].tp or 1) == 1:
            return [*shown, *overview(entries, [self.series])]
        baseline, refused = find_baseline(self.path.parent, entries[0].result)
        if baseline:
            entries = [Entry("TP=1", baseline[1], baseline[0]), *entries]
        why = refused or ["no single-node baseline of this recipe is stored"]
        notes = [] if baseline else [Table("scaling", notes=tuple(why))]
        return [*shown, *overview(entries, [self.series]), *notes]

    def end(self) -> ExitCode:
        """The tables of what was measured, whether or not all of it was; the files, the error, the one document."""
        entries = []
        for step in self.steps:
            point, recipe = self.series.point(step.values), step.wanted.recipe
            if point and (result := read_point(point, self.path.parent)):
                path = self.path.parent / point.result
                entries.append(Entry(step.label, result, path, point, bytes_a_token(recipe), tuple(recipe.reference)))
        tables = self.tables(entries)
        for line in all_warnings(entries):
            self.screen.line(f"! {line}")
        print_tables(tables, self.screen)
        self.screen.line(f"series: {self.path}")
        if entries:
            self.screen.line(f"page:   cluster report {self.path} -o {self.kind}.html")
        code = self.exit_code()
        if self.error:
            self.error.remedy = joined(self.error.remedy, "the same command with --resume goes on")
            QuietScreen().error(self.error)
        elif code != ExitCode.DONE:
            self.screen.warn("the same command with --resume tries what failed again")
        self.screen.document(
            self.series.document()
            | {"path": str(self.path), "exit": int(code), "results": [entry.result.document() for entry in entries]}
            | {"tables": [table.document() for table in tables]}
            | ({"error": self.error.as_dict()} if self.error else {})
        )
        return code


def as_one(started: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `up` reported of replicas that were started one after the other, as of one deployment."""
    seconds, moments = Counter[str](), defaultdict[str, dict[str, Any]](dict)
    for one in started:
        seconds.update(one["stages_s"])
        for moment, by_host in one["memory_bytes"].items():
            moments[moment] |= by_host
    hosts = [host for one in started for host in one["hosts"]]
    own = {"changed": any(one["changed"] for one in started), "hosts": hosts}
    return started[0] | {"stages_s": dict(seconds), "memory_bytes": dict(moments)} | own
