// Changes of URLs that wait: they are dropped, or get another priority.

import { confirm, form } from './actions.js';
import { ask } from './ask.js';
import { GROUP } from './crawl.js';
import { plural, visible } from './format.js';

// Sends an action for each part of those selected. Resolves to the number that it was about.
async function send(group, action, query) {
  const path = `/groups/${encodeURIComponent(group)}/${action}`;
  let sum = 0;
  for (let after = 0; after !== undefined;) {
    const part = await ask(path, { method: 'POST', query: { ...query, after } });
    sum += part.matched ?? part.dropped ?? part.bumped;
    after = part.next;
  }
  return sum;
}

/**
 * Drops what waits for a host, after a question with its number. Resolves to a sentence, or
 * `undefined` if the reader cancelled.
 */
export async function dropWaiting(group, key) {
  const waiting = plural(await send(group, 'purge', { key, dry: 'yes' }), 'waiting URL');
  const isSure = await confirm({
    title: `Drop what waits for ${visible(key)}?`, action: 'Drop them',
    text: `${waiting} of all jobs will be dropped. Workers finish what they hold.` +
      ' This cannot be undone.',
  });
  if (!isSure) {
    return undefined;
  }
  const dropped = await send(group, 'purge', { key });
  return `${plural(dropped, 'waiting URL')} of ${visible(key)} dropped.`;
}

/** Asks for a pattern, and which priority the waiting URLs of a job get that match it. */
export async function bumpWaiting(job) {
  let bumped = 0;
  const values = await form({
    title: `Change priorities in ${job}`, action: 'Change the priority',
    text: 'On its host, a waiting URL with a higher priority is fetched first.',
    fields: [
      {
        name: 'match', label: 'URLs that match', required: true,
        hint: 'A pattern of robots.txt, such as *.pdf$; several are separated by commas.',
      },
      {
        name: 'prio', label: 'Priority', type: 'number', value: 10, required: true,
        hint: 'From -1000 to 1000; without one, URLs have 0.',
      },
    ],
    run: async ({ match, prio }) => {
      bumped = await send(GROUP, 'bump', { job, match, prio });
    },
  });
  return values && `${plural(bumped, 'waiting URL')} got the priority ${values.prio}.`;
}
