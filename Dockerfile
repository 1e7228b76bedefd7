# syntax=docker/dockerfile:1
# The server in a container. docs/serve.md explains how to build and run it. For CUDA, run:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t wavefront .
# The digest is that of python:3.12-slim (Python 3.12.14, Debian trixie) of September 2026, for every
# platform. To update it, run: docker buildx imagetools inspect python:3.12-slim
ARG BASE=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${BASE} AS build
WORKDIR /source
COPY requirements/build.txt ./
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement build.txt
COPY pyproject.toml README.md LICENSE ./
COPY wavefront ./wavefront
RUN python -m hatchling build --target wheel --directory /dist

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements/image.txt /opt/wavefront/
# Every file of every package but torch is checked against its hash.
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement /opt/wavefront/image.txt
COPY constraints.txt /opt/wavefront/
# torch is in its own layer, because it is most of the image. It is pinned by version only, because
# each index has its own files of a version.
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" \
    --constraint /opt/wavefront/constraints.txt torch
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps /dist/*.whl && pip check

# Use a numeric user, so that a cluster can verify that it is not root.
RUN useradd --uid 10001 --create-home wavefront && install --directory --owner 10001 /models
USER 10001
WORKDIR /home/wavefront
VOLUME ["/models"]
# The container listens on all addresses and therefore requires an API key. It starts only with
# WAVEFRONT_API_KEY, with the secret file named below, or with an empty WAVEFRONT_API_KEY_FILE.
# The linter mistakes the file name for a key.
# hadolint ignore=DL3064
ENV HF_HOME=/models \
    PYTHONUNBUFFERED=1 \
    WAVEFRONT_API_KEY_FILE=/run/secrets/wavefront_api_key
EXPOSE 8000
# The check fails until the model has loaded. Docker ignores this during the start period.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["wavefront", "serve", "--host", "0.0.0.0", "--port", "8000"]
