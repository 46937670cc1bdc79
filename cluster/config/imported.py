"""What becomes of another project's recipe file: a recipe for cluster as text, and what differs from the file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster.config import written
from cluster.config.recipe import Recipe
from cluster.config.secrets import redact
from cluster.config.written import Document

NO_KEY = "no such key in a recipe"


@dataclass(frozen=True, slots=True)
class Remark:
    """What the recipe does not have as the file has it: the key there, why, and its value without secrets."""

    key: str
    why: str
    value: str = ""


@dataclass(slots=True)
class Imported:
    """A recipe made of another project's file, the sizes that the file is for, and what differs."""

    path: Path
    form: str
    recipe: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: {"tp": 1, "pp": 1})
    remarks: list[Remark] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For the new file: the old one's, or the model's and its size where all files are called the same."""
        stem, tp = self.path.stem, self.sizes["tp"]
        if stem == "recipe":
            stem = self.recipe.get("model", "").rpartition("/")[2] + (f"-tp{tp}" if tp > 1 else "")
        return re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-.") or "imported"

    @property
    def options(self) -> str:
        """The sizes as options of `cluster up`; empty for one host."""
        return "".join(f" --{size} {number}" for size, number in self.sizes.items() if number > 1)

    def text(self) -> str:
        """The recipe as YAML, below what differs, as comments of one printable line each, whatever the file holds."""
        lines = [
            f"Imported from {self.path.name} ({self.form}), and not tried. Start: cluster up {self.name}{self.options}"
        ]
        lines += ["", "Different from there:"] if self.remarks else []
        for remark in self.remarks:
            lines += [f"- {remark.key}: {remark.why}", *(f"    {line}" for line in remark.value.splitlines())]
        comments = "".join(f"# {printable(line)}".rstrip() + "\n" for line in lines)
        recipe = redact({key: self.recipe[key] for key in Recipe.model_fields if key in self.recipe}, ())
        return comments + "\n" + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110)

    def checked(self) -> Recipe:
        """What a reader makes of the text. Raises UsageError that names the file and the recipe's key, without a line,
        since its lines are not the file's."""
        values = written.parse_document(self.text(), str(self.path)).values
        return written.validate(Recipe, Document(str(self.path), values | {"name": self.name}))

    def remark(self, key: str, why: str, value: Any = "") -> None:
        shown = redact(value, (), key)
        text = shown if isinstance(shown, str) else yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
        self.remarks.append(Remark(key, why, text.strip()))


def printable(line: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in line)
