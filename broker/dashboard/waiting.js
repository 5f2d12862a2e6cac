// Changes of URLs that wait: they are dropped, or get another priority.

import { confirm, form } from './actions.js';
import { PRIO } from './announce.js';
import { partly, walk } from './ask.js';
import { GROUP } from './crawl.js';
import { plural, visible } from './format.js';

const DONE = { purge: 'dropped', bump: 'changed' };

// Sends an action for each part of those selected. Resolves to the number that it was about.
async function send(group, action, query, signal) {
  const path = `/groups/${encodeURIComponent(group)}/${action}`;
  let sum = 0;
  try {
    for await (const part of walk(path, { method: 'POST', query, signal })) {
      sum += part.matched ?? part.dropped ?? part.bumped;
    }
  } catch (error) {
    throw sum > 0 && !query.dry ? partly(error, [`${plural(sum, 'waiting URL')} ${DONE[action]}`])
      : error;
  }
  return sum;
}

/**
 * Drops what waits for a host, after a question with its number. Resolves to a sentence, or
 * `undefined` if the reader cancelled. No question is asked after `signal`.
 */
export async function dropWaiting(group, key, signal) {
  const waiting = await send(group, 'purge', { key, dry: 'yes' }, signal);
  if (waiting === 0) {
    return `Nothing waits for ${visible(key)}.`;
  }
  const isSure = !signal.aborted && await confirm({
    title: `Drop what waits for ${visible(key)}?`, action: 'Drop them',
    text: `${plural(waiting, 'waiting URL')} of all jobs will be dropped, and those that arrive ` +
      'until then. Workers finish what they hold. This cannot be undone.',
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
    fields: [
      {
        name: 'match', label: 'URLs that match', required: true,
        hint: 'A pattern of robots.txt, such as *.pdf$; several are separated by commas.',
      },
      { ...PRIO, type: 'number', value: 10, required: true },
    ],
    run: async ({ match, prio }) => {
      bumped = await send(GROUP, 'bump', { job, match, prio });
    },
  });
  return values && `${plural(bumped, 'waiting URL')} got the priority ${values.prio}.`;
}
