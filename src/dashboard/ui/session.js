// Who uses the page, and what that allows.

/** @type {{name?: string, scopes: string[], queues?: string[], keys_required: boolean, read_only: boolean, version: string}} */
export let user = { scopes: [], keys_required: false, read_only: false, version: '' };

/** @param {typeof user} next */
export function setUser(next) {
  user = next;
}

/** The queues of the key, where it is for some only; else the empty text. */
export function ownQueues() {
  return user.scopes.includes('admin') ? '' : (user.queues ?? []).join(', ');
}

/** Says that there is nothing, as far as this key sees. @param {string} sentence "There are no schedules." */
export function asSeen(sentence) {
  const queues = ownQueues();
  return queues === '' ? sentence : sentence.replace(/\.$/, ` that this key may see (${queues}).`);
}

/** Whether a call of this scope is allowed here; what is not is not offered. @param {string} scope */
export function may(scope) {
  return (user.scopes.includes('admin') || user.scopes.includes(scope)) && (scope === 'read' || !user.read_only);
}
