# syntax=docker/dockerfile:1
# The plugin for amd64 and arm64: docker buildx build --platform linux/amd64,linux/arm64 -t gpu-dra-plugin:0.1.0 .

FROM rust:1-bookworm AS build
ARG TARGETARCH
WORKDIR /source
COPY . .
# The caches keep dependencies between builds; the binary is copied out of the cached target directory.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,id=target-$TARGETARCH \
    cargo build --release --locked --package gpu-dra-plugin \
    && install -D target/release/gpu-dra-plugin /out/gpu-dra-plugin

# NVML is loaded at run time and needs the C library, the dynamic loader and libgcc: `cc` has them, `static` and `base` do not.
# The Debian release in its name is the only version it has.
# hadolint ignore=DL3006
FROM gcr.io/distroless/cc-debian12
LABEL org.opencontainers.image.title="gpu-dra-plugin" \
      org.opencontainers.image.description="A Kubernetes DRA kubelet plugin for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/gpu-dra-plugin /usr/bin/gpu-dra-plugin
ENTRYPOINT ["/usr/bin/gpu-dra-plugin"]
