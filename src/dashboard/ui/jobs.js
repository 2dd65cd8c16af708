// A list of jobs, wherever one is: a search with its conditions in the link, page by page, with what can be done to those that are found.

import { remember } from './bounded.js';
import { bulkBar } from './bulk.js';
import { chips } from './chips.js';
import { registerButtons } from './commands.js';
import { attr, each, h, show, swap, text, toggle } from './dom.js';
import * as format from './format.js';
import { compare, look, PAGE, ROUNDS, selectedOf, stateTabs } from './jobpage.js';
import { jobRow, noteOf } from './jobrow.js';
import { lazy } from './lazy.js';
import * as live from './live.js';
import { every, link } from './router.js';
import { conditionsOf, costOf, searchPath } from './search.js';
import { may } from './session.js';
import { button, empty, failure, message, STATES } from './widgets.js';

/**
 * @param {import('./router.js').Context} context
 * @param {{fixed?: Record<string, string>, title?: string, curl?: boolean}} [options] `fixed`: conditions that the screen gives, such as `{queue}`
 * @returns {{node: Element, update: (context: import('./router.js').Context) => void}}
 */
export function jobList(context, { fixed = {}, title = 'Jobs' } = {}) {
  const list = new JobList(context, fixed, title);
  return { node: list.node, update: (next) => list.update(next) };
}

const loadNothing = lazy(() => import('./nojobs.js'));

/** @typedef {import('./jobpage.js').Found} Found */

/** What is selected in each view: whoever looks at a job and comes back goes on. @type {Map<string, Set<string>>} */
const kept = new Map();
/** Of how many views that is kept. */
const VIEWS = 50;

class JobList {
  /** @type {import('./search.js').Condition[]} */ conditions = [];
  /** @type {ReturnType<typeof stateTabs>} */ tabs;
  /** @type {ReturnType<typeof chips>} */ chips;
  /** @type {ReturnType<typeof bulkBar>} */ bar;
  /** @type {(jobs: any[]) => void} */ keep;
  newest = true;
  /** @type {string | undefined} */ cursor = undefined;

