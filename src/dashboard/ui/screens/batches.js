// Batches: how far they are, what became of their jobs, and what follows them.
import { curl, del, get, getText, path, post, query } from '../api.js';
import { registerButtons } from '../commands.js';
import { confirm } from '../dialog.js';
import { attr, h, show, svg, swap, text } from '../dom.js';
import * as format from '../format.js';
import { jobList } from '../jobs.js';
import { excerpt } from '../excerpt.js';
import { choice, crumb, grid, loaded, orNothing, page, pager, shellLine } from '../parts.js';
import { items, member } from '../raw.js';
import { link } from '../router.js';
import { asSeen, may } from '../session.js';
import { badge, button, card, copy, empty, facts, jobLink, queueLink, setWhen, toast, when } from '../widgets.js';

/** @typedef {import('../api.js').Api<'Batch'>} Batch */
/** @typedef {import('../api.js').Api<'BatchResult'>} BatchResult */
/** @typedef {import('../api.js').Api<'BatchesPage'>} BatchesPage */

/** The parts of a batch, with the colours of the states. @type {['done' | 'dead' | 'cancelled' | 'pending', string][]} */
const PARTS = [
  ['done', 'good'],
  ['dead', 'dead'],
  ['cancelled', 'done'],
  ['pending', 'pending'],
];
const at = (/** @type {string[]} */ ...parts) => path('batches', ...parts);

/** @param {Batch} one */
const size = (one) => one.pending + one.done + one.dead + one.cancelled;

