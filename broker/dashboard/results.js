// Outcomes of URLs, as the topic `page-ready` has them.

import { ask } from './ask.js';
import { parse } from './events.js';
import { visible } from './format.js';

const KEPT = 10_000;
const PARTS = 20;

// The URL of an event of `page-ready` with its attributes, as one object.
function resultOf({ seq, payload }) {
  const { target, attributes } = parse(payload);
  return { ...Object.fromEntries(attributes), url: target, seq };
}

/** A mark and words for an outcome. */
export function outcomeMark({ outcome, reason }) {
  const kinds = {
    done: 'ok', redirect: 'ok', failed: 'bad', robots: 'off', scope: 'off', trap: 'warn',
  };
  const text = reason && reason !== outcome ? `${outcome}: ${reason}` : outcome;
  return [kinds[outcome] ?? 'off', visible(text)];
}

/**
 * Returns a function that gives the results that match `query` among the newest ones, oldest first,
 * with those that have come since.
 */
export function answersOf(query, signal) {
  let from = `-${KEPT}`;
  let known = [];
  return async () => {
    // Each answer looks at a bounded part of the topic. A busy topic grows meanwhile.
    for (let part = 0, end = null; part < PARTS && end !== from; part += 1) {
      end = from;
      const answer = await ask('/topics/page-ready', {
        signal, query: { ...query, from, limit: KEPT, wait: 0 },
      });
      known = [...known, ...answer.events.map(resultOf)].slice(-KEPT);
      from = answer.next;
    }
    return known;
  };
}
