// What the header says in rare cases: the server is of another version than this page, its clock is another one, the key is for some queues only.

import { attr, h, show, swap, text } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { user } from './session.js';
import { button } from './widgets.js';

/** The line that offers to load the page of the server's version, which this page may not understand. @param {string} version */
export function reloadLine(version) {
  return h(
    'p',
    { class: 'remark warn', role: 'status' },
    `The server is version ${version} now, and this page is of ${user.version}. `,
    button('Reload', () => location.reload()),
  );
}

/** Says by how much the clocks differ. @param {Element} node */
export function tellClock(node) {
  const ahead = format.clockAhead();
  const by = format.duration(Math.round(Math.abs(ahead) / 1000) * 1000);
  show(node, true);
  text(node, `clock ${ahead > 0 ? '−' : '+'}${by}`);
  attr(
    node,
    'title',
    `The clock of this machine is ${by} ${ahead > 0 ? 'behind' : 'ahead of'} the server's. Ages and waiting times here are by the ` +
      "server's clock; times of day are the server's, shown in the time zone of this machine.",
  );
}

/** Says which queues the page shows, where the key is for some only. @param {Element} node @param {string} queues */
export function tellScope(node, queues) {
  attr(node, 'title', `This key sees these queues only: ${queues}`);
  swap(node, user.name && h('span', { class: 'roomy' }, `${plain(user.name)}: `), plain(queues));
  show(node, true);
}