  /** @param {import('./router.js').Context} context @param {Record<string, string>} fixed @param {string} title */
  constructor(context, fixed, title) {
    this.context = context;
    this.fixed = fixed;
    /** @type {any[]} */ this.jobs = [];
    /** @type {Found | null} */ this.found = null;
    /** @type {Set<string>} */ this.selected = new Set();
    /** @type {string | undefined} */ this.lastClicked = undefined;
    this.search = '';
    this.dirty = true;
    this.added = 0;
    this.tookMs = 0;
    this.loading = new AbortController();
    this.mayChange = may('operate');
    const change = (/** @type {Record<string, string | undefined>} */ next) => this.context.setParams({ ...next, cursor: undefined });
    this.tabs = stateTabs((state) => change({ state }));
    this.chips = chips({ fixed: this.fixed, signal: this.context.signal, change });
    this.order = h(
      'select',
      {
        'aria-label': 'Order',
        on: { change: () => change({ order: this.order.value === 'newest' ? undefined : this.order.value }) },
      },
      h('option', { value: 'newest' }, 'newest first'),
      h('option', { value: 'oldest' }, 'oldest first'),
    );
    this.readAt = 0;
    this.old = h('p', { class: 'remark bad', role: 'status', hidden: true });
    this.cost = h('small');
    this.news = h('button', { type: 'button', class: 'news', on: { click: () => this.load() } });
    attr(this.news, 'data-none', true);
    this.bar = bulkBar({
      signal: this.context.signal,
      state: () => this.forBulk(),
      clear: () => this.clear(),
      // What one's own action has changed is no news: the list shows what is there now.
      changed: () => this.load(),
      operation: (id) => this.context.setParams({ operation: id }),
    });
    this.rows = h('tbody');
    this.keep = each(
      this.rows,
      (/** @type {any} */ job) => job.id,
      jobRow({ withQueue: this.fixed.queue === undefined, select: this.mayChange ? (id, event) => this.select(id, event) : null }),
    );
    this.all = h('input', { type: 'checkbox', 'aria-label': 'Select all jobs of this page', on: { click: () => this.selectPage() } });
    this.table = h(
      'table',
      { class: 'jobs' },
      h('caption', { class: 'unseen' }, title),
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          this.mayChange && h('th', { scope: 'col', class: 'cell-box' }, h('label', { class: 'hit' }, this.all)),
          h('th', { scope: 'col' }, 'Job'),
          h('th', { scope: 'col' }, 'Payload'),
          h('th', { scope: 'col' }, 'Last error, result, progress'),
        ),
      ),
      this.rows,
    );
    this.place = h('div', { class: 'jobs-place' }, h('p', { class: 'empty' }, 'Looking …'));
    this.foot = h('div', { class: 'row foot', role: 'status' });
    this.node = h(
      'section',
      { class: 'card stack job-list', 'aria-label': title },
      h('div', { class: 'head' }, this.tabs.node, this.order),
      h('div', { class: 'head newsline' }, h('div', { class: 'chips-place' }, this.chips.node), this.news),
      this.cost,
      this.old,
      this.mayChange && this.bar.node,
      h('div', { class: 'scroll' }, this.table),
      this.place,
      this.foot,
    );
    show(this.table, false);
    for (const one of [this.tabs.node, this.chips.node, this.bar.node, this.foot]) registerButtons(context.signal, one, 'jobs');
    this.start(context);
  }

  /** @param {import('./router.js').Context} context */
  start(context) {
    const { signal } = context;
    live.follow(signal, (changed) => this.onLive(changed));
    signal.addEventListener('abort', () => this.loading.abort());
    this.update(context);
    // A search that was slow is not repeated as often as one that was not.
    let skip = 0;
    every(signal, 3000, async () => {
      if (this.found === null || !this.dirty || (this.tookMs > 250 && skip++ % 8 !== 7)) return;
      await this.refresh();
    });
  }

  /** @param {import('./router.js').Context} context */
  update(context) {
    this.context = context;
    const { params } = context;
    this.conditions = conditionsOf(params, this.fixed);
    this.newest = params.get('order') !== 'oldest';
    this.cursor = params.get('cursor') ?? undefined;
    this.order.value = this.newest ? 'newest' : 'oldest';
    this.chips.set(this.conditions);
    const cost = costOf(this.conditions, this.fixed);
    text(this.cost, cost.text);
    attr(this.cost, 'class', cost.slow ? 'warn' : 'muted');
    show(this.cost, cost.text !== '');
    this.bar.show(params.get('operation'));
    this.onLive(new Set());
    const search = JSON.stringify([this.conditions, this.newest, this.cursor]);
    if (search === this.search) return;
    this.search = search;
    const view = JSON.stringify([context.parts, this.fixed, search]);
    this.selected = kept.get(view) ?? new Set();
    remember(kept, view, this.selected, VIEWS);
    this.lastClicked = undefined;
    this.draw();
    this.load();
  }

  /** The counts of the states where the page knows them: of one queue, or of all. */
  counts() {
    const others = this.conditions.filter(({ name }) => name !== 'state' && name !== 'queue');
    const queue = this.fixed.queue ?? this.conditions.find(({ name }) => name === 'queue')?.value;
    if (others.length > 0 || this.fixed.batch || this.fixed.worker) return null;
    if (queue === undefined) return live.isWhole() ? live.totals().counts : null;
    return live.queues.get(queue)?.counts ?? (live.isWhole() ? {} : null);
  }

  /** @param {Set<string>} changed */
  onLive(changed) {
    const state = this.conditions.find(({ name }) => name === 'state')?.value ?? '';
    this.tabs.set(state, this.counts());
    this.bar.draw();
    const queue = this.fixed.queue ?? this.conditions.find(({ name }) => name === 'queue')?.value;
    if (queue === undefined ? changed.size > 0 : changed.has(queue)) this.dirty = true;
  }

  /** @param {string | undefined} cursor @param {number} limit */
  at(cursor, limit) {
    return searchPath(this.conditions, this.fixed, { order: this.newest ? 'newest' : 'oldest', payload: 'head', limit, cursor });
  }

  /** Loads the page from its beginning, and shows what is there now. */
  async load() {
    this.loading.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    attr(this.node, 'aria-busy', 'true');
    this.dirty = false;
    const began = performance.now();
    try {
      const found = await look((cursor, limit) => this.at(cursor, limit), this.cursor, ROUNDS, signal);
      this.tookMs = performance.now() - began;
      this.take(found, found.jobs);
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
    if (!signal.aborted) attr(this.node, 'aria-busy', null);
  }

  /** Goes on where the search has stopped without having found a page. */
  async goOn() {
    const { found } = this;
    if (!found) return;
    const { signal } = this.loading;
    const more = await look((cursor, limit) => this.at(cursor, limit), found.cursor, ROUNDS, signal, this.jobs.length);
    this.take({ ...more, scanned: found.scanned + more.scanned, unreadable: [...found.unreadable, ...more.unreadable] }, [
      ...this.jobs,
      ...more.jobs,
    ]);
  }

  /** Looks again: what is shown is brought up to date, and what is new is announced. */
  async refresh() {
    this.dirty = false;
    if (this.jobs.length === 0) return this.load();
    const { signal } = this.loading;
    const began = performance.now();
    try {
      const fresh = await look((cursor, limit) => this.at(cursor, limit), this.cursor, 1, signal);
      if (signal.aborted) return;
      this.tookMs = performance.now() - began;
      const { jobs, added } = compare(this.jobs, fresh, this.newest);
      this.jobs = jobs;
      this.added = added;
      this.isRead();
      this.draw();
    } catch (error) {
      if (signal.aborted) return;
      this.dirty = true;
      text(this.old, `Not read again since ${format.time(this.readAt)}: ${message(error)}`);
      show(this.old, true);
    }
  }

  /** @param {Found} found @param {any[]} jobs */
  take(found, jobs) {
    this.found = found;
    this.jobs = jobs;
    this.added = 0;
    this.isRead();
    const ids = new Set(jobs.map(({ id }) => id));
    for (const id of this.selected) if (!ids.has(id)) this.selected.delete(id);
    this.draw();
    this.drawFoot();
  }

  isRead() {
    this.readAt = Date.now();
    show(this.old, false);
  }

  draw() {
    this.keep(this.jobs.map((job) => ({ ...job, selected: this.selected.has(job.id) })));
    toggle(
      this.table,
      'noteless',
      this.jobs.every((job) => noteOf(job)[0] === ''),
    );
    show(this.table, this.jobs.length > 0);
    if (this.jobs.length > 0) swap(this.place);
    else if (this.found) this.drawNothing();
    const isAll = this.jobs.length > 0 && this.jobs.every(({ id }) => this.selected.has(id));
    this.all.checked = isAll;
    this.all.indeterminate = !isAll && this.selected.size > 0;
    const capped = this.added >= PAGE ? `${PAGE} or more` : this.added;
    text(this.news, this.added > 0 ? `${capped} new: show` : '');
    attr(this.news, 'data-none', this.added === 0);
    show(this.bar.node, this.found !== null);
    this.bar.draw();
  }

  /** Says that there are none, and what to do. */
  async drawNothing() {
    const { nothing } = await loadNothing();
    const { found, conditions, fixed, cursor } = this;
    if (found && this.jobs.length === 0)
      swap(this.place, nothing({ isWhole: found.complete, conditions, fixed, first: cursor && this.firstPage() }));
  }

  firstPage() {
    const params = Object.fromEntries(this.context.params);
    return link(this.context.parts, { ...params, cursor: undefined });
  }

  drawFoot() {
    const { found } = this;
    if (!found) return;
    const isShort = !found.complete && found.cursor !== undefined && this.jobs.length < PAGE;
    // The list says so itself.
    const isNone = found.complete && this.jobs.length + found.unreadable.length === 0;
    const what = isShort
      ? `Looked at ${format.count(found.scanned)} jobs, found ${format.count(this.jobs.length)} so far.`
      : `${format.plural(this.jobs.length, 'job')} on this page, of ${format.count(found.scanned)} looked at.`;
    const { cursor } = found;
    swap(
      this.foot,
      !isNone && h('span', { class: 'muted' }, what),
      found.unreadable.length > 0 && this.unreadable(found.unreadable),
      h('span', { class: 'grow' }),
      isShort && button('Go on', () => this.goOn()),
      this.cursor && h('a', { class: 'button', href: this.firstPage() }, 'First page'),
      this.cursor && button('Back', () => history.back()),
      !isShort &&
        cursor !== undefined &&
        button('Next page', () => {
          this.context.setParams({ cursor });
          this.node.scrollIntoView();
        }),
    );
  }

  /** @param {any[]} some */
  unreadable(some) {
    return h(
      'span',
      { class: 'bad' },
      `${format.plural(some.length, 'job')} cannot be read: `,
      ...some.slice(0, 5).flatMap(({ id, detail }) => [h('a', { href: link(['jobs', id]), class: 'mono', title: detail }, id), ' ']),
    );
  }

  /** @param {any} error */
  fail(error) {
    this.jobs = [];
    this.found = null;
    this.draw();
    swap(this.foot);
    show(this.old, false);
    const isPlace = error.body?.parameter === 'cursor';
    swap(
      this.place,
      error.status === 403
        ? empty('This key may not search here.', 'It is for some queues only: choose one of them, or those that begin so.')
        : failure(error, () => (isPlace ? this.context.setParams({ cursor: undefined }) : this.load())),
    );
  }

  clear() {
    this.selected.clear();
    this.lastClicked = undefined;
    this.draw();
  }

  selectPage() {
    if (this.jobs.every(({ id }) => this.selected.has(id))) this.selected.clear();
    else for (const { id } of this.jobs) this.selected.add(id);
    this.draw();
  }

  /** Selects a job, or takes it out; with Shift all from the one before to it. @param {string} id @param {MouseEvent} event */
  select(id, event) {
    const is = !this.selected.has(id);
    const from = this.jobs.findIndex((job) => job.id === this.lastClicked);
    const to = this.jobs.findIndex((job) => job.id === id);
    const range = event.shiftKey && from >= 0 ? this.jobs.slice(Math.min(from, to), Math.max(from, to) + 1) : [{ id }];
    for (const one of range) is ? this.selected.add(one.id) : this.selected.delete(one.id);
    this.lastClicked = id;
    this.draw();
  }

  /** What the actions on many jobs must know. */
  forBulk() {
    const states = this.conditions.find(({ name }) => name === 'state')?.value;
    /** @type {Record<string, number> | null} */ const counts = this.counts();
    const all = counts && (states ? states.split(',') : STATES).reduce((sum, state) => sum + (counts[state] ?? 0), 0);
    return {
      ...selectedOf(this.jobs, this.selected),
      conditions: this.conditions,
      fixed: this.fixed,
      all,
      shown: this.jobs.length,
      isAll: this.found !== null && this.found.complete && this.cursor === undefined,
    };
  }
}
