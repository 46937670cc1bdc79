import pytest
from facts_tools import run_far, said, sample

from cluster.argv.question import Answer
from cluster.spark import memory
from cluster.spark.fact import Missing
from cluster.spark.memory import Memory

KIB = 1024


def test_page_cache_is_available_though_it_is_not_free() -> None:
    assert memory.parse_meminfo(sample("meminfo_page_cache_full.txt")) == Memory(
        total=127607296 * KIB, available=118489088 * KIB, free=38535168 * KIB
    )


def test_held_memory_is_not_available() -> None:
    assert memory.parse_meminfo(sample("meminfo_really_full.txt")) == Memory(
        total=127607296 * KIB, available=40894464 * KIB, free=5242880 * KIB
    )


def test_more_cma_free_than_there_is_stays_visible() -> None:
    found = memory.parse_meminfo(sample("proc_meminfo_cma_bug.txt"))
    assert found == Memory(free=92274688 * KIB, cma_total=0, cma_free=940604 * KIB)


def test_huge_pages_are_set_aside() -> None:
    found = memory.parse_meminfo("MemTotal: 100 kB\nHugePages_Total: 4\nHugepagesize: 2048 kB\nHugetlb: 8192 kB\n")
    assert found == Memory(total=100 * KIB, huge_pages=8192 * KIB)


@pytest.mark.parametrize(
    ("total", "free", "has_bug"),
    [(0, 940604, True), (0, 0, False), (64, 60, False), (None, None, False), (0, None, False)],
)
def test_the_kernels_cma_bug(total: int | None, free: int | None, has_bug: bool) -> None:
    assert Memory(cma_total=total, cma_free=free).has_cma_bug is has_bug


def test_what_the_kernel_does_not_tell_is_none() -> None:
    assert memory.parse_meminfo("MemTotal: 10 kB\nDirectMap4k: 5 kB\n") == Memory(total=10240)


def test_other_text_is_missing() -> None:
    assert isinstance(memory.parse_meminfo("hello\n"), Missing)


def test_section_is_read() -> None:
    assert memory.parse(said({"memory": {"value": "MemFree: 1 kB\n"}})) == Memory(free=1024)


def test_this_machine_answers() -> None:
    found = memory.parse(run_far("look", {"sections": ["memory"]}))
    assert isinstance(found, Memory)
    assert found.total
    assert found.available
    assert found.total > found.available > 1 << 20


def test_a_deadline_is_a_timeout() -> None:
    assert memory.parse(Answer(None)) == Missing("python3 did not answer in time", "timeout")
