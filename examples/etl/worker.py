"""A worker of one stage: reserve, work, settle, in a loop. It may be killed at any time.

    worker.py URL PARENT NAME transform QUEUE NEXT_QUEUE
    worker.py URL PARENT NAME load QUEUE FILE

PARENT is the process id of the run that starts it; it exits when that parent has exited.
"""
import json
import os
import sys
import time

sys.dont_write_bytecode = True  # an example leaves no files in the checkout
from records import parse  # noqa: E402
from tailback import Refused, Tailback  # noqa: E402

WORK_S = 0.01  # simulates the real work, so that kills interrupt it


def transform(tailback, job, next_queue):
    record = parse(job["payload"]["raw"])
    time.sleep(WORK_S)
    tailback.call("POST", f"/v1/jobs/{job['id']}/move",
                  {"reservation": job["reservation"], "queue": next_queue, "payload": record})


def load(tailback, job, path):
    entry = {"id": job["id"], "attempt": job["attempt"], "record": job["payload"]}
    # A kill can truncate a write. The leading newline separates this line from such a partial one.
    line = b"\n" + json.dumps(entry).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(file, line) != len(line):
            raise OSError(f"{path}: a short write; is the disk full?")
    finally:
        os.close(file)
    time.sleep(WORK_S)  # if killed here, the job is retried and its line written twice
    tailback.call("POST", f"/v1/jobs/{job['id']}/commit", {"reservation": job["reservation"]})


def main():
    url, parent, name, stage, queue, target = sys.argv[1:]
    tailback = Tailback(url)
    work = {"transform": transform, "load": load}[stage]
    while os.getppid() == int(parent):
        # With a short lease a killed worker's jobs are retried soon; a few at a time are done well within it.
        ask = {"count": 8, "wait_ms": 1000, "lease_ms": 2000, "worker": name}
        for job in tailback.call("POST", f"/v1/queues/{queue}/reserve", ask)["jobs"]:
            try:
                work(tailback, job, target)
            except Refused as refusal:
                if refusal.code != "reservation-lost":
                    raise
                # The lease expired and another worker has the job: nothing to do.


if __name__ == "__main__":
    main()
