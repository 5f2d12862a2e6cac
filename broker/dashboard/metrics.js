// GET /metrics as objects: the figures of the whole broker and of each group in one answer.

import { ask } from './ask.js';
import { away, stale } from './live.js';

/**
 * Reads all figures: `all(name)` gives the samples, `of(name, labels)` the value of the first one
 * with these labels or `null`, `sum(name, labels)` the sum of them, and `rates(before)` a function
 * `(name, labels)` that gives the increase a second since an earlier answer.
 */
export async function metrics(signal) {
  return parse(await ask('/metrics', { signal, headers: { Accept: 'text/plain' } }));
}

/** Reads the text format of Prometheus. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split('\n')) {
    const [, name, inner = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line) ?? [];
    if (name) {
      const labels = Object.fromEntries([...inner.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)]
        .map(([, label, content]) => [label, content.replace(/\\(.)/g, unescape)]));
      samples.set(name, [...samples.get(name) ?? [], { labels, value: Number(value) }]);
    }
  }
  const at = performance.now();
  const all = (name, labels = {}) => (samples.get(name) ?? []).filter(each =>
    Object.entries(labels).every(([label, content]) => each.labels[label] === content));
  const of = (name, labels) => all(name, labels)[0]?.value ?? null;
  const sum = (name, labels) => all(name, labels).reduce((total, each) => total + each.value, 0);
  const rates = before => (name, labels) => {
    const grown = before && sum(name, labels) - before.sum(name, labels);
    // A counter that falls belongs to a broker that has been restarted.
    return before && grown >= 0 ? (grown * 1000) / (at - before.at) : null;
  };
  return { all, of, sum, rates, at };
}

/**
 * Does something again and again until `signal` aborts, but not while the tab is hidden: then it is
 * done when the tab is shown again.
 */
export async function poll(work, ms, signal) {
  let done = null;
  let isBusy = false;
  let timer = null;
  const once = async () => {
    if (isBusy || signal.aborted || document.hidden) {
      return;
    }
    isBusy = true;
    try {
      await work();
      done = Date.now();
      away(null, work);
    } catch (error) {
      if (!signal.aborted && error.status !== 401) {
        away(stale(error.message, done), work);
      }
    } finally {
      isBusy = false;
    }
  };
  const wait = time => {
    clearTimeout(timer);
    timer = signal.aborted ? null : setTimeout(next, time);
  };
  const next = async () => {
    await once();
    wait(ms);
  };
  signal.addEventListener('abort', () => away(null, work), { once: true });
  document.addEventListener('visibilitychange', next, { signal });
  await once();
  // Rates need two answers.
  wait(Math.min(ms, 1_000));
}

const unescape = (_, char) => (char === 'n' ? '\n' : char);