/** A bar of all parts of a batch. @param {string} label */
function progress(label) {
  const rects = PARTS.map(([name, kind]) => svg('rect', { class: kind, height: '8', 'data-part': name }));
  const node = svg(
    'svg',
    { class: 'parts', viewBox: '0 0 1000 8', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    ...rects,
  );
  return {
    node,
    set: (/** @type {Batch} */ one) => {
      let x = 0;
      PARTS.forEach(([name], n) => {
        const width = size(one) === 0 ? 0 : (1000 * one[name]) / size(one);
        attr(rects[n], 'x', x);
        attr(rects[n], 'width', width);
        x += width;
      });
      attr(node, 'aria-label', `${label}: ${PARTS.map(([name]) => `${one[name]} ${name}`).join(', ')}`);
    },
  };
}

/** @param {Batch} one */
function stateOf(one) {
  if (one.finished_at) return one.dead > 0 ? badge('finished', 'warn') : badge('finished', 'good');
  return one.sealed ? badge('running', 'ready') : badge('open', 'scheduled');
}

/** @param {Batch} one */
function share(one) {
  return format.percent(size(one) - one.pending, size(one));
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function batches(context) {
  const { signal } = context;
  let { params } = context;
  const states = choice(context, 'state', [
    ['', 'All'],
    ['open', 'Open'],
    ['sealed', 'Running'],
    ['finished', 'Finished'],
  ]);
  const table = grid({
    caption: 'Batches',
    columns: [
      'Batch',
      { label: 'State', class: '' },
      { label: 'Progress', class: 'wide' },
      { label: 'Done', class: 'num' },
      { label: 'Dead', class: 'num' },
      { label: 'Pending', class: 'num' },
      { label: 'Created', class: 'num opt' },
      { label: 'Finished', class: 'num opt' },
    ],
    key: (/** @type {Batch} */ one) => one.id,
    href: (one) => link(['batches', one.id]),
    make: (one) => {
      const bar = progress(`Batch ${one.id}`);
      const [state, done, dead, pending] = [1, 2, 3, 4].map(() => h('span'));
      const finished = when(undefined);
      let shown = '';
      return {
        cells: [
          h('a', { class: 'mono name', href: link(['batches', one.id]) }, one.id),
          state,
          [bar.node],
          done,
          dead,
          pending,
          when(one.created_at),
          finished,
        ],
        set: (next) => {
          const of = `${next.sealed} ${next.finished_at} ${next.dead > 0}`;
          if (of !== shown) swap(state, stateOf(next));
          shown = of;
          bar.set(next);
          text(done, format.count(next.done));
          text(dead, format.count(next.dead));
          attr(dead, 'class', next.dead > 0 ? 'bad strong' : null);
          text(pending, format.count(next.pending));
          setWhen(finished, next.finished_at);
        },
      };
    },
  });
  const none = empty(
    asSeen('There are no such batches.'),
    `A batch is jobs that belong together, with a job that follows when the last of them has finished${may('push') ? ': ' : '.'}`,
    may('push') &&
      shellLine(
        curl(
          'POST',
          '/v1/batches',
          '{"jobs": [{"queue": "exports", "payload": 1}, {"queue": "exports", "payload": 2}], "on_finished": {"queue": "mail", "payload": "done"}}',
        ),
      ),
  );
  const body = orNothing(table, none);
  const pages = pager(context);
  const list = loaded(
    signal,
    2500,
    /** @returns {Promise<BatchesPage>} */ () =>
      get(query(at(), { state: params.get('state'), limit: 100, cursor: params.get('cursor') }), signal),
    (answer) => {
      body.set(answer.batches);
      pages.set(answer.cursor);
    },
    h('section', { class: 'card', 'aria-label': 'Batches' }, body.node),
    pages.node,
  );
  states.set(params);
  return {
    title: 'Batches',
    node: page('Batches', [states.node], list.node),
    update: (next) => {
      params = next.params;
      states.set(params);
      list.again();
    },
  };
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function batch(context) {
  const { signal } = context;
  const id = context.parts[1];
  const bar = progress('Progress');
  const figures = h('div', { class: 'cards figures' });
  const rows = PARTS.map(([name, kind]) => {
    const n = h('strong');
    figures.append(h('div', null, h('small', null, h('i', { class: `dot ${kind}` }), ` ${name}`), n));
    return { name, n };
  });
  const done = h('strong');
  const about = h('div');
  let shown = '';
  /** @type {Batch} */ let now;
  const one = loaded(
    signal,
    1500,
    /** @returns {Promise<Batch>} */ () => get(at(id), signal),
    (answer) => {
      now = answer;
      bar.set(now);
      text(done, `${share(now)} of ${format.plural(size(now), 'job')}`);
      for (const { name, n } of rows) text(n, format.count(now[name]));
      show(seal, may('push') && !now.sealed);
      show(cancel, may('operate') && !now.finished_at);
      const of = JSON.stringify([now.sealed, now.finished_at, now.purge_at, now.callback]);
      if (of !== shown) swap(about, describe(now));
      // Of a batch that has finished the results matter, and its jobs are mostly not kept.
      if (shown === '' && now.finished_at) members.node.before(returned);
      shown = of;
    },
    h(
      'section',
      { class: 'card stack', 'aria-label': 'Progress' },
      h('div', { class: 'head' }, h('h2', null, 'Progress'), done),
      bar.node,
      figures,
    ),
    about,
  );
  const seal = button('Seal', () =>
    confirm({
      title: 'Seal the batch?',
      action: 'Seal it',
      text: 'It accepts no more jobs from then on, and finishes with the last of those that it has.',
      submit: async () => {
        await post(at(id, 'seal'));
        toast('Sealed');
        one.again();
      },
    }),
  );
  const cancel = button(
    'Cancel the batch…',
    () =>
      confirm({
        title: 'Cancel the batch?',
        word: id.slice(-6),
        action: 'Cancel the batch',
        text:
          `${format.plural(now.pending, 'unfinished job')}: those that no worker has are deleted. For reserved ones cancellation is requested; the batch finishes when their workers have settled them.` +
          `${now.callback ? ' The callback is pushed then.' : ''}`,
        submit: async () => {
          const { affected } = await del(at(id));
          toast(`${format.plural(affected, 'job was', 'jobs were')} deleted`);
          one.again();
        },
      }),
    { class: 'danger' },
  );
  show(seal, false);
  show(cancel, false);
  const members = jobList(context, { fixed: { batch: id } });
  const same = button('Copy as curl', () => copy(curl('GET', at(id))), { class: 'quiet' });
  const returned = card('Results', results(signal, id));
  const actions = h('div', { class: 'row' }, same, seal, cancel);
  one.acts([same, seal, cancel, members.node, returned]);
  registerButtons(signal, actions, `batch ${id}`);
  return {
    title: `Batch ${id}`,
    node: page(crumb('batches', 'Batches', id), [actions], one.node, members.node, returned),
    update: (next) => members.update(next),
  };
}

/** @param {Batch} one */
function describe(one) {
  const callback =
    one.callback === undefined
      ? 'none'
      : h(
          'span',
          null,
          one.finished_at ? jobLink(one.callback) : h('span', { class: 'mono' }, one.callback),
          one.callback_queue && ' in ',
          one.callback_queue && queueLink(one.callback_queue),
          !one.finished_at && h('span', { class: 'muted' }, ' – pushed once the batch finishes'),
        );
  return card(
    'Batch',
    facts([
      ['State', h('span', null, stateOf(one), one.sealed ? '' : ' It accepts further jobs until it is sealed.')],
      ['Created', when(one.created_at)],
      ['Finished', one.finished_at && when(one.finished_at)],
      ['Callback', callback],
      ['Will be deleted, with its results', one.purge_at && when(one.purge_at)],
    ]),
  );
}

/** The results, as far as one pages. @param {AbortSignal} signal @param {string} id */
function results(signal, id) {
  const table = grid({
    caption: 'Results',
    columns: ['Job', 'Queue', { label: 'State', class: '' }, { label: 'Result', class: 'wide' }, { label: 'Ended', class: 'num' }],
    key: (/** @type {BatchResult & {raw?: string}} */ one) => one.id,
    href: (one) => link(['jobs', one.id]),
    make: (one) => ({
      cells: [
        jobLink(one.id),
        queueLink(one.queue),
        badge(one.state, one.state === 'done' ? 'good' : one.state),
        h('code', { class: 'any' }, excerpt(one.raw ?? '–')),
        when(one.finished_at),
      ],
    }),
  });
  const body = orNothing(
    table,
    empty('There are no results yet.', 'What workers commit as “result” is here for as long as the batch is kept.'),
  );
  /** @type {any[]} */ let older = [];
  // The cursor of the page that is read again.
  /** @type {string | undefined} */ let from;
  /** @type {string | undefined} */ let next;
  /** @type {any[]} */ let last = [];
  const more = button('More', () => {
    older = [...older, ...last];
    last = [];
    from = next;
    return list.again();
  });
  const list = loaded(
    signal,
    4000,
    async () => {
      const raw = await getText(query(at(id, 'results'), { limit: 50, cursor: from }), signal);
      const answer = JSON.parse(raw);
      const texts = items(member(raw, 'results') ?? '[]');
      return {
        results: answer.results.map((/** @type {BatchResult} */ one, /** @type {number} */ n) => ({
          ...one,
          raw: member(texts[n], 'result'),
        })),
        cursor: answer.cursor,
      };
    },
    (answer) => {
      last = answer.results;
      next = answer.cursor;
      body.set([...older, ...last]);
      show(more, next !== undefined);
    },
    body.node,
    more,
  );
  return list.node;
}
