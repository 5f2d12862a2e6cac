// What the figures of a job say: how far it is, how fast, and when it ends.

import { button, confirm } from './actions.js';
import { ask } from './ask.js';
import { el } from './dom.js';
import { count, plural, visible } from './format.js';

/** The group whose jobs are shown: the one of the crawlers. */
export const GROUP = 'crawlers';

// How far back figures are compared, and how much of that is the least for an estimate.
const WINDOW = 120_000;
const ENOUGH = 45_000;

/** The URLs of a job that have not ended. */
export const openUrls = job => job.pending + job.queued + job.processing;

/** The URLs of a job that have ended, with any outcome. */
export const endedUrls = job => Math.max(0, job.found - openUrls(job));

/** How long the pass of a job took, or has taken so far, in ms. */
export const took = job =>
  Math.max(0, (job.ended ? Date.parse(job.ended) : Date.now()) - Date.parse(job.opened));

/** The path of a job, with what follows its name. */
export const jobPath = (name, rest = '') => `/jobs/${encodeURIComponent(name)}${rest}`;

/** A bar of the URLs that have ended. */
export function bar(job) {
  const share = job.found > 0 ? endedUrls(job) / job.found : 0;
  const percent = `${Math.floor(share * 100)}%`;
  return el('span', { class: 'bar' },
    el('progress', { max: Math.max(job.found, 1), value: endedUrls(job), 'aria-label': 'ended' },
      percent),
    el('span', {}, `${count(endedUrls(job))} of ${count(job.found)}`));
}

/** The newest figures of a pass, and what they say about its end. */
export class Trend {
  #samples = [];
  #pass = null;

  /** Adds `{open, completed}` of the pass at a time in ms. Times rise. */
  add(at, open, completed, pass) {
    if (pass !== this.#pass) {
      this.#samples = [];
      this.#pass = pass;
    }
    const last = this.#samples.at(-1);
    if (last && at - last.at < 500) {
      this.#samples.pop();
    }
    this.#samples.push({ at, open, completed });
    while (at - this.#samples[0].at > WINDOW) {
      this.#samples.shift();
    }
  }

  /** Puts figures of a pass from before those that are known. */
  seed(samples, pass) {
    const first = this.#samples[0]?.at ?? Infinity;
    if (this.#pass === null || this.#pass === pass) {
      this.#pass = pass;
      this.#samples.unshift(...samples.filter(({ at }) => at < first));
    }
  }

  /** Pages a second in the last minute; `null` while that is not known. */
  rate() {
    const last = this.#samples.at(-1) ?? null;
    const first = last && this.#samples.find(({ at }) => last.at - at <= 60_000);
    const ms = first ? last.at - first.at : 0;
    return ms >= 2_000 ? (last.completed - first.completed) / ms * 1000 : null;
  }

  /**
   * `{kind, ms}`. `ends`: the queue shrinks evenly and is empty in `ms`; `uneven`: it shrinks, but
   * not evenly; `grows`; `level`: it stays as long as it is; `stands`: nothing ends; `early`: too
   * few figures.
   */
  end() {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (!first || last.at - first.at < ENOUGH) {
      return { kind: 'early' };
    }
    // Seeds and a start full of new links come before the peak and say nothing of the end.
    const peak = this.#samples.reduce((most, each) => (each.open > most.open ? each : most));
    const isYoung = last.at - peak.at < ENOUGH;
    const start = isYoung ? first : peak;
    const middle = this.#samples.find(({ at }) => at >= (start.at + last.at) / 2);
    const fall = (from, to) => (to.at > from.at ? (from.open - to.open) / (to.at - from.at) : 0);
    const [before, now] = [fall(start, middle), fall(middle, last)];
    if (now < 0) {
      return { kind: 'grows' };
    }
    if (isYoung) {
      return { kind: 'uneven' };
    }
    if (now === 0) {
      return { kind: last.completed > middle.completed ? 'level' : 'stands' };
    }
    // Politeness slows the end of a crawl down: only a steady fall is continued.
    return now > before * 2 || now < before / 2
      ? { kind: 'uneven' } : { kind: 'ends', ms: last.open / now };
  }
}

