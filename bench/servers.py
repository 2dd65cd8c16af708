"""What the benchmarks share: servers that are started and stopped, MongoDB, and the CPU time of both."""
import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
START_S, STOP_S = 60, 30
# All child processes inherit this variable, also detached ones, so that leftover processes are found by it.
MARK = "TAILBACK_BENCH_MARK"
PLACE = "TAILBACK_BENCH_PLACE"


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Failed(Exception):
    pass


class Jobs(int):
    """A number of jobs, scaled by --scale."""


class Server:
    """A server, its memory use and its process."""

    def __init__(self, binary, store, place, settings=None):
        # The caller's settings must not affect the measurement.
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("TAILBACK_") or name == MARK}
        env.update(settings or {})
        self.out, self.log = (pathlib.Path(place, f"server-{secrets.token_hex(4)}") for _ in range(2))
        with self.out.open("w") as out, self.log.open("w") as log:
            self.process = subprocess.Popen([binary, "serve", "--listen", "127.0.0.1:0", "--store", store], env=env,
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        self.url = self.address()

    def address(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.match(r"listening on (https?://\S+)\n", self.out.read_text())
            if found:
                return found[1]
            time.sleep(0.05)
        self.stop()
        raise Failed(f"the server does not serve: {self.log.read_text(errors='replace')[-2000:]}")

    def mb(self, field):
        """Returns VmRSS (current) or VmHWM (peak), in MB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return round(int(re.search(rf"^{field}:\s+(\d+) kB", status, re.M)[1]) / 1024)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    """Runs measurements, each against fresh servers on a fresh database."""

    def __init__(self, binary, place, mongodb, scale=1):
        self.binary, self.place, self.mongodb, self.scale = binary, place, mongodb, scale

    def store(self, kind, folder):
        if kind == "SQLite":
            return f"sqlite:{folder}/bench.db"
        return urllib.parse.urlsplit(self.mongodb)._replace(path=f"/tailback_bench_{secrets.token_hex(4)}").geturl()

    @contextlib.contextmanager
    def servers(self, kind, count=1, binary=None, settings=None):
        with tempfile.TemporaryDirectory(dir=self.place) as folder, contextlib.ExitStack() as stack:
            store, servers = self.store(kind, folder), []
            self.databases = mongods() if kind == "MongoDB" else []
            for _ in range(count):
                servers.append(Server(binary or self.binary, store, folder, settings))
                stack.callback(servers[-1].stop)
            yield servers

    def measure(self, servers, scenario, *options, settings=None):
        """Returns the report of one run, with the first server's memory: idle, afterwards, and peak."""
        time.sleep(1)  # idle
        idle = servers[0].mb("VmRSS")
        options = [str(max(round(option * self.scale), 1000)) if isinstance(option, Jobs) else str(option)
                   for option in options]
        command = [self.binary, "bench", "--json", "--scenario", scenario, *options]
        for server in servers:
            command += ["--url", server.url, "--server-pid", str(server.process.pid)]
        for pid in self.databases:
            command += ["--database-pid", str(pid)]
        say(f"{scenario} {' '.join(options)}")
        # Where the environment names a server, its key is for that one only.
        own = {name: value for name, value in os.environ.items() if name not in ("TAILBACK_URL", "TAILBACK_PROFILE")}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=dict(own, **(settings or {})))
        if done.returncode:
            raise Failed(f"`tailback bench --scenario {scenario}` ended with {done.returncode}")
        report = json.loads(done.stdout)
        report["memory"] = [idle, servers[0].mb("VmRSS"), servers[0].mb("VmHWM")]
        return report

    def run(self, kind, scenario, *options, servers=1):
        with self.servers(kind, servers) as running:
            return self.measure(running, scenario, *options)


def number(value):
    return f"{value:,.0f}"


def table(head, rows):
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


# --- processes ----------------------------------------------------------------------------------------------------

def marked(mark):
    """Returns the processes that carry the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def mongods():
    """Returns the processes of the MongoDB that was started for this run."""
    def is_mongod(pid):
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("mongod")
        return False
    return [pid for pid in marked(os.environ.get(MARK, "")) if is_mongod(pid)]


def clear_up(mark):
    """Stops all processes that carry the mark: SIGTERM, then SIGKILL after a timeout."""
    for signal_number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 5)):
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_number)
        deadline = time.monotonic() + patience_s
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)


def stop_on_signals():
    """Makes the first signal exit through every `finally`, and ignores later ones."""
    def stop(number, _):
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def build(source=ROOT, target=TARGET):
    """Builds what is shipped, and returns it."""
    env = dict(os.environ, CARGO_TARGET_DIR=str(target))
    subprocess.run(["cargo", "build", "--profile", "dist", "--locked"], cwd=source, check=True, env=env)
    return target / "dist" / "tailback"


def with_mongodb(script, data, measure, prepare):
    """Calls `prepare`, and then this script again with a MongoDB, where it calls `measure` with a directory for data."""
    stop_on_signals()
    if PLACE in os.environ:
        return measure(pathlib.Path(os.environ[PLACE]))
    prepare()
    data.mkdir(parents=True, exist_ok=True)
    place = tempfile.mkdtemp(prefix="bench-", dir=data)
    given = "given" if os.environ.get("TAILBACK_TEST_MONGODB_URI") else "own"
    mark = f"{secrets.token_hex(8)}-{given}"
    # In a new session, so that Ctrl-C reaches only this process, which then stops everything in order.
    command = [ROOT / "scripts" / "mongod", "run", "--dir", f"{place}/mongod", "--", script, *sys.argv[1:]]
    running = subprocess.Popen(command, env=dict(os.environ, **{MARK: mark, PLACE: place}), start_new_session=True)
    try:
        return running.wait()
    finally:
        if running.poll() is None:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(2 * STOP_S)
        clear_up(mark)
        shutil.rmtree(place, ignore_errors=True)
