"""vLLM's own argument parser, asked in the lab's engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers())
parsed = [vars(parser.parse_args(words[1:])) for words in json.load(sys.stdin)]
options = [option for action in parser._subparsers._group_actions[0].choices["serve"]._actions
           for option in action.option_strings]
print(json.dumps({"parsed": parsed, "options": options}, default=str))
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the parser made of each argv, and every option it knows."""

    arguments: list[dict[str, Any]]
    options: frozenset[str]


def parse(sent: Sequence[Sequence[str]], folder: Path) -> Parsed:
    """Give each argv (`vllm serve …`) to the real parser; skips the test where the engine is not built."""
    engine = os.environ.get("CLUSTER_TEST_ENGINE", "")
    if not Path(engine, "bin/python3").exists():
        pytest.skip("the lab's engine is not built yet (cluster lab up), so the real vLLM's parser is not asked")
    words = [f"{engine}/bin/python3", "-c", PARSE]
    env = {**os.environ, "TMPDIR": str(folder)}  # torch leaves a folder in /tmp
    done = subprocess.run(words, input=json.dumps(sent), capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return Parsed(told["parsed"], frozenset(told["options"]))
