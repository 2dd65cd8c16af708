// The conditions of a search as chips.

import { h, show, swap } from './dom.js';
import { lazy } from './lazy.js';
import { inWords } from './search.js';
import { button } from './widgets.js';

/** @typedef {import('./search.js').Condition} Condition */

const loadEditor = lazy(() => import('./chipeditor.js'));

/**
 * Chips of all conditions but the state, which has its own buttons.
 * @param {{fixed: Record<string, string>, signal: AbortSignal, change: (next: Record<string, string | undefined>) => void}} options
 */
export function chips({ fixed, signal, change }) {
  const list = h('ul', { class: 'row chips', 'aria-label': 'Conditions' });
  /** @type {ReturnType<typeof import('./chipeditor.js').editor> | undefined} */ let edit;
  const close = () => {
    if (edit) show(edit.node, false);
    add.focus();
  };
  const open = async (/** @type {Condition | null} */ condition) => {
    const { editor } = await loadEditor();
    if (edit === undefined) {
      edit = editor({
        fixed,
        signal,
        close,
        put: (next, before) => {
          close();
          change({ ...(before && { [before.name]: undefined }), [next.name]: next.value });
        },
      });
      node.append(edit.node);
    }
    edit.open(condition);
  };
  const add = button('+ Condition', () => open(null), { class: 'quiet' });
  const clear = h('button', { type: 'button', class: 'quiet', hidden: true }, 'Clear');
  const node = h('div', { class: 'stack small' }, h('div', { class: 'row' }, list, add, clear));
  return {
    node,
    /** @param {Condition[]} conditions */
    set(conditions) {
      const some = conditions.filter(({ name }) => name !== 'state');
      swap(
        list,
        ...some.map((condition) => {
          const { label, value } = inWords(condition);
          const chip = button('', () => open(condition), { title: 'Change this condition' });
          chip.append(h('span', null, label), ...(value === '' ? [] : [h('b', null, value)]));
          return h(
            'li',
            { class: 'chip' },
            chip,
            h(
              'button',
              {
                type: 'button',
                'aria-label': `Remove ${label} ${value}`,
                on: { click: () => change({ [condition.name]: undefined }) },
              },
              '×',
            ),
          );
        }),
      );
      show(list, some.length > 0);
      show(clear, some.length > 1);
      clear.onclick = () => change(Object.fromEntries(some.map(({ name }) => [name, undefined])));
    },
  };
}
