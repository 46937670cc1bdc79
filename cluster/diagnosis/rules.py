"""All rules in the order in which they are tried: a line has the first that matches it."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule
from cluster.diagnosis.rules_builds import KERNELS
from cluster.diagnosis.rules_deaths import DEATHS
from cluster.diagnosis.rules_docker import ANY_START, DOCKER
from cluster.diagnosis.rules_fabric import FABRIC
from cluster.diagnosis.rules_kernel import DISK, KERNEL
from cluster.diagnosis.rules_memory import MEMORY
from cluster.diagnosis.rules_models import FORMATS, HUB
from cluster.diagnosis.rules_nccl import NCCL
from cluster.diagnosis.rules_normal import MOMENTS as MOMENTS
from cluster.diagnosis.rules_normal import NORMAL
from cluster.diagnosis.rules_ray import JOINING, PLACEMENT
from cluster.diagnosis.rules_ssh import ANY_PROGRAM, SSH
from cluster.diagnosis.rules_torch import TORCH
from cluster.diagnosis.rules_vllm import QUOTED, START

RULES: tuple[Rule, ...] = (
    *NORMAL, *KERNEL, *NCCL, *MEMORY, *DISK, *JOINING, *PLACEMENT, *KERNELS, *FORMATS, *HUB, *TORCH, *FABRIC, *SSH,
    *DOCKER, *START, *DEATHS, *QUOTED, *ANY_START, *ANY_PROGRAM,
)  # fmt: skip
