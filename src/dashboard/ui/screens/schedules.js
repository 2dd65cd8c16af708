// Schedules: which rules push jobs, when they do next, and what became of the last times.
import { curl, del, get, getText, path, post, query } from '../api.js';
import { registerButtons, registerCommands } from '../commands.js';
import { inWords } from '../cron.js';
import { confirm } from '../dialog.js';
import { attr, h, show, swap, text } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { jsonCard } from '../jsonview.js';
import { lazy, openWith } from '../lazy.js';
import { crumb, grid, leave, loaded, orNothing, page, pager, shellLine } from '../parts.js';
import { member } from '../raw.js';
import { go, link } from '../router.js';
import { asSeen, may } from '../session.js';
import { onceAnswered } from '../unanswered.js';
import { badge, button, card, copy, empty, facts, jobLink, queueLink, setWhen, toast, when } from '../widgets.js';
import { nextTimes } from '../zones.js';

const loadForm = lazy(() => import('./schedule_form.js'));

/** @typedef {import('../api.js').Api<'Schedule'>} Schedule */
/** @typedef {import('../api.js').Api<'ScheduleRun'>} ScheduleRun */
/** @typedef {import('../api.js').Api<'SchedulesPage'>} SchedulesPage */
/** @typedef {import('../api.js').Api<'UnreadableSchedule'>} UnreadableSchedule */

const at = (/** @type {string[]} */ ...parts) => path('schedules', ...parts);

/** What a run did, in words. @param {ScheduleRun} run @returns {any[]} */
function outcome(run) {
  if (run.skipped === 'overlap') return [badge('skipped', 'warn'), ' the job of an earlier run was unfinished'];
  if (run.skipped === 'misfire') return [badge('missed', 'bad'), ' no server ran it in time'];
  if (run.skipped) return [badge('skipped', 'warn'), ` ${plain(run.skipped)}`];
  return [badge('pushed', 'good'), ' ', run.job_id && jobLink(run.job_id)];
}

/** @param {ScheduleRun} run */
function notes(run) {
  return [run.manual && 'by hand', run.misfire && 'for all occurrences that were missed from then on'].filter(Boolean).join(', ');
}

/** @param {Schedule} rule */
function words(rule) {
  return inWords(rule.cron) ?? '';
}

/** Runs it now, and says what came of it. @param {string} name */
async function runNow(name) {
  const run = await onceAnswered(`run ${name}`, (headers) => post(at(name, 'run'), undefined, headers));
  if (run.skipped) toast(`Nothing was pushed: the job of the last run is unfinished, and “overlap” is “skip”.`, 'bad');
  else toast(`Pushed job ${run.job_id}`);
}

