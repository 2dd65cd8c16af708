// Who uses the page, and what that allows.

/** @type {{name?: string, scopes: string[], queues?: string[], keys_required: boolean, read_only: boolean, version: string}} */
export let user = { scopes: [], keys_required: false, read_only: false, version: '' };

/** @param {typeof user} next */
export function setUser(next) {
  user = next;
}

/** Whether a call of this scope is allowed here; what is not is not offered. @param {string} scope */
export function may(scope) {
  return (user.scopes.includes('admin') || user.scopes.includes(scope)) && (scope === 'read' || !user.read_only);
}
