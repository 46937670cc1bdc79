"""One more host in the text of an inventory: lines are added, every other byte stays as the user wrote it.

No round-trip YAML library: those rewrite indentation, quotes and widths of what they load. PyYAML's nodes know where
the last host ends; the result is read again and must hold the old values and the new host, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from cluster.config.inventory import Inventory
from cluster.config.validate import validate
from cluster.config.written import compose, parse_document
from cluster.errors import UsageError

HEADER = "# Hosts of `cluster`; every key is explained in inventory/example.yaml and docs/configuration.md.\n"


def with_host(text: str, name: str, values: Mapping[str, str | int], file: str) -> str:
    """The inventory's text with one more host, the last one. `text` may be empty.

    Raises UsageError when the file is not valid as it is, has that host already, or is written in a way that lines
    cannot be added to (the lines to add by hand are given).
    """
    before: dict[str, Any] = {}
    root = compose(text, file)
    if root is not None:
        document = parse_document(text, file)
        validate(Inventory, document)
        before = dict(document.values)
    hosts = dict(before.get("hosts") or {})
    if name in hosts:
        raise UsageError(f"{file}: hosts.{name} is there already")
    wanted = before | {"hosts": hosts | {name: {key: str(value) for key, value in values.items()}}}
    result = _insert(text, root, name, values)
    if not _says(result, wanted, file):
        lines = _block({name: dict(values)}, 2)
        raise UsageError(f"{file}: a host cannot be added to hosts as it is written", remedy=f"add by hand:\n{lines}")
    return result


def _says(text: str, wanted: Mapping[str, Any], file: str) -> bool:
    try:
        document = parse_document(text, file)
        validate(Inventory, document)
    except UsageError:
        return False
    return document.values == wanted


def _insert(text: str, root: yaml.Node | None, name: str, values: Mapping[str, str | int]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    at, indent, flow = len(lines), 2, False
    head = [] if lines else HEADER.splitlines(keepends=True)
    found = next((pair for pair in root.value if pair[0].value == "hosts"), None) if root else None
    if found is None:
        head.append("hosts:\n")
    elif _is_block(found[1]):
        last_key, last_value = found[1].value[-1]
        at, indent = _last_line(last_value) + 1, last_key.start_mark.column
        flow = isinstance(last_value, yaml.MappingNode) and bool(last_value.flow_style)
    else:
        at = found[0].start_mark.line + 1
        lines[at - 1] = lines[at - 1].replace(" {}", "", 1) if found[1].value == [] else lines[at - 1]
    added = "".join(head) + _block({name: dict(values)}, indent, flow=flow)
    return "".join([*lines[:at], added.replace("\n", end), *lines[at:]])


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and not node.flow_style and bool(node.value)


def _last_line(node: yaml.Node) -> int:
    """Line (from 0) on which a value ends. A block's own end mark lies behind the comments and blanks after it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return max(_last_line(value) for pair in node.value for value in pair)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return max(_last_line(item) for item in node.value)
    is_block_text = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.line) - (1 if is_block_text else 0)


def _block(values: Mapping[str, Any], indent: int, *, flow: bool = False) -> str:
    text = yaml.safe_dump(
        dict(values), sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None if flow else False
    )
    return "".join(" " * indent + line for line in text.splitlines(keepends=True))
