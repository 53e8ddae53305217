# syntax=docker/dockerfile:1
# The plugin for amd64 and arm64: docker buildx build --platform linux/amd64,linux/arm64 -t gpu-dra-plugin:0.1.0 .

FROM rust:1-bookworm AS build
ARG TARGETARCH
WORKDIR /source
COPY . .
# The caches keep dependencies between builds; the binaries are copied out of the cached target directory. The hook runs on
# the host, whatever that has for a C library, so it is linked statically, which the plugin (it loads NVML) cannot be.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,id=target-$TARGETARCH \
    cargo build --release --locked --package gpu-dra-plugin \
    && cargo rustc --release --locked --package gpu-dra-hook --bin gpu-dra-hook -- -C target-feature=+crt-static \
    && install -D --target-directory=/out target/release/gpu-dra-plugin target/release/gpu-dra-hook

# NVML is loaded at run time and needs the C library, the dynamic loader and libgcc: `cc` has them, `static` and `base` do not.
# The Debian release in its name is the only version it has.
# hadolint ignore=DL3006
FROM gcr.io/distroless/cc-debian12
LABEL org.opencontainers.image.title="gpu-dra-plugin" \
      org.opencontainers.image.description="A Kubernetes DRA kubelet plugin for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
# The plugin installs the hook from beside itself onto the node.
COPY --from=build /out/gpu-dra-plugin /out/gpu-dra-hook /usr/bin/
ENTRYPOINT ["/usr/bin/gpu-dra-plugin"]
