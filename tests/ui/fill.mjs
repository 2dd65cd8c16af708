// A server with every kind of thing: what the screens are looked at with.

/** Fills a server, and returns the ids of what has one. @param {import('./support.mjs').Server} server */
export async function fill(server) {
  /** @type {Record<string, string>} */ const ids = {};
  await settings(server);
  await flow(server, ids);
  await jobs(server, ids);
  await limits(server);
  await batches(server, ids);
  await schedules(server);
  const operation = { filter: { queue: 'mail.send', state: 'scheduled' }, action: 'set_priority', priority: 7 };
  ids.operation = (await server.post('/v1/operations', operation)).id;
  return ids;
}

async function settings(server) {
  const day = 86_400_000;
  await server.put('/v1/queues/mail.send', { retain_done_ms: day, rate: { limit: 50, per_ms: 1000 }, dead_letter: 'mail.dead' });
  await server.put('/v1/queues/etl.load', { retain_done_ms: day });
  await server.put('/v1/queues/video.encode', { max_reserved: 3, lease_ms: 120_000, retain_done_ms: day });
  await server.put('/v1/queues/billing.invoices', { max_jobs: 100, backoff: { kind: 'fixed', base_ms: 5000 } });
}

/** Jobs that go from queue to queue, and workers that have done some. */
async function flow(server, ids) {
  const then = [{ queue: 'etl.transform' }, { queue: 'etl.load', priority: 3 }];
  for (let n = 0; n < 12; n += 1) {
    await server.push(
      'etl.extract',
      { table: `orders_${n}`, rows: 1000 * n },
      { then, headers: { tenant: `acme-${n % 3}`, trace: '00-4bf92f' } },
    );
  }
  for (let n = 0; n < 9; n += 1) await server.work('etl.extract');
  for (let n = 0; n < 6; n += 1) await server.work('etl.transform');
  for (let n = 0; n < 4; n += 1) ids.done = await server.work('etl.load', { result: { rows: 1000 * n, took_s: 1.5 } });
  ids.moving = (await server.get('/v1/queues/etl.load/jobs')).jobs[0].id;
}

/** A job in each state. */
async function jobs(server, ids) {
  const mail = (n) => ({ to: `customer-${n}@example.com`, subject: 'Your order has been shipped', template: 'shipped', price: 1.1 });
  for (let n = 0; n < 30; n += 1) ids.ready = (await server.push('mail.send', mail(n), { priority: n % 4 })).id;
  for (let n = 0; n < 5; n += 1) ids.scheduled = (await server.push('mail.send', mail(n), { delay_ms: 3_600_000 * (n + 1) })).id;
  for (let n = 0; n < 8; n += 1) await server.push('video.encode', { file: `film-${n}.mov`, height: 1080 });
  await server.post('/v1/workers/encoder-1/heartbeat', { slots: 4, version: '1.4.2', timeout_ms: 86_400_000 });
  await server.post('/v1/workers/encoder-2/heartbeat', { slots: 2, version: '1.4.1', timeout_ms: 86_400_000 });
  await server.post('/v1/workers/encoder-3/heartbeat', { slots: 2, version: '1.4.1', timeout_ms: 1000 });
  const held = await server.reserve('video.encode', { count: 2, worker: 'encoder-1' });
  await server.reserve('video.encode', { worker: 'encoder-2' });
  ids.reserved = held[0].id;
  await server.post(`/v1/jobs/${held[0].id}/extend`, { reservation: held[0].reservation, progress: { frames: 4200, of: 9000 } });
  await server.call('DELETE', `/v1/jobs/${held[1].id}`); // its cancellation is requested
  for (let n = 0; n < 4; n += 1) await server.push('billing.invoices', { invoice: n }, { group: 'customer-17' });
  ids.blocked = (await server.get('/v1/queues/billing.invoices/jobs?state=blocked')).jobs[0]?.id;
  for (let n = 0; n < 7; n += 1)
    ids.dead = await server.dead('thumbnails', `timeout after 30 s: GET https://cdn.example.com/${n}`, { image: n });
  for (let n = 0; n < 3; n += 1) await server.dead('thumbnails', 'out of memory', { image: n, size: 'huge' });
  await server.dead('orders', 'the card was declined', { order: 1 }, { group: 'customer-4' });
  for (let n = 0; n < 3; n += 1) await server.push('orders', { order: n + 2 }, { group: 'customer-4' });
  ids.letter = await server.dead('mail.send', 'no such mailbox', mail(99), { priority: 100 });
  await server.push('reports', { month: 11 }, { key: 'monthly-11' });
  await server.post('/v1/queues/reports/pause');
  const bytes = { payload_base64: Buffer.from('\x89PNG\r\n\x1a\n binary \x00\x01\x02').toString('base64'), payload_type: 'image/png' };
  ids.binary = (await server.call('POST', '/v1/queues/thumbnails/jobs', bytes)).id;
}

async function limits(server) {
  await server.put('/v1/semaphores/database', { capacity: 2 });
  await server.put('/v1/semaphores/license', { capacity: 5 });
  for (let n = 0; n < 6; n += 1) await server.push('imports', { file: n }, { semaphores: ['database'] });
  await server.reserve('imports', { count: 6, worker: 'importer-1' });
}

async function batches(server, ids) {
  const jobs = (queue, count) => Array.from({ length: count }, (_, n) => ({ queue, payload: { part: n } }));
  const whole = await server.post('/v1/batches', {
    jobs: jobs('exports', 3),
    on_finished: { queue: 'mail.send', payload: 'done' },
    sealed: true,
  });
  for (let n = 0; n < 3; n += 1) await server.work('exports', { result: { url: `https://files.example.com/${n}.csv` } });
  ids.finished = whole.id;
  ids.batch = (await server.post('/v1/batches', { jobs: jobs('exports', 8), sealed: true })).id;
  for (let n = 0; n < 3; n += 1) await server.work('exports', { result: { rows: n } });
  ids.open = (await server.post('/v1/batches', { jobs: jobs('exports', 2), sealed: false })).id;
}

async function schedules(server) {
  const job = { payload: { report: 'nightly' } };
  await server.put('/v1/schedules/nightly', { cron: '0 3 * * *', time_zone: 'Europe/Berlin', queue: 'reports', job });
  await server.put('/v1/schedules/every-five-minutes', { cron: '*/5 * * * *', time_zone: 'UTC', queue: 'etl.extract', job });
  await server.put('/v1/schedules/weekly', { cron: '30 6 * * 1', time_zone: 'America/New_York', queue: 'reports', job });
  await server.post('/v1/schedules/weekly/pause');
  await server.post('/v1/schedules/nightly/run');
}
