"""Recipe files of other projects: what becomes of the samples in tests/samples/foreign, and of what is in the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from config_tools import refusal, write

from cluster.argv.vllm import OURS
from cluster.cli.main import main
from cluster.cli.recipes import MANAGED, problems_of
from cluster.config.foreign import read_foreign
from cluster.config.imported import Imported
from cluster.config.recipe import read_recipe
from cluster.config.script import commands, fill, flags, value_of

SAMPLES = Path(__file__).parents[1] / "samples" / "foreign"
SPARKRUN = "model: a/b\ncontainer: c/d\nruntime: vllm\n"
DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(path: Path | str) -> Imported:
    return read_foreign(Path(path), OURS, MANAGED)


def of(text: str) -> Imported:
    return read(write("recipe.yaml", text))


def why(imported: Imported) -> dict[str, str]:
    return {remark.key: remark.why for remark in imported.remarks}


def test_nvidia() -> None:
    imported = read(SAMPLES / "nvidia/recipe.yaml")
    assert (imported.name, imported.options) == ("toy-9b-fp8-tp2", " --tp 2")
    recipe = imported.checked()
    assert (recipe.model, recipe.revision) == ("example/Toy-9B-FP8", "0123456789abcdef0123456789abcdef01234567")
    assert recipe.image == f"example/vllm:v1@{DIGEST}"
    assert (recipe.backend, recipe.port, recipe.shm_gib) == ("mp", 8001, 24)
    assert recipe.env == {"TOY_FAST": "1", "TOY_KERNELS": "all", "TOY_MODE": "fast"}
    assert recipe.vllm == {
        "trust-remote-code": True,
        "max-model-len": "auto",
        "mamba-ssm-cache-dtype": "float32",
        "default-chat-template-kwargs": {"thinking": True, "effort": "high"},
        "compilation-config": {"mode": 0, "custom_ops": ["all"]},
    }
    assert [problem.what for problem in recipe.problems] == ["answers in French only"]
    [reference] = recipe.reference
    assert [(row.test, row.tp, row.t_s) for row in reference.rows] == [
        ("pp8192", 2, 2000.5),
        ("tg256 @ d8192", 2, 40.25),
    ]
    assert reference.depth_mode == "cold"
    assert "2026-10-02" in reference.source
    assert "toybench 1.2.0, toy/set long, 10 requests after 3" in reference.measured_with
    remarks = why(imported)
    assert {"runtime.setup_command", "serve.additional_commands", "notes", "hardware", "--nnodes"} < remarks.keys()
    assert {"performance.yaml: profiles.0.results", "performance.yaml: profiles.1"} < remarks.keys()
    assert remarks["runtime.setup_command -e NCCL_SOCKET_IFNAME"] == "set by cluster"
    assert "shell" in remarks["runtime.setup_command -e UCX_NET_DEVICES"]
    assert not {"schema_version", "sampling", "title", "--port"} & remarks.keys()


def test_sparkrun() -> None:
    imported = read(SAMPLES / "sparkrun.yaml")
    assert (imported.name, imported.options) == ("sparkrun", " --tp 2")
    recipe = imported.checked()
    assert (recipe.summary, recipe.revision, recipe.parameters_b) == ("a toy", "abc123", 9)
    assert (recipe.backend, recipe.port, recipe.shm_gib) == ("ray", 8002, 20)
    assert (recipe.served_model_name, recipe.image) == ("toy", f"example/vllm@{DIGEST}")
    assert recipe.env == {"TOY_FAST": "1"}
    assert recipe.vllm == {
        "max-model-len": 4096,
        "speculative-config": {"method": "mtp", "options": {"k": 3}},
        "limit-mm-per-prompt": {"image": 2},
        "cudagraph-capture-sizes": [1, 2, 4],
        "enable-flashinfer-autotune": False,
        "compilation-config": {"mode": 0},
        "chat-template": "toy.jinja",
    }
    remarks = why(imported)
    assert {"mods", "pre_exec", "min_nodes", "metadata.category", "executor_config.user", "--host"} < remarks.keys()
    assert {"--seed", "defaults.unused"} < remarks.keys()
    assert "kept" in remarks["--chat-template"]


def test_spark_vllm_docker() -> None:
    imported = read(SAMPLES / "docker.yaml")
    recipe = imported.checked()
    assert (recipe.backend, recipe.image, imported.options) == ("ray", "vllm-toy", "")
    assert recipe.vllm == {"enable-prefix-caching": True, "speculative-config": {"method": "mtp", "k": 3}}
    assert {"image", "build_args", "--host"} < why(imported).keys()


@pytest.mark.parametrize("name", ["nvidia/recipe.yaml", "sparkrun.yaml"])
def test_no_secret_is_written_or_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "import", str(SAMPLES / name)]) == 0
    [file] = Path("recipes").iterdir()
    shown = capsys.readouterr()
    for text in (file.read_text(), shown.out, shown.err):
        assert "hf_0123" not in text
        assert "-e HF_TOKEN" in text or text is shown.err


def test_flags_instead_of_a_command() -> None:
    recipe = of(SPARKRUN + "defaults: {tensor_parallel: 2, max_model_len: 64, enforce_eager: true, api_key: hunter22}")
    assert recipe.sizes["tp"] == 2
    assert recipe.checked().vllm == {"max-model-len": 64, "enforce-eager": True}
    assert "hunter22" not in recipe.text()
    assert "VLLM_API_KEY" in recipe.text()
    assert "-e" in why(recipe)["--api-key"]


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("vllm serve a/b --x 1 > /tmp/log", "command", "'>' /tmp/log"),
        ("pip install x && vllm serve a/b", "command", "pip install x"),
        ("nohup vllm serve a/b", "command", "nohup"),
        ("vllm serve a/b --api-key sk-0123456789abcdefgh", "--api-key", "(hidden)"),
        ("vllm serve a/b --hf-token abcdefgh", "--hf-token", ""),
        ("vllm serve a/b --a.b.token abcdefgh --x.y 1", "--a.b.token", ""),
        ('vllm serve a/b --a-config \'{"token": "abcdefgh"}\'', "--a-config", ""),
        (
            "vllm serve a/b\ncurl -H 'Authorization: Bearer abcdefgh'",
            "command",
            "curl -H 'Authorization: Bearer (hidden)'",
        ),
        ("vllm serve a/b --seed $SEED", "--seed", "$SEED"),
        ("vllm serve a/b -tp 0", "--tensor-parallel-size", "0"),
        ("vllm serve a/b --port {port}", "--port", "{port}"),
        ("vllm serve a/b --distributed-executor-backend uni", "--distributed-executor-backend", "uni"),
        ("vllm serve a/b --served-model-name hf_0123456789abcdefgh", "--served-model-name", "(hidden)"),
        ("vllm serve a/b --served-model-name x y", "--served-model-name", "y"),
        ("vllm serve a/b --data-parallel-size 2", "--data-parallel-size", "2"),
        ("HF_HOME=/x vllm serve a/b", "command HF_HOME", "/x"),
    ],
)
def test_what_has_no_place(command: str, key: str, value: str) -> None:
    imported = of(SPARKRUN + f"command: {json.dumps(command)}")
    assert imported.checked().model == "a/b"
    assert {remark.key: remark.value for remark in reversed(imported.remarks)}[key] == value
    assert not re.search("hf_0|sk-0|abcdefgh", imported.text())


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("a: 1\na: 2", "yaml-invalid", ":2"),
        ("x: [", "yaml-invalid", ":1"),
        ("x: !!python/object:os.system {}", "yaml-invalid", ":1"),
        ("\nmodel: a/b", "recipe-form-unknown", ":2"),
        ("serve: {command: vllm serve}\ncheckpoint: {x: 1}\nruntime: {x: 1}\nbackend: vllm", "key-missing", ""),
        ("{}", "recipe-form-unknown", ""),
        (SPARKRUN.replace("vllm", "sglang"), "recipe-not-importable", ":3"),
        (SPARKRUN + "command: sglang serve a/b", "recipe-not-importable", ":4"),
        (SPARKRUN + "command: [vllm, serve]", "recipe-not-importable", ":4"),
        (SPARKRUN + "command: vllm serve 'a", "recipe-not-importable", ":4"),
        (SPARKRUN + "env: [A]", "recipe-not-importable", ":4"),
        (SPARKRUN.replace("a/b", "a/b:Q4_K_M"), "value-invalid", ""),
        (SPARKRUN + "command: vllm serve a/b --port ninety", "value-invalid", ""),
    ],
)
def test_what_is_refused(text: str, code: str, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("theirs.yaml", text)
    assert main(["recipes", "import", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"error: {file}{where}" in error
    assert f"[{code}]" in error
    assert not Path("recipes").exists()


def test_a_list_instead_of_a_mapping() -> None:
    error = refusal(of, "backend: vllm\nruntime: {image: a/b}\ncheckpoint: {x: 1}\nserve: [a]\n")
    assert error.what.endswith("recipe.yaml:4: serve.command cannot be imported: no `vllm serve` in it")


def test_secrets_anywhere_are_hidden() -> None:
    token = "hf_0123456789abcdefghij"
    write("performance.yaml", (SAMPLES / "nvidia/performance.yaml").read_text().replace("toybench", token))
    imported = of((SAMPLES / "nvidia/recipe.yaml").read_text().replace("French only", f"French {token}"))
    assert token not in imported.text()
    assert imported.checked().problems[0].what == "answers in French (hidden)"


def test_no_file_there() -> None:
    assert refusal(read, "nowhere.yaml").code == "file-unreadable"
    Path("empty").mkdir()
    assert main(["recipes", "import", "empty"]) == 2


def test_comments_cannot_become_keys() -> None:
    value = 'a\\u2028model: evil\\nimage: evil\\x85port: 1\\e[31m"'
    imported = of(SPARKRUN + f'command: vllm serve a/b\nnotes: "{value}\n"x\\nport: 2": 1')
    assert imported.checked().model_dump(exclude_unset=True) == {
        "name": "b",
        "model": "a/b",
        "image": "c/d",
        "backend": "mp",
    }
    assert "\x1b" not in imported.text()


def test_a_folder_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    write("theirs/a.yaml", SPARKRUN)
    write("theirs/deep/b.yml", SPARKRUN + "command: sglang serve a/b")
    write("theirs/deep/.hidden/c.yaml", SPARKRUN)
    write("theirs/other/a.yaml", SPARKRUN)
    write("theirs/notes.yaml", "x: 1")
    assert main(["recipes", "import", "theirs", "--json", "--force"]) == 1
    document: Any = json.loads(capsys.readouterr().out)
    assert [(row["from"], row["path"]) for row in document["imported"]] == [("theirs/a.yaml", "recipes/a.yaml")]
    codes = [error["code"] for error in document["failed"]]
    assert codes == ["recipe-not-importable", "recipe-form-unknown", "file-exists"]
    assert document["failed"][-1]["error"] == "theirs/other/a.yaml: recipes/a.yaml was just made of theirs/a.yaml"
    assert "--force" not in document["failed"][-1]["hint"]
    assert main(["recipes", "import", "theirs/deep", "-o", "new"]) == 1


def test_an_existing_recipe_is_not_overwritten() -> None:
    write("theirs.yaml", SPARKRUN)
    mine = write("recipes/theirs.yaml", "mine")
    assert main(["recipes", "import", "theirs.yaml"]) == 2
    assert mine.read_text() == "mine"
    assert main(["recipes", "import", "theirs.yaml", "--force"]) == 0
    assert list(problems_of(mine)) == []
    assert read_recipe(mine).image == "c/d"


def test_a_packaged_recipe_of_the_name_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    file = write("gemma-4-31b-fp8.yaml", SPARKRUN)
    assert main(["recipes", "import", str(file), "-o", "elsewhere"]) == 0
    assert "hides" not in capsys.readouterr().out
    assert main(["recipes", "import", str(file)]) == 0
    assert "hides the packaged recipe gemma-4-31b-fp8" in capsys.readouterr().out


def test_a_script_is_read_by_words() -> None:
    script = 'a "b c" \\\n --x \'{"k": "#1"}\' # said\n# x\nc; d && e'
    assert commands(script) == [["a", "b c", "--x", '{"k": "#1"}'], ["c"], ["d"], ["e"]]
    assert list(flags(["m", "--a", "1", "-2", "-tp=2", "-O3", "-cc.mode", "0"])) == [
        ("", ["m"]),
        ("a", ["1", "-2"]),
        ("tensor-parallel-size", ["2"]),
        ("optimization-level", ["3"]),
        ("compilation-config.mode", ["0"]),
    ]
    words = ("0.80", "yes", "true", "{broken", "1.1.1", '{"a":1}')
    assert [value_of([word]) for word in words] == [0.8, "yes", "true", "{broken", "1.1.1", {"a": 1}]
    assert [value_of([]), value_of(["1", "x"]), value_of(["true"], nested=True)] == [True, [1, "x"], True]


def test_values_are_put_into_a_template() -> None:
    assert fill("{a} {b} {{c}}", {"a": "1"}) == ("1 {b} {c}", {"a"})
    assert fill('{"a":{"b":{k}}} {x}', {"k": "1", "x": "{k}"}) == ('{"a":{"b":1}} 1', {"k", "x"})
    assert len(fill("{x}" * 1000, {"x": "y" * 100_000})[0]) < 1_100_000
