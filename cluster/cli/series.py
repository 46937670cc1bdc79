"""up, bench, down, step by step: what `scaling` and `sweep` are loops of.

Each of the three takes the lock of its hosts by itself and gives it back, as if somebody had typed them one after the
other. What a step measured is checked to be what it started, so a stranger in between is noticed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.bench.result import results_dir
from cluster.bench.series import Point, Series, find_series, new_series, read_point, write_series
from cluster.cli import bench, down, up
from cluster.cli.options import down as down_options
from cluster.cli.options import up as up_options
from cluster.cli.options_measuring import bench as bench_options
from cluster.cli.told import Told
from cluster.cli.typed import bench_args, bench_defaults, typed
from cluster.deploy import fetch
from cluster.deploy.session import Connect, Named, answered, find, look, open_fleet, raise_all
from cluster.deploy.spec import differing, spec_like
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, RefusedError, UsageError
from cluster.screen import Screen
from cluster.spark.deployed import Deployment
from cluster.spark.request import Wanted

STOPS = (ExitCode.UNREACHABLE, ExitCode.LOCKED, ExitCode.INTERRUPTED)
"""After these the next step has no chance, or is not wanted."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deployment to measure: what `up` is asked for, as values and as the command line that says the same."""

    label: str
    values: dict[str, Any]
    wanted: Wanted
    args: argparse.Namespace


@dataclass
class Log:
    """The file of a series, written anew after each step."""

    series: Series
    path: Path
    error: ClusterError | None = None

    def keep(self, point: Point) -> None:
        """Add a step that has ended."""
        self.series = self.series.with_point(point)
        write_series(self.series, self.path)


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
                remedy="the same command without --resume begins one",
            )
        series, path = earlier.series, earlier.path
        screen.note(f"going on with {path}")
    write_series(series, path)
    return Log(series, path)


HOW = {"nodes", "results", "inventory", "json", "debug", "words", "base_url", "model", "api_key_file"}
"""Options of bench that do not decide what is measured, or that a step has of its own."""


