// Outcomes of URLs, as the topic `page-ready` has them.

import { ask } from './ask.js';
import { parse } from './events.js';
import { visible } from './format.js';
import { REASONS } from './outcomes.js';

const PATH = '/topics/page-ready';
// Results of one answer, and results that are kept of those that follow each other.
const KEPT = 10_000;
const PARTS = 20;
// Results that a search looks at, until the reader wants it to go on.
const LOOKED_MAX = 200_000;

// The URL of an event of `page-ready` with its attributes, as one object.
function resultOf({ seq, time, payload }) {
  const { target, attributes } = parse(payload);
  return { ...Object.fromEntries(attributes), url: target, seq, time, payload };
}

/** A mark and words for an outcome. */
export function outcomeMark({ outcome, reason }) {
  const kinds = {
    done: 'ok', redirect: 'ok', failed: 'bad', robots: 'off', scope: 'off', trap: 'warn',
  };
  const text = reason && reason !== outcome ? `${outcome}: ${REASONS[reason] ?? reason}` : outcome;
  return [kinds[outcome] ?? 'off', visible(text)];
}

// Reads from `from` on, up to the seq `end` or the newest result: `{found, next}`, oldest first.
async function readOn(query, from, end, signal) {
  const found = [];
  let next = from;
  // Each answer looks at a bounded part of the topic. A busy topic grows meanwhile.
  const isRead = part => (end === undefined ? part === PARTS : next >= end);
  for (let part = 0, before = null; before !== next && !isRead(part); part += 1) {
    before = next;
    const limit = end === undefined ? KEPT : Math.min(KEPT, end - next);
    const answer = await ask(PATH, { signal, query: { ...query, from: next, limit, wait: 0 } });
    found.push(...answer.events.map(resultOf));
    ({ next } = answer);
  }
  return { found, next };
}

/**
 * Returns a function that gives the results that match `query` among the newest ones, oldest first,
 * with those that have come since.
 */
export function answersOf(query, signal) {
  let from = `-${KEPT}`;
  let known = [];
  return async () => {
    const { found, next } = await readOn(query, from, undefined, signal);
    known = [...known, ...found].slice(-KEPT);
    from = next;
    return known;
  };
}

/** The results that match `query` and for which `has` holds, read back from the newest one. */
export class Results {
  #query;
  #has;
  #signal;
  #end;
  /** Those that were read, the newest first. */
  rows = [];
  /** The state of the topic at the start; `null` if no result was ever published. */
  topic = null;
  /** The oldest seq that was looked at. */
  begin = 1;

  constructor(query, has, signal) {
    this.#query = query;
    this.#has = result => result.url !== null && has(result);
    this.#signal = signal;
  }

  /** Begins at the end of the topic, or at the seq `before`. */
  async start(before) {
    try {
      this.topic = await ask(`${PATH}/state`, { signal: this.#signal });
    } catch (error) {
      if (error.status !== 404) {
        throw error;
      }
    }
    this.#end = this.topic?.next ?? 1;
    this.begin = before ?? this.#end;
  }

  /** Whether nothing older is kept. */
  get isWhole() {
    return this.topic === null || this.begin <= this.topic.first;
  }

  /** Reads back until there are `wanted` more rows, or until very many results were looked at. */
  async older(wanted) {
    const goal = this.rows.length + wanted;
    let size = Math.max(wanted, 100);
    for (let looked = 0; !this.isWhole && this.rows.length < goal && looked < LOOKED_MAX;) {
      const from = Math.max(this.begin - size, this.topic.first);
      const { found } = await readOn(this.#query, from, this.begin, this.#signal);
      const fits = result => result.seq < this.begin && this.#has(result);
      this.rows.push(...found.filter(fits).reverse());
      looked += this.begin - from;
      this.begin = from;
      size = Math.min(size * 2, KEPT);
    }
  }

  /** The results that have come since the last call, the newest first. They are no rows yet. */
  async newer() {
    const { found, next } = await readOn(this.#query, this.#end, undefined, this.#signal);
    this.#end = next;
    return found.filter(this.#has).reverse();
  }

  /** Adds newer rows, and forgets the oldest ones beyond `most`. */
  add(newer, most) {
    this.rows.unshift(...newer);
    if (this.rows.length > most) {
      this.rows.length = most;
      this.begin = this.rows.at(-1).seq;
    }
  }
}
