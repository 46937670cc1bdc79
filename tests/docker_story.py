"""One story, told to the docker of the tests and to a real one: what our words make of containers.

Each chapter asks with the words that the product sends, and looks with the readers that the product uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cluster.argv import docker
from cluster.argv.question import Answer, Question
from cluster.spark import deployments, image, ranks
from cluster.spark.fact import Missing

NAME, STRANGER = "cluster-story-r0", "cluster-story-of-a-stranger"
LABEL = "cluster.deployment=story"


def docker_ps(label: str) -> Question:
    """Ids of all containers with this label."""
    return Question(("docker", "ps", "--all", "--no-trunc", "--quiet", "--filter", f"label={label}"))


def docker_rename(name: str, new_name: str) -> Question:
    return Question(("docker", "rename", name, new_name), changes=True)


@dataclass
class Story:
    """`ask` goes to one host; `image` is on it and has `sleep`."""

    ask: Callable[[Question], Answer]
    image: str

    def container(self, name: str = NAME) -> docker.RankContainer:
        labels = {"cluster.deployment": "story", "cluster.spec": '{"a":"b","cluster.deployment":"other"}'}
        env = {"GREETING": 'two words, "quoted", $HOME and = sign'}
        return docker.RankContainer(name, self.image, "sleep", ("infinity",), labels, env, shm_bytes=1 << 26)

    def seen(self, name: str = NAME) -> deployments.Container | None:
        """A container as the product sees it."""
        found = deployments.parse_containers(self.ask(deployments.containers_question()))
        assert not isinstance(found, Missing), found
        return next((one for one in found if one.name == name), None)

    def inspect(self, name: str = NAME) -> dict[str, object]:
        [told] = json.loads(self.ask(docker.docker_inspect(name)).text)
        return dict(told)

    def tidy(self) -> None:
        self.ask(Question(("docker", "rm", "--force", NAME, STRANGER, f"{NAME}-old"), changes=True))


def chapters() -> Iterator[Callable[[Story], None]]:
    """In order; each begins where the one before ended."""
    yield from (
        nothing_is_there,
        it_is_created,
        its_name_is_taken,
        it_is_told_from_others,
        it_stops,
        it_starts_again,
        it_is_renamed,
        a_running_one_is_not_removed,
        only_ours_are_ended,
        what_is_gone_is_gone,
        it_cannot_be_created,
        it_cannot_be_started,
        its_program_is_not_there,
        images_are_inspected,
    )


def nothing_is_there(story: Story) -> None:
    assert story.ask(docker_ps(LABEL)).text == ""
    assert story.seen() is None
    gone = story.ask(docker.docker_inspect(NAME))
    assert (gone.exit, gone.text.strip()) == (1, "[]")
    assert "No such container" in gone.error_text
    assert ranks.parse(story.ask(ranks.question([NAME]))) == {}


def it_is_created(story: Story) -> None:
    made = story.ask(docker.docker_run(story.container()))
    assert made.exit == 0, made.error_text
    assert re.fullmatch(r"[0-9a-f]{64}\n", made.text)
    assert story.ask(docker_ps(LABEL)).text == made.text
    assert story.ask(docker_ps("cluster.deployment=other")).text == ""
    one = story.seen()
    assert one is not None
    assert (one.id, one.state, one.exit_code, one.image) == (made.text.strip(), "running", None, story.image)
    assert one.argv == ("sleep", "infinity")
    assert one.labels["cluster.spec"] == '{"a":"b","cluster.deployment":"other"}'
    assert one.pid > 0
    assert one.started_at
    assert not one.finished_at


def its_name_is_taken(story: Story) -> None:
    before = story.seen()
    taken = story.ask(docker.docker_run(story.container()))
    assert taken.exit == 125
    assert "Conflict" in docker.why_failed(taken)
    assert before is not None
    assert before.id in docker.why_failed(taken)
    assert story.seen() == before


def it_is_told_from_others(story: Story) -> None:
    assert story.ask(docker.docker_has_started(NAME, LABEL)).exit == 0
    assert story.ask(docker.docker_has_started(NAME, "cluster.deployment=other")).exit == 1
    assert story.ask(docker.docker_has_started(STRANGER, LABEL)).exit == 1
    assert story.ask(docker.docker_has_stopped(NAME)).exit == 1
    told = ranks.parse(story.ask(ranks.question([NAME])))
    assert not isinstance(told, Missing)
    assert (told[NAME].state, told[NAME].oom, told[NAME].stages) == ("running", False, ())


def it_stops(story: Story) -> None:
    stop = docker.docker_stop(NAME, grace_s=1)
    assert story.ask(stop).text == f"{NAME}\n"
    one = story.seen()
    assert one is not None
    assert (one.state, one.pid) == ("exited", 0)
    assert one.exit_code == 143
    assert one.finished_at
    assert story.ask(docker.docker_has_stopped(NAME)).exit == 0
    assert story.ask(docker.docker_has_started(NAME, LABEL)).exit == 0
    assert story.ask(stop).exit == 0
    refused = story.ask(docker.docker_exec(NAME, ("true",)))
    assert refused.exit == 1
    assert "is not running" in refused.error_text


def it_starts_again(story: Story) -> None:
    before = story.inspect()
    assert story.ask(docker.docker_start(NAME)).text == f"{NAME}\n"
    one, after = story.seen(), story.inspect()
    assert one is not None
    assert one.state == "running"
    for key in ("Id", "Path", "Args", "Name"):
        assert after[key] == before[key]
    assert after["Config"]["Env"] == before["Config"]["Env"]
    assert story.container().env["GREETING"] in "\n".join(after["Config"]["Env"])
    assert story.ask(docker.docker_start(NAME)).exit == 0


def it_is_renamed(story: Story) -> None:
    assert story.ask(docker_rename(NAME, f"{NAME}-old")).exit == 0
    assert story.seen() is None
    assert story.ask(docker_rename(f"{NAME}-old", NAME)).exit == 0
    assert story.ask(docker_rename(STRANGER, NAME)).exit == 1


def a_running_one_is_not_removed(story: Story) -> None:
    refused = story.ask(docker.docker_rm(NAME))
    assert refused.exit == 1
    assert "running" in refused.error_text
    assert not docker.is_gone(docker.docker_rm(NAME), refused)
    assert story.seen() is not None


def only_ours_are_ended(story: Story) -> None:
    words = story.container(STRANGER)
    stranger = replace(
        words, labels={"cluster.spec": words.labels["cluster.spec"], "owner": "cluster.deployment=story"}
    )
    assert story.ask(docker.docker_run(stranger)).exit == 0
    ended = story.ask(docker.docker_end(LABEL, grace_s=1))
    assert ended.exit == 0, ended.error_text
    assert story.seen() is None
    other = story.seen(STRANGER)
    assert other is not None
    assert other.state == "running"
    assert story.ask(docker.docker_end(LABEL)).exit == 0
    assert story.seen(STRANGER) == other
    assert story.ask(docker.docker_rm(STRANGER, force=True)).exit == 0


def what_is_gone_is_gone(story: Story) -> None:
    for question in (docker.docker_rm(NAME, force=True), docker.docker_rm(NAME), docker.docker_stop(NAME)):
        answer = story.ask(question)
        assert answer.exit == 0 or docker.is_gone(question, answer)
    started = story.ask(docker.docker_start(NAME))
    assert started.exit == 1
    assert not docker.is_gone(docker.docker_start(NAME), started)
    assert story.ask(docker.docker_has_stopped(NAME)).exit == 1


def it_cannot_be_created(story: Story) -> None:
    nowhere = replace(story.container(), binds=(docker.Bind("/no/such folder,really", "/x"),))
    refused = story.ask(docker.docker_run(nowhere))
    assert refused.exit == 125
    assert "bind source path does not exist: /no/such folder,really" in docker.why_failed(refused)
    unknown = story.ask(docker.docker_run(replace(story.container(), image="cluster.invalid/none:1")))
    assert unknown.exit == 125
    assert "No such image" in docker.why_failed(unknown)
    assert story.seen() is None


def it_cannot_be_started(story: Story) -> None:
    """It stays, created, and is ours to remove."""
    whole = docker.docker_run(story.container())
    at = whole.argv.index("--init")
    refused = story.ask(replace(whole, argv=(*whole.argv[:at], "--device", "/dev/none-such", *whole.argv[at:])))
    assert refused.exit == 127
    assert 'adding custom device "/dev/none-such": no such file or directory' in docker.why_failed(refused)
    one = story.seen()
    assert one is not None
    assert (one.state, one.exit_code) == ("created", None)
    assert story.ask(docker.docker_has_started(NAME, LABEL)).exit == 1
    told = ranks.parse(story.ask(ranks.question([NAME])))
    assert not isinstance(told, Missing)
    assert told[NAME].state == "created"
    assert story.ask(docker.docker_end(LABEL, grace_s=1)).exit == 0
    assert story.seen() is None


def its_program_is_not_there(story: Story) -> None:
    """--init starts and ends at once; the reason is in the log."""
    assert story.ask(docker.docker_run(replace(story.container(), entrypoint="no-such-program"))).exit == 0
    for _ in range(50):
        told = ranks.parse(story.ask(ranks.question([NAME])))
        assert not isinstance(told, Missing)
        if told[NAME].state == "exited" and told[NAME].tail:  # dockerd writes the log a moment after the end
            break
    assert (told[NAME].state, told[NAME].exit_code) == ("exited", 127)
    assert "no-such-program" in told[NAME].tail[-1]
    assert story.ask(docker.docker_has_started(NAME, LABEL)).exit == 0
    assert story.ask(docker.docker_end(LABEL, grace_s=1)).exit == 0
    assert story.seen() is None


def images_are_inspected(story: Story) -> None:
    found = image.parse(story.image, story.ask(docker.docker_image_inspect(story.image)))
    assert not isinstance(found, Missing), found
    assert len(found.content_id) == 64
    assert found.architecture in ("arm64", "amd64")
    absent = image.parse("cluster.invalid/none:1", story.ask(docker.docker_image_inspect("cluster.invalid/none:1")))
    assert isinstance(absent, Missing)
    assert absent.kind == "absent"
