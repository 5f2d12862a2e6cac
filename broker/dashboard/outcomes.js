// The pages of a pass, from the events on `page-ready`, as `tidings job failed` reads them.

import { ask } from './ask.js';
import { GROUP } from './crawl.js';
import { parse } from './events.js';
import { hostOf } from './format.js';
import { GAVE_UP } from './words.js';

/** The permission that reading them needs. */
export const RIGHT = 'sub:page-ready';

// Pages that are held at most, about 1 KB each.
const PAGES_MAX = 100_000;
// Seeds that are held at most.
const SEEDS_MAX = 50;

/** Words of `reason=` as sentences. A word that is not here is shown as it is. */
export const REASONS = {
  ...GAVE_UP,
  url: 'the URL is not one that can be fetched',
  robots: 'robots.txt does not allow it',
  address: 'its address is not on the public internet',
  dns: 'the name does not resolve',
  connect: 'the connection failed',
  'connect-timeout': 'the connection took too long',
  proxy: 'the proxy did not connect',
  tls: 'the TLS handshake failed',
  certificate: 'its certificate is not valid',
  reset: 'the connection ended during the response',
  silent: 'the server sent nothing',
  slow: 'the response came too slowly',
  timeout: 'the request took too long',
  'bad-http': 'the response is not valid HTTP',
  'head-too-large': 'the head of the response is too large',
  interim: 'too much came before the response',
  truncated: 'the body ended too early',
  'too-large': 'the page is too large',
  bomb: 'the body decompresses to far too much',
  encoding: 'the body does not match its encoding',
  redirect: 'it redirects to something that cannot be requested',
  'too-many-redirects': 'its redirects do not end',
  status: 'a status without a page, such as 404',
  'try-later': 'a status that may change later, such as 503',
  storage: 'the page could not be stored',
};

/** Reads the events of a pass, from the oldest one on, and later those that came since then. */
export class PassPages {
  #where;
  #onlyFailed;
  #group = null;
  #next = 'first';
  #last = Promise.resolve();
  /** `{id, url, outcome, reason, ..}` by the id of the page, each with its newest outcome. */
  pages = new Map();
  /** `{host, pages, ms, most}` by host: pages with a time, its sum, the longest. */
  hosts = new Map();
  events = 0;
  /** The URLs without a link to them, and where they led: the seeds that have ended. */
  seeds = new Set();
  /** When the oldest and the newest event came, in ms since 1970. */
  from = null;
  to = null;
  /** The oldest event from which on none is missing. */
  knownFrom = 1;
  /** Whether there were more pages than are held. */
  isCut = false;

  constructor({ job, number, pass }, onlyFailed = true) {
    this.#where = [`in-job=${job}`, `group=${GROUP}`, `number=${number}`, `pass=${pass}`];
    this.#onlyFailed = onlyFailed;
  }

  /** Reads up to the newest event, once the reads before have ended. */
  read(signal, onProgress) {
    const begin = () => this.#read(signal, onProgress);
    this.#last = this.#last.then(begin, begin);
    return this.#last;
  }

  async #read(signal, onProgress) {
    const { next: head, first } = await ask('/topics/page-ready/state', { signal });
    if (this.#next === 'first') {
      this.knownFrom = Math.max(first, 1);
    }
    for (;;) {
      const query = { from: this.#next, wait: '0', limit: 10_000, where: this.#where };
      const answer = await ask('/topics/page-ready', { signal, query });
      answer.events.forEach(({ payload, time }) => this.#add(payload, Date.parse(time)));
      answer.missed.filter(({ kind }) => kind === 'lag').forEach(({ to }) => {
        this.knownFrom = Math.max(this.knownFrom, to + 1);
      });
      const isStill = answer.next === this.#next;
      this.#next = answer.next;
      onProgress?.(this.events);
      if (isStill || answer.next >= head) {
        return;
      }
    }
  }

  /** The pages that failed, by reason, the largest number first: `[[reason, pages], ..]`. */
  byReason() {
    const reasons = new Map();
    for (const page of this.pages.values()) {
      if (page.outcome === 'failed') {
        const reason = page.reason ?? 'unknown';
        reasons.has(reason) ? reasons.get(reason).push(page) : reasons.set(reason, [page]);
      }
    }
    return [...reasons].sort((a, b) => b[1].length - a[1].length);
  }

  #add(payload, time) {
    const { target: url, attributes } = parse(payload);
    const id = attributes.get('page');
    if (!url || !id) {
      return;
    }
    this.events += 1;
    // `page=<group>.<since>.<entry>`: a group that was made again has another `since`.
    const group = id.slice(0, id.lastIndexOf('.'));
    if (group !== this.#group) {
      this.pages.clear();
      this.hosts.clear();
      this.seeds.clear();
      this.from = time;
      this.#group = group;
    }
    this.to = time;
    const number = name => (attributes.has(name) ? Number(attributes.get(name)) : null);
    const word = name => attributes.get(name) ?? null;
    const page = {
      id, url, outcome: word('outcome'), status: number('status'), reason: word('reason'),
      error: word('error'), ms: number('ms'), bytes: number('bytes'), type: word('type'),
      changed: word('changed'), location: word('location'), depth: number('depth'),
      gaveUp: word('gave-up'),
    };
    this.#time(page);
    if (page.depth === 0 && this.seeds.size < SEEDS_MAX) {
      this.seeds.add(url);
    }
    if (this.#onlyFailed && page.outcome !== 'failed') {
      this.pages.delete(id);
    } else if (this.pages.size < PAGES_MAX || this.pages.has(id)) {
      this.pages.set(id, page);
    } else {
      this.isCut = true;
    }
  }

  #time({ url, ms }) {
    const host = hostOf(url);
    if (ms === null || host === null) {
      return;
    }
    const known = this.hosts.get(host) ?? { host, pages: 0, ms: 0, most: 0 };
    known.pages += 1;
    known.ms += ms;
    known.most = Math.max(known.most, ms);
    this.hosts.set(host, known);
  }
}

const FIELDS = ['url', 'outcome', 'status', 'reason', 'error', 'ms', 'bytes', 'type', 'changed',
  'location', 'depth'];

/** The pages as JSON lines or, for `csv`, as a table with a heading. */
export function asText(pages, format) {
  if (format === 'csv') {
    return [FIELDS, ...pages.map(page => FIELDS.map(field => page[field]))]
      .map(row => `${row.map(cell).join(',')}\r\n`).join('');
  }
  return pages.map(page => `${JSON.stringify(Object.fromEntries(FIELDS
    .filter(field => page[field] !== null).map(field => [field, page[field]])))}\n`).join('');
}

// A text that begins like a formula is marked as text: spreadsheets would run it.
function cell(value) {
  if (typeof value !== 'string') {
    return value ?? '';
  }
  const text = /^[=+\-@\t\r]/u.test(value) ? `'${value}` : value;
  return /[",\r\n]/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Gives a text to the browser as a file to keep. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
