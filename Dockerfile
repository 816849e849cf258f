# The service as a small image: only what runs, as a user who owns nothing. It writes nothing but temporary files: run it
# with a read-only root file system and a tmpfs at /tmp.

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
WORKDIR /build

# The lock also pins the tools of development. pip would install all of it; uv takes it as a list of allowed hashes and
# installs what the package itself needs. uv comes from the same list.
COPY requirements.lock pyproject.toml ./
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock > uv.lock \
    && pip install --require-hashes --requirement uv.lock \
    && uv venv /opt/tarry \
    && uv pip install --python /opt/tarry --require-hashes --constraint requirements.lock --requirement pyproject.toml \
       --extra server --extra otel \
    && uv pip install --system --require-hashes --constraint requirements.lock \
       "$(sed -n 's/^\(hatchling==[^ ]*\).*/\1/p' requirements.lock)"

COPY . .
RUN python -m hatchling build --target wheel \
    && uv pip install --python /opt/tarry --no-deps dist/*.whl


FROM python:3.13-slim
LABEL org.opencontainers.image.title="tarry" \
      org.opencontainers.image.description="Delayed retries for every RabbitMQ queue, on a stock broker" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin tarry
COPY --from=build /opt/tarry /opt/tarry
ENV PATH=/opt/tarry/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
EXPOSE 8086
# The image has no curl. Alive, not ready: a router without its broker waits for it and needs no restart.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=6 CMD ["python", "-c", "import os; from urllib.request import urlopen; urlopen(f'http://127.0.0.1:{os.environ.get(\"HTTP_PORT\") or 8086}/healthz', timeout=4)"]
ENTRYPOINT ["tarry"]
CMD ["serve"]
