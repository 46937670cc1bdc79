"""Words that limit a GPU's clocks and put them back, with a note on the host of what was set since it was started.

`nvidia-smi -lgc MIN,MAX` and `-rgc` need root. The driver forgets a limit when the host starts again, and reports it
nowhere (580.159, seen on an H200): what cluster set is known by its note alone, which is written first.
"""

from __future__ import annotations

from cluster.argv.question import Question

NOTE = "clocks.json"
"""Name of the note in a host's data directory: {"sm_max_mhz": number, "boot": the kernel's boot id}."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"

LIMIT_SCRIPT = f"""
was=$(cat "$1" 2>/dev/null)
mkdir -p "${{1%/*}}" && printf '{{"sm_max_mhz": %s, "boot": "%s"}}\\n' "$2" "$(cat {BOOT_ID})" >"$1.part" || exit 1
mv "$1.part" "$1" || exit 1
said=$(sudo -n nvidia-smi -lgc "0,$2" 2>&1) && case $said in *gpuClkMax*) exit 0 ;; esac
if [ -n "$was" ]; then printf '%s\\n' "$was" >"$1"; else rm -f "$1"; fi
printf '%s\\n' "$said" >&2
exit 1
"""
"""What a driver does not support it calls a warning, and exits 0: only its confirmation counts."""
RESET_SCRIPT = f"""
[ -e "$1" ] || exit 0
if grep -q "$(cat {BOOT_ID})" "$1"; then
  said=$(sudo -n nvidia-smi -rgc 2>&1) || {{ printf '%s\\n' "$said" >&2; exit 1; }}
fi
rm -f "$1"
"""


def limit_clocks(data_dir: str, sm_max_mhz: int) -> Question:
    """Let the SM clock of all GPUs of a host rise to so many MHz at most; no lower bound, so that idling stays."""
    words = ("sh", "-c", LIMIT_SCRIPT, "cluster-clocks", f"{data_dir}/{NOTE}", str(sm_max_mhz))
    return Question(words, timeout_s=60, changes=True)


def reset_clocks(data_dir: str) -> Question:
    """Undo what cluster's note says, if the host still has it; nothing without a note."""
    return Question(("sh", "-c", RESET_SCRIPT, "cluster-clocks", f"{data_dir}/{NOTE}"), timeout_s=60, changes=True)
