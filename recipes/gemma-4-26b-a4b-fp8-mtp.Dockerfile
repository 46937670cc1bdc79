# vLLM's own files at a commit whose Gemma 4 drafter is right (PR 41745), over those of the recipe's image. Its
# compiled kernels stay, so nothing is compiled. Needs the network of the host that builds.
ARG IMAGE
FROM $IMAGE

ARG COMMIT=27e0057aeda6bc443069c20fdf2f3cc95ed892f3
ARG SOURCE=https://github.com/vllm-project/vllm/archive
RUN python3 -c "import urllib.request; urllib.request.urlretrieve('$SOURCE/$COMMIT.tar.gz', '/tmp/vllm.tar.gz')" \
 && place=$(python3 -c "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('vllm').origin))") \
 && tar -xzf /tmp/vllm.tar.gz -C "$place" --strip-components=2 "vllm-$COMMIT/vllm" \
 && rm /tmp/vllm.tar.gz
