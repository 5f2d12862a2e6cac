// GET /metrics as objects: the figures of the whole broker and of each group in one answer.

import { ask } from './ask.js';

/** Reads all figures. `{of(name, labels), all(name)}`. */
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
  const all = name => samples.get(name) ?? [];
  /** The value with these labels; `null` if there is none. */
  const of = (name, labels = {}) => all(name).find(each =>
    Object.entries(labels).every(([label, content]) => each.labels[label] === content))
    ?.value ?? null;
  return { all, of };
}

const unescape = (_, char) => (char === 'n' ? '\n' : char);
