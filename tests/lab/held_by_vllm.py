"""usage: python held_by_vllm.py MODEL_DIR TP OUT.json      (the lab engine's Python; CPU)

Loads a model with vLLM's own loader, and writes what each rank holds before its kernels repack it, and vLLM's cache:
{"weights": [bytes of rank 0, …], "tokens", "blocks", "block", "length", "batched", "in_flight", "aligned"}.
"""

import json
import os
import sys
from pathlib import Path

LOADER = "vllm.model_executor.model_loader.base_loader"
PARTS = "HELD_BY_VLLM"


class RecordWeights:
    """Each process that imports vLLM's loader writes the size of its weights when they are loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != LOADER or PARTS not in os.environ:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            process = module.process_weights_after_loading

            def recorded(model, *args, **kwargs):
                from vllm.distributed import get_tensor_model_parallel_rank

                weights = model.state_dict()
                own = ("_k_scale", "_v_scale", "_q_scale", "_prob_scale")  # four scalars a layer, of no checkpoint
                held = {one.data_ptr(): one.nbytes for name, one in weights.items() if not name.endswith(own)}
                tables = {one.data_ptr(): one.nbytes for name, one in model.named_buffers() if name not in weights}
                sizes = [sum(held.values()), sum(tables.values())]
                names = sorted({f"{name.split('.')[-1]} {list(one.shape)}" for name, one in model.named_buffers()})
                found = json.dumps([*sizes, names])
                Path(f"{os.environ[PARTS]}.{get_tensor_model_parallel_rank()}").write_text(found)
                return process(model, *args, **kwargs)

            module.process_weights_after_loading = recorded

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, RecordWeights())  # as sitecustomize in vLLM's own children, too


def main(model: str, tp: int, out: str) -> None:
    os.environ |= {PARTS: out, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import LLM

    engine = LLM(model, tensor_parallel_size=tp, max_model_len=8192, enforce_eager=True, disable_log_stats=True)
    config = engine.llm_engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config
    ranks = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(tp)]
    held = {
        "weights": [weights for weights, _, _ in ranks],
        "tables": [tables for _, tables, _ in ranks],
        "buffers": ranks[0][2],
        "tokens": cache.kv_cache_size_tokens,
        "blocks": cache.num_gpu_blocks,
        "block": cache.block_size,
        "length": config.model_config.max_model_len,
        "batched": scheduler.max_num_batched_tokens,
        "in_flight": config.max_in_flight_tokens // scheduler.max_num_batched_tokens,
        "aligned": cache.mamba_cache_mode == "align",
    }
    Path(out).write_text(json.dumps(held))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
