// One result in a dialog: its record, the earlier results of its URL, and what to do with it.

import { button } from './actions.js';
import { feedOf, publish, rightTo } from './announce.js';
import { ask } from './ask.js';
import { el, mark, replace } from './dom.js';
import { openEvent } from './event-dialog.js';
import { NONE, ago, clock, count, hostLink, hostOf, jobLink, visible } from './format.js';
import { REASONS } from './outcomes.js';
import { Results, outcomeMark } from './results.js';
import { table } from './table.js';

const EARLIER = 10;

/** When a result was published, in ms since 1970. */
export const timeOf = ({ time }) => Date.parse(time);

/** Shows a result of `Results`. */
export function openResult(result, signal) {
  const { url, seq, payload } = result;
  const closed = new AbortController();
  const ends = AbortSignal.any([signal, closed.signal]);
  const about = el('p', {}, facts(result, {}));
  const actions = el('div', { class: 'actions' });
  const node = openEvent({ title: `Result ${count(seq)}`, seq, payload },
    about, actions, earlier(result, ends));
  node.addEventListener('close', () => closed.abort());
  groupOf(result, ends).then(group => {
    replace(about, facts(result, group));
    const topic = feedOf(group);
    replace(actions, button({
      label: 'Fetch again now', right: rightTo(topic), run: async () => {
        // What came of it is said on the page below.
        node.close();
        await publish(topic, url, {});
        return `${visible(url)} is announced.`;
      },
    }));
  }).catch(error => !ends.aborted && replace(actions, error.message));
}

/** The group of a result; if it is gone, a URL can still be announced. */
export async function groupOf({ group }, signal) {
  try {
    return await ask(`/groups/${encodeURIComponent(group)}`, { signal });
  } catch (error) {
    if (error.status !== 404) {
      throw error;
    }
    return { topics: ['new-url'] };
  }
}

function facts(result, { key }) {
  const { url, group, reason, 'in-job': job } = result;
  const host = key === 'host' && hostOf(url);
  return [
    `Published ${clock(timeOf(result))}, ${ago(Date.now() - timeOf(result))}`,
    host && [', host ', hostLink(host, group)],
    job && [', job ', jobLink(job)], '.',
    REASONS[reason] && ` No page: ${REASONS[reason]}.`,
  ];
}

// The results of the same URL before this one.
function earlier({ url, seq }, signal) {
  const results = new Results({ prefix: url }, other => other.url === url, signal);
  const note = el('p', { class: 'hint', role: 'status' }, 'Searching…');
  const view = table({
    caption: 'Earlier results of this URL', key: row => String(row.seq), empty: '',
    columns: [
      { title: 'Time', text: row => clock(timeOf(row)), number: true },
      { title: 'Outcome', text: row => mark(...outcomeMark(row)) },
      { title: 'Status', text: row => visible(row.status ?? NONE), number: true },
      { title: 'Changed', text: row => visible(row.changed ?? NONE) },
      { title: 'Job', text: row => jobLink(row['in-job']) },
    ],
  });
  const read = async () => {
    try {
      await results.older(EARLIER);
      view.update(results.rows, { more: results.isWhole ? null : read });
      replace(note, results.rows.length > 0 ? null : results.isWhole
        ? 'No earlier result of this URL is kept.'
        : `No earlier result since number ${count(results.begin)}.`);
    } catch (error) {
      if (!signal.aborted) {
        replace(note, error.message);
      }
    }
  };
  results.start(seq).then(read, error => !signal.aborted && replace(note, error.message));
  return [view.node, note];
}
