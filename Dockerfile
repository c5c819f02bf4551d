# The binary in an image that runs as nobody in particular. docs/deployment.md says how to use it.
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake perl \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package backstitch --bin backstitch

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --create-home --home-dir /var/lib/backstitch backstitch
COPY --from=build /src/target/release/backstitch /usr/local/bin/backstitch
USER 10001:10001
WORKDIR /var/lib/backstitch
ENV BACKSTITCH__DATA_DIR=/var/lib/backstitch \
    BACKSTITCH__TELEMETRY__LOG_FORMAT=json
VOLUME ["/var/lib/backstitch"]
EXPOSE 8080 9464
ENTRYPOINT ["backstitch"]
CMD ["--help"]