/** @param {Schedule} rule */
async function togglePause(rule) {
  await post(at(rule.name, rule.paused ? 'resume' : 'pause'));
  toast(rule.paused ? `${rule.name} goes on` : `${rule.name} is paused: its times pass without a job`);
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function schedules(context) {
  const { signal } = context;
  let { params } = context;
  const table = grid({
    caption: 'Schedules',
    columns: [
      'Schedule',
      'Rule',
      'Queue',
      { label: 'Next', class: 'num start' },
      'Last run',
      { label: 'Actions', hidden: true, class: 'num' },
    ],
    key: (/** @type {Schedule} */ rule) => rule.name,
    href: (rule) => link(['schedules', rule.name]),
    make: (first) => makeRow(first, () => list.again()),
  });
  const none = empty(
    asSeen('There are no schedules.'),
    'A schedule pushes a job at the times of a cron rule. ',
    may('operate') && 'Make one with “New schedule”, or: ',
    may('operate') &&
      shellLine(
        curl(
          'PUT',
          '/v1/schedules/nightly',
          '{"cron": "0 3 * * *", "time_zone": "Europe/Berlin", "queue": "reports", "job": {"payload": {"report": "nightly"}}}',
        ),
      ),
  );
  const body = orNothing(table, none);
  const broken = h('div');
  const pages = pager(context);
  const list = loaded(
    signal,
    5000,
    /** @returns {Promise<SchedulesPage>} */ () => get(query(at(), { limit: 100, cursor: params.get('cursor') }), signal),
    (answer) => {
      body.set(answer.schedules);
      swap(
        broken,
        ...(answer.unreadable ?? []).map((/** @type {UnreadableSchedule} */ one) =>
          h(
            'p',
            { class: 'remark bad' },
            h('strong', null, one.name),
            ` cannot be read, and does not run: ${plain(one.detail)} `,
            may('operate') && button('Delete…', () => remove(one.name, list.again), { class: 'danger' }),
          ),
        ),
      );
      pages.set(answer.cursor);
    },
    broken,
    h('section', { class: 'card', 'aria-label': 'Schedules' }, body.node),
    pages.node,
  );
  const create = async () => {
    const made = await openWith(loadForm, ({ editSchedule }) => editSchedule());
    if (made !== undefined) go(link(['schedules', made.name]));
  };
  if (may('operate')) registerCommands(signal, [{ label: 'New schedule', run: create }]);
  return {
    title: 'Schedules',
    node: page('Schedules', [may('operate') && button('New schedule', create, { class: 'primary' })], list.node),
    update: (next) => {
      params = next.params;
      list.again();
    },
  };
}

/** @param {Schedule} first @param {() => void} again */
function makeRow(first, again) {
  let rule = first;
  const paused = badge('paused', 'warn');
  const said = h('span');
  const cron = h('small', { class: 'mono block' });
  const next = when(undefined);
  const last = h('span');
  const hold = button('Pause', async () => {
    await togglePause(rule);
    again();
  });
  const run = button('Run now', async () => {
    await runNow(rule.name);
    again();
  });
  const queue = h('span');
  return {
    cells: [
      [h('a', { class: 'name', href: link(['schedules', first.name]) }, first.name), ' ', paused],
      [said, cron],
      queue,
      next,
      last,
      may('operate') && h('span', { class: 'row end' }, run, hold),
    ],
    set: (/** @type {Schedule} */ item) => {
      rule = item;
      show(paused, rule.paused === true);
      text(said, words(rule) || rule.cron);
      text(cron, `${rule.cron}  ${rule.time_zone ?? 'UTC'}`);
      if (queue.textContent !== rule.queue) swap(queue, queueLink(rule.queue));
      setWhen(next, rule.next_runs[0]);
      const ran = rule.last_runs.at(-1);
      const of = ran === undefined ? '' : `${ran.at} ${ran.skipped ?? ''}`;
      if (last.dataset.of !== of) {
        last.dataset.of = of;
        swap(
          last,
          ...(ran === undefined
            ? ['never']
            : [
                when(ran.at),
                ' ',
                ran.skipped && badge(ran.skipped === 'misfire' ? 'missed' : 'skipped', ran.skipped === 'misfire' ? 'bad' : 'warn'),
              ]),
        );
      }
      text(hold, rule.paused ? 'Resume' : 'Pause');
      attr(hold, 'aria-label', `${rule.paused ? 'Resume' : 'Pause'} ${rule.name}`);
      attr(run, 'aria-label', `Run now: ${rule.name}`);
    },
  };
}

/** @param {string} name @param {() => void} then */
function remove(name, then) {
  return confirm({
    title: `Delete ${name}?`,
    text: 'It pushes no more jobs. Jobs that it has pushed are not affected; the record of its runs is gone.',
    action: 'Delete the schedule',
    word: name,
    submit: async () => {
      await del(at(name));
      toast(`${name} is deleted`);
      then();
    },
  });
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function schedule(context) {
  const { signal } = context;
  const name = context.parts[1];
  const head = h('div');
  const next = h('div');
  const runs = h('div');
  const payload = jsonCard('Job', { file: name });
  /** @type {Schedule} */ let rule;
  /** @type {string} */ let raw;
  let shown = '';
  const one = loaded(
    signal,
    3000,
    /** @returns {Promise<Schedule>} */ async () => {
      raw = await getText(at(name), signal);
      return JSON.parse(raw);
    },
    (answer) => {
      rule = answer;
      text(hold, rule.paused ? 'Resume' : 'Pause');
      payload.set(member(raw, 'job'));
      const of = JSON.stringify([rule.version, rule.paused, rule.next_runs, rule.last_runs]);
      if (of === shown) return;
      shown = of;
      swap(head, describe(rule));
      swap(
        next,
        rule.paused
          ? empty('It is paused.', 'Its times pass without a job until it is resumed. “Run now” works all the same.')
          : nextTimes(rule.next_runs, rule.time_zone ?? 'UTC'),
      );
      swap(runs, lastRuns(rule.last_runs));
    },
    head,
    h('div', { class: 'halves' }, card('Next times', next), card('Last runs', runs)),
    payload.node,
  );
  const run = button('Run now', async () => {
    await runNow(name);
    one.again();
  });
  const hold = button('Pause', async () => {
    await togglePause(rule);
    one.again();
  });
  const edit = button('Edit', async () => {
    if (await openWith(loadForm, ({ editSchedule }) => editSchedule(rule, raw))) one.again();
  });
  const bin = button('Delete…', () => remove(name, () => leave('schedules')), { class: 'danger' });
  const same = button('Copy as curl', () => copy(curl('GET', at(name))), { class: 'quiet' });
  const allowed = may('operate');
  const actions = h('div', { class: 'row' }, ...one.acts([same, ...(allowed ? [run, hold, edit, bin] : [])]));
  registerButtons(signal, actions, name);
  return { title: name, node: page(crumb('schedules', 'Schedules', name), [actions], one.node) };
}

/** @param {Schedule} rule */
function describe(rule) {
  return card(
    'Rule',
    facts([
      [
        'When',
        h(
          'span',
          null,
          words(rule) && h('span', { class: 'strong' }, `${words(rule)} `),
          h('code', null, rule.cron),
          ` in ${rule.time_zone}`,
        ),
      ],
      ['State', rule.paused ? badge('paused', 'warn') : badge('running', 'good')],
      ['Queue', queueLink(rule.queue)],
      ['If the last job is unfinished', rule.overlap === 'skip' ? 'push nothing (skip)' : 'push all the same (allow)'],
      ['Times that no server ran', rule.misfire === 'skip' ? 'leave them out (skip)' : 'one job for all of them (once)'],
    ]),
  );
}

/** @param {ScheduleRun[]} list oldest first */
function lastRuns(list) {
  if (list.length === 0) return empty('It has not run yet.');
  const skipped = list.filter((run) => run.skipped === 'overlap').length;
  const missed = list.filter((run) => run.skipped === 'misfire' || run.misfire).length;
  const sum = [skipped > 0 && `${format.plural(skipped, 'run')} skipped`, missed > 0 && `${format.plural(missed, 'run')} for missed times`]
    .filter(Boolean)
    .join(', ');
  return h(
    'div',
    { class: 'scroll' },
    sum !== '' && h('p', { class: 'warn' }, `Of the last ${list.length}: ${sum}.`),
    h(
      'table',
      null,
      h('caption', { class: 'unseen' }, 'The last ten runs'),
      h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Time'), h('th', { scope: 'col' }, 'What became of it'))),
      h(
        'tbody',
        null,
        ...[...list]
          .reverse()
          .map((run) =>
            h(
              'tr',
              run.job_id ? { 'data-row': run.job_id, 'data-href': link(['jobs', run.job_id]), tabindex: '-1' } : null,
              h('td', { class: 'num start' }, when(run.at)),
              h('td', null, ...outcome(run), notes(run) !== '' && h('small', { class: 'muted' }, ` ${notes(run)}`)),
            ),
          ),
      ),
    ),
  );
}
