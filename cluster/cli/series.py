"""`cluster scaling` and `cluster sweep`: up, bench, down step by step, one table.

Each of the three takes the lock of its hosts by itself and gives it back, as if somebody had typed them one after the
other. What a step measured is checked to be what it started, so that a change in between is noticed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.bench.compare import Entry, all_warnings, compare, moments_table, prompt_table, steps_table, sweep_tables
from cluster.bench.result import find_baseline, results_dir
from cluster.bench.scaling import bytes_a_token
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
    write_series,
)
from cluster.bench.tables import Table, bench_table
from cluster.cli import down, up
from cluster.cli.bench import BenchOptions, measure_all, print_tables
from cluster.cli.options import UpOptions
from cluster.cli.options import up as up_options
from cluster.cli.typed import typed
from cluster.config.recipe import choose_recipe
from cluster.deploy import fetch
from cluster.deploy.session import Connect, Named, answered, find, look, open_fleet, raise_all, read_named, read_recipe
from cluster.deploy.spec import differing, spec_like
from cluster.errors import UNCHANGED, ClusterError, ExitCode, InterruptedByUser, RefusedError, UsageError
from cluster.hosts.connect import connect
from cluster.screen import QuietScreen, Screen
from cluster.spark.deployments import Deployment
from cluster.spark.request import Wanted

STOPS = (ExitCode.UNREACHABLE, ExitCode.LOCKED, ExitCode.INTERRUPTED)
"""After these the next step has no chance, or is not wanted."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deployment to measure: what varies, what `up` is asked for, and the options of `up` and `bench`."""

    label: str
    values: dict[str, Any]
    wanted: Wanted
    up: UpOptions
    bench: BenchOptions


@dataclass
class Log:
    """The file of a series, written anew after each step."""

    series: Series
    path: Path
    error: ClusterError | None = None

    def keep(self, point: Point) -> None:
        self.series = self.series.with_point(point)
        write_series(self.series, self.path)


Report = Callable[[Log, Sequence[Entry]], list[Table]]


def open_log(kind: str, steps: Sequence[Step], varied: Sequence[str], args: argparse.Namespace, screen: Screen) -> Log:
    """The series to write to: a new one, or with --resume the newest that wanted the same.

    Raises UsageError when the directory of results cannot be written; RefusedError when there is nothing to resume.
    """
    directory = results_dir(args.results or "", Path.cwd(), os.environ)
    recipe, wanted = steps[0].wanted.recipe.name, what_is_wanted(steps[0], varied, args)
    series, name = new_series(kind, recipe, wanted, varied)
    path = directory / name
    if args.resume:
        earlier = find_series(directory, kind, recipe, wanted)
        if earlier.series is None or earlier.path is None:
            found = f"; {earlier.path.name} differs: {'; '.join(earlier.differences[:6])}" if earlier.path else ""
            raise RefusedError(
                f"no earlier {kind} of {recipe} under these conditions in {directory}{found}",
                code="nothing-to-resume",
                remedy="run the same command without --resume to start one",
            )
        series, path = earlier.series, earlier.path
        screen.note(f"going on with {path}")
    write_series(series, path)
    return Log(series, path)


HOW = {"nodes", "results", "inventory", "base_url", "model", "api_key_file"}
"""Options of bench that do not decide what is measured, or that a step has of its own."""


