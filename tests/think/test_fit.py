"""`cluster fit` by the recipe's own numbers, beside what the write-ups saw (docs/fit.md has the rows), and as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from config_tools import refusal
from loops import each
from test_model_cache import GEMMA, MIXTURE

from cluster.cli.fit import siblings
from cluster.cli.main import main
from cluster.config.recipe import Recipe, final_recipe, load_recipe
from cluster.model.fit import Asked, Fit, KnownModel, fit, quantises_whole, release_of, shapes, wanted_length
from cluster.model.layers import CacheFlags, kept_layers
from cluster.spark.gpu import CARDS, SPARK

MIB_A_GIB = 1024


def fitted(name: str, tp: int = 1, length: int = 65536, *sets: str, **asked: Any) -> Fit:
    """By the recipe's own numbers."""
    recipe = final_recipe(load_recipe(name).recipe, sets)
    return fit(recipe, KnownModel(), Asked(tp=tp, length=length, **asked))


def test_the_cache_of_the_write_up_of_april() -> None:
    """81.8 GiB of cache for 714,768 tokens, after 15.76 GiB of weights."""
    one = fitted("gemma-4-26b-a4b-nvfp4", length=131072, release=(0, 19))
    assert one.room == pytest.approx(81.8, rel=0.01)
    assert one.tokens == pytest.approx(714_768, rel=0.01)
    assert one.weights == pytest.approx(15.76, rel=0.03)


def test_the_gpu_memory_of_two_sparks() -> None:
    """105,721 and 103,161 MB at TP=2: vLLM's share is taken whole, whatever the size."""
    assert fitted("gemma-4-31b-fp8", 2).share * MIB_A_GIB == pytest.approx(105_721, rel=0.01)
    assert fitted("gemma-4-31b-fp8", 1).share == fitted("gemma-4-31b-fp8", 2).share


def test_half_a_spark() -> None:
    """68 in use and 53 free at a utilisation of 0.50."""
    one = fitted("gemma-4-31b-nvfp4")
    assert one.left == pytest.approx(53, rel=0.03)
    assert CARDS[SPARK].memory_gib - one.left == pytest.approx(68, rel=0.02)


def test_weights_that_vllm_quantises_itself() -> None:
    one = fitted("gemma-4-31b-fp8")
    assert one.loading == pytest.approx(one.weights + 57.7 / 60), "one of 60 layers is there in both forms"
    assert one.weights == pytest.approx(30.64, rel=0.06), "vLLM 0.24's own count; embeddings stay in BF16"
    bf16 = fitted("gemma-4-31b-bf16")
    assert bf16.loading == bf16.weights == 57.7
    assert fitted("gemma-4-31b-bf16", 2).weights == 57.7 / 2


@pytest.mark.parametrize(
    ("changes", "asked", "why"),
    [
        ((), {"sequences": 40}, "the cache asked for is"),
        (("vllm.gpu-memory-utilization=0.98",), {}, "are missing beside vLLM's share"),
        (("vllm.gpu-memory-utilization=0.25",), {}, "leaves no room for a cache"),
        (("vllm.gpu-memory-utilization=0.6", "needs.vllm=<0.19"), {"memory": 62}, "57.7 GiB while they are loaded"),
    ],
)
def test_why_it_does_not_fit(changes: tuple[str, ...], asked: dict[str, Any], why: str) -> None:
    assert any(why in row for row in fitted("gemma-4-31b-fp8", 1, 65536, *changes, **asked).wrong)
    assert fitted("gemma-4-31b-fp8").wrong == ()


def test_the_recipes_attention_is_what_config_json_says() -> None:
    """layers, kv_heads, head_dim and window of the write-ups' models."""
    flags = CacheFlags(cache_dtype="fp8")
    for name, config in (("gemma-4-31b-fp8", GEMMA), ("gemma-4-26b-a4b-fp8", MIXTURE)):
        own = shapes(load_recipe(name).recipe.attention, flags)
        assert sorted(own, key=str) == sorted(kept_layers(config, flags), key=str)


