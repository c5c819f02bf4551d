# An image with the binary, which runs without root. docs/deployment.md describes its use.
FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
# The same command as deploy/release, with the feature `scale` for batch runs on several machines.
RUN cargo build --locked --config deploy/dist-link.toml --profile dist --package backstitch --features openssl-vendored,scale

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --create-home --home-dir /var/lib/backstitch backstitch \
    && chmod 0700 /var/lib/backstitch
COPY --from=build /src/target/dist/backstitch /usr/local/bin/backstitch
USER 10001:10001
WORKDIR /var/lib/backstitch
ENV BACKSTITCH__DATA_DIR=/var/lib/backstitch \
    BACKSTITCH__TELEMETRY__LOG_FORMAT=json
VOLUME ["/var/lib/backstitch"]
EXPOSE 8080 9464
ENTRYPOINT ["backstitch"]
CMD ["--help"]