/** A time in words that claim no more than is known: `a minute`, `40 min`, `3 h`, `2 days`. */
export function about(ms) {
  const minutes = ms / 60_000;
  if (minutes < 1.5) {
    return 'a minute';
  }
  if (minutes < 90) {
    const step = minutes < 10 ? 1 : 5;
    return `${Math.round(minutes / step) * step} min`;
  }
  return minutes < 36 * 60 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
}

/** Whether a rule without an end holds a host: a row of `GET /groups/{group}/keys`. */
export const isHeld = key => key['left-ms'] === undefined;

/** A sentence about the end of a pass. `keys`: what waits, with `left-ms`; held hosts come first. */
export function endSentence(job, trend, keys = []) {
  const least = keys.reduce((most, key) => (key['left-ms'] > (most?.['left-ms'] ?? 0) ? key : most),
    null);
  const bound = least && least['left-ms'] >= 60_000 ? least['left-ms'] : 0;
  const end = trend.end();
  if (job.state === 'done') {
    return 'This pass is done.';
  }
  if (job.state === 'paused') {
    return 'It is paused: nothing of it is fetched until it is resumed.';
  }
  if (openUrls(job) === 0) {
    return job.state === 'open' ? 'Nothing waits. It stays open for seeds until it is closed.'
      : 'Nothing waits. It is about to end.';
  }
  if (keys.some(isHeld)) {
    const others = keys.filter(isHeld).length > 1 ? ' and other hosts' : '';
    return `No end is in sight: a rule holds ${visible(keys[0].key)}${others}, and does not end by ` +
      'itself.';
  }
  const stays = job.state === 'open' ? ' It is open, so further seeds may come.' : '';
  if (end.kind === 'ends' && end.ms >= bound) {
    return `At the present rate it ends in about ${about(end.ms)}.${stays}`;
  }
  const atLeast = bound
    ? ` It takes at least ${about(bound)}: ${plural(least.waiting, 'URL')} of ` +
      `${visible(least.key)} wait for their turns.` : '';
  const sentence = {
    ends: 'The queue shrinks.',
    uneven: 'The queue shrinks, but not evenly enough for an estimate.',
    grows: 'More links are found than pages are fetched, so no end is in sight.',
    level: 'As many links are found as pages are fetched, so no end is in sight.',
    stands: 'Nothing of it has ended for a while; see what holds it up.',
    early: 'It is too early to say when it ends.',
  }[end.kind];
  return sentence + atLeast + stays;
}

/** How long a job takes at the present rate, for a cell; empty if that is not known. */
export function timeToGo(job, trend) {
  const end = job.state === 'open' || job.state === 'closed' ? trend.end() : null;
  return end?.kind === 'ends' && openUrls(job) > 0 ? `about ${about(end.ms)}` : '';
}

/** The buttons for what may be done to a job in its state. `now()` gives its newest figures. */
export function controls(now) {
  const { job: name, state } = now();
  const act = (label, action, said) => button({
    label, right: `job:${name}`, run: async () => {
      await ask(jobPath(name, `/${action}`), { method: 'POST' });
      return `${name} ${said}.`;
    },
  });
  const cancel = button({
    label: 'Cancel', right: `job:${name}`, danger: true, run: async () => {
      const { pending, queued } = now();
      const waiting = plural(pending + queued, 'waiting URL');
      const isSure = await confirm({
        title: `Cancel ${name}?`, action: 'Cancel the job',
        text: `${waiting} will be dropped. Pages that crawlers hold are finished.`,
      });
      if (!isSure) {
        return null;
      }
      await ask(jobPath(name, '/cancel'), { method: 'POST' });
      return `${name} is cancelled.`;
    },
  });
  return {
    open: [act('Close', 'close', 'is closed'), act('Pause', 'pause', 'is paused'), cancel],
    closed: [act('Pause', 'pause', 'is paused'), cancel],
    paused: [act('Resume', 'resume', 'goes on'), cancel],
  }[state] ?? [];
}
