// Groups: those that a dead job holds first, and what to do about them.
import { act } from '../acts.js';
import { get, path, post, query } from '../api.js';
import { confirm } from '../dialog.js';
import { h, show, swap, text, toggle } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { choice, grid, loaded, orNothing, page, pager } from '../parts.js';
import { perform } from '../perform.js';
import { link } from '../router.js';
import { asSeen, may } from '../session.js';
import { badge, button, card, empty, jobLink, queueLink, toast } from '../widgets.js';

/** @typedef {import('../api.js').Api<'GroupsPage'>} GroupsPage */
/** @typedef {import('../api.js').Api<'Job'>} Job */
/** @typedef {import('../api.js').Api<'JobGroup'>} JobGroup */

/** How many heads are read for their last error. */
const READ = 50;

/** @param {JobGroup} group */
const keyOf = (group) => JSON.stringify([group.queue, group.group]);

/** What is done to the head of a held group. @param {JobGroup} group @param {() => void} again */
function actions(group, again) {
  const behind = group.waiting === 0 ? 'No other job waits behind it.' : `${behindOf(group)} then.`;
  // A redrive also brings back one that is in a dead-letter queue; it needs the scope push.
  const how = may('push') ? 'redrive' : 'retry';
  const of = `the first job of ${plain(group.group)}`;
  return h(
    'span',
    { class: 'row end' },
    button(
      how === 'redrive' ? 'Redrive' : 'Retry',
      async () => {
        await post(path('jobs', group.head, how));
        toast('It is the next of its group to be delivered, with all of its attempts');
        again();
      },
      { 'aria-label': `${how} ${of}`, title: 'Delivers it again, before the rest of its group, with all of its attempts' },
    ),
    button(
      'Delete…',
      () =>
        confirm({
          title: 'Delete the dead job?',
          text: `Job ${group.head} is gone for good. ${behind}`,
          action: 'Delete it and let the group go on',
          submit: async () => {
            await perform(act('delete'), { id: group.head, state: 'dead' });
            toast('Deleted: the group goes on');
            again();
          },
        }),
      { class: 'danger', 'aria-label': `Delete ${of}` },
    ),
  );
}

