// What a generated TypeScript client does with a server of tomorrow. Its types are checked by tsc.
import createClient from "openapi-fetch";
import type { components, paths } from "./tailback.js";

const check = (is: boolean, what: unknown) => {
  if (!is) throw new Error(JSON.stringify(what));
};
const client = createClient<paths>({ baseUrl: process.argv[2] });
const queue = { path: { queue: "typescript" } };

const body: components["schemas"]["PushRequest"] = { payload: { n: 1 } };
const push = await client.POST("/v1/queues/{queue}/jobs", { params: queue, body });
check(push.data?.state === "resting", push);
const job = await client.GET("/v1/jobs/{id}", { params: { path: { id: push.data!.id } } });
check(job.data?.id === push.data!.id && job.data?.max_attempts === 5, job);
const taken = await client.POST("/v1/queues/{queue}/reserve", { params: queue, body: { count: 1 } });
const { id, reservation } = taken.data!.jobs[0]!;
const done = await client.POST("/v1/jobs/{id}/commit", { params: { path: { id } }, body: { reservation } });
check(done.data?.state === "resting", done);
const lost = await client.POST("/v1/jobs/{id}/commit", { params: { path: { id } }, body: { reservation: "x" } });
check(lost.error?.code === "brand-new" && lost.error.gone === true, lost);
const patch: components["schemas"]["QueueSettingsPatch"] = { max_attempts: 3, rate: null };
const changed = await client.PATCH("/v1/queues/{queue}", { params: queue, body: patch });
check(changed.data?.effective?.max_attempts === 3, changed);
console.log("typescript: ok");
