// Lists that the broker returns in parts: the first part again and again, further ones on demand.

import { say } from './actions.js';
import { ask } from './ask.js';

/**
 * Reads the list at `path` into `view`, a table. `field` holds the rows of an answer and `key`
 * names a row. `onRead(answer)` gets each first part.
 *
 * Returns `{reload(query), refresh(), fresh(answer), rows()}`: `reload` reads the first part and
 * forgets the further ones, `refresh` does so unless the reader has asked for further ones, and
 * `fresh` takes a first part that came from elsewhere.
 */
export function list({ path, query = {}, field, key, limit = 100, onRead }, view, signal) {
  let rows = new Map();
  let next = null;
  let isWhole = true;
  let selection = query;
  let version = 0;

  const read = extra => ask(path, { signal, query: { ...selection, limit, ...extra } });
  const add = answer => answer[field].forEach(row => rows.set(key(row), row));
  const more = () => readMore().catch(error => !signal.aborted && say(error.message, true));
  const draw = () => view.update([...rows.values()], { more: next === null ? null : more });

  function fresh(answer) {
    // Rows of further parts stay as they were read: to read them again could take long.
    if (isWhole) {
      rows = new Map();
      // Lists without `next` in their first part are walked from the beginning.
      next = answer.next ?? (answer.matched === answer[field].length ? null : 0);
    }
    add(answer);
    draw();
    onRead?.(answer);
  }

  async function readMore() {
    const started = version;
    isWhole = false;
    const before = rows.size;
    // A part can have only rows that are known, or none.
    while (next !== null && rows.size === before) {
      const answer = await read({ after: next, limit: Math.max(limit, 500) });
      if (started !== version) {
        return;
      }
      add(answer);
      next = answer.next ?? null;
    }
    draw();
  }

  async function reload(changed = selection) {
    selection = changed;
    version += 1;
    const started = version;
    const answer = await read({});
    if (started === version) {
      isWhole = true;
      fresh(answer);
    }
  }

  const refresh = () => (isWhole ? reload() : Promise.resolve());
  return { reload, refresh, fresh, rows: () => [...rows.values()] };
}
