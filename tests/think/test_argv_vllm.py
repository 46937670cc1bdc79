from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from engine_parser import Parser, real_parser
from pydantic import JsonValue

from cluster.argv.vllm import (
    AUTO,
    MEASURING_FLAGS,
    OURS,
    Layout,
    check_bind,
    flag_words,
    measuring_flags,
    read_length,
    refuse_extra,
    serve_flags,
    vllm_serve,
)
from cluster.config.find import shipped
from cluster.config.recipe import Recipe, load_recipe
from cluster.errors import UsageError

TWO = ("192.168.100.11", "192.168.100.12")
RAY = Layout(2, 1, "ray", TWO)
MP = Layout(2, 1, "mp", TWO)
ALONE = Layout(1, 1, "none", TWO[:1])


def recipe(vllm: Mapping[str, JsonValue] | None = None, **more: Any) -> Recipe:
    return Recipe(name="r", model="google/gemma-4-31B-it", image="i:1", vllm=dict(vllm or {}), **more)


def test_golden_ray() -> None:
    flags: dict[str, JsonValue] = {"quantization": "fp8", "kv-cache-dtype": "fp8", "gpu_memory_utilization": 0.85}
    words = vllm_serve(recipe(flags, revision="abc"), RAY, measuring=MEASURING_FLAGS, extra=("--max-num-seqs", "8"))
    assert " ".join(words) == (
        "vllm serve google/gemma-4-31B-it --revision abc --served-model-name google/gemma-4-31B-it"
        " --host 0.0.0.0 --port 8000 --tensor-parallel-size 2 --pipeline-parallel-size 1"
        " --distributed-executor-backend ray"
        " --quantization fp8 --kv-cache-dtype fp8 --gpu-memory-utilization 0.85"
        " --enable-per-request-metrics --enable-prompt-tokens-details --max-num-seqs 8"
    )


def test_golden_mp_head_and_headless_worker() -> None:
    small = recipe(served_model_name="gemma", port=9000)
    common = (
        "--tensor-parallel-size 2 --pipeline-parallel-size 1 --distributed-executor-backend mp"
        " --nnodes 2 --node-rank {} --master-addr 192.168.100.11 --master-port 27111"
    )
    start = "vllm serve google/gemma-4-31B-it --revision main --served-model-name gemma"
    head = vllm_serve(small, MP, rank=0, measuring=MEASURING_FLAGS)
    assert " ".join(head) == " ".join([start, "--host 0.0.0.0 --port 9000", common.format(0), *MEASURING_FLAGS])
    worker = vllm_serve(small, MP, rank=1, measuring=MEASURING_FLAGS)
    assert " ".join(worker) == f"{start} {common.format(1)} --headless"


def test_revision_path_and_backend() -> None:
    assert "--distributed-executor-backend ray" in " ".join(vllm_serve(recipe(), Layout(1, 1, "ray", TWO[:1])))
    assert "--distributed-executor-backend" not in vllm_serve(recipe(), ALONE)
    words = vllm_serve(recipe(), RAY, revision="0123abc")
    assert words[2:5] == ("google/gemma-4-31B-it", "--revision", "0123abc")
    words = vllm_serve(Recipe(name="r", model="/models/gemma", image="i"), RAY)
    assert words[2] == "/models/gemma"
    assert "--revision" not in words


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("enforce-eager", True, "--enforce-eager"),
        ("enable-prefix-caching", False, "--no-enable-prefix-caching"),
        ("max-model-len", 65536, "--max-model-len 65536"),
        ("gpu-memory-utilization", 0.8, "--gpu-memory-utilization 0.8"),
        ("swap-space", -1, "--swap-space=-1"),
        ("chat-template", "-x", "--chat-template=-x"),
        ("stop", "", "--stop "),
        ("cudagraph-capture-sizes", [1, 2, 4], "--cudagraph-capture-sizes 1 2 4"),
        (
            "speculative-config",
            {"method": "gemma4_mtp", "num_speculative_tokens": 4},
            '--speculative-config {"method":"gemma4_mtp","num_speculative_tokens":4}',
        ),
        ("limit-mm-per-prompt", {"image": 2, "note": "naïve"}, '--limit-mm-per-prompt {"image":2,"note":"naïve"}'),
    ],
)
def test_values_as_words(flag: str, value: JsonValue, words: str) -> None:
    assert " ".join(flag_words(flag, value)) == words
    with pytest.raises(UsageError, match="empty list"):
        flag_words(flag, [])


