"""What a generated Python client does with a server of tomorrow."""
import sys

from tailback_client import Client
from tailback_client.api.jobs import get_job, push_job
from tailback_client.api.queues import update_queue
from tailback_client.api.work import commit_job, reserve_jobs
from tailback_client.models import (
    CommitRequest,
    Problem,
    PushRequest,
    QueueSettingsPatch,
    ReserveRequest,
)

client = Client(base_url=sys.argv[1])
push = push_job.sync(queue="python", client=client, body=PushRequest(payload={"n": 1}))
assert push.state == "resting", push
assert push.to_dict()["tomorrow"] == {"x": 1}, push
job = get_job.sync(id=push.id, client=client)
assert (job.id, job.payload, job.state) == (push.id, {"n": 1}, "resting"), job
reserved = reserve_jobs.sync(queue="python", client=client, body=ReserveRequest(count=1)).jobs[0]
done = commit_job.sync(id=reserved.id, client=client, body=CommitRequest(reservation=reserved.reservation))
assert done.state == "resting", done
lost = commit_job.sync(id=reserved.id, client=client, body=CommitRequest(reservation="x"))
assert isinstance(lost, Problem) and lost.code == "brand-new", lost
changed = update_queue.sync(queue="python", client=client, body=QueueSettingsPatch(max_attempts=3, rate=None))
assert changed.effective.max_attempts == 3, changed
assert QueueSettingsPatch(max_attempts=3).to_dict() == {"max_attempts": 3}, "a generated body says only what was set"
print("python: ok")
