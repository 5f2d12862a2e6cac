// The session of this tab: identity, permissions, login and logout. The token is kept in
// `sessionStorage`.

import { Refusal, ask, login } from './ask.js';
import { el, replace } from './dom.js';

const KEY = 'tidings-token';
let identity = null;
let left = () => {};

/**
 * Takes a token from `#token=..` out of the address, before anything else can read it. `onLeave` is
 * called when the session ends, with a sentence for the login page or `null`.
 */
export function start(onLeave) {
  left = onLeave;
  const given = /^#token=([^&]+)$/.exec(location.hash);
  if (given) {
    history.replaceState(null, '', location.pathname + location.search);
    sessionStorage.setItem(KEY, decodeURIComponent(given[1]));
  }
  login.token = sessionStorage.getItem(KEY);
  login.refused = () => leave('The broker does not accept this token any more.');
}

/**
 * Asks the broker what this session may do. `null`, or why it may not see the dashboard; an empty
 * text if it is not logged in.
 */
export async function begin() {
  identity = await ask('/me');
  if (identity.can.monitor) {
    return null;
  }
  const reason = whyNot(identity, login.token);
  forget();
  return reason;
}

function whyNot({ known }, token) {
  const unknown = token ? 'The broker does not know this token.' : '';
  return known ? 'This session does not have the permission monitor.' : unknown;
}

/** What `GET /me` said; `null` before. */
export function me() {
  return identity;
}

/** Whether a right is given, such as `admin`, `pub:new-url` or `group:crawlers`. */
export function may(right) {
  if (!identity) {
    return false;
  }
  const { can, permissions, denied = [] } = identity;
  const covers = word => word === right || word === 'all' ||
    (word.endsWith('*') && right.startsWith(word.slice(0, -1)));
  return can[right] ??
    (!denied.some(covers) && (permissions === null || permissions.some(covers)));
}

/** `null`, or which right is missing. */
export function needs(right) {
  return !right || may(right) ? null : `needs the permission ${right}`;
}

/** Ends the session of this tab. */
export function logout() {
  leave(null);
}

function leave(reason) {
  const had = login.token !== null;
  forget();
  left(had ? reason : null);
}

function forget() {
  sessionStorage.removeItem(KEY);
  login.token = null;
  identity = null;
}

/** Shows the login form; `onDone` is called after a token was accepted. */
export function showLogin(main, reason, onDone) {
  const input = el('input', {
    id: 'token', type: 'password', autocomplete: 'off', required: true, spellcheck: 'false',
    'aria-describedby': 'token-hint token-error',
  });
  const error = el('p', { id: 'token-error', class: 'error', role: 'alert' }, reason);
  const submit = async event => {
    event.preventDefault();
    replace(error);
    const token = input.value.trim();
    if (!token) {
      return;
    }
    try {
      await tryToken(token);
      onDone();
    } catch (refusal) {
      input.value = '';
      replace(error, refusal.message);
      input.focus();
    }
  };
  replace(main, el('form', { class: 'login', onsubmit: submit },
    el('h1', { tabindex: '-1' }, 'Log in to Tidings'),
    error,
    el('label', { for: 'token' }, 'Token'),
    input,
    el('p', { id: 'token-hint', class: 'hint' },
      'On the machine of the broker, ', el('code', {}, 'tidings dashboard'),
      ' prints an address with one. It stays in this tab until you log out.'),
    el('button', { type: 'submit', class: 'primary' }, 'Log in')));
  input.focus();
}

async function tryToken(token) {
  // The first question with a token must not end the session that does not exist yet.
  const { refused } = login;
  login.refused = () => {};
  login.token = token;
  try {
    const answer = await ask('/me');
    if (!answer.can.monitor) {
      throw new Refusal(403, 'denied', whyNot(answer, token));
    }
    sessionStorage.setItem(KEY, token);
  } catch (error) {
    login.token = null;
    if (error.status === 401) {
      throw new Refusal(401, 'unauthenticated', 'The broker does not know this token.');
    }
    throw error;
  } finally {
    login.refused = refused;
  }
}
