// Maps of names that come from outside: a page may be open for weeks, and see any number of them.

/**
 * Sets a value, as the newest of the map, and takes the oldest out where there are more than `most`.
 * @template K, V
 * @param {Map<K, V>} map @param {K} key @param {V} value @param {number} most
 */
export function remember(map, key, value, most) {
  map.delete(key);
  map.set(key, value);
  if (map.size <= most) return;
  for (const oldest of map.keys()) {
    map.delete(oldest);
    return;
  }
}
