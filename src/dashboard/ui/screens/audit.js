// The audit: who did what, and what that changed.
import { getText, path, query } from '../api.js';
import { h } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { excerpt } from '../excerpt.js';
import { grid, loaded, orNothing, pager } from '../parts.js';
import { items, member, members, pretty } from '../raw.js';
import { link } from '../router.js';
import { button, empty, jobLink, queueLink, when } from '../widgets.js';

/** The kinds of acts of the audit, which the filter proposes: those of src/job/audit.rs, as a test says. */
export const ACTS = [
  'batch.cancel',
  'job.cancel',
  'job.move',
  'job.redrive',
  'job.release',
  'job.replay',
  'job.retry',
  'job.run',
  'key.create',
  'key.delete',
  'key.rotate',
  'operation.begin',
  'operation.cancel',
  'operation.end',
  'queue.delete',
  'queue.empty',
  'queue.pause',
  'queue.purge',
  'queue.redrive',
  'queue.replay',
  'queue.resume',
  'queue.set',
  'queue.update',
  'schedule.delete',
  'schedule.run',
  'schedule.set',
  'semaphore.delete',
  'semaphore.set',
  'worker.remove',
];

/** Who did what, filtered by what the link says. @param {import('../router.js').Context} context */
export function auditLog(context) {
  let { params } = context;
  const of = (/** @type {string} */ name, /** @type {Record<string, any>} */ props) => {
    const input = h('input', {
      name,
      autocomplete: 'off',
      spellcheck: 'false',
      value: params.get(name) ?? '',
      maxlength: '128',
      ...props,
    });
    input.addEventListener('change', () => context.setParams({ [name]: input.value.trim() || undefined, cursor: undefined }));
    return input;
  };
  const fields = [
    of('what', { list: 'acts', 'aria-label': 'Kind of act', placeholder: 'act: queue.pause', size: '16' }),
    of('queue', { 'aria-label': 'Queue', placeholder: 'queue' }),
    of('by', { 'aria-label': 'Key id', placeholder: 'key id' }),
  ];
  const day = of('day', { type: 'date', 'aria-label': 'Until the end of this day' });
  const clear = button(
    'Clear',
    () => context.setParams({ what: undefined, queue: undefined, by: undefined, day: undefined, cursor: undefined }),
    { class: 'quiet' },
  );
  const table = grid({
    caption: 'Audit',
    columns: [
      { label: 'Time', class: 'num start' },
      'Act',
      'On',
      'By',
      { label: 'Jobs', class: 'num opt' },
      { label: 'Before and after', class: 'change' },
    ],
    key: (one) => one.id,
    make: (one) => ({
      cells: [
        when(one.at),
        h('strong', null, one.what),
        subject(one),
        [
          h('span', { class: 'any', title: one.by }, one.by === '' ? 'anyone' : plain(one.by_name ?? one.by)),
          one.address && h('small', { class: 'block' }, one.address),
        ],
        one.affected === undefined ? '–' : format.count(one.affected),
        change(one),
      ],
    }),
  });
  const body = orNothing(
    table,
    empty(
      'Nothing was done.',
      'Each administrative act has an entry for 90 days: settings, pauses, keys, schedules, operations, and what is done to jobs by hand.',
    ),
  );
  const pages = pager(context);
  const list = loaded(
    context.signal,
    10_000,
    async () => {
      const to = params.get('day') ? new Date(new Date(`${params.get('day')}T00:00:00`).getTime() + 86_400_000).toISOString() : undefined;
      const raw = await getText(
        query(path('audit'), {
          limit: 50,
          what: params.get('what'),
          queue: params.get('queue'),
          by: params.get('by'),
          to,
          cursor: params.get('cursor'),
        }),
        context.signal,
      );
      const answer = JSON.parse(raw);
      const texts = items(member(raw, 'entries') ?? '[]');
      return {
        entries: answer.entries.map((/** @type {any} */ one, /** @type {number} */ n) => ({ ...one, raw: texts[n] })),
        cursor: answer.cursor,
      };
    },
    (answer) => {
      body.set(answer.entries);
      pages.set(answer.cursor);
    },
    body.node,
    pages.node,
  );
  return {
    node: h(
      'div',
      { class: 'stack' },
      h(
        'div',
        { class: 'row' },
        ...fields,
        h('label', { class: 'row' }, 'until', day),
        clear,
        h('datalist', { id: 'acts' }, ...ACTS.map((value) => h('option', { value }))),
      ),
      list.node,
    ),
    update: (/** @type {import('../router.js').Context} */ next) => {
      ({ params } = next);
      for (const input of [...fields, day]) if (document.activeElement !== input) input.value = params.get(input.name) ?? '';
      list.again();
    },
  };
}

/** A link to what an act was done to. @param {any} one */
function subject(one) {
  const part = { queue: 'queues', job: 'jobs', schedule: 'schedules', semaphore: 'limits', worker: 'workers', batch: 'batches' }[
    /** @type {string} */ (one.what).split('.')[0]
  ];
  const on =
    part === 'jobs'
      ? jobLink(one.on)
      : part === 'queues'
        ? queueLink(one.on)
        : part
          ? h('a', { class: 'name', href: link([part, one.on]) }, one.on)
          : h('span', { class: 'any' }, plain(one.on));
  return one.queue && part !== 'queues' ? [on, h('small', { class: 'block' }, 'in ', queueLink(one.queue))] : on;
}

/** What was changed, from the text of the entry. @param {any} one */
function change(one) {
  const [before, after] = ['before', 'after'].map((name) => member(one.raw, name));
  if (before === undefined && after === undefined) return '–';
  const line = before !== undefined && after !== undefined ? difference(before, after) : excerpt(after ?? `${before} → nothing`, 200);
  const shown = (/** @type {string} */ title, /** @type {string | undefined} */ raw) =>
    raw !== undefined && h('div', null, h('small', null, title), h('pre', { class: 'any', tabindex: '0' }, plainLines(pretty(raw))));
  return h(
    'details',
    null,
    h('summary', null, h('code', { class: 'any' }, line)),
    h('div', { class: 'halves' }, shown('Before', before), shown('After', after)),
  );
}

/** The members that are not the same before and after, as they are written. @param {string} before @param {string} after */
function difference(before, after) {
  if (!before.startsWith('{') || !after.startsWith('{')) return `${excerpt(before, 80)} → ${excerpt(after, 80)}`;
  const [old, next] = [new Map(members(before)), new Map(members(after))];
  const changed = [...new Set([...old.keys(), ...next.keys()])].filter((name) => old.get(name) !== next.get(name));
  return changed.length === 0
    ? 'unchanged'
    : changed
        .map((name) => `${plain(name)}: ${excerpt(old.get(name) ?? 'none', 60)} → ${excerpt(next.get(name) ?? 'none', 60)}`)
        .join(', ');
}

/** @param {string} lines */
function plainLines(lines) {
  return lines.split('\n').map(plain).join('\n');
}
