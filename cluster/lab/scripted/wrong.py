"""Servers that get something wrong: the defects that people reported, and the ways in which servers fail."""

from __future__ import annotations

from cluster.lab.scripted import wrong_answers, wrong_calls, wrong_wire

WRONG = (*wrong_calls.WRONG, *wrong_answers.WRONG, *wrong_wire.WRONG)
