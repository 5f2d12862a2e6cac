// Lists that the broker returns in parts: the first part again and again, further ones on demand.

import { say } from './actions.js';
import { ask } from './ask.js';

/**
 * Reads the list at `path` into `view`, a table. `field` holds the rows of an answer and `key`
 * names a row. `onRead(answer)` gets each first part.
 *
 * Returns `{reload(query), refresh(), fresh(answer), rows()}`: `reload` reads the first part and
 * forgets the further ones, `refresh` reads the first part alone, and `fresh` takes a first part
 * that came from elsewhere.
 */
export function list({ path, query = {}, field, key, limit = 100, onRead }, view, signal) {
  let first = new Map();
  let further = new Map();
  let next = null;
  let isWhole = true;
  let selection = query;
  let version = 0;

  const read = extra => ask(path, { signal, query: { ...selection, limit, ...extra } });
  const rows = () => [...new Map([...first, ...further, ...first]).values()];
  const more = () => readMore().catch(error => !signal.aborted && say(error.message, true));
  const draw = () => view.update(rows(), { more: next === null ? null : more });

  function fresh(answer) {
    const isAll = answer.next === undefined && answer.matched === answer[field].length;
    first = new Map(answer[field].map(row => [key(row), row]));
    isWhole ||= isAll;
    // Other rows of further parts stay as they were read: to read them again could take long.
    if (isWhole) {
      further = new Map();
      // Lists without `next` in their first part are walked from the beginning.
      next = isAll ? null : answer.next ?? 0;
    } else if (answer.next !== undefined) {
      // What has moved up into the first part leaves the list with it.
      first.forEach((row, name) => further.delete(name));
    }
    draw();
    onRead?.(answer);
  }

  async function readMore() {
    const started = version;
    isWhole = false;
    const before = rows().length;
    // A part can have only rows that are known, or none.
    while (next !== null && rows().length <= before) {
      const answer = await read({ after: next, limit: Math.max(limit, 500) });
      if (started !== version) {
        return;
      }
      answer[field].forEach(row => further.set(key(row), row));
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

  async function refresh() {
    const started = version;
    const answer = await read({});
    if (started === version) {
      fresh(answer);
    }
  }

  return { reload, refresh, fresh, rows };
}
