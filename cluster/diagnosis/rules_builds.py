"""Rules for kernels and builds that do not fit a GB10, its driver or a cache."""

from __future__ import annotations

from cluster.diagnosis.rule import Rule

KERNELS = (
    Rule(
        "kernel-sm120-only", "fault",
        r"This kernel only supports sm_?\d+|(kernel|CUTLASS)\S* .*compiled for sm_?\d+.* (but|only)\b.*sm_?121",
        "a kernel in this image was built for another GPU than GB10 (sm_121)",
        "another image; no setting of the host helps",
        "eugr/spark-vllm-docker#143",
    ),
    Rule(
        "quantised-kernel", "fault",
        r"FlashInfer kernels unavailable for \w+|Failed to run cutlass FP4 gemm|type fp8e4nv not supported in this arch"
        r"|does not support BitsAndBytes quantization yet",
        "this build has no kernel that computes this quantisation on this GPU",
        "a newer image built for sm_121, another backend (VLLM_NVFP4_GEMM_BACKEND=marlin), or another checkpoint",
        "vllm-project/vllm#30163, #25653",
    ),
    Rule(
        "patch-of-other-version", "fault",
        r"TypeError: (?P<part>\w*(MoE|Linear|Attention)\w*)\.__init__\(\) got an unexpected keyword argument",
        "the model's code was written for another version of vLLM: a file mounted over it, or a stale copy ({part})",
        "leave out the mounted file, or the image that it was written for",
        "eugr/spark-vllm-docker#238",
    ),
    Rule(
        "no-kernel-image", "fault",
        r"no kernel image is available for execution",
        "nothing in this image was built for GB10 (sm_121)",
        "an image for CUDA 13 and sm_121",
        "CUDA error 209",
    ),
    Rule(
        "ptxas-too-old", "fault",
        r"ptxas fatal\s*: .*sm_12\w+|sm_121a?.*is not (defined|recognized)",
        "the image's ptxas does not know sm_121",
        "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas of CUDA 13, or a newer image",
        "Triton on GB10",
    ),
    Rule(
        "driver-too-old", "fault",
        r"CUDA driver version is insufficient|unsupported display driver"
        r"|PTX was compiled with an unsupported toolchain|unsatisfied condition: cuda|CUDA unknown error"
        r"|forward compatibility was attempted|NVIDIA driver on your system is too old",
        "driver and image do not fit each other",
        "nvidia-smi: the driver's CUDA version must be at least the image's; another image",
        "NVIDIA/NemoClaw#4658",
    ),
    Rule(
        "deepgemm", "fault",
        r"Unknown SF transformation|Assertion error \(\S*deepgemm|DeepGEMM.*Assertion",
        "DeepGEMM was picked for a block-FP8 checkpoint and does not know this GPU",
        "VLLM_USE_DEEP_GEMM=0, another checkpoint, or a newer vLLM",
        "vllm-project/vllm#47436, #51884",
    ),
    Rule(
        "cudnn-fp8", "fault",
        r"CUDNN_STATUS_(EXECUTION_FAILED|NOT_SUPPORTED)\w*",
        "a cuDNN kernel for another GPU was chosen, as with --kv-cache-dtype fp8 on some images",
        "leave out --kv-cache-dtype fp8, or another attention backend",
        "NVIDIA/dgx-spark-playbooks#107",
    ),
    Rule(
        "compile-cache", "fault",
        r"corrupted compilation artifact|failed to get the hash of the compiled graph"
        r"|Can't pickle .*AOTAutogradCache|AOTAutogradCache.*pickle|Expected tensors only, but got: <class"
        r"|torch_compile_cache.*(No such file|corrupt|Unpickling|EOFError)"
        r"|torch_aot_compile.*(corrupt|Unpickling|EOFError)",
        "the compile cache on disk is broken, so every start fails in the same way",
        "remove torch_compile_cache under VLLM_CACHE_ROOT (~/.cache/vllm) on every host, or "
        "VLLM_DISABLE_COMPILE_CACHE=1",
        "vllm-project/vllm#21858, #24915, ls1intum/edutelligence#579",
    ),
    Rule(
        "triton-shared-memory", "fault",
        r"out of resource: shared memory|OutOfResources",
        "a Triton kernel wants more shared memory than GB10 has (99 KiB a block), as kernels tuned for larger "
        "GPUs do",
        "another attention or MoE backend, or a newer vLLM",
        "Triton; sm_12x limits",
    ),
    Rule(
        "library-missing", "fault",
        r"(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "the program needs {library}, which is not there: another CUDA version, or not installed on this host",
        "find / -name '{library}*'; an image or wheel for this CUDA version",
        "NVIDIA/dgx-spark-playbooks, multi-sparks", until="ready",
    ),
    Rule(
        "builds-mixed", "fault",
        r"undefined symbol: |_C\S*\.so: .*undefined|Torch not compiled with CUDA|version `GLIBC\S* not found",
        "parts of different builds are mixed: vLLM, PyTorch, NCCL and CUDA of one image must be of one build",
        "use the image as it is, without pip install into it",
        "vLLM, PyTorch", until="ready",
    ),
    Rule(
        "jit-build-failed", "fault",
        r"Ninja build failed|ninja: build stopped|nvcc fatal|Could not find nvcc",
        "a kernel could not be compiled in the image: its compiler is missing or does not know sm_121",
        "TORCH_CUDA_ARCH_LIST=12.1a; an image with CUDA 13's nvcc; look at the compiler's own lines above",
        "FlashInfer JIT",
    ),
    Rule(
        "gpu-crash", "fault",
        r"illegal memory access was encountered|unspecified launch failure|device-side assert triggered"
        r"|misaligned address|cudaErrorLaunchFailure|illegal instruction was encountered"
        r"|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)",
        "a GPU kernel crashed",
        "another image or attention backend; --enforce-eager narrows it down; dmesg | grep Xid",
        "CUDA errors 700, 719, 710, 716", secondary=True,
    ),
)  # fmt: skip
