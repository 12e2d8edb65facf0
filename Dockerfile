# slm in a container: training, export and server, for any x86-64 or ARM machine. See docs/deploy.md.
#
#   docker build -t slm .
#   docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD/runs:/data/runs:ro" slm
#   docker run --rm --no-healthcheck -v slm:/data slm train preset=tiny name=demo
#
# Debian's own Python and compiler: the variants of llama.cpp for ARM need GCC 14.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/slm/venv
ENV PATH=/opt/slm/venv/bin:$PATH
# llama.cpp is built for every kind of processor. The best one is loaded at the start (slm/llama/backends.py).
# llama-cpp-python's build does not know the variants' files, so they are told where to go (CMAKE_INSTALL_BINDIR). GCC
# must keep the stores that build AMX's tile configuration (llama.cpp issue 20824). The version is the one in pyproject.toml.
ARG LLAMA_CPP_PYTHON=0.3.36
RUN CMAKE_ARGS='-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DCMAKE_INSTALL_BINDIR=llama_cpp/lib -DLLAVA_BUILD=OFF -DCMAKE_CXX_FLAGS="-fno-tree-dse -fno-dse"' \
    pip install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==${LLAMA_CPP_PYTHON}
# PyTorch for the CPU. The ordinary index has CUDA in it.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url ${TORCH_INDEX} "torch>=2.13,<2.14"
COPY . /opt/slm/source
RUN pip install --no-cache-dir "/opt/slm/source[logging,documents]"

FROM ${BASE}
# g++ compiles the training kernels and the token picker for this processor, once.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ libgomp1 python3 python3-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /data --no-create-home slm \
    && install -d -o slm -g slm /data /data/runs /data/cache
COPY --from=build /opt/slm/venv /opt/slm/venv
ENV PATH=/opt/slm/venv/bin:$PATH XDG_CACHE_HOME=/data/cache HF_HOME=/data/cache/huggingface PYTHONUNBUFFERED=1
# Runs, downloads, and what slm has measured and compiled.
VOLUME /data
WORKDIR /data
USER slm
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
# Any other command of slm takes the place of "serve": train, export, eval, chat, doctor (slm --help lists them).
ENTRYPOINT ["slm"]
CMD ["serve", "model=runs/latest", "host=0.0.0.0"]
