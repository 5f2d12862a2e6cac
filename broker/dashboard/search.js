// A search that the broker does: by host, and by URL pattern.

import { el } from './dom.js';

/** `run({key, match})` is called when the reader searches; what is empty is `undefined`. */
export function searchForm(run) {
  const key = el('input', { id: 'search-key', autocomplete: 'off', spellcheck: 'false' });
  const match = el('input', {
    id: 'search-match', autocomplete: 'off', spellcheck: 'false', 'aria-describedby': 'search-hint',
  });
  const error = el('p', { class: 'error', role: 'alert' });
  const search = async event => {
    event.preventDefault();
    error.textContent = '';
    try {
      await run({
        key: key.value.trim().toLowerCase() || undefined, match: pattern(match.value.trim()),
      });
    } catch (refusal) {
      error.textContent = refusal.message;
    }
  };
  return el('form', { class: 'search', role: 'search', onsubmit: search },
    el('label', { for: 'search-key' }, 'Host'), key,
    el('label', { for: 'search-match' }, 'URL'), match,
    el('button', { type: 'submit' }, 'Search'),
    el('p', { id: 'search-hint', class: 'hint' },
      'Any part of a URL, or a pattern as in robots.txt such as /news/*.pdf$.'), error);
}

// A pattern begins with a path, a star or a scheme; any other text may be anywhere in the URL.
function pattern(text) {
  return !text || /^(\/|\*|https?:)/.test(text) ? text || undefined : `*${text}`;
}
