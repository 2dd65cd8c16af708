// Pipelines: which queues hand jobs on to which, with how much waits in each.

import { curl } from '../api.js';
import { attr, h, show, svg, swap, text } from '../dom.js';
import * as format from '../format.js';
import { graph, waiting, WHY } from '../flowgraph.js';
import { PAGES, Source } from '../flowsource.js';
import * as live from '../live.js';
import { grid } from '../parts.js';
import { every } from '../router.js';
import { may } from '../session.js';
import { badge, empty, failure, queueLink, setWhen, when } from '../widgets.js';

/** How many stages are drawn. */
const DRAWN = 120;

/** @typedef {import('../stages.js').Edge} Edge */

/** The edges as a table. @param {Source} source */
function table(source) {
  return grid({
    caption: 'Ways between queues',
    columns: [
      'From',
      { label: 'How', class: '' },
      'To',
      { label: 'Waiting there', class: 'num' },
      { label: 'Jobs seen', class: 'num' },
      { label: 'Last', class: 'num' },
    ],
    key: (/** @type {Edge} */ { from, to, why }) => JSON.stringify([from, to, why]),
    make: ({ from, to, why, lastAt }) => {
      const [waits, seen] = [h('span'), h('span')];
      const last = when(lastAt);
      return {
        cells: [queueLink(from), badge(WHY[why], why === 'dead' ? 'bad' : ''), queueLink(to), waits, seen, last],
        set: (edge) => {
          text(seen, format.count(edge.seen));
          setWhen(last, edge.lastAt);
          text(waits, format.count(waiting(source.figures(to)?.counts)));
        },
      };
    },
  });
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function pipelines(context) {
  const { signal } = context;
  const source = new Source(signal);
  let now = context;
  const list = table(source);
  const drawing = h('div', { class: 'scroll graph-place' });
  const place = h('div', { class: 'jobs-place' }, h('p', { class: 'empty' }, 'Looking at recent jobs …'));
  const from = h('p', { class: 'muted', role: 'status' });
  const tabs = ['graph', 'list'].map((view) =>
    h(
      'button',
      { type: 'button', on: { click: () => now.setParams({ view: view === 'graph' ? undefined : view }) } },
      view === 'graph' ? 'Graph' : 'List',
    ),
  );
  const key = h(
    'p',
    { class: 'row g-key' },
    ...Object.entries(WHY).map(([why, says]) =>
      h(
        'span',
        { class: 'row' },
        svg(
          'svg',
          { width: 26, height: 10, 'aria-hidden': 'true', class: `g-edge g-${why}` },
          svg('path', { d: 'M0 5H26', 'stroke-width': 2.5 }),
        ),
        says,
      ),
    ),
    h('span', null, 'The figure of a way: jobs seen on it, and their share. Dotted: known from a route or a setting, no job seen.'),
  );
  const node = h(
    'div',
    { class: 'stack' },
    h('div', { class: 'head' }, h('h1', null, 'Pipelines'), h('div', { class: 'tabs', role: 'group', 'aria-label': 'View' }, ...tabs)),
    h('section', { class: 'card stack small', 'aria-label': 'Pipelines' }, from, key, drawing, list.node, place),
  );
  /** @type {{node: Element, set: () => void} | null} */ let drawn = null;
  let shape = '';
  let isFound = false;

  const draw = () => {
    const edges = [...source.stages.edges.values()].sort((one, other) => (one.from + one.to < other.from + other.to ? -1 : 1));
    const isList = now.params.get('view') === 'list';
    tabs.forEach((tab, n) => attr(tab, 'aria-pressed', (n === 1) === isList ? 'true' : 'false'));
    show(drawing, !isList && edges.length > 0);
    show(key, !isList && edges.length > 0);
    show(list.node, isList && edges.length > 0);
    if (!isFound) return;
    swap(
      place,
      edges.length === 0 &&
        source.forbidden &&
        empty('This key may not look at the jobs of all queues.', 'A way from one queue to another is seen in the jobs of both.'),
      edges.length === 0 &&
        !source.forbidden &&
        empty(
          'No job goes from one queue to another.',
          `Give a job a route, and each commit moves it on${may('push') ? ': ' : '.'}`,
          may('push') && h('code', null, curl('POST', '/v1/queues/first/jobs', '{"payload": 1, "then": [{"queue": "second"}]}')),
        ),
    );
    if (isList) return list.set(edges);
    if (edges.length === 0) return undefined;
    const names = new Set([...source.stages.queues()].slice(0, DRAWN));
    const some = edges.filter((edge) => names.has(edge.from) && names.has(edge.to));
    // The lines are drawn anew where there is another one, or their shares have changed.
    const next = JSON.stringify(some.map((edge) => [edge.from, edge.to, edge.why, Math.round(10 * Math.log2(1 + edge.seen))]));
    if (next !== shape && !drawing.contains(document.activeElement)) {
      shape = next;
      drawn = graph(some, names, source);
      swap(
        drawing,
        drawn.node,
        some.length < edges.length && h('p', { class: 'muted' }, `${format.plural(edges.length - some.length, 'way')} more in the list.`),
      );
    }
    drawn?.set();
  };
  const again = every(signal, 15_000, async () => {
    try {
      await source.look();
      isFound = true;
      text(
        from,
        `Derived from the ways of ${format.plural(source.looked, 'recent job')} that are still there and from the settings of queues: a way whose jobs are done and not kept is not seen.` +
          `${source.unlooked === 0 ? '' : ` ${format.plural(source.unlooked, 'queue is', 'queues are')} not looked at yet.`}` +
          `${source.all ? '' : ` Only the first ${format.count(PAGES * 1000)} queues were asked for their settings.`}${source.forbidden ? ' This key may not see all queues.' : ''}`,
      );
      draw();
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      if (error.status === undefined) throw error;
      if (!isFound)
        swap(
          place,
          failure(error, () => again()),
        );
    }
  });
  live.follow(signal, () => isFound && draw());
  draw();
  return {
    title: 'Pipelines',
    node,
    update: (next) => {
      now = next;
      draw();
    },
  };
}