@each(
    "name, asked, why",
    [
        ("gemma-4-31b-fp8", {"tp": 3}, "4 and 16 key-value heads are not divisible by 3, nor 3 by them"),
        ("qwen3.8-flash-next-nvfp4", {"tp": 5}, "24 heads are not divisible by 5"),
        ("qwen3.8-flash-next-nvfp4", {"tp": 2, "pp": 49}, "49 pipeline stages are more than the model's 48 layers"),
    ],
)
def test_what_vllm_refuses_does_not_fit_offline_either(name: str, asked: dict[str, int], why: str) -> None:
    one = fitted(name, **asked)
    assert why in one.wrong
    assert one.verdict == "does not fit"


@each(
    "name, release, whole",
    [
        ("gemma-4-31b-fp8", (0, 18), True),
        ("gemma-4-31b-fp8", (0, 19), False),
        ("gemma-4-31b-fp8", None, False),
        ("gemma-4-31b-bf16", (0, 18), False),
    ],
)
def test_the_release_decides_what_loading_takes(name: str, release: tuple[int, int] | None, whole: bool) -> None:
    recipe = load_recipe(name).recipe
    assert quantises_whole(recipe, release) == whole
    any_vllm = final_recipe(recipe, ("needs.vllm=",))
    assert quantises_whole(any_vllm, release) == (whole or (release is None and "fp8" in name))


@each("found", ["abc", -3, True, 0, 10**9])
def test_drafted_tokens_that_are_no_count(found: Any) -> None:
    draft = f"vllm.speculative-config={json.dumps({'method': 'ngram', 'num_speculative_tokens': found})}"
    recipe = final_recipe(load_recipe("gemma-4-31b-fp8").recipe, (draft,))
    error = refusal(fit, recipe, KnownModel(), Asked(acceptance=0.5))
    assert error.what.startswith("vllm.speculative-config.num_speculative_tokens: found")


@each(
    "name, sets, tokens",
    [
        ("deepseek-v4-flash-0731", (), 1_146_448),
        ("qwen3.8-flash-next-nvfp4", (f"vllm.kv-cache-memory-bytes={1504 * 22_630_400}",), 2_131_159),
        ("qwen3.8-flash-next-nvfp4", (f"vllm.kv-cache-memory-bytes={1147 * 22_630_400}",), 1_625_292),
    ],
)
def test_the_recipes_config_counts_what_owners_logged(name: str, sets: tuple[str, ...], tokens: int) -> None:
    """Offline, at TP=2 and the recipe's own length."""
    recipe = final_recipe(load_recipe(name).recipe, sets)
    asked = Asked(tp=2, length=wanted_length(recipe, KnownModel()), release=release_of(recipe.image))
    assert fit(recipe, KnownModel(), asked).tokens == tokens


@each("change", ["attention=", "vllm.kv-cache-dtype=foo", "vllm.kv-cache-dtype=nvfp4", "vllm.dtype=foo"])
def test_what_is_not_known_is_not_counted(change: str) -> None:
    one = fitted("qwen3.5-35b-a3b-fp8", 1, 65536, change)
    assert (one.needed, one.tokens, one.wrong, one.verdict) == (None, None, (), "unknown")
    assert "config.json" not in one.cache_why


def test_without_weights_nothing_is_counted() -> None:
    assert refusal(fit, Recipe(model="a/b", image="x:1"), KnownModel(), Asked()).code == "weights-gib-missing"


def test_a_context_without_a_bound_is_not_known() -> None:
    """Windows take no more the longer a context is."""
    windows = "attention=[{layers: 4, kv_heads: 4, head_dim: 128, window: 1024}]"
    assert fitted("gemma-4-31b-fp8", 1, 65536, windows).longest is None


