# A server, or any other command of the translator, in a container:
#   docker build -t translator . && docker run -p 127.0.0.1:5000:5000 -v "$PWD/runs:/work/runs" translator
# For GPUs: --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04, and docker run --gpus all.
ARG BASE=python:3.12-slim
FROM ${BASE}

# Bases of CUDA have no Python.
# hadolint ignore=DL3008
RUN command -v python3 > /dev/null || { \
        apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; }

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY translator translator
COPY conf conf
# PIP_ARGS may name another index, as for a build of PyTorch without CUDA.
ARG PIP_ARGS=""
# hadolint ignore=SC2086
RUN python3 -m venv /opt/translator \
    && /opt/translator/bin/pip install --no-cache-dir --constraint constraints.txt ${PIP_ARGS} ".[serve,ctranslate2,huggingface]"

RUN useradd --create-home --uid 10001 translator && install --directory --owner translator /work
USER 10001
WORKDIR /work
ENV PATH=/opt/translator/bin:$PATH
EXPOSE 5000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:5000/health')"]
ENTRYPOINT ["translator"]
CMD ["serve", "host=0.0.0.0"]