def what_is_wanted(step: Step, varied: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """What all steps share, and a later run must want as well to be the same series. No secrets."""
    defaults = bench_defaults()
    return {
        "recipe": _base(
            step.wanted.recipe.model_dump(mode="json", exclude={"reference", "problems", "summary"}), varied
        ),
        "hosts": args.nodes or "",
        "pp": "" if "pp" in varied else args.pipeline,
        "backend": "" if "backend" in varied else args.backend or "",
        "env": dict(step.wanted.env),
        "secrets": sorted(step.wanted.secrets),
        "words": list(step.wanted.words),
        "bench": {
            key: value
            for key, value in vars(bench_args(step.args)).items()
            if key not in HOW and value != defaults.get(key)  # a later version may know more options
        },
    }


def _base(recipe: dict[str, Any], varied: Sequence[str]) -> dict[str, Any]:
    """A recipe without the keys that are varied, a vLLM flag with or without `vllm.` in front."""
    for key in varied:
        first, *rest = key.removeprefix("vllm.").split(".")
        _take(recipe, key.split("."))
        _take(recipe["vllm"], [first.replace("_", "-"), *rest])
    return recipe


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
            log.error = InterruptedByUser("interrupted")
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
    point = Point(step.label, step.values, step.wanted.names, time.time())
    point, error = start(point, step, connect)
    if point.failed:
        return point, error
    point, error = measure(point, step, connect)
    back, left = take_down(point, step, named, connect)
    return back, left or error


def take_down(point: Point, step: Step, named: Named, connect: Connect) -> tuple[Point, ClusterError | None]:
    """`cluster down` of the step's hosts. When it fails nothing further can be started there."""
    said = Told()
    try:
        down.take(replace(named, hosts=step.wanted.hosts, explicit=True), said, connect, dry_run=False)
    except (ClusterError, KeyboardInterrupt) as caught:
        ended = caught if isinstance(caught, ClusterError) else InterruptedByUser("interrupted")
        ended.remedy = ended.remedy or f"cluster down -n {','.join(step.wanted.names)}"
        return failed(point, "down", ended), ended
    return replace(point, down=said.told), None


def start(point: Point, step: Step, connect: Connect) -> tuple[Point, ClusterError | None]:
    """`cluster up`; when it fails, it has put back what it began."""
    said = Told()
    token = fetch.read_token(step.args.hub_token_file)
    options = up.Options(False, step.args.yes, token)
    try:
        up.start(step.wanted, options, said, connect)
    except ClusterError as error:
        return failed(point, "up", error), error if error.exit_code in STOPS else None
    return replace(point, up=said.told), None


def measure(point: Point, step: Step, connect: Connect) -> tuple[Point, ClusterError | None]:
    """`cluster bench`; the step's deployment runs on whatever happens."""
    said = Told()
    try:
        code = bench.run(bench_args(step.args), said, connect)
    except (ClusterError, KeyboardInterrupt) as caught:
        error = caught if isinstance(caught, ClusterError) else InterruptedByUser("interrupted")
        return failed(point, "bench", error), error if error.exit_code in STOPS else None
    if code == ExitCode.INTERRUPTED:
        stopped = InterruptedByUser(f"interrupted while {step.label} was measured")
        return failed(point, "bench", stopped), stopped
    point = replace(point, result=Path(said.told["path"]).name)
    other = another(step.wanted, said.told["manifest"])
    if other:
        return failed(point, "bench", ClusterError(f"something else was measured than was started: {other}")), None
    if code != ExitCode.DONE:
        return replace(point, stage="bench", failed="some requests failed", exit=int(code)), None
    return point, None


def another(wanted: Wanted, manifest: dict[str, Any]) -> str:
    """What differs between the deployment that was started and the one that was measured."""
    like = spec_like(wanted, manifest["spec"], [host["name"] for host in manifest["hosts"]])
    return "; ".join(differing(like, manifest["spec"]))


def failed(point: Point, stage: str, error: ClusterError) -> Point:
    """A step with why it failed."""
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


def make_room(steps: Sequence[Step], log: Log, named: Named, args: argparse.Namespace, screen: Screen,
              connect: Connect) -> None:  # fmt: skip
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
            f"{names} runs and would be taken down", put_back="nothing was changed", remedy="cluster down, or --yes"
        )
    down.take(named, Told(), connect, dry_run=False)


def is_of(deployment: Deployment, step: Step) -> bool:
    """Whether what runs is what a step starts."""
    return spec_like(step.wanted, deployment.spec, deployment.hosts) == dict(deployment.spec)


def show_plan(steps: Sequence[Step], screen: Screen, connect: Connect) -> ExitCode:
    """`--dry-run`: each step's three commands, and every host's argv of `up` as it would be now."""
    worst, shown = ExitCode.DONE, []
    for number, step in enumerate(steps, 1):
        lines = commands(step)
        screen.line(f"[{number}/{len(steps)}] {step.label}")
        for line in lines:
            screen.line(f"  {line}")
        said = Told(progress=screen.json_mode)
        try:
            up.start(step.wanted, up.Options(True, True, ""), said, connect)
        except UsageError:
            raise
        except ClusterError as error:
            said.error(error)
            worst = ExitCode(max(worst, error.exit_code))
        shown.append({"label": step.label, "values": step.values, "commands": lines, "up": said.told})
    screen.document({"steps": shown})
    return worst


def commands(step: Step) -> list[str]:
    """The step as it would be typed."""
    measured, hosts = bench_args(step.args), ",".join(step.wanted.names)
    return [
        typed("up", up_options, step.args),
        typed("bench", bench_options, measured),
        typed("down", down_options, argparse.Namespace(nodes=hosts, inventory=step.args.inventory)),
    ]