@pytest.fixture(autouse=True)
def wide(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_recipes_without_an_architecture_are_no_siblings() -> None:
    recipe = load_recipe("gemma-4-31b-fp8").recipe
    assert list(siblings(recipe))
    assert not list(siblings(recipe.model_copy(update={"architecture": ""})))


def test_an_unknown_cache_is_no_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "1", "--set", "attention="]) == 0
    assert ["verdict", "unknown"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_dense_model_is_told_of_its_sibling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "1", "2"]) == 0
    said = capsys.readouterr()
    rows = {line.split("  ")[0].strip(): line.split() for line in said.out.splitlines() if line}
    assert rows["ceiling, tokens a second"][-2:] == ["8.8", "17.6"]
    assert rows["verdict"][-2:] == ["fits", "fits"]
    assert "gemma-4-26b-a4b-fp8-mtp" in said.out
    assert main(["fit", "gemma-4-26b-a4b-nvfp4", "--tp", "1"]) == 0
    assert "instead" not in capsys.readouterr().out


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """The document of `cluster fit` of the reference recipe."""
    assert main(["fit", "gemma-4-31b-fp8", "--json", *words]) == code
    return json.loads(capsys.readouterr().out)


@each(
    "change, said",
    [
        ("needs.vllm=<0.19", "vLLM before 0.19, which the recipe allows"),
        ("needs.vllm='>=0.19'", "vLLM from 0.19 on quantises a layer at a time"),
        ("vllm.max-model-len=", "4096 tokens assumed"),
        ("vllm.max-model-len=2048", "not beyond what the model allows, which is not known here"),
        ("vllm.cpu-offload-gb=10", "cpu-offload-gb is not counted"),
        ("vllm.num-gpu-blocks-override=100", "num-gpu-blocks-override is not counted"),
        ("vllm.quantization=bitsandbytes", "vLLM quantises to bitsandbytes while it loads, which is not counted"),
        ("vllm.kv-cache-dtype=foo", "the cache is not counted: kv-cache-dtype foo"),
        ("unverified=['nobody ran it']", "unverified: nobody ran it"),
    ],
)
def test_what_is_assumed_is_said(change: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-fp8", "--tp", "1", "--set", change]) == 0
    assert said in capsys.readouterr().err


def test_a_mixture_by_its_active_parameters_reads_less(capsys: pytest.CaptureFixture[str]) -> None:
    dense, mixture = (run(capsys, "--set", f"active_parameters_b={given}")["fits"][0] for given in ("", "2"))
    assert mixture["ceiling_t_s"] > 10 * dense["ceiling_t_s"]


def test_another_card_has_its_own_bandwidth_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """82 t/s were measured on an H200, where a Spark's ceiling is 8.8."""
    spark, h200 = (run(capsys, *words)["fits"][0] for words in ((), ("--gpu", "H200")))
    assert h200["ceiling_t_s"] / spark["ceiling_t_s"] == pytest.approx(4800 / 273)
    assert (h200["total"], spark["total"]) == (140.4, 121.6)
    assert h200["left"] == pytest.approx(h200["total"] - h200["share"]), (
        "the host's programs are not in the card's memory"
    )
    assert main(["fit", "gemma-4-31b-fp8", "--gpu", "Voodoo 2"]) == 2
    assert "GB10, H100 80GB HBM3, H200" in capsys.readouterr().err


def test_what_fits_nowhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gemma-4-31b-bf16", "--tp", "1", "2", "--sequences", "99"]) == 4
    said = capsys.readouterr()
    assert "TP=2: does not fit: the cache asked for is" in said.err
    assert main(["fit", "gemma-4-31b-bf16", "--tp", "1", "2", "--memory-gib", "64"]) == 0, "two of them hold it"


def test_a_length_in_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every form of a length is tested in test_argv_vllm."""
    [as_written] = run(capsys, "--tp", "2", "--set", "vllm.max-model-len=25.6k")["fits"]
    for length in ("25600", "25.6k", "25K"):
        assert [as_written] == run(capsys, "--tp", "2", "--length", length)["fits"]
    assert as_written["length"] == 25_600


@each("written", ["auto", "-1"])
def test_auto_is_the_longest_that_fits(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = run(capsys, "--tp", "1", "2", "--set", f"vllm.max-model-len={written}")["fits"]
    assert 0 < one["length"] < two["length"]
    for more, fits in ((0, True), (1, False)):
        same = run(capsys, "--tp", "1", "--length", str(one["length"] + more), code=0 if fits else 4)["fits"][0]
        assert (same["wrong"] == []) == fits, "one token more does not fit"


def test_auto_where_the_attention_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    [one] = run(capsys, "--tp", "2", "--set", "vllm.max-model-len=auto", "--set", "attention=[]")["fits"]
    assert (one["length"], one["needed"]) == (None, None)


def test_drafting_offline_has_a_ceiling_by_the_acceptance(capsys: pytest.CaptureFixture[str]) -> None:
    """A drafter of its own is not counted then, which is said."""
    words = ("--set", "vllm.speculative-config.model=a/b", "--set", "vllm.speculative-config.num_speculative_tokens=1")
    alone, unknown = (run(capsys, "--tp", "1", *more)["fits"][0]["ceiling_t_s"] for more in ((), words))
    half = run(capsys, "--tp", "1", *words, "--acceptance", "0.5")["fits"][0]["ceiling_t_s"]
    assert unknown is None
    assert half == pytest.approx(1.5 * alone)
    assert main(["fit", "gemma-4-31b-fp8", *words]) == 0
    assert "the drafter a/b is not counted" in capsys.readouterr().err


def test_the_release_decides_what_a_window_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    """From 0.26 on two batches in flight, from 0.24 on tokens by requests."""
    old, one, two = (run(capsys, "--tp", "1", "--vllm", release)["fits"][0] for release in ("0.19", "0.25", "0.26"))
    assert one["longest"] > two["longest"]
    assert old["longest"] == one["longest"]
    assert old["tokens"] < two["tokens"] < one["tokens"]


@each(
    "words, code",
    [
        (["--vllm", "newest"], "option-invalid"),
        (["--pp", "0"], "option-invalid"),
        (["--tp", "0"], "option-invalid"),
        (["--length", "0"], "option-invalid"),
        (["--length", "128x"], "option-invalid"),
        (["--offline", "--model-dir", "."], "option-invalid"),
        (["--sequences", "-1"], "option-invalid"),
        (["--memory-gib", "0"], "option-invalid"),
        (["--memory-gib", "1e308"], "option-invalid"),
        (["--leave", "1e308"], "option-invalid"),
        (["--pp", "1000000000"], "option-invalid"),
        (["--sequences", "9999999999999"], "option-invalid"),
        (["--set", "vllm.max-model-len=lots"], "value-invalid"),
        (["--set", "vllm.gpu-memory-utilization=most"], "value-invalid"),
        (["--set", "vllm.gpu-memory-utilization=[1]"], "value-invalid"),
        (["--set", "vllm.gpu-memory-utilization=1.2"], "value-invalid"),
    ],
)
def test_sizes_that_are_none(words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *words, code=2)["errors"][0]["code"] == code


@each(
    "words, said",
    [
        (["--memory-gib", "nan"], "expected a number without a unit, as 0.5 or 20, found 'nan'"),
        (["--memory-gib", "inf"], "found 'inf'"),
        (["--leave", "nan"], "found 'nan'"),
        (["--leave", "20GiB"], "expected a number without a unit, as 0.5 or 20, found '20GiB'"),
        (["--acceptance", "70%"], "found '70%'"),
        (["--sequences", "1e3"], "expected a whole number, as 2, found '1e3'"),
    ],
)
def test_words_that_are_no_number(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "gemma-4-31b-fp8", *words])
    assert said in capsys.readouterr().err


@each(
    "words, said",
    [
        ((), "gpu-memory-utilization that leaves 20 GiB free: TP=1: 0."),
        (("--set", "vllm.kv-cache-memory-bytes=1G"), "kv-cache-memory-bytes that leaves 20 GiB free: TP=1: 6"),
        (("--leave", "500"), "gpu-memory-utilization that leaves 500 GiB free: TP=1: none"),
    ],
)
def test_what_is_named_for_leave_is_what_vllm_reads(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["fit", "gemma-4-31b-fp8", "--tp", "1", "--leave", "20", *words])
    assert said in capsys.readouterr().err
