// All jobs of all queues: the search.

import { h } from '../dom.js';
import { jobList } from '../jobs.js';

export { jobList };

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function jobs(context) {
  const list = jobList(context, { title: 'Jobs' });
  return { title: 'Jobs', node: h('div', { class: 'stack' }, h('h1', null, 'Jobs'), list.node), update: list.update };
}
