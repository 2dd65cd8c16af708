// The dead letters of all queues by what went wrong, and what to do about all of one kind.

import { get, query } from '../api.js';
import { act, mayDo } from '../acts.js';
import { attr, each, h, show, svg, swap, text } from '../dom.js';
import * as format from '../format.js';
import { shown } from '../excerpt.js';
import { lazy, openWith } from '../lazy.js';
import { letterCard } from '../lettercard.js';
import * as live from '../live.js';
import { every, link } from '../router.js';
import { button, empty, failure, jobLink, queueLink, setWhen, toast, when } from '../widgets.js';

/** @typedef {{error: string, count: number, first_seen?: string, last_seen?: string, queues: string[], samples: string[], isUncounted?: boolean}} Group `isUncounted`: it is not
 *   among those counted the last time, which were not all: what is said of it is older */

const loadAsk = lazy(() => import('../bulkask.js'));
const loadOperation = lazy(() => import('../operation.js'));

/** What can be done to all jobs of a group. */
const ACTIONS = ['retry', 'redrive', 'move', 'replay', 'delete'];

/** The conditions that a group of errors is, in the link of the jobs and in an operation. @param {Group} group @param {Record<string, string>} where */
function conditionsOf(group, where) {
  return [
    ...Object.entries(where)
      .filter(([, is]) => is !== '')
      .map(([name, value]) => ({ name, value })),
    { name: 'state', value: 'dead' },
    group.error === '' ? { name: 'no_error', value: 'true' } : { name: 'error_group', value: group.error },
  ];
}

/**
 * A group of the dead. @param {() => Record<string, string>} where @param {(operation: any) => any} begun @param {() => number} most the largest count
 */