OTHERWISE = {"tp": "--tp", "headless": "--nodes", "port": "`port`", "api-key": "VLLM_API_KEY"} | OURS


@pytest.mark.parametrize("key", OTHERWISE)
def test_a_flag_that_contradicts_is_named_and_its_value_is_no_secret_told(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        vllm_serve(recipe({key: 8675309}), RAY)
    assert f"vllm.{key}" in caught.value.what
    assert OTHERWISE[key] in caught.value.remedy
    assert ("8675309" in str(caught.value.lines())) is (key != "api-key")


@pytest.mark.parametrize("flag", ["ssl-certfile", "ssl-keyfile", "uds", "ud"])
def test_a_server_that_would_not_be_seen_is_refused(flag: str) -> None:
    """`up` asks by plain HTTP: with TLS or a Unix socket it would wait until its time is over."""
    with pytest.raises(UsageError) as caught:
        vllm_serve(recipe({flag.replace("-", "_"): "/certs/x"}), RAY)
    assert (caught.value.code, caught.value.where) == ("flag-not-supported", "recipe r")
    with pytest.raises(UsageError, match=f"--{flag[:6]} after --: .*would never be ready"):
        refuse_extra(["--seed", "1", f"--{flag[:6]}", "/certs/x"])


def test_a_file_of_flags_is_refused() -> None:
    """It can hold the port, sizes and TLS, which no check would see; `--config-format` is another flag."""
    with pytest.raises(UsageError, match=r"vllm\.config: .*no check"):
        vllm_serve(recipe({"config": "/x.yaml"}), RAY)
    for word in ("--config", "--config=/x.yaml", "--conf"):
        with pytest.raises(UsageError, match=r"after --: .*no check"):
            refuse_extra([word, "/x.yaml"])
    refuse_extra(["--config-format", "hf"])


@pytest.mark.parametrize("key", ["por", "api-ke", "tensor_parallel"])
def test_the_beginning_of_a_flag_of_ours_is_that_flag(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        vllm_serve(recipe({key: 7}), RAY)
    assert caught.value.code == "flag-managed"


@pytest.mark.parametrize("flag", ["uds", "grpc", "ssl-certfile", "config"])
def test_a_refused_flag_that_is_off_becomes_no_word(flag: str) -> None:
    """vLLM has no `--no-uds`."""
    assert vllm_serve(recipe({flag: False}), RAY) == vllm_serve(recipe(), RAY)


def test_a_flag_that_says_the_same_is_left_out() -> None:
    words = vllm_serve(recipe({"tp": 2, "distributed_executor_backend": "ray"}), RAY)
    assert words.count("--tensor-parallel-size") == 1
    assert words == vllm_serve(recipe(), RAY)


OF_OURS = "--tensor-parallel-size --tensor_parallel_size=4 --tensor-parallel -tp -tp=4 --port --port=1 -n -r -n2"
OF_OURS += " --served-model-name --headless --api-key=sesame --po --api-k --h --m"


@pytest.mark.parametrize(
    "words",
    [
        *(["--max-num-seqs", "8", word] for word in OF_OURS.split()),
        ["--hf-token", "sesame"],
        ["--hf_token=sesame"],
        ["--hf-overrides", '{"text": {"api_key": "sesame"}}'],
        ["--model-loader-extra-config.password", "sesame"],
        ["--seed", "1", "--download-dir", "http://ada:sesame@host/"],
        ["--chat-template", "hf_sesameaaaaaaaaaaaaaa"],
        ["hf_sesameaaaaaaaaaaaaaa"],
    ],
)
def test_users_words_may_not_say_what_cluster_gives_nor_a_secret(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_extra(words)
    assert "sesame" not in str(caught.value.lines())
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("recipe_flags", "words", "flags"),
    [
        ({"load-format": "auto"}, ["--load_format", "dummy"], {"load-format": "dummy"}),
        ({"a": 1}, ["--no-a", "--b=2", "--c", "--d", "-1"], {"a": False, "b": "2", "c": True, "d": "-1"}),
        (
            {"speculative-config": {"model": "a/b", "num_speculative_tokens": 3}},
            ["--speculative-config.model=c/d"],
            {"speculative-config": {"model": "c/d", "num_speculative_tokens": 3}},
        ),
        (
            {"speculative-config.model": "a/b"},
            ["-sc", '{"revision": "r"}'],
            {"speculative-config": {"model": "a/b", "revision": "r"}},
        ),
        (
            {"speculative-config": '{"model": "a/b"}'},
            ["-sc.revision", "r"],
            {"speculative-config": {"model": "a/b", "revision": "r"}},
        ),
        ({"chat-template": "{{ x }}"}, [], {"chat-template": "{{ x }}"}),
    ],
)
def test_flags_that_serve_is_given(recipe_flags: dict[str, Any], words: list[str], flags: dict[str, Any]) -> None:
    assert serve_flags(recipe_flags, words) == flags


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-model-len", "128x"),
        ("max_model_len", 0),
        ("gpu-memory-utilization", "1.8"),
        ("gpu-memory-utilization", "0,9"),
        ("gpu-memory-utilization", "nan"),
        ("max-num-seqs", 0),
        ("max-num-batched-tokens", "many"),
        ("kv-transfer-config", '{"a":'),
        ("hf_overrides", "{a: 1}"),
    ],
)
def test_values_that_vllm_refuses(flag: str, value: JsonValue) -> None:
    """In the recipe and after --; what is allowed is said."""
    for flags, words, named in (({flag: value}, (), "vllm."), ({}, (f"--{flag}", str(value)), "--")):
        with pytest.raises(UsageError) as caught:
            vllm_serve(recipe(flags), RAY, extra=words)
        assert (caught.value.code, bool(caught.value.where)) == ("value-invalid", True)
        assert caught.value.what.startswith(named + flag.replace("_", "-") + ": found ")
        assert "; expected " in caught.value.what


