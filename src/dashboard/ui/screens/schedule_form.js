// The form of a schedule: the payload is edited as it is written.
import { answerOf, get, path, Problem, send } from '../api.js';
import { inWords } from '../cron.js';
import { ask, field } from '../dialog.js';
import { h, text } from '../dom.js';
import * as format from '../format.js';
import * as live from '../live.js';
import { member, members, pretty, wrong } from '../raw.js';
import { toast } from '../widgets.js';
import { inZone, zones } from '../zones.js';

/** @param {string} name @param {[string, string][]} choices @param {string} value */
function select(name, choices, value) {
  return h('select', { name }, ...choices.map(([of, label]) => h('option', { value: of, selected: of === value }, label)));
}

/** The fields of the job beside the payload, as they are written. @param {string} job */
function others(job) {
  const rest = members(job).filter(([name, value]) => name !== 'payload' && !(name === 'priority' && value === '0'));
  return rest.length === 0 ? '' : pretty(`{${rest.map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(',')}}`);
}

/**
 * Asks for a rule and stores it. Resolves to what is stored, or to undefined.
 * @param {any} [rule] the rule as it is, to be changed @param {string} [raw] the same as its text
 */
export function editSchedule(rule, raw) {
  const job = raw === undefined ? undefined : member(raw, 'job');
  const isBinary = job !== undefined && member(job, 'payload_base64') !== undefined;
  const stored = job === undefined || isBinary ? '' : pretty(member(job, 'payload') ?? 'null');
  const name = h('input', {
    name: 'name',
    required: true,
    maxlength: '128',
    pattern: '[A-Za-z0-9][A-Za-z0-9._:\\-]*',
    autocomplete: 'off',
    spellcheck: 'false',
    autofocus: true,
    title: '1 to 128 of A-Z a-z 0-9 . _ : -, the first a letter or a digit',
  });
  const cron = h('input', {
    name: 'cron',
    class: 'mono',
    required: true,
    maxlength: '256',
    autocomplete: 'off',
    spellcheck: 'false',
    value: rule?.cron ?? '0 3 * * *',
  });
  const zone = h('input', {
    name: 'time_zone',
    list: 'zones',
    maxlength: '128',
    autocomplete: 'off',
    spellcheck: 'false',
    value: rule?.time_zone ?? format.zone,
  });
  const queue = h('input', {
    name: 'queue',
    list: 'queues',
    required: true,
    maxlength: '128',
    autocomplete: 'off',
    spellcheck: 'false',
    value: rule?.queue ?? '',
  });
  const payload = h('textarea', {
    name: 'payload',
    spellcheck: 'false',
    value: stored,
    placeholder: isBinary ? 'The payload is binary: it is among the fields below.' : 'null',
  });
  const rest = h('textarea', {
    name: 'job',
    class: 'short',
    spellcheck: 'false',
    value: job === undefined ? '' : others(job),
    placeholder: '{"priority": 5, "max_attempts": 3}',
  });
  const overlap = select(
    'overlap',
    [
      ['allow', 'push all the same (allow)'],
      ['skip', 'push nothing (skip)'],
    ],
    rule?.overlap ?? 'allow',
  );
  const misfire = select(
    'misfire',
    [
      ['once', 'one job for all of them (once)'],
      ['skip', 'leave them out (skip)'],
    ],
    rule?.misfire ?? 'once',
  );
  const hint = h('small', { role: 'status' });
  const judge = () =>
    text(
      hint,
      `${inWords(cron.value) ?? 'minute, hour, day of the month, month, day of the week; or six fields, seconds first'} · ` +
        `it is ${inZone(new Date(format.now()).toISOString(), zone.value || 'UTC').time} there now`,
    );
  cron.addEventListener('input', judge);
  zone.addEventListener('input', judge);
  judge();
  let version = rule?.version;
  let paused = rule?.paused ?? false;
  const submit = async () => {
    const body = compose({ cron, zone, queue, payload, rest, overlap, misfire, paused });
    const of = rule?.name ?? name.value;
    if (rule === undefined) await mustBeNew(of);
    const headers = version === undefined ? {} : { 'if-match': `"${version}"` };
    try {
      const kept = await answerOf('PUT', path('schedules', of), { raw: body, headers: /** @type {any} */ (headers) });
      const first = kept.next_runs?.[0];
      toast(`${of} is stored${first ? `; next ${format.ago(first)}, ${inZone(first, kept.time_zone).time}` : ''}`);
      return kept;
    } catch (/** @type {any} */ error) {
      if (error.status !== 412) throw error;
      const now = await storedNow(of);
      const other = changed(rule, now);
      version = now?.version;
      // Whether it is paused is not in this form: it stays as they left it.
      paused = now?.paused ?? paused;
      throw new Problem(412, {
        detail: `Somebody has ${other} since you opened this. Save again to replace what they stored, or cancel to look at it.`,
      });
    }
  };
  const list = (/** @type {string} */ id, /** @type {Iterable<string>} */ values) =>
    h('datalist', { id }, ...[...values].slice(0, 600).map((value) => h('option', { value })));
  return ask({
    title: rule === undefined ? 'New schedule' : `Edit ${rule.name}`,
    action: 'Save',
    wide: true,
    submit,
    body: [
      rule === undefined && field('Name', name),
      h('div', { class: 'halves' }, field('Cron rule', cron), field('Time zone', zone)),
      hint,
      field('Queue', queue),
      field('Payload', payload, 'JSON; numbers and the order of keys stay as they are written here.'),
      field(
        'Further fields of the job',
        rest,
        'A JSON object, as in a push: priority, delay_ms, max_attempts, headers, group, semaphores, then. Empty: none.',
      ),
      h('div', { class: 'halves' }, field('If the last job is unfinished', overlap), field('Times that no server ran', misfire)),
      list('zones', zones()),
      list('queues', live.queues.keys()),
    ].filter(Boolean),
  });
}

