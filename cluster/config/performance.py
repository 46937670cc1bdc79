"""NVIDIA's performance.yaml, the numbers beside a recipe.yaml, as reference numbers of a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cluster.config.imported import NO_KEY, Imported
from cluster.config.script import value_of

RATE = "results.{}_tokens_per_second_mean"


def read_performance(values: Mapping[str, Any], imported: Imported) -> None:
    """Add rows of reference, and pin the image and the model's revision to those that were measured."""

    def at(path: str, within: Any = values) -> str:
        for part in path.split("."):
            within = within.get(part) if isinstance(within, dict) else None
        return str(within) if isinstance(within, str) else ""

    recipe = imported.recipe
    digest = at("software.runtime_revision")
    if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) and "@" not in recipe.get("image", "@"):
        recipe["image"] += f"@{digest}"
    if revision := at("software.model_revision"):
        recipe["revision"] = revision
    profiles = values.get("profiles")
    for number, profile in enumerate(profiles if isinstance(profiles, list) else []):
        tokens, out = at("workload.input_tokens", profile), at("workload.output_tokens", profile)
        kinds = {"prefill": f"pp{tokens}", "decode": f"tg{out} @ d{tokens}"}
        rows = [
            {"test": test, "tp": imported.sizes["tp"], "t_s": value_of([rate])}
            for kind, test in kinds.items()
            if (rate := at(RATE.format(kind), profile))
        ]
        if not tokens.isdecimal() or not out.isdecimal() or at("workload.concurrency", profile) != "1" or not rows:
            why = "a reference has rates of one client with fixed numbers of tokens"
            imported.remark(f"performance.yaml: profiles.{number}", why, profile)
            continue
        others = {
            key: value for key, value in profile["results"].items() if f"results.{key}" not in map(RATE.format, kinds)
        }
        if others:
            imported.remark(f"performance.yaml: profiles.{number}.results", NO_KEY, others)
        how = f"{at('harness.name')} {at('harness.version')}, {at('workload.dataset', profile)} "
        how += f"{at('workload.profile', profile)}, {at('workload.requests', profile)} requests after "
        how += f"{at('workload.warmup_requests', profile)}, 1 client; vLLM {at('software.backend_version')}, "
        how += f"{at('system.label')}, driver {at('system.driver_version')}"
        source = f"{recipe.get('summary', recipe['model'])}, performance.yaml of NVIDIA, measured {at('measured_at')}"
        reference = {"source": source, "depth_mode": "cold", "measured_with": how, "rows": rows}
        recipe.setdefault("reference", []).append(reference)
