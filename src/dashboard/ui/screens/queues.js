// The list of queues: all of them, in any order, those that need attention first.
import * as board from '../board.js';
import { attr, h, show, text } from '../dom.js';
import * as format from '../format.js';
import * as live from '../live.js';
import { queueTable } from '../queuetable.js';
import { every } from '../router.js';
import { message } from '../widgets.js';

/** How often the names of queues without jobs are read. */
const NAMES_MS = 60_000;
/** What a prefix may be made of. */
const PREFIX = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/;

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function queues(context) {
  let current = context;
  const { signal } = context;
  const count = h('span', { class: 'muted', role: 'status' });
  const held = h('span', { class: 'muted', hidden: true }, 'The order is kept while you point at a row.');
  const note = h('p', { class: 'problem', role: 'alert', hidden: true });
  const input = h('input', {
    type: 'search',
    placeholder: 'Filter by name',
    'aria-label': 'Filter by name',
    value: context.params.get('q') ?? '',
    spellcheck: 'false',
    autocomplete: 'off',
    on: { input: () => current.setParams({ q: input.value || undefined }, true) },
  });
  const chips = attentionChips(() => current);
  let isAll = true;
  let told = -1;
  const choose = (/** @type {board.Row} */ row) => {
    const wanted = (current.params.get('q') ?? '').toLowerCase();
    const attention = current.params.get('attention') ?? '';
    return (wanted === '' || row.queue.toLowerCase().includes(wanted)) && needs(row, attention);
  };
  const filter = () => {
    const prefix = current.params.get('q') ?? '';
    return { prefix: !isAll && PREFIX.test(prefix) ? prefix : undefined, attention: current.params.get('attention') || undefined };
  };
  const list = queueTable(() => current, {
    choose,
    filter,
    shown: ({ matched, all, held: isHeld }) => {
      show(held, isHeld);
      // In step with the badges of the rows, which change between two orders as well.
      if (told !== board.version) chips.set(isHeld);
      told = board.version;
      if (matched < 0) return;
      const isFiltered = Boolean(current.params.get('q') || current.params.get('attention'));
      text(count, isFiltered ? `${format.count(matched)} of ${format.plural(all, 'queue')}` : format.plural(all, 'queue'));
    },
    failed: (error) => {
      if (error?.status === 0) return; // that the connection is lost is said above
      show(note, error !== null);
      if (error !== null) text(note, `The figures cannot be read: ${message(error)}`);
    },
  });
  const partial = h('p', { class: 'muted', hidden: true });
  every(signal, NAMES_MS, async () => {
    try {
      isAll = await board.loadNames(signal);
    } catch {
      /* the figures say why */
    }
    show(partial, !isAll || live.state.leftOut > 0);
    text(partial, 'There are more queues than are listed here: type the beginning of a name to find the others.');
  });
  const node = h(
    'div',
    { class: 'stack' },
    h('div', { class: 'head' }, h('h1', null, 'Queues'), h('div', { class: 'row' }, held, count)),
    h('div', { class: 'head' }, chips.node, input),
    partial,
    note,
    h('section', { class: 'card flush', 'aria-label': 'Queues' }, list.node),
  );
  return {
    title: 'Queues',
    node,
    update: (next) => {
      current = next;
      const wanted = next.params.get('q') ?? '';
      if (input.value !== wanted) input.value = wanted;
      chips.set();
      list.update();
    },
  };
}

/** Whether a row is meant by the attention of the link. @param {board.Row} row @param {string} attention */
function needs(row, attention) {
  if (attention === '') return true;
  return attention === 'true' ? row.attention.length > 0 : attention.split(',').some((one) => row.attention.includes(one));
}

/** All, what needs attention, and why; each with how many there are. @param {() => import('../router.js').Context} context */
function attentionChips(context) {
  const kinds = ['', 'true', ...board.REASONS];
  const labels = { '': 'All', true: 'Needs attention' };
  const counts = kinds.map(() => h('span', { class: 'muted' }));
  const buttons = kinds.map((kind, n) =>
    h(
      'button',
      { type: 'button', on: { click: () => context().setParams({ attention: kind || undefined }) } },
      labels[/** @type {''} */ (kind)] ?? kind,
      ' ',
      counts[n],
    ),
  );
  return {
    node: h('div', { class: 'tabs', role: 'group', 'aria-label': 'Which queues' }, ...buttons),
    /** @param {boolean} [isHeld] whether nothing may move now */
    set: (isHeld = false) => {
      /** @type {Record<string, number>} */ const found = { true: 0 };
      for (const name of board.names()) {
        const { attention } = board.row(name);
        if (attention.length > 0) found.true += 1;
        for (const one of attention) found[one] = (found[one] ?? 0) + 1;
      }
      const chosen = context().params.get('attention') ?? '';
      kinds.forEach((kind, n) => {
        attr(buttons[n], 'aria-pressed', String(kind === chosen));
        if (!isHeld) show(buttons[n], kind === '' || kind === 'true' || kind === chosen || (found[kind] ?? 0) > 0);
        text(counts[n], kind === '' ? '' : format.count(found[kind] ?? 0));
      });
    },
  };
}
