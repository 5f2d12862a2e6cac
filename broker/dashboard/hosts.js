// The hosts of a group that have waiting URLs, and why each one waits.

import { el } from './dom.js';
import { NONE, ago, count, duration, hostLink } from './format.js';
import { table } from './table.js';
import { waits } from './words.js';

/** A table for the rows of `GET /groups/{group}/keys`. */
export function hostsTable(group) {
  const time = field => row => (row[field] === undefined ? NONE : `in ${duration(row[field])}`);
  return table({
    caption: 'Hosts that hold it up',
    columns: [
      { title: 'Host', text: row => hostLink(row.key, group), sort: row => row.key },
      { title: 'Waiting', number: true, text: row => count(row.waiting), sort: row => row.waiting },
      { title: 'Why it waits', text: why, sort: why },
      { title: 'Next', number: true, text: time('free-in'), sort: row => row['free-in'] },
      { title: 'At least', number: true, text: row => duration(row['left-ms']),
        sort: row => row['left-ms'] ?? Infinity },
      { title: 'Last answer', number: true, text: row => ago(row['ended-ms']),
        sort: row => row['ended-ms'] },
    ],
    key: row => row.key, empty: 'Nothing waits.', filter: true,
  });
}

function why({ because, processing, 'pace-ms': pace }) {
  if (because === 'in-flight' && processing > 1) {
    return `crawlers work on ${count(processing)} of its URLs`;
  }
  return because === 'pace' && pace
    ? `robots.txt asks for ${duration(pace)} between requests` : waits(because);
}

/** A form that opens the page of a host by its name. */
export function openHost(group) {
  const input = el('input', {
    id: 'open-host', required: true, autocomplete: 'off', spellcheck: 'false',
  });
  const open = event => {
    event.preventDefault();
    location.hash = `#/groups/${encodeURIComponent(group)}/hosts/` +
      encodeURIComponent(input.value.trim().toLowerCase());
  };
  return el('form', { class: 'search', onsubmit: open },
    el('label', { for: 'open-host' }, 'Any host'), input, el('button', { type: 'submit' }, 'Open'));
}
