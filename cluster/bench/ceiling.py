"""How fast a recipe could generate at most: every token needs all weights read once from a Spark's memory. Pure.

Only the weights are counted. The cache that is read at depth, activations and the traffic between hosts come on top, so
no measurement can pass this line, and a measurement close to it has nothing left to gain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.config.recipe import Recipe

SPARK_BYTES_PER_S = 273e9
"""Memory bandwidth of a GB10 as NVIDIA's data sheet of the DGX Spark has it."""

GIB = 1 << 30
BYTES_A_PARAMETER = {
    "fp8": 1.0,
    "modelopt_fp4": 0.5625,  # 4 bits, and an FP8 scale for 16 values
    "nvfp4": 0.5625,
    "awq": 0.52,  # 4 bits, and a 16-bit scale and a 4-bit zero for 128 values
    "awq_marlin": 0.52,
    "gptq": 0.52,
    "gptq_marlin": 0.52,
}
"""By the value of vLLM's --quantization."""

_EXPERTS = re.compile(r"\bA\d+(\.\d+)?B\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes read for one token. `bytes` is None when they are not known; `why` says why, or where they are from."""

    bytes: float | None
    why: str

    def ceiling_t_s(self, tp: int | None, concurrency: int = 1) -> float | None:
        """Tokens a second that `tp` Sparks cannot exceed; one reading serves all requests of a batch.

        Pipeline stages read one after the other, so they do not raise it for a single request.
        """
        if self.bytes is None or not tp:
            return None
        return concurrency * tp * SPARK_BYTES_PER_S / self.bytes


UNKNOWN = Reading(None, "the recipe is not known")


def bytes_a_token(recipe: Recipe) -> Reading:
    """What a recipe reads for one token: parameters × bytes of its quantisation, else the size of its files.

    A quantisation whose bytes are not known here is that of a checkpoint: its files tell.
    """
    flags = recipe.vllm
    if flags.get("speculative-config"):
        return Reading(None, "speculative decoding gives more than one token for one reading of the weights")
    active = recipe.active_parameters_b
    if active is None and (_EXPERTS.search(recipe.model) or "moe-backend" in flags):
        return Reading(None, "a mixture of experts reads its active parameters only; the recipe does not say how many")
    parameters, quantisation = active or recipe.parameters_b, flags.get("quantization")
    each = BYTES_A_PARAMETER.get(str(quantisation))
    if each is not None:
        if parameters is None:
            return Reading(None, "the recipe does not say parameters_b")
        return Reading(parameters * 1e9 * each, f"{parameters:g} billion parameters × {each:g} bytes ({quantisation})")
    if recipe.weights_gib is None:
        return Reading(None, "the recipe does not say weights_gib, and its quantization does not tell the bytes")
    if active is None:
        return Reading(recipe.weights_gib * GIB, f"weight files of {recipe.weights_gib:g} GiB")
    if recipe.parameters_b is None:
        return Reading(None, "the recipe does not say parameters_b")
    part = active / recipe.parameters_b
    return Reading(
        part * recipe.weights_gib * GIB, f"{active:g} of {recipe.parameters_b:g} billion parameters are read"
    )
