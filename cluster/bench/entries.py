"""From files to measurements with all that is known around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.bench.ceiling import Reading, bytes_a_token
from cluster.bench.compare import Entry, name_results
from cluster.bench.result import PARTIAL, Result, find_baseline, read_result
from cluster.bench.series import ENDING, Series, read_point, read_series
from cluster.config.load import load_recipe
from cluster.config.recipe import Recipe
from cluster.errors import ClusterError, UsageError


def read_files(paths: Sequence[Path]) -> tuple[list[Entry], list[Series]]:
    """What the files hold: results, and series with their results. Raises ClusterError naming the file."""
    entries: list[Entry] = []
    series: list[Series] = []
    loose: list[tuple[Path, Result]] = []
    for path in paths:
        if path.name.endswith(ENDING):
            series.append(read_series(path))
            entries += series_entries(series[-1], path.parent)
        else:
            loose.append((path, read_result(path)))
    names = name_results([result for _, result in loose])
    known = {entry.path.resolve() for entry in entries if entry.path}
    entries += [
        with_recipe(Entry(name, result, path))
        for name, (path, result) in zip(names, loose, strict=True)
        if path.resolve() not in known
    ]
    return entries, series


def series_entries(series: Series, directory: Path) -> list[Entry]:
    """The measurements of a series, in its order."""
    found = []
    for point in series.points:
        result = read_point(point, directory)
        if result is not None:
            found.append(with_recipe(Entry(point.label, result, directory / point.result, point)))
    return found


def with_recipe(entry: Entry) -> Entry:
    """The same with what the recipe says of it, as far as the recipe is still found and serves the same model."""
    recipe = served_recipe(entry.result)
    if recipe is None:
        return replace(entry, reading=Reading(None, "the recipe of this result is not found here"))
    return replace(entry, reading=bytes_a_token(recipe), references=tuple(recipe.reference))


def served_recipe(result: Result) -> Recipe | None:
    """The recipe as it was served: the file of that name, with the flags that the result's deployment had."""
    spec = result.manifest.spec.get("recipe")
    if not result.manifest.recipe:
        return None
    try:
        recipe = load_recipe(result.manifest.recipe).recipe
    except UsageError:
        return None
    if not isinstance(spec, dict) or spec.get("model", recipe.model) != recipe.model:
        return None if isinstance(spec, dict) else recipe
    return recipe.model_copy(update={"vllm": dict(spec.get("vllm", recipe.vllm))})


def newest(directory: Path) -> list[Path]:
    """What `cluster report` takes by itself: the newest result, with the series it is of or its stored baseline.

    Raises UsageError when nothing is stored.
    """
    kept = {name: path for path in sorted(directory.glob(f"*{ENDING}")) for name in names_of(path)}
    results = [path for path in directory.glob("*.json") if not path.name.endswith(ENDING)]
    for path in sorted((*results, *directory.glob(f"*{PARTIAL}")), reverse=True):
        try:
            result = read_result(path)
        except ClusterError:
            continue
        if path.name in kept:
            return [kept[path.name]]
        baseline = find_baseline(directory, result.manifest, 1, [row.shape for row in result.rows])
        return [baseline.path, path] if (result.manifest.tp or 1) > 1 and baseline.path else [path]
    raise UsageError(f"no results in {directory}", remedy="cluster bench makes one; cluster report FILE… takes others")


def names_of(path: Path) -> list[str]:
    """The results that a series names; none when it cannot be read."""
    try:
        return [point.result for point in read_series(path).points if point.result]
    except ClusterError:
        return []