function groupRow(where, begun, most) {
  return (/** @type {Group} */ first) => {
    const error = h('a', { class: 'pre bad dead-error' }, ...(first.error === '' ? ['Without an error'] : shown(first.error, true)));
    const count = h('span', { class: 'strong num dead-count' });
    const share = svg('rect', { height: '4', width: '0', class: 'bar-dead' });
    const bar = svg('svg', { class: 'dead-bar', viewBox: '0 0 100 4', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, share);
    const [firstSeen, lastSeen] = [when(undefined), when(undefined)];
    const queues = h('span', { class: 'row dead-queues' });
    const samples = h('span', { class: 'row' });
    /** @type {Group} */ let now = first;
    const buttons = ACTIONS.filter((name) => mayDo(act(name))).map((name) =>
      button(
        act(name).label,
        async () => {
          const meant = { conditions: conditionsOf(now, where()), fixed: {} };
          const operation = await openWith(loadAsk, ({ askOperation }) => askOperation(name, meant));
          if (operation) await begun(operation);
        },
        { class: name === 'delete' ? 'danger' : '', title: act(name).saysMany },
      ),
    );
    const gone = h('span', { class: 'badge good', hidden: true }, 'none left');
    const old = h(
      'span',
      { class: 'badge warn', hidden: true, title: 'Not all were counted this time: there may be more or fewer by now' },
      'not among those counted',
    );
    const jobs = h('a', { class: 'button' });
    const some = h('summary');
    const node = h(
      'tr',
      { 'data-row': true, tabindex: '-1' },
      h('td', { class: 'num' }, count, bar),
      h(
        'td',
        null,
        error,
        h('div', { class: 'row sub' }, gone, old, queues),
        h('div', { class: 'row dead-acts' }, jobs, ...buttons),
        h('details', { class: 'sub' }, some, samples),
      ),
      h(
        'td',
        { class: 'dead-times' },
        h('div', null, h('span', { class: 'muted' }, 'last '), lastSeen),
        h('div', { class: 'muted' }, 'first ', firstSeen),
      ),
    );
    let inQueues = '';
    return {
      node,
      set: (/** @type {Group} */ group) => {
        now = group;
        text(count, format.count(group.count));
        attr(count, 'title', String(group.count));
        attr(share, 'width', Math.max(1, (100 * group.count) / Math.max(1, most())).toFixed(1));
        setWhen(firstSeen, group.first_seen);
        setWhen(lastSeen, group.last_seen);
        show(gone, group.count === 0);
        show(old, group.isUncounted === true);
        const to = link(['jobs'], Object.fromEntries(conditionsOf(group, where()).map(({ name, value }) => [name, value])));
        attr(error, 'href', to);
        attr(jobs, 'href', to);
        const isOne = group.count === 1;
        text(jobs, isOne ? 'Show it' : 'Show them');
        text(some, group.samples.length !== group.count ? 'Some of them' : isOne ? 'Its id' : 'Their ids');
        for (const one of buttons) show(one, group.count > 0);
        const key = JSON.stringify([group.queues, group.samples]);
        if (key === inQueues) return;
        inQueues = key;
        swap(
          queues,
          ...group.queues.map((queue) => queueLink(queue)),
          group.queues.length === 10 && h('span', { class: 'muted' }, 'and perhaps others'),
        );
        swap(samples, ...group.samples.map((id) => jobLink(id)));
      },
    };
  };
}

/** The field that chooses a queue, or those that begin so. @param {(where: Record<string, string | undefined>) => void} change */
function chooser(change) {
  const list = h('datalist', { id: 'dead-queues' });
  const input = h('input', {
    type: 'search',
    list: 'dead-queues',
    placeholder: 'All queues',
    'aria-label': 'Queue, or the beginning of names with *',
    autocomplete: 'off',
    spellcheck: 'false',
    title: 'A queue, or the beginning of names: mail.*',
    on: {
      change: () => {
        const is = input.value.trim();
        change(is.endsWith('*') ? { queue: undefined, queue_prefix: is.slice(0, -1) } : { queue: is, queue_prefix: undefined });
      },
    },
  });
  return {
    node: h('div', null, input, list),
    set: (/** @type {Record<string, string>} */ where) => {
      if (document.activeElement !== input) input.value = where.queue || (where.queue_prefix ? `${where.queue_prefix}*` : '');
      swap(list, ...[...live.queues.values()].filter(({ counts }) => counts.dead > 0).map(({ queue }) => h('option', { value: queue })));
    },
  };
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function dead(context) {
  return new Dead(context).screen();
}

class Dead {
  /** @param {import('../router.js').Context} context */
  constructor(context) {
    this.context = context;
    /** @type {Group[]} */ this.groups = [];
    /** @type {any} */ this.last = null;
    this.lookedAt = 0;
    this.deadCount = -1;
    this.asked = '';
    this.most = 1;
    this.dirty = true;
    this.tookMs = 0;
    /** @type {Set<string>} */ this.operations = new Set();
    const { signal } = context;
    this.chooser = chooser((where) => this.context.setParams(where));
    this.news = h('button', { type: 'button', class: 'news', 'data-none': true, on: { click: () => this.load() } });
    this.total = h('p', { class: 'muted', role: 'status' });
    this.running = h('div', { class: 'stack small' });
    this.rows = h('tbody');
    this.keep = each(
      this.rows,
      (/** @type {Group} */ group) => group.error,
      groupRow(
        () => this.where(),
        (operation) => this.begun(operation),
        () => this.most,
      ),
    );
    this.table = h(
      'table',
      { class: 'dead', hidden: true },
      h('caption', { class: 'unseen' }, 'Errors of dead jobs'),
      h('thead', null, h('tr', null, ...['Jobs', 'Error', 'Seen'].map((name) => h('th', { scope: 'col' }, name)))),
      this.rows,
    );
    this.place = h('div', { class: 'jobs-place' }, h('p', { class: 'empty' }, 'Counting …'));
    this.letters = letterCard(signal, { where: () => this.where(), begun: (operation) => this.begun(operation) });
    this.node = h(
      'div',
      { class: 'stack' },
      h('div', { class: 'head' }, h('h1', null, 'Dead letters'), this.chooser.node),
      this.running,
      this.letters.node,
      h(
        'section',
        { class: 'card', 'aria-label': 'By error' },
        h('div', { class: 'head newsline' }, this.total, this.news),
        this.table,
        this.place,
      ),
    );
    live.follow(signal, () => {
      const n = live.allCounts()?.dead ?? this.deadCount;
      if (n !== this.deadCount) this.dirty = true;
      this.deadCount = n;
    });
    this.asked = JSON.stringify(this.where());
    this.again = every(signal, 3000, () => this.look());
  }

  screen() {
    this.chooser.set(this.where());
    return {
      title: 'Dead letters',
      node: this.node,
      update: (/** @type {import('../router.js').Context} */ context) => {
        this.context = context;
        this.chooser.set(this.where());
        const asked = JSON.stringify(this.where());
        if (asked === this.asked) return;
        this.asked = asked;
        this.load();
        this.letters.again();
      },
    };
  }

  /** Which queues are meant. @returns {Record<string, string>} */
  where() {
    const { params } = this.context;
    return { queue: params.get('queue') ?? '', queue_prefix: params.get('queue') ? '' : (params.get('queue_prefix') ?? '') };
  }

  load() {
    this.last = null;
    this.dirty = true;
    this.again();
  }

  /** Looks where something has changed; a count that takes long is not repeated as often. */
  async look() {
    if (this.last !== null && (!this.dirty || (this.tookMs > 300 && Date.now() - this.lookedAt < 20_000))) return;
    this.dirty = false;
    this.lookedAt = Date.now();
    const began = performance.now();
    const where = this.where();
    try {
      const found = await get(query('/v1/dead', { group_by: 'error', limit: 200, ...where }), this.context.signal);
      if (JSON.stringify(where) !== this.asked) return void (this.dirty = true);
      this.tookMs = performance.now() - began;
      this.take(found);
    } catch (/** @type {any} */ error) {
      if (this.context.signal.aborted) return;
      if (error.status === undefined) throw error;
      this.dirty = true;
      if (this.last !== null) return;
      show(this.table, false);
      swap(
        this.place,
        error.status === 403
          ? empty('This key may not count the dead of all queues.', 'Choose one of its queues above, or those that begin so: mail.*')
          : failure(error, () => this.load()),
      );
    }
  }

  /** @param {{groups: Group[], other?: {count: number}, scanned: number, complete: boolean}} found */
  take(found) {
    const isFirst = this.last === null || this.groups.length === 0;
    const byError = new Map(found.groups.map((group) => [group.error, group]));
    const known = new Set(this.groups.map(({ error }) => error));
    const added = isFirst ? 0 : found.groups.filter(({ error }) => !known.has(error)).length;
    // Groups stay where they are while one reads; one that is no longer there has no jobs left, if all were counted.
    const isAll = found.complete && !found.other;
    const absent = (/** @type {Group} */ group) => (isAll ? { ...group, count: 0, isUncounted: false } : { ...group, isUncounted: true });
    this.groups = isFirst ? found.groups : this.groups.map((group) => byError.get(group.error) ?? absent(group));
    this.last = found;
    this.most = Math.max(1, ...this.groups.map(({ count }) => count));
    this.keep(this.groups);
    show(this.table, this.groups.length > 0);
    swap(
      this.place,
      this.groups.length === 0 &&
        empty(
          'No job is dead.',
          'A job is dead once it has failed as often as ',
          h('code', null, 'max_attempts'),
          ' says; it is shown here then, with others that failed alike.',
        ),
      found.other && h('p', { class: 'muted' }, `${format.plural(found.other.count, 'job')} with other errors.`),
    );
    // Its words would take room though it is not seen.
    text(this.news, added > 0 ? `${format.plural(added, 'new error')}: show` : '');
    attr(this.news, 'data-none', added === 0);
    text(
      this.total,
      `${format.plural(
        found.groups.reduce((sum, { count }) => sum + count, found.other?.count ?? 0),
        'dead job',
      )} with ${format.plural(found.groups.length, 'error')}` +
        `${found.complete ? '' : `; there are more: only ${format.count(found.scanned)} were counted. Choose a queue to count all of it.`}`,
    );
  }

  /** @param {any} operation */
  async begun(operation) {
    toast('The operation is begun.');
    this.dirty = true;
    const { operationCard } = await loadOperation();
    const card = operationCard(operation.id, this.context.signal, {
      over: () => {
        this.dirty = true;
        this.again();
        this.letters.again();
      },
      close: () => card.remove(),
    });
    this.running.prepend(card);
  }
}
