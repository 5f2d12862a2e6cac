// Requests to the broker, and streams of Server-Sent Events over fetch, which can send a token.

import { visible } from './format.js';

/** The token of this tab, and what happens when the broker refuses it. `session.js` sets both. */
export const login = { token: null, refused: () => {} };

/** What a `Refusal` with the code `away` says. */
export const AWAY = 'The broker does not answer.';

/** A request that was refused. The message is a sentence for the reader. */
export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.name = 'Refusal';
    this.status = status;
    this.code = code;
  }
}

// Relative to the page, so that it works below any path of a proxy.
function address(path, query) {
  const url = new URL(path.replace(/^\/+/, ''), document.baseURI);
  url.hash = '';
  for (const [key, value] of Object.entries(query ?? {})) {
    for (const each of [value].flat()) {
      if (each !== null && each !== undefined) {
        url.searchParams.append(key, each);
      }
    }
  }
  return url;
}

async function request(path, { method = 'GET', body, signal, query, headers = {} }) {
  const all = { Accept: 'application/json', ...headers };
  const token = login.token;
  if (token) {
    all.Authorization = `Bearer ${token}`;
  }
  let payload = body;
  if (body !== undefined && body !== null && typeof body !== 'string') {
    payload = JSON.stringify(body);
    all['Content-Type'] = 'application/json';
  } else if (typeof body === 'string') {
    all['Content-Type'] = 'text/plain; charset=utf-8';
  }
  let response;
  try {
    response = await fetch(address(path, query), {
      method, body: payload, signal, headers: all, cache: 'no-store', credentials: 'same-origin',
      redirect: 'error', referrerPolicy: 'no-referrer',
    });
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    throw new Refusal(0, 'away', AWAY);
  }
  if (response.ok) {
    return response;
  }
  const refusal = await refusalOf(response);
  if (response.status === 401 && token === login.token) {
    login.refused(refusal);
  }
  throw refusal;
}

async function refusalOf(response) {
  const wait = Number(response.headers.get('Retry-After')) || 0;
  let refusal;
  try {
    const { code, message } = await response.json();
    refusal = new Refusal(response.status, code, sentence(message));
  } catch {
    // A proxy answers so while it cannot reach the broker.
    const isAway = response.status === 502 || response.status === 504;
    refusal = isAway ? new Refusal(response.status, 'away', AWAY)
      : new Refusal(response.status, 'unknown', `The answer has the status ${response.status}.`);
  }
  refusal.wait = wait * 1000;
  return refusal;
}

function sentence(message) {
  // It may quote what it refuses.
  const text = visible(message);
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(first) ? first : `${first}.`;
}

/** Sends a request and returns its JSON, or its text if it is not JSON. Throws a `Refusal`. */
export async function ask(path, options = {}) {
  const response = await request(path, options);
  const isJson = /\bjson\b/.test(response.headers.get('Content-Type') ?? '');
  const text = await response.text();
  return isJson && text ? JSON.parse(text) : text;
}

/** An error after some of several requests, with what these have done. */
export function partly(error, done) {
  error.message = `${done.filter(Boolean).join(', ')}; then: ${error.message}`;
  return error;
}

/** Sends a request that the broker answers in parts, part by part, and yields each answer. */
export async function* walk(path, { query, ...options } = {}) {
  for (let after = 0; after !== undefined;) {
    const part = await ask(path, { ...options, query: { ...query, after } });
    yield part;
    after = part.next;
  }
}

/**
 * Reads a stream until `signal` aborts, and connects again with back-off. Throws a `Refusal` that
 * no second try would change. `onBeat` is called for whatever arrives, comments too; `silence` is
 * the time in ms without a byte after which the connection counts as lost.
 */
export async function stream(path, { signal, query, onEvent, onState, onBeat, silence = 40_000 }) {
  const position = { id: null, retry: 1000 };
  for (let failures = 0; !signal.aborted; failures += 1) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener('abort', stop, { once: true });
    let timer = setTimeout(stop, silence);
    let wait = 0;
    try {
      const headers = { Accept: 'text/event-stream' };
      if (position.id !== null) {
        headers['Last-Event-ID'] = position.id;
      }
      const response = await request(path, { signal: attempt.signal, query, headers });
      onState?.(true);
      await read(response.body, position, onEvent, () => {
        failures = 0;
        clearTimeout(timer);
        timer = setTimeout(stop, silence);
        onBeat?.();
      }, signal);
    } catch (error) {
      if (error instanceof Refusal && isFinal(error.status) && !signal.aborted) {
        throw error;
      }
      wait = error.wait ?? 0;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', stop);
    }
    if (!signal.aborted) {
      onState?.(false);
      const backoff = Math.min(position.retry * 2 ** failures, 15_000);
      await pause(Math.max(wait, backoff * (0.5 + Math.random() / 2)), signal);
    }
  }
}

// 408 and 429 say: later. Everything else of 4xx stays as it is.
const isFinal = status => status >= 400 && status < 500 && status !== 408 && status !== 429;

function pause(ms, signal) {
  return new Promise(resolve => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

// The parser of the HTML standard, section 9.2.6.
async function read(body, position, onEvent, onBeat, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let endsInCr = false;
  let type = '';
  let data = [];
  const take = line => {
    if (line === '') {
      if (data.length > 0 && !signal.aborted) {
        onEvent(type || 'message', data.join('\n'), position.id);
      }
      type = '';
      data = [];
      return;
    }
    const [, field, value = ''] = /^([^:]*)(?:: ?)?(.*)$/s.exec(line);
    if (field === 'data') {
      data.push(value);
    } else if (field === 'event') {
      type = value;
    } else if (field === 'id' && !value.includes('\0')) {
      position.id = value;
    } else if (field === 'retry' && /^\d+$/.test(value)) {
      position.retry = Number(value);
    }
  };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    onBeat();
    if (!/[\r\n]/.test(value) && !endsInCr) {
      // The middle of a long line.
      rest += value;
      continue;
    }
    // A CR at the end may be half of a CRLF.
    endsInCr = value.endsWith('\r');
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    lines.forEach(take);
  }
}