@pytest.mark.parametrize("words", [["8192"], ["a/model", "--seed", "1"], ["--", "x"]])
def test_a_word_without_a_flag_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="no flag"):
        refuse_extra(words)


@pytest.mark.parametrize("address", ["0.0.0.0", "::1", "localhost", "spark1.local", "192.168.1.9", "10-0-0-1.lan"])
def test_addresses_to_listen_on(address: str) -> None:
    assert check_bind(address) == address


@pytest.mark.parametrize("address", ["a b", "999.1.1.1", "1.2.3", "[::1]", "http://x", "a:80", "-x", "x\n"])
def test_what_nothing_can_listen_on(address: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        check_bind(address)


def test_users_words_pass_as_they_are() -> None:
    extra = ("--max-num-seqs", "8", "-O3", "--model-impl", "vllm", "--chat-template", "a b\n$`", "-1")
    assert vllm_serve(recipe(), RAY, extra=extra)[-len(extra) :] == extra


def test_measuring_flags_by_version() -> None:
    versions = ("0.32.0", "0.33.1rc1.dev3+gabc", "1.0", "0.19.1rc1.dev31+ga88ce94bb", "0.4", "", "dev")
    assert [measuring_flags(version) for version in versions] == [MEASURING_FLAGS] * 3 + [()] * 4


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    with real_parser(tmp_path_factory.mktemp("parser")) as running:
        yield running


def test_the_real_parser_reads_our_words(parser: Parser) -> None:
    flags: dict[str, JsonValue] = {
        "quantization": "fp8",
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "max-model-len": 65536,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 4},
        "limit-mm-per-prompt": {"image": 2},
        "chat-template": "-x",
    }
    sent = [
        vllm_serve(recipe(flags), RAY, measuring=MEASURING_FLAGS, extra=("--max-num-seqs", "8")),
        vllm_serve(recipe(), MP, rank=1),
        vllm_serve(recipe(), ALONE),
    ]
    parsed = parser.parse(sent)
    ray, worker, alone = parsed.arguments
    expected = {flag.replace("-", "_"): value for flag, value in flags.items() if flag != "quantization"}
    expected |= {"tensor_parallel_size": 2, "distributed_executor_backend": "ray", "host": "0.0.0.0", "port": 8000}
    expected |= {"served_model_name": ["google/gemma-4-31B-it"], "revision": "main", "max_num_seqs": 8}
    expected |= {flag[2:].replace("-", "_"): True for flag in MEASURING_FLAGS}
    assert {name: ray[name] for name in expected} == expected
    assert (worker["nnodes"], worker["node_rank"], worker["headless"]) == (2, 1, True)
    assert (worker["master_addr"], worker["master_port"]) == (TWO[0], 27111)
    assert alone["distributed_executor_backend"] is None
    assert {f"--{flag}" for flag in OURS} <= parsed.options