/** The schedule as it is stored now; undefined where it is gone. @param {string} name @returns {Promise<any>} */
async function storedNow(name) {
  try {
    return await get(path('schedules', name));
  } catch (/** @type {any} */ error) {
    if (error.status === 404) return undefined;
    throw error;
  }
}

/** What somebody has done to a schedule, in words. @param {any} before @param {any} now */
function changed(before, now) {
  if (now === undefined) return 'deleted this schedule';
  const fields = ['cron', 'time_zone', 'queue', 'job', 'overlap', 'misfire'];
  const other = fields.filter((name) => JSON.stringify(now[name]) !== JSON.stringify(before?.[name]));
  const pause = now.paused === before?.paused ? '' : now.paused ? 'paused it' : 'resumed it';
  const change = other.length > 0 ? `changed this schedule (${other.join(', ')})` : '';
  return (
    [change, pause && (change ? pause : pause.replace('it', 'this schedule'))].filter(Boolean).join(' and ') || 'changed this schedule'
  );
}

/** A new schedule must not replace another one. @param {string} name */
async function mustBeNew(name) {
  try {
    await send('GET', path('schedules', name));
  } catch (/** @type {any} */ error) {
    if (error.status === 404) return;
    throw error;
  }
  throw new Problem(409, {
    detail: `There is a schedule of the name ${name} already. Choose another name, or edit that one.`,
    pointer: '/name',
  });
}

/** The body of the request, with the texts of the JSON fields as they were typed. @param {Record<string, any>} form */
function compose({ cron, zone, queue, payload, rest, overlap, misfire, paused }) {
  const invalid = (/** @type {string} */ what, /** @type {string} */ why, /** @type {string} */ pointer) =>
    new Problem(422, { detail: `${what}: ${why}`, pointer });
  const parts = [];
  const given = payload.value.trim();
  if (given !== '') {
    const why = wrong(given);
    if (why !== undefined) throw invalid('The payload', why, '/payload');
    parts.push(`"payload":${given}`);
  }
  const more = rest.value.trim();
  if (more !== '') {
    const why = wrong(more) ?? (more.startsWith('{') ? undefined : 'it must be a JSON object');
    if (why !== undefined) throw invalid('The further fields', why, '/job');
    for (const [name, value] of members(more)) {
      if (name === 'payload' && given !== '') throw invalid('The further fields', 'the payload has a field of its own', '/job');
      parts.push(`${JSON.stringify(name)}:${value}`);
    }
  }
  const plain = {
    cron: cron.value.trim(),
    time_zone: zone.value.trim() || 'UTC',
    queue: queue.value.trim(),
    overlap: overlap.value,
    misfire: misfire.value,
    paused,
  };
  return `${JSON.stringify(plain).slice(0, -1)},"job":{${parts.join(',')}}}`;
}
