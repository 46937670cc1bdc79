"""`cluster fit` as typed."""

from __future__ import annotations

import json

import pytest

from cluster.cli.main import main


@pytest.fixture(autouse=True)
def empty_desk(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("CLUSTER_INVENTORY", raising=False)


def test_a_dense_model_is_told_of_its_sibling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "1", "2"]) == 0
    said = capsys.readouterr()
    rows = {line.split("  ")[0].strip(): line.split() for line in said.out.splitlines() if line}
    assert rows["ceiling, tokens a second"][-2:] == ["8.8", "17.6"]
    assert rows["verdict"][-2:] == ["fits", "fits"]
    assert "run the mixture of experts instead: gemma-4-26b-a4b-fp8-mtp" in said.out
    assert "published at 75.7 tokens a second" in said.out
    assert "vLLM quantises a layer at a time (from 0.19 on, as the recipe asks for)" in said.err


def test_an_older_vllm_holds_the_weights_twice_as_large_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "1", "--set", "needs.vllm=<0.19"]) == 0
    said = capsys.readouterr()
    assert "weights while loading, at most   57.7" in said.out
    assert "vLLM before 0.19, which the recipe allows, holds all of it before it quantises" in said.err


def test_a_length_that_nobody_gave_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "1", "--set", "vllm.max-model-len="]) == 0
    assert "4096 tokens were taken, since the recipe has no max-model-len" in capsys.readouterr().err


def test_a_mixture_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-26b-a4b-nvfp4", "--tp", "1"]) == 0
    assert "instead" not in capsys.readouterr().out


def test_what_fits_nowhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-bf16", "--tp", "1", "2", "--sequences", "99"]) == 4
    said = capsys.readouterr()
    assert "TP=2: does not fit: the cache asked for is" in said.err
    assert main(["fit", "gemma-4-31b-bf16", "--tp", "1", "2", "--memory-gib", "64"]) == 0, "two of them hold it"


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"][0]["tp"] == 2
    assert told["fits"][0]["wrong"] == []
    assert told["fits"][0]["ceiling_t_s"] == pytest.approx(17.6, abs=0.1)


@pytest.mark.parametrize("words", [["--tp", "0"], ["--length", "0"], ["--sequences", "-1"], ["--memory-gib", "0"]])
def test_sizes_that_are_none(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", *words]) == 2
    assert "are above 0" in capsys.readouterr().err


@pytest.mark.parametrize(("written", "tokens"), [("128k", 128_000), ("25.6k", 25_600), ("16K", 16_384)])
def test_a_length_in_thousands(written: str, tokens: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "2", "--json", "--set", f"vllm.max-model-len={written}"]) == 0
    as_written = json.loads(capsys.readouterr().out)
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "2", "--json", "--length", str(tokens)]) == 0
    assert as_written["fits"] == json.loads(capsys.readouterr().out)["fits"]
    assert as_written["fits"][0]["length"] == tokens


@pytest.mark.parametrize("written", ["auto", "-1"])
def test_auto_is_the_longest_that_fits(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "gemma-4-31b-fp8", "--tp", "1", "2", "--json"]
    assert main([*words, "--set", f"vllm.max-model-len={written}"]) == 0
    one, two = json.loads(capsys.readouterr().out)["fits"]
    assert 0 < one["length"] < two["length"]
    assert main([*words, "--length", str(one["length"])]) == 0
    assert json.loads(capsys.readouterr().out)["fits"][0]["wrong"] == []
    main([*words, "--length", str(one["length"] + 1)])
    assert json.loads(capsys.readouterr().out)["fits"][0]["wrong"] != [], "one token more does not fit"


def test_auto_where_the_attention_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--json", "--set", "vllm.max-model-len=auto", "--set", "attention=[]"]
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "2", *words]) == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert (fit["length"], fit["cache"]) == (None, None)


@pytest.mark.parametrize(
    "changed",
    [
        "vllm.max-model-len=lots",
        "vllm.gpu-memory-utilization=most",
        "vllm.gpu-memory-utilization=[1]",
        "vllm.gpu-memory-utilization=1.2",
    ],
)
def test_flags_that_vllm_could_not_read(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--set", changed]) == 2
    assert changed.partition("=")[0] in capsys.readouterr().err
