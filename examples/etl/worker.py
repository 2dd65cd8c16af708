"""One worker of one stage: reserve, work, settle, for ever. It is meant to be killed at any moment.

    worker.py URL PARENT NAME transform QUEUE NEXT_QUEUE
    worker.py URL PARENT NAME load QUEUE FILE

PARENT is the process id of the run that starts it; without that parent it ends.
"""
import json
import os
import sys
import time

sys.dont_write_bytecode = True  # an example leaves no files in the checkout
from records import parse  # noqa: E402
from tailback import Refused, Tailback  # noqa: E402

WORK_S = 0.01  # stands for the real work, and leaves a kill something to hit


def transform(tailback, job, next_queue):
    record = parse(job["payload"]["raw"])
    time.sleep(WORK_S)
    tailback.call("POST", f"/v1/jobs/{job['id']}/move",
                  {"reservation": job["reservation"], "queue": next_queue, "payload": record})


def load(tailback, job, path):
    entry = {"id": job["id"], "attempt": job["attempt"], "record": job["payload"]}
    # A kill can tear a write apart. The newline in front keeps such a stump from spoiling the next line.
    line = b"\n" + json.dumps(entry).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(file, line) != len(line):
            raise OSError(f"{path}: a short write; is the disk full?")
    finally:
        os.close(file)
    time.sleep(WORK_S)  # killed here, the job comes again and its line is there twice
    tailback.call("POST", f"/v1/jobs/{job['id']}/commit", {"reservation": job["reservation"]})


def main():
    url, parent, name, stage, queue, target = sys.argv[1:]
    tailback = Tailback(url)
    work = {"transform": transform, "load": load}[stage]
    while os.getppid() == int(parent):
        # The short lease brings a killed worker's jobs back soon; a few at a time are done well within it.
        ask = {"count": 8, "wait_ms": 1000, "lease_ms": 2000, "worker": name}
        for job in tailback.call("POST", f"/v1/queues/{queue}/reserve", ask)["jobs"]:
            try:
                work(tailback, job, target)
            except Refused as refusal:
                if refusal.code != "reservation-lost":
                    raise
                # We were too slow and somebody else has it now: nothing to repair.


if __name__ == "__main__":
    main()