LENGTHS: dict[JsonValue, int] = {4096: 4096, "65536": 65536, "128k": 128_000, "128K": 131_072, "25.6k": 25_600}
LENGTHS |= {"1m": 10**6, "1M": 1 << 20, "1.1k": 1100, "1g": 10**9, "1T": 1 << 40, " 8k ": 8000}
LENGTHS |= {"auto": AUTO, "AUTO": AUTO, -1: AUTO}


@pytest.mark.parametrize("written", ["25.6K", "lots", "", "12 k", ".5k", 25.6, True, None, [1], -2, 0, "-3", "0k"])
def test_what_is_no_length(written: JsonValue) -> None:
    with pytest.raises(ValueError, match="max-model-len"):
        read_length(written)


def test_the_real_parser_reads_the_same_lengths(parser: Parser) -> None:
    assert [read_length(written) for written in LENGTHS] == list(LENGTHS.values())
    sent = [vllm_serve(recipe({"max-model-len": written}), ALONE) for written in LENGTHS]
    assert [one["max_model_len"] for one in parser.parse(sent).arguments] == list(LENGTHS.values())


MADE = ("kv-cache-memory-bytes", "compilation-config", "reasoning-config")
"""Flags whose value arrives as something else: bytes, a configuration with all of its defaults."""


def test_the_real_parser_takes_every_recipe(parser: Parser) -> None:
    """But for the flags that only a fork knows: a recipe names all that are refused, and no others."""
    recipes = [load_recipe(path.stem).recipe for path in sorted(shipped("recipes").glob("*.yaml"))]
    known = [{flag: value for flag, value in one.vllm.items() if flag not in one.fork_flags} for one in recipes]
    both = zip(recipes, known, strict=True)
    parsed = parser.parse([vllm_serve(one.model_copy(update={"vllm": flags}), ALONE) for one, flags in both])
    for one, flags, arguments in zip(recipes, known, parsed.arguments, strict=True):
        assert arguments["model_tag"] == one.model, one.name
        assert arguments["load_format"] in parsed.loaders, one.name
        plain = {flag: value for flag, value in flags.items() if flag not in MADE}
        assert {flag: arguments[flag.replace("-", "_")] for flag in plain} == plain, one.name
        for flag in one.fork_flags:
            words = vllm_serve(one.model_copy(update={"vllm": {flag: one.vllm[flag]}}), ALONE)
            refused = parser.ask([words]) is None or (flag == "load-format" and one.vllm[flag] not in parsed.loaders)
            assert refused, f"{one.name}: vLLM takes {flag}"
