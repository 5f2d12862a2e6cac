// The live figures of the page that is shown: one stream, closed while the tab is hidden.

import { AWAY, Refusal, ask, stream } from './ask.js';
import { el, replace } from './dom.js';
import { clock } from './format.js';

// The broker sends something at least every 2 s.
const SILENT = 5_000;
const LOST = 12_000;

/**
 * Calls a function for each subject of `GET /live` with its newest object, or with `null` and the
 * refusal while it does not exist. Ends when `signal` aborts.
 */
export function watch(handlers, signal) {
  let attempt = null;
  let heard = Date.now();
  const beat = () => {
    heard = Date.now();
    away(null);
  };
  const open = () => {
    attempt?.abort();
    attempt = null;
    if (signal.aborted || document.hidden) {
      return;
    }
    attempt = new AbortController();
    heard = Date.now();
    const options = {
      signal: AbortSignal.any([signal, attempt.signal]),
      query: { on: Object.keys(handlers).join(',') },
      silence: LOST,
      onBeat: beat,
      onEvent: (type, data) => deliver(handlers, type, JSON.parse(data)),
    };
    stream('/live', options).catch(error => {
      if (!signal.aborted) {
        away(error instanceof Refusal ? error.message : String(error));
      }
    });
  };
  const timer = setInterval(() => {
    if (attempt && Date.now() - heard > SILENT) {
      away(stale(AWAY, heard));
    }
  }, 1000);
  document.addEventListener('visibilitychange', open);
  signal.addEventListener('abort', () => {
    clearInterval(timer);
    document.removeEventListener('visibilitychange', open);
    away(null);
    Object.keys(handlers).forEach(subject => away(null, subject));
  }, { once: true });
  open();
}

function deliver(handlers, type, object) {
  try {
    if (type === 'failed') {
      away(object.message, object.on);
    } else if (type === 'gone') {
      away(null, object.on);
      handlers[object.on]?.(null, object);
    } else {
      away(null, type);
      handlers[type]?.(object);
    }
  } catch (error) {
    // One part of a page that fails must not end the others.
    reportError(error);
  }
}

// What each source has to say; the first one is shown.
const reasons = new Map();

/** Why the figures are old, and since when if they were read at all. */
export function stale(reason, since) {
  return since === null ? reason : `${reason} The figures are from ${clock(since)}.`;
}

/** Whether the page says that the broker does not answer. */
export const isAway = () => [...reasons.values()].some(reason => reason.startsWith(AWAY));

/**
 * Says that the broker does not answer while that is so. Resolves as soon as it answers, or when
 * `signal` aborts.
 */
export async function untilAnswer(signal) {
  signal.addEventListener('abort', () => away(null, signal), { once: true });
  for (;;) {
    try {
      await ask('/me', { signal: AbortSignal.any([signal, AbortSignal.timeout(LOST)]) });
      break;
    } catch (error) {
      if (signal.aborted || (error instanceof Refusal && error.code !== 'away')) {
        break;
      }
      away(AWAY, signal);
    }
    await pause();
  }
  away(null, signal);
}

/** The time until something is tried again, which is not while the tab is hidden. */
export async function pause() {
  do {
    await new Promise(resolve => setTimeout(resolve, 3_000));
  } while (document.hidden);
}

/** Shows why the figures are not of now, or with `null` that this source has no such reason. */
export function away(reason, source = 'live') {
  if (reason) {
    reasons.set(source, reason);
  } else {
    reasons.delete(source);
  }
  const text = [...reasons.values()][0] ?? null;
  const node = document.getElementById('away');
  if (node.textContent !== (text ?? '')) {
    replace(node, text && el('span', {}, text));
  }
}
