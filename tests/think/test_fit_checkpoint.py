"""`cluster fit` from a checkpoint's headers, as typed: a directory, this machine's copy, the hub, what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, HubServer, serving
from loops import each
from test_checkpoint import safetensors

from cluster.cli.main import main
from cluster.model import hub as requests

SAMPLE = Path(__file__).parents[1] / "samples" / "held" / "tiny-gemma-4.json"
CPU = (  # what vLLM does in the lab, where a GPU is assumed
    "--set=vllm.kv-cache-memory-bytes=1G",
    "--set=vllm.block-size=128",
    "--set=vllm.async-scheduling=false",
    "--length=8192",
)


def files() -> tuple[dict[str, bytes], Any]:
    """A toy's checkpoint, its data all zero, and what vLLM held of it."""
    held = json.loads(SAMPLE.read_text())
    header = {name: (dtype, shape) for name, dtype, shape, _ in held["tensors"]}
    return {"config.json": json.dumps(held["config"]).encode(), "model.safetensors": safetensors(header)}, held["runs"]


@pytest.fixture(autouse=True)
def home(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is read of the person who runs the tests, nor is the real hub asked."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(requests, "PAUSES_S", (0.0, 0.0, 0.0))
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    for name, content in files()[0].items():
        (place / name).write_bytes(content)
    return place


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serving(HubServer(files()[0], model="cluster-lab/tiny-gemma-4")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def counted(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["fit", "lab-tiny", "--json", *words]) == code
    return json.loads(capsys.readouterr().out)


def test_a_directory_gives_what_vllm_logged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, runs = files()
    for tp, run in runs.items():
        words = (*CPU, f"--set=vllm.max-num-batched-tokens={run['batched']}", "--tp", tp)
        found = counted(capsys, "--model-dir", str(folder), *words)
        [one] = found["fits"]
        assert (one["tokens"], one["blocks"]) == (run["tokens"], run["blocks"])
        weights = (one["weights"] - one["parts"]["position tables"]) * (1 << 30)
        assert weights == pytest.approx(run["weights"][0], abs=1)
        assert found["checkpoint"] == {"model": str(folder), "commit": ""}


def test_the_hub_is_asked_once_for_a_commit(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    first = counted(capsys)
    assert first["checkpoint"] == {"model": "cluster-lab/tiny-gemma-4", "commit": COMMIT}
    asked = len(hub.asked)
    assert counted(capsys) == first
    assert len(hub.asked) == asked + 1, "a branch may have moved, the headers of a commit have not"
    assert counted(capsys, "--set", f"revision={COMMIT}")["fits"] == first["fits"]
    assert len(hub.asked) == asked + 1


def test_this_machines_copy_comes_first(home: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = home / "hf" / "hub" / "models--cluster-lab--tiny-gemma-4"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "snapshots").mkdir()
    folder.rename(place / "snapshots" / COMMIT)
    assert counted(capsys)["checkpoint"]["commit"] == COMMIT
    (place / "snapshots" / COMMIT / "model.safetensors").unlink()
    assert counted(capsys, code=3)["errors"][0]["code"] == "hub-unreachable", "weights that are not there do not count"


@each("offline", ["", "1", "True", "on", "YES"])
def test_offline_counts_with_the_recipes_own_numbers(
    offline: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    assert main(["fit", "lab-tiny", *([] if offline else ["--offline"])]) == 0
    assert "counted with the recipe's own numbers" in capsys.readouterr().err


def test_what_goes_wrong_is_one_error(hub: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> tuple[str, int]:
        assert main(["fit", "lab-tiny", "--json", *words]) in (2, 3)
        [error] = json.loads(capsys.readouterr().out)["errors"]
        return error["code"], len(error["error"].splitlines())

    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-5])
    assert refused("--model-dir", str(folder)) == ("checkpoint-cut", 1)
    weights.rename(folder / "model.gguf")
    assert refused("--model-dir", str(folder)) == ("checkpoint-not-safetensors", 1)
    assert refused("--model-dir", str(folder / "none")) == ("model-not-found", 1)
    hub.token = "needed"
    assert refused() == ("model-gated", 1)
    hub.token, hub.fail_first = "", 99
    assert refused() == ("hub-unreachable", 1)


def test_a_cache_that_is_not_known_is_no_guess(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"layer_types": ["quantum_attention"] * 6}
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["fit", "lab-tiny", "--model-dir", str(folder), "--tp", "1"]) == 0
    said = capsys.readouterr()
    assert "the cache is not counted: config.json: " in said.err
    assert [row.split()[-1] for row in said.out.splitlines() if "in tokens" in row or "longest" in row] == [
        "unknown"
    ] * 2


@each(
    "words, change, why",
    [
        (("--tp", "3"), {}, "heads are not divisible by 3"),
        (("--tp", "1", "--pp", "99"), {}, "99 pipeline stages are more than the model's"),
        (("--tp", "1", "--length", "1M"), {}, "1048576 tokens are more than the"),
        (("--tp", "1", "--length", "1M"), {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ""),
        (("--tp", "1", "--length", "1M", "--set", "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"), {}, ""),
    ],
)
def test_what_vllm_refuses_does_not_fit(
    words: tuple[str, ...], change: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, _ = files()
    config = json.loads(content["config.json"])
    config |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(content["model.safetensors"])
    [one] = counted(capsys, "--model-dir", str(tmp_path), *words, code=4 if why else 0)["fits"]
    assert any(why in row for row in one["wrong"]) if why else not one["wrong"]
    assert one["verdict"] == ("does not fit" if why else "fits")


@each(
    "stored, words, width",
    [
        ("float32", (), 2),
        ("float32", ("--set", "vllm.dtype=float32"), 4),
        ("bfloat16", ("--set", "vllm.dtype=float32"), 4),
        ("bfloat16", ("--set", "vllm.dtype=half"), 2),
    ],
)
def test_fp32_is_served_as_bf16_unless_a_flag_says_otherwise(
    stored: str, words: tuple[str, ...], width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, _ = files()
    config = json.loads(content["config.json"])
    (tmp_path / "model.safetensors").write_bytes(content["model.safetensors"])
    block = []
    cases: list[tuple[str, tuple[str, ...]]] = [("bfloat16", ()), (stored, words)]
    for dtype, more in cases:
        config |= {"dtype": dtype}
        (tmp_path / "config.json").write_text(json.dumps(config))
        [one] = counted(capsys, "--model-dir", str(tmp_path), "--tp", "1", *more)["fits"]
        block.append((one["block_bytes"], one["parts"]["layers"]))
    assert block[1][0] * 2 == block[0][0] * width
    assert block[1][1] == pytest.approx(block[0][1] * width / 2, rel=0.01)


def test_a_checkpoint_without_tensors_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({}))
    error = counted(capsys, "--model-dir", str(folder), code=2)["errors"][0]
    assert error["code"] == "checkpoint-invalid"
    assert "no tensor in 1 safetensors file" in error["error"]


def test_an_empty_config_json_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text("{}")
    main(["fit", "lab-tiny", "--model-dir", str(folder), "--tp", "1"])
    assert "config.json: the cache of this model cannot be counted: model_type None" in capsys.readouterr().err


def test_a_cache_that_the_checkpoint_asks_for_is_what_auto_means(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ModelOpt 0.29 and before say it in a file of its own, which vLLM reads where config.json says nothing."""
    config = json.loads((folder / "config.json").read_text())

    def tokens(*more: str) -> Any:
        return counted(capsys, "--model-dir", str(folder), "--tp", "1", *more)["fits"][0]["tokens"]

    plain, fp8 = tokens(), tokens("--set", "vllm.kv-cache-dtype=fp8")
    assert fp8 > 1.9 * plain
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": []}
    modelopt = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantization}
    (folder / "hf_quant_config.json").write_text(json.dumps(modelopt))
    assert tokens() == fp8
    assert tokens("--set", "vllm.kv-cache-dtype=bfloat16") == plain
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (folder / "config.json").write_text(json.dumps(config))
    assert tokens() == plain


def test_what_stays_free_gives_the_utilization(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model-dir", str(folder), "--tp", "1", "--leave", "20")
    [one] = counted(capsys, *words)["fits"]
    assert one["left"] == pytest.approx(20)
    [same] = counted(capsys, *words[:4], "--set", f"vllm.gpu-memory-utilization={one['utilization']}")["fits"]
    assert same["room"] == pytest.approx(one["room"])
    assert counted(capsys, *words[:5], "-1", code=2)["errors"][0]["code"] == "option-invalid"


def test_drafting_has_a_ceiling_when_the_acceptance_is_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafting = ("--set", 'vllm.speculative-config={"method": "ngram", "num_speculative_tokens": 3}')
    words = ("--model-dir", str(folder), "--tp", "1")

    def ceiling(*more: str) -> float | None:
        found: float | None = counted(capsys, *words, *more)["fits"][0]["ceiling_t_s"]
        return found

    alone = ceiling()
    assert alone is not None
    assert ceiling(*drafting) is None
    assert ceiling(*drafting, "--acceptance", "0") == pytest.approx(alone)
    assert ceiling(*drafting, "--acceptance", "0.5") == pytest.approx(alone * (1 + 0.5 + 0.25 + 0.125))
    assert ceiling(*drafting, "--acceptance", "1") == pytest.approx(alone * 4)
    assert counted(capsys, *words, "--acceptance", "2", code=2)["errors"][0]["code"] == "option-invalid"


def test_a_mixture_reads_what_its_tokens_take() -> None:
    from cluster.model.fit import experts_read

    text = {"num_experts": 8, "num_experts_per_tok": 2}
    assert experts_read(text, 1) == 0.25
    assert experts_read(text, 2) == pytest.approx(1 - 0.75**2)
    assert experts_read({}, 1) == 1.0
