FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches live outside the layers, so that a change of ours does not build every dependency again.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked && cp target/dist/tailback /usr/local/bin/tailback

FROM debian:bookworm-slim
# The system's certificates, for a MongoDB behind TLS.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 tailback && install -d -o tailback /data
COPY --from=build /usr/local/bin/tailback /usr/local/bin/tailback
USER tailback
# Both are only defaults: with TAILBACK_STORE=mongodb://… the volume stays empty. Beyond loopback the server starts only with
# a key: TAILBACK_AUTH__ADMIN_KEY_FILE, or TAILBACK_AUTH__REQUIRED=false where every client may do everything.
ENV TAILBACK_LISTEN=0.0.0.0:8321 TAILBACK_STORE=sqlite:/data/tailback.db
VOLUME /data
EXPOSE 8321
# Liveness, not readiness: starting the server again does not repair a database that is away.
# bash speaks TCP by itself, so that the image needs no curl.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/8321 && printf 'GET /healthz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["tailback"]
CMD ["serve"]
