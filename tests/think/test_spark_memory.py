import pytest
from facts_tools import run_far, said, sample

from cluster.argv.question import Answer
from cluster.spark import memory
from cluster.spark.fact import Missing
from cluster.spark.memory import Memory


@pytest.mark.parametrize(
    ("text", "kib"),
    [
        (sample("meminfo_page_cache_full.txt"), {"total": 127607296, "available": 118489088, "free": 38535168}),
        (sample("meminfo_really_full.txt"), {"total": 127607296, "available": 40894464, "free": 5242880}),
        (sample("proc_meminfo_cma_bug.txt"), {"free": 92274688, "cma_total": 0, "cma_free": 940604}),
        ("MemTotal: 100 kB\nHugePages_Total: 4\nHugetlb: 8192 kB\n", {"total": 100, "huge_pages": 8192}),
        ("MemTotal: 10 kB\nDirectMap4k: 5 kB\n", {"total": 10}),
    ],
    ids=["page cache is available though not free", "held", "the kernel's CMA bug", "huge pages", "others are None"],
)
def test_meminfo(text: str, kib: dict[str, int]) -> None:
    assert memory.parse_meminfo(text) == Memory(**{name: number * 1024 for name, number in kib.items()})


@pytest.mark.parametrize(
    ("total", "free", "has_bug"),
    [(0, 940604, True), (0, 0, False), (64, 60, False), (None, None, False), (0, None, False)],
)
def test_the_kernels_cma_bug(total: int | None, free: int | None, has_bug: bool) -> None:
    assert Memory(cma_total=total, cma_free=free).has_cma_bug is has_bug


def test_section_is_read() -> None:
    assert memory.parse(said({"memory": {"value": "MemFree: 1 kB\n"}})) == Memory(free=1024)
    assert isinstance(memory.parse_meminfo("hello\n"), Missing)


def test_this_machine_answers() -> None:
    found = memory.parse(run_far("look", {"sections": ["memory"]}))
    assert found.total
    assert found.available
    assert found.total > found.available > 1 << 20


def test_a_deadline_is_a_timeout() -> None:
    assert memory.parse(Answer(None)) == Missing("python3 did not answer in time", "timeout")