def what_is_wanted(step: Step, varied: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """What all steps share, and a later run must want as well to be the same series. No secrets."""
    defaults = asdict(BenchOptions())
    recipe = step.wanted.recipe.model_dump(mode="json", exclude={"reference", "problems", "summary"})
    for key in varied:  # a vLLM flag with or without `vllm.` in front
        first, *rest = key.removeprefix("vllm.").split(".")
        _take(recipe, key.split("."))
        _take(recipe["vllm"], [first.replace("_", "-"), *rest])
    return {
        "recipe": recipe,
        "hosts": args.nodes or "",
        "pp": "" if "pp" in varied else args.pipeline,
        "backend": "" if "backend" in varied else args.backend or "",
        "env": dict(step.wanted.env),
        "secrets": sorted(step.wanted.secrets),
        "words": list(step.wanted.words),
        "bench": {
            key: value
            for key, value in asdict(step.bench).items()
            if key not in HOW and value != defaults[key]  # a later version may know more options
        },
    }


def _take(inner: Any, path: Sequence[str]) -> None:
    """Take one key out of nested mappings, if it is there."""
    for part in path[:-1]:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(path[-1], None)


def carry_out(steps: Sequence[Step], log: Log, named: Named, screen: Screen, connect: Connect) -> None:
    """Take all steps that are not measured yet. `log.error` says what ended the series early, if anything did."""
    screen.stay()
    for number, step in enumerate(steps, 1):
        place = f"[{number}/{len(steps)}] {step.label}"
        try:
            if (done := kept_point(log, step)) and not done.failed:
                screen.note(f"{place}: measured already")
                continue
            if done:
                screen.note(f"{place}: measured already; down again on {', '.join(done.hosts)}")
                point, log.error = take_down(replace(done, stage="", failed="", exit=0), step, named, connect)
            else:
                screen.note(f"{place} on {', '.join(step.wanted.names)}: up, bench, down")
                point, log.error = take_step(step, named, connect)
        except KeyboardInterrupt:
            log.error = InterruptedByUser()
            return
        log.keep(point)
        if point.failed:
            screen.warn(f"{step.label}: {point.stage} failed: {point.failed}")
        if log.error:
            return


def kept_point(log: Log, step: Step) -> Point | None:
    """What an earlier run measured of this step without a failure; only its `down` may have failed."""
    point = log.series.point(step.values)
    result = read_point(point, log.path.parent) if point and point.stage in ("", "down") else None
    return point if result and result.complete else None


def take_step(step: Step, named: Named, connect: Connect) -> tuple[Point, ClusterError | None]:
    """up, bench, down. The error is one after which no further step should be tried."""
    point, screen = Point(step.label, step.values, step.wanted.names, time.time()), QuietScreen()
    options = up.Options(False, step.up.yes, fetch.read_token(step.up.hub_token_file))
    try:
        up.start(step.wanted, options, screen, connect)
    except ClusterError as error:  # `up` has put back what it began
        return failed(point, "up", error), error if error.exit_code in STOPS else None
    point, ended = measure(replace(point, up=screen.kept), step, connect)
    point, left = take_down(point, step, named, connect)
    return point, left or ended


def take_down(point: Point, step: Step, named: Named, connect: Connect) -> tuple[Point, ClusterError | None]:
    """`cluster down` of the step's hosts. When it fails nothing further can be started there."""
    screen = QuietScreen()
    try:
        down.take(replace(named, hosts=step.wanted.hosts, explicit=True), screen, connect, dry_run=False)
    except (ClusterError, KeyboardInterrupt) as caught:
        ended = caught if isinstance(caught, ClusterError) else InterruptedByUser()
        ended.remedy = ended.remedy or f"cluster down -n {','.join(step.wanted.names)}"
        return failed(point, "down", ended), ended
    return replace(point, down=screen.kept), None


def measure(point: Point, step: Step, connect: Connect) -> tuple[Point, ClusterError | None]:
    """`cluster bench`; the step's deployment runs on whatever happens."""
    try:
        measured = measure_all(step.bench, QuietScreen(), connect)
    except (ClusterError, KeyboardInterrupt) as caught:
        error = caught if isinstance(caught, ClusterError) else InterruptedByUser()
        return failed(point, "bench", error), error if error.exit_code in STOPS else None
    if measured.interrupted:
        stopped = InterruptedByUser(f"interrupted while {step.label} was measured")
        return failed(point, "bench", stopped), stopped
    [(result, path)] = measured.finished
    point, spec = replace(point, result=path.name), result.manifest.spec
    started = spec_like(step.wanted, spec, [host.name for host in result.manifest.hosts])
    if other := "; ".join(differing(started, spec)):
        error = ClusterError(f"the deployment changed while it was measured: {other}", code="deployment-changed")
        return failed(point, "bench", error), None
    if result.failed:
        return replace(point, stage="bench", failed="some requests failed", exit=int(measured.exit_code)), None
    return point, None


def failed(point: Point, stage: str, error: ClusterError) -> Point:
    return replace(point, stage=stage, failed=error.what, exit=int(error.exit_code))


def exit_code(log: Log, steps: Sequence[Step]) -> ExitCode:
    """0 all measured, 6 some; when none was, or the series ended early, the error's own code."""
    if log.error:
        return ExitCode(log.error.exit_code)
    points = [point for step in steps if (point := log.series.point(step.values))]
    bad = [point for point in points if point.failed]
    if not bad:
        return ExitCode.DONE
    return ExitCode(bad[0].exit) if len(bad) == len(points) and not any(p.result for p in points) else ExitCode.PARTIAL


def make_room(
    steps: Sequence[Step], log: Log, named: Named, args: argparse.Namespace, screen: Screen, connect: Connect
) -> None:
    """What of ours runs on these hosts would be replaced and taken down in the end: ask first.

    With --resume what a killed run of the same series left behind is its own: the next step goes on with it.
    """
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = answered(look(fleet, named.hosts))
        raise_all(errors)
        running = [one for one in find(seens, named.hosts) if one.running]
    to_do = [step for step in steps if kept_point(log, step) is None]
    if not running or (to_do and args.resume and all(is_of(one, to_do[0]) for one in running)):
        return
    names = "; ".join(f"{one.id} on {', '.join(one.hosts)}" for one in running)
    own = args.resume and all(any(is_of(one, step) for step in steps) for one in running)
    if not own and not args.yes and not screen.confirm(f"{names} runs; take it down?"):
        raise RefusedError(
            f"{names} is running and would be taken down",
            code="not-confirmed",
            rolled_back=UNCHANGED,
            remedy="run `cluster down` first, or add --yes",
        )
    down.take(named, QuietScreen(), connect, dry_run=False)


def is_of(deployment: Deployment, step: Step) -> bool:
    """Whether what runs is what a step starts."""
    return spec_like(step.wanted, deployment.spec, deployment.hosts) == dict(deployment.spec)


def show_plan(steps: Sequence[Step], screen: Screen, connect: Connect) -> ExitCode:
    """`--dry-run`: each step's three commands, and every host's argv of `up` as it would be now."""
    worst, shown = ExitCode.DONE, []
    for number, step in enumerate(steps, 1):
        file = ["--inventory", step.up.inventory] if step.up.inventory else []
        lines = [
            typed("up", up_options, step.up),
            step.bench.command,
            shlex.join(["cluster", "down", "--nodes", ",".join(step.wanted.names), *file]),
        ]
        screen.line(f"[{number}/{len(steps)}] {step.label}")
        for line in lines:
            screen.line(f"  {line}")
        quiet = QuietScreen(progress=screen.json_mode)
        try:
            up.start(step.wanted, up.Options(True, True, ""), quiet, connect)
        except UsageError:
            raise
        except ClusterError as error:
            quiet.error(error)
            worst = ExitCode(max(worst, error.exit_code))
        shown.append({"label": step.label, "values": step.values, "commands": lines, "up": quiet.kept})
    screen.document({"steps": shown})
    return worst


def first(named: Named, count: int) -> Named:
    """The first hosts, named as if they had been typed."""
    return replace(named, hosts=named.hosts[:count], explicit=True)


def read_step(label: str, values: dict[str, Any], options: UpOptions, named: Named, args: argparse.Namespace) -> Step:
    """A step as it starts and measures these hosts. Raises UsageError; no host is asked.

    What `--set bench.…` changes is given to bench as options, since it reads the recipe's file by itself.
    """
    wanted = up.read_wanted(options, named)
    nodes = ",".join(wanted.names)
    bench = replace(BenchOptions.of(args), nodes=nodes, recipe_option=options.recipe, api_key_file=None)
    keys = [text.partition("=")[0].partition(".")[2] for text in options.set if text.startswith("bench.")]
    changed = {key: getattr(wanted.recipe.bench, key) for key in keys if getattr(bench, key, 0) is None}
    started = replace(options, nodes=nodes, solo=False, tp=wanted.tp, dry_run=False)
    return Step(label, values, wanted, started, replace(bench, **changed))


def entry_of(step: Step, log: Log) -> Entry | None:
    """A step's measurement; None when there is none."""
    point, recipe, directory = log.series.point(step.values), step.wanted.recipe, log.path.parent
    if point is None or (result := read_point(point, directory)) is None:
        return None
    return Entry(step.label, result, directory / point.result, point, bytes_a_token(recipe), tuple(recipe.reference))


def end(steps: Sequence[Step], log: Log, report: Report, screen: Screen) -> ExitCode:
    """The tables of what was measured, whether or not all of it was; the files, the error that ended it early, the one
    document, the exit code."""
    entries = [entry for step in steps if (entry := entry_of(step, log))]
    tables = report(log, entries)
    for line in all_warnings(entries):
        screen.line(f"! {line}")
    print_tables(tables, screen)
    screen.line(f"series: {log.path}")
    if entries:
        screen.line(f"page:   cluster report {log.path} -o {log.series.kind}.html")
    code = exit_code(log, steps)
    if log.error:
        log.error.remedy = "; ".join(filter(None, (log.error.remedy, "the same command with --resume goes on")))
        QuietScreen().error(log.error)
    elif code != ExitCode.DONE:
        screen.warn("the same command with --resume tries what failed again")
    screen.document(
        log.series.document()
        | {"path": str(log.path), "exit": int(code), "results": [entry.result.document() for entry in entries]}
        | {"tables": [table.document() for table in tables]}
        | ({"error": log.error.as_dict()} if log.error else {})
    )
    return code


def run_scaling(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster scaling`. 6 when some sizes or requests failed; an error that ended it gives its own code."""
    named = read_named(args)
    steps = read_sizes(args, named)
    if args.dry_run:
        return show_plan(steps, screen, connect)
    log = open_log("scaling", steps, ("tp",), args, screen)
    make_room(steps, log, named, args, screen, connect)
    screen.note(f"backend {steps[0].up.backend} at every size" + ("" if args.backend else ", as the recipe says"))
    carry_out(steps, log, named, screen, connect)
    return end(steps, log, report_scaling, screen)


def read_sizes(args: argparse.Namespace, named: Named) -> list[Step]:
    """The sizes as steps, smallest deployment first as given. Raises UsageError; no host is asked."""
    name = choose_recipe(args.recipe, args.recipe_option, named.file.inventory)
    sizes = list(dict.fromkeys(args.tp or [1, len(named.hosts) // args.pipeline]))
    if args.pipeline < 1 or not sizes or min(sizes) < 1:
        raise UsageError("--tp and --pipeline-parallel must be 1 or more", code="size-invalid")
    need, there = max(sizes) * args.pipeline, len(named.hosts)
    names = [host.name for host in named.hosts]
    if need > there:
        raise UsageError(
            f"--tp {max(sizes)} requires {need} hosts (one GPU each), {there} named: {','.join(names)}",
            code="size-invalid",
            remedy="name more with -n",
        )
    if need < there:
        raise UsageError(
            f"the largest size, --tp {max(sizes)}, uses {need} of {there} hosts: {','.join(names)}",
            code="size-invalid",
            remedy=f"-n {','.join(names[:need])}",
        )
    backend = args.backend or read_recipe(args, named.file).backend
    typed_as = replace(UpOptions.of(args), recipe=name, recipe_option=None, backend=backend)
    return [
        read_step(f"TP={tp}", {"tp": tp}, replace(typed_as, tp=tp), first(named, tp * args.pipeline), args)
        for tp in sizes
    ]


def report_scaling(log: Log, entries: Sequence[Entry]) -> list[Table]:
    """What each size did, memory by moment, and last each larger size beside the smallest."""
    tables = [steps_table(log.series, {entry.label: entry.result for entry in entries})]
    tables += [replace(bench_table(entry.result), title=entry.label) for entry in entries]
    memory = moments_table(entries)
    tables += [memory] if memory else []
    if len(entries) != 1 or (entries[0].tp or 1) == 1:
        by_size = sorted(entries, key=lambda entry: entry.tp or 0)
        return tables + [table for entry in by_size[1:] for table in compare(by_size[0], entry)]
    [entry] = entries  # one size alone: the stored baseline whose conditions agree, else what differs
    shapes = [row.shape for row in entry.result.rows]
    baseline = find_baseline(log.path.parent, entry.result.manifest, 1, shapes)
    if baseline.result:
        return tables + compare(
            replace(entry, label="TP=1", result=baseline.result, path=baseline.path, point=None), entry
        )
    refused = [
        f"not compared with {path.name}: {'; '.join(map(str, against[:5]))}" for path, against in baseline.refused[:3]
    ]
    return [*tables, Table("scaling", (), (), tuple(refused or ["no single-node baseline of this recipe is stored"]))]


def run_sweep(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster sweep`. 6 when some values or requests failed; an error that ended it gives its own code."""
    varied = parse_vary(args.vary)
    named = read_named(args)
    fixed = {"tp": args.tp or args.solo, "pp": args.pipeline != 1, "backend": args.backend}
    for one in varied:
        if fixed.get(one.key):
            raise UsageError(
                f"--vary {one.key} and the same option are both given",
                code="options-conflict",
                remedy=f"leave out --vary {one.key} or the option",
            )
    name = choose_recipe(args.recipe, args.recipe_option, named.file.inventory)
    steps = [read_combination(args, values, name, named) for values in combinations(varied)]
    if args.dry_run:
        return show_plan(steps, screen, connect)
    log = open_log("sweep", steps, [one.key for one in varied], args, screen)
    make_room(steps, log, named, args, screen, connect)
    carry_out(steps, log, named, screen, connect)
    return end(steps, log, report_sweep, screen)


def read_combination(args: argparse.Namespace, values: dict[str, str], name: str, named: Named) -> Step:
    """One combination: `--set KEY=VALUE` for recipe keys, the options of `up` for sizes."""
    sets = [*args.set, *(f"{key}={value}" for key, value in values.items() if key not in SIZES)]
    given = UpOptions.of(args)
    given = replace(
        given,
        recipe=name,
        recipe_option=None,
        set=sets,
        tp=int(values["tp"]) if "tp" in values else given.tp,
        pipeline=int(values.get("pp", given.pipeline)),
        backend=values.get("backend", given.backend),
    )
    hosts = first(named, len(named.hosts))
    if given.solo:
        hosts = first(named, given.pipeline)
    elif given.tp and {"tp", "pp"} & set(values):  # a size of its own takes the first hosts, as in `scaling`
        hosts = first(named, given.tp * given.pipeline)
    label = label_of(values)
    try:
        return read_step(label, dict(values), given, hosts, args)
    except UsageError as error:
        error.what = f"{label}: {error.what}"
        raise


def report_sweep(log: Log, entries: Sequence[Entry]) -> list[Table]:
    """The table of the sweep, prompt processing, memory by moment."""
    memory = moments_table(entries)
    tables = [*sweep_tables(log.series, entries), *([prompt_table(entries)] if entries else [])]
    return [*tables, memory] if memory else tables
