// What can be done to one job: which of it is possible, and the call.

import { path, query } from './api.js';
import { may } from './session.js';

/** @typedef {{to?: string, priority?: number, force?: boolean}} Wanted */
/** @typedef {{method: string, at: string, body?: any}} Call */
/**
 * `can`: whether it is possible with a job as it is. `says` what it will do, `saysMany` what it will do to many.
 * @typedef {{name: string, label: string, says: string, saysMany: string, done: string, push?: boolean, danger?: boolean, can: (job: import('./json.js').Job) => boolean, call: (id: string, wanted: Wanted) => Call}} Act
 */

const isOpen = (/** @type {any} */ { state }) => state === 'ready' || state === 'scheduled' || state === 'blocked';
/** @param {string} id @param {string} what */
const postTo = (id, what) => ({ method: 'POST', at: path('jobs', id, what) });

/** @type {Act[]} */
export const ACTS = [
  {
    name: 'retry',
    label: 'Retry',
    done: 'is ready',
    says: 'Makes it ready at once where it is. Its attempts start again.',
    saysMany: 'Makes them ready at once where they are. Their attempts start again.',
    can: ({ state }) => state === 'dead' || state === 'scheduled',
    call: (id) => postTo(id, 'retry'),
  },
  {
    name: 'run',
    label: 'Run now',
    done: 'is due',
    says: 'Makes it due at once. Its attempts stay as they are.',
    saysMany: 'Makes them due at once. Their attempts stay as they are.',
    can: ({ state, run_at: at }) => state === 'scheduled' || (state === 'blocked' && Date.parse(at) > Date.now()),
    call: (id) => postTo(id, 'run'),
  },
  {
    name: 'redrive',
    label: 'Redrive',
    done: 'is redriven',
    push: true,
    says: 'Returns it to the queue where it died; a job that is dead here is made ready here.',
    saysMany: 'Returns each to the queue where it died; those that are dead where they are become ready there.',
    can: ({ state, dead_lettered_from: from }) => state === 'dead' || (from !== undefined && state !== 'reserved' && state !== 'done'),
    call: (id) => postTo(id, 'redrive'),
  },
  {
    name: 'replay',
    label: 'Replay',
    done: 'is pushed again, as a copy',
    push: true,
    says: 'Pushes a copy with a new id, without key, expiry and route. The job itself stays.',
    saysMany: 'Pushes a copy of each with a new id, without key, expiry and route. The jobs themselves stay.',
    can: ({ state }) => state === 'dead' || state === 'done',
    call: (id) => ({ ...postTo(id, 'replay'), body: {} }),
  },
  {
    name: 'release',
    label: 'Release',
    done: 'is released',
    says: 'Takes it from its worker, whose commit is refused from then on. It comes back to its place, and the attempt does not count.',
    saysMany: 'Takes them from their workers, whose commits are refused from then on.',
    can: ({ state }) => state === 'reserved',
    call: (id) => postTo(id, 'release'),
  },
  {
    name: 'move',
    label: 'Move …',
    done: 'is moved',
    push: true,
    says: 'Puts it into another queue, where its attempts start again.',
    saysMany: 'Puts them into another queue, where their attempts start again.',
    can: ({ state }) => isOpen({ state }) || state === 'dead',
    call: (id, { to, priority }) => ({ ...postTo(id, 'move'), body: { queue: to, priority } }),
  },
  {
    name: 'set_priority',
    label: 'Priority …',
    done: 'has the priority',
    says: 'A higher one is delivered first.',
    saysMany: 'Jobs of a higher priority are delivered first.',
    can: (job) => isOpen(job),
    call: (id, { priority }) => ({ method: 'PATCH', at: path('jobs', id), body: { priority } }),
  },
  {
    name: 'cancel',
    label: 'Cancel …',
    done: 'is to be cancelled',
    danger: true,
    says: 'Asks its worker to stop. It is removed when the worker gives it back, or its lease ends.',
    saysMany: 'Asks their workers to stop. Each is removed when its worker gives it back, or its lease ends.',
    can: ({ state }) => state === 'reserved',
    call: (id, { force }) => ({ method: 'DELETE', at: query(path('jobs', id), { force: force || undefined }) }),
  },
  {
    name: 'delete',
    label: 'Delete …',
    done: 'is deleted',
    danger: true,
    says: 'Removes it. This cannot be undone.',
    saysMany: 'Removes them. This cannot be undone.',
    can: ({ state }) => state !== 'reserved',
    call: (id) => ({ method: 'DELETE', at: query(path('jobs', id), { reserved: 'refuse' }) }),
  },
];

/** @param {string} name @returns {Act} */
export function act(name) {
  const found = ACTS.find((one) => one.name === name);
  if (!found) throw new Error(`there is no action ${name}`);
  return found;
}

/** Whether whoever uses the page may do this at all. @param {Act} one */
export function mayDo(one) {
  return may('operate') && (!one.push || one.name === 'move' || may('push'));
}