/** @param {JobGroup} group */
function behindOf(group) {
  return group.waiting >= 1000 ? '1,000 or more jobs go on' : `${format.plural(group.waiting, 'job goes on', 'jobs go on')}`;
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function groups(context) {
  const { signal } = context;
  let { params } = context;
  const held = heldGroups(
    signal,
    () => params,
    () => {
      held.again();
      list.again();
    },
  );
  const filter = h('input', {
    type: 'search',
    name: 'queue',
    'aria-label': 'Queue begins with',
    placeholder: 'Queue begins with …',
    maxlength: '128',
    autocomplete: 'off',
    spellcheck: 'false',
    value: params.get('queue') ?? '',
  });
  filter.addEventListener('change', () => context.setParams({ queue: filter.value.trim() || undefined, cursor: undefined }));
  const states = choice(context, 'state', [
    ['', 'All'],
    ['ready', 'Ready'],
    ['scheduled', 'Scheduled'],
    ['reserved', 'Reserved'],
    ['blocked', 'Blocked'],
  ]);
  const table = grid({
    caption: 'Groups',
    columns: ['Queue', 'Group', 'First job', { label: 'State', class: '' }, { label: 'Behind it', class: 'num' }],
    key: (/** @type {JobGroup} */ group) => keyOf(group),
    href: (group) => link(['jobs', group.head]),
    make: (group) => {
      const head = h('span');
      const state = h('span');
      const behind = h('span');
      return {
        cells: [queueLink(group.queue), h('span', { class: 'strong any' }, plain(group.group)), head, state, behind],
        set: (next) => {
          if (head.textContent !== next.head) swap(head, jobLink(next.head));
          if (state.textContent !== next.state) swap(state, badge(next.state, next.state));
          text(behind, next.waiting >= 1000 ? '≥ 1,000' : format.count(next.waiting));
        },
      };
    },
  });
  const none = empty(
    asSeen('There are no such groups.'),
    'Jobs with the same “group” in a queue are delivered one at a time, in the order of their pushes.',
  );
  const body = orNothing(table, none);
  const note = h('p', { class: 'muted' });
  const pages = pager(context);
  const list = loaded(
    signal,
    5000,
    () =>
      get(
        query(path('groups'), {
          state: params.get('state'),
          queue_prefix: params.get('queue'),
          limit: 100,
          cursor: params.get('cursor'),
        }),
        signal,
      ),
    (answer) => {
      body.set(answer.groups);
      text(note, answer.complete ? '' : `${format.plural(answer.scanned, 'group was', 'groups were')} looked at; there are more.`);
      pages.set(answer.cursor);
    },
    body.node,
    note,
    pages.node,
  );
  states.set(params);
  return {
    title: 'Groups',
    node: page('Groups', [filter], card('Held by a dead job', held.node), card('All groups', states.node, list.node)),
    update: (next) => {
      params = next.params;
      if (document.activeElement !== filter) filter.value = params.get('queue') ?? '';
      states.set(params);
      held.again();
      list.again();
    },
  };
}

/** @param {AbortSignal} signal @param {() => URLSearchParams} params @param {() => void} again */
function heldGroups(signal, params, again) {
  /** What the heads died of, by their ids. @type {Map<string, string>} */
  const errors = new Map();
  const table = grid({
    caption: 'Groups that a dead job holds',
    columns: [
      'Queue',
      'Group',
      'Dead job',
      'Last error',
      { label: 'Behind it', class: 'num' },
      { label: 'Actions', hidden: true, class: 'num' },
    ],
    key: (/** @type {JobGroup} */ group) => `${keyOf(group)}${group.head}`,
    href: (group) => link(['jobs', group.head]),
    make: (group) => {
      const behind = h('span');
      const why = h('span', { class: 'bad any' });
      return {
        cells: [
          queueLink(group.queue),
          h('span', { class: 'strong any' }, plain(group.group)),
          jobLink(group.head),
          why,
          behind,
          may('operate') && actions(group, again),
        ],
        set: (next) => {
          text(behind, next.waiting >= 1000 ? '≥ 1,000' : format.count(next.waiting));
          toggle(behind, 'warn', next.waiting > 0);
          text(why, errors.get(next.head) ?? '');
        },
      };
    },
  });
  const none = empty(
    asSeen('No group is held.'),
    'A job that dies holds the others of its group until it is redriven or deleted, unless its queue has on_group_dead: "skip".',
  );
  const body = orNothing(table, none);
  const note = h('p', { class: 'muted' });
  const list = loaded(
    signal,
    4000,
    async () => {
      /** @type {GroupsPage} */
      const answer = await get(query(path('groups'), { state: 'dead', queue_prefix: params().get('queue'), limit: 200 }), signal);
      const heads = new Set(answer.groups.map((/** @type {any} */ one) => one.head));
      for (const id of errors.keys()) if (!heads.has(id)) errors.delete(id);
      const unread = answer.groups
        .map((/** @type {JobGroup} */ one) => one.head)
        .filter((/** @type {string} */ id) => !errors.has(id))
        .slice(0, READ);
      await Promise.all(
        unread.map(async (/** @type {string} */ id) => {
          try {
            errors.set(id, plain((await get(path('jobs', id), signal)).errors?.at(-1)?.message ?? ''));
          } catch (/** @type {any} */ error) {
            if (error.status === 404) errors.set(id, ''); // it is gone by now; else it is read the next time
          }
        }),
      );
      return answer;
    },
    (answer) => {
      body.set(answer.groups);
      show(note, answer.groups.length > 0);
      text(
        note,
        `“${may('push') ? 'Redrive' : 'Retry'}” makes the dead job the next of its group, with all of its attempts; “Delete” lets the group go on without it.${answer.complete ? '' : ' There are more: settle these first, or choose a queue.'}`,
      );
    },
    body.node,
    note,
  );
  return list;
}
