// Which queues hand jobs on to which: found in the ways of recent jobs and in the settings of queues.

import { remember } from './bounded.js';

/** Why jobs go from one queue to another. @typedef {'route' | 'moved' | 'dead' | 'redriven'} Why */
/** @typedef {{from: string, to: string, why: Why, seen: number, lastAt?: string}} Edge */

/** What a step of a trail is here. @type {Record<string, Why>} */
const WHY = { committed: 'route', moved: 'moved', dead: 'dead', redriven: 'redriven' };

/** Of so many jobs it is known how many of their steps were counted: those that were seen last. */
const JOBS_MAX = 50_000;

/** The edges that are known, and the jobs that were counted: each once, however often it is found. */
export class Stages {
  constructor() {
    /** @type {Map<string, Edge>} */ this.edges = new Map();
    // How many steps of a job were counted.
    /** @type {Map<string, number>} */ this.counted = new Map();
  }

  /** @param {string} from @param {string} to @param {Why} why @param {number} seen @param {string} [at] */
  add(from, to, why, seen, at) {
    const key = JSON.stringify([from, to, why]);
    const edge = this.edges.get(key) ?? { from, to, why, seen: 0 };
    edge.seen += seen;
    if (at !== undefined && (edge.lastAt === undefined || at > edge.lastAt)) edge.lastAt = at;
    this.edges.set(key, edge);
  }

  /** Counts the steps of a job that were not counted before. @param {any} job */
  addJob(job) {
    const trail = job.trail ?? [];
    for (let n = this.counted.get(job.id) ?? 0; n < trail.length; n++) {
      this.add(trail[n].queue, trail[n + 1]?.queue ?? job.queue, WHY[trail[n].reason] ?? 'moved', 1, trail[n].at);
    }
    if (trail.length > 0) remember(this.counted, job.id, trail.length, JOBS_MAX);
    // What is still to come is a way that exists, though nobody has gone it yet.
    let from = job.queue;
    for (const { queue } of job.then ?? []) {
      this.add(from, queue, 'route', 0);
      from = queue;
    }
  }

  /** The queues that are part of it. */
  queues() {
    return new Set([...this.edges.values()].flatMap(({ from, to }) => [from, to]));
  }
}

/** @typedef {{name: string, layer: number, row: number}} Place */

/**
 * Parts that hang together, the largest first. @param {Edge[]} edges @returns {string[][]}
 */
function components(edges) {
  /** @type {Map<string, Set<string>>} */ const beside = new Map();
  for (const { from, to } of edges) {
    for (const [one, other] of [
      [from, to],
      [to, from],
    ])
      beside.set(one, (beside.get(one) ?? new Set()).add(other));
  }
  /** @type {Set<string>} */ const seen = new Set();
  const parts = [];
  for (const first of [...beside.keys()].sort()) {
    if (seen.has(first)) continue;
    const part = [];
    const open = [first];
    seen.add(first);
    for (let name = open.pop(); name !== undefined; name = open.pop()) {
      part.push(name);
      for (const next of beside.get(name) ?? []) {
        if (seen.has(next)) continue;
        seen.add(next);
        open.push(next);
      }
    }
    parts.push(part);
  }
  return parts.sort((one, other) => other.length - one.length || (one[0] < other[0] ? -1 : 1));
}

/** The edges that go forward: without those that lead back to where one came from. @param {Edge[]} edges @param {string[]} names */
function forward(edges, names) {
  /** @type {Map<string, Edge[]>} */ const out = new Map();
  for (const edge of edges) out.set(edge.from, [...(out.get(edge.from) ?? []), edge]);
  const hasIn = new Set(edges.filter(({ from, to }) => from !== to).map(({ to }) => to));
  const kept = new Set();
  /** @type {Map<string, 'open' | 'over'>} */ const state = new Map();
  for (const start of [...names.filter((name) => !hasIn.has(name)), ...names]) {
    if (state.has(start)) continue;
    /** @type {{name: string, at: number}[]} */ const stack = [{ name: start, at: 0 }];
    state.set(start, 'open');
    while (stack.length > 0) {
      const top = stack[stack.length - 1];
      const edge = out.get(top.name)?.[top.at++];
      if (edge === undefined) {
        state.set(top.name, 'over');
        stack.pop();
      } else if (state.get(edge.to) !== 'open') {
        kept.add(edge);
        if (!state.has(edge.to)) {
          state.set(edge.to, 'open');
          stack.push({ name: edge.to, at: 0 });
        }
      }
    }
  }
  return edges.filter((edge) => kept.has(edge));
}

/** Puts the queues into columns: each behind all that hand jobs to it; and above one another so that few lines cross. @param {Edge[]} all @returns {{places: Place[], columns: number, rows: number}} */
export function layout(all) {
  // Redrives lead back by nature.
  const edges = all.filter(({ why, from, to }) => why !== 'redriven' && from !== to);
  /** @type {Place[]} */ const places = [];
  let base = 0;
  let columns = 0;
  for (const names of components(all)) {
    const mine = new Set(names);
    const ahead = forward(
      edges.filter(({ from }) => mine.has(from)),
      names.sort(),
    );
    const layers = new Map(names.map((name) => [name, 0]));
    for (let round = 0, moved = true; moved && round <= names.length; round++) {
      moved = false;
      for (const { from, to } of ahead) {
        const at = (layers.get(from) ?? 0) + 1;
        if ((layers.get(to) ?? 0) >= at) continue;
        layers.set(to, at);
        moved = true;
      }
    }
    for (const name of names) {
      // What only takes the dead stands below the last that hands them to it, not behind it.
      const into = ahead.filter(({ to }) => to === name);
      if (into.length === 0 || into.some(({ why }) => why !== 'dead') || ahead.some(({ from }) => from === name)) continue;
      layers.set(name, Math.max(...into.map(({ from }) => layers.get(from) ?? 0)));
    }
    const height = place(names, layers, ahead, base, places);
    columns = Math.max(columns, 1 + Math.max(...layers.values()));
    base += height;
  }
  return { places, columns, rows: base };
}

/** @param {string[]} names @param {Map<string, number>} layers @param {Edge[]} ahead @param {number} base @param {Place[]} places @returns {number} how many rows it takes */
function place(names, layers, ahead, base, places) {
  /** @type {string[][]} */ const columns = [];
  for (const name of names) (columns[layers.get(name) ?? 0] ??= []).push(name);
  /** @type {Map<string, number>} */ const rows = new Map();
  let height = 0;
  for (const column of columns) {
    const wanted = (/** @type {string} */ name) => {
      const from = ahead.filter(({ to }) => to === name).map((edge) => rows.get(edge.from) ?? 0);
      return from.length === 0 ? 0 : from.reduce((sum, row) => sum + row, 0) / from.length;
    };
    const isDead = (/** @type {string} */ name) =>
      Number(ahead.some(({ to }) => to === name) && ahead.every(({ to, why }) => to !== name || why === 'dead'));
    column.sort((one, other) => isDead(one) - isDead(other) || wanted(one) - wanted(other) || (one < other ? -1 : 1));
    // What only takes the dead is below the way that jobs should go.
    let free = 0;
    for (const name of column) {
      const row = Math.max(free, isDead(name) ? 1 : 0);
      rows.set(name, row);
      free = row + 1;
    }
    height = Math.max(height, free);
  }
  for (const name of names) places.push({ name, layer: layers.get(name) ?? 0, row: base + (rows.get(name) ?? 0) });
  return height;
}
