# docker build -t llm-proxy .
# docker run -p 8080:8080 -v llm-proxy-data:/data llm-proxy --mode relay

# The bases by their tags, which receive fixes; --build-arg selects another base, or a digest (docs/deployment.md).
ARG BUILD_IMAGE=node:24-bookworm
ARG RUST_IMAGE=rust:1.95-slim-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${RUST_IMAGE} AS rust

FROM ${BUILD_IMAGE} AS build
# For the fast tokenizer.
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
ENV CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:$PATH
WORKDIR /build
COPY . .
RUN .ci/build-image

# The C and C++ libraries, CA certificates and nothing else: no shell, no package manager.
FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="llm-proxy" \
      org.opencontainers.image.description="Stands between unmodified LLM agents and inference engines, and records every call token by token for reinforcement learning." \
      org.opencontainers.image.version="0.1.0"
COPY --from=build --chown=0:0 /build/dist/image/usr /usr
COPY --from=build --chown=65532:65532 /build/dist/image/data /data
# Without keys the proxy is open to every client that reaches the published port, and warns at its start; with keys
# LLM_PROXY_OPEN has no effect.
ENV LLM_PROXY_HOST=0.0.0.0 \
    LLM_PROXY_OPEN=true \
    LLM_PROXY_DB=/data/llm-proxy.db
USER 65532:65532
VOLUME /data
WORKDIR /data
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["llm-proxy", "health"]
ENTRYPOINT ["llm-proxy"]
