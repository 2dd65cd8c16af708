FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches live outside the layers, so that a change of ours does not build every dependency again.
# Cargo judges our files by their times, which say nothing here: the cache may be of another checkout with newer ones.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    touch build.rs src/lib.rs src/main.rs && cargo build --profile dist --locked && cp target/dist/tailback /usr/local/bin/tailback

FROM debian:bookworm-slim
# The system's certificates, for a MongoDB behind TLS.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 tailback && install -d -o tailback /data
COPY --from=build /usr/local/bin/tailback /usr/local/bin/tailback
# In a file, so that variables, flags and another file (TAILBACK_CONFIG, or --config) win: with TAILBACK_STORE=mongodb://… the volume stays
# empty. A file of your own says `listen` as well: without it the server listens on loopback. Beyond loopback it starts only with
# a key: TAILBACK_AUTH__ADMIN_KEY_FILE, or TAILBACK_AUTH__REQUIRED=false where every client may do everything.
RUN install -d /etc/tailback && printf 'listen = "0.0.0.0:8321"\nstore = "sqlite:/data/tailback.db"\n' > /etc/tailback/config.toml
ENV TAILBACK_CONFIG=/etc/tailback/config.toml
# By its number: Kubernetes cannot tell whether a name is root's (runAsNonRoot).
USER 10001
VOLUME /data
EXPOSE 8321
# Liveness, not readiness: starting the server again does not repair a database that is away. With TLS, or on another port, give the
# container a health check of its own.
# bash speaks TCP by itself, so that the image needs no curl.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/8321 && printf 'GET /healthz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["tailback"]
CMD ["serve"]
